"""What is written and the sentence that refuses it, as text files: see `read`.

`python tests/refusals.py [FILE ...]` says where something else is said today; `--write`
renews the sentences: read the difference before you commit it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import worlds
import yaml

import simfed
from simfed import InputError, InputErrors, SimfedError
from simfed.cli import main
from simfed.deploy import Listening, serve
from simfed.experiment import check, check_world
from simfed.ground import parse_yaml
from simfed.learn import load_data
from simfed.scenario import (
    DatasetSpec,
    Scenario,
    add_line,
    load_scenario,
    validate_fleet,
    validate_scenario,
)
from simfed.study import plan_study

HERE = Path(__file__).parent / "refusals"
_KEPT = tempfile.TemporaryDirectory(prefix="simfed-refusals-")


class Row(NamedTuple):
    """One thing written, and the sentences that its file holds against it."""

    place: str
    asked: str
    written: str
    said: str


def read(path: Path) -> Iterator[Row]:
    """Yield the rows of a file.

    A line `== KIND ARGUMENT` says what is asked of the rows below it: `ask_KIND`. A
    row is a paragraph: what is written, then the sentences behind `> `. Lines that
    begin with `#` are comments.
    """
    asked, start = "", 1
    for paragraph in path.read_text().split("\n\n"):
        lines = paragraph.strip("\n").split("\n")
        if lines[0].startswith("== "):
            asked = lines[0][3:]
        elif not all(line.startswith("#") for line in lines):
            said = [line[2:] for line in lines if line.startswith("> ")]
            written = [line for line in lines if not line.startswith("> ")]
            place = f"{path.name}:{start}"
            yield Row(place, asked, "\n".join(written), "\n".join(said))
        start += paragraph.count("\n") + 2


def renew(path: Path) -> None:
    """Write a file again with the sentences that are said today."""
    fresh = {row.place: row for row in read(path)}
    paragraphs, start = [], 1
    for paragraph in path.read_text().split("\n\n"):
        row = fresh.get(f"{path.name}:{start}")
        start += paragraph.count("\n") + 2
        if row is not None:
            said = answer(row).splitlines()
            paragraph = "\n".join([row.written, *(f"> {line}" for line in said)])
        paragraphs.append(paragraph.strip("\n"))
    path.write_text("\n\n".join(paragraphs) + "\n")


def answer(row: Row) -> str:
    """Return the sentences that refuse a row, none where nothing does."""
    kind, _, argument = row.asked.partition(" ")
    ask = globals()[f"ask_{kind}".replace("-", "_")]
    before, folder = os.getcwd(), _begun() if kind in ("file", "command") else _empty()
    os.chdir(folder)
    try:
        # may be missing
        with mock.patch("simfed.experiment.checks.require_accountant"):
            said = ask(argument, row.written) or ""
    except SimfedError as error:
        said = str(error)
    finally:
        os.chdir(before)
    return said.replace(f"{os.path.realpath(folder)}{os.sep}", "")


def _parse(written: str) -> Any:
    """Return a row's YAML; a row that is none fails instead of being refused."""
    try:
        return parse_yaml(written, where="row")
    except InputError as error:
        raise ValueError(f"{written}\n{error}") from None


def _unpack(written: str) -> dict[str, Any]:
    """Return the keys of a row; `file NAME: text` writes a file."""
    keys = _parse(written)
    for key in [key for key in keys if key.startswith("file ")]:
        Path(key[5:]).write_text(keys.pop(key))
    return keys


def _make_world(name: str, written: str) -> dict[str, Any]:
    """Return the named world with the row's key paths."""
    return worlds.change(worlds.WORLDS[name], _unpack(written))


def _make_scenario(name: str, written: str) -> Scenario:
    made = _make_world(name, written)
    return validate_scenario(made, source="s.yaml", folder=Path())


def ask_scenario(name: str, written: str) -> None:
    """Key paths over a world of `tests/worlds.py`, as `simfed check` sees them."""
    check(_make_scenario(name, written), source="s.yaml")


def ask_time_only(name: str, written: str) -> None:
    """The same, for a run that learns nothing."""
    check(_make_scenario(name, written), source="s.yaml", time_only=True)


def ask_run(name: str, written: str) -> None:
    """The same, found by a run."""
    simfed.run(_make_scenario(name, written), out="run", workers=1)


def ask_serve(name: str, written: str) -> None:
    """The same, found by a server of real clients."""
    serve(_make_scenario(name, written), listening=Listening(port=0, join_s=0.1))


def ask_fleet(name: str, written: str) -> None:
    """Key paths over a world for an app."""
    made = _make_world(name, written)
    check_world(validate_fleet(made, source="f.yaml", folder=Path()), "f.yaml")


def ask_study(name: str, written: str) -> None:
    """Keys of a study file over a world."""
    Path("base.yaml").write_text(yaml.safe_dump(worlds.WORLDS[name]))
    Path("study.yaml").write_text(f"name: study\nbase: base.yaml\n{written}\n")
    plan_study("study.yaml")


