"""Mutants: each change is one, drawn by the seed, and told by the tests of its room alone."""

from __future__ import annotations

import ast
import subprocess

import mutants
import pytest

SOURCE = '''
"""Text stays."""
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    n = 1
__all__ = ["f"]


def f(x: int = 2) -> bool:
    """Text stays."""
    if not x:
        raise ValueError("text stays")
    x += 1
    print(f"{x - 1}", "a" + "b")
    return 0 < x <= 3 and True
'''


def all_mutants(source):
    tree = ast.parse(source)
    for place, change in mutants.changes(tree):
        yield ast.unparse(mutants.mutate(tree, place, change))


def test_every_mutant_differs_from_the_source_and_from_all_others():
    texts = list(all_mutants(SOURCE))
    assert len({*texts, ast.unparse(ast.parse(SOURCE))}) == len(texts) + 1 == 18


@pytest.mark.parametrize(
    ("source", "changed"),
    [
        ("x < y", {"x <= y"}),
        ("x < y == z", {"x <= y == z", "x < y != z"}),
        ("n = a + 1", {"n = a - 1", "n = a + 2", "n = a + 0"}),
        ("n = 'a' + b", set()),
        ("n = -x", {"n = x"}),
        ("n = a if b else c", {"n = a if not b else c"}),
        ("n = a and b", {"n = a or b"}),
        ("n = True", {"n = False"}),
        ("f(x)", {"pass"}),
        ("n: 1 = x", set()),
        ("while x:\n    break", {"while not x:\n    break", "while x:\n    pass"}),
    ],
)
def test_what_a_statement_may_become(source, changed):
    expected = {"pass", *changed} if source.startswith("x <") else changed
    assert set(all_mutants(source)) == expected


@pytest.fixture
def repository(tmp_path):
    """Two rooms; the tests of `net` look at one function of two."""
    files = {
        "simfed/net/flows.py": "def used(x):\n    return x > 0\n\n\n"
        "def forgotten(x):\n    return not x\n",
        "simfed/sim/clock.py": "LATE = 3\n",
        "tests/net/test_flows.py": "from simfed.net.flows import used\n\n\n"
        "def test_used():\n    assert used(1)\n    assert not used(0)\n",
        "simfed/__init__.py": "",
        "simfed/net/__init__.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    for command in (["init", "-q"], ["add", "."]):
        subprocess.run(["git", "-C", tmp_path, *command], check=True)
    return tmp_path


def test_mutants_are_drawn_once_each_and_by_the_seed(repository):
    drawn = mutants.draw(repository, 100, 0)
    assert len(set(drawn)) == len(drawn) == 6
    assert mutants.draw(repository, 4, 1) == mutants.draw(repository, 4, 1)
    assert {mutant.room for mutant in drawn} == {"net", "sim"}
    (one, other) = mutants.draw(repository, 9, 0, "sim")
    assert {one.after, other.after} == {"LATE = 4", "LATE = 2"}
    assert (one.path, one.line, one.before) == ("simfed/sim/clock.py", 1, "LATE = 3")


def test_a_mutant_dies_by_a_test_that_fails_and_the_file_is_whole_again(
    repository, tmp_path_factory
):
    copy = mutants.Copy(repository, tmp_path_factory.mktemp("copy"), 60.0)
    by_line = {m.after: m for m in mutants.draw(repository, 100, 0, "net")}
    assert copy.try_mutant(by_line["return x >= 0"]) == "died"
    assert copy.try_mutant(by_line["return x"]) == "survived"
    assert copy.tests_for("simfed/net/flows.py") == [
        "simfed/net/flows.py",
        "tests/net/test_flows.py",
        "tests/net",
    ]
