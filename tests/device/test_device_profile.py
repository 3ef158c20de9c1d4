"""Profiles: exact rows, monotone interpolation, warned extrapolation, nothing silently
free.
"""

import csv
import itertools
import math
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simfed import InputError
from simfed.device import ModelWork, load_profile, profile_folders, profile_names
from simfed.device.curve import Points

CALIBRATION = Path(__file__).parents[2] / "calibration"


@pytest.fixture
def source():
    return load_profile("rtx3090-ryzen4800h")


def write(folder, text, name="p.yaml"):
    path = folder / name
    path.write_text(text)
    return path


def test_every_row_of_the_sources_tables_is_exact(source):
    with open(CALIBRATION / "rtx3090-ryzen4800h.compression.csv") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 36
    for row in rows:
        size = {"model": row["model"], "strategy": row["strategy"], "k": int(row["k"])}
        assert source.seconds("compression", **size) == float(row["seconds"])
    with open(CALIBRATION / "rtx3090-ryzen4800h.training.csv") as file:
        for row in csv.DictReader(file):
            seconds = source.seconds(
                "training", model=row["model"], batch=int(row["batch_size"])
            )
            assert seconds == float(row["seconds"])
    assert source.warnings == []


def test_beyond_the_rows_it_goes_on_and_warns_once_per_curve(source):
    for k in (10_000, 15_738, 10_000):
        seconds = source.seconds(
            "compression", model="lenet5-half", strategy="top-k", k=k
        )
        assert seconds == pytest.approx(k * 3.4e-10, rel=1e-12)
    assert source.warnings == [
        "device profile rtx3090-ryzen4800h: compression of lenet5-half by top-k was "
        "measured for k from 500 to 5000; k = 10000 is extrapolated by the power law "
        "of the nearest rows"
    ]
    source.seconds("compression", model="lenet5-half", strategy="random-k", k=100)
    assert len(source.warnings) == 2


def test_one_row_alone_is_continued_in_proportion(source):
    assert source.seconds("training", model="lenet5", batch=64) == pytest.approx(0.009)
    assert "batch" in source.warnings[0] or "samples = 64" in source.warnings[0]


@pytest.mark.parametrize(
    ("call", "names"),
    [
        ({"quantity": "inference", "model": "lenet5", "samples": 256}, "inference"),
        (
            {"quantity": "training", "model": "lenet", "batch": 32},
            "did you mean 'lenet5'",
        ),
        (
            {"quantity": "compression", "model": "lenet5", "strategy": "topk", "k": 5},
            "'top-k'",
        ),
        ({"quantity": "trainin", "model": "lenet5", "batch": 32}, "'training'"),
        ({"quantity": "training", "model": "lenet5", "batch": 0}, "at least 1"),
    ],
)
def test_what_is_missing_is_an_error_that_names_it(source, call, names):
    with pytest.raises(InputError) as error:
        source.seconds(**call)
    assert names in str(error.value)
    assert "\n" not in str(error.value)


def test_a_strategy_that_was_not_measured_for_any_model_is_named_as_such(tmp_path):
    profile = load_profile(
        write(tmp_path, "{kind: table, compression: {any: {top-k: 0 s}}}")
    )
    assert profile.seconds("compression", model="lenet5", strategy="top-k", k=3) == 0.0
    with pytest.raises(
        InputError, match="got 'random-k', expected a strategy measured for any: top-k"
    ):
        profile.seconds("compression", model="lenet5", strategy="random-k", k=3)


def test_a_zero_must_be_written(tmp_path):
    path = write(
        tmp_path,
        "{kind: table, inference: 0 s, training: {m: 0 s}, compression: {m: 0 s}}",
    )
    profile = load_profile(path)
    assert profile.seconds("inference", model="m", samples=10) == 0.0
    assert profile.seconds("training", model="m", batch=3) == 0.0
    assert profile.seconds("compression", model="m", strategy="top-k", k=3) == 0.0
    assert profile.warnings == []
    with pytest.raises(InputError):
        profile.seconds("training", model="other", batch=3)


