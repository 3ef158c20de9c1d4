"""f_n: the loss of a model on one client's own data, before and after a merge, for rewards."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from simfed.ground.method import Method, State, Values
from simfed.learn.hosted_upload import HostedUpload
from simfed.learn.kit import Kit
from simfed.learn.processes import Units
from simfed.learn.training import split_evenly
from simfed.scenario import Scenario
from simfed.scenario.policy import LocalLoss

ModelOf = Callable[[HostedUpload, State], Values]
"""(upload, its client's state) → the model that its client's loss is measured at."""


class OwnLosses:
    """Which clients' losses are needed, which are known already, and what measures the others."""

    def __init__(
        self, scenario: Scenario, method: Method, kit: Kit, *, learns: bool, together: bool
    ) -> None:
        """learns: whether policies learn. together: clients of one model are measured in one unit,
        as there is one process."""
        self._method, self._kit, self._together = method, kit, together
        groups = scenario.group_of_client()
        policies = [scenario.policy_of_group(group) for group in scenario.clients]
        for_all = scenario.participation.selection.needs_losses
        self._learns = [learns and (for_all or policies[group].learns) for group in groups]
        self._for_all = for_all
        self._local: list[LocalLoss] = [policies[group].reward.local_loss for group in groups]
        self.measured: dict[int, tuple[int, float]] = {}
        """Client → the version at whose weights its loss was measured, and the loss."""

    def wants(self, upload: HostedUpload) -> bool:
        """Whether somebody learns from the client's own loss before and after the merge."""
        return self._learns[upload.task.client] and (
            self._for_all or bool(upload.task.plan.longest)
        )

    def has(self, upload: HostedUpload, version: int) -> bool:
        """Whether the loss before is known."""
        at_version, _ = self.measured.get(upload.task.client, (None, None))
        return at_version == version and self._lasts(upload)

    def _lasts(self, upload: HostedUpload) -> bool:
        """Whether a loss holds for as long as the model is the same: a batch is another one every
        round, and a model of the client's own has no version."""
        return not self._method.personal and self._local[upload.task.client].data != "batch"

    def note(self, upload: HostedUpload, now: float | None, version: int) -> None:
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

    def after_merge(
        self, uploads: Sequence[HostedUpload], results: Sequence[Sequence[Tensor]]
    ) -> dict[str, tuple[float, float]]:
        """Give uploads the losses that `units` of those `waiting` came to; label of a task → f_n
        before and after."""
        for upload, loss in self.by_upload(waiting(uploads), results).items():
            upload.loss_after = loss
        return {
            u.task.label: (u.loss_before, u.loss_after)
            for u in uploads
            if u.loss_before is not None and u.loss_after is not None
        }

    def accept(self, uploads: Sequence[HostedUpload], version: int) -> None:
        """The merge stands and made this version: a loss after it is the one before the client's
        next participation."""
        for upload in uploads:
            causal = self._local[upload.task.client].credit == "causal"
            if causal and upload.loss_after is not None and self._lasts(upload):
                self.measured[upload.task.client] = (version, upload.loss_after)

    def units(
        self, of_uploads: Sequence[tuple[HostedUpload, State | None]], model_of: ModelOf
    ) -> Units:
        """What measures the losses of uploads' clients, each in this state of its own."""
        own_of, units, costs = dict(of_uploads), [], []
        for group in self._in_units([upload for upload, _ in of_uploads]):
            first, state = group[0], own_of[group[0]]
            if state is None:
                state = self._method.begin_client(self._kit, first.task.who)
            name, whos = first.task.prototype, [(u.task.client, u.task.key) for u in group]
            units.append(("own_losses", (name, model_of(first, state), whos)))
            samples = sum(len(self._kit.own_samples(*who)) for who in whos)
            costs.append(float(self._kit.flops[name] * samples))
        return units, costs

    def by_upload(
        self, uploads: Sequence[HostedUpload], results: Sequence[Sequence[Tensor]]
    ) -> dict[HostedUpload, float]:
        """The losses that `units` of these uploads came to."""
        in_order = [upload for group in self._in_units(uploads) for upload in group]
        losses = [loss for answer in results for loss in answer]
        values = torch.stack(losses).tolist() if losses else []
        return dict(zip(in_order, values, strict=True))

    def _in_units(self, uploads: Sequence[HostedUpload]) -> list[list[HostedUpload]]:
        """Clients of a prototype have one model to be measured at, unless they have their own."""
        if self._method.personal:
            return [[upload] for upload in uploads]
        alike: dict[str, list[HostedUpload]] = {}
        for upload in uploads:
            alike.setdefault(upload.task.prototype, []).append(upload)
        units = []
        for mine in alike.values():
            units += split_evenly(mine, len(mine), 1 if self._together else len(mine))
        return units


def waiting(uploads: Sequence[HostedUpload]) -> list[HostedUpload]:
    """Those whose loss after the merge is to be measured."""
    return [u for u in uploads if u.loss_before is not None and u.loss_after is None]
