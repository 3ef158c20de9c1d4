"""Mutants: do the tests notice when one thing in the library is wrong?

    python analysis/mutants.py --count 300 --out mutants.csv
    python analysis/mutants.py --count 20 --seed 1 --only net --tests tests/net

A mutant is the library with one small change: another comparison, operator or constant, a boundary
one further, a condition turned round, a statement removed. They are drawn, by a seed, from all
places where one is possible, and all are written, each behind a switch, into one copy of the
repository. There the tests run once with no switch on, which tells how long each takes and to
which switches it comes. Then a forked process per mutant turns its switch on and runs the tests
that come to it: those of its room first, then the rest of their files, whose shared set-up may.
A mutant *dies* where a test fails that passes, after the same tests, without it; it *timed out*
where a test took ten times the processor's seconds that it takes without it, and 20 more, or waited
twenty times as long as that; else it *survived*, at the latest after `--most` such seconds of
tests. A survivor is a test that is missing, or a change that makes no difference; which of the two,
only a reader can tell.

`--out` takes a row for each mutant as it ends, and the first run of the tests is kept beside it:
the same command goes on after the last row. Tests of `tests/quality` read files and are left out.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import csv
import functools
import json
import math
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import pytest
from _pytest.runner import runtestprotocol

ROOT = Path(__file__).resolve().parents[1]
_Node = TypeVar("_Node", bound=ast.AST)
Outcome = Literal["died", "timed out", "survived"]
Place = tuple[tuple[str, int | None], ...]
"""The way from a module to a node: fields, with the index where the field is a list."""

_OTHER: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
_SWITCH = """import os

on, notes, noted = os.environ.get("MUTANT_ON"), os.environ.get("MUTANT_NOTES"), set()


def is_on(name):
    if notes:
        note = f"{name}\\t{os.environ.get('PYTEST_CURRENT_TEST', '')}\\n"
        if note not in noted:
            noted.add(note)
            with open(notes, "a", encoding="utf-8") as file:
                file.write(note)
    return name == on
"""
"""The copy's module `mutant_switch`; subprocesses of tests find their mutant in the environment."""
_PYTEST = ["-q", "-p", "no:cacheprovider", "--basetemp=../tests", "--ignore=tests/quality"]
SLACK_S = 20.0
"""What a test may take, besides ten times its processor's seconds."""
_MEMORY_BYTES = 12 << 30
"""Of a process that runs tests: a mutant may ask for memory without end."""


class Mutant(NamedTuple):
    """One change of one file."""

    path: str
    """Of the file, from the repository's root."""
    number: int
    """Of the change, among all of the file."""
    line: int
    before: str
    after: str
    """The first line that differs, as `ast.unparse` writes both."""

    @property
    def room(self) -> str:
        """The package, or module, of `simfed` that it lies in."""
        return Path(self.path).parts[1].removesuffix(".py")


# --- changes -----------------------------------------------------------------------------------


def changes(node: ast.AST, place: Place = ()) -> Iterator[tuple[Place, str]]:
    """(place, change) of all changes of a tree, in the order of the source.

    Left alone are texts, annotations, imports, decorators, patterns, and what type checkers alone
    read.
    """
    yield from ((place, change) for change in _changes_of(node))
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "bases"):
            continue
        for index, inner in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(inner, ast.AST) and not _is_left_alone(inner):
                yield from changes(inner, (*place, (field, index)))


def replacement(tree: ast.Module, place: Place, change: str) -> tuple[Place, ast.AST]:
    """The place where one of the `changes` puts another node, and that node."""
    node = copy.deepcopy(list(_walk(tree, place))[-1])
    kind, _, index = change.partition(" ")
    if isinstance(node, ast.Compare):
        node.ops[int(index)] = _OTHER[type(node.ops[int(index)])]()  # type: ignore[call-overload]
    elif isinstance(node, ast.BinOp | ast.AugAssign | ast.BoolOp):
        node.op = _OTHER[type(node.op)]()  # type: ignore[assignment]
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        node.value = not node.value
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        node.value += 1 if kind == "more" else -1
    elif isinstance(node, ast.If | ast.IfExp | ast.While):
        return (*place, ("test", None)), ast.UnaryOp(ast.Not(), node.test)
    elif isinstance(node, ast.UnaryOp):
        node = node.operand
    else:
        node = ast.Pass()
    return place, node


