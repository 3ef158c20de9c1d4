"""The page about the run directory says what the schema says."""

from pathlib import Path

import pytest

from simfed.record import TABLES, describe_table

PAGE = (Path(__file__).parents[2] / "docs" / "run-directory.md").read_text(
    encoding="utf-8"
)


@pytest.mark.parametrize("table", TABLES)
def test_every_column_is_on_the_page_with_its_type_and_meaning_in_order(table):
    section = PAGE.split(f"### `{table}.parquet`")[1].split("\n### ")[0]
    assert describe_table(table) in section


def test_every_key_of_a_summary_is_on_the_page():
    from simfed.record import Recorder, summarise

    section = PAGE.split("## summary.json")[1].split("\n## ")[0]
    for key in summarise(Recorder().table, {}):
        assert f"`{key}`" in section
