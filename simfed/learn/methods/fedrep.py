"""FedRep (Collins et al. 2021): a common body, and a head of each client's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from typing_extensions import override

from simfed.ground.method import Plan, Setting, Size, State, Values, Who, Work
from simfed.learn.methods.options import AT_LEAST_ONE
from simfed.learn.methods.personal import PartlyPersonal

if TYPE_CHECKING:
    from simfed.learn.kit import Kit


@dataclass(frozen=True)
class FedRep(PartlyPersonal):
    """Averaging of bodies; each client's head, the last linear layer, is its own.

    A participation is `head_epochs` epochs on the head with the body fixed, in orders
    of their own, then the scenario's local training on the body with the head fixed,
    each by an optimiser that begins anew. Batch norm sees batches in both, and its
    running statistics belong to the body. Bodies are averaged weighted by samples, as
    in the authors' code (the paper's mean is plain). Evaluated, and measured for the
    local gain, is the server's body with the client's own head.

    Charged: a step on the head as an inference pass of its batch, since what it goes
    back through is the last layer alone, a hundredth of a step or less; a step on the
    body as a whole step. Ten epochs on the head are the authors'; they train the body
    for one or five (`training.local_epochs`). The gain of a reward is that of the
    cross-entropy on the client's own data (local) alone. Source: L. Collins et al.,
    "Exploiting Shared Representations for Personalized Federated Learning", ICML 2021.
    """

    head_epochs: Annotated[
        int, AT_LEAST_ONE, "epochs on the head, before local training of the body"
    ] = 10

    further_epochs = "head_epochs"
    kept_word = "a linear layer at their end"

    @override
    def kept(self, size: Size) -> tuple[str, ...]:
        return () if size.head is None else (size.head,)

    @override
    def plan(self, setting: Setting, who: Who, round: int) -> Plan:
        plan = super().plan(setting, who, round)
        steps = setting.steps(who, self.head_epochs)
        head = Work(
            "inference", who.model, setting.batch_size, steps, "training", "head"
        )
        return Plan(plan.down, (head, *plan.work), plan.up)

    @override
    def train(
        self, kit: Kit, who: Who, round: int, down: Values, own: State
    ) -> tuple[Values, State]:
        body, head = (part.places for part in self.parts(who.size))
        model = self.model(down, own, who)
        model, _ = kit.descend(who, round, model, epochs=self.head_epochs, fixed=body)
        after, _ = kit.descend(who, round, model, fixed=head)
        return self.trained(kit, who, round, down, own, after)
