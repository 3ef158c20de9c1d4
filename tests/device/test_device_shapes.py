"""Rows keep what they were measured on.

Other samples and classes follow FLOPs, d and K.
"""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

import simfed
from simfed import InputError
from simfed.calibrate import MeasurementPlan
from simfed.calibrate.measure import measure
from simfed.calibrate.works import find_works
from simfed.cli.calibrate import app as calibrate
from simfed.cli.show import app as show
from simfed.device import ModelWork, load_profile, read_table
from simfed.learn import model_facts
from simfed.learn.catalogue import facts
from simfed.testing import check_device

CALIBRATION = Path(__file__).parents[2] / "calibration"
MADE_UP = """
kind: table
measured_on:
  net: {input: [3, 32, 32], classes: 10, d: 1000, forward_flops: 100, train_flops: 300}
  part/net: {flops: 50}
training: {net: {8: 1 s, 32: 4 s}}
private: {net: {8: 2 s}}
inference: {net: {64: 1 s}}
distillation: {net: {64: 3 s}}
evaluation: {net: {64: 1 s}}
starting: {net: {1: 1 s}}
handling: {net: {1: 1 s}}
losses: {net: {1: 1 s}}
auxiliary: {part/net: {1: 1 s}}
compression: {net: {top-k: {10: 1 s, 100: 1 s}, qsgd: {1000: 1 s}}}
"""
SIZES = {"training": "batch", "private": "batch"}
# of work three times (forward), five times (backward), seven times (d) the measured
COUNTS = {
    "training": 5,
    "private": 5,
    "inference": 3,
    "distillation": 5,
    "evaluation": 3,
    "starting": 5,
    "handling": 7,
    "losses": 1,
}


@pytest.fixture
def made_up(tmp_path):
    path = tmp_path / "made-up.yaml"
    path.write_text(MADE_UP)
    return path


def take(profile, quantity, size, model="net", **more):
    return profile.seconds(
        quantity, model=model, **{SIZES.get(quantity, "samples"): size}, **more
    )


def compress(profile, k, strategy="top-k", model="net", **more):
    return profile.seconds("compression", model=model, strategy=strategy, k=k, **more)


def at(path, *work):
    """The profile in a file, for `net` of other sizes than it was measured on."""
    profile = load_profile(path)
    profile.models["net"] = ModelWork(*work)
    return profile


@pytest.mark.parametrize("quantity", COUNTS)
def test_each_kind_of_work_follows_its_own_count(made_up, quantity):
    sizes = {"training": 8, "starting": 1, "handling": 1, "losses": 1}
    size = sizes.get(quantity, 64)
    measured = at(made_up, 1000, 100, 300, (3, 32, 32), 10)
    other = at(made_up, 7000, 300, 1500, (3, 64, 64), 10)
    seconds = take(measured, quantity, size)
    assert take(other, quantity, size) == pytest.approx(
        COUNTS[quantity] * seconds, rel=1e-12
    )
    named = [w for w in other.warnings if "3×32×32" in w and "3×64×64" in w]
    assert len(named) == (quantity != "losses")
    assert not [w for w in measured.warnings if "×" in w]


def test_auxiliary_work_follows_the_flops_that_its_name_leaves_out(made_up):
    profile = load_profile(made_up)
    profile.models["part/net"] = ModelWork(0, 200, 200)
    assert take(profile, "auxiliary", 1, "part/net") == 4
    assert "50 FLOPs a sample" in profile.warnings[0]


def test_one_warning_names_both_for_all_work_of_a_model(made_up):
    profile = at(made_up, 7000, 300, 1500, (3, 64, 64), 62)
    take(profile, "training", 8), take(profile, "training", 16), compress(profile, 50)
    assert profile.warnings == [
        "device profile made-up: net was measured on 3×32×32 samples, 10 classes, d = "
        "1,000; on 3×64×64 samples, 62 classes, d = 7,000 its seconds follow FLOPs, "
        "those of codecs d and K"
    ]


