"""Stand-ins: made-up runs in real run directories, and a place that does runs here."""

import math
import os
from concurrent.futures import Future
from typing import ClassVar

from simfed.record import TABLES, PrototypeResult, RunDirectory, summarise
from simfed.scenario import dump_scenario
from simfed.study import (
    StudyFolder,
    check_plan,
    compute_addresses,
    load_study,
    plan_study,
)
from simfed.study.address import collect_facts
from simfed.study.work import play

EVERY = 5
UPLINK_BYTES = 6000.0

CLASSES: int | None = None
"""Whose number says what guessing reaches; unknown if None."""
JOULES: float | None = None
"""Of each participation."""
MERGED_AFTER = 0
"""Rounds between a participation's start and its merge."""

DIES, DIES_ONCE = 102, 103
"""Batch sizes of runs that kill their process."""


def accuracy(round, seed, speed):
    return 1 - math.exp(-speed * (1 + 0.02 * seed) * round / 20)


def address(scenario, **options):
    return compute_addresses(collect_facts(scenario, **options), [scenario.seed])[0]


def make_up(path, out):
    """The study in a file with all its runs made up."""
    plan, folder = plan_study(path), StudyFolder(out)
    addresses = check_plan(plan, str(path), device="cpu", time_only=False)
    folder.make(plan, addresses, path.read_text())
    for run, address in zip(plan.runs, addresses, strict=True):
        make_up_run(run.scenario, folder.find(address))
    return load_study(out)


def make_up_run(scenario, out):
    speed = {"top-k": 1.0, "random-k": 0.6, "periodic-k": 0.2}[scenario.policy.strategy]
    round_s = 0.1 + UPLINK_BYTES / (scenario.clients[0].link.up or 1e9)
    manifest = {
        "name": scenario.name,
        "seed": scenario.seed,
        "mode": "full",
        "warnings": [],
    }
    if CLASSES is not None:
        manifest["classes"] = CLASSES
    directory = RunDirectory.create(
        out, scenario_yaml=dump_scenario(scenario), manifest=manifest
    )
    recorder = directory.recorder()
    for number in range(1, scenario.rounds + 1):
        evaluated = number % EVERY == 0
        now = accuracy(number, scenario.seed, speed) if evaluated else None
        recorder.rounds.append(round_row(number, round_s))
        recorder.prototypes.append(PrototypeResult(number, "small", 0.1, now, now))
        recorder.participations.append(participation_row(number, round_s))
    summary = summarise(recorder.table, {"small": 2})
    directory.finish(recorder, manifest={"wall_s": {"total": 0.1}}, summary=summary)


def row(table, **values):
    """A row in which everything else is 0."""
    made = TABLES[table].row
    return made(**dict.fromkeys(made._fields, 0) | values)


def round_row(number, round_s):
    return row(
        "rounds",
        round=number,
        started_at_s=(number - 1) * round_s,
        finished_at_s=number * round_s,
        duration_s=round_s,
        participants=1,
        uplink_bytes=UPLINK_BYTES,
        rolled_back=False,
        critical_phase="upload",
        critical_link=None,
    )


def participation_row(number, round_s):
    """One client that trains for 0.1 s and sends for the rest of the round."""
    return row(
        "participations",
        round=number,
        prototype="small",
        model_version=number,
        arm="top-k",
        k=10,
        choice="fixed",
        outcome="aggregated",
        started_at_s=(number - 1) * round_s,
        finished_at_s=number * round_s,
        training_s=0.1,
        uplink_s=round_s - 0.1,
        uplink_bytes=UPLINK_BYTES,
        energy_j=JOULES,
        merge=number + MERGED_AFTER,
        **dict.fromkeys(("local_loss", "gain", "reward_raw", "reward")),
    )


def play_or_die(job):
    """`play`, but for runs that kill their process."""
    asked, died = job.plain["training"]["batch_size"], os.path.join(job.study, "died")
    if asked == DIES or (asked == DIES_ONCE and not os.path.exists(died)):
        open(died, "w").close()
        os.kill(os.getpid(), 9)
    return play(job)


class Inline:
    """A place that does every run at once, here."""

    begun: ClassVar = []
    """The jobs of all that were made."""

    def __init__(self, jobs=None, device="cpu"):
        pass

    def slots(self):
        return 1

    def submit(self, function, job):
        self.begun.append(job)
        future = Future()
        future.set_result(function(job))
        return future

    def collect(self, future):
        return future.result()

    def stop(self):
        pass

    def close(self):
        pass
