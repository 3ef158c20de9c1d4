"""The contract in which time and learning meet.

The clock side (`simfed.sim`) asks a `Workload` for tasks, sizes and outcomes and never
sees a tensor; the learning side (`simfed.learn`) answers and never sees a clock. Tasks
and outcomes are frozen records of plain numbers. A `Contribution` is a handle: the
clock asks it for plain numbers too, and its size may be known only once pending
learning is done. So all that crosses can be logged, replayed from a cache, or made up
by the time-only workload.

One synchronous round, as the server plays it:

    for client in cohort:
        task = workload.task(round, client)            # a plan: what travels
        contribution = workload.execute(task, choice)  # computed later, in one batch
    ...                                                # downloads, work, uploads: time
    workload.discard(contribution)                     # lost, as soon as it is known
    outcome = workload.merge(round, contributions)     # as the method has it
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from simfed.compress.choice import Choice
from simfed.ground.method import Plan, Who, Work, make_key
from simfed.ground.plain import Plain


class Task(NamedTuple):
    """A client's part in one round: what it is asked, in work and bytes.

    `Tasks.task` makes it from facts alone; the clock plays it, learning carries it out.
    What a method's plan says of it is `plan`.
    """

    round: int
    client: int
    who: Who
    plan: Plan
    model_version: int
    """Number of accepted merges behind what the client receives."""
    downlink_bytes: float
    """Bytes of all that travels down, as it is charged; 0 where the downlink is free.
    Before it is executed the most, where that depends on what is learned."""
    held: int | None = None
    """The version that the client has already, where changes travel down in place of
    models; None: none, so that it is sent the whole model."""
    unpacking: tuple[Work, ...] = ()
    """The client's work on what travels down compressed, before that of its plan."""

    @property
    def key(self) -> int | str:
        """The key of this participation's draws beside the client."""
        turn = self.who.turn
        return make_key(self.round, turn) if turn else self.round

    @property
    def name(self) -> tuple[int, int, int, int]:
        """(round, client, model version, turn): its part in the decisions of a run."""
        return self.round, self.client, self.model_version, self.who.turn

    @property
    def label(self) -> str:
        """`client/key`: no other participation of the run has it."""
        return f"{self.client}/{self.key}"

    @property
    def order(self) -> tuple[int, int, int]:
        """(client, turn, round): uploads are merged in ascending order of it."""
        return self.client, self.who.turn, self.round

    @property
    def arguments(self) -> tuple[int | None, ...]:
        """The arguments by which `Tasks.task` makes it."""
        return self.name if self.held is None else (*self.name, self.held)

    @property
    def work(self) -> Sequence[Work]:
        """The client's work between the download and the compression of its upload."""
        return (*self.unpacking, *self.plan.work) if self.unpacking else self.plan.work

    @property
    def prototype(self) -> str:
        """The client's prototype."""
        return self.who.prototype

    @property
    def model(self) -> str:
        """Registry name of the model: the device profile's key."""
        return self.who.model

    @property
    def parameters(self) -> int:
        """d, the length of the model's flat gradient."""
        return self.who.parameters


@runtime_checkable
class Contribution(Protocol):
    """A client's upload, as the clock sees it."""

    @property
    def task(self) -> Task:
        """The task as it was executed: with the true size of what travels down."""
        ...

    @property
    def choice(self) -> Choice:
        """The choice for its compressed fields; each level is a number of entries."""
        ...

    @property
    def k(self) -> int:
        """Entries kept of each compressed field: min(K, its length).

        0 where none is compressed.
        """
        ...

    def uplink_bytes(self) -> float:
        """Return the payload on the wire, buffers included.

        It is fractional under `ideal` accounting. Where it depends on the data, asking
        runs pending learning work.
        """
        ...

    @property
    def told(self) -> int | None:
        """The entries of its longest compressed field of which the payload tells.

        It is there where that depends on the data, once its size was asked for; else
        None.
        """
        ...


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One prototype on the test set.

    Rows of `prototypes.parquet`; of personal models the mean over its clients.
    """

    accuracy: float
    loss: float
    measures: Mapping[str, float | None] = field(default_factory=dict)
    """By key, the one that counts first; empty where that is the accuracy alone."""

    @property
    def headline(self) -> float | None:
        """The measure by which the models are judged."""
        return next(iter(self.measures.values()), self.accuracy)


@dataclass(frozen=True, slots=True)
class PersonalEvaluation:
    """One client's model: on the test set, and in the client's own label mix.

    Rows of `clients.parquet`.
    """

    accuracy: float
    loss: float
    own_accuracy: float
    own_loss: float
    measures: Mapping[str, float | None] = field(default_factory=dict)
    """As of `Evaluation`, on the test set; a task's measure also as `own_measure`."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A merge's effect on the models, in plain numbers.

    `Workload.merge` returns it; policies are rewarded by it, tables and the journal are
    filled from it. That of a time-only run has no losses of its own.
    """

    round: int
    model_version: int
    """Accepted merges so far; unchanged by a round that was rolled back."""
    rolled_back: bool = False
    forced_arm: str | None = None
    """The arm everybody must play in the next round (after a rollback), else None."""
    losses: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Prototype → name → value: the losses that the method measures at a merge."""
    shared_loss: Mapping[str, float] = field(default_factory=dict)
    """Per prototype, the one of them whose decrease is the shared part of a gain; empty
    where the method has none."""
    shared_loss_before: Mapping[str, float] = field(default_factory=dict)
    """`shared_loss` of the last accepted round. A gain compares `shared_loss` with that
    of the version which its upload trained on: this one, unless the upload was late."""
    local_loss: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Per merged task, by its `label`: f_n of its client at the version that it trained
    on and after this merge, whose difference is the local gain; empty where no policy
    learns."""
    evaluation: Mapping[str, Evaluation] = field(default_factory=dict)
    """Per prototype, in evaluated rounds only; of personal models the mean over its
    clients."""
    clients: Mapping[int, PersonalEvaluation] = field(default_factory=dict)
    """Evaluations of clients in evaluated rounds: where models are personal, per client
    that has taken part; else, where the scenario asks for it, per client at its
    prototype's weights."""

    def plain(self) -> list[Plain]:
        """Return it as a journal has it, without its round."""
        return [
            self.model_version,
            self.rolled_back,
            self.forced_arm,
            {name: dict(losses) for name, losses in self.losses.items()},
            dict(self.shared_loss),
            dict(self.shared_loss_before),
            dict(self.local_loss),
            {name: list(astuple(one)) for name, one in self.evaluation.items()},
            [[client, *astuple(one)] for client, one in self.clients.items()],
        ]

    @classmethod
    def of_plain(cls, round: int, plain: Sequence[Plain]) -> Outcome:
        """Return the outcome of a journal's line.

        Args:
            round: of the merge, which the line's label says.
            plain: what `plain` gave.
        """
        version, undone, forced, losses, shared, before, local, evaluation, clients = (
            plain
        )
        tested = {name: Evaluation(*one) for name, one in evaluation.items()}
        of_clients = {client: PersonalEvaluation(*one) for client, *one in clients}
        return cls(
            round, version, undone, forced, losses, shared, before, local, tested,
            of_clients,
        )  # fmt: skip