def test_without_a_law_a_codec_takes_the_time_at_its_share_of_entries(tmp_path):
    path = tmp_path / "p.yaml"  # truth: 1 ms per entry scanned, 2 ms per entry kept
    rows = {k: f"{1000 + 2 * k} ms" for k in (10, 50, 100, 200)}
    text = {**yaml.safe_load(MADE_UP), "compression": {"net": {"top-k": rows}}}
    path.write_text(yaml.safe_dump(text))
    profile = at(path, 4000, 100, 300, (3, 32, 32), 10)
    for k in (40, 200, 800):
        assert compress(profile, k) == pytest.approx(4 + 2e-3 * k, rel=1e-12)


def test_with_a_law_in_d_and_k_a_codec_follows_it_from_the_measured_row(tmp_path):
    path = tmp_path / "p.yaml"
    law = {"law": "affine-d-k", "parameters": {"a": 0.5, "b": 2e-3, "c": 1e-3}}
    rows = {k: f"{2 * (1500 + 2 * k)} ms" for k in (10, 100)}  # twice the law
    text = {
        **yaml.safe_load(MADE_UP),
        "compression": {"net": {"top-k": rows}, "any": {"top-k": law}},
    }
    path.write_text(yaml.safe_dump(text))
    profile = at(path, 4000, 100, 300, (3, 32, 32), 10)
    for k in (1, 10, 100, 3000):
        assert compress(profile, k) == pytest.approx(2 * (4.5 + 2e-3 * k), rel=1e-12)


def test_a_value_codec_goes_by_d_once(made_up):
    profile = at(made_up, 4000, 100, 300, (3, 32, 32), 10)
    assert compress(profile, 17, "qsgd") == pytest.approx(4, rel=1e-12)
    assert compress(profile, 17, "qsgd", entries=500) == pytest.approx(0.5, rel=1e-12)
    # behind a selection it reads K entries, whatever d is
    chain = compress(profile, 100, "top-k+qsgd")
    assert chain == pytest.approx(compress(profile, 100) + 0.1, rel=1e-12)


def test_what_is_compressed_may_be_less_than_the_model(made_up):
    profile = at(made_up, 1000, 100, 300, (3, 32, 32), 10)
    assert compress(profile, 50) == 1
    assert compress(profile, 5, entries=100) == pytest.approx(0.1)
    assert compress(profile, 50, entries=1000) == 1
    [warning] = [w for w in profile.warnings if "codecs of net" in w]
    assert "d = 1,000" in warning
    assert "d = 100" in warning


def test_laws_that_count_flops_or_d_are_not_scaled_twice(tmp_path):
    path = tmp_path / "p.yaml"
    text = yaml.safe_load(MADE_UP)
    text["training"]["net"] = {"law": "affine-flops", "parameters": {"a": 0, "b": 1e-3}}
    text["inference"]["net"] = {"law": "affine-samples", "parameters": {"a": 1, "b": 1}}
    text["compression"]["net"]["top-k"] = {
        "law": "d-log-k",
        "parameters": {"a": 0, "b": 1},
    }
    path.write_text(yaml.safe_dump(text))
    profile = at(path, 2000, 300, 600, (3, 64, 64), 10)
    assert take(profile, "training", 8) == pytest.approx(8 * 600 * 1e-3)
    assert take(profile, "inference", 9) == pytest.approx(3 * 10)
    assert compress(profile, 3) == pytest.approx(2000 * 2)


