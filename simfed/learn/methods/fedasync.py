"""FedAsync (Xie et al. 2019): every arrival is mixed into the model by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typing_extensions import override

from simfed.ground.method import Arrival, State, Values, Who
from simfed.ground.registry import Only
from simfed.learn.methods.fedprox import FedProx
from simfed.learn.methods.fields import pick_model
from simfed.learn.methods.options import NOT_NEGATIVE, SHARE

if TYPE_CHECKING:
    from simfed.learn.kit import Kit


@dataclass(frozen=True)
class FedAsync(FedProx):
    """A server that mixes in each client's model as it comes, by its staleness.

    Clients train as with fedprox.

    The server mixes each client's model in as it comes: w ← (1 − α_t)·w + α_t·w_n, α_t
    = α·s(staleness), one after another in the order of clients.

    s is 1 (`constant`), (1 + staleness)^−a (`polynomial`), or 1 up to b and
    1/(a·(staleness − b) + 1) beyond (`hinge`). w_n is what the client was sent minus
    the update that came, so the server remembers each prototype's models of as many
    rounds as an upload may come late: `aggregation.staleness.bound`, 16 beside this
    method, as the paper supposes a largest staleness; with `bound: null` it remembers
    all. When several arrive for one merge, their staleness is that before it. What is
    late is discounted here alone: `aggregation.staleness` is constant beside this
    method. Running statistics are mixed alike.

    The gain of a reward is that of the cross-entropy on the client's own data (local)
    alone. Source: C. Xie et al., "Asynchronous Federated Optimization", 2019.
    """

    averages = False
    privacy = ("sample",)
    two_levels = False
    shares_add_up = False
    weighs_staleness = "staleness"
    latest = 16
    weighs_samples = False

    mu: Annotated[float, NOT_NEGATIVE, "weight of the pull to the server's weights"] = (
        0.005
    )
    mixing: Annotated[float, SHARE, "α: share of an arrival that is not late"] = 0.6
    staleness: Annotated[
        Literal["constant", "polynomial", "hinge"], "how the share falls with staleness"
    ] = "polynomial"
    a: Annotated[
        float,
        NOT_NEGATIVE,
        Only("staleness", "polynomial", "hinge"),
        "how fast it falls",
    ] = 0.5
    b: Annotated[
        float,
        NOT_NEGATIVE,
        Only("staleness", "hinge"),
        "the staleness up to which nothing is lost",
    ] = 4.0

    def share(self, staleness: int) -> float:
        """Return α_t of an arrival.

        >>> FedAsync(mixing=0.5).share(3)
        0.25
        >>> FedAsync(staleness="hinge", a=1, b=2).share(4)
        0.19999999999999998
        """
        factor = 1.0
        if self.staleness == "polynomial":
            factor = (1 + staleness) ** -self.a
        elif self.staleness == "hinge" and staleness > self.b:
            factor = 1 / (self.a * (staleness - self.b) + 1)
        return self.mixing * factor

    @override
    def begin(self, kit: Kit) -> State:
        return {name: [{**kit.initial(name), "round": 0}] for name in kit.prototypes}

    @override
    def merged(
        self, kit: Kit, before: Any, arrivals: Sequence[Arrival], round: int
    ) -> Any:
        weights, buffers = before[-1]["weights"], before[-1]["buffers"]
        for arrival in arrivals:
            share = arrival.weight * self.share(arrival.staleness)
            sent = _find_sent_model(before, round - arrival.staleness)
            trained = sent["weights"] - arrival.values["update"]
            weights = (1 - share) * weights + share * trained
            buffers = (1 - share) * buffers + share * arrival.values["buffers"]
        after = [*before, {"weights": weights, "buffers": buffers, "round": round}]
        if (latest := kit.setting.latest) is not None:
            oldest = _find_sent_model(after, round + 1 - latest)["round"]
            after = [one for one in after if one["round"] >= oldest]
        return after

    @override
    def send(self, server: State, who: Who, round: int) -> Values:
        return pick_model(server[who.prototype][-1])

    @override
    def model(self, server: State, own: State, who: Who) -> Values:
        return pick_model(server[who.prototype][-1])


def _find_sent_model(past: Sequence[Any], round: int) -> Any:
    """Return the model that clients were sent in a round.

    It is the newest of an earlier merge.
    """
    return next((one for one in reversed(past) if one["round"] < round), past[0])
