"""The race: all candidates play short runs, the better half of them longer ones.

That is successive halving (Jamieson and Talwalkar, 2016), with runs that spend equally
much in place of equally many rounds, and with more seeds for the finalists.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import combinations
from pathlib import Path
from statistics import harmonic_mean, median_low

import pandas as pd
import yaml

from simfed.advise.advice import Advice
from simfed.advise.candidates import (
    CODECS,
    CompressionCandidate,
    give_codecs,
    list_candidates,
)
from simfed.advise.clock import measure_shares
from simfed.ground.cores import available_cores
from simfed.ground.errors import InputError, InputErrors, RunFailed
from simfed.ground.units import counted
from simfed.report.reach import RunOutcome, find_first_amount
from simfed.scenario import Scenario, load_scenario
from simfed.study.drive import choose_out, run_study
from simfed.study.kinds import ScenarioRuns
from simfed.study.results import StudyResult
from simfed.study.targets import parse_target

_FINALISTS = 3
_MOST_SEEDS = 20
_STEPS = 40
"""Evaluations of a whole run, at least."""
_FIRST = 1 / 8
"""Share of the budget for everybody's first look."""
_HALVING = 0.6
"""Share of the budget after which more seeds come before longer runs."""
_SLACK = 1.5
"""Runs of further seeds end where the second best has spent so many times what it
needed: who is not there by then is later for certain."""
_STARTING_WALL_S = 3.0
"""Host seconds in which a stage's processes start."""


