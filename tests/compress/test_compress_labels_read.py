"""A choice is text where YAML, tables and commands begin; one module reads that text."""

import ast
from pathlib import Path

import pytest

import simfed
from simfed.compress.choice import Choice

ROOT = Path(simfed.__file__).parent
READERS = {
    "compress/choice.py",
    "compress/codec.py",
    "compress/layers.py",
    "compress/slices.py",
    "compress/labels.py",
}
SPLITS = {
    "removeprefix",
    "removesuffix",
    "split",
    "rsplit",
    "partition",
    "rpartition",
    "startswith",
}
OF_LABELS = {"@", "+", "layers("}
MODEL_AT_SIZE = ("cli/calibrate.py", "@")
"""`lenet5@mnist`, which is no label."""


@pytest.fixture(scope="module")
def nodes():
    """(module, node) of every import from somewhere and every call in simfed."""
    return [
        (path.relative_to(ROOT).as_posix(), node)
        for path in sorted(ROOT.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, (ast.ImportFrom, ast.Call))
    ]


def test_only_choices_and_codecs_know_how_labels_are_written(nodes):
    importers = {
        name
        for name, node in nodes
        if isinstance(node, ast.ImportFrom) and node.module == "simfed.compress.labels"
    }
    assert importers <= READERS


def test_nobody_else_takes_a_label_apart(nodes):
    apart = {
        (name, text)
        for name, node in nodes
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in SPLITS
        for text in [getattr(argument, "value", None) for argument in node.args[:1]]
        if text in OF_LABELS and name not in READERS
    }
    assert apart <= {MODEL_AT_SIZE}


def test_what_others_ask_of_a_label_a_choice_answers():
    choice = Choice.of("top-k+qsgd(4,bucket=64)@1%")
    assert (choice.strategy, str(choice.level)) == ("top-k+qsgd(4,bucket=64)", "1%")
    assert choice.links == ("top-k", "qsgd(4,bucket=64)")
    assert choice.bare == "top-k+qsgd"
    assert choice.names[:2] == ("top-k", "qsgd")
