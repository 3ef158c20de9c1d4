"""The world that is explored, and the play of a question over journals.

An answer is exact: the clock of the setting is played, with all of its draws, and
learning answers from the journals of runs that decided the same up to there. Where they
end, rounds are grey: an answer of learning is never made up.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import yaml

from simfed.experiment.assembly import Parts
from simfed.experiment.checks import check_parts
from simfed.experiment.running import build_simulation, make_time_only_workload
from simfed.explore.foreseen import ForeseenWorkload, UnknownLearning
from simfed.explore.glance import Decision, Glance
from simfed.explore.known import KnownAnswers, find_differences, list_runs_beside
from simfed.explore.settings import (
    LEARNED,
    POLICY,
    K,
    Setting,
    apply_setting,
    complete_setting,
    format_command,
    list_knobs,
    name_policies,
)
from simfed.ground.errors import InputError, Interrupted
from simfed.ground.plain import Plain
from simfed.record.directory import find_status
from simfed.record.read import Run, open_run, read_manifest
from simfed.record.summary import explain_rounds
from simfed.report.gantt_data import build_gantt_data, order_kinds
from simfed.scenario import Scenario, dump_scenario
from simfed.scenario.load import read_yaml, validate_scenario
from simfed.sim.workload import RecordedRun

Answer = dict[str, Any]
_FIRST_S, _EVERY_S = 0.12, 0.25
"""Seconds until the first part of an answer is sent, and between further ones."""
_FOLLOW_S, _POLL_S, _LOOK_S = 0.1, 0.03, 0.5
"""Seconds of a run under way: the least pause between two parts; between looks at its
journal, and at its manifest."""
_PAUSES = 40
"""Times the processor time of a Gantt that pass until the next one, while a run goes
on."""
MOST_GANTT_BARS = 20_000
_DECIDES = re.compile(
    r"name|(checkpoint|network)\..*|aggregation\.(mode|deadline)"
    r"|participation\.clients_per_round"
    r"|clients\[\d+\]\.(link|device|availability|failure)\b.*"
)
"""Paths that change what is learned through decisions alone."""


class ExploredWorld:
    """A run, finished or under way, or a scenario, whose settings are turned.

    One world stands behind all pages of a server. It knows the base scenario, what may
    be turned of it, and which runs beside it know answers; it plays nothing itself
    (`ClockRun` does).
    """

    def __init__(self, path: Path, *, allow_plugins: bool = False) -> None:
        """Read a run directory or a scenario.

        Args:
            path: the directory, or the scenario's file.
            allow_plugins: run the plug-ins that it names, see `simfed.load_scenario`.

        Raises:
            InputError, InputErrors: for what cannot be explored.
        """
        self.path = path
        self.run: Run | None = None
        """A finished one."""
        mode: Plain = None
        self.source = path
        if path.is_dir():
            mode = read_manifest(path).get("mode")
            self.source = path / "scenario.yaml"
        self.base = read_yaml(self.source)
        self.scenario = validate_scenario(
            self.base,
            source=str(self.source),
            folder=self.source.parent,
            allow_plugins=allow_plugins,
        )
        self.learned = mode == "full"
        self.is_run = mode is not None
        policies = [p for p in _list_policies(self.scenario) if _heeds_clock(p)]
        self.policy = ", ".join(sorted({policy.kind for policy in policies}))
        """Kinds of those that may choose otherwise on another clock."""
        self._answers: dict[str, KnownAnswers] = {}
        self.decided: list[tuple[Decision, ...]] = []
        """The recorded run's decisions in each round, while it has no tables yet."""
        self.look()
        self.check(self.scenario)

    @property
    def is_open(self) -> bool:
        """True if the run was not finished when it was looked at last."""
        return self.learned and self.run is None

    def look(self) -> None:
        """Open the run's tables, where it is finished by now."""
        if self.is_open and read_manifest(self.path)["status"] == "finished":
            self.run = open_run(self.path)

    def check(self, scenario: Scenario) -> Parts:
        """Return the parts that play a scenario, without learning where none was.

        Raises:
            InputErrors: a sentence for each mistake.
        """
        return check_parts(scenario, self.source, time_only=not self.learned)

    def describe(self) -> Answer:
        """Return what a page needs once, as JSON has it: names, sizes and sliders."""
        self.look()
        measure = self.check(self.scenario).measure
        ks = [int(k) for k in self.beside[0] if isinstance(k, int)]
        knobs = list_knobs(self.scenario, ks, self.policies)
        return {
            "name": self.scenario.name,
            "recorded": str(self.path) if self.is_run else None,
            "learned": self.learned,
            "open": self.is_open,
            "chooses": self.policy if self.run is not None and self.learned else "",
            "rounds": self.scenario.rounds,
            "clients": self.scenario.client_count,
            "measure": {"name": measure.name, "share": measure.is_share},
            "knobs": [vars(knob) for knob in knobs],
        }

    # --- settings ---------------------------------------------------------------------

    @cached_property
    def beside(self) -> tuple[list[Plain], list[Plain]]:
        """Values of `compression.k` and of `policy` that runs beside this one have.

        Only runs count that differ from this one in these two, and otherwise in what
        changes learning through decisions alone; their journals are looked at from then
        on.
        """
        found: dict[str, list[Plain]] = {path: [] for path in LEARNED}
        for folder in list_runs_beside(self.path) if self.learned else ():
            try:
                theirs = find_differences(
                    self.base, read_yaml(folder / "scenario.yaml")
                )
            except InputError:  # of another version, or being written
                continue
            theirs = {
                path: v for path, v in theirs.items() if not _DECIDES.fullmatch(path)
            }
            if theirs.keys() <= {*LEARNED}:
                for path, value in theirs.items():
                    found[path].append(value)
                self._find_answers(theirs).add(folder)
        return found[K], found[POLICY]

    @cached_property
    def policies(self) -> dict[str, Plain]:
        """The policies to choose from, by their names on the page.

        The first is the base's.
        """
        ours, groups = self.base.get("policy"), self.scenario.clients
        if not isinstance(ours, dict) or any(
            group.policy is not None for group in groups
        ):
            return {}
        several = [ours, *self.beside[1]]
        if isinstance(ours.get("strategy"), str):
            others = self.scenario.compression.strategies
            several += [{**ours, "strategy": other} for other in others]
        return name_policies(several)

    def complete(self, setting: Setting) -> dict[str, Plain]:
        """Return a setting of a page as `--set` takes it.

        A policy's name becomes the policy, factors become amounts.
        """
        name = setting.get(POLICY)
        if isinstance(name, str) and name in self.policies:
            setting = {**setting, POLICY: self.policies[name]}
        return complete_setting(self.base, setting)

    def apply(self, setting: Setting) -> Scenario:
        """Return the scenario with a setting of a page.

        Raises:
            InputErrors: a sentence for each mistake.
        """
        return apply_setting(self.base, self.complete(setting), self.source)

    def write_command(self, setting: Setting, *, anew: bool) -> str:
        """Return the command line that plays a setting as the page does.

        Args:
            setting: of a page.
            anew: whether policies choose anew, or replay the run's choices.
        """
        made, learns = self.complete(setting), policies_learn(self.apply(setting))
        if self.learned and not anew:
            made["policy.arms_from"] = str(self.path.resolve())
        time_only = not (self.learned and anew and learns)
        return format_command(str(self.source), made, time_only=time_only)

    def write_study(self, setting: Setting, over: str, values: Sequence[Plain]) -> str:
        """Return a study file over values of a slider, as YAML.

        Args:
            setting: of a page; it holds in all of the study's runs.
            over: the slider's key path, which is the study's axis.
            values: of the slider.

        Raises:
            InputError, InputErrors: where one of the values cannot be.
        """
        for value in values:
            self.apply({**setting, over: value})
        grid: Any = {
            str(value): self.complete({**setting, over: value})[over]
            for value in values
        }
        if not any(isinstance(value, dict) for value in grid.values()):
            grid = [*grid.values()]
        others = self.complete({**setting, over: values[0]})
        others.pop(over)
        study = {
            "name": f"{self.scenario.name}-what-if",
            "base": str(self.source.resolve()),
            "set": others,
            "grid": {over: grid},
        }
        return yaml.safe_dump(study, sort_keys=False, allow_unicode=True)

    # --- what is known ----------------------------------------------------------------

    def find_answers(self, setting: Setting) -> KnownAnswers | None:
        """Return what is known of a setting's learning.

        Settings that differ in K or policy learn otherwise, and have answers of their
        own; all others share those of the run. None: this world does not learn.
        """
        if not self.learned:
            return None
        _ = self.beside
        made = self.complete(setting)
        return self._find_answers(
            {path: made[path] for path in LEARNED if path in made}
        )

    def _find_answers(self, learned: Setting) -> KnownAnswers:
        name = repr(sorted(learned.items()))
        if name not in self._answers:
            self._answers[name] = KnownAnswers()
            if not learned:
                self._answers[name].add(self.path, is_needed=True)
        return self._answers[name]

    def list_decided(self, number: int) -> dict[tuple[int, int], tuple[str, int, str]]:
        """Return the recorded run's decisions that a round settled.

        Args:
            number: the round's.

        Returns:
            (round, client) → arm, K, outcome.
        """
        if self.run is None:
            rows = self.decided[number - 1] if number <= len(self.decided) else ()
            return {row[:2]: row[2:] for row in rows}
        table = self.run.participations
        return {
            (row.round, row.client): (row.arm, row.k, row.outcome)
            for row in table[table["merge"] == number].itertuples()
        }


