"""Orders to clients, from a started participation to its merge, and what came of it.

An `Order` is made by `HostedWorkload.execute`, worked by a `Bench`, and merged or lost.
Edge servers' uploads (`EdgeUpload`) are of orders that they merged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from simfed.compress.choice import NO_COMPRESSION, Choice
from simfed.fleet.contract import Task
from simfed.ground.method import State, Values
from simfed.ground.plain import Plain
from simfed.learn.state import Name
from simfed.learn.tree import Arrays, encode_tree
from simfed.learn.vectors import ArrivedValues, Sum


class Host(Protocol):
    """The workload as an order sees it."""

    def uplink_bytes(self, order: Order) -> float:
        """Return the size of an upload on the wire."""
        ...

    def take(self, order: Order, result: Result) -> None:
        """Take note that an order's work is done."""
        ...


class Result(NamedTuple):
    """The result of an order."""

    values: ArrivedValues
    """The values that the server gets."""
    sizes: Mapping[str, tuple[float, int]]
    """Compressed field → bytes on the wire and entries told, where they depend on
    data."""
    loss: Tensor | None = None
    """The mean of its batches, where training is local steps."""
    before: Tensor | float | None = None
    """f_n as it began, where it was to be measured."""


@dataclass(eq=False, slots=True)
class Order:
    """A client's order, and its result when somebody needed that.

    It is the contract's `Contribution`, so the clock holds it while its upload is under
    way. Other processes get what is asked alone: task, choice, what it is sent, the
    cohort and the model to measure.
    """

    task: Task
    choice: Choice
    down: Values
    """The fields that the client is sent, as they were then; empty once the work is
    done."""
    cohort: int = 1
    """Uploads of its prototype and round: what attackers who collude go by."""
    measured: Values | None = None
    """The model at which f_n is measured first, empty for the client's own; None: it is
    not."""
    host: Host | None = None
    edge: EdgeUpload | None = None
    """The edge server that sent it, until the work is done; None: the server did."""
    result: Result | None = None
    loss_before: float | None = None
    """f_n at the model that was evaluated for it as it began, where its policy
    learns."""
    loss_after: float | None = None
    """f_n after its merge; where credit goes as printed, at its next participation."""
    lost: bool = False
    """True if nothing of it will be merged; it is taken back once its work is done."""

    @property
    def name(self) -> Name:
        """(round, turn): tells it apart from other orders of its client."""
        return self.task.round, self.task.who.turn

    @property
    def version(self) -> int:
        """The version of the models of whoever sent it, until the work is done."""
        return self.task.model_version if self.edge is None else self.edge.version

    @property
    def values(self) -> ArrivedValues | None:
        """The values that the server gets; None until the work is done."""
        return None if self.result is None else self.result.values

    @property
    def sent(self) -> ArrivedValues:
        """The same, of one whose work is done."""
        assert self.result is not None
        return self.result.values

    @property
    def k(self) -> int:
        """Entries kept."""
        return self.choice.k

    @property
    def told(self) -> int | None:
        """The entries of which the payload tells; None: its codec's K says it.

        See `Contribution`.
        """
        sizes = self.result.sizes if self.result is not None else {}
        size = sizes.get(self.task.plan.longest_name)
        return None if size is None else size[1]

    def uplink_bytes(self) -> float:
        """Return the bytes on the wire.

        Where these depend on data, run pending work.
        """
        assert self.host is not None
        return self.host.uplink_bytes(self)

    def plain(
        self, name: str, arrays: Arrays, *, with_values: bool
    ) -> dict[str, Plain]:
        """Return what a checkpoint keeps of it; vectors go to `arrays`.

        Args:
            name: under which vectors stand there.
            arrays: is added to.
            with_values: False where states of clients have them already.
        """
        result = self.result
        values = None
        if with_values and result is not None:
            values = {field: result.values.change(field) for field in result.values}
        return {
            "task": [*self.task.arguments, self.task.downlink_bytes],
            "choice": self.choice.label,
            "losses": [self.loss_before, self.loss_after],
            "values": encode_tree(values, name, arrays),
            "sizes": {} if result is None else dict(result.sizes),
        }

    def __reduce__(self) -> tuple[Any, ...]:
        return Order, (self.task, self.choice, self.down, self.cohort, self.measured)


@dataclass(eq=False, slots=True)
class EdgeUpload:
    """The upload of an edge server: what it has merged since it was sent the model.

    It is the contract's `Contribution` of an edge server. The changes stay those of its
    clients, with factors, so that the cloud's merge rounds as one merge of all would.
    """

    task: Task
    bytes: float
    server: State
    """The state from which it sends its clients models."""
    version: int
    """Tells its models apart from others: below 0 from its first own merge on."""
    choice: Choice = NO_COMPRESSION
    k: int = 0
    told: None = None
    merged: list[list[Order]] = field(default_factory=list)
    """The uploads that it merged, merge by merge."""
    shares: list[Mapping[str, Mapping[str, Sequence[float]]]] = field(
        default_factory=list
    )
    """The shares of each upload in each of these merges, by prototype and field."""

    def uplink_bytes(self) -> float:
        """Bytes of what it forwards: whole vectors, whatever its clients uploaded."""
        return self.bytes

    def list_uploads(self, prototype: str, merge: int) -> list[Order]:
        """Return the orders of a prototype that one of its merges took.

        Args:
            prototype: whose orders.
            merge: its place among the merges, from 0.
        """
        return [u for u in self.merged[merge] if u.task.prototype == prototype]

    def change(self, prototype: str, merge: int = -1) -> ArrivedValues:
        """Return what one of its merges came to, as sums of its clients' changes.

        merge: its place among them; the last.
        """
        mine, shares = (
            self.list_uploads(prototype, merge),
            self.shares[merge][prototype],
        )
        return ArrivedValues(
            {name: _build_sum(name, mine, each) for name, each in shares.items()}
        )

    def forwarded(self, prototype: str) -> ArrivedValues:
        """Return what all its merges came to.

        Running statistics are those of the last, all else adds up.
        """
        merges = [n for n, shares in enumerate(self.shares) if prototype in shares]
        each = [self.change(prototype, merge) for merge in merges]
        fields = self.list_uploads(prototype, merges[0])[0].task.plan.up
        return ArrivedValues(
            {
                name: each[-1].change(name)
                if field.kind == "buffers"
                else Sum([term for one in each for term in one.change(name).terms])
                for name, field in fields.items()
            }
        )

    def plain(self, arrays: Arrays) -> dict[str, Plain]:
        """Return what a checkpoint keeps of it; vectors go to `arrays`."""
        name = f"lent/{self.task.client}/{self.task.key}"
        return {
            "task": [*self.task.arguments],
            "bytes": self.bytes,
            "server": encode_tree(self.server, f"{name}/server", arrays),
            "version": self.version,
            "merged": [
                [[u.task.client, u.task.key] for u in merge] for merge in self.merged
            ],
            "shares": [
                {
                    owner: {name: list(each) for name, each in fields.items()}
                    for owner, fields in m.items()
                }
                for m in self.shares
            ],
        }


def _build_sum(name: str, orders: Sequence[Order], shares: Sequence[float]) -> Sum:
    """Return one field's changes, each with its share."""
    changes = [order.sent.change(name) for order in orders]
    return Sum(list(zip(changes, shares, strict=True)))
