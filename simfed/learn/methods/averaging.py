"""The skeleton of methods that average models, per prototype.

Their clients train the server's weights.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

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
from simfed.learn.methods.fields import model_down, pick_model, update_up
from simfed.learn.methods.options import Ranged

if TYPE_CHECKING:
    from simfed.learn.kit import Changed, Kit, Model


class Averaging(Ranged, Method):
    """Local training from the server's weights, whose change travels up.

    The server moves each prototype by the mean change of its arrivals, weighted by how
    many samples they own.

    What a subclass says is how clients train (`local_steps`) or what the server makes
    of a prototype's arrivals (`merged`). Prototypes without an arrival stay as they
    are. An upload that is late changes today's weights. The server's state: prototype →
    `weights`, `buffers`.
    """

    shares_add_up = True
    averages = True
    weighs_samples = True

    @override
    def plan(self, setting: Setting, who: Who, round: int) -> Plan:
        return _build_plan(who.size, setting.training(who))

    @override
    def begin(self, kit: Kit) -> State:
        return {name: kit.initial(name) for name in kit.prototypes}

    @override
    def send(self, server: State, who: Who, round: int) -> Values:
        return pick_model(server[who.prototype])

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
        after = {
            name: self.merged(kit, server[name], mine, round)
            for name, mine in by_prototype(arrivals).items()
        }
        return {**server, **after}, {}

    def merged(
        self, kit: Kit, before: Any, arrivals: Sequence[Arrival], round: int
    ) -> Any:
        """Return what the arrivals of one prototype make of its state at the server.

        Args:
            kit: arithmetic.
            before: the prototype's state, as `begin` or the last merge made it.
            arrivals: at least one, in the order of clients.
            round: of the merge.
        """
        return moved(before, arrivals)

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
        return pick_model(server[who.prototype])


@functools.lru_cache(maxsize=4096)
def _build_plan(size: Size, training: Work) -> Plan:
    """Made once for clients that are alike: a time-only run asks for a million."""
    return Plan(model_down(size), (training,), update_up(size))


def compute_shares(weights: Sequence[float]) -> list[float]:
    """Return each weight as a share of the sum of all."""
    whole = sum(weights)
    return [weight / whole for weight in weights]


def by_prototype(arrivals: Sequence[Arrival]) -> dict[str, list[Arrival]]:
    """Return prototype → its arrivals, in the order given; only those that have any."""
    groups: dict[str, list[Arrival]] = {}
    for arrival in arrivals:
        groups.setdefault(arrival.who.prototype, []).append(arrival)
    return groups


def mean_losses(
    name: str, arrivals: Sequence[Arrival], values: Iterable[float]
) -> dict[str, dict[str, float]]:
    """Return, per prototype, the mean of its arrivals' values as a loss of this name.

    >>> from types import SimpleNamespace
    >>> arrivals = [SimpleNamespace(who=SimpleNamespace(prototype="small"))] * 2
    >>> mean_losses("distance", arrivals, [1.0, 2.0])
    {'small': {'distance': 1.5}}
    """
    of: dict[str, list[float]] = {}
    for arrival, value in zip(arrivals, values, strict=True):
        of.setdefault(arrival.who.prototype, []).append(value)
    return {owner: {name: sum(each) / len(each)} for owner, each in of.items()}


def make_arrived_model(server: State, arrival: Arrival, factor: float) -> Changed:
    """Return a client's model: its prototype's at the server plus factor × update.

    It is not made: the kit adds the update where the model is used.
    """
    from simfed.learn.kit import Changed

    name = arrival.who.prototype
    model = {**server[name], "buffers": arrival.values["buffers"]}
    return Changed(name, model, arrival.change("update"), factor)


def list_logits_work(setting: Setting, arrived: Sequence[Who]) -> list[Work]:
    """Return the server's passes of the public samples through arrived models."""
    return [
        Work(
            "inference", who.model, setting.public, 1, "logits", who.prototype,
            who.client,
        )
        for who in arrived
    ]  # fmt: skip


def mean_values(arrivals: Sequence[Arrival]) -> Model:
    """Return the mean of what arrived, field by field.

    It is weighted by samples and by what the server mode makes of staleness.
    """
    from simfed.learn.kit import mean_of

    weights = [arrival.who.samples * arrival.weight for arrival in arrivals]
    return mean_of([arrival.values for arrival in arrivals], weights)


def moved(model: Values, arrivals: Sequence[Arrival]) -> Values:
    """Return a model minus the mean of the arrivals' updates.

    It has the mean of their running statistics. Means are weighted by samples and by
    what the server mode makes of staleness. Shares add up to 1: an update that is
    merged alone counts in full, however stale (`merge_models` damps it instead).
    """
    mean = mean_values(arrivals)
    return {"weights": model["weights"] - mean["update"], "buffers": mean["buffers"]}


def merge_models(
    kit: Kit,
    model: Values,
    arrivals: Sequence[Arrival],
    sizes: Sequence[float],
    factors: Sequence[float],
) -> Values:
    """Return the mean, weighted by `sizes`, of the arrivals' models.

    Where few entries travelled, only these are touched.

    Args:
        kit: adds changes.
        model: `weights` and `buffers` before the merge.
        arrivals: of one prototype.
        sizes: weight of each in the mean.
        factors: by which each update is added to `model` to give a client's.
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
