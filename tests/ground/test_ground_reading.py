"""Text that people write, read or refused in one sentence."""

from pathlib import Path

import pytest

from simfed import InputError
from simfed.ground import parse_yaml, reading


def test_numbers_are_numbers_as_people_write_them():
    text = "1e5, 1.5E-3, '1e5', .5, 1, '22:00', '010', 0, 0x1F, 1_000, '2026-01-01'"
    numbers = [1e5, 1.5e-3, "1e5", 0.5, 1, "22:00", "010", 0, 31, 1000, "2026-01-01"]
    assert parse_yaml(f"[{text}]", where="a") == numbers


def test_what_is_written_stands_above_what_is_merged():
    text = "base: &base {k: 1, l: 2}\nother: {<<: *base, k: 3}"
    assert parse_yaml(text, where="a")["other"] == {"k": 3, "l": 2}
    with pytest.raises(InputError, match="the key 'k' stands twice"):
        parse_yaml("base: &base {l: 2}\nother: {k: 1, <<: *base, k: 3}", where="a")


def test_libyaml_reads_what_ships_as_pyyaml_does(monkeypatch):
    root = Path(__file__).resolve().parents[2]
    texts = [path.read_text() for path in (root / "scenarios").rglob("*.yaml")]
    texts += [path.read_text() for path in (root / "calibration").rglob("*.yaml")]
    assert len(texts) > 50
    fast = [repr(parse_yaml(text, where="a")) for text in texts]
    monkeypatch.setattr("yaml.__with_libyaml__", False)
    assert fast == [repr(parse_yaml(text, where="a")) for text in texts]


@pytest.mark.parametrize(
    "text", ["a: 1,\tb", "a: [1\t]", "a: 1 \t# b", "\ufeffa: 1", "- a\n\ufeff"]
)
def test_what_libyaml_alone_reads_is_not_read(monkeypatch, text):
    def outcome():
        try:
            return repr(parse_yaml(text, where="a"))
        except InputError as error:
            return str(error)

    before = outcome()
    monkeypatch.setattr("yaml.__with_libyaml__", False)
    assert before == outcome()


@pytest.mark.parametrize("line", ["- ", "a:\n ", '- [ "]",\n', "{a: # }\n"])
def test_what_is_nested_as_deep_as_no_stack_goes_is_refused(line):
    with pytest.raises(InputError):
        parse_yaml(30_000 * line, where="a")


TEN = ", ".join(["NAME"] * 10)


@pytest.mark.parametrize(
    ("first", "more"),
    [
        ("[x, y]", f"[{TEN}]"),
        ("{x: 1}", "{" + ", ".join(f"k{i}: NAME" for i in range(10)) + "}"),
        ("{x: 1}", "{<<: [" + TEN + "]}"),
    ],
)
def test_aliases_that_multiply_are_refused_before_they_do(first, more):
    """Nine names, each of which stands ten times for the one before."""
    text = f"a0: &a0 {first}\n"
    for i in range(1, 10):
        text += f"a{i}: &a{i} {more}\n".replace("NAME", f"*a{i - 1}")
    refused = "aliases that multiply to more than 1,000,000 values"
    with pytest.raises(InputError, match=refused):
        parse_yaml(text, where="f.yaml")


def test_a_file_of_a_million_keys_is_refused_before_it_is_parsed():
    text = "\n".join(f"k{i}: 1" for i in range(1_000_000))
    with pytest.raises(
        InputError, match="a: got '999,999 of them', expected at most 250,000 lin"
    ):
        parse_yaml(text, where="a")


def test_a_value_that_no_scenario_can_mean_is_looked_for_once(monkeypatch):
    def never(text):
        raise AssertionError("parsed a second time")

    if reading._can_be_parsed_fast("k: 1"):
        monkeypatch.setattr(reading, "_Loader", never)
    with pytest.raises(InputError, match="the key 'k' stands twice"):
        parse_yaml("k: 1\nk: 2", where="a")
