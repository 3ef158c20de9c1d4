"""A workload that keeps a journal, and answers from it as long as it has answers.

Whatever a clock decides leads it along a chain: a node's key is a hash of all decisions
up to there. What learning is asked at a node (what a merge came to, sizes that depend
on what is learned) is noted under its key. So a clock that decides the same is answered
the same, without learning, and one that decides otherwise is found out at the next
answer.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from simfed.compress.choice import NO_COMPRESSION, Choice
from simfed.fleet.contract import Contribution, Outcome, Task
from simfed.ground.errors import RunFailed
from simfed.ground.method import Work
from simfed.ground.plain import Plain
from simfed.record.journal import Journal
from simfed.tasks.tasks import Tasks


class Answered:
    """A contribution: what was decided, and what learning said of it when asked.

    The clock holds these in place of learning's own contributions.

    Attributes:
        task: What the client was asked, with sizes once they are known.
        choice: The arm, with its K.
        key: The node at which its participation began.
        told: The K that the codec reports, where it depends on the data.
    """

    __slots__ = (
        "_owner",
        "_real",
        "_size_bytes",
        "choice",
        "k",
        "key",
        "merged",
        "task",
        "told",
    )

    def __init__(
        self, owner: Journaled, task: Task, choice: Choice, size_bytes: float | None
    ) -> None:
        """Begin a participation.

        `size_bytes`: None where it depends on what is learned.
        """
        self.task, self.choice = task, choice
        self.k = 0 if choice.level is None else choice.k
        self.key = owner.key
        self.merged: list[Answered] = []
        """The uploads that an edge server's has merged."""
        self.told: int | None = None
        self._real: Contribution | None = None
        self._owner, self._size_bytes = owner, size_bytes

    @property
    def real(self) -> Contribution:
        """The contribution of learning, since it began or a state was taken up."""
        if self._real is None:
            self._real = self._owner.real.contribution(self.task)
        return self._real

    @real.setter
    def real(self, real: Contribution) -> None:
        """Set the contribution of learning."""
        self._real = real

    def uplink_bytes(self) -> float:
        """Return the bytes of the upload."""
        if self._size_bytes is None:
            self._size_bytes, self.told = self._owner.ask_size(self)
        return self._size_bytes


