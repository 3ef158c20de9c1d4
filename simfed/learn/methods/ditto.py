"""Ditto (T. Li et al. 2021): a model of each client's own, near the common one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from typing_extensions import override

from simfed.ground.method import Plan, Setting, State, Values, Who
from simfed.learn.methods.averaging import Averaging
from simfed.learn.methods.options import AT_LEAST_ONE, NOT_NEGATIVE
from simfed.learn.methods.personal import Personal

if TYPE_CHECKING:
    from simfed.learn.kit import Kit


@dataclass(frozen=True)
class Ditto(Personal, Averaging):
    """Federated averaging of w, beside which each client trains a model v of its own.

    A participation trains the server's w on the client's data, whose change travels up,
    then v, which descends the cross-entropy plus λ/2·‖v − w‖², w as it came. v begins
    as the prototype's first weights. It sees the same batches as w, as in the authors'
    code, or those of `own_epochs` in orders of their own; either model has the
    scenario's optimiser, which begins anew. With λ = 0 it is local-only.

    Evaluated, and measured for the local gain, is v, which never leaves its client (so
    privacy says nothing of it). Charged: both trainings, whole.
    The paper tunes λ per data set, the authors' scripts have 1, and their code may pick
    a λ of each client's own, which this does not. The gain of a reward is that of the
    cross-entropy on the client's own data (local) alone. Source: T. Li et al., "Ditto:
    Fair and Robust Federated Learning Through Personalization", ICML 2021.
    """

    two_levels = True
    further_epochs = "own_epochs"

    pull: Annotated[float, NOT_NEGATIVE, "λ, of the own model to the server's"] = 1.0
    own_epochs: Annotated[
        int | None, AT_LEAST_ONE, "of the own model; trained as w is if omitted"
    ] = None
    privacy = ("client",)

    @override
    def plan(self, setting: Setting, who: Who, round: int) -> Plan:
        plan = super().plan(setting, who, round)
        own = setting.training(who, self.own_epochs)._replace(name="own model")
        return Plan(plan.down, (*plan.work, own), plan.up)

    @override
    def train(
        self, kit: Kit, who: Who, round: int, down: Values, own: State
    ) -> tuple[Values, State]:
        after, _ = kit.descend(who, round, down)
        values, _ = self.trained(kit, who, round, down, own, after)
        mine, _ = kit.descend(
            who,
            round,
            own,
            correction=lambda v: self.pull * (v - down["weights"]),
            epochs=self.own_epochs,
        )
        return values, mine
