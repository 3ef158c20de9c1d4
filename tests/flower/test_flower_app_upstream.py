"""Ten apps of ten kinds: their results are those of Flower's own engine, their charges
what was said, and their runs are read by every command.
"""

from __future__ import annotations

import collections

import numpy as np
import pytest
import upstream_apps as apps
from flower_worlds import DEVICE, fleet
from flwr.server.superlink.fleet.vce.backend import Backend, raybackend

import simfed
from simfed.cli import main as main_command
from simfed.flower.clocks import foreign_randomness
from simfed.flower.messages import Packed
from simfed.ground.seeding import Streams

PER_SAMPLE = {"kind": "declared", "seconds": "0.01 * num_examples"}
COMPUTING = {
    "scikit-learn": PER_SAMPLE,
    "xgboost": PER_SAMPLE,
    "numpy": PER_SAMPLE,
    "tabular": "metered",
    "secure-aggregation": {
        "kind": "declared",
        "seconds": {
            "setup": "10 ms",
            "share_keys": "20 ms",
            "collect_masked_vectors": "0.3 + 0.01 * num_examples | 0.3",
            "unmask": "40 ms",
        },
    },
}
SPEEDS = (1.0, 0.5, 1.0, 0.25)
SAMPLES = {
    "scikit-learn": (10, 20, 30, 40),
    "numpy": (10, 20, 30, 40),
    "xgboost": (40, 41, 42, 43),
}


class InThisProcess(Backend):
    """Flower's engine with one worker, which has for each message the random numbers
    that simfed gives it.
    """

    def __init__(self, config):
        self.turns = collections.Counter()

    def build(self, app_fn):
        self.app_fn = app_fn

    @property
    def num_workers(self):
        return 1

    def is_worker_idle(self):
        return True

    def terminate(self):
        pass

    def process_message(self, message, context):
        node = int(context.node_config["partition-id"])
        turn = self.turns[node]
        self.turns[node] += 1
        alone = Packed.of(message).message()  # as it comes from elsewhere
        with foreign_randomness(Streams(0).integer("flower-call", node, turn)):
            return self.app_fn()(alone, context), context


def in_flowers_engine(name, monkeypatch):
    from flwr.simulation import run_simulation

    monkeypatch.setattr(raybackend, "RayBackend", InThisProcess)
    run_simulation(*apps.APPS[name], num_supernodes=apps.NODES)
    return apps.finals.pop()


def under_the_clock(name, out=None):
    devices = [{"profile": DEVICE, "speed": speed} for speed in SPEEDS]
    groups = [{"device": device, "link": {"up": "5 Mbps"}} for device in devices]
    world = fleet(*groups, computing=COMPUTING.get(name, "metered"))
    run = simfed.flower.run(*apps.APPS[name], world, out, progress=False)
    return run, apps.finals.pop()


@pytest.mark.long
@pytest.mark.parametrize("name", apps.APPS)
def test_an_app_of_each_kind_comes_to_what_flowers_engine_comes_to(
    name, monkeypatch, tmp_path
):
    run, ours = under_the_clock(name, tmp_path / "run")
    theirs = in_flowers_engine(name, monkeypatch)
    assert len(ours) == len(theirs)
    for here, there in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(here, there, rtol=1e-9, atol=1e-12)
    check_charges(name, run)
    folder = str(run.path)
    assert main_command(["verify", folder]) == 0
    assert main_command(["report", folder, "--out", str(tmp_path / "page.html")]) == 0
    assert main_command(["timeline", folder, "--out", str(tmp_path / "bars.svg")]) == 0


@pytest.mark.parametrize("name", ["secure-aggregation", "tabular", "mods"])
def test_an_app_of_another_kind_runs_and_repeats(name):
    (first, ours), (again, same) = under_the_clock(name), under_the_clock(name)
    # keys are drawn
    assert name == "secure-aggregation" or first.fingerprint == again.fingerprint
    for here, there in zip(ours, same, strict=True):
        np.testing.assert_array_equal(here, there)
    check_charges(name, first)


def check_charges(name, run):
    """By hand where seconds are declared.

    Else more for more work and on slower devices.
    """
    spans = run.spans[run.spans["kind"].isin(["training", "evaluation", "query"])]
    seconds = (spans["finished_at_s"] - spans["started_at_s"]).groupby(
        [spans["name"], spans["client"]]
    )
    work = {key: sorted(group.round(9)) for key, group in seconds}
    assert work
    if name in SAMPLES:
        for client, (samples, speed) in enumerate(
            zip(SAMPLES[name], SPEEDS, strict=True)
        ):
            each = {round(0.01 * samples / speed, 9)}
            assert set(np.round(work["train", client], 6)) == {
                round(v, 6) for v in each
            }
    elif name == "secure-aggregation":
        for client, speed in enumerate(SPEEDS):
            # an error is charged nothing, and who dropped out is not asked to unmask
            stages = [0.01, 0.02, 0.4, 0.04, 0.01, 0.02] + [0.4, 0.04] * (client < 3)
            assert work["train", client] == pytest.approx(
                sorted(s / speed for s in stages)
            )
    else:
        kinds = {kind for kind, _ in work}
        for kind in kinds - {"query.who", "query.moments", "get_parameters"}:
            first = {
                client: values[0] for (k, client), values in work.items() if k == kind
            }
            assert min(first.values()) > 0, kind
            if len(first) == apps.NODES:  # not of a sample of them
                assert first[3] > first[1] > first[0], kind
