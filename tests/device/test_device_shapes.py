"""Rows keep what they were measured on.

Other samples and classes follow FLOPs, d and K.
"""

import re
from pathlib import Path

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner
from worlds import TINY, change

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
# of work three times (forward), five times (backward), seven times (d) the measured:
# the measured size, and how many times as long it takes
COUNTS = [
    ("training", 8, 5),
    ("private", 8, 5),
    ("inference", 64, 3),
    ("distillation", 64, 5),
    ("evaluation", 64, 3),
    ("starting", 1, 5),
    ("handling", 1, 7),
    ("losses", 1, 1),
]


@pytest.fixture
def made_up(tmp_path):
    path = tmp_path / "made-up.yaml"
    path.write_text(MADE_UP)
    return path


def take(profile, quantity, size, model="net"):
    name = "batch" if quantity in ("training", "private") else "samples"
    return profile.seconds(quantity, model=model, **{name: size})


def compress(profile, k, strategy="top-k", model="net", **more):
    return profile.seconds("compression", model=model, strategy=strategy, k=k, **more)


def at(path, d=1000, forward=100, train=300, side=32, classes=10):
    """The profile in a file, for `net` of these sizes, by default those measured."""
    profile = load_profile(path)
    profile.models["net"] = ModelWork(d, forward, train, (3, side, side), classes)
    return profile


@pytest.mark.parametrize(("quantity", "size", "times"), COUNTS)
def test_each_kind_of_work_follows_its_own_count(made_up, quantity, size, times):
    measured = at(made_up)
    other = at(made_up, 7000, 300, 1500, 64)
    seconds = times * take(measured, quantity, size)
    assert take(other, quantity, size) == pytest.approx(seconds, rel=1e-12)
    named = [w for w in other.warnings if "3×32×32" in w and "3×64×64" in w]
    assert len(named) == (quantity != "losses")
    assert not [w for w in measured.warnings if "×" in w]


def test_auxiliary_work_follows_the_flops_that_its_name_leaves_out(made_up):
    profile = load_profile(made_up)
    profile.models["part/net"] = ModelWork(0, 200, 200)
    assert take(profile, "auxiliary", 1, "part/net") == 4
    assert "50 FLOPs a sample" in profile.warnings[0]


def test_one_warning_names_both_for_all_work_of_a_model(made_up):
    profile = at(made_up, 7000, 300, 1500, 64, 62)
    take(profile, "training", 8), take(profile, "training", 16), compress(profile, 50)
    assert profile.warnings == [
        "device profile made-up: net was measured on 3×32×32 samples, 10 classes, d = "
        "1,000; on 3×64×64 samples, 62 classes, d = 7,000 its seconds follow FLOPs, "
        "those of codecs d and K"
    ]


def written(path, **curves):
    """The profile with other times."""
    path.write_text(yaml.safe_dump(yaml.safe_load(MADE_UP) | curves))
    return path


def test_without_a_law_a_codec_takes_the_time_at_its_share_of_entries(made_up):
    # truth: 1 ms per entry scanned, 2 ms per entry kept
    rows = {k: f"{1000 + 2 * k} ms" for k in (10, 50, 100, 200)}
    path = written(made_up, compression={"net": {"top-k": rows}})
    profile = at(path, 4000)
    for k in (40, 200, 800):
        assert compress(profile, k) == pytest.approx(4 + 2e-3 * k, rel=1e-12)


def test_with_a_law_in_d_and_k_a_codec_follows_it_from_the_measured_row(made_up):
    law = {"law": "affine-d-k", "parameters": {"a": 0.5, "b": 2e-3, "c": 1e-3}}
    rows = {k: f"{2 * (1500 + 2 * k)} ms" for k in (10, 100)}  # twice the law
    times = {"net": {"top-k": rows}, "any": {"top-k": law}}
    profile = at(written(made_up, compression=times), 4000)
    for k in (1, 10, 100, 3000):
        assert compress(profile, k) == pytest.approx(2 * (4.5 + 2e-3 * k), rel=1e-12)


