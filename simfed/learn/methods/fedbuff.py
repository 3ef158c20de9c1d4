"""FedBuff (Nguyen et al. 2022): a buffer of updates that discounts the late."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from typing_extensions import override

from simfed.ground.method import Arrival, Values
from simfed.learn.methods.averaging import Averaging
from simfed.learn.methods.options import ABOVE_ZERO, NOT_NEGATIVE

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

    server_rate: Annotated[
        float, ABOVE_ZERO, "η_g, on the mean of what is in the buffer"
    ] = 1.0
    exponent: Annotated[
        float, NOT_NEGATIVE, "a: how fast an update loses weight by its staleness"
    ] = 0.5
    shares_add_up = False
    privacy = ("client", "sample")
    weighs_staleness = "exponent"
    weighs_samples = False

    @override
    def discount(self, staleness: int) -> float:
        return float((1 + staleness) ** -self.exponent)

    @override
    def merged(
        self, kit: Kit, before: Values, arrivals: Sequence[Arrival], round: int
    ) -> Values:
        from simfed.learn.kit import mean_of

        weights = [a.weight * self.discount(a.staleness) for a in arrivals]
        mean = mean_of([arrival.values for arrival in arrivals], weights)
        step = self.server_rate * sum(weights) / len(arrivals)
        return {
            "weights": before["weights"] - step * mean["update"],
            "buffers": mean["buffers"],
        }
