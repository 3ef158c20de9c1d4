"""One upload, from a started participation to its merge."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from simfed.compress.choice import NO_COMPRESSION, Choice
from simfed.compress.sparsifiers import State as CodecState
from simfed.fleet.contract import Task
from simfed.ground.method import State, Values
from simfed.ground.plain import Plain
from simfed.learn.kit import add_change
from simfed.learn.tree import Arrays, encode_tree
from simfed.learn.uploads import Received, Sum


class Host(Protocol):
    """What an upload asks of its workload."""

    def work_off(self) -> None:
        """Do the work of all uploads that is pending."""
        ...

    def uplink_bytes(self, upload: HostedUpload) -> float:
        """Size of an upload on the wire."""
        ...


class Forwarded(Mapping[str, Tensor]):
    """What an edge server sends of one prototype, by field, as `Received`."""

    def __init__(self, sums: Mapping[str, Sum]) -> None:
        self._sums = sums

    def __getitem__(self, name: str) -> Tensor:
        return add_change(None, self._sums[name], 1.0)

    def __iter__(self) -> Iterator[str]:
        return iter(self._sums)

    def __len__(self) -> int:
        return len(self._sums)

    def change(self, name: str) -> Sum:
        """See `Arrival.change`."""
        return self._sums[name]


@dataclass(eq=False, slots=True)
class EdgeUpload:
    """What an edge server has made of its clients' uploads since it was sent the model: the
    contract's `Contribution` of an edge server."""

    task: Task
    bytes: float
    server: State
    """What it sends its clients from."""
    version: int
    """Tells its models apart from others: below 0 from its first own merge on."""
    choice: Choice = NO_COMPRESSION
    k: int = 0
    told: None = None
    merged: list[list[HostedUpload]] = field(default_factory=list)
    """What it merged, merge by merge."""
    shares: list[Mapping[str, Mapping[str, Sequence[float]]]] = field(default_factory=list)
    """Of each of these merges, by prototype and field, what each upload of it counts."""

    def uplink_bytes(self) -> float:
        """Bytes of what it forwards: whole vectors, whatever its clients' uploads were."""
        return self.bytes

    def uploads(self, prototype: str, merge: int) -> list[HostedUpload]:
        """The uploads of a prototype that one of its merges took."""
        return [u for u in self.merged[merge] if u.task.prototype == prototype]

    def change(self, prototype: str, merge: int = -1) -> Forwarded:
        """What one of its merges came to."""
        mine, shares = self.uploads(prototype, merge), self.shares[merge][prototype]
        return Forwarded({name: _build_sum(name, mine, each) for name, each in shares.items()})

    def forwarded(self, prototype: str) -> Forwarded:
        """What all of them did: running statistics are those of the last, all else adds up."""
        merges = [n for n, shares in enumerate(self.shares) if prototype in shares]
        each = [self.change(prototype, merge) for merge in merges]
        fields = self.uploads(prototype, merges[0])[0].task.plan.up
        return Forwarded(
            {
                name: each[-1].change(name)
                if field.kind == "buffers"
                else Sum([term for one in each for term in one.change(name).terms])
                for name, field in fields.items()
            }
        )

    def plain(self, arrays: Arrays) -> dict[str, Plain]:
        """What a checkpoint keeps of it; vectors go to `arrays`."""
        name = f"lent/{self.task.client}/{self.task.key}"
        return {
            "task": [*self.task.arguments],
            "bytes": self.bytes,
            "server": encode_tree(self.server, f"{name}/server", arrays),
            "version": self.version,
            "merged": [[[u.task.client, u.task.key] for u in merge] for merge in self.merged],
            "shares": [
                {
                    owner: {name: list(each) for name, each in fields.items()}
                    for owner, fields in m.items()
                }
                for m in self.shares
            ],
        }


def _build_sum(name: str, uploads: Sequence[HostedUpload], shares: Sequence[float]) -> Sum:
    changes = [upload.values.change(name) for upload in uploads if upload.values is not None]
    return Sum(list(zip(changes, shares, strict=True)))


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
    sizes: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    """Bytes on the wire and entries told of the compressed fields whose size depends on the
    data."""
    if_lost: Mapping[str, CodecState] = field(default_factory=dict)
    """Compressed field → the memory of its codec if the upload is lost."""
    loss_before: float | None = None
    """f_n at the model that was evaluated for it as it began, where its policy learns."""
    loss_after: float | None = None
    """f_n after its merge; where credit goes as printed, at its next participation."""
    lost: bool = False
    """Nothing of it will be merged; it is taken back once its work is done."""
    at: EdgeUpload | None = None
    """The edge server that sent it, as long as its work is not done; None: the server did."""

    @property
    def k(self) -> int:
        """Entries kept."""
        return self.choice.k

    @property
    def told(self) -> int | None:
        """See `Contribution`."""
        size = self.sizes.get(self.task.plan.longest_name) if self.sizes else None
        return None if size is None else size[1]

    def uplink_bytes(self) -> float:
        """Bytes on the wire; under an index code whose size depends on the data, runs pending
        work."""
        return self.workload.uplink_bytes(self)

    def plain(self, arrays: Arrays) -> dict[str, Plain]:
        """What a checkpoint keeps of it while it is under way; vectors go to `arrays`. Of one whose
        client is elsewhere and still at work there are no values."""
        name = f"open/{self.task.client}/{self.task.key}"
        values = self.values
        changes = None if values is None else {of: values.change(of) for of in values}
        return {
            "task": [*self.task.arguments, self.task.downlink_bytes],
            "choice": self.choice.label,
            "losses": [self.loss_before, self.loss_after],
            "own_before": encode_tree(self.own_before, f"{name}/own", arrays),
            "values": encode_tree(changes, f"{name}/values", arrays),
            "sizes": self.sizes,
            "if_lost": encode_tree(self.if_lost, f"{name}/if-lost", arrays),
        }


class OpenUploads:
    """Uploads that are under way, in the order in which they were started."""

    def __init__(self) -> None:
        self._by_order: dict[tuple[int, int, int], HostedUpload] = {}
        self._of_client: dict[int, list[HostedUpload]] = {}

    def add(self, upload: HostedUpload) -> None:
        """An upload that has just been started, after all others."""
        self._by_order[upload.task.order] = upload
        self._of_client.setdefault(upload.task.client, []).append(upload)

    def remove(self, upload: HostedUpload) -> None:
        """An upload that is merged or lost. Raises: `KeyError` for one not under way."""
        del self._by_order[upload.task.order]
        of_client = self._of_client[upload.task.client]
        of_client.remove(upload)
        if not of_client:
            del self._of_client[upload.task.client]

    def clear(self) -> None:
        """Forget all of them, as before a checkpoint is restored."""
        self._by_order.clear()
        self._of_client.clear()

    def of_task(self, task: Task) -> HostedUpload | None:
        """The upload of this task, where it is under way."""
        return self._by_order.get(task.order)

    def of_client(self, client: int) -> Sequence[HostedUpload]:
        """The uploads of this client that are under way, the oldest first."""
        return self._of_client.get(client, ())

    def after(self, upload: HostedUpload) -> Sequence[HostedUpload]:
        """Those of the same client that were started after it, the oldest first; of one that is
        merged, all of the client's."""
        mine = self.of_client(upload.task.client)
        return mine[mine.index(upload) + 1 :] if upload in mine else mine

    def __iter__(self) -> Iterator[HostedUpload]:
        return iter(self._by_order.values())