class Race:
    """Plays candidates as stages of one study, and counts what that takes the host.

    All stages lie in one folder; what a longer run has in common with a shorter one is
    answered from the kept trajectories. What runs took stands in their manifests, so a
    race that was interrupted goes on as it would have.
    """

    def __init__(
        self, path: Path, scenario: Scenario, out: Path | None, by: str, budget_s: float
    ) -> None:
        self._path, self._scenario, self._out, self._by = path, scenario, out, by
        self._budget_s, self._jobs = budget_s, available_cores()
        self._every = min(scenario.evaluation.every, max(scenario.rounds // _STEPS, 1))
        self._spent: dict[str, float] = {}
        """Candidate → what it spends in a round."""
        self._played: dict[tuple[str, int], int] = {}
        """Candidate and seed → rounds."""
        self._wall_s = self._round_wall_s = 0.0

    def play(
        self,
        rounds: Mapping[CompressionCandidate, int],
        seeds: int,
        goal: float | None = None,
    ) -> StudyResult:
        """Return the study of these candidates, each of so many rounds.

        Args:
            rounds: of each candidate.
            seeds: how many, from the scenario's own on.
            goal: the threshold of the study, where it is known.

        Raises:
            RunFailed, Interrupted: as of `run_study`; the same call goes on.
        """
        study = {
            "name": f"{self._scenario.name}-advise",
            "base": str(self._path.resolve()),
            "set": {"evaluation.every": self._every},
            "seeds": [self._scenario.seed + i for i in range(seeds)],
            "list": {c.name: {"rounds": n, **c.changes} for c, n in rounds.items()},
            "compare": {"arms": "list", "thresholds": [goal] if goal else []},
        }
        with tempfile.TemporaryDirectory() as temporary:
            file = Path(temporary) / "study.yaml"
            file.write_text(yaml.safe_dump(study, sort_keys=False), encoding="utf-8")
            out = self._out or Path("runs") / choose_out(file).name
            # whoever called has consented to plug-ins
            run_study(file, out, jobs=self._jobs, allow_plugins=True)
        result = (StudyResult if self._by == "time" else BytesResult)(out)
        took: list[float] = []
        for entry, run in result.finished:
            name, seed = entry["point"]["list"], entry["seed"]
            count, before = int(entry["rounds"] or 1), self._played.get((name, seed), 0)
            moved = run.summary["uplink_bytes"] + run.summary["downlink_bytes"]
            spent = run.summary["simulated_s"] if self._by == "time" else moved
            self._spent[name] = max(spent / count, 1e-9)
            if count > before:
                self._played[name, seed] = count
                wall_s = run.manifest["wall_s"]
                took.append(wall_s["learning"] / (count - before))
                self._wall_s += wall_s["total"] / self._jobs
        if took:  # the first run of each process waits for libraries
            self._round_wall_s = median_low(took)
            self._wall_s += _STARTING_WALL_S
        return result

    def halve(
        self, candidates: Sequence[CompressionCandidate], wanted: float | None
    ) -> tuple[float, dict[CompressionCandidate, int]]:
        """Return the goal, and the finalists with the rounds that they need for it.

        In every stage all spend equally much, so whoever is not yet where another is,
        is later. The better half goes on for twice as long, until few are left that
        have reached what is wanted, or the scenario's or the budget's end.

        Raises:
            InputError: the budget does not do for a look at every candidate.
            RunFailed: nobody learned more than guessing.
        """
        kept, are_split = [*candidates], False
        self.play({kept[0]: self._every}, 2)
        left_s = self._budget_s - self._wall_s
        average = left_s * self._jobs / self._round_wall_s / len(kept)
        if average < self._every:
            looks = f"enough for a look at {len(kept)} candidates"
            raise InputError(looks, where="--budget", got=f"{self._budget_s:g} s")
        average = max(average * _FIRST, self._every)
        self.play(dict.fromkeys(kept, self._every), 1)
        rounds = self._spread(kept, average)
        while True:
            result, fresh = self.play(rounds, 1), list[CompressionCandidate]()
            goal = next(iter(result.thresholds), None)  # what half of them reach
            if goal and wanted and result.measure.is_reached(goal, wanted):
                goal = wanted
            medians = self.rank(result, goal)
            kept.sort(key=lambda one: [*medians.index].index(one.name))
            del kept[max(_FINALISTS, math.ceil(len(kept) / 2)) :]
            if not are_split and len(kept) <= 2 * _FINALISTS:
                fresh, are_split = self._split_groups(kept[:_FINALISTS]), True
            average *= 2
            is_reached = goal is not None and goal == wanted
            is_over = is_reached and not fresh and len(kept) <= _FINALISTS
            longer = self._spread([*kept, *fresh], average)
            while len(kept) > _FINALISTS and not self.fits(longer, 1, _HALVING):
                longer.pop(kept.pop())
            if is_over or longer == rounds or not self.fits(longer, 1, _HALVING):
                break
            kept, rounds = [*kept, *fresh], longer
        if goal is None:
            raise RunFailed(
                f"{self._path}: after {max(rounds.values())} rounds no candidate is "
                "better than guessing; more rounds, or a longer --budget, go on"
            )
        ends = _SLACK * medians[:2].max()
        return goal, {one: self._find_rounds(one, ends) for one in kept[:_FINALISTS]}

    def rank(self, result: StudyResult, goal: float | None) -> pd.Series:
        """Return what each candidate spent until a goal, the least first.

        It is the median over seeds; NaN, and last, where that is not known. Without a
        goal, while nobody is better than guessing, it is the loss at the end.
        """
        if goal is None:
            return result.curves.groupby("list")["loss"].last().sort_values()
        spent = result.targets(self._by, [goal])
        return spent.set_index("arm")["median"].sort_values(kind="stable")

    def fits(
        self, rounds: Mapping[CompressionCandidate, int], seeds: int, share: float = 1.0
    ) -> bool:
        """Return whether a stage is likely to end within a share of the budget."""
        new = sum(
            max(count - self._played.get((one.name, self._scenario.seed + i), 0), 0)
            for one, count in rounds.items()
            for i in range(seeds)
        )
        likely_s = _STARTING_WALL_S + new * self._round_wall_s / self._jobs
        return self._wall_s + likely_s <= share * self._budget_s

    def _spread(
        self, candidates: Sequence[CompressionCandidate], average: float
    ) -> dict[CompressionCandidate, int]:
        """Return rounds of this average, in which everybody spends equally much."""
        spent = average * harmonic_mean(self._spent[one.name] for one in candidates)
        return {one: self._find_rounds(one, spent) for one in candidates}

    def _find_rounds(self, candidate: CompressionCandidate, spent: float) -> int:
        """Return the rounds that spend so much, of which the last is evaluated."""
        steps = math.ceil(spent / self._spent[candidate.name] / self._every)
        return min(max(steps, 1) * self._every, self._scenario.rounds)

    def _split_groups(
        self, leaders: Sequence[CompressionCandidate]
    ) -> list[CompressionCandidate]:
        """Return candidates whose groups differ: slow uplinks send the less.

        Of two leaders that differ in nothing but the codec, the one that sends less
        goes to the groups whose dense uploads take the largest shares of their rounds,
        however many these are.
        """
        try:
            shares = measure_shares(self._path, self._scenario)
        except (InputError, InputErrors):  # its clock needs learning
            return []
        order = sorted(range(len(shares)), key=lambda group: -shares[group])
        found = []
        for pair in combinations([one for one in leaders if one.codecs], 2):
            more, less = sorted(pair, key=lambda one: [*CODECS].index(one.codecs[0]))
            for count in range(1, len(order) if less.momentum == more.momentum else 1):
                names = [*more.codecs]
                for group in order[:count]:
                    names[group] = less.codecs[group]
                made = give_codecs(self._scenario, names, momentum=less.momentum)
                self._spent[made.name] = min(self._spent[one.name] for one in pair)
                found.append(made)
        return found


class BytesResult(StudyResult):
    """A study that compares arms by the bytes that they move, not by their time."""

    @cached_property
    def outcomes(self) -> dict[str, RunOutcome]:
        """The bytes of each finished run until thresholds, in place of seconds."""
        found = {}
        for address, outcome in super().outcomes.items():
            curve = self.curve_of(address)
            end = float(curve["total_bytes"].max())  # the last round is evaluated
            times = {
                one: find_first_amount(curve, one, "total_bytes", end, self.measure)
                for one in outcome.times
            }
            found[address] = outcome._replace(times=times)
        return found


def advise(
    path: str | Path,
    *,
    target: str | float | None = None,
    budget_s: float = 120.0,
    by: str = "time",
    out: str | Path | None = None,
    allow_plugins: bool = False,
) -> Advice:
    """Return how each group of a scenario's clients should compress its updates.

    Candidates race by successive halving under the scenario's seed; then the finalists
    play more seeds until the first is told apart from the others or the budget ends.

    Args:
        path: the scenario's file.
        target: value of the measure that is good enough, such as 0.9 or `90%`; the
            hardest round number that half of the finalists reach if omitted.
        budget_s: host seconds that this may take, about: what has begun is finished.
        by: what is to be little: `time` (simulated) or `moved` (bytes both ways).
        out: folder of the study that is played; `runs/NAME-advise` if omitted.
        allow_plugins: as in `simfed.load_scenario`.

    Raises:
        InputError, InputErrors: the scenario, the target, the folder, or a budget in
            which nothing can be found out.
        RunFailed: a run failed, or none learned anything; what is done is kept.
        Interrupted: Ctrl-C; the same call goes on.
    """
    path = Path(path)
    scenario = load_scenario(path, allow_plugins=allow_plugins)
    measure = ScenarioRuns().find_measure(scenario)
    wanted = None if target is None else parse_target(str(target), measure)
    candidates, left_out = list_candidates(path, scenario)
    race = Race(path, scenario, Path(out) if out else None, by, budget_s)
    goal, rounds = race.halve(candidates, wanted)
    seeds = 1
    while True:
        result = race.play(rounds, seeds, goal)
        first, second = race.rank(result, goal).index[:2]
        pairs = result.comparisons.query("a == @first or b == @first")
        most = result.relevant_ratio
        alike = (pairs["ratio_low"] * most > 1) & (pairs["ratio_high"] < most)
        apart = (alike | (pairs["verdict"] != 0)).all()
        if apart or seeds >= _MOST_SEEDS or not race.fits(rounds, seeds + 2):
            break
        seeds += 2
    text = f"to {measure.goal(goal)}, after {counted(seeds, 'seed')}"
    if wanted not in (None, goal):
        text += f", as half of the finalists did not reach {target}"
    verdicts = result.verdicts
    if by != "time":
        verdicts = [text.replace("sooner", "cheaper in bytes") for text in verdicts]
    reasons = [f"{text}; the runner-up is {second}", *verdicts]
    if left_out:
        reason = next(iter(left_out.values()))
        reasons.append(f"not tried: {', '.join(left_out)}; {reason}")
    chosen = next(one for one in rounds if one.name == first)
    return Advice(path, chosen, reasons, result)
