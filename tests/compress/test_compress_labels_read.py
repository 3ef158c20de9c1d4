"""A choice is text where YAML, tables and commands begin.

One module reads that text.
"""

import re
from pathlib import Path

import pytest

import simfed
from simfed.policy import Choice

ROOT = Path(simfed.__file__).parent
READERS = {
    "compress/choice.py",
    "compress/codec.py",
    "compress/layers.py",
    "compress/slices.py",
    "compress/labels.py",
}
SPLIT = re.compile(
    r"\.(?:(?:remove)?(?:prefix|suffix)|r?split|r?partition|startswith)"
    r"""\(\s*["'](@|\+|layers\()["']"""
)
MODEL_AT_SIZE = ("cli/calibrate.py", "@")
"""`lenet5@mnist`, which is no label."""


@pytest.fixture(scope="module")
def texts():
    """Module → its text, of those that are no readers of labels."""
    named = {path.relative_to(ROOT).as_posix(): path for path in ROOT.rglob("*.py")}
    return {name: named[name].read_text() for name in named if name not in READERS}


def test_only_choices_and_codecs_know_how_labels_are_written(texts):
    assert not [
        name for name, text in texts.items() if "compress.labels import" in text
    ]


def test_nobody_else_takes_a_label_apart(texts):
    apart = {(name, found) for name in texts for found in SPLIT.findall(texts[name])}
    assert apart <= {MODEL_AT_SIZE}


def test_what_others_ask_of_a_label_a_choice_answers():
    choice = Choice.of("top-k+qsgd(4,bucket=64)@1%")
    assert (choice.strategy, str(choice.level)) == ("top-k+qsgd(4,bucket=64)", "1%")
    assert choice.links == ("top-k", "qsgd(4,bucket=64)")
    assert choice.bare == "top-k+qsgd"
    assert choice.names[:2] == ("top-k", "qsgd")
