"""A journaled workload over a store that many runs share.

The store is a tree of decisions: every start of a participation, every lost upload and
every merge leads from one node to the next. What learning was asked at a node is kept
there. At the first answer that is not, the real workload is built, put into the nearest
state that is kept on the way, led through the decisions made since (what was asked on
it must come out the same again), and learning goes on from there, noting its answers.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from simfed.fleet.contract import Learning, Outcome
from simfed.ground.errors import RunFailed
from simfed.ground.plain import Plain
from simfed.record.journal import Journal
from simfed.replay.journaled import Journaled
from simfed.replay.store import Trajectory
from simfed.tasks.tasks import Tasks


class Step(NamedTuple):
    """A decision, or an answer, that can be repeated on the real workload.

    Until there is one, `Cached` remembers them in their order.
    """

    merged_at: str
    """The node that a merge led to; empty: it is another step."""
    repeat: Callable[[], object]


class Cached(Journaled):
    """A `Journaled` that learns only what nobody has learned before.

    It is *live* once it had to learn; until then every answer came from the store. Its
    own journal is kept nowhere unless `journal` is set before anything is asked.
    """

    def __init__(
        self,
        tasks: Tasks,
        build: Callable[[], Learning],
        trajectory: Trajectory,
        *,
        charged: str = "",
        state_every: int = 25,
    ) -> None:
        """Begin at the trajectory's beginning.

        Args:
            tasks: Those of the scenario.
            build: Makes the real workload; called at most once.
            trajectory: What is known, and where answers are noted.
            charged: Tells apart runs that charge messages otherwise, whose sizes differ
                though they learn the same.
            state_every: Merges between two kept states; doubled where too many were
                kept.
        """
        super().__init__(tasks, Journal(Path(), appends=False))
        self._build, self._trajectory, self._charged = build, trajectory, charged
        self._edges: Sequence[Sequence[int]] = ()
        self._steps: list[Step] = []
        """The steps since the beginning, until there is learning."""
        self._state_every, self._since_state = state_every, 0
        self._merged_at = ""
        self._rebuilding_wall_s = 0.0

    @property
    def warnings(self) -> list[str]:
        """Sentences on the store for the user, for the manifest."""
        problem, damaged = self._trajectory.problem, self._trajectory.damaged
        return [
            *([f"learning was not kept for replay: {problem}"] if problem else []),
            *(f"{sentence}; `simfed cache clear` removes it" for sentence in damaged),
        ]

    def take_up(
        self, facts: Mapping[str, Plain], arrays: Mapping[str, np.ndarray]
    ) -> None:
        """Learn from here on."""
        self._build_real()
        super().take_up(facts, arrays)
        self._steps.clear()

    def place(self, edges: Sequence[Sequence[int]]) -> None:
        """Note which clients stand below which edge server."""
        super().place(edges)
        self._edges = edges

    def merge(
        self, round: int, contributions: Sequence[Any], weights: Sequence[float] = ()
    ) -> Outcome:
        """Return the outcome of a merge."""
        outcome = super().merge(round, contributions, weights)
        if self.live:
            self._merged_at = self.key
            self._since_state += 1
            if self._since_state >= self._state_every:
                self._keep_state(self.key)
        return outcome

    def timings(self) -> Mapping[str, float]:
        """Return host seconds; `rebuild` is the way to where the answers ended."""
        return {"rebuild": self._rebuilding_wall_s, **super().timings()}

    def close(self) -> None:
        """Close the store and learning."""
        try:
            # a longer run goes on from this one's end; states are looked for after
            # merges
            if self._since_state and self._merged_at == self.key and not self._lost:
                self._keep_state(self.key)
            super().close()
        finally:
            self._trajectory.close()

    def carry_out(self, act: Callable[[], None]) -> None:
        """Have learning act; until there is learning it is remembered."""
        if self.live:
            act()
        else:
            self._steps.append(Step("", act))

    def ask(self, key: str, label: str, ask: Callable[[], Plain]) -> Plain:
        """Return the own journal's answer, the store's, or learning's, and note it.

        Args:
            key: The node; empty for what happened outside, which no store knows.
            label: What is asked there.
            ask: Asks learning.
        """
        if self.journal.next is not None:
            return self.journal.known(key, label)
        answer = self._find_answer(key, label, ask) if key else ask()
        self.journal.note(key, label, answer)
        return answer

    def _find_answer(self, key: str, label: str, ask: Callable[[], Plain]) -> Plain:
        """Return the store's answer, or learning's, which is noted there."""
        merged_at = key if label.startswith("merge ") else ""
        node = f"{key} {label if merged_at else label + self._charged}"
        if not self.live:
            known = self._trajectory.known(node)
            if known is not None:
                self._steps.append(
                    Step(merged_at, partial(self._ask_again, label, ask, known))
                )
                return known
            self._leave()
        answer = ask()
        self._trajectory.add(node, answer)
        return answer

    def _ask_again(self, label: str, ask: Callable[[], Plain], known: Plain) -> None:
        """Ask learning what the store knows: it must say the same.

        Raises:
            RunFailed: It does not; the store then holds what this code does not learn.
        """
        if json.dumps(ask()) != json.dumps(known):
            raise RunFailed(
                f"{self._trajectory.folder}: what was learned before ({label}) did not "
                "come out again; nothing of this run is kept, `simfed cache clear` "
                "removes the kept trajectories"
            )

    def _build_real(self) -> None:
        """Build the real workload, where the network's edge servers are known to it."""
        self.real = self._build()
        if self._edges:
            self.real.place(self._edges)

    def _leave(self) -> None:
        """Build the real workload and bring it to where the decisions stand.

        It takes up the nearest state on the way, and repeats the steps since.
        """
        began = time.perf_counter()
        self._build_real()
        steps = self._steps
        merges = [at for at, step in enumerate(steps) if step.merged_at]
        first = 0
        for at in reversed(merges):
            state = self._trajectory.state(steps[at].merged_at)
            if state is not None:
                self.real.restore(*state)
                first = at + 1
                break
        for at, step in enumerate(steps[first:], first):
            step.repeat()
            if at in merges[-1:]:  # others are likely to leave near here too
                self._keep_state(step.merged_at)
        self._steps.clear()
        self.live = True
        self._rebuilding_wall_s = time.perf_counter() - began

    def _keep_state(self, node: str) -> None:
        """Keep what is learned at a node, unless somebody has."""
        kept = self._trajectory
        if not kept.has_state(node) and kept.keep_state(node, *self.real.state()):
            self._state_every *= 2
        self._since_state = 0