def put(tree: _Node, place: Place, node: ast.AST) -> _Node:
    """The same tree, with a node in place of another; never in place of the tree itself."""
    *_, holder, _ = _walk(tree, place)
    field, at = place[-1]
    if at is None:
        setattr(holder, field, node)
    else:
        getattr(holder, field)[at] = node
    return tree


def _changes_of(node: ast.AST) -> Sequence[str]:
    match node:
        case ast.Compare():
            return [f"compare {i}" for i in range(len(node.ops))]
        case ast.BinOp() | ast.AugAssign() | ast.BoolOp():
            return ["operator"] if type(node.op) in _OTHER and not _joins_text(node) else []
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            return ["drop"]
        case ast.Constant(value=bool()):
            return ["other"]
        case ast.Constant(value=int() | float()):
            return ["more", "less"]
        case ast.If() | ast.IfExp() | ast.While():
            return ["turn"]
        case ast.Expr(value=ast.Constant() | ast.Yield() | ast.YieldFrom() | ast.Await()):
            return []
        case ast.Expr() | ast.Raise() | ast.Continue() | ast.Break():
            return ["remove"]
    return []


def _joins_text(node: ast.AST) -> bool:
    sides = (node.left, node.right) if isinstance(node, ast.BinOp) else ()
    return any(
        isinstance(side, ast.JoinedStr)
        or (isinstance(side, ast.Constant) and isinstance(side.value, str | bytes))
        for side in sides
    )


def _is_left_alone(node: ast.AST) -> bool:
    if isinstance(node, ast.Import | ast.ImportFrom | ast.JoinedStr | ast.pattern):
        return True
    if isinstance(node, ast.If):
        return "TYPE_CHECKING" in ast.unparse(node.test)
    names = [ast.unparse(target) for target in getattr(node, "targets", ())]
    return "__all__" in names


def _walk(tree: ast.AST, place: Place) -> Iterator[ast.AST]:
    """The nodes on the way to a place, from the tree itself."""
    node = tree
    yield node
    for field, index in place:
        value = getattr(node, field)
        node = value if index is None else value[index]
        yield node


# --- drawing -----------------------------------------------------------------------------------