class Workload(Protocol):
    """Learning, or its stand-in in a time-only run, as the clock sees it."""

    def task(
        self, round: int, client: int, turn: int = 0, held: int | None = None
    ) -> Task:
        """Return the work of a client in a round; cheap and without side effects.

        Args:
            round: of the run, from 1.
            client: its id.
            turn: how often it was started before in this round.
            held: the version of the model that it has already, see `Task`.
        """
        ...

    def execute(self, task: Task, choice: Choice) -> Contribution:
        """Begin a participation: local gradient, residual, compression.

        The level of `choice` is how many entries to keep of each compressed field.
        Called once per started participation, at its start; implementations batch the
        work until a size or a merge needs it.
        """
        ...

    def merge(
        self,
        round: int,
        contributions: Sequence[Contribution],
        weights: Sequence[float] = (),
    ) -> Outcome:
        """Aggregate what arrived, in the order of client ids (then turns).

        The order in which it is given does not matter. `weights`: what each counts by
        its staleness; 1 where there are none.
        """
        ...

    def server_work(
        self, round: int, contributions: Sequence[Contribution]
    ) -> Sequence[Work]:
        """Return the server's work at the merge of these, beside decompression.

        It has no side effects.
        """
        ...

    def discard(self, contribution: Contribution) -> None:
        """Take back an upload that was lost: it returns to the client's residual.

        Called once, at the moment at which that is known: the client may be started
        again from then on.
        """
        ...

    def timings(self) -> Mapping[str, float]:
        """Return host seconds by activity (gradients, compression, logits, …).

        They are for the manifest only.
        """
        ...

    def close(self) -> None:
        """End worker processes and free shared memory; safe to call twice."""
        ...


class Learning(Workload, Protocol):
    """A workload that learns, and can be gone on with."""

    def state(self) -> tuple[dict[str, Plain], dict[str, np.ndarray]]:
        """Return what was learned: (JSON-able facts, name → NumPy array)."""
        ...

    def restore(
        self, facts: Mapping[str, Plain], arrays: Mapping[str, np.ndarray]
    ) -> None:
        """Take up `state` on a freshly built workload of the same scenario."""
        ...

    def contribution(self, task: Task) -> Contribution:
        """Return the contribution of a task that is under way, after `restore`."""
        ...


class TieredWorkload(Workload, Protocol):
    """A workload with edge servers.

    Edge server e is known as client `clients + e`: its tasks, and its part in a merge,
    are as a client's.
    """

    def place(self, edges: Sequence[Sequence[int]]) -> None:
        """Note the clients of each; called once, before anything else."""
        ...

    def lend(self, task: Task) -> Contribution:
        """Lend an edge server the server's model as it is now, to merge into."""
        ...

    def execute(
        self, task: Task, choice: Choice, edge: Contribution | None = None
    ) -> Contribution:
        """Begin a participation with an edge server's models; None: the server's."""
        ...

    def gather(
        self,
        edge: Contribution,
        contributions: Sequence[Contribution],
        weights: Sequence[float],
    ) -> None:
        """Make one merge of an edge server's own.

        What it merged stays under way until the server merges what the edge server
        sends, or that is discarded, and so is the rest.
        """
        ...
