"""f_n: the loss of a model on one client's own data, before and after a merge, for rewards."""

from __future__ import annotations

from collections.abc import Sequence

from simfed.ground.method import Method
from simfed.learn.orders import Order
from simfed.scenario import Scenario
from simfed.scenario.policy import LocalLoss


class OwnLosses:
    """Which clients' losses are needed, and which are known already."""

    def __init__(self, scenario: Scenario, method: Method, *, learns: bool) -> None:
        """learns: whether policies learn."""
        self._method = method
        groups = scenario.group_of_client()
        policies = [scenario.policy_of_group(group) for group in scenario.clients]
        for_all = scenario.participation.selection.needs_losses
        self._learns = [learns and (for_all or policies[group].learns) for group in groups]
        self._for_all = for_all
        self._local: list[LocalLoss] = [policies[group].reward.local_loss for group in groups]
        self.measured: dict[int, tuple[int, float]] = {}
        """Client → the version at whose weights its loss was measured, and the loss."""

    def wants(self, upload: Order) -> bool:
        """Whether somebody learns from the client's own loss before and after the merge."""
        return self._learns[upload.task.client] and (
            self._for_all or bool(upload.task.plan.longest)
        )

    def has(self, upload: Order, version: int) -> bool:
        """Whether the loss before is known."""
        at_version, _ = self.measured.get(upload.task.client, (None, None))
        return at_version == version and self._lasts(upload)

    def _lasts(self, upload: Order) -> bool:
        """Whether a loss holds for as long as the model is the same: a batch is another one every
        round, and a model of the client's own has no version."""
        return not self._method.personal and self._local[upload.task.client].data != "batch"

    def note(self, upload: Order, now: float | None, version: int) -> None:
        """Give an upload its loss before: `now`, or None for the one that is known. Credit as
        printed compares the client's last two participations in place of before and after."""
        client = upload.task.client
        _, last = self.measured.get(client, (version, now))
        if now is None:
            now = last
        assert now is not None
        printed = self._local[client].credit == "as-printed"
        before = now if last is None else last
        upload.loss_before, upload.loss_after = (before, now) if printed else (now, None)
        if printed or self._lasts(upload):
            self.measured[client] = (version, now)

    @staticmethod
    def after_merge(uploads: Sequence[Order]) -> dict[str, tuple[float, float]]:
        """Return label of a task → f_n before and after, where both are known."""
        return {
            u.task.label: (u.loss_before, u.loss_after)
            for u in uploads
            if u.loss_before is not None and u.loss_after is not None
        }

    def accept(self, uploads: Sequence[Order], version: int) -> None:
        """The merge stands and made this version: a loss after it is the one before the client's
        next participation."""
        for upload in uploads:
            causal = self._local[upload.task.client].credit == "causal"
            if causal and upload.loss_after is not None and self._lasts(upload):
                self.measured[upload.task.client] = (version, upload.loss_after)


def waiting(uploads: Sequence[Order]) -> list[Order]:
    """Those whose loss after the merge is to be measured."""
    return [u for u in uploads if u.loss_before is not None and u.loss_after is None]
