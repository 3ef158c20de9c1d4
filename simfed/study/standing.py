"""How far a study is: who waits, who runs, who has ended, counted as it changes.

No question here walks over all runs: of a million, each would take a second.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from simfed.study.plan import PlannedRun
from simfed.study.store import StoredProgress

_REPLAY_SHARE = 0.05
"""What a replay is taken to cost of a run that learns, before one was seen."""
_NOTHING: StoredProgress = {}


@dataclass(slots=True)
class RunState:
    """One address of the store, while a study runs. Runs of equal scenarios share one."""

    run: PlannedRun
    address: str
    path_key: str | None = None
    """Equal for runs that learn the same; None where each has its own way (or nothing is kept)."""
    family: str | None = None
    """Equal for runs that may learn the same for a while: their learning key."""
    status: str = "waiting"
    """`waiting`, `running`, `finished`, `failed`."""
    reason: str = ""
    wall_s: float | None = None
    """How long it took, of those finished now."""
    replayed: bool = False
    """Whether its learning was known when it began."""
    progress: StoredProgress = field(default_factory=lambda: _NOTHING)


class Standing:
    """The runs of a study by status, with what is needed to choose the next and to estimate the
    time left."""

    def __init__(self, states: Iterable[RunState]) -> None:
        self.count = 0
        """How many runs there are."""
        self.waiting: dict[str, RunState] = {}
        """By address, in the order of the plan."""
        self.running: dict[str, RunState] = {}
        self.ended = Counter({"finished": 0, "failed": 0})
        self._learned: set[str | None] = set()
        """Path keys of finished runs."""
        self._waiting_keys: Counter[str | None] = Counter()
        self._to_learn: set[str] = set()
        """Path keys of waiting runs that no run has learned or is learning."""
        self._spent: dict[bool, list[float]] = {False: [0.0, 0.0], True: [0.0, 0.0]}
        """Replayed → runs that ended, and their host seconds together."""
        for state in states:
            self.count += 1
            if state.status == "waiting":
                self._wait(state)
            elif state.status == "running":
                self.running[state.address] = state
            else:
                self._count_end(state)
        for key in self._waiting_keys:
            self._note_learning(key)

    def next(self, slots: int) -> RunState | None:
        """The next run to begin, if there is a slot for it.

        Of runs that learn the same, one goes first and the others wait for what it learns:
        computing it twice at the same time would take as long and do the work twice.
        """
        if len(self.running) >= slots:
            return None
        learners = [state for state in self.running.values() if not state.replayed]
        learning = {state.path_key for state in learners if state.path_key is not None}
        # the others may still have a beginning in common with one under way: rather something else
        families = {state.family for state in learners if state.family is not None}
        first = None
        for state in self.waiting.values():
            if state.path_key not in learning:
                if state.family not in families:
                    return state
                first = first or state
        return first

    def begin(self, state: RunState) -> None:
        """Move a run from `waiting` to `running`."""
        del self.waiting[state.address]
        self._waiting_keys[state.path_key] -= 1
        if state.path_key is not None:
            self._to_learn.discard(state.path_key)
        state.status, state.replayed = "running", self.is_learned(state)
        self.running[state.address] = state

    def end(self, state: RunState, status: str, wall_s: float | None) -> None:
        """Take a run out of `running`. status: `finished`, `failed`, or `waiting` for another
        attempt; wall_s: host seconds that it took, None where that is not known."""
        del self.running[state.address]
        state.status, state.wall_s, state.progress = status, wall_s, _NOTHING
        if status == "waiting":
            self._wait(state)
        else:
            self._count_end(state)
        self._note_learning(state.path_key)

    def is_learned(self, state: RunState) -> bool:
        """Whether a run that learns the same has finished."""
        return state.path_key is not None and state.path_key in self._learned

    def left_s(self, slots: int) -> float | None:
        """Host seconds until all is done, from what runs took so far; None before anything is
        known.

        Runs whose learning is known by then are taken to cost what such runs cost.
        """
        now = time.time()
        whole_s = {
            address: _estimate_whole_s(s.progress, now) for address, s in self.running.items()
        }
        computed, computed_s = self._spent[False]
        for address, state in self.running.items():
            if not state.replayed and (seconds := whole_s[address]):
                computed, computed_s = computed + 1, computed_s + seconds
        replayed, replayed_s = self._spent[True]
        if not computed and not replayed:
            return None
        typical = computed_s / computed if computed else replayed_s / replayed
        replay = replayed_s / replayed if replayed else _REPLAY_SHARE * typical
        learning = len(self._to_learn) + self._waiting_keys[None]
        left_s = learning * typical + (len(self.waiting) - learning) * replay
        for address, state in self.running.items():
            usual = replay if state.replayed else typical
            begun = state.progress.get("begun_at_wall", now)
            left_s += max(0.0, (whole_s[address] or usual) - (now - begun))
        return left_s / max(1, slots)

    def _wait(self, state: RunState) -> None:
        self.waiting[state.address] = state
        self._waiting_keys[state.path_key] += 1

    def _count_end(self, state: RunState) -> None:
        self.ended[state.status] += 1
        if state.status == "finished":
            self._learned.add(state.path_key)
        if state.wall_s is not None:
            spent = self._spent[state.replayed]
            spent[0] += 1
            spent[1] += state.wall_s

    def _note_learning(self, key: str | None) -> None:
        """Count a path key that waits, that no finished run has learned and none is learning."""
        if key is None or not self._waiting_keys[key] or key in self._learned:
            return
        if all(state.path_key != key for state in self.running.values()):
            self._to_learn.add(key)


def _estimate_whole_s(progress: StoredProgress, now: float) -> float | None:
    """Host seconds of a run under way from begin to end, at its speed so far; None before its
    first round, and where the number of rounds is not known."""
    number, rounds = progress.get("round"), progress.get("rounds")
    if not number or rounds is None:
        return None
    return (progress["told_at_wall"] - progress["begun_at_wall"]) * rounds / number
