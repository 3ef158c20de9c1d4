"""A printed number is played again by one command; rows say where they come from."""

import pandas as pd
import pytest
import replay
import yaml
from kept import PROVENANCE, KeptStudy, text_of
from worlds import TINY

CELLS = {
    "ANSWERS": ("device=Tesla V100,link=DSL,arm=8 bit, server momentum", 1),
    "TUNED": ("model=LeNet-5,fleet=DSL,device=Raspberry Pi 5,arm=dgc@1%", 203),
    "NOT-WAITING": ("skew=alpha 0.1,arm=buffered 4,spread=16", 3),
    "BALANCE": ("setting=Wi-Fi cell,list=bcrs 1%", 2),
    "RECORDED": ("codec=dense,server=wait for all,start=start 1", 0),
    "codecs": ("setting=slow devices, wide uplinks (0.01×, 50 Mbps),codec=top-k", 0),
    "cell": ("arm=cell, balance", 0),
    "top-k-map": ("speed=1,up=1 Mbps,policy=top-k", 0),
}
CHEAP = ("RECORDED",)
"""By the clock alone, in a second or two."""


def found(page):
    text, seed = CELLS[page]
    cell = replay.parse_cell(text, [*map(str, replay.rows_of(page))])
    return cell, seed


@pytest.mark.parametrize(
    "page",
    [pytest.param(p, marks=[] if p in CHEAP else pytest.mark.long) for p in CELLS],
)
def test_a_printed_number_comes_again(page, tmp_path):
    cell, seed = found(page)
    lines, from_ = replay.replay(page, cell, seed, tmp_path)
    assert lines == []
    assert set(from_) == set(PROVENANCE)


@pytest.mark.parametrize("page", CELLS)
def test_a_cell_names_one_run_by_the_columns_of_its_rows(page):
    cell, seed = found(page)
    study, run = replay.find(page, cell, seed)
    words = study.command(run, replay.Path("out"))
    assert words[:3] == ["simfed", "study", "run"]
    assert words[words.index("--only") + 1].endswith(f"seed={seed}")
    kept = replay.rows_of(page).query("seed == @seed")
    for column, text in cell.items():
        kept = kept[kept[column].map(text_of) == text]
    assert len(kept)


def test_a_run_of_the_source_is_found_by_its_setting():
    cell = {"policy": "top-k", "k": "500", "alpha": "0.5"}
    study, run = replay.find("RESULTS", cell, 4)
    assert study.file.name == "mnist-k.yaml"
    assert study.command(run, replay.Path("out"))[-1].endswith("seed=4")


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("Wi-Fi cell", "got 15 runs with seed 2, expected columns that name one run"),
        ("Moon", "got 0 runs with seed 2, expected a cell of the page"),
    ],
)
def test_a_cell_of_no_run_or_of_several_is_refused(setting, sentence):
    with pytest.raises(SystemExit, match=sentence):
        replay.find("BALANCE", {"setting": setting}, 2)


def test_a_column_that_no_row_has_is_refused():
    with pytest.raises(SystemExit, match="expected COLUMN=TEXT,… of setting, list"):
        replay.parse_cell("colour=red", ["setting", "list"])


def test_what_differs_is_said_by_column():
    kept = pd.DataFrame({"at_s": [1.0], "arm": ["a"], "address": ["old"]})
    assert replay.differences(kept, kept.assign(address="new")) == []
    assert replay.differences(kept, kept.assign(at_s=1.5)) == [
        "at_s: kept 1.0, played 1.5"
    ]
    assert replay.differences(kept, kept[:0]) == ["1 rows are kept and 0 were made"]


def test_rows_say_where_they_come_from(tmp_path):
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(TINY))
    file = tmp_path / "small.yaml"
    file.write_text(
        "{name: small, base: base.yaml, seeds: [0, 1],"
        " grid: {'clients[0].link.up': [1 Mbps, 2 Mbps]}}"
    )
    study = KeptStudy(
        file,
        {"up": "clients[0].link.up"},
        lambda run, curve: {"end_s": run.summary["simulated_s"]},
        time_only=True,
    )
    rows = study.play(tmp_path / "out", jobs=1)
    assert list(rows) == ["up", "seed", "end_s", *PROVENANCE]
    assert rows["address"].nunique() == len(rows) == 4
    assert rows[[*PROVENANCE]].map(len).gt(5).all().all()
    assert rows["versions"].str.contains("simfed ").all()
    assert rows["processor"].str.contains(", threads 1").all()
