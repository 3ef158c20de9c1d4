"""Columns of tables: times, inverse speeds, factors, offsets and chosen rows."""

import numpy as np
import pandas as pd
import pytest
import worlds

from simfed.experiment import Parts
from simfed.ground import read_columns
from simfed.ground.csv_files import CsvTable
from simfed.ground.tables import Condition

# As FedScale's capacities of devices: milliseconds per sample, kbit/s.
FEDSCALE = """\
,computation,communication
0,30.0,5000
1,60.5,800
2,12.0,20000
"""
# As the ranking of AI Benchmark: one row a device, milliseconds per picture.
AI_BENCHMARK = """\
Device,SoC,Year,"MobileNet-V3, FP16, ms",AI Score
Alpha 5,Snapdragon 888,2021,8,160.5
Beta,Kirin 970,2017,64,21.0
Gamma,Exynos 2100,2021,10,140.0
Delta,Helio G35,2020,120,6.1
"""


@pytest.fixture
def table(tmp_path):
    """Return a function that writes a table as CSV or Parquet."""

    def write(text, name="t.csv"):
        path = tmp_path / name
        path.write_text(text)
        if name.endswith(".parquet"):
            pd.read_csv(path).to_parquet(path)
        return str(path)

    return write


def parts_of(count=3, **keys):
    """Parts of `tiny` with keys of its group."""
    changes = {f"clients[0].{key}": value for key, value in keys.items()}
    return Parts(worlds.world("tiny", {"clients[0].count": count, **changes}))


def drawn(field, spec, count=3, **keys):
    return parts_of(count, **{field: spec}, **keys).fleet.drawn(0, field).tolist()


def in_order(path, **more):
    return {"table": path, "rows": "in-order", **more}


def begun(run):
    """Participations of the first round."""
    return run.participations.set_index(["round", "client"]).loc[1]


def test_fedscale_times_and_links_are_those_of_the_client_row(table):
    devices = in_order(table(FEDSCALE))
    link = {"column": "communication", "unit": "kbps"}
    training = {"column": "computation", "unit": "ms/sample"}
    device = {"training": {**training, "factor": 3}, "compression": "2 ms"}
    even = {"dataset.partition.kind": "iid"}
    keys = {"devices": devices, "link.up": link, "device": device, "count": 4}
    group = {f"clients[0].{key}": value for key, value in keys.items()}
    scenario = worlds.world("tiny", {**even, **group})
    rows = begun(worlds.play(scenario))
    steps = np.ceil(10_000 / 4 / 32)
    per_step = 32 * 1e-3 * np.array([30, 60.5, 12, 30])
    assert rows.training_s.to_numpy() == pytest.approx(steps * 3 * per_step, rel=1e-12)
    assert rows.compression_s.tolist() == [0.002] * 4
    rates = np.array([5000, 800, 20_000, 5000]) * 125
    assert rows.uplink_s.to_numpy() == pytest.approx(rows.uplink_bytes / rates)
    timed = begun(worlds.play(scenario, time_only=True))
    assert timed.training_s.equals(rows.training_s)
    # local time holds as many whole steps as the row says: 4, 2, 10 and 4
    keys = {"device.training": training, "local_time": "4 s"}
    group |= {f"clients[0].{key}": value for key, value in keys.items()}
    rows = begun(worlds.play(worlds.world("tiny", {**even, **group}), time_only=True))
    cut_s = np.floor(4 / per_step) * per_step
    assert rows.training_s.to_numpy() == pytest.approx(cut_s)


