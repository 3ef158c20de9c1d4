"""Columns of numbers from CSV and Parquet, and a sentence for each way in which they
are none.
"""

import pytest

from simfed import InputError
from simfed.ground import read_columns
from simfed.ground.tables import read_records


def test_comments_spaces_and_a_byte_order_mark_are_no_trouble(tmp_path):
    (tmp_path / "t.csv").write_text(
        "\ufeff# measured in May\na, b\n1, 2\n# later\n3, 4\n"
    )
    assert read_columns(tmp_path / "t.csv", ["b"])["b"].tolist() == [2.0, 4.0]


def test_records_have_their_lines_and_empty_texts_for_what_lacks():
    names, records = read_records("a,b,,\n1\n\n2,3,,\n", "t.csv")
    assert names == ["a", "b", "", ""]
    read = [(line, row["a"], row["b"]) for line, row in records]
    assert read == [(2, "1", ""), (4, "2", "3")]


def test_files_that_are_none(tmp_path):
    (tmp_path / "t.parquet").write_text("no parquet at all")
    for name, sentence in (
        ("none.csv", "no such file"),
        (".", "this is a folder"),
        ("t.parquet", "a whole Parquet file"),
    ):
        with pytest.raises(InputError, match=sentence):
            read_columns(tmp_path / name, ["b"])


def test_a_table_that_is_too_large_or_has_no_end_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "large.csv"
    path.write_text("a\n1\n")
    monkeypatch.setattr("simfed.ground.csv_files.MOST_TABLE_BYTES", 3)
    for file, sentence in (
        (path, "large.csv: got '4 bytes', expected a file of at most 3 bytes"),
        ("/dev/zero", "/dev/zero: this is a device or a pipe, expected a file"),
    ):
        with pytest.raises(InputError, match=sentence):
            read_columns(file, ("a",))
