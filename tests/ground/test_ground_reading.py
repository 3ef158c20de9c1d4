"""Text that people write, read or refused in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from simfed import InputError
from simfed.ground import parse_yaml, reading


def test_numbers_are_numbers_as_people_write_them():
    assert parse_yaml("[1e5, 1.5E-3, '1e5', .5, 1]", where="a") == [
        1e5,
        1.5e-3,
        "1e5",
        0.5,
        1,
    ]


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


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("\n? {a: 1}\n: 2", r"^f.yaml: line 2: not valid YAML: a key must be text"),
        ("\na: !!set {x, y}", r"line 2: not valid YAML: set is no kind of value here"),
        (
            "a: 1\nb\x00: 2",
            (
                r"^f.yaml: line 2: not valid YAML: a character .* allow, "
                r"U\+0000"
            ),
        ),
        ("a: \ud800", "U\\+D800"),
        (3000 * "[", r"^f.yaml: not valid YAML: nested too deeply"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(text, sentence):
    with pytest.raises(InputError, match=sentence):
        parse_yaml(text, where="f.yaml")


def test_a_clock_time_and_a_number_with_a_leading_zero_are_text_in_quotes():
    text = "['22:00', '010', 0, 0.5, 0x1F, 1_000, '2026-01-01']"
    assert parse_yaml(text, where="a") == [
        "22:00",
        "010",
        0,
        0.5,
        31,
        1000,
        "2026-01-01",
    ]


def bomb(first, more):
    """Nine names, each of which stands ten times for the one before."""
    lines = [f"a0: &a0 {first}"]
    lines += [f"a{i}: &a{i} {more(f'*a{i - 1}')}" for i in range(1, 10)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    "text",
    [
        bomb("[x, y]", lambda name: "[" + ", ".join([name] * 10) + "]"),
        bomb(
            "{x: 1}",
            lambda name: "{" + ", ".join(f"k{j}: {name}" for j in range(10)) + "}",
        ),
        bomb("{x: 1}", lambda name: "{<<: [" + ", ".join([name] * 10) + "]}"),
    ],
)
def test_aliases_that_multiply_are_refused_before_they_do(text):
    with pytest.raises(
        InputError, match="aliases that multiply to more than 1,000,000 values"
    ):
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


@pytest.mark.parametrize(
    "text", ['name: "a\\e[2J"', '"\\x07": 1', 'name: "\\x9b31m"', '{a: "\\b"}']
)
def test_text_with_control_characters_is_refused(text):
    with pytest.raises(
        InputError,
        match=r"a: line 1: not valid YAML: .*character "
        r"U\+00",
    ):
        parse_yaml(text, where="a")
