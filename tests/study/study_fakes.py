"""A stand-in for a run: made-up results in a real run directory, and misbehaviour on demand.

Beside the study's folder there is a folder `control`: `begun` gets a line for each run that begins,
`hold-<k>` keeps runs with this K waiting until it is gone. The scenario's `batch_size` asks for
misbehaviour.
"""

import math
import os
import threading
from pathlib import Path

import yaml

from simfed.record.directory import RunDirectory
from simfed.record.schema import Participation, PrototypeResult, Round
from simfed.study.work import do

EVERY = 5
UPLINK_BYTES = 6000.0

CLASSES: int | None = None
"""Whose number says what guessing reaches; unknown if None."""
JOULES: float | None = None
"""Of each participation."""
MERGED_AFTER = 0
"""Rounds between a participation's start and its merge."""

FAILS, DIES, DIES_ONCE, FULL_DISK, WRONG = 101, 102, 103, 104, 105


def control_of(study):
    return Path(study).parent / "control"


def begun(study):
    """(seed, batch_size, strategy) of every run that began, in order."""
    path = control_of(study) / "begun"
    return path.read_text().splitlines() if path.exists() else []


def accuracy(round, seed, speed):
    return 1 - math.exp(-speed * (1 + 0.02 * seed) * round / 20)


def fake_run(job, out, tell):
    scenario = yaml.safe_load(job.scenario_yaml)
    misbehave(job, scenario)
    speed = {"top-k": 1.0, "random-k": 0.6, "periodic-k": 0.2}[scenario["policy"]["strategy"]]
    rate = scenario["clients"][0]["link"]["up"] or "1e9 B/s"
    round_s = 0.1 + UPLINK_BYTES / float(rate.split()[0])
    manifest = {"name": scenario["name"], "seed": scenario["seed"], "mode": "full", "warnings": []}
    if CLASSES is not None:
        manifest["classes"] = CLASSES
    directory = RunDirectory.create(out, scenario_yaml=job.scenario_yaml, manifest=manifest)
    recorder = directory.recorder()
    for number in range(1, scenario["rounds"] + 1):
        evaluated = number % EVERY == 0
        now = accuracy(number, scenario["seed"], speed) if evaluated else None
        recorder.rounds.append(round_row(number, round_s))
        recorder.prototypes.append(PrototypeResult(number, "small", 0.1, now, now))
        recorder.participations.append(participation_row(number, round_s))
        tell(number, number * round_s, now)
    final = accuracy(scenario["rounds"] // EVERY * EVERY, scenario["seed"], speed)
    summary = {
        "accuracy": {"mean": {"final": final, "best": final}},
        "simulated_s": scenario["rounds"] * round_s,
        "uplink_bytes": UPLINK_BYTES * scenario["rounds"],
        "downlink_bytes": 0.0,
        "rollbacks": 0,
    }
    directory.finish(recorder, manifest={"wall_s": {"total": 0.1}}, summary=summary)


def wait_for_go(job, out, tell):
    """A run of no results that ends once there is a file `go` beside the study."""
    while not (Path(job.study).parent / "go").exists():
        threading.Event().wait(0.02)
    out.mkdir()


def round_row(number, round_s):
    return Round(
        round=number,
        started_at_s=(number - 1) * round_s,
        finished_at_s=number * round_s,
        participants=1,
        late=0,
        dropped=0,
        uplink_bytes=UPLINK_BYTES,
        downlink_bytes=0.0,
        rolled_back=False,
        critical_client=0,
        critical_phase="upload",
        critical_link=None,
        duration_s=round_s,
        server_s=0.0,
        saved_without_critical_s=0.0,
    )


def participation_row(number, round_s):
    """One client that trains for 0.1 s and sends for the rest of the round."""
    return Participation(
        round=number,
        client=0,
        prototype="small",
        model_version=number,
        arm="top-k",
        k=10,
        choice="fixed",
        outcome="aggregated",
        started_at_s=(number - 1) * round_s,
        finished_at_s=number * round_s,
        downlink_s=0.0,
        training_s=0.1,
        compression_s=0.0,
        uplink_s=round_s - 0.1,
        waiting_s=0.0,
        offline_s=0.0,
        uplink_bytes=UPLINK_BYTES,
        downlink_bytes=0.0,
        energy_j=JOULES,
        local_loss=None,
        gain=None,
        reward_raw=None,
        reward=None,
        slack_s=0.0,
        merge=number + MERGED_AFTER,
    )


def misbehave(job, scenario):
    control = control_of(job.study)
    control.mkdir(exist_ok=True)
    asked = scenario["training"]["batch_size"]
    with (control / "begun").open("a") as file:
        file.write(f"{scenario['seed']} {asked} {scenario['policy']['strategy']}\n")
    while (control / f"hold-{asked}").exists():
        threading.Event().wait(0.02)
    if asked == FAILS:
        raise RuntimeError("unlucky\nsecond line")
    if asked == DIES:
        os.kill(os.getpid(), 9)
    if asked == DIES_ONCE and not (control / "died").exists():
        (control / "died").touch()
        os.kill(os.getpid(), 9)
    if asked == FULL_DISK:
        raise OSError(28, "No space left on device", str(job.study))


class Inline:
    """An executor that does every run at once, here."""

    def __init__(self):
        self.results = []

    def slots(self):
        return 1

    def submit(self, job):
        self.results.append(do(job))

    def ended(self, timeout_s):
        results, self.results = self.results, []
        return results

    def under_way(self):
        return len(self.results)

    def interrupt(self):
        pass

    def close(self):
        pass
