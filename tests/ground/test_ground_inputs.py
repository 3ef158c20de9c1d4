"""The one way to open what others name.

What it refuses of each kind stands in tests/fuzz.
"""

import gzip
import os

import pyarrow as pa
import pytest
from pyarrow import parquet

from simfed import InputError
from simfed.ground import read_bytes, read_columns, read_json
from simfed.ground.inputs import read_text
from simfed.ground.tables import open_parquet


def test_a_file_is_read_up_to_a_bound(tmp_path):
    (tmp_path / "a").write_text("four")
    assert read_bytes(tmp_path / "a", 4) == b"four"
    with pytest.raises(
        InputError, match="a: got '4 bytes', expected a file of at most 3 bytes"
    ):
        read_bytes(tmp_path / "a", 3)
    with pytest.raises(InputError, match="null byte"):
        read_text("a\0b")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"name: x\nrounds: \xff", "line 2: cannot be read: not UTF-8 text, byte 0xFF"),
        (b"\xe9", "line 1: cannot be read: not UTF-8 text, byte 0xE9"),
        (b"\xff\xfen\0", "line 1: cannot be read: UTF-16, not UTF-8 text"),
    ],
)
def test_text_of_another_encoding_is_named(tmp_path, content, sentence):
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(InputError, match=f"a: {sentence}"):
        read_text(tmp_path / "a")


def test_a_byte_order_mark_and_line_ends_of_other_systems_are_no_text(tmp_path):
    (tmp_path / "a").write_bytes(b"\xef\xbb\xbfa\r\nb\rc\n")
    assert read_text(tmp_path / "a") == "a\nb\nc\n"


@pytest.mark.parametrize("text", ["{", "[" * 100_000, "", "9" * 10_000])
def test_broken_json_is_one_sentence(tmp_path, text):
    (tmp_path / "a.json").write_text(text)
    sentence = r"a\.json: cannot be read: .* expected a whole JSON file"
    with pytest.raises(InputError, match=sentence):
        read_json(tmp_path / "a.json")


def test_a_table_of_alike_rows_is_refused_before_it_is_unpacked(tmp_path):
    path = tmp_path / "t.parquet"
    parquet.write_table(pa.table({"a": pa.nulls(1_000_000, pa.float64())}), path)
    assert os.path.getsize(path) < 10_000
    sentence = r"t\.parquet: got '4,000,000 bytes', expected a table that"
    with pytest.raises(InputError, match=sentence), open_parquet(path, 1_000_000):
        pass


def test_a_compressed_table_is_not_unpacked_by_its_name(tmp_path):
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(b"a\n1\n"))
    with pytest.raises(InputError, match=r"t\.csv\.gz"):
        read_columns(tmp_path / "t.csv.gz", ["a"])
