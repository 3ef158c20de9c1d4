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
    for kind, size, whole in (("compression", "k", 36), ("training", "batch_size", 4)):
        with open(CALIBRATION / f"rtx3090-ryzen4800h.{kind}.csv") as file:
            rows = list(csv.DictReader(file))
        assert len(rows) == whole
        for row in rows:
            names = {key: row[key] for key in ("model", "strategy") if key in row}
            sizes = {size.removesuffix("_size"): int(row[size])}
            assert source.seconds(kind, **names, **sizes) == float(row["seconds"])
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
    assert "= 64 is extrapolated" in source.warnings[0]


def test_a_time_is_free_only_where_a_zero_is_written(tmp_path):
    text = "{kind: table, inference: 0 s, training: {m: 0 s}, compression: {any: 0 s}}"
    profile = load_profile(write(tmp_path, text))
    assert profile.seconds("inference", model="m", samples=10) == 0.0
    assert profile.seconds("training", model="m", batch=3) == 0.0
    assert profile.seconds("compression", model="x", strategy="top-k", k=3) == 0.0
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
    curve = Points("k", *map(tuple, map(sorted, zip(*rows, strict=True))))
    low, high = sorted((x, y))
    assert curve.at({"k": low}) <= curve.at({"k": high}) * (1 + 1e-12)


def test_next_to_a_zero_row_it_is_linear():
    curve = Points("k", (10.0, 20.0), (0.0, 1.0))
    assert curve.at({"k": 15}) == 0.5
    assert curve.at({"k": 5}) == 0.0
    assert Points("k", (10.0, 20.0), (1.0, 0.0)).at({"k": 15}) == 0.5


def test_profiles_are_found_by_name_beside_a_broken_one(tmp_path):
    (tmp_path / "calibration").mkdir()
    write(tmp_path / "calibration", "{kind: table, training: {m: 1 s}}", "mine.yaml")
    write(tmp_path, "kind: table\ntraining: {? [1] : 1 s}", "broken.yaml")
    folders = profile_folders(tmp_path)
    assert {"broken", "mine"} <= set(profile_names(folders))
    assert load_profile("mine", folders).seconds("training", model="m", batch=1) == 1.0
    with pytest.raises(InputError, match="did you mean 'mine'"):
        load_profile("mien", folders)


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
    seconds = profile.seconds("training", model="m", batch=32)
    assert seconds == pytest.approx(1e-3 + 32 * 2e-4)
    assert profile.warnings == []
    profile.seconds("training", model="m", batch=128)
    beyond = "samples = 128 follows the law a + b·samples beyond it"
    assert beyond in profile.warnings[0]
    asked = {"model": "m", "strategy": "top-k", "k": 10}
    with pytest.raises(InputError, match="the size of model m"):
        profile.seconds("compression", **asked)
    profile.models["m"] = ModelWork(parameters=1024, forward_flops=1, train_flops=3)
    assert math.isclose(profile.seconds("compression", **asked), 10 * 10 * 1e-9)


def test_loading_a_profile_imports_neither_torch_nor_scipy_nor_pandas():
    code = (
        "import sys; from simfed.device import load_profile; "
        "load_profile('rtx3090-ryzen4800h');print([m for m in ('torch', 'scipy', "
        "'pandas', 'matplotlib') if m in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code]) == b"[]\n"


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
    tmp_path, strategy, seconds
):
    call = {"model": "net", "strategy": strategy, "k": 100}
    compression_s = load_profile(write(tmp_path, CODECS)).seconds("compression", **call)
    assert compression_s == pytest.approx(seconds, rel=1e-12)


def test_a_time_of_any_strategy_serves_a_chain_once(tmp_path):
    text = "{kind: table, compression: {net: {any: {100: 1 ms}, top-k: {100: 5 ms}}}}"
    call = {"model": "net", "strategy": "top-k+fp16", "k": 100}
    assert load_profile(write(tmp_path, text)).seconds("compression", **call) == 1e-3
