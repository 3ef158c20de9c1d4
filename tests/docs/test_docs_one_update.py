"""docs/one-update.md names what a round calls, where it is, and in which order."""

import ast
import re
import sys
from pathlib import Path

import worlds

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "one-update.md").read_text(encoding="utf-8")
CALLED = re.findall(r"^\| `([\w.]+)` \| `([\w/.]+)` \|", PAGE, re.MULTILINE)
NAMED = [*CALLED, *re.findall(r"`(\w+)`\s+\(`(simfed/[\w/.]+)`\)", PAGE)]


def find_line(name, file):
    """The first line of a class or function, by its name within the file."""
    body = ast.parse((ROOT / file).read_text(encoding="utf-8")).body
    for part in name.split("."):
        found = next(node for node in body if getattr(node, "name", None) == part)
        body = found.body
    return min(node.lineno for node in (found, *found.decorator_list))


def test_one_update_names_what_is_there():
    assert len(NAMED) > len(CALLED) > 25
    for name, file in NAMED:
        assert find_line(name, file), (name, file)


def test_one_update_is_in_the_order_of_a_round(tmp_path):
    places = [(str(ROOT / file), find_line(name, file)) for name, file in CALLED]
    calls = []

    def note(frame, event, _):
        code = frame.f_code
        if event == "call" and (code.co_filename, code.co_firstlineno) in places:
            calls.append((code.co_filename, code.co_firstlineno))

    scenario = worlds.world("tiny", {"rounds": 1})
    worlds.play(scenario)  # imports are slow under a profiler
    sys.setprofile(note)
    try:
        worlds.play(scenario, tmp_path / "run")
    finally:
        sys.setprofile(None)
    later = iter(calls)
    for named, place in zip(CALLED, places, strict=True):
        assert place in calls, named
        assert place in later, named