def ask_call(argument: str, written: str) -> None:
    """An expression of a module, `MODULE: f(row)`.

    `row` is what is written, as YAML.
    """
    _evaluate(argument, row=_parse(written))


def ask_dataset(_: str, written: str) -> None:
    """Keys of `dataset`, as its files are read."""
    load_data(DatasetSpec.model_validate(_unpack(written), context={"folder": Path()}))


def ask_arrays(_: str, written: str) -> None:
    """Arrays of a file as NumPy's expressions, in the place of good ones.

    `null`: none. `layout`: that of `dataset`.
    """
    arrays = ARRAYS | _parse(written)
    keys = {"file": "mine.npz", "layout": arrays.pop("layout", None)}
    made = {
        name: eval(text, vars(np)) for name, text in arrays.items() if text is not None
    }
    np.savez("mine.npz", **made)
    load_data(DatasetSpec.model_validate(keys, context={"folder": Path()}))


ARRAYS = {
    "x_train": "zeros((8, 4))",
    "y_train": "arange(8) % 2",
    "x_test": "zeros((4, 4))",
    "y_test": "arange(4) % 2",
    "owner_train": "arange(8) % 4",
    "owner_test": "arange(4)",
}


def ask_file(_: str, written: str) -> None:
    """`OLD`, then `=> NEW`: the text of `worlds.FIRST` with NEW in the place of OLD.

    Without OLD, NEW is the whole text. The sentences have the lines of the file.
    """
    old, _, new = written.partition("=>")
    old, new = old.strip("\n"), new.removeprefix(" ")
    if old not in worlds.FIRST:
        raise ValueError(f"{old!r} does not stand in the text")
    path = Path("x.yaml")
    path.write_text(worlds.FIRST.replace(old, new, 1) if old else new)
    try:
        check(load_scenario(path), source=path)
    except (InputError, InputErrors) as error:
        errors = getattr(error, "errors", [error])
        raise InputErrors([add_line(e, overridden=False) for e in errors]) from None


def ask_text(argument: str, written: str) -> None:
    """An expression of a module, `NAME MODULE: f(path, text)`.

    The file NAME has the text.
    """
    name, _, argument = argument.partition(" ")
    path, text = Path(name), written + "\n"
    path.write_text(text)
    _evaluate(argument, path=path, text=text)


def _evaluate(argument: str, **names: Any) -> None:
    module, _, expression = argument.partition(": ")
    eval(expression, vars(importlib.import_module(module)) | names)


def ask_command(_: str, written: str) -> str:
    """A command line without `simfed`: the exit code, then what it says on standard
    error.

    The folder holds `quick.yaml`, a table `online.csv`, a `study.yaml`, an empty
    folder, a run `done` and one without its rounds, `cut`.
    """
    said = io.StringIO()
    wide = mock.patch.dict(os.environ, COLUMNS="400")
    with (
        wide,
        contextlib.redirect_stderr(said),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        code = main(shlex.split(written))
    return f"{code} {said.getvalue()}".rstrip("\n") if code else ""


def _empty() -> Path:
    """Return a folder with nothing in it."""
    folder = Path(_KEPT.name, "empty")
    folder.mkdir(exist_ok=True)
    for left in folder.iterdir():
        left.unlink()
    return folder


@functools.cache
def _begun() -> Path:
    """Return a folder in which somebody has begun to work.

    What is refused leaves it alone.
    """
    folder = Path(_KEPT.name, "begun")
    folder.mkdir()
    (folder / "quick.yaml").write_text(worlds.FIRST)
    (folder / "online.csv").write_text("client,from_s,to_s\n0,0,9\n")
    (folder / "study.yaml").write_text("name: s\nbase: quick.yaml\nseeds: [0]\n")
    (folder / "empty").mkdir()
    simfed.run(folder / "quick.yaml", folder / "done", time_only=True, progress=False)
    shutil.copytree(folder / "done", folder / "cut")
    (folder / "cut" / "rounds.parquet").unlink()
    return folder


def find_wrong(paths: Iterable[Path]) -> Iterator[str]:
    """Yield what is said today of each row that is not refused in the sentences of its
    file.
    """
    for row in (row for path in paths for row in read(path)):
        said = answer(row)
        if said != row.said or not said:
            yield f"{row.place}: {row.written}\n{said or 'nothing is refused'}\n"


if __name__ == "__main__":
    import conftest  # noqa: F401  (command lines are built once)

    files = [Path(word) for word in sys.argv[1:] if word != "--write"] or sorted(
        HERE.glob("*.txt")
    )
    if "--write" in sys.argv:
        for each in files:
            renew(each)
    wrong = list(find_wrong(files))
    print(*wrong, sep="\n")
    sys.exit(bool(wrong))
