"""Servers with clients in flight, killed at any moment: `--resume` ends where nobody
was killed.

The runs are those of the command line, each in a process of its own that gets SIGKILL a
few milliseconds after it has saved the state of a round.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import simfed
from simfed.verify import verify

SCENARIO = """
name: killed
rounds: {rounds}
dataset: {{name: mnist-mini, public: {public}}}
method: {method}
prototypes: {{a: {{model: logistic-regression}}}}
clients:
  - count: 8
    prototype: a
    device:
      profile: x86-2core-vm
      speed: {{uniform: {{low: 0.005, high: 0.03}}}}
      noise: {{cv: 0.3}}
    link:
      up: {{lognormal: {{median: 0.5 Mbps, cv: 1}}}}
      down: 2 Mbps
      latency: 5 ms
    availability: {{markov: {{on: 3 s, off: 1 s}}}}
    failure: {{download: 0.02, training: 0.05, upload: 0.05}}
network: {{server: {{receive: 2 Mbps}}}}
training: {{batch_size: 8, local_steps: 2}}
compression: {{k: 200}}
policy: {policy}
aggregation: {aggregation}
evaluation: {{every: 10}}
checkpoint: {{every: 1}}
"""
SERVERS = {
    "deadline": ("fedkd", "{mode: deadline, deadline: 0.4 s, late: merge}"),
    "buffered": ("fedbuff", "{mode: buffered, buffer: 2, concurrency: 4}"),
    "asynchronous": ("fedasync", "{mode: asynchronous, concurrency: 4}"),
}
KILLS = 4
"""Of each run: 12 of runs that only take time, 12 of runs that learn."""


def write(path, server, *, rounds, policy):
    method, aggregation = SERVERS[server]
    path.write_text(
        SCENARIO.format(
            rounds=rounds,
            method=method,
            policy=policy,
            aggregation=aggregation,
            public=32 if method == "fedkd" else 0,
        )
    )
    return path


def begin(scenario, out, *options):
    """The command, in a process of its own."""
    source = str(Path(simfed.__file__).parents[1])
    command = [
        sys.executable,
        "-m",
        "simfed",
        "run",
        str(scenario),
        "--out",
        str(out),
        "--resume",
    ]
    return subprocess.Popen(
        [*command, "--quiet", *options],
        env={**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def saved_round(out):
    """The round of the newest whole checkpoint; 0: there is none."""
    try:
        return int(json.loads((out / "checkpoint" / "state.json").read_text())["round"])
    except (FileNotFoundError, json.JSONDecodeError):
        return 0


def kill_after(process, out, round, delay_s):
    """Whether the process was killed, so long after it had saved that round."""
    while process.poll() is None and saved_round(out) < round:
        time.sleep(0.01)
    time.sleep(delay_s)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    return process.returncode == -signal.SIGKILL


def finish(scenario, out, *options):
    process = begin(scenario, out, *options)
    _, said = process.communicate()
    assert process.returncode == 0, said.decode()
    return json.loads((out / "manifest.json").read_text())["fingerprint"]


@pytest.mark.long
@pytest.mark.parametrize("server", SERVERS)
def test_a_run_that_is_killed_again_and_again_ends_as_if_it_had_not_been(
    tmp_path, server
):
    options, rounds = ("--workers", "1"), 50
    policy = "{kind: ascend, warmup: 1, reward: {local_loss: {samples: 20}}}"
    scenario = write(tmp_path / "killed.yaml", server, rounds=rounds, policy=policy)
    whole = finish(scenario, tmp_path / "whole", *options)
    out, rng, killed = tmp_path / "out", random.Random(1), 0
    for number in range(KILLS):
        after = 1 + number * rounds // (KILLS + 1)
        process = begin(scenario, out, *options)
        killed += kill_after(
            process, out, max(after, saved_round(out) + 1), rng.uniform(0, 0.03)
        )
    assert killed >= KILLS - 1
    assert finish(scenario, out, *options) == whole
    assert list(verify(out)) == []
