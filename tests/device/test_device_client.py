"""A client's processor: speed, noise, assumptions, energy."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
import yaml

from simfed import InputError
from simfed.device import DeviceSpec, build_processor, load_profile
from simfed.ground import Streams
from simfed.scenario.load import validate_as


@pytest.fixture
def profile():
    return load_profile("rtx3090-ryzen4800h")


def device_of(profile, client=0, seed=0, **keys):
    streams = Streams(seed)
    spec = DeviceSpec.model_validate({"profile": "p", **keys})
    return build_processor(spec, profile, streams).client(streams, client)


def seconds_of(device, quantity, **call):
    return device.processor.nominal_s(quantity, **call)


def draw(device, count=4000):
    return [
        device.duration_s(1.0, 0.0, round=r, phase="training") for r in range(count)
    ]


STEP = {"model": "lenet5", "batch": 32}
TOP_K = {"model": "lenet5", "strategy": "top-k", "k": 1000}


def test_seconds_are_exact_whenever_work_begins(profile):
    device = device_of(profile)
    nominal_s = seconds_of(device, "compression", **TOP_K)
    taken_s = device.duration_s(nominal_s, 1e6, round=1, phase="compression")
    assert taken_s == 6.1e-7


def test_noise_hangs_on_client_round_and_phase_and_on_nothing_else(profile):
    def draw(seed, client, round, phase):
        device = device_of(profile, client, seed, noise={"cv": 0.2})
        return device.duration_s(1.0, 0.0, round=round, phase=phase)

    one = draw(0, 3, 7, "training")
    assert one == draw(0, 3, 7, "training")
    others = {
        draw(1, 3, 7, "training"),
        draw(0, 4, 7, "training"),
        draw(0, 3, 8, "training"),
        draw(0, 3, 7, "compression"),
    }
    assert len(others | {one}) == 5


def test_noise_has_mean_1_and_the_asked_for_spread(profile):
    draws = draw(device_of(profile, seed=5, noise={"cv": 0.3}))
    # mean of 4,000 draws with sd 0.3: standard error 0.0047; 4 of them, two-sided p =
    # 6e-5
    assert np.mean(draws) == pytest.approx(1.0, abs=4 * 0.3 / math.sqrt(4000))
    assert np.std(draws) / np.mean(draws) == pytest.approx(0.3, rel=0.1)


def test_an_assumption_stands_in_for_what_the_profile_lacks_and_is_not_scaled(profile):
    said = {"inference": "0 s", "training": "2 s", "compression": "1 s"}
    device = device_of(profile, assume=said, scale={"handling": 2})
    for quantity, call, seconds in (
        ("inference", {"model": "lenet5", "samples": 10}, 0.0),
        ("training", STEP, 2.0),
        ("compression", TOP_K, 1.0),
        ("compression", {**TOP_K, "strategy": "dense"}, 0.0),
    ):
        assert seconds_of(device, quantity, **call) == seconds
    with pytest.raises(InputError, match="decompression"):
        seconds_of(device, "decompression", **TOP_K)
    scale, said = {"compression": 1000}, {"training": "1 s"}
    device = device_of(profile, scale=scale, assume=said)
    assert seconds_of(device, "compression", **TOP_K) == 1000 * 6.1e-7
    assert seconds_of(device, "training", **STEP) == 1.0


@pytest.mark.parametrize(
    ("power", "phases_s", "joules"),
    [
        ("training: 5 W, idle: 500 mW", {"training": 2, "idle": 4, "uplink": 0}, 12),
        ("training: 5 W", {"training": 1, "inference": 2, "auxiliary": 1}, 20),
        ("training: 5 W, inference: 2 W", {"training": 1, "inference": 2}, 9),
        # training and uploading at once for 3 s: what standing idle takes is in both
        ("training: 5 W, uplink: 2 W", {"training": 4, "uplink": 6, "idle": -3}, 32),
        (
            "training: 5 W, idle: 1 W, uplink: 2 W",
            {"training": 4, "uplink": 6, "idle": -3},
            29,
        ),
        ("compression: 3 W", {"compression": 1, "decompression": 2}, 9),
    ],
)
def test_energy_is_power_times_time(tmp_path, power, phases_s, joules):
    path = tmp_path / "p.yaml"
    path.write_text(f"{{kind: table, training: {{m: {{1: 1 s}}}}, power: {{{power}}}}}")
    device = device_of(load_profile(path))
    assert device.energy_j(phases_s) == joules
    with pytest.raises(InputError, match="downlink"):
        device.energy_j({"downlink": 1.0})


def test_energy_is_not_known_without_power(profile):
    assert device_of(profile).energy_j({"training": 1.0}) is None


LAW = """
kind: law
training:
  m:
    law: affine-samples
    parameters: {a: 1e-3, b: 1e-4}
    uncertainty: 0.05
  plain: {32: 1 ms}
  table: {32: 1 ms}
compression: {m: {top-k: {100: 1 ms, 200: 2 ms}}}
inference: 0 s
uncertainty: {compression: 0.1}
noise:
  training: {log_sd: 0.1, straggler: {probability: 0.05, excess: 2}}
"""


@pytest.fixture
def law(tmp_path):
    path = tmp_path / "law.yaml"
    path.write_text(LAW)
    return load_profile(path)


def test_uncertain_constants_are_drawn_once_per_run_and_shared_by_all_clients(law):
    def step_s(seed, client):
        device = device_of(law, client, seed, uncertainty=True)
        return seconds_of(device, "training", model="m", batch=32)

    assert step_s(0, 0) == step_s(0, 5) != step_s(1, 0)
    draws = np.array([step_s(seed, 0) for seed in range(600)])
    assert np.log(draws / 4.2e-3).std() == pytest.approx(0.05, rel=0.1)
    assert np.median(draws) == pytest.approx(4.2e-3, rel=0.02)


def test_all_rows_of_a_kind_of_work_move_together_and_written_times_stay(law):
    device = device_of(law, seed=3, uncertainty=True)
    one, two = (
        seconds_of(device, "compression", model="m", strategy="top-k", k=k)
        for k in (100, 200)
    )
    assert one != 1e-3
    assert two == pytest.approx(2 * one)
    assert seconds_of(device, "inference", model="m", samples=3) == 0.0
    with pytest.raises(InputError, match="a profile that states its uncertainty"):
        seconds_of(device, "training", model="plain", batch=32)


def test_measured_noise_is_the_profiles_and_missing_for_what_was_not_measured(law):
    device = device_of(law, noise={"kind": "measured"})
    draws = draw(device)
    assert np.median(draws) == pytest.approx(1.0, abs=0.02)
    assert np.mean(draws) == pytest.approx(law.noise["training"].mean(), rel=0.05)
    with pytest.raises(InputError, match="noise"):
        device.duration_s(1.0, 0.0, round=1, phase="compression")


def test_the_documented_device_is_understood():
    text = (Path(__file__).parents[2] / "docs" / "calibration.md").read_text()
    block = re.search(r"```yaml\n(device:.*?)```", text, re.DOTALL)[1]
    plain = yaml.safe_load(block)["device"]
    shape = validate_as(DeviceSpec, plain, source="docs", folder=Path())
    certain = shape.model_copy(update={"uncertainty": False})
    processor = build_processor(certain, load_profile("x86-2core-vm"))
    assert processor.regimes.speed == pytest.approx(0.5 * 3.4)
    assert processor.regimes.load.period_s == 3600.0
    assert processor.regimes.clock.lasts_s == (0.2, 28.0, math.inf)
    assert processor.regimes.thermal.cooling_s == 300.0
