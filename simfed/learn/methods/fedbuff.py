"""FedBuff (Nguyen et al. 2022): a buffer of updates that discounts the late."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from typing_extensions import override

from simfed.ground.method import Arrival, Losses, State
from simfed.learn.methods.averaging import Averaging, by_prototype
from simfed.learn.methods.options import require_above_zero, require_at_least

if TYPE_CHECKING:
    from simfed.learn.kit import Kit


@dataclass(frozen=True)
class FedBuff(Averaging):
    """A buffer of arrivals, each discounted by its staleness.

    Local training is as in averaging.

    At a merge, whatever has arrived is the buffer, and each prototype moves by η_g
    times the plain mean of s·update, s = 1/(1 + staleness)^a.

    The sum is divided by how many updates there are, not by the sum of the s, so that a
    buffer of late updates moves the model less. How many fill the buffer is the
    server's business (`aggregation`); under a server that waits for its cohort nobody
    is late, and this is averaging without weights. What is late is discounted here
    alone: `aggregation.staleness` is constant beside this method, maybe with a bound.
    Running statistics are averaged with the weights s. Secure aggregation is left out,
    and the paper's noise stands in `privacy`.

    The gain of a reward is that of the cross-entropy on the client's own data (local)
    alone. Source: J. Nguyen et al., "Federated Learning with Buffered Asynchronous
    Aggregation", 2022.
    """

    server_rate: Annotated[float, "η_g, on the mean of what is in the buffer"] = 1.0
    exponent: Annotated[
        float, ("a: how fast an update loses weight by its staleness")
    ] = 0.5
    shares_add_up: ClassVar[bool] = False
    privacy: ClassVar[tuple[str, ...]] = ("client", "sample")
    weighs_staleness: ClassVar[str] = "exponent"
    weighs_samples: ClassVar[bool] = False

    def __post_init__(self) -> None:
        require_above_zero(server_rate=self.server_rate)
        require_at_least(0, exponent=self.exponent)

    @override
    def discount(self, staleness: int) -> float:
        return float((1 + staleness) ** -self.exponent)

    @override
    def merge(
        self, kit: Kit, server: State, arrivals: Sequence[Arrival], round: int
    ) -> tuple[State, Losses]:
        from simfed.learn.kit import mean_of

        after = dict(server)
        for name, mine in by_prototype(arrivals).items():
            weights = [a.weight * self.discount(a.staleness) for a in mine]
            mean = mean_of([arrival.values for arrival in mine], weights)
            step = self.server_rate * sum(weights) / len(mine)
            after[name] = {
                "weights": server[name]["weights"] - step * mean["update"],
                "buffers": mean["buffers"],
            }
        return after, {}
