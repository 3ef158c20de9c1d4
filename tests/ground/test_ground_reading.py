"""Text that people write, read or refused in one sentence."""

from __future__ import annotations

import pytest

from simfed.errors import InputError
from simfed.reading import parse_yaml, read_text


def test_a_byte_order_mark_is_no_text(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfk: 1")
    assert read_text(tmp_path / "a.txt") == "k: 1"


def test_numbers_are_numbers_as_people_write_them():
    assert parse_yaml("[1e5, 1.5E-3, '1e5', .5, 1]", where="a") == [1e5, 1.5e-3, "1e5", 0.5, 1]


def test_what_is_written_stands_above_what_is_merged():
    text = "base: &base {k: 1, l: 2}\nother: {<<: *base, k: 3}"
    assert parse_yaml(text, where="a")["other"] == {"k": 3, "l": 2}
    with pytest.raises(InputError, match="the key 'k' stands twice"):
        parse_yaml("base: &base {l: 2}\nother: {k: 1, <<: *base, k: 3}", where="a")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: [", r"^f.yaml: line 1: valid YAML"),
        ("\n? {a: 1}\n: 2", r"^f.yaml: line 2: valid YAML \(a key must be text\)"),
        ("d: 2026-13-45", r"^f.yaml: valid YAML \(month must be"),
        (3000 * "[", r"^f.yaml: valid YAML \(nested too deeply\)"),
        *[
            (f"a: !!{tag}", "not what its tag says|valid YAML")
            for tag in ("bool maybe", "int ''", "float ''", "timestamp foo", "map x", "python/name:os.x")
        ],
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_one_sentence(text, sentence):
    with pytest.raises(InputError, match=sentence):
        parse_yaml(text, where="f.yaml")


def test_files_that_are_none(tmp_path):
    with pytest.raises(InputError, match="none: a file that exists"):
        read_text(tmp_path / "none")
    with pytest.raises(InputError, match="a file, not a folder"):
        read_text(tmp_path)
    (tmp_path / "odd").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="a readable text file, got 'not UTF-8 text'"):
        read_text(tmp_path / "odd")