def _list_policies(scenario: Scenario) -> list[Any]:
    return [scenario.policy_of_group(group) for group in scenario.clients]


def _heeds_clock(policy: Any) -> bool:
    """Return whether a policy may choose otherwise on another clock."""
    return bool(policy.learns or policy.follows_clock or policy.compares_clients)


def policies_learn(scenario: Scenario) -> bool:
    """Return whether any group's policy chooses by rewards."""
    return any(policy.learns for policy in _list_policies(scenario))


def play(
    world: ExploredWorld,
    question: Mapping[str, Plain],
    emit: Callable[[Answer], None],
    stop: Callable[[], bool] = lambda: False,
) -> Glance:
    """Play a question to its end, and return what was seen of the play.

    Args:
        world: what is explored.
        question: see `ClockRun`.
        emit: gets the parts of the answer, the last one `done`.
        stop: says that nobody waits for the answer any longer.

    Raises:
        InputErrors: for a setting that cannot be.
        Interrupted: where `stop` says so.
    """
    played = ClockRun(world, question, emit, stop)
    played.play()
    return played.glance


class ClockRun:
    """A question that is played; its answer goes out in parts.

    A part has the sums up to now (`Glance.describe`), the round from which on nobody
    knows what was learned (`unknown`) and why (`why`), once the Gantt of the shown
    rounds, and `wall_ms` since the question. The first goes out after 0.12 s, so that a
    page moves while a long clock is played.
    """

    def __init__(
        self,
        world: ExploredWorld,
        question: Mapping[str, Plain],
        emit: Callable[[Answer], None],
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Begin to play a question.

        Args:
            world: what is explored.
            question: `setting`, `shown` (first and last round of the Gantt; None: the
                newest ones) and `anew` (whether policies choose anew); `follow`: go on
                as the run does.
            emit: gets the parts of the answer.
            stop: says that nobody waits for the answer any longer.

        Raises:
            InputErrors: for a setting that cannot be.
        """
        self._began = time.perf_counter()
        self._world, self._emit, self._stop = world, emit, stop
        setting, anew = question.get("setting", {}), bool(question.get("anew", True))
        self._is_base = anew and not setting
        self._follows = bool(question.get("follow"))
        self.parts = parts = world.check(world.apply(setting))
        shown = question.get("shown")
        self._shown = None if shown is None else (int(shown[0]), int(shown[1]))
        newest = 1 if parts.scenario.client_count > 30 else 3
        self.glance = Glance(
            self._shown, parts.measure.column, parts.own_columns, newest
        )
        self._foreseen: ForeseenWorkload | None = None
        make_policy = None
        self._answers = world.find_answers(setting)
        if self._answers is not None:
            self._answers.read_on()
            learns = anew and policies_learn(parts.scenario)
            self._foreseen = ForeseenWorkload(
                parts.tasks, self._answers, policies_learn=learns, wait=self._wait
            )
            if not anew and world.run is not None:
                make_policy = partial(parts.replay, RecordedRun(world.run))
        workload = self._foreseen or make_time_only_workload(parts)
        self._simulation = build_simulation(parts, workload, self.glance, make_policy)
        self._due_s, self._gantt_due_s = self._began + _FIRST_S, 0.0
        self._told, self._drawn = 0, False

    def play(self) -> None:
        """Play it to its end, or to where policies would choose by what nobody knows.

        Raises:
            Interrupted: where `stop` says so.
        """
        # the rounds up to there are the answer
        with contextlib.suppress(UnknownLearning):
            self._simulation.run(
                progress=self._tell_progress, stop_requested=self._stop
            )
        if self._follows:
            self._tell(done=False)
            # it writes its tables
            while find_status(self._world.path).status == "running":
                if self._stop():
                    raise Interrupted("nobody follows the run")
                time.sleep(_POLL_S)
            self._world.look()
        self._tell(done=True)

    def _tell_progress(self, _round: int, _at_s: float, _measure: float | None) -> None:
        """Tell what is known after a round, if a part is due."""
        if time.perf_counter() >= self._due_s:
            self._tell(done=False)

    def _wait(self) -> bool:
        """Wait for what the run does next.

        False: it does no more, or nobody follows it.
        """
        if not self._follows or self._answers is None:
            return False
        looked_s = 0.0
        while not self._answers.read_on():
            now = time.perf_counter()
            if now - looked_s > _LOOK_S:
                if find_status(self._world.path).status != "running":
                    return bool(self._answers.read_on())
                looked_s = now
            if now >= self._due_s and len(self.glance.ends_s) > self._told:
                self._tell(done=False)
            if self._stop():
                raise Interrupted("nobody follows the run")
            time.sleep(_POLL_S)
        return True

    def _tell(self, *, done: bool) -> None:
        """Send a part, with a Gantt where the shown rounds are played or have moved."""
        glance = self.glance
        unknown = None if self._foreseen is None else self._foreseen.unknown
        self._told = len(glance.ends_s)
        part = {"unknown": unknown, "why": None, **glance.describe()}
        if self._is_base:
            self._world.decided = glance.decisions[
                : None if unknown is None else unknown - 1
            ]
        elif unknown is not None:
            part["why"] = explain_difference(self._world, unknown, glance)
        if self._follows:
            draws = done or time.perf_counter() >= self._gantt_due_s
        else:
            last = 0 if self._shown is None else self._shown[1]
            draws = not self._drawn and (done or self._told >= last)
        if draws:
            self._send(part)  # sums are there before the Gantt is
            self._drawn, began_s = True, time.thread_time()
            part["gantt"] = _build_gantt(self.parts, glance, unknown)
            pause_s = _PAUSES * (time.thread_time() - began_s)
            self._gantt_due_s = time.perf_counter() + pause_s
        self._send({**part, "done": done})
        pause_s = _FOLLOW_S if self._follows else _EVERY_S
        self._due_s = time.perf_counter() + pause_s

    def _send(self, part: Answer) -> None:
        """Send a part with the time since the question."""
        wall_ms = 1e3 * (time.perf_counter() - self._began)
        self._emit({"done": False, **part, "wall_ms": wall_ms})


def explain_difference(world: ExploredWorld, number: int, glance: Glance) -> str | None:
    """Return in words what a round decided otherwise than the recorded run did.

    Args:
        world: whose run is the recorded one.
        number: the first round whose merge nobody knows.
        glance: what was played.

    Returns:
        The first difference by round and client, such as `client 3 takes no part`.
        None: that is not known; the run has not come so far, say.
    """
    if number > len(glance.decisions):
        return None
    was = world.list_decided(number)
    if not was and world.is_open:
        return None
    now = {decided[:2]: decided[2:] for decided in glance.decisions[number - 1]}
    for key in sorted(was.keys() | now.keys()):
        before, after, client = was.get(key), now.get(key), f"client {key[1]}"
        if before is None or after is None:
            return f"{client} takes {'part' if before is None else 'no part'}"
        if before[2] != after[2]:
            return f"{client}'s upload is {after[2]} in place of {before[2]}"
        if before != after:
            old, new = (f"{arm} with K = {k}" for arm, k, _ in (before, after))
            return f"{client} sends {new} in place of {old}"
    return "what came before is merged in another order"


def _build_gantt(parts: Parts, glance: Glance, unknown: int | None) -> Answer | None:
    """Return the shown rounds as `gantt.js` draws them; None where there are none yet.

    Args:
        parts: of the setting that is played.
        glance: has the tables of the shown rounds.
        unknown: the round from which on rewards are not known, and left out; None: all
            are known.
    """
    scenario = parts.scenario
    run = Run(
        path=None,
        manifest={"name": scenario.name},
        summary={},
        scenario_yaml=dump_scenario(scenario),
        read_table=glance.table,
    )
    if run.rounds.empty:
        return None
    words = explain_rounds(run.table)
    data = build_gantt_data(
        run, scenario.name, words, MOST_GANTT_BARS, order_kinds([run])
    )
    known = [unknown is None or n < unknown for n in data["rounds"]["number"]]
    played = data["parts"]
    played["reward"] = [
        reward if known[place] else None
        for place, reward in zip(played["round"], played["reward"], strict=True)
    ]
    data["all"] |= {"rounds": scenario.rounds, "last": scenario.rounds}
    return data
