"""f_n, a model's loss on one client's own data, before and after a merge.

Rewards of policies are made of it, and selections may ask for it. This is the
bookkeeping; `Kit.own_loss` measures.
"""

from __future__ import annotations

from collections.abc import Sequence

from simfed.ground.method import Method
from simfed.learn.orders import Order
from simfed.scenario import Scenario
from simfed.scenario.policy import LocalLoss


class OwnLosses:
    """The bookkeeping of clients' losses: needed, known, or to be measured.

    A loss after a merge is the loss before the client's next participation where that
    begins at the very model that the merge made: then it is known and not measured
    again.
    """

    def __init__(self, scenario: Scenario, method: Method, *, learns: bool) -> None:
        """Begin without a loss.

        Args:
            scenario: says who learns from losses.
            method: may have losses of its own.
            learns: whether policies learn.
        """
        self._method = method
        groups = scenario.group_of_client()
        policies = [scenario.policy_of_group(group) for group in scenario.clients]
        for_all = scenario.participation.selection.needs_losses
        self._learns = [
            learns and (for_all or policies[group].learns) for group in groups
        ]
        self._for_all = for_all
        self._local: list[LocalLoss] = [
            policies[group].reward.local_loss for group in groups
        ]
        self.measured: dict[int, tuple[int, float]] = {}
        """Client → the version at whose weights its loss was measured, and the loss."""

    def asks(self, order: Order) -> bool:
        """Return whether f_n is to be measured as the order's work begins.

        It is where somebody learns from it; one that is known is noted instead.
        """
        task = order.task
        if not self._learns[task.client] or not (self._for_all or task.plan.longest):
            return False
        version, loss = self.measured.get(task.client, (None, 0.0))
        if version != order.version or not self._lasts(order):
            return True
        self.note(order, loss)
        return False

    def _lasts(self, upload: Order) -> bool:
        """Return whether a loss holds for as long as the model is the same.

        A batch is another one every round, and a model of the client's own has no
        version.
        """
        return (
            not self._method.personal
            and self._local[upload.task.client].data != "batch"
        )

    def note(self, order: Order, loss: float) -> None:
        """Give an order f_n as its work began.

        Credit as printed compares the client's last two participations in place of
        before and after.
        """
        client = order.task.client
        printed = self._local[client].credit == "as-printed"
        _, last = self.measured.get(client, (None, loss))
        order.loss_before, order.loss_after = (last, loss) if printed else (loss, None)
        if printed or self._lasts(order):
            self.measured[client] = (order.version, loss)

    @staticmethod
    def note_around_merge(uploads: Sequence[Order]) -> dict[str, tuple[float, float]]:
        """Give uploads their losses around the merge.

        Returns f_n before and after, by the label of a task.
        """
        return {
            u.task.label: (u.loss_before, u.loss_after)
            for u in uploads
            if u.loss_before is not None and u.loss_after is not None
        }

    def accept(self, uploads: Sequence[Order], version: int) -> None:
        """Note that the merge stands and made this version.

        A loss after it is the one before the client's next participation.
        """
        for upload in uploads:
            causal = self._local[upload.task.client].credit == "causal"
            if causal and upload.loss_after is not None and self._lasts(upload):
                self.measured[upload.task.client] = (version, upload.loss_after)
