"""The skeleton of methods that average models, per prototype.

Their clients train the server's weights.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import override

from simfed.ground.method import (
    Arrival,
    LocalSteps,
    Losses,
    Method,
    Plan,
    Setting,
    Size,
    State,
    Values,
    Who,
    Work,
)
from simfed.learn.methods.fields import model_down, update_up

if TYPE_CHECKING:
    from simfed.learn.kit import Kit


class Averaging(Method):
    """Local training from the server's weights, whose change travels up.

    The server moves each prototype by the mean change of its arrivals, weighted by how
    many samples they own.

    What a subclass says is how clients train (`local_steps`) or what the server makes
    of the arrivals (`merge`). Prototypes without an arrival stay as they are. An upload
    that is late changes today's weights. The server's state: prototype → `weights`,
    `buffers`.
    """

    shares_add_up: ClassVar[bool] = True
    averages: ClassVar[bool] = True
    weighs_samples: ClassVar[bool] = True

    @override
    def plan(self, setting: Setting, who: Who, round: int) -> Plan:
        return _build_plan(who.size, setting.training(who))

    @override
    def begin(self, kit: Kit) -> State:
        return {name: kit.initial(name) for name in kit.prototypes}

    @override
    def send(self, server: State, who: Who, round: int) -> Values:
        model: Values = server[who.prototype]
        return model

    @override
    def local_steps(
        self, kit: Kit, who: Who, round: int, down: Values, own: State
    ) -> LocalSteps:
        return LocalSteps(down)

    @override
    def trained(
        self, kit: Kit, who: Who, round: int, down: Values, own: State, after: Values
    ) -> tuple[Values, State]:
        return {
            "update": down["weights"] - after["weights"],
            "buffers": after["buffers"],
        }, own

    @override
    def merge(
        self, kit: Kit, server: State, arrivals: Sequence[Arrival], round: int
    ) -> tuple[State, Losses]:
        after = dict(server)
        for name, mine in by_prototype(arrivals).items():
            after[name] = moved(server[name], mine)
        return after, {}

    @override
    def shares(self, arrivals: Sequence[Arrival]) -> Mapping[str, Sequence[float]]:
        weights = [arrival.who.samples * arrival.weight for arrival in arrivals]
        return dict.fromkeys(("update", "buffers"), compute_shares(weights))

    @override
    def shift(self, kit: Kit, server: State, merged: Arrival) -> State:
        name = merged.who.prototype
        weights = kit.add(server[name]["weights"], [(merged.change("update"), -1.0)])
        after = {"weights": weights, "buffers": merged.values["buffers"]}
        return {**server, name: {**server[name], **after}}

    @override
    def model(self, server: State, own: State, who: Who) -> Values:
        model: Values = server[who.prototype]
        return model


@functools.lru_cache(maxsize=4096)
def _build_plan(size: Size, training: Work) -> Plan:
    """Made once for clients that are alike: a time-only run asks for a million."""
    return Plan(model_down(size), (training,), update_up(size))


def compute_shares(weights: Sequence[float]) -> list[float]:
    """Return each weight as a share of the sum of all."""
    whole = sum(weights)
    return [weight / whole for weight in weights]


def by_prototype(arrivals: Sequence[Arrival]) -> dict[str, list[Arrival]]:
    """Return the arrivals of each prototype that has any, in their order."""
    groups: dict[str, list[Arrival]] = {}
    for arrival in arrivals:
        groups.setdefault(arrival.who.prototype, []).append(arrival)
    return groups


def mean_by_prototype(
    arrivals: Sequence[Arrival], values: Iterable[float]
) -> dict[str, float]:
    """Return the mean of the arrivals' values by prototype."""
    of: dict[str, list[float]] = {}
    for arrival, value in zip(arrivals, values, strict=True):
        of.setdefault(arrival.who.prototype, []).append(value)
    return {name: sum(each) / len(each) for name, each in of.items()}


def moved(model: Values, arrivals: Sequence[Arrival]) -> Values:
    """Return a model minus the mean of the arrivals' updates.

    It has the mean of their running statistics. Means are weighted by samples and by
    what the server mode makes of staleness. Shares add up to 1: an update that is
    merged alone counts in full, however stale (`merge_models` damps it instead).
    """
    from simfed.learn.kit import mean_of

    weights = [arrival.who.samples * arrival.weight for arrival in arrivals]
    mean = mean_of([arrival.values for arrival in arrivals], weights)
    return {"weights": model["weights"] - mean["update"], "buffers": mean["buffers"]}


def merge_models(
    kit: Kit,
    model: Values,
    arrivals: Sequence[Arrival],
    sizes: Sequence[float],
    factors: Sequence[float],
) -> Values:
    """Return the mean, weighted by `sizes`, of the arrivals' models.

    Each is `model` plus a factor times its update; where few entries travelled, only
    these are touched.
    """
    shares = compute_shares(sizes)
    changes = [
        (arrival.change("update"), factor * share)
        for arrival, factor, share in zip(arrivals, factors, shares, strict=True)
    ]
    buffers = model["buffers"].new_zeros(len(model["buffers"]))
    for arrival, share in zip(arrivals, shares, strict=True):
        buffers.add_(arrival.values["buffers"], alpha=share)
    return {"weights": kit.add(model["weights"], changes), "buffers": buffers}
