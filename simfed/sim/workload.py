"""The stand-in for learning in a time-only run: sizes, and merges that only count.

What is modelled: which client does how much of what, and how many bytes travel. What is
not: losses and accuracies, and so neither rewards nor rollbacks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from simfed.compress.choice import NO_COMPRESSION, Choice
from simfed.fleet.contract import Contribution, Outcome, Task
from simfed.ground.errors import InputError, listed
from simfed.ground.method import Plan, Work
from simfed.ground.plain import Plain
from simfed.ground.registry import registry
from simfed.record import Run
from simfed.record.journal import JournalLine, read_finished
from simfed.record.read import number_turns
from simfed.tasks.tasks import Tasks, count_told

__all__ = ["RecordedRun", "TimeOnlyWorkload"]

_MOST_ALIKE = 4096
_REPLAY_HINT = "in a time-only run use policy.arms_from: RUN to replay recorded sizes"


class SizedContribution:
    """A contribution of which only the size is known, and no tensor."""

    __slots__ = ("_size_bytes", "choice", "k", "merged", "task", "told")

    def __init__(
        self,
        task: Task,
        choice: Choice,
        k: int,
        size_bytes: float,
        told: int | None = None,
    ) -> None:
        self.task = task
        self.choice = choice
        self.k = k
        self.told = told
        self._size_bytes = size_bytes
        self.merged: Sequence[Contribution] = ()
        """The contributions that an edge server's has merged."""

    def uplink_bytes(self) -> float:
        """Return the bytes of the upload."""
        return self._size_bytes


class RecordedRun:
    """The arms, sizes and losses of a recorded run, for `policy.arms_from`.

    A time-only run of another fleet plays each client's arms in their order, and takes
    sizes and losses of the same participation. What policies would have chosen under
    the other clock is not asked.
    """

    def __init__(self, run: Run) -> None:
        """Read what a run recorded: its table of participations, and its journal."""
        self._where = f"policy.arms_from: {run.path}"
        scenario = run.scenario
        self._index_code = scenario["compression"]["index_code"]
        self._models = {
            name: each["model"] for name, each in run.manifest["models"].items()
        }
        self._changes = _read_downlink(scenario)
        self._changes_are_same = False  # until compared with a scenario's
        self._sent: dict[tuple[int, int, int], Any] = {}
        """Prototype and K of each participation that a table tells of."""
        self._pulls: dict[int, list[tuple[Choice, int | None]]] = {}
        self._read_table(run)
        self._answers: dict[str, Plain] = {}
        self.rolled_back: set[int] = set()
        """Rounds whose merge was undone."""
        self.losses: dict[str, tuple[float, float]] = {}
        """Label of a task → its client's own loss before and after the merge."""
        if "journal" in run.manifest and run.path is not None:
            self._read_journal(read_finished(run.path, run.manifest["journal"]))
        self._measuring = {int(label.partition("/")[0]) for label in self.losses}
        self._clients = sum(int(group.get("count", 1)) for group in scenario["clients"])

    def _read_table(self, run: Run) -> None:
        """Note each client's arms as they began, and what was sent."""
        table = run.table("participations").sort_by("started_at_s")
        sets_k = _is_k_set_by_policy(run.scenario)
        names = ("round", "client", "arm", "prototype", "k")
        columns = (table.column(name).to_pylist() for name in names)
        for turn, row in number_turns(zip(*columns, strict=True)):
            round, client, arm, prototype, k = row
            self._sent[round, client, turn] = prototype, k
            choice = Choice.of(arm)
            by_k = sets_k and choice.codec.takes_k
            self._pulls.setdefault(client, []).append((choice, k if by_k else None))

    def _read_journal(self, lines: Iterable[JournalLine]) -> None:
        """Note sizes, losses, undone merges, and what was under way at the end."""
        for _, label, answer in lines:
            kind, _, what = label.partition(" ")
            if kind == "merge":
                outcome = Outcome.of_plain(int(what), answer)
                self.losses |= outcome.local_loss
                if outcome.rolled_back:
                    self.rolled_back.add(outcome.round)
            elif label == "under way":
                for _, client, _, choice in answer:
                    self._pulls.setdefault(client, []).append((Choice.of(choice), None))
            else:
                self._answers[label] = answer

    def arms(self, client: int) -> list[Choice]:
        """Return the choices that this client played, in order of beginning."""
        return [choice for choice, _ in self._pulls.get(client, ())]

    def levels(self, client: int) -> list[int | None]:
        """Return K of each of them, where policies set it; else None."""
        return [k for _, k in self._pulls.get(client, ())]

    def measures(self, clients: Iterable[int]) -> bool:
        """Return whether one of these clients, or edge servers, measured a loss."""
        return any(
            c in self._measuring or c >= self._clients for c in clients
        ) and bool(self._measuring)

    def uplink(
        self, task: Task, told: int | None, index_code: str
    ) -> tuple[float, int | None]:
        """Return the bytes that this client sent in this round, and their entries.

        Args:
            task: the participation.
            told: `count_told`; None: it depends on the data.
            index_code: the format of indices.

        Raises: `InputError` where it took no part, or what it sent was made otherwise.
        """
        size_bytes, told = self._read_answer("up", task, told, index_code)
        return size_bytes, told

    def find_sent(self, task: Task, told: int | None, tasks: Tasks) -> Task:
        """Return `task` as it was sent to this client in this round.

        Raises: as `uplink`.
        """
        if not self._changes_are_same:
            wanted = _read_downlink(tasks.scenario.model_dump(mode="json"))
            self._changes_are_same = wanted == self._changes
        if not self._changes_are_same:
            raise InputError(
                "a recorded run with the same downlink.compression, as sizes on the "
                "way down are taken from it",
                where=self._where,
                got=self._changes or "none",
            )
        return tasks.as_answered(
            task, *self._read_answer("down", task, told, tasks.index_code)
        )

    def _read_answer(
        self, way: str, task: Task, told: int | None, index_code: str
    ) -> Plain:
        """Return the journal's answer of a size, for a participation that fits.

        Args:
            way: `up` or `down`.
            task: the participation.
            told: entries that its payload tells of; None: it depends on the data.
            index_code: the format of indices.

        Raises:
            InputError: it took no part, or what it sent was made otherwise.
        """
        answer = self._answers.get(f"{way} {task.label}")
        if answer is None:
            raise InputError(
                "one in which it does",
                where=self._where,
                problem=f"in the recorded run client {task.client} takes no part in "
                f"round {task.round} of which the size is known",
            )
        participation = task.round, task.client, task.who.turn
        wanted_k = None if told is None else min(told, task.plan.longest)
        prototype, recorded_k = self._sent.get(
            participation, (task.prototype, wanted_k)
        )
        wanted = task.model, recorded_k if told is None else wanted_k, index_code
        got = self._models[prototype], recorded_k, self._index_code
        if wanted != got:
            names = ("model", "K", "index code")
            differ = [i for i in range(3) if wanted[i] != got[i]]
            asked = listed([f"{names[i]} {wanted[i]}" for i in differ])
            raise InputError(
                f"a recorded run with {asked} for client {task.client}, as sizes that "
                "depend on the data are taken from it",
                where=self._where,
                got=listed([str(got[i]) for i in differ]),
            )
        return answer


