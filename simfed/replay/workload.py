"""A workload that answers from a recorded trajectory, and learns for real only where nobody has
been.

Decisions form a tree. Its root is the learning setup (the learning key); every start of a
participation (round, client, arm, K), every lost upload and every merge leads to a child. A *node*
is the hash of the way to it, so equal nodes mean equal decisions since the beginning, and therefore
equal learning. While outcomes are known, the real workload is not even built. At the first unknown
step it is built, put into the nearest kept state on the way, led through the decisions made since
(their outcomes must come out the same again), and learning goes on from there, recorded.

What is not recorded is what the clock side can work out itself: tasks and sizes that do not depend
on data come from a stand-in. So bandwidth, latency, devices, and what is charged, all share.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from pydantic import TypeAdapter

from simfed.compress.choice import Choice
from simfed.fleet.contract import Contribution, Learning, Outcome, Task
from simfed.fleet.tasks import Tasks
from simfed.ground.errors import RunFailed
from simfed.ground.method import Work
from simfed.ground.plain import Plain
from simfed.replay.store import Trajectory

_OUTCOMES = TypeAdapter(Outcome)


class ReplayedContribution:
    """A contribution of which perhaps no more is known than what was decided."""

    __slots__ = ("_bytes", "_owner", "choice", "node", "real", "task", "told")

    def __init__(
        self, owner: ReplayingWorkload, task: Task, choice: Choice, size: float | None, node: str
    ) -> None:
        self.task = task
        self.choice = choice
        self.node = node
        self.real: Contribution | None = None
        self.told: int | None = None
        self._bytes = size
        self._owner = owner

    @property
    def k(self) -> int:
        return self.choice.k

    def uplink_bytes(self) -> float:
        if self._bytes is None:
            self._bytes, self.told = self._owner._measured(self)
        return self._bytes


class ReplayingWorkload:
    """The `Workload` contract, answered from a trajectory as long as possible.

    Args:
        build: makes the real workload; called at the first step that the trajectory does not know,
            at most once.
        tasks: those of the real workload, with the sizes that do not depend on data.
        trajectory: what is known, and where new outcomes are recorded.
        last_round: the scenario's last round if it is evaluated only for being the last, else None.
        state_every: merges between two kept states.
    """

    def __init__(
        self,
        build: Callable[[], Learning],
        tasks: Tasks,
        trajectory: Trajectory,
        *,
        last_round: int | None = None,
        state_every: int = 25,
    ) -> None:
        self._build = build
        self._tasks = tasks
        self._trajectory = trajectory
        self._last_round = last_round
        self._state_every = state_every
        self._real: Learning | None = None
        self._node = "root"
        self._lost: list[ReplayedContribution] = []
        self._steps: list[_Step] = []
        self._version = 0
        self._open: dict[tuple[int, int | str], ReplayedContribution] = {}
        self._since_state = 0
        self._merged_at: str | None = None
        self._rebuilding_wall_s = 0.0
        self._wall_s = 0.0

    @property
    def replaying(self) -> bool:
        """Whether everything so far was answered from the record."""
        return self._real is None

    @property
    def warnings(self) -> list[str]:
        """What the user should know of the cache, for the manifest."""
        problem, damaged = self._trajectory.problem, self._trajectory.damaged
        return [
            *([f"learning was not kept for replay: {problem}"] if problem else []),
            *(f"{sentence}; `simfed cache clear` removes it" for sentence in damaged),
        ]

    # --- the contract --------------------------------------------------------------------------

    def task(self, round: int, client: int, turn: int = 0, held: int | None = None) -> Task:
        return self._tasks.task(round, client, self._version, turn, held)

    def execute(self, task: Task, choice: Choice) -> ReplayedContribution:
        self._settle_lost(task.client)
        self._go("execute", *task.name, choice.label)
        contribution = self._begun(task, choice, self._node)
        if self._real is not None:
            contribution.real = self._real.execute(task, choice)
        else:
            self._steps.append(_Step("execute", [contribution]))
        return contribution

    def merge(
        self, round: int, contributions: Sequence[Contribution], weights: Sequence[float] = ()
    ) -> Outcome:
        begun = time.perf_counter()
        self._settle_lost()
        counted = zip(contributions, weights or [1.0] * len(contributions), strict=True)
        weighed = sorted(counted, key=lambda pair: pair[0].task.order)
        merged, weights = [c for c, _ in weighed], [weight for _, weight in weighed]
        marks = [f"{c.task.key}:{c.task.client}:{weight!r}" for c, weight in weighed]
        # an evaluation that takes place only because the run ends is another outcome
        self._go("last merge" if round == self._last_round else "merge", round, *marks)
        recorded = self._trajectory.known(self._node) if self._real is None else None
        if recorded is None:
            outcome = self._learn(round, merged, weights)  # type: ignore[arg-type]
        else:
            outcome = _OUTCOMES.validate_python(recorded)
            step = _Step("merge", merged, round, self._node, recorded, weights)  # type: ignore[arg-type]
            self._steps.append(step)
        self._version = outcome.model_version
        for contribution in merged:
            del self._open[contribution.task.client, contribution.task.key]
        if self._real is not None:
            self._merged_at = self._node
            self._since_state += 1
            if self._since_state >= self._state_every:
                self._keep_state()
        else:
            self._wall_s += time.perf_counter() - begun
        return outcome

    def server_work(self, round: int, contributions: Sequence[Contribution]) -> Sequence[Work]:
        return self._tasks.server_work([c.task.who for c in contributions], round)

    def discard(self, contribution: Contribution) -> None:
        assert isinstance(contribution, ReplayedContribution)
        self._lost.append(contribution)
        del self._open[contribution.task.client, contribution.task.key]
        if self._real is not None:
            assert contribution.real is not None
            self._real.discard(contribution.real)
        else:
            self._steps.append(_Step("discard", [contribution]))

    def state(self) -> tuple[dict[str, Plain], dict[str, Plain]]:
        """The real workload's state if there is one, else the decisions made so far."""
        self._settle_lost()
        way = {"node": self._node, "version": self._version}
        if self._real is None:
            return {"replay": {**way, "steps": [step.plain() for step in self._steps]}}, {}
        facts, arrays = self._real.state()
        at_work = [_Step("execute", [c]).plain() for c in self._open.values()]
        return {**facts, "replay": {**way, "at_work": at_work}}, arrays

    def restore(self, facts: Mapping[str, Plain], arrays: Mapping[str, Plain]) -> None:
        way = facts["replay"]
        self._node, self._version = way["node"], way["version"]
        self._steps = self._steps_of(way["steps"] if "steps" in way else way["at_work"])
        if "steps" in way:
            return
        self._real = self._build()
        self._real.restore({k: v for k, v in facts.items() if k != "replay"}, arrays)
        self._tie_together(self._real, self._open.values())
        self._steps.clear()

    def contribution(self, task: Task) -> ReplayedContribution:
        """The contribution of a task that is under way, after `restore`."""
        return self._open[task.client, task.key]

    def timings(self) -> Mapping[str, float]:
        """Host seconds: the real workload's, `replay`, and `rebuild`, the way to where the record
        ended."""
        learning = self._real.timings() if self._real is not None else {}
        return {"replay": self._wall_s, "rebuild": self._rebuilding_wall_s, **learning}

    def close(self) -> None:
        try:
            if self._real is not None:
                # a longer run goes on from this one's end; states are looked for after merges
                if self._since_state and self._merged_at == self._node and not self._lost:
                    self._keep_state()
                self._real.close()
        finally:
            self._trajectory.close()

    # --- the tree ------------------------------------------------------------------------------

    def _go(self, *decision: str | int) -> None:
        text = json.dumps([self._node, *decision])
        self._node = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def _settle_lost(self, client: int | None = None) -> None:
        """Lost uploads (of one client, where that begins again) touch only their own client, so
        their order among those of others, and among others' starts, is no decision."""
        settled = [u for u in self._lost if client is None or u.task.client == client]
        self._lost = [upload for upload in self._lost if upload not in settled]
        for lost in sorted(settled, key=lambda upload: upload.task.order):
            self._go("discard", lost.task.key, lost.task.client)

    def _measured(self, contribution: ReplayedContribution) -> tuple[float, int | None]:
        """The size, which depends on the data, and `Contribution.told`."""
        if contribution.real is None:
            recorded = self._trajectory.known(contribution.node)
            if recorded is not None:
                size, told = recorded
                return size, told
            self._leave()
        assert contribution.real is not None
        size, told = contribution.real.uplink_bytes(), contribution.real.told
        self._trajectory.add(contribution.node, [size, told])
        return size, told

    def _begun(self, task: Task, choice: Choice, node: str) -> ReplayedContribution:
        size = self._tasks.uplink_bytes(task, choice)
        contribution = ReplayedContribution(self, task, choice, size, node)
        self._open[task.client, task.key] = contribution
        return contribution

    # --- real learning -------------------------------------------------------------------------

    def _learn(
        self, round: int, merged: list[ReplayedContribution], weights: Sequence[float]
    ) -> Outcome:
        self._leave()
        assert self._real is not None
        outcome = self._real.merge(round, [_require_real(c) for c in merged], weights)
        self._trajectory.add(self._node, _OUTCOMES.dump_python(outcome, mode="json"))
        return outcome

    def _leave(self) -> None:
        """Build the real workload and bring it to where the decisions stand."""
        if self._real is not None:
            return
        begun = time.perf_counter()
        self._real = self._build()
        merges = [i for i, step in enumerate(self._steps) if step.kind == "merge"]
        first = self._restore_nearest(self._real, merges)
        for i, step in enumerate(self._steps[first:], first):
            self._repeat(self._real, step)
            if merges and i == merges[-1]:  # others are likely to leave near here too
                self._keep_state(step.node)
        self._steps.clear()
        self._rebuilding_wall_s = time.perf_counter() - begun

    def _restore_nearest(self, real: Learning, merges: Sequence[int]) -> int:
        """Restore the newest kept state on the way; returns the index of the step after it."""
        for i in reversed(merges):
            state = self._trajectory.state(self._steps[i].node)
            if state is not None:
                real.restore(*state)
                at_work: dict[tuple[int, int | str], ReplayedContribution] = {}
                for step in self._steps[: i + 1]:
                    for contribution in step.contributions:
                        if step.kind == "execute":
                            at_work[contribution.task.client, contribution.task.key] = contribution
                        else:
                            del at_work[contribution.task.client, contribution.task.key]
                self._tie_together(real, at_work.values())
                return i + 1
        return 0

    def _tie_together(self, real: Learning, at_work: Iterable[ReplayedContribution]) -> None:
        """Each contribution at work knows the real one of its task."""
        for contribution in at_work:
            contribution.real = real.contribution(contribution.task)

    def _repeat(self, real: Learning, step: _Step) -> None:
        if step.kind == "execute":
            (contribution,) = step.contributions
            contribution.real = real.execute(contribution.task, contribution.choice)
        elif step.kind == "discard":
            real.discard(_require_real(step.contributions[0]))
        else:
            outcome = real.merge(
                step.round, [_require_real(c) for c in step.contributions], step.weights
            )
            again = _OUTCOMES.dump_python(outcome, mode="json")
            if step.outcome is not None and _dump_json(again) != _dump_json(step.outcome):
                raise RunFailed(
                    f"{self._trajectory.folder}: what was learned before in round {step.round} "
                    "did not come out again; nothing of this run is kept, `simfed cache clear` "
                    "removes the kept trajectories"
                )

    def _keep_state(self, node: str | None = None) -> None:
        assert self._real is not None
        node = node or self._node
        record = self._trajectory
        if not record.has_state(node) and record.keep_state(node, *self._real.state()):
            self._state_every *= 2
        self._since_state = 0

    def _steps_of(self, plain: Sequence[Sequence[Plain]]) -> list[_Step]:
        """Steps from a checkpoint, with contributions that are at work tied together again."""
        steps: list[_Step] = []
        for kind, *rest in plain:
            if kind == "execute":
                arguments, label, node = rest
                task = self._tasks.task(*arguments)
                steps.append(_Step(kind, [self._begun(task, Choice.of(label), node)]))
            else:
                round, node, uploads, weights = rest
                merged = [self._open.pop((client, key)) for client, key in uploads]
                steps.append(_Step(kind, merged, round, node, weights=weights))
        return steps


@dataclasses.dataclass(frozen=True, slots=True)
class _Step:
    """One decision, as it can be repeated on the real workload."""

    kind: str
    """`execute`, `discard` or `merge`."""
    contributions: list[ReplayedContribution]
    round: int = 0
    node: str = ""
    outcome: Plain = None
    """Of a merge, as recorded; None: not at hand (after a resume)."""
    weights: Sequence[float] = ()
    """How much each contribution counts in the merge."""

    def plain(self) -> list[Plain]:
        """As JSON has it; `_steps_of` reads it again."""
        if self.kind == "execute":
            (c,) = self.contributions
            return [self.kind, c.task.arguments, c.choice.label, c.node]
        uploads = [[c.task.client, c.task.key] for c in self.contributions]
        return [self.kind, self.round, self.node, uploads, list(self.weights)]


def _require_real(contribution: ReplayedContribution) -> Contribution:
    assert contribution.real is not None
    return contribution.real


def _dump_json(value: Plain) -> str:
    return json.dumps(value, sort_keys=True)
