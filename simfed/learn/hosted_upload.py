"""One upload, from a started participation to its merge."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from simfed.compress.choice import Choice
from simfed.compress.compressors import State as CodecState
from simfed.fleet.contract import Task
from simfed.fleet.tasks import k_of
from simfed.ground.method import State, Values
from simfed.ground.plain import Plain
from simfed.learn.tree import Arrays, to_plain
from simfed.learn.uploads import Received

__all__ = ["HostedUpload", "OpenUploads"]


class Host(Protocol):
    """What an upload asks of its workload."""

    def work_off(self) -> None:
        """Do the work of all uploads that is pending."""
        ...

    def uplink_bytes(self, upload: HostedUpload) -> float:
        """Size of an upload on the wire."""
        ...


@dataclass(eq=False, slots=True)
class HostedUpload:
    """A started participation: the contract's `Contribution`. Its work is done when it is
    needed."""

    workload: Host
    task: Task
    choice: Choice
    down: Values
    """What the client was sent, as it was then."""
    own_before: State | None
    """The client's state as it began; None: it had not taken part before."""
    values: Received | None = None
    """What the server gets; None until the work is done."""
    sizes: Mapping[str, float] = field(default_factory=dict)
    """Bytes on the wire of the compressed fields whose size depends on the data."""
    if_lost: Mapping[str, CodecState] = field(default_factory=dict)
    """Compressed field → the memory of its codec if the upload is lost."""
    loss_before: float | None = None
    """f_n at the model that was evaluated for it as it began, where its policy learns."""
    loss_after: float | None = None
    """The same after its merge; where credit goes as printed, at its next participation."""
    kept: int | None = None
    """K that a level of energy came to, of the first compressed field; the others have the same."""

    @property
    def k(self) -> int:
        """Entries kept; of a level of energy, runs pending work."""
        asked = k_of(self.task.plan, self.choice)
        if asked is not None:
            return asked
        if self.kept is None:
            self.workload.work_off()
        assert self.kept is not None
        return self.kept

    @property
    def sent(self) -> Choice:
        """With the K that a level of energy came to; for that, runs pending work."""
        return self.choice.at(self.k) if self.choice.follows_update else self.choice

    def uplink_bytes(self) -> float:
        """Bytes on the wire; under an index code whose size depends on the data, runs pending
        work."""
        return self.workload.uplink_bytes(self)

    def plain(self, arrays: Arrays) -> dict[str, Plain]:
        """What a checkpoint keeps of it while it is under way; vectors go to `arrays`."""
        name = f"open/{self.task.client}/{self.task.key}"
        assert self.values is not None
        values = self.values
        return {
            "task": [*self.task.arguments, self.task.downlink_bytes],
            "choice": self.choice.label,
            "kept": self.kept,
            "losses": [self.loss_before, self.loss_after],
            "own_before": to_plain(self.own_before, f"{name}/own", arrays),
            "values": to_plain({of: values.change(of) for of in values}, f"{name}/values", arrays),
            "sizes": self.sizes,
            "if_lost": to_plain(self.if_lost, f"{name}/if-lost", arrays),
        }


class OpenUploads:
    """Uploads that are under way, in the order in which they were started."""

    def __init__(self) -> None:
        self._by_key: dict[tuple[int, int | str], HostedUpload] = {}
        self._of_client: dict[int, list[HostedUpload]] = {}

    def add(self, upload: HostedUpload) -> None:
        """It is started now."""
        task = upload.task
        self._by_key[task.client, task.key] = upload
        self._of_client.setdefault(task.client, []).append(upload)

    def remove(self, upload: HostedUpload) -> None:
        """It is merged, or lost."""
        task = upload.task
        del self._by_key[task.client, task.key]
        of_client = self._of_client[task.client]
        of_client.remove(upload)
        if not of_client:
            del self._of_client[task.client]

    def clear(self) -> None:
        """None is under way."""
        self._by_key.clear()
        self._of_client.clear()

    def of_task(self, task: Task) -> HostedUpload | None:
        """The upload of this task, where it is under way."""
        return self._by_key.get((task.client, task.key))

    def of_client(self, client: int) -> Sequence[HostedUpload]:
        """All of this client."""
        return self._of_client.get(client, ())

    def __iter__(self) -> Iterator[HostedUpload]:
        return iter(self._by_key.values())