def _read_downlink(scenario: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return how changes travel down, with the index code that is charged.

    None: whole models do.
    """
    changes = (scenario.get("downlink") or {}).get("compression")
    if changes is None:
        return None
    code = changes.get("index_code") or scenario["compression"]["index_code"]
    return {**changes, "index_code": code}


def _is_k_set_by_policy(scenario: Mapping[str, Any]) -> bool:
    """Return whether K was a policy's, to be taken from the record."""
    policies = [
        scenario.get("policy"),
        *(group.get("policy") for group in scenario["clients"]),
    ]
    kinds = [policy.get("kind") for policy in policies if policy]
    parts = registry("policy")
    recorded = any(policy and policy.get("arms_from") for policy in policies)
    return recorded or any(
        kind in parts and hasattr(parts.get(kind), "ends") for kind in kinds
    )


class TimeOnlyWorkload:
    """A `Workload` that knows plans and sizes only.

    >>> from simfed.learn.catalogue import facts
    >>> from simfed.scenario import Scenario
    >>> scenario = Scenario.model_validate({
    ...     "name": "one", "rounds": 1, "dataset": {"name": "mnist-mini"},
    ...     "prototypes": {"small": {"model": "lenet5-half"}},
    ...     "clients": [{"prototype": "small", "device": "any"}],
    ...     "compression": {"index_code": "fixed"},
    ... })
    >>> known = {"small": facts("lenet5-half", "mnist-mini")}
    >>> tasks = Tasks(scenario, known, samples_of=lambda client: 600)
    >>> workload = TimeOnlyWorkload(tasks)
    >>> task = workload.task(1, 0)
    >>> workload.execute(task, Choice("top-k", 500)).uplink_bytes()
    2875.0
    """

    def __init__(self, tasks: Tasks, *, recorded: RecordedRun | None = None) -> None:
        """Begin without tensors.

        Args:
            tasks: plans and sizes.
            recorded: where sizes that depend on the data are taken from; None: such a
                size is an `InputError` of `execute`.
        """
        self.tasks = tasks
        self._recorded = recorded
        self._merges = 0
        privacy = tasks.scenario.privacy
        self._noisy = privacy is not None and privacy.level == "client"
        self._alike: dict[tuple[int, int, str], tuple[Plan, Choice, int, float]] = {}

    def task(
        self, round: int, client: int, turn: int = 0, held: int | None = None
    ) -> Task:
        """Return the work of one client in one round."""
        return self.tasks.task(round, client, self._merges, turn, held)

    def place(self, edges: Sequence[Sequence[int]]) -> None:
        """Note which clients stand below which edge server."""
        self.tasks.place(edges)

    def lend(self, task: Task) -> SizedContribution:
        """Return the contribution that an edge server will send."""
        size_bytes = self.tasks.uplink_bytes(task, NO_COMPRESSION)
        assert size_bytes is not None
        return SizedContribution(task, NO_COMPRESSION, 0, size_bytes)

    def gather(
        self,
        edge: Contribution,
        contributions: Sequence[Contribution],
        weights: Sequence[float],
    ) -> None:
        """Note what an edge server's contribution has merged."""
        assert isinstance(edge, SizedContribution)
        edge.merged = [*edge.merged, *contributions]

    def execute(
        self, task: Task, choice: Choice, edge: Contribution | None = None
    ) -> Contribution:
        """Return a contribution with the size that the full run's would have."""
        recorded = self._recorded
        if recorded is None:
            _, _, k, known_bytes = self._find_known(task, choice)
            return SizedContribution(task, choice, k, known_bytes)
        size_bytes = self.tasks.uplink_bytes(task, choice)
        told = count_told(task, choice, choice.k)
        if self.tasks.downlink_varies(task):
            task = recorded.find_sent(task, told, self.tasks)
        if size_bytes is None:
            size_bytes, told = recorded.uplink(task, told, self.tasks.index_code)
        return SizedContribution(task, choice, choice.k, size_bytes, told)

    def _find_known(
        self, task: Task, choice: Choice
    ) -> tuple[Plan, Choice, int, float]:
        """Return plan, choice, K and bytes of an upload, found once for all alike.

        Plan and choice keep their ids as long as they are here.
        """
        alike = id(task.plan), id(choice), task.who.prototype
        entry = self._alike.get(alike)
        if entry is None:
            k, size_bytes = choice.k, self.size_bytes(task, choice)
            # a method may make a plan for each round
            if len(self._alike) >= _MOST_ALIKE:
                self._alike.clear()
            entry = self._alike[alike] = task.plan, choice, k, size_bytes
        return entry

    def merge(
        self,
        round: int,
        contributions: Sequence[Contribution],
        weights: Sequence[float] = (),
    ) -> Outcome:
        """Counts an accepted merge, unless there is nothing to merge.

        Where clients are private, noise is merged at least.
        """
        recorded = self._recorded
        undone = recorded is not None and round in recorded.rolled_back
        self._merges += (bool(contributions) or self._noisy) and not undone
        losses = {}
        if (
            recorded is not None
            and self.tasks.scenario.participation.selection.needs_losses
        ):
            for one in contributions:
                assert isinstance(one, SizedContribution)
                # of an edge server those of its clients
                for each in one.merged or [one]:
                    if each.task.label in recorded.losses:
                        losses[each.task.label] = recorded.losses[each.task.label]
        return Outcome(round, self._merges, local_loss=losses)

    def server_work(
        self, round: int, contributions: Sequence[Contribution]
    ) -> Sequence[Work]:
        """Return the method's work at the merge of these contributions."""
        arrived, recorded = [c.task.who for c in contributions], self._recorded
        if recorded is None:
            return self.tasks.server_work(arrived, round)
        measured = recorded.measures([who.client for who in arrived])
        return self.tasks.server_work(arrived, round, measured=measured)

    def discard(self, contribution: Contribution) -> None:
        """Do nothing: there is nothing to give back."""

    def timings(self) -> Mapping[str, float]:
        """Return no timings."""
        return {}

    def close(self) -> None:
        """Do nothing: nothing is open."""

    def size_bytes(self, task: Task, choice: Choice) -> float:
        """Return the bytes of an upload.

        Args:
            task: the participation.
            choice: for its compressed fields.

        Raises:
            InputError: the bytes, or those on the way down, depend on the data.
        """
        size = self.tasks.uplink_bytes(task, choice)
        if self.tasks.changes_vary(task):
            raise InputError(
                "a size of changes on their way down that does not depend on the data",
                where="downlink.compression",
                got=f"{self.tasks.change_code} with "
                f"{self.tasks.change_choice.strategy}",
                hint=_REPLAY_HINT,
            )
        fields = [*task.plan.up.items(), *task.plan.down.items()]
        bounded = dict.fromkeys(name for name, field in fields if field.bounded)
        if bounded:
            raise InputError(
                where="method",
                problem="sizes on the wire depend on what is learned, as that of "
                f"{' and of '.join(bounded)} does",
                hint=_REPLAY_HINT,
            )
        if size is None:
            raise InputError(
                "a size on the wire that does not depend on the data",
                where="compression.index_code",
                got=f"{self.tasks.index_code} with {choice.strategy}",
                hint=_REPLAY_HINT,
            )
        return size
