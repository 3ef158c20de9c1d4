"""Columns of numbers from CSV and Parquet, and a sentence for each way in which they
are none.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from simfed import InputError
from simfed.ground import read_columns
from simfed.ground.tables import read_records


def test_csv_and_parquet_give_the_same_columns(tmp_path):
    frame = pd.DataFrame({"name": ["a", "b"], "up": [1.5, 2.0], "cores": [2, 4]})
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.to_parquet(tmp_path / "t.parquet")
    for file in ("t.csv", "t.parquet"):
        columns = read_columns(tmp_path / file, ["cores", "up"])
        assert columns["cores"].tolist() == [2.0, 4.0]
        assert columns["up"].dtype == np.float64


def test_comments_spaces_and_a_byte_order_mark_are_no_trouble(tmp_path):
    (tmp_path / "t.csv").write_text(
        "\ufeff# measured in May\na, b\n1, 2\n# later\n3, 4\n"
    )
    assert read_columns(tmp_path / "t.csv", ["b"])["b"].tolist() == [2.0, 4.0]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "a,seconds\nx,1,25\n",
            "t.csv: line 2: a row has more cells than the first, which has 2",
        ),
        ("a,b,a\n1,2,3\n", "t.csv: got 'a', expected each column once"),
    ],
)
def test_records_of_which_nobody_knows_what_a_cell_means_are_refused(text, sentence):
    with pytest.raises(InputError, match=sentence):
        read_records(text, "t.csv")


def test_records_have_their_lines_and_empty_texts_for_what_lacks():
    names, records = read_records("a,b,,\n1\n\n2,3,,\n", "t.csv")
    assert names == ["a", "b", "", ""]
    assert [(line, row["a"], row["b"]) for line, row in records] == [
        (2, "1", ""),
        (4, "2", "3"),
    ]


def test_files_that_are_none(tmp_path):
    (tmp_path / "t.parquet").write_text("no parquet at all")
    (tmp_path / "t.csv").write_bytes(b"b\n\xff\xfe\n")
    (tmp_path / "empty.csv").write_text("")
    for name, sentence in (
        ("none.csv", "no such file"),
        ("empty.csv", "a table in CSV with a header line"),
        (".", "this is a folder"),
        ("t.parquet", "a whole Parquet file"),
        ("t.csv", "not UTF-8 text, byte 0xFF"),
    ):
        with pytest.raises(InputError, match=sentence):
            read_columns(tmp_path / name, ["b"])


def test_a_table_that_is_too_large_or_has_no_end_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "large.csv"
    path.write_text("a\n1\n")
    monkeypatch.setattr("simfed.ground.csv_files.MOST_TABLE_BYTES", 3)
    with pytest.raises(
        InputError,
        match=r"large\.csv: got '4 bytes', expected a file of at most 3 "
        r"bytes",
    ):
        read_columns(path, ("a",))
    with pytest.raises(
        InputError, match="/dev/zero: this is a device or a pipe, expected a file"
    ):
        read_columns("/dev/zero", ("a",))