def test_a_value_codec_goes_by_d_once(made_up):
    profile = at(made_up, 4000)
    assert compress(profile, 17, "qsgd") == pytest.approx(4, rel=1e-12)
    assert compress(profile, 17, "qsgd", entries=500) == pytest.approx(0.5, rel=1e-12)
    # behind a selection it reads K entries, whatever d is
    chain = compress(profile, 100, "top-k+qsgd")
    assert chain == pytest.approx(compress(profile, 100) + 0.1, rel=1e-12)


def test_what_is_compressed_may_be_less_than_the_model(made_up):
    profile = at(made_up)
    assert compress(profile, 50) == 1
    assert compress(profile, 5, entries=100) == pytest.approx(0.1)
    assert compress(profile, 50, entries=1000) == 1
    [warning] = [w for w in profile.warnings if "codecs of net" in w]
    assert "d = 1,000" in warning
    assert "d = 100" in warning


def test_laws_that_count_flops_or_d_are_not_scaled_twice(made_up):
    laws = yaml.safe_load("""
    training: {net: {law: affine-flops, parameters: {a: 0, b: 1.0e-3}}}
    inference: {net: {law: affine-samples, parameters: {a: 1, b: 1}}}
    compression: {net: {top-k: {law: d-log-k, parameters: {a: 0, b: 1}}}}
    """)
    profile = at(written(made_up, **laws), 2000, 300, 600, 64)
    assert take(profile, "training", 8) == pytest.approx(8 * 600 * 1e-3)
    assert take(profile, "inference", 9) == pytest.approx(3 * 10)
    assert compress(profile, 3) == pytest.approx(2000 * 2)


