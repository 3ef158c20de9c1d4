"""FedNova (Wang et al. 2020): updates divided by what their local steps add up to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

from typing_extensions import override

from simfed.ground.method import Arrival, Field, Plan, Setting, State, Values, Who
from simfed.learn.methods.averaging import mean_values
from simfed.learn.methods.fedprox import FedProx
from simfed.learn.methods.options import NOT_NEGATIVE

if TYPE_CHECKING:
    from simfed.learn.kit import Kit


@dataclass(frozen=True)
class FedNova(FedProx):
    """Federated averaging of directions: a client that steps more weighs no more.

    Per prototype. A client sends (w − w_n)/a_n beside a_n, the sum of the weights with
    which its local gradients stand in w − w_n, over the learning rate: its number of
    steps with plain SGD. The server takes w − τ_eff · Σ p_n·(w − w_n)/a_n with p_n its
    clients' samples, and τ_eff = Σ p_n·a_n, so that with clients that work alike it is
    fedavg, or fedprox where μ is above 0.

    The learning rate is that of the round, weight decay counts as part of the gradient.
    Under compression the normalised update is what is compressed and has the residual;
    a_n travels whole. Refused: Adam, whose steps have no such weights, and edge
    servers, since two merges have no common a.

    The gain of a reward is that of the cross-entropy on the client's own data (local)
    alone. Source: J. Wang et al., "Tackling the Objective Inconsistency Problem in
    Heterogeneous Federated Optimization", 2020, equations 10 to 12 and section 4.2.
    Where momentum and μ stand together, the paper has no formula; a_n is then the sum
    of the sizes of these weights, as it is for each of them alone.
    """

    sums_gradients = True
    two_levels = False

    mu: Annotated[float, NOT_NEGATIVE, "weight of the pull to the server's weights"] = (
        0.0
    )

    @override
    def plan(self, setting: Setting, who: Who, round: int) -> Plan:
        plan = super().plan(setting, who, round)
        return replace(plan, up={**plan.up, "a": Field("normaliser", 1)})

    @override
    def trained(
        self, kit: Kit, who: Who, round: int, down: Values, own: State, after: Values
    ) -> tuple[Values, State]:
        values, own = super().trained(kit, who, round, down, own, after)
        steps, momentum = kit.setting.steps(who), kit.training.momentum
        a = sum_step_weights(steps, momentum, kit.rate(round) * self.mu)
        update = values["update"]
        return {**values, "update": update / a, "a": update.new_full((1,), a)}, own

    @override
    def merged(
        self, kit: Kit, before: Values, arrivals: Sequence[Arrival], round: int
    ) -> Values:
        mean = mean_values(arrivals)
        moved = before["weights"] - mean["a"] * mean["update"]
        return {"weights": moved, "buffers": mean["buffers"]}


def sum_step_weights(steps: int, momentum: float = 0.0, pull: float = 0.0) -> float:
    """Return ‖a‖₁: how far each step's gradient moves the weights by the end, summed.

    It is counted over the learning rate, and positive also where a pull beyond 1
    overshoots.

    Args:
        steps: of local training.
        momentum: ρ, heavy ball.
        pull: η·μ of the proximal term.

    >>> sum_step_weights(3), sum_step_weights(2, momentum=0.5)  # 1 + (1 + 0.5)
    (3.0, 2.5)
    >>> sum_step_weights(3, pull=0.5), sum_step_weights(2, pull=2.0)
    (1.75, 2.0)
    """
    total, moved, velocity = 0.0, 0.0, 1.0
    for _ in range(steps):  # since the gradient of one step
        moved += velocity
        total += abs(moved)
        velocity = momentum * velocity - pull * moved
    return total
