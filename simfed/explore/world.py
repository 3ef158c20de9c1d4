"""What is explored, and how a question is played: on the clock alone, over journals."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from simfed.experiment.assembly import Parts
from simfed.experiment.checks import check_parts
from simfed.experiment.running import build_simulation, make_time_only_workload
from simfed.explore.foreseen import Foreseen, UnknownLearning
from simfed.explore.glance import Glance
from simfed.explore.settings import (
    Setting,
    apply_setting,
    complete_setting,
    format_command,
    list_knobs,
)
from simfed.ground.plain import Plain
from simfed.record.journal import COMPRESSED, Journal
from simfed.record.read import Run, open_run
from simfed.record.summary import explain_rounds
from simfed.report.gantt_data import build_gantt_data, order_kinds
from simfed.scenario import Scenario, dump_scenario
from simfed.scenario.load import read_yaml, validate_scenario
from simfed.sim.workload import Recorded

Answer = dict[str, Any]
_FIRST_S, _EVERY_S = 0.12, 0.25
"""When the first part of an answer is sent, and how often further ones."""
MOST_GANTT_BARS = 20_000


class World:
    """A finished run, or a scenario, whose settings are turned."""

    def __init__(self, path: Path, *, allow_plugins: bool = False) -> None:
        """Raises: `InputError`, `InputErrors` for what cannot be explored."""
        self.path, self.run = path, None
        if path.is_dir():
            self.run = open_run(path)
            self.base, self.source = self.run.scenario, path / "scenario.yaml"
        else:
            self.base, self.source = read_yaml(path), path
        self.scenario = validate_scenario(
            self.base,
            source=str(self.source),
            folder=self.source.parent,
            allow_plugins=allow_plugins,
        )
        groups = self.scenario.clients
        policies = [self.scenario.policy_of_group(group) for group in groups]
        self.policies_learn = any(policy.learns for policy in policies)
        self.policy = ", ".join(sorted({policy.kind for policy in policies}))
        self.learned = self.run is not None and self.run.manifest.get("mode") == "full"
        self.recorded = Recorded(self.run) if self.run is not None and self.learned else None
        self.real: dict[str, Path] = {}
        """Setting (see `name_setting`) → the directory of its real run."""
        self.check(self.scenario)

    def check(self, scenario: Scenario) -> Parts:
        """Return the parts of a setting. Raises: `InputErrors`."""
        return check_parts(scenario, self.source, time_only=not self.learned)

    def describe(self) -> Answer:
        """Return what a page needs once."""
        rounds = None if self.run is None else self.run.rounds
        round_s = None if rounds is None else float(rounds["duration_s"].median())
        measure = self.check(self.scenario).measure
        return {
            "name": self.scenario.name,
            "recorded": None if self.run is None else str(self.path),
            "learned": self.learned,
            "chooses": self.policy if self.learned else "",
            "rounds": self.scenario.rounds,
            "clients": self.scenario.client_count,
            "measure": {"key": measure.key, "name": measure.name},
            "knobs": [vars(knob) for knob in list_knobs(self.scenario, round_s)],
        }

    def write_scenario(self, setting: Setting) -> str:
        """Return a setting as a scenario file. Raises: `InputErrors`."""
        return dump_scenario(apply_setting(self.base, setting, self.source))

    def write_command(self, setting: Setting, *, anew: bool) -> str:
        """Return the command line that plays a setting as the page does."""
        made = complete_setting(self.base, setting)
        if self.learned and not anew:
            made["policy.arms_from"] = str(self.path.resolve())
        time_only = not (self.learned and anew and self.policies_learn)
        return format_command(str(self.source), made, time_only=time_only)

    def find_journal(self, setting: Setting) -> Path | None:
        """Return the journal that knows most of a setting; None: nothing was learned."""
        if self.run is None or not self.learned:
            return None
        return self.real.get(name_setting(setting), self.path) / COMPRESSED


def name_setting(setting: Setting) -> str:
    """Return a setting as one text, the same for the same setting."""
    return repr(sorted(setting.items()))


def play(
    world: World,
    question: Mapping[str, Plain],
    emit: Callable[[Answer], None],
    stop: Callable[[], bool] = lambda: False,
) -> Glance:
    """Play a question's setting; `emit` gets the parts of the answer, the last one `done`.

    `question`: `setting`, `shown` (first and last round of the Gantt) and `anew` (whether
    policies choose anew). Raises: `InputErrors`; `Interrupted` where `stop` says so.
    """
    began = time.perf_counter()
    setting, anew = question.get("setting", {}), bool(question.get("anew", True))
    scenario = apply_setting(world.base, setting, world.source)
    parts = world.check(scenario)
    first, last = (int(number) for number in question.get("shown", (1, 3)))
    glance = Glance((first, last), parts.measure.column, parts.own_columns)
    foreseen: Foreseen | None = None
    make_policy = None
    if (journal := world.find_journal(setting)) is not None:
        learns = anew and world.policies_learn
        book = Journal(journal, None, appends=False)
        foreseen = Foreseen(parts.tasks, book, policies_learn=learns)
        if not anew and world.recorded is not None:
            make_policy = partial(parts.replay, world.recorded)
    workload = foreseen or make_time_only_workload(parts)
    simulation = build_simulation(parts, workload, glance, make_policy)
    due_s, drawn = began + _FIRST_S, False

    def tell(*, done: bool) -> None:
        nonlocal drawn
        unknown = None if foreseen is None else foreseen.unknown
        part = {"unknown": unknown, **glance.describe()}
        if unknown is not None and unknown <= len(glance.decisions):
            part["why"] = explain_difference(world, unknown, glance)
        draws = not drawn and (done or len(glance.ends_s) >= last)

        def send(**more: Any) -> None:
            emit(part | more | {"wall_ms": 1e3 * (time.perf_counter() - began)})

        if draws:
            drawn = True
            send(done=False)  # sums are there before the Gantt is
            send(done=done, gantt=_build_gantt(parts, glance, unknown))
        else:
            send(done=done)

    def progress(_round: int, _at_s: float, _measure: float | None) -> None:
        nonlocal due_s
        if time.perf_counter() >= due_s:
            tell(done=False)
            due_s = time.perf_counter() + _EVERY_S

    with contextlib.suppress(UnknownLearning):  # the rounds up to there are the answer
        simulation.run(progress=progress, stop_requested=stop)
    tell(done=True)
    return glance


def explain_difference(world: World, number: int, glance: Glance) -> str:
    """Return in words what a round decided otherwise than the recorded run did."""
    assert world.run is not None
    table = world.run.participations
    was = {
        (row.round, row.client): (row.arm, row.k, row.outcome)
        for row in table[table["merge"] == number].itertuples()
    }
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

    `unknown`: the round from which on rewards are not known.
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
    data = build_gantt_data(run, scenario.name, words, MOST_GANTT_BARS, order_kinds([run]))
    known = [n for n in data["rounds"]["number"] if unknown is None or n < unknown]
    rewards = zip(data["parts"]["round"], data["parts"]["reward"], strict=True)
    data["parts"]["reward"] = [r if place < len(known) else None for place, r in rewards]
    data["all"] |= {"rounds": scenario.rounds, "last": scenario.rounds}
    return data