def draw(root: Path, count: int, seed: int, only: str | None = None) -> list[Mutant]:
    """`count` mutants of the Python files that git tracks below `simfed`, each place once.

    only: a room; of all rooms if omitted.
    """
    command = ["git", "-C", str(root), "ls-files", "simfed/*.py"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    sites = [
        (path, number)
        for path in listed
        if only in (None, Mutant(path, 0, 0, "", "").room)
        for number, _ in enumerate(_read(root, path)[1])
    ]
    chosen = random.Random(seed).sample(sites, min(count, len(sites)))
    return [_describe(root, path, number) for path, number in chosen]


@functools.cache
def _read(root: Path, path: str) -> tuple[ast.Module, list[tuple[Place, str]]]:
    tree = ast.parse((root / path).read_text(encoding="utf-8"))
    return tree, list(changes(tree))


def _describe(root: Path, path: str, number: int) -> Mutant:
    tree, places = _read(root, path)
    spot, other = replacement(tree, *places[number])
    ways = enumerate(_walk(tree, spot))
    depth, statement = [(i, node) for i, node in ways if isinstance(node, ast.stmt)][-1]
    if inner := spot[depth:]:
        other = put(copy.deepcopy(statement), inner, other)
    pairs = zip(ast.unparse(statement).splitlines(), ast.unparse(other).splitlines(), strict=False)
    before, after = next(pair for pair in pairs if pair[0] != pair[1])
    return Mutant(path, number, statement.lineno, before.strip(), after.strip())


# --- switching ---------------------------------------------------------------------------------


def write_copy(root: Path, folder: Path, mutants: Sequence[Mutant]) -> set[str]:
    """A copy of what git tracks, with all mutants; the switches of those outside of functions.

    A mutant's switch is its index.
    """
    command = ["git", "-C", str(root), "ls-files"]
    tracked = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    compiled = [str(path.relative_to(root)) for path in root.glob("simfed/native/*.so")]
    for name in (*tracked, *compiled):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes((root / name).read_bytes())
    (folder / "mutant_switch.py").write_text(_SWITCH, encoding="utf-8")
    switches: dict[str, dict[int, str]] = defaultdict(dict)
    for index, mutant in enumerate(mutants):
        switches[mutant.path][mutant.number] = str(index)
    all_outside = set()
    for path in switches:
        text, outside = with_switches((folder / path).read_text("utf-8"), path, switches[path])
        (folder / path).write_text(text, encoding="utf-8")
        all_outside |= outside
    return all_outside


def with_switches(source: str, path: str, switches: dict[int, str]) -> tuple[str, set[str]]:
    """A source with some of its changes behind switches, and which lie outside of functions.

    switches: a change's number among all of the source, and its switch. Where one lies outside of
    functions, each function calls the switch `path`, which notes that a test came to the file.
    """
    whole, tree, outside = ast.parse(source), ast.parse(source), set()
    places = list(changes(whole))
    for number in sorted(switches, key=lambda number: -len(places[number][0])):
        spot, other = replacement(whole, *places[number])
        node: Any = list(_walk(tree, spot))[-1]
        switch = _call(switches[number])
        if isinstance(other, ast.expr):
            put(tree, spot, ast.IfExp(switch, other, node))
        elif isinstance(other, ast.stmt):
            put(tree, spot, ast.If(switch, [other], [node]))
        if _is_outside_functions(whole, spot):
            outside.add(switches[number])
    for function in ast.walk(tree) if outside else ():
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            start = int(ast.get_docstring(function) is not None)
            function.body.insert(start, ast.Expr(_call(path)))
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n", outside


def _call(switch: str) -> ast.expr:
    return ast.parse(f"__import__('mutant_switch').is_on({switch!r})", mode="eval").body


def _is_outside_functions(tree: ast.Module, place: Place) -> bool:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
    steps = zip(_walk(tree, place), place, strict=False)
    return not any(isinstance(node, functions) and field == "body" for node, (field, _) in steps)


# --- trying ------------------------------------------------------------------------------------


class Played(NamedTuple):
    """What became of tests that ran until one failed."""

    outcome: Outcome
    last: str
    """The test that failed or took too long; none if they could not be collected."""


class Player:
    """A plugin of pytest that, instead of running the tests once, runs them for each mutant."""

    def __init__(
        self, mutants: Sequence[Mutant], outside: set[str], folder: Path, out: Path, most_s: float
    ) -> None:
        """outside: the switches of what is computed when a module is loaded. most_s: see `--most`.
        folder: where the processes note what they do."""
        self._mutants, self._outside, self._out, self._most_s = mutants, outside, out, most_s
        self._log, self._notes = folder / "log", folder / "notes"
        self._seconds: dict[str, float] = {}
        self._comers: dict[str, list[str]] = {}
        self._unsound: set[str] = set()

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Look once at all tests, then try each mutant that has no row yet."""
        if session.testsfailed:
            raise session.Interrupted("tests that cannot be collected")
        self._look(session.items)
        done = {tuple(row[1:4]) for row in read_rows(self._out)}
        for index, mutant in enumerate(self._mutants):
            row = [mutant.room, f"{mutant.path}:{mutant.line}", mutant.before, mutant.after]
            if tuple(row[1:]) in done:
                continue
            row += self._try(str(index), mutant, session.items)
            session.config.get_terminal_writer().line("  ".join(row), flush=True)
            with self._out.open("a", encoding="utf-8", newline="") as file:
                csv.writer(file).writerow(row)
        return True

    def _look(self, items: Sequence[pytest.Item]) -> None:
        """Run all tests with no mutant, or read what an earlier call learnt."""
        import mutant_switch

        learnt = self._out.with_suffix(".json")
        if not learnt.exists():
            played = self._play(items, "", stops=False)
            if played.outcome != "survived":
                raise RuntimeError(f"{played.last} ends the process, or takes too long")
            lines = [line.split("\t") for line in self._log.read_text("utf-8").splitlines()]
            comers = defaultdict(list)
            for name, at in {tuple(n.split("\t")) for n in self._notes.read_text().splitlines()}:
                comers[name].append(at.rpartition(" ")[0])
            facts = (
                {test: float(seconds) for test, _, seconds in lines},
                [test for test, ending, _ in lines if ending == "failed"],
                {name: sorted(set(tests)) for name, tests in sorted(comers.items())},
            )
            learnt.write_text(json.dumps(facts, indent=1), encoding="utf-8")
        mutant_switch.notes = os.environ["MUTANT_NOTES"] = ""
        self._seconds, unsound, self._comers = json.loads(learnt.read_text("utf-8"))
        self._unsound = set(unsound)

    def _try(self, name: str, mutant: Mutant, items: Sequence[pytest.Item]) -> tuple[str, str]:
        """A mutant's outcome, and the test that killed it or how many of how many tests ran."""
        comers = {*self._comers.get(name, ())}
        anew = name in self._outside or "" in comers
        if anew:
            comers.update(self._comers.get(mutant.path, ()))
        while True:
            tests = [item for item in items if item.nodeid not in self._unsound]
            tests = self._order(tests, mutant, comers)
            chosen = list(self._afford(tests))
            played = self._play(chosen, name, anew)
            if played.outcome == "survived":
                return "survived", f"{len(chosen)} of {len(tests)} tests"
            names = [item.nodeid for item in chosen]
            if played.last not in names:
                return played.outcome, "loading the tests"
            without = self._play(chosen[: names.index(played.last) + 1], "", anew)
            if without.outcome == "survived":
                return played.outcome, played.last
            self._unsound.add(without.last)
            self._play(chosen, "", anew, stops=False)  # those of its kind, all at once
            lines = [line.split("\t") for line in self._log.read_text("utf-8").splitlines()]
            self._unsound.update(test for test, *ending in lines if "failed" in ending)

    def _order(
        self, tests: Sequence[pytest.Item], mutant: Mutant, comers: set[str]
    ) -> list[pytest.Item]:
        """The tests that come to a mutant, then the rest of their files; short files first.

        If none comes there, and something is computed when the module is loaded, all of the room.
        """
        near = f"tests/{mutant.room}/"
        if comers and not any(test.nodeid in comers for test in tests):
            comers = {test.nodeid for test in tests if test.nodeid.startswith(near)}
        seconds: dict[Path, float] = defaultdict(float)
        for test in tests:
            if test.nodeid in comers:
                seconds[test.path] += self._seconds[test.nodeid]

        def rank(test: pytest.Item) -> tuple[bool, bool, float, Path]:
            far = not test.nodeid.startswith((near, mutant.path))
            return test.nodeid not in comers, far, seconds[test.path], test.path

        return sorted((test for test in tests if test.path in seconds), key=rank)

    def _afford(self, tests: Iterable[pytest.Item]) -> Iterator[pytest.Item]:
        left_s = self._most_s
        for test in tests:
            if left_s > 0:
                yield test
            left_s -= self._seconds[test.nodeid]

    def _play(
        self, tests: Sequence[pytest.Item], name: str, anew: bool = False, stops: bool = True
    ) -> Played:
        """Run tests in a process of their own, with a mutant on.

        anew: it loads everything itself. stops: when a test fails.
        """
        limits = {
            test.nodeid: SLACK_S + 10 * self._seconds.get(test.nodeid, 118.0) for test in tests
        }
        self._log.write_text("", encoding="utf-8")
        child = os.fork()
        if not child:
            try:
                os.setsid()
                resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
                os.environ["MUTANT_ON"] = name
                if anew:
                    self._log.with_name("limits").write_text(json.dumps(limits), encoding="utf-8")
                    play = [sys.executable, __file__, "--play", str(self._log.parent)]
                    os.execv(sys.executable, play)
                import mutant_switch

                mutant_switch.on = name
                os._exit(run(tests, limits, self._log, stops))
            finally:
                os._exit(1)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # what it left running
        last = (self._log.read_text(encoding="utf-8").splitlines() or [""])[-1].split("\t")[0]
        timed_out = code in (-signal.SIGALRM, -signal.SIGXCPU)
        return Played("timed out" if timed_out else "died" if code else "survived", last)


class Once:
    """A plugin of pytest that plays a mutant in a process that loaded everything with it."""

    def __init__(self, log: Path, limits: dict[str, float]) -> None:
        self._log, self._limits = log, limits

    def pytest_runtestloop(self, session: pytest.Session) -> None:
        """Run the tests and end."""
        os._exit(bool(session.testsfailed) or run(session.items, self._limits, self._log))


def run(
    tests: Sequence[pytest.Item], limits: dict[str, float], log: Path, stops: bool = True
) -> int:
    """Run tests, each to its limit in a processor's seconds; 1 where one fails.

    A line of `log` tells of each.
    """
    failed = False
    with log.open("a", encoding="utf-8") as file:
        for test, following in zip(tests, [*tests, None][1:], strict=True):
            limit_s, spent_s = math.ceil(limits[test.nodeid]), math.ceil(time.process_time())
            resource.setrlimit(resource.RLIMIT_CPU, (spent_s + limit_s, resource.RLIM_INFINITY))
            signal.alarm(20 * limit_s)
            print(test.nodeid, end="", file=file, flush=True)
            before_s = sum(os.times()[:4])  # its subprocesses' too
            failed = any(part.failed for part in runtestprotocol(test, False, following))
            ending = "failed" if failed else "passed"
            print(f"\t{ending}\t{sum(os.times()[:4]) - before_s:.2f}", file=file, flush=True)
            if failed and stops:
                return 1
    return 0


# --- telling -----------------------------------------------------------------------------------


def read_rows(out: Path) -> list[list[str]]:
    """Those of `--out`, none where there is no such file."""
    if not out.exists():
        return []
    with out.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def report(rows: Sequence[Sequence[str]]) -> str:
    """Drawn and dead mutants by room, and the survivors. rows: those of `--out`.

    The share of the dead, those that timed out among them, has its 95 % interval (Wilson's).

    >>> print(report([["net", "a.py:3", "x < y", "x <= y", "died", "tests/test_a.py::test_it"],
    ...               ["net", "a.py:9", "n + 1", "n - 1", "survived", "3 of 3 tests"]]))
    room  mutants  died  timed out  share
    net         2     1          0    50%   9%-91%
    all         2     1          0    50%   9%-91%
    survived a.py:9: n + 1 → n - 1 (3 of 3 tests)
    """
    rooms = [*sorted({row[0] for row in rows}), "all"]
    width = max(map(len, [*rooms, "room"]))
    lines = [f"{'room':<{width}}  mutants  died  timed out  share"]
    for room in rooms:
        outcomes = [row[4] for row in rows if room in (row[0], "all")]
        died, late = outcomes.count("died"), outcomes.count("timed out")
        low, high = wilson(died + late, len(outcomes))
        lines.append(
            f"{room:<{width}}  {len(outcomes):>7}  {died:>4}  {late:>9}  "
            f"{(died + late) / max(len(outcomes), 1):>5.0%}  {low:>3.0%}-{high:.0%}"
        )
    survivors = [row[1:] for row in rows if row[4] == "survived"]
    return "\n".join(lines + [f"survived {at}: {a} → {b} ({by})" for at, a, b, _, by in survivors])


def wilson(count: int, total: int) -> tuple[float, float]:
    """The 95 % interval of a share.

    >>> [round(end, 3) for end in wilson(255, 300)]
    [0.805, 0.886]
    """
    if not total:
        return 0.0, 1.0
    z, share = 1.959964, count / total
    middle = (share + z * z / (2 * total)) / (1 + z * z / total)
    half = z * math.sqrt(share * (1 - share) / total + (z / (2 * total)) ** 2)
    half /= 1 + z * z / total
    return middle - half, middle + half


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw, try and report; see the module."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=300, help="mutants to draw")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", metavar="ROOM", help="draw from one room")
    parser.add_argument("--tests", nargs="+", default=["tests", "simfed"], help="all if omitted")
    parser.add_argument("--out", type=Path, default=Path("mutants.csv"), help="table to go on with")
    parser.add_argument("--most", type=float, default=120.0, help="processor's seconds per mutant")
    parser.add_argument("--list", action="store_true", help="print the mutants, try none")
    parser.add_argument("--play", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.play:
        limits = json.loads((options.play / "limits").read_text(encoding="utf-8"))
        signal.alarm(300)  # until the tests are collected
        sys.exit(pytest.main([*_PYTEST, *limits], plugins=[Once(options.play / "log", limits)]))
    mutants = draw(ROOT, options.count, options.seed, options.only)
    if options.list:
        print("\n".join(f"{m.path}:{m.line}: {m.before} → {m.after}" for m in mutants))
        return
    out = options.out.resolve()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "copy"
        outside = write_copy(ROOT, folder, mutants)
        os.chdir(folder)
        os.environ["PYTHONPATH"] = os.pathsep.join((str(folder), os.environ.get("PYTHONPATH", "")))
        os.environ["MUTANT_NOTES"] = str(folder.with_name("notes"))
        os.environ["OMP_NUM_THREADS"] = "1"  # a fork has none of the threads that a pool waits for
        player = Player(mutants, outside, Path(name), out, options.most)
        sys.path.insert(0, str(folder))
        ending = pytest.main([*_PYTEST, *options.tests], plugins=[player])
        if ending:
            sys.exit(ending)
    print(report(read_rows(out)))


if __name__ == "__main__":
    main()