@pytest.mark.parametrize(
    ("unit", "of_one_s"),
    [("ms/step", 4e-3), ("ms", 4e-3), ("s/epoch", 1.0), ("h/epoch", 3600.0)],
)
def test_times_are_of_a_step_or_an_epoch(table, unit, of_one_s):
    """The first client owns 100 samples and takes four steps, the second 33 and two."""
    keys = {
        "clients[0].devices": in_order(table("t,n\n1,100\n2,33\n")),
        "clients[0].device.training": {"column": "t", "unit": unit},
        "dataset.partition": {"sizes": {"column": "n"}},
    }
    scenario = worlds.world("tiny", keys)
    rows = begun(worlds.play(scenario, time_only=True))
    last = 2 * of_one_s if "epoch" in unit else of_one_s
    assert rows.training_s.tolist() == pytest.approx([of_one_s, last])
    assert Parts(scenario).samples_of(1) == 33


def test_ai_benchmark_gives_inverse_speeds_and_rows_by_year(table):
    path = table(AI_BENCHMARK)
    column = {"column": "MobileNet-V3, FP16, ms", "inverse": True, "factor": 16}
    devices = in_order(path, where={"Year": 2021})
    assert drawn("device.speed", column, devices=devices) == [2.0, 1.6, 2.0]
    score = {"column": "AI Score", "factor": 0.01}
    where = {"SoC": ["Kirin 970", "Helio G35"], "Year": ">= 2018"}
    devices = in_order(path, where=where)
    assert drawn("device.speed", score, devices=devices) == [0.061] * 3


def test_an_offset_comes_after_the_factor_in_the_unit_of_the_column(table):
    path = table("rtt\n10\n40\n")
    latency = {"table": path, "column": "rtt", "unit": "ms", "factor": 0.5, "offset": 2}
    values = sorted(set(drawn("link.latency", latency, count=20)))
    assert values == pytest.approx([0.007, 0.022])


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
@pytest.mark.parametrize(
    ("where", "kept"),
    [
        ({"tech": "LTE"}, [1, 4]),
        ({"tech": ["LTE", "5G"]}, [1, 2, 4]),
        ({"year": 2019}, [1, 3]),
        ({"year": "2019"}, [1, 3]),
        ({"year": ">= 2020"}, [2, 4]),
        ({"year": "≤2019"}, [1, 3]),
        ({"year": [2019, 2021]}, [1, 3, 4]),
        ({"year": "<= 2020", "tech": "LTE"}, [1]),
        ({"rate": ">= -0.5", "tech": ["LTE", "3G"]}, [1, 3]),
        ({"a": "<=2"}, [1, 2]),
    ],
)
def test_rows_are_chosen_by_what_other_columns_hold(table, name, where, kept):
    text = (
        "a,tech,year,rate\n1,LTE,2019,-0.5\n2,5G,2020,3\n3,3G,2019,0\n4,LTE,2021,-1\n"
    )
    column = read_columns(table(text, name), ["a"], where)["a"]
    assert (column.tolist(), column.dtype) == (kept, np.float64)


def test_what_is_read_fast_is_what_is_read_cell_by_cell(table, monkeypatch):
    rng = np.random.default_rng(0)
    rows = [f"{x!r},{n},w{n % 3}" for n, x in enumerate(rng.normal(size=2000).tolist())]
    path = table("x,n,w\n" + "\n".join(rows) + "\n")

    def read():
        found = read_columns(path, ["x", "n"], {"w": ["w0", "w2"], "n": "<= 1500"})
        return [column.tolist() for column in (found["x"], found["n"], found.rows)]

    fast = read()
    monkeypatch.setattr(CsvTable, "_parse", lambda *_: None)
    assert read() == fast


def test_numbers_are_read_without_a_look_at_each_cell(table, monkeypatch):
    path = table("# a comment\nx,y\n" + "1,2\n# a pause\n" * 1000)
    monkeypatch.setattr(CsvTable, "_parse_slowly", None)
    columns = read_columns(path, ["y"], {"y": ">= 2", "x": "1"})
    assert len(columns["y"]) == 1000


def test_a_condition_compares_numbers_as_numbers_and_texts_as_texts():
    assert Condition("007").holds("007")
    assert not Condition("7").holds("007")
    assert Condition(7).holds("007")
    assert not Condition(">= 1").holds("many")
    assert not Condition("<= 1").holds("nan")