class Journaled:
    """A `TieredWorkload` that answers from a journal, and from a real one beyond it.

    At first it may follow the journal: decisions move the key, and nothing is learned.
    Once it is *live*, learning answers and the journal grows.

    Attributes:
        real: The workload that learns, or None.
        journal: The record of answers.
        live: Whether it learns by now.
    """

    def __init__(
        self,
        tasks: Tasks,
        journal: Journal,
        real: Any = None,
        *,
        live: bool = True,
        elsewhere: bool = False,
    ) -> None:
        """Begin at the journal's beginning.

        Args:
            tasks: Those of the scenario, with the sizes that do not depend on what is
                learned.
            journal: Answers of an earlier run, or a new one.
            real: None where everything must be in the journal.
            live: The journal is new; else `take_up` says from when on there is
                learning.
            elsewhere: Clients are real, and of what they lose no size is known.
        """
        self.real, self.journal = real, journal
        self.beside: Any = None
        """A state that is kept with what was learned, and is taken up with it: of a
        deployment what its clients have."""
        self.key = ""
        """The key of the node at which the decisions stand."""
        self.live = live and real is not None
        """True if it learns by now."""
        self._tasks, self._elsewhere = tasks, elsewhere
        self._version = 0
        self._lost: list[Answered] = []
        """Discards that are no part of the key yet, see `_settle_lost`."""
        self._unsized: list[Answered] = []
        """Uploads that were lost since the last merge: their sizes are noted, too, as
        on another clock they may arrive."""
        self._open: dict[tuple[int, int | str], Answered] = {}

    def take_up(
        self, facts: Mapping[str, Plain], arrays: Mapping[str, np.ndarray]
    ) -> None:
        """Learn from here on, where this was learned before and the journal ends.

        Args:
            facts: From `state`, at this place.
            arrays: From `state`.

        Raises:
            RunFailed: The journal does not end here.
        """
        if self.journal.next is not None:
            raise RunFailed(f"{self.journal.path}: goes on where its state ends")
        self.real.restore(facts, arrays)
        self.live = True
        if self.beside is not None:
            self.beside.restore(facts, arrays)

    def note_open(self) -> None:
        """Note at the end of a run what is under way, of which no table tells.

        Raises:
            RunFailed: The journal says something else, or more.
        """
        under_way = [
            [one.task.round, one.task.client, one.task.who.turn, one.choice.label]
            for one in self._open.values()
        ]
        answer = self.ask_world("under way", lambda: under_way)
        if answer != under_way or self.journal.next is not None:
            raise RunFailed(f"{self.journal.path}: ends otherwise than the run")

    def ask_world(self, label: str, ask: Callable[[], Plain]) -> Plain:
        """Return what happened outside, which no scenario says.

        Args:
            label: What is asked.
            ask: Finds it out, where the journal does not know.
        """
        return self.ask("", label, ask)

    # --- the contract -----------------------------------------------------------------

    def task(
        self, round: int, client: int, turn: int = 0, held: int | None = None
    ) -> Task:
        """Return the task of a client in a round."""
        return self._tasks.task(round, client, self._version, turn, held)

    def place(self, edges: Sequence[Sequence[int]]) -> None:
        """Note which clients stand below which edge server.

        Where clients belong follows from the network: it is a decision.
        """
        self._go("place", json.dumps(edges))
        self._tasks.place(edges)
        if self.real is not None:
            self.real.place(edges)

    def lend(self, task: Task) -> Answered:
        """Return the upload that an edge server will send."""
        self._settle_lost(task.client)
        self._go("lend", task.label)
        begun = self._begin(task, NO_COMPRESSION)

        def lend() -> None:
            begun.real = self.real.lend(task)

        self.carry_out(lend)
        return begun

    def execute(self, task: Task, choice: Choice, edge: Any = None) -> Answered:
        """Begin a participation.

        Args:
            task: What the client is asked.
            choice: The arm, and K of any kind.
            edge: The upload of the edge server whose client it is; None: the cloud's.

        Returns:
            The contribution; its task has the sizes of the download, where they depend
            on what is learned.
        """
        self._settle_lost(task.client)
        of_edge = "" if edge is None else edge.task.label
        steps = task.who.most_steps  # by the speed of its device
        cut = () if steps is None else (f"at most {steps} steps",)
        self._go("execute", *task.name, task.held, choice.label, of_edge, *cut)
        if choice.level is not None:
            choice = choice.at(choice.entries(task.plan.longest))
        begun = self._begin(task, choice)

        def execute() -> None:
            more = {} if edge is None else {"edge": edge.real}
            begun.real = self.real.execute(task, choice, **more)

        self.carry_out(execute)
        if self._tasks.downlink_varies(task):

            def ask() -> Plain:
                sent = begun.real.task
                return [sent.downlink_bytes, self._tasks.name_changes(task, sent)]

            answer = self.ask(self.key, f"down {task.label}", ask)
            begun.task = self._tasks.as_answered(task, *answer)
        return begun

    def gather(
        self, edge: Any, contributions: Sequence[Any], weights: Sequence[float]
    ) -> None:
        """Make one merge of an edge server's own.

        Args:
            edge: From `lend`.
            contributions: The uploads of its clients.
            weights: A factor for each.
        """
        self._settle_lost()
        self._go("gather", edge.task.label, *_list_marks(contributions, weights))
        gathered = list(contributions)
        edge.merged += gathered
        self.carry_out(
            lambda: self.real.gather(edge.real, [one.real for one in gathered], weights)
        )

    def merge(
        self, round: int, contributions: Sequence[Any], weights: Sequence[float] = ()
    ) -> Outcome:
        """Return the outcome of a merge."""
        self._settle_lost()
        weights = weights or [1.0] * len(contributions)
        # an evaluation that takes place only because the run ends is another outcome
        evaluated = self._tasks.is_evaluated(round)
        self._go("merge", round, evaluated, *_list_marks(contributions, weights))
        for one in (*self._unsized, *contributions):
            one.uplink_bytes()
        self._unsized.clear()
        merged = list(contributions)

        def ask() -> Plain:
            return self.real.merge(round, [one.real for one in merged], weights).plain()

        outcome = Outcome.of_plain(round, self.ask(self.key, f"merge {round}", ask))
        self._check_evaluated(outcome)
        self._version = outcome.model_version
        for one in contributions:
            self._close(one)
        return outcome

    def server_work(self, round: int, contributions: Sequence[Any]) -> Sequence[Work]:
        """Return the server's work at a merge."""
        return self._tasks.server_work([one.task.who for one in contributions], round)

    def discard(self, contribution: Any) -> None:
        """Take back an upload that was lost."""
        self._lost.append(contribution)
        if not self._elsewhere:
            self._unsized.append(contribution)
        self.carry_out(lambda: self.real.discard(contribution.real))
        self._close(contribution)

    def state(self) -> tuple[dict[str, Plain], dict[str, np.ndarray]]:
        """Return what was learned, and what is kept beside it."""
        facts, arrays = self.real.state()
        more = ({}, {}) if self.beside is None else self.beside.state()
        return {**facts, **more[0]}, {**arrays, **more[1]}

    def timings(self) -> Mapping[str, float]:
        """Return host seconds by activity."""
        return {} if self.real is None else self.real.timings()

    def close(self) -> None:
        """Close learning."""
        if self.real is not None:
            self.real.close()

    # --- the chain of decisions -------------------------------------------------------

    def ask_size(self, contribution: Answered) -> tuple[float, int | None]:
        """Return the size of an upload that depends on learning, and its `told`."""

        def ask() -> Plain:
            return [float(contribution.real.uplink_bytes()), contribution.real.told]

        label = f"up {contribution.task.label}"
        size_bytes, told = self.ask(contribution.key, label, ask)
        return size_bytes, told

    def carry_out(self, act: Callable[[], None]) -> None:
        """Have learning do what was decided."""
        if self.live:
            act()

    def ask(self, key: str, label: str, ask: Callable[[], Plain]) -> Plain:
        """Return the journal's answer, or learning's, which is noted.

        Args:
            key: The node at which the decisions stand.
            label: What is asked there.
            ask: Asks learning.

        Raises:
            RunFailed: The journal ends before, and there is no learning.
        """
        if self.live:
            answer = ask()
            self.journal.note(key, label, answer)
            return answer
        answer = self.journal.known(key, label)
        if answer is None:
            raise RunFailed(f"{self.journal.path}: ends before {label}")
        return answer

    def _check_evaluated(self, outcome: Outcome) -> None:
        """Raise a `RunFailed` if models are evaluated in other rounds than is due."""
        due = self._tasks.is_evaluated(outcome.round)
        tested = bool(outcome.evaluation or outcome.clients)
        # personal models are tested of those who have one, perhaps of nobody yet
        if (tested and not due) or (
            due and not tested and not self._tasks.method.personal
        ):
            told = (
                "evaluated, which is not due"
                if tested
                else ("not evaluated, which is due")
            )
            raise RunFailed(
                f"{self.journal.path}: after round {outcome.round} models are {told}"
            )

    def _go(self, *decision: str | int | None) -> None:
        """Take a decision: the key becomes a hash of itself and this one."""
        text = json.dumps([self.key, *decision])
        self.key = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def _settle_lost(self, client: int | None = None) -> None:
        """Make lost uploads (of one client, where that begins again) part of the key.

        They touch only their own client, so their order among those of others, and
        among others' starts, is no decision.
        """
        if not self._lost:
            return
        settled = [u for u in self._lost if client is None or u.task.client == client]
        self._lost = [upload for upload in self._lost if upload not in settled]
        for lost in sorted(settled, key=lambda upload: upload.task.order):
            self._go("discard", lost.task.label)

    def _begin(self, task: Task, choice: Choice) -> Answered:
        """Return a new contribution, which is open until it is merged or discarded."""
        begun = Answered(self, task, choice, self._tasks.uplink_bytes(task, choice))
        self._open[task.client, task.key] = begun
        return begun

    def _close(self, contribution: Answered) -> None:
        """End a contribution, and those that its edge server has merged."""
        for one in contribution.merged:
            self._close(one)
        del self._open[contribution.task.client, contribution.task.key]


def _list_marks(
    contributions: Sequence[Answered], weights: Sequence[float]
) -> list[str]:
    """Return the label and weight of each contribution, in the order of tasks."""
    weighed = zip(contributions, weights, strict=True)
    return [
        f"{one.task.label}:{weight!r}"
        for one, weight in sorted(weighed, key=lambda pair: pair[0].task.order)
    ]
