"""Mutants: do the tests notice when one thing in the library is wrong?

    python analysis/mutants.py --count 300 --out mutants.csv
    python analysis/mutants.py --count 20 --seed 1 --only scenario

A mutant is the library with one small change: another comparison, operator or constant, a boundary
one further, a condition turned round, a statement removed. They are drawn, by a seed, from all
places where one is possible. Each is tried in a copy of the repository by its room's tests, those
that name its module first: it *dies* where one of them fails (or takes longer than `--timeout`),
and *survives* where none does. A survivor is a test that is missing, or a change that makes no
difference; which of the two, only a reader can tell.

`--out` takes a row for each mutant as it ends, and the same command goes on after the last one.
Unless `--trust`, a room's tests run once on the library as it is before its first mutant, as tests
that fail anyway kill everything.
"""

from __future__ import annotations

import argparse
import ast
import copy
import csv
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
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
_ROOM_TESTS = {
    "calibrate": ["tests/device"],
    "fleet": ["tests/fleet", "tests/sim", "tests/golden"],
    "ground": ["tests/ground", "tests/scenario", "tests/golden"],
    "native": ["tests/net", "tests/learn"],
    "net": ["tests/net", "tests/golden"],
    "sim": ["tests/sim", "tests/golden"],
    "templates": ["tests/cli/test_cli_new.py"],
    "testing": ["tests/contracts"],
    "verify": ["tests/experiment", "tests/contracts"],
}
"""Rooms whose tests do not all lie in `tests/ROOM`."""


_PRELOADED = ("numpy", "pandas", "pydantic", "pytest", "scipy.stats", "simpy", "torch")
"""Most of a short test's time goes into loading them."""


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

    Left alone are texts, annotations, imports, decorators, and what type checkers alone read.
    """
    yield from ((place, change) for change in _changes_of(node))
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "bases"):
            continue
        for index, inner in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(inner, ast.AST) and not _is_left_alone(inner):
                yield from changes(inner, (*place, (field, index)))


def mutate(tree: ast.Module, place: Place, change: str) -> ast.Module:
    """A copy of `tree` with one of its `changes`."""
    mutated = copy.deepcopy(tree)
    *_, holder, node = _walk(mutated, place)
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
        node.test = ast.UnaryOp(ast.Not(), node.test)
    else:
        field, at = place[-1]
        other = node.operand if isinstance(node, ast.UnaryOp) else ast.Pass()
        if at is None:
            setattr(holder, field, other)
        else:
            getattr(holder, field)[at] = other
    return ast.fix_missing_locations(mutated)


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
    if isinstance(node, ast.Import | ast.ImportFrom | ast.JoinedStr):
        return True
    if isinstance(node, ast.If):
        return "TYPE_CHECKING" in ast.unparse(node.test)
    names = [ast.unparse(target) for target in getattr(node, "targets", ())]
    return "__all__" in names


def _walk(tree: ast.Module, place: Place) -> Iterator[ast.AST]:
    """The nodes on the way to a place, after the module's own double."""
    node: ast.AST = tree
    yield from (node, node)
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
        for number, _ in enumerate(changes(_parse(root, path)))
    ]
    chosen = random.Random(seed).sample(sites, min(count, len(sites)))
    return [_describe(root, path, number) for path, number in chosen]


def mutated_source(root: Path, mutant: Mutant) -> str:
    """The text of the mutant's file; comments are gone."""
    tree = _parse(root, mutant.path)
    return ast.unparse(mutate(tree, *list(changes(tree))[mutant.number])) + "\n"


def _parse(root: Path, path: str) -> ast.Module:
    return ast.parse((root / path).read_text(encoding="utf-8"))


def _describe(root: Path, path: str, number: int) -> Mutant:
    tree = _parse(root, path)
    place, change = list(changes(tree))[number]
    depth, node = [(i, n) for i, n in enumerate(_walk(tree, place)) if isinstance(n, ast.stmt)][-1]
    other = list(_walk(mutate(tree, place, change), place[: depth - 1]))[-1]
    pairs = zip(ast.unparse(node).splitlines(), ast.unparse(other).splitlines(), strict=False)
    before, after = next(pair for pair in pairs if pair[0] != pair[1])
    return Mutant(path, number, node.lineno, before.strip(), after.strip())


# --- trying ------------------------------------------------------------------------------------