def test_rows_of_unknown_shape_are_taken_with_a_warning(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("{kind: table, training: {net: {8: 1 s}}, inference: {net: 1 s}}")
    profile = at(path, 7000, 300, 1500, (3, 64, 64), 10)
    assert take(profile, "inference", 8) == 1
    assert profile.warnings == []  # a person said so
    assert take(profile, "training", 8) == 1
    [warning] = profile.warnings
    assert "measured_on" in warning
    assert "3×64×64" in warning


# ---- the profiles that come with simfed ----------------------------------------------


@pytest.mark.parametrize(
    ("profile", "tables"),
    [
        ("x86-2core-vm", ["x86-2core-vm.csv"]),
        ("xeon-2core-vm", ["xeon-2core-vm.csv"]),
        (
            "rtx3090-ryzen4800h",
            ["rtx3090-ryzen4800h.training.csv", "rtx3090-ryzen4800h.compression.csv"],
        ),
        ("rtx3090-ryzen4800h-law", ["rtx3090-ryzen4800h.training.csv"]),
    ],
)
def test_shipped_profiles_have_the_shapes_of_their_tables(profile, tables):
    works = find_works(read_table([CALIBRATION / name for name in tables]))
    measured_on = load_profile(profile).measured_on
    names = {model for _, model, _ in load_profile(profile).curves if model != "any"}
    assert set(measured_on) == names
    assert measured_on == {name: works[name] for name in measured_on}


@pytest.mark.parametrize("model", ["lenet5", "resnet18"])
@pytest.mark.parametrize("profile", ["x86-2core-vm", "rtx3090-ryzen4800h"])
def test_the_sources_own_data_sets_take_its_rows(profile, model):
    dataset, k = ("mnist", 1000) if model == "lenet5" else ("cifar10", 100_000)
    loaded, plain = load_profile(profile), load_profile(profile)
    loaded.models[model] = ModelWork.of(facts(model, dataset))
    assert take(loaded, "training", 32, model) == take(plain, "training", 32, model)
    assert compress(loaded, k, model=model) == compress(plain, k, model=model)
    assert loaded.warnings == []


# ---- measuring, fitting, checking ----------------------------------------------------


def write_rows(path, *rows):
    path.write_text(
        "dataset,model,batch_size,seconds\n" + "".join(f"{row}\n" for row in rows)
    )
    return path


def call(app, *arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


def test_fit_writes_what_was_measured_and_a_text_half_as_long_takes_half(tmp_path):
    rows = (f"text-mini,char-lstm,{batch},{batch * 1e-3}" for batch in (8, 16, 32))
    table, profile = write_rows(tmp_path / "t.csv", *rows), tmp_path / "p.yaml"
    assert (
        call(calibrate, "fit", table, "--out", profile, "--kind", "table").exit_code
        == 0
    )
    loaded = load_profile(profile)
    assert loaded.measured_on == {
        "char-lstm": ModelWork.of(facts("char-lstm", "text-mini"))
    }
    loaded.models["char-lstm"] = ModelWork.of(model_facts("char-lstm", (40,), 96))
    assert take(loaded, "training", 8, "char-lstm") == pytest.approx(4e-3)
    assert "80 samples, 96 classes" in loaded.warnings[0]


def test_fit_says_where_nothing_tells_the_shape(tmp_path):
    table = write_rows(tmp_path / "t.csv", ",lenet5,8,1", ",lenet5,16,2")
    done = call(calibrate, "fit", table, "--out", tmp_path / "p.yaml")
    assert "nothing says what lenet5 was measured on" in " ".join(done.output.split())
    assert load_profile(tmp_path / "p.yaml").measured_on == {}


def test_rows_of_two_shapes_are_not_fitted_together(tmp_path):
    same = write_rows(
        tmp_path / "same.csv", "mnist,lenet5,8,1", "mnist-mini,lenet5,16,2"
    )
    assert call(calibrate, "fit", same, "--out", tmp_path / "p.yaml").exit_code == 0
    other = write_rows(
        tmp_path / "other.csv", "mnist,lenet5,8,1", "cifar10,lenet5,16,2"
    )
    error = call(calibrate, "fit", other, "--out", tmp_path / "p.yaml").exception
    assert isinstance(error, InputError)
    assert "1×28×28" in str(error)
    assert "3×32×32" in str(error)


def test_check_says_what_is_derived(tmp_path):
    table, profile = tmp_path / "t.csv", tmp_path / "p.yaml"
    write_rows(
        table, *(f"mnist,lenet5,{batch},{batch * 1e-3}" for batch in (8, 16, 32))
    )
    call(calibrate, "fit", table, "--out", profile, "--kind", "table")
    ratio = (
        facts("lenet5", "cifar10").train_flops / facts("lenet5", "mnist").train_flops
    )
    other = write_rows(
        tmp_path / "o.csv",
        *(f"cifar10,lenet5,{batch},{ratio * batch * 1e-3}" for batch in (8, 16, 32)),
    )
    said = " ".join(call(calibrate, "check", profile, other).output.split())
    assert "derived from 1×28×28 samples, 10 classes" in said
    assert "the median error is 0.0%" in said
    assert "lenet5 row" in " ".join(
        call(calibrate, "check", profile, table).output.split()
    )


SMALL = {
    "ks": (10,),
    "batches": (8,),
    "repeat": 1,
    "pace_s": 0.0,
    "quantities": ("training",),
}


def test_a_table_goes_on_with_the_same_samples_alone(tmp_path):
    out = tmp_path / "t.csv"
    assert (
        measure(MeasurementPlan((("logistic-regression", "mnist-mini"),), **SMALL), out)
        == 1
    )
    assert (
        measure(MeasurementPlan((("logistic-regression", "mnist"),), **SMALL), out) == 0
    )
    other = MeasurementPlan((("logistic-regression", "cifar10"),), **SMALL)
    with pytest.raises(InputError, match="measure into another file"):
        measure(other, out)
    twice = tuple(("logistic-regression", name) for name in ("mnist-mini", "cifar10"))
    with pytest.raises(InputError, match="one shape of samples for each model"):
        measure(MeasurementPlan(twice, **SMALL), tmp_path / "new.csv")


def test_the_check_of_a_device_counts_what_it_was_measured_on(tmp_path):
    path = tmp_path / "p.yaml"
    text = (CALIBRATION / "x86-2core-vm.yaml").read_text()
    path.write_text(text)
    check_device(path)
    path.write_text(text.replace("d: 61706", "d: 61707"))
    with pytest.raises(AssertionError, match=re.escape("measured_on.lenet5")):
        check_device(path)


# ---- runs ----------------------------------------------------------------------------


@pytest.fixture
def scenario(tmp_path):
    """A scenario of images of 1 × 20 × 20 pixels."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 255, (64, 20, 20), dtype=np.uint8)
    np.savez(tmp_path / "images.npz", x_train=images, y_train=np.arange(64) % 10)
    plain = {
        "name": "shapes",
        "method": "fedavg",
        "rounds": 1,
        "dataset": {"file": "images.npz", "partition": {"kind": "iid"}},
        "prototypes": {"small": {"model": "lenet5"}},
        "training": {"batch_size": 32, "local_steps": 1},
        "compression": {"k": 1000},
        "policy": {"kind": "uniform", "strategy": "top-k"},
        "clients": [
            {
                "count": 2,
                "prototype": "small",
                "device": "x86-2core-vm",
                "link": {"up": "1 Mbps"},
            }
        ],
        "server": {"device": "x86-2core-vm"},
    }
    path = tmp_path / "scenario.yaml"
    path.write_text(yaml.safe_dump(plain))
    return path


def test_a_run_on_other_images_takes_derived_seconds_and_warns_once(scenario, tmp_path):
    run = simfed.run(scenario, tmp_path / "run", time_only=True, progress=False)
    here, there = (
        model_facts("lenet5", shape, 10) for shape in ((1, 20, 20), (1, 28, 28))
    )
    expected = 1.69486e-3 * here.train_flops / there.train_flops
    assert run.participations["training_s"].tolist() == pytest.approx(
        [expected] * 2, rel=1e-12
    )
    assert math.isclose(
        run.participations["compression_s"][0], 0.164659e-3, rel_tol=0.5
    )
    assert run.participations["compression_s"][0] < 0.164659e-3
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    shapes = [w for w in manifest["warnings"] if "was measured on" in w]
    assert len(shapes) == 1
    assert "1×28×28" in shapes[0]
    assert "1×20×20" in shapes[0]


def test_show_fleet_says_which_rows_a_run_takes(scenario, tmp_path):
    out = call(show, "fleet", scenario, "--out", tmp_path / "f.png").output
    lines = [re.split(r"  +", line.strip()) for line in out.splitlines()]
    sources = {line[0]: line[1] for line in lines if len(line) == 3}
    shape = "derived from 1×28×28 samples, 10 classes, d = 61,706"
    assert sources["training of lenet5, 32 samples"] == shape
    assert sources["compression of lenet5 by top-k, K = 1,000"] == (
        "derived from d = 61,706"
    )
    assert sources["decompression of lenet5 by top-k, K = 1,000"] == (
        "derived from d = 61,706"
    )
    options = ("--set", "dataset={name: mnist-mini}", "--out", tmp_path / "f.png")
    out = call(show, "fleet", scenario, *options).output
    assert "derived" not in out
    assert re.search(r"training of lenet5, 32 samples +row +1\.69 ms", out)
