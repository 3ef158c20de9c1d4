"""A client's processor: speed, noise, assumptions, energy."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
import yaml

from simfed.device import build_device, build_processor, load_profile
from simfed.device.spec import DeviceSpec
from simfed.ground.errors import InputError
from simfed.ground.seeding import Streams
from simfed.scenario.load import validate_as


@pytest.fixture
def profile():
    return load_profile("rtx3090-ryzen4800h")


def test_half_the_speed_takes_twice_the_time(profile):
    device = build_device(
        DeviceSpec.model_validate({"profile": "p", "speed": 0.5}),
        profile,
        Streams(0),
        0,
    )
    assert device.duration_s(3.0, 0.0, round=1, phase="training") == 6.0


def test_without_noise_the_nominal_time_is_exact(profile):
    device = build_device(DeviceSpec(profile="p"), profile, Streams(0), 0)
    nominal_s = device.nominal_s(
        "compression", model="lenet5", strategy="top-k", k=1000
    )
    assert device.duration_s(nominal_s, 1e6, round=1, phase="compression") == 6.1e-7


def test_noise_hangs_on_client_round_and_phase_and_on_nothing_else(profile):
    def draw(seed, client, round, phase):
        device = build_device(
            DeviceSpec.model_validate({"profile": "p", "noise": {"cv": 0.2}}),
            profile,
            Streams(seed),
            client,
        )
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
    device = build_device(
        DeviceSpec.model_validate({"profile": "p", "noise": {"cv": 0.3}}),
        profile,
        Streams(5),
        0,
    )
    draws = [
        device.duration_s(1.0, 0.0, round=r, phase="training") for r in range(4000)
    ]
    # mean of 4,000 draws with sd 0.3: standard error 0.0047; 4 of them, two-sided p =
    # 6e-5
    assert np.mean(draws) == pytest.approx(1.0, abs=4 * 0.3 / math.sqrt(4000))
    assert np.std(draws) / np.mean(draws) == pytest.approx(0.3, rel=0.1)


def test_an_assumption_stands_in_for_what_the_profile_lacks(profile):
    shape = DeviceSpec.model_validate(
        {"profile": "x", "assume": {"inference": "0 s", "training": "2 s"}}
    )
    processor = build_processor(shape, profile)
    assert processor.nominal_s("inference", model="lenet5", samples=10) == 0.0
    assert processor.nominal_s("training", model="lenet5", batch=32) == 2.0
    with pytest.raises(InputError, match="decompression"):
        processor.nominal_s("decompression", model="lenet5", strategy="top-k", k=1)


def test_dense_takes_no_time_whatever_is_assumed_of_compression(profile):
    processor = build_processor(
        DeviceSpec.model_validate(
            {"profile": "p", "assume": {"compression": "1 s", "decompression": "1 s"}}
        ),
        profile,
    )
    for quantity in ("compression", "decompression"):
        assert (
            processor.nominal_s(quantity, model="lenet5", strategy="dense", k=10) == 0.0
        )
        assert (
            processor.nominal_s(quantity, model="lenet5", strategy="top-k", k=10) == 1.0
        )


def test_factors_scale_what_the_profile_says_and_nothing_that_is_said(profile):
    plain = build_processor(DeviceSpec(profile="p"), profile)
    scaled = build_processor(
        DeviceSpec.model_validate(
            {
                "profile": "p",
                "scale": {"compression": 1000},
                "assume": {"training": "1 s"},
            }
        ),
        profile,
    )
    size = {"model": "lenet5", "strategy": "top-k", "k": 1000}
    assert scaled.nominal_s("compression", **size) == 1000 * plain.nominal_s(
        "compression", **size
    )
    assert scaled.nominal_s("training", model="lenet5", batch=32) == 1.0


def test_energy_is_power_times_time_and_none_without_power(profile, tmp_path):
    assert (
        build_device(DeviceSpec(profile="p"), profile, Streams(0), 0).energy_j(
            {"training": 1.0}
        )
        is None
    )
    path = tmp_path / "p.yaml"
    path.write_text(
        "{kind: table, training: {m: {1: 1 s}}, power: {training: 5 W, idle: 500 mW}}"
    )
    device = build_device(DeviceSpec(profile="p"), load_profile(path), Streams(0), 0)
    assert device.energy_j({"training": 2.0, "idle": 4.0, "uplink": 0.0}) == 12.0
    assert (
        device.energy_j({"training": 1.0, "inference": 2.0, "auxiliary": 1.0}) == 20.0
    )
    path.write_text(
        "{kind: table, training: {m: {1: 1 s}}, power: {training: 5 W, inference: 2 W}}"
    )
    knows = build_device(DeviceSpec(profile="p"), load_profile(path), Streams(0), 0)
    assert (
        knows.energy_j({"training": 1.0, "inference": 2.0, "distillation": 1.0}) == 14.0
    )
    # training and uploading at once for 3 s: what standing idle takes is in both watts
    path.write_text(
        "{kind: table, training: {m: {1: 1 s}}, power: {training: 5 W, uplink: 2 W}}"
    )
    at_once = {"training": 4.0, "uplink": 6.0, "idle": -3.0}
    assert (
        build_device(
            DeviceSpec(profile="p"), load_profile(path), Streams(0), 0
        ).energy_j(at_once)
        == 32.0
    )
    path.write_text(path.read_text().replace("5 W", "5 W, idle: 1 W"))
    assert (
        build_device(
            DeviceSpec(profile="p"), load_profile(path), Streams(0), 0
        ).energy_j(at_once)
        == 29.0
    )
    path.write_text("{kind: table, training: {m: {1: 1 s}}, power: {compression: 3 W}}")
    packs = build_device(DeviceSpec(profile="p"), load_profile(path), Streams(0), 0)
    assert packs.energy_j({"compression": 1.0, "decompression": 2.0}) == 9.0
    with pytest.raises(InputError, match="uplink"):
        device.energy_j({"uplink": 1.0})


LAW = """
kind: law
training:
  m:
    law: affine-samples
    parameters: {a: 1e-3, b: 1e-4}
    uncertainty: {residual: 0.05, freedom: 6, standard_error: {a: 1e-4, b: 1e-5},
                  correlation: [[1, -0.5], [-0.5, 1]]}
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
        device = build_device(
            DeviceSpec.model_validate({"profile": "p", "uncertainty": True}),
            law,
            Streams(seed),
            client,
        )
        return device.nominal_s("training", model="m", batch=32)

    assert step_s(0, 0) == step_s(0, 5) != step_s(1, 0)
    draws = np.array([step_s(seed, 0) for seed in range(600)])
    # the interval's variance: residual, and a and b·32 with their errors, relative to
    # 4.2 ms
    nominal_s, a, b = 4.2e-3, 1e-4, 32e-5
    relative = math.sqrt(0.05**2 + (a**2 + b**2 - a * b) / nominal_s**2)
    assert np.log(draws / nominal_s).std() == pytest.approx(relative, rel=0.15)
    assert np.median(draws) == pytest.approx(nominal_s, rel=0.02)