class Copy:
    """A copy of the repository in which one mutant at a time is tried."""

    def __init__(
        self, root: Path, folder: Path, timeout_wall_s: float, preloaded: Sequence[str] = ()
    ) -> None:
        """preloaded: modules that are loaded once for all mutants."""
        self._folder, self._timeout_wall_s = folder, timeout_wall_s
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(list(preloaded))
        command = ["git", "-C", str(root), "ls-files"]
        tracked = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        compiled = [str(path.relative_to(root)) for path in root.glob("simfed/native/*.so")]
        for name in (*tracked, *compiled):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes((root / name).read_bytes())

    def try_mutant(self, mutant: Mutant) -> Outcome:
        """What the tests of its room make of a mutant."""
        file = self._folder / mutant.path
        whole = file.read_bytes()
        file.write_text(mutated_source(self._folder, mutant), encoding="utf-8")
        try:
            return self.run_tests(self.tests_for(mutant.path))
        finally:
            file.write_bytes(whole)
            for compiled in file.parent.glob(f"__pycache__/{file.stem}.*.pyc"):
                compiled.unlink()  # it may be as old, to the second, and as long as the next one's

    def tests_for(self, path: str) -> list[str]:
        """Its doctests, the test files that name it (its room's first), the rest of its room."""
        room, name = Mutant(path, 0, 0, "", "").room, Path(path).stem
        folders = _ROOM_TESTS.get(room, [f"tests/{room}"])
        module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        words = (module, f"from {module.rpartition('.')[0]} import {name}")
        files = sorted(self._folder.glob("tests/**/test_*.py"))
        texts = {str(f.relative_to(self._folder)): f.read_text(encoding="utf-8") for f in files}
        named = [file for file, text in texts.items() if any(word in text for word in words)]
        named.sort(key=lambda file: not file.startswith(tuple(folders)))
        return [path, *named, *(folder for folder in folders if (self._folder / folder).exists())]

    def run_tests(self, tests: Sequence[str]) -> Outcome:
        """Run tests in a process of their own until one fails."""
        process = self._context.Process(target=_run_pytest, args=(str(self._folder), tests))
        process.start()
        process.join(self._timeout_wall_s)
        if process.exitcode is None:
            os.killpg(process.pid or 0, signal.SIGKILL)
            process.join()
            return "timed out"
        return "died" if process.exitcode else "survived"


def _run_pytest(folder: str, tests: Sequence[str]) -> None:
    """The life of such a process: its exit code is pytest's, its group all that it starts."""
    import pytest

    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (1, 2):
        os.dup2(nothing, stream)
    os.chdir(folder)
    sys.dont_write_bytecode = False  # what is compiled serves all mutants of the file's neighbours
    os.environ["PYTHONPATH"] = folder
    sys.path.insert(0, folder)
    os._exit(int(pytest.main(["-q", "-x", "-p", "no:cacheprovider", *tests])))


def report(rows: Sequence[Sequence[str]]) -> str:
    """Drawn and dead mutants by room, and the survivors. rows: those of `--out`.

    >>> print(report([["net", "a.py:3", "x < y", "x <= y", "died"],
    ...               ["net", "a.py:9", "n + 1", "n - 1", "survived"]]))
    room  mutants  dead  share
    net         2     1    50%
    all         2     1    50%
    survived a.py:9: n + 1 → n - 1
    """
    rooms = sorted({row[0] for row in rows})
    lines = [f"{'room':<{max(map(len, (*rooms, 'room')))}}  mutants  dead  share"]
    for room in (*rooms, "all"):
        outcomes = [row[4] for row in rows if room in (row[0], "all")]
        dead = sum(outcome != "survived" for outcome in outcomes)
        share = dead / max(len(outcomes), 1)
        lines.append(
            f"{room:<{lines[0].index('  ')}}  {len(outcomes):>7}  {dead:>4}  {share:>5.0%}"
        )
    survivors = [row for row in rows if row[4] == "survived"]
    return "\n".join(lines + [f"survived {at}: {a} → {b}" for _, at, a, b, _ in survivors])


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw, try and report; see the module."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=300, help="mutants to draw")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", metavar="ROOM", help="draw from one room")
    parser.add_argument("--out", type=Path, default=Path("mutants.csv"), help="table to go on with")
    parser.add_argument("--timeout", type=float, default=600.0, help="host seconds of one's tests")
    parser.add_argument("--trust", action="store_true", help="do not test the library as it is")
    parser.add_argument("--list", action="store_true", help="print the mutants, try none")
    options = parser.parse_args(arguments)
    mutants = draw(ROOT, options.count, options.seed, options.only)
    if options.list:
        print("\n".join(f"{m.path}:{m.line}: {m.before} → {m.after}" for m in mutants))
        return
    rows = []
    if options.out.exists():
        with options.out.open(encoding="utf-8", newline="") as file:
            rows = list(csv.reader(file))
    done = {tuple(row[1:4]) for row in rows}
    checked: set[str] = {row[0] for row in rows}
    with tempfile.TemporaryDirectory() as folder:
        here = Copy(ROOT, Path(folder), options.timeout, _PRELOADED)
        for mutant in mutants:
            row = [mutant.room, f"{mutant.path}:{mutant.line}", mutant.before, mutant.after]
            if tuple(row[1:]) in done:
                continue
            if not options.trust and mutant.room not in checked:
                checked.add(mutant.room)
                if here.run_tests(here.tests_for(mutant.path)) != "survived":
                    sys.exit(f"{mutant.room}: its tests fail, or take too long, without a mutant")
            rows.append([*row, here.try_mutant(mutant)])
            print(*rows[-1], sep="  ", flush=True)
            with options.out.open("a", encoding="utf-8", newline="") as file:
                csv.writer(file).writerow(rows[-1])
    print(report(rows))


if __name__ == "__main__":
    main()
