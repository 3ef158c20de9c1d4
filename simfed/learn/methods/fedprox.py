"""FedProx (Li et al. 2020): averaging with local training near the server's weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from typing_extensions import override

from simfed.ground.method import LocalSteps, State, Values, Who
from simfed.learn.methods.averaging import Averaging
from simfed.learn.methods.options import NOT_NEGATIVE

if TYPE_CHECKING:
    from simfed.learn.kit import Kit


@dataclass(frozen=True)
class FedProx(Averaging):
    """Federated averaging in which local steps also descend μ/2·‖w − w_t‖².

    This is per prototype.

    The gain of a reward is that of the cross-entropy on the client's own data (local)
    alone. Source: T. Li et al., "Federated Optimization in Heterogeneous Networks",
    2020. With μ = 0 it is fedavg.
    """

    two_levels = True

    mu: Annotated[float, NOT_NEGATIVE, "weight of the pull to the server's weights"] = (
        0.01
    )
    privacy: ClassVar[tuple[str, ...]] = ("client", "sample")

    @override
    def local_steps(
        self, kit: Kit, who: Who, round: int, down: Values, own: State
    ) -> LocalSteps:
        return LocalSteps(down, pull=self.mu)