rows = st.lists(
    st.tuples(st.integers(1, 10**7), st.floats(1e-9, 1e3)),
    min_size=2,
    max_size=6,
    unique_by=lambda row: row[0],
)


@given(rows, st.floats(0, 1))
def test_interpolation_stays_between_its_two_rows(rows, where):
    rows.sort()
    curve = Points("k", *map(tuple, zip(*rows, strict=True)))
    for (x0, y0), (x1, y1) in itertools.pairwise(rows):
        assert curve.at({"k": x0}) == y0
        between = curve.at({"k": x0 + where * (x1 - x0)})
        assert min(y0, y1) * (1 - 1e-12) <= between <= max(y0, y1) * (1 + 1e-12)


@given(rows, st.floats(1, 1e8), st.floats(1, 1e8))
def test_a_monotone_table_gives_a_monotone_curve(rows, x, y):
    rows.sort()
    seconds = sorted(row[1] for row in rows)
    curve = Points("k", tuple(float(row[0]) for row in rows), tuple(seconds))
    low, high = sorted((x, y))
    assert curve.at({"k": low}) <= curve.at({"k": high}) * (1 + 1e-12)


def test_next_to_a_zero_row_it_is_linear():
    curve = Points("k", (10.0, 20.0), (0.0, 1.0))
    assert curve.at({"k": 15}) == 0.5
    assert curve.at({"k": 5}) == 0.0
    assert Points("k", (10.0, 20.0), (1.0, 0.0)).at({"k": 15}) == 0.5


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", "a profile: a mapping"),
        ("{kind: table, training: {m: " + 2000 * "[", "nested too deeply"),
    ],
)
def test_nonsense_is_refused_in_one_sentence(tmp_path, text, names):
    path = write(tmp_path, text)
    with pytest.raises(InputError) as error:
        load_profile(path)
    assert str(error.value).startswith(str(path))
    assert names in str(error.value)
    assert "\n" not in str(error.value)


def test_a_broken_profile_beside_a_good_one_does_no_harm(tmp_path):
    write(tmp_path, "kind: table\ntraining: {? [1] : 1 s}", "broken.yaml")
    write(tmp_path, "kind: table\ntraining: 1 s", "good.yaml")
    assert {"broken", "good"} <= set(profile_names([tmp_path]))
    assert (
        load_profile("good", [tmp_path]).seconds("training", model="m", batch=1) == 1.0
    )


def test_profiles_are_found_by_name_and_a_wrong_name_gets_a_hint(tmp_path):
    (tmp_path / "calibration").mkdir()
    write(
        tmp_path / "calibration",
        "{kind: table, training: {m: {1: 1 s}}}",
        "mine.yaml",
    )
    folders = profile_folders(tmp_path)
    assert load_profile("mine", folders).name == "mine"
    with pytest.raises(InputError, match="did you mean 'mine'"):
        load_profile("mien", folders)
    with pytest.raises(InputError, match="no such file"):
        load_profile("nowhere.yaml", folders)


def test_a_file_somewhere_above_is_no_profile(tmp_path):
    """Beside the scenario, or in a folder `calibration` there or above.

    Nowhere else.
    """
    here = tmp_path / "project" / "scenarios"
    for folder in (here, tmp_path / "calibration"):
        folder.mkdir(parents=True)
    write(here, "{kind: table, training: {m: {1: 1 s}}}", "beside.yaml")
    write(here, "name: a-scenario\npolicy: {kind: ascend}", "scenario.yaml")
    write(
        tmp_path / "calibration", "kind: table\ntraining: {m: {1: 2 s}}", "above.yaml"
    )
    shadow = write(
        tmp_path, "kind: table\ntraining: {m: {1: 3 s}}", "rtx3090-ryzen4800h.yaml"
    )
    names = profile_names(profile_folders(here))
    assert names[:2] == ["beside", "above"]
    assert "scenario" not in names
    assert load_profile("rtx3090-ryzen4800h", profile_folders(here)).source != str(
        shadow
    )
    given = load_profile("../../rtx3090-ryzen4800h.yaml", profile_folders(here))
    assert given.seconds("training", model="m", batch=1) == 3