def test_rows_of_unknown_shape_are_taken_with_a_warning(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("{kind: table, training: {net: {8: 1 s}}, inference: {net: 1 s}}")
    profile = at(path, 7000, 300, 1500, 64)
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
    loaded = load_profile(profile)
    names = {model for _, model, _ in loaded.curves if model != "any"}
    assert loaded.measured_on == {name: works[name] for name in names}


# ---- measuring, fitting, checking ----------------------------------------------------


def write_rows(path, *rows):
    path.write_text("\n".join(["dataset,model,batch_size,seconds", *rows]))
    return path


def call(app, *arguments):
    """What it says, in one line, or its error."""
    done = CliRunner().invoke(app, [str(a) for a in arguments])
    return " ".join(str(done.exception or done.output).split())


def test_fit_and_check_tell_what_was_measured_and_what_is_derived(tmp_path):
    def rows(name, dataset, step_s):
        steps = (f"{dataset},lenet5,{n},{n * step_s}" for n in (8, 16, 32))
        return write_rows(tmp_path / name, *steps)

    table, profile = rows("t.csv", "mnist", 1e-3), tmp_path / "p.yaml"
    call(calibrate, "fit", table, "--out", profile, "--kind", "table")
    here, there = (facts("lenet5", dataset) for dataset in ("mnist", "cifar10"))
    assert load_profile(profile).measured_on == {"lenet5": ModelWork.of(here)}
    assert "lenet5 row" in call(calibrate, "check", profile, table)
    other = rows("o.csv", "cifar10", 1e-3 * there.train_flops / here.train_flops)
    said = call(calibrate, "check", profile, other)
    assert "derived from 1×28×28 samples, 10 classes" in said
    assert "the median error is 0.0%" in said


def test_fit_says_where_nothing_tells_the_shape(tmp_path):
    table = write_rows(tmp_path / "t.csv", ",lenet5,8,1", ",lenet5,16,2")
    said = call(calibrate, "fit", table, "--out", tmp_path / "p.yaml")
    assert "nothing says what lenet5 was measured on" in said
    assert load_profile(tmp_path / "p.yaml").measured_on == {}


def test_rows_of_two_shapes_are_not_fitted_together(tmp_path):
    for dataset in ("mnist-mini", "cifar10"):
        rows = "mnist,lenet5,8,1", f"{dataset},lenet5,16,2"
        table = write_rows(tmp_path / f"{dataset}.csv", *rows)
        said = call(calibrate, "fit", table, "--out", tmp_path / "p.yaml")
        for shape in ("1×28×28", "3×32×32"):
            assert (shape in said) == (dataset == "cifar10")


def measure_on(out, *datasets):
    return measure(
        MeasurementPlan(
            tuple(("logistic-regression", name) for name in datasets),
            batches=(8,),
            repeat=1,
            pace_s=0.0,
            quantities=("training",),
        ),
        out,
    )


def test_a_table_goes_on_with_the_same_samples_alone(tmp_path):
    out = tmp_path / "t.csv"
    assert [measure_on(out, "mnist-mini"), measure_on(out, "mnist")] == [1, 0]
    with pytest.raises(InputError, match="measure into another file"):
        measure_on(out, "cifar10")
    with pytest.raises(InputError, match="one shape of samples for each model"):
        measure_on(tmp_path / "new.csv", "mnist-mini", "cifar10")


def test_the_check_of_a_device_counts_what_it_was_measured_on(made_up):
    text = (CALIBRATION / "x86-2core-vm.yaml").read_text()
    made_up.write_text(text)
    check_device(made_up)
    made_up.write_text(text.replace("d: 61706", "d: 61707"))
    with pytest.raises(AssertionError, match=re.escape("measured_on.lenet5")):
        check_device(made_up)


# ---- runs ----------------------------------------------------------------------------


@pytest.fixture
def scenario(tmp_path):
    """A scenario of images of 1 × 20 × 20 pixels."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 255, (64, 20, 20), dtype=np.uint8)
    np.savez(tmp_path / "images.npz", x_train=images, y_train=np.arange(64) % 10)
    host = {"prototype": "a", "device": "x86-2core-vm", "link": {"up": "1 Mbps"}}
    changes = {
        "rounds": 1,
        "dataset": {"file": "images.npz", "partition": {"kind": "iid"}},
        "prototypes.a.model": "lenet5",
        "training.batch_size": 32,
        "compression.k": 1000,
        "clients": [{**host, "count": 2}],
        "server.device": "x86-2core-vm",
    }
    path = tmp_path / "scenario.yaml"
    path.write_text(yaml.safe_dump(change(TINY, changes)))
    return path


def test_a_run_on_other_images_takes_derived_seconds_and_warns_once(scenario):
    run = simfed.run(scenario, time_only=True, progress=False)
    here, there = (
        model_facts("lenet5", (1, side, side), 10).train_flops for side in (20, 28)
    )
    expected_s = pytest.approx([1.69486e-3 * here / there] * 2, rel=1e-12)
    assert run.participations["training_s"].tolist() == expected_s
    assert 0.5 < run.participations["compression_s"][0] / 0.164659e-3 < 1
    (warning,) = (w for w in run.manifest["warnings"] if "was measured on" in w)
    assert "1×28×28" in warning
    assert "1×20×20" in warning


def test_show_fleet_says_which_rows_a_run_takes(scenario, tmp_path):
    draw = ("fleet", scenario, "--out", tmp_path / "f.png")
    out = call(show, *draw)
    derived = "derived from d = 61,706"
    for row in (
        "training of lenet5, 32 samples derived from 1×28×28 samples, 10 classes, d = "
        "61,706",
        f"compression of lenet5 by top-k, K = 1,000 {derived}",
        f"decompression of lenet5 by top-k, K = 1,000 {derived}",
    ):
        assert row in out
    out = call(show, *draw, "--set", "dataset={name: mnist-mini}")
    assert "derived" not in out
    assert "training of lenet5, 32 samples row 1.69 ms" in out