def test_all_rows_of_a_kind_of_work_move_together_and_written_times_stay(law):
    processor = build_processor(
        DeviceSpec.model_validate({"profile": "p", "uncertainty": True}),
        law,
        Streams(3),
    )
    one = processor.nominal_s("compression", model="m", strategy="top-k", k=100)
    assert one != 1e-3
    assert processor.nominal_s(
        "compression", model="m", strategy="top-k", k=200
    ) == pytest.approx(2 * one)
    assert processor.nominal_s("inference", model="m", samples=3) == 0.0


def test_a_curve_without_uncertainty_cannot_be_drawn(law):
    processor = build_processor(
        DeviceSpec.model_validate({"profile": "p", "uncertainty": True}),
        law,
        Streams(3),
    )
    with pytest.raises(InputError, match="a profile that states its uncertainty"):
        processor.nominal_s("training", model="plain", batch=32)


def test_measured_noise_is_the_profiles_and_missing_for_what_was_not_measured(law):
    device = build_device(
        DeviceSpec.model_validate({"profile": "p", "noise": {"kind": "measured"}}),
        law,
        Streams(0),
        0,
    )
    draws = [
        device.duration_s(1.0, 0.0, round=r, phase="training") for r in range(4000)
    ]
    assert np.median(draws) == pytest.approx(1.0, abs=0.02)
    assert np.mean(draws) == pytest.approx(law.noise["training"].mean(), rel=0.05)
    with pytest.raises(InputError, match="noise"):
        device.duration_s(1.0, 0.0, round=1, phase="compression")


def test_the_documented_device_is_understood():
    text = (Path(__file__).parents[2] / "docs" / "calibration.md").read_text()
    block = re.search(r"```yaml\n(device:.*?)```", text, re.DOTALL)[1]
    shape = validate_as(
        DeviceSpec, yaml.safe_load(block)["device"], source="docs", folder=Path()
    )
    certain = shape.model_copy(update={"uncertainty": False})
    processor = build_processor(certain, load_profile("x86-2core-vm"))
    assert processor.regimes.speed == pytest.approx(0.5 * 3.4)
    assert processor.regimes.load.period_s == 3600.0
    assert processor.regimes.clock.lasts_s == (0.2, 28.0, math.inf)
    assert processor.regimes.thermal.cooling_s == 300.0