def test_a_law_profile_follows_its_law(tmp_path):
    text = """
    kind: law
    training:
      m:
        law: affine-samples
        parameters: {a: 1e-3, b: 2e-4}
        valid: {samples: [8, 64]}
    compression: {m: {top-k: {law: k-log-d, parameters: {a: 0, b: 1e-9}}}}
    """
    profile = load_profile(write(tmp_path, text))
    assert profile.seconds("training", model="m", batch=32) == pytest.approx(
        1e-3 + 32 * 2e-4
    )
    assert profile.warnings == []
    profile.seconds("training", model="m", batch=128)
    assert (
        "samples = 128 follows the law a + b·samples beyond it" in profile.warnings[0]
    )
    with pytest.raises(InputError, match="the size of model m"):
        profile.seconds("compression", model="m", strategy="top-k", k=10)
    profile.models["m"] = ModelWork(parameters=1024, forward_flops=1, train_flops=3)
    seconds = profile.seconds("compression", model="m", strategy="top-k", k=10)
    assert math.isclose(seconds, 10 * 10 * 1e-9)


def test_loading_a_profile_imports_neither_torch_nor_scipy_nor_pandas():
    code = (
        "import sys; from simfed.device import load_profile; "
        "load_profile('rtx3090-ryzen4800h');print([m for m in ('torch', 'scipy', "
        "'pandas', 'matplotlib') if m in sys.modules])"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "[]"


CODECS = """
kind: table
compression:
  net:
    top-k: {100: 1 ms, 1000: 2 ms}
    qsgd: {100: 0.25 ms, 5000: 4 ms}
    qsgd(4): {100: 0.5 ms}
    random-k+fp16: {100: 7 ms}
    powersgd: {100: 3 ms}
"""


@pytest.fixture
def codecs(tmp_path):
    return load_profile(str(write(tmp_path, CODECS)))


@pytest.mark.parametrize(
    ("strategy", "seconds"),
    [
        ("qsgd(4)", 0.5e-3),  # its own label
        ("qsgd(levels=4)", 0.5e-3),  # however it is written
        ("qsgd(8)", 0.25e-3),  # without options, for all options
        ("top-k+qsgd(8)", 1e-3 + 0.25e-3),  # a chain: its selection and its value codec
        ("top-k+qsgd(4)", 1e-3 + 0.5e-3),
        ("random-k+fp16", 7e-3),  # unless it was measured as a whole
        ("powersgd(4)", 3e-3),
    ],
)
def test_a_codec_takes_the_times_of_the_nearest_thing_measured(
    codecs, strategy, seconds
):
    compression_s = codecs.seconds("compression", model="net", strategy=strategy, k=100)
    assert compression_s == pytest.approx(seconds, rel=1e-12)


def test_what_holds_for_any_strategy_serves_a_chain_once(tmp_path):
    text = "kind: table\ncompression: {net: {any: {100: 1 ms}, top-k: {100: 5 ms}}}\n"
    profile = load_profile(str(write(tmp_path, text)))
    assert (
        profile.seconds("compression", model="net", strategy="top-k+fp16", k=100)
        == 1e-3
    )


@pytest.mark.parametrize(
    ("strategy", "measured"), [("dgc(0.9)", "dgc(0.9)"), ("top-k+bf16", "bf16")]
)
def test_a_codec_that_nobody_measured_is_named_with_what_to_measure(
    codecs, strategy, measured
):
    with pytest.raises(InputError) as caught:
        codecs.seconds("compression", model="net", strategy=strategy, k=100)
    assert caught.value.got == strategy
    assert f'calibrate measure --strategies "{measured}"' in caught.value.hint
    assert "device: {assume: {compression: 0.3 ms}}" in caught.value.hint
