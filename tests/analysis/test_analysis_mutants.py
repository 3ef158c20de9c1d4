"""Mutants: each change is one, drawn by the seed, and told by the tests of its room alone."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

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
    for place, change in mutants.changes(ast.parse(source)):
        tree = ast.parse(source)
        yield ast.unparse(mutants.put(tree, *mutants.replacement(tree, place, change)))


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


def test_all_mutants_of_a_source_lie_behind_switches_in_one_text():
    texts = list(all_mutants(SOURCE))
    switches = {number: str(number) for number in range(len(texts))}
    switched, outside = mutants.with_switches(SOURCE, "m.py", switches)
    assert [ast.unparse(Chosen(on).visit(ast.parse(switched))) for on in switches.values()] == texts
    assert ast.unparse(Chosen("").visit(ast.parse(switched))) == ast.unparse(ast.parse(SOURCE))
    assert all("def f(x: int=2)" not in texts[int(on)] for on in outside)
    assert len(outside) == 2  # of the default


class Chosen(ast.NodeTransformer):
    """Takes the switches out, with one of them on."""

    def __init__(self, on):
        self.on = on

    def visit_Expr(self, node):
        return None if self.switch(node.value) else self.generic_visit(node)

    def visit_If(self, node):
        self.generic_visit(node)
        switch = self.switch(node.test)
        return (node.body if switch == self.on else node.orelse) if switch else node

    visit_IfExp = visit_If

    def switch(self, node):
        call = re.fullmatch(r"__import__\('mutant_switch'\).is_on\('(.+)'\)", ast.unparse(node))
        return call and call[1]


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """Two rooms; one function is forgotten, and a number is looked at in a process alone."""
    files = {
        "simfed/net/flows.py": "def used(x):\n    while x > 0:\n        x -= 1\n    return x\n\n\n"
        "def forgotten(x):\n    return not x\n\n\ndef walked(x):\n    return x is None\n",
        "simfed/sim/clock.py": "LATE = 3\n\n\ndef late():\n    return LATE\n",
        "tests/net/test_flows.py": "from simfed.net.flows import used, walked\n\n\n"
        "def test_used():\n    assert used(1) == 0\n\n\n"
        "def test_walked():\n    walked(1)\n",
        "tests/sim/test_clock.py": "import subprocess\nimport sys\n\n\ndef test_late():\n"
        "    code = 'from simfed.sim.clock import late; assert late() < 4'\n"
        "    subprocess.run([sys.executable, '-c', code], check=True)\n",
        "simfed/__init__.py": "",
        "simfed/net/__init__.py": "",
        "simfed/sim/__init__.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    for command in (["init", "-q"], ["add", "."]):
        subprocess.run(["git", "-C", tmp_path, *command], check=True)
    return tmp_path


def test_mutants_are_drawn_once_each_and_by_the_seed(repository):
    drawn = mutants.draw(repository, 100, 0)
    assert len(set(drawn)) == len(drawn) == 11
    assert mutants.draw(repository, 4, 1) == mutants.draw(repository, 4, 1)
    assert {mutant.room for mutant in drawn} == {"net", "sim"}
    (one, other) = mutants.draw(repository, 9, 0, "sim")
    assert {one.after, other.after} == {"LATE = 4", "LATE = 2"}
    assert (one.path, one.line, one.before) == ("simfed/sim/clock.py", 1, "LATE = 3")


def test_mutants_die_by_tests_that_come_to_them(repository):
    """Those that have a row are not tried again; one that never ends is killed by its time."""
    out, flows = repository / "rows.csv", "tests/net/test_flows.py::test_used"
    out.write_text("net,simfed/net/flows.py:3,x -= 1,x -= 2,died,an earlier call\n")
    code = (
        f"import sys; sys.path.insert(0, {str(Path(mutants.__file__).parent)!r})\n"
        f"import mutants, pathlib; mutants.ROOT = pathlib.Path({str(repository)!r})\n"
        f"mutants.SLACK_S = 1; mutants.main(['--tests', 'tests', '--out', {str(out)!r}])"
    )
    printed = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout
    rows = {(row[2], row[3]): tuple(row[4:]) for row in mutants.read_rows(out)}
    assert rows == {
        ("while x > 0:", "while not x > 0:"): ("died", flows),
        ("while x > 0:", "while x >= 0:"): ("died", flows),
        ("while x > 0:", "while x > 1:"): ("died", flows),
        ("while x > 0:", "while x > -1:"): ("died", flows),
        ("x -= 1", "x += 1"): ("timed out", flows),
        ("x -= 1", "x -= 0"): ("timed out", flows),
        ("x -= 1", "x -= 2"): ("died", "an earlier call"),
        ("return not x", "return x"): ("survived", "0 of 0 tests"),
        ("return x is None", "return x is not None"): ("survived", "2 of 2 tests"),
        ("LATE = 3", "LATE = 4"): ("died", "tests/sim/test_clock.py::test_late"),
        ("LATE = 3", "LATE = 2"): ("survived", "1 of 1 tests"),
    }
    assert b"all        11     6          2    73%" in printed
