"""Scenarios and studies to begin with: one folder for each, whose files need no others.

A template is a folder here. Its main file has the folder's name and says in its first
comment what it is; a comment line `# Needs: PACKAGE` leaves the template out where that
package is missing.
"""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path

from simfed.ground.errors import InputError, check_known
from simfed.ground.writing import put_output, writing

__all__ = ["Template", "templates", "write_template"]

_HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Template:
    """The files that `simfed new NAME` writes.

    They can be run as they are, and every line that one would change has a comment.
    """

    name: str
    about: str
    """One sentence."""
    command: str
    """The command that runs it, with `FILE` for the main file's name."""
    files: tuple[Path, ...]
    """The main file first."""


def templates(folder: Path = _HERE) -> list[Template]:
    """Return all templates that can be used here, the quickstart first.

    >>> [template.name for template in templates()][:2]
    ['quickstart', 'fleet']
    """
    files = [file for file in folder.glob("*/*.yaml") if file.stem == file.parent.name]
    usable = [
        template for file in files if (template := _read_template(file)) is not None
    ]
    first = {"quickstart": 0, "fleet": 1, "study": 2}
    return sorted(usable, key=lambda t: (first.get(t.name, len(first)), t.name))


def write_template(name: str, out: Path) -> list[Path]:
    """Write the template's files: the main one to `out`, the others beside it.

    Args:
        name: one of `templates()`.
        out: path of the main file.

    Returns:
        The paths that were written, the main file's first.

    Raises:
        InputError: a name that is none, or one of the files exists already.
    """
    names = {template.name: template for template in templates()}
    check_known(name, names, "a template:", where="new")
    main, *others = names[name].files
    targets = [(main, out), *((file, out.parent / file.name) for file in others)]
    for _, target in targets:
        if target.exists():
            hint = "another folder: simfed new TEMPLATE DIR"
            problem = "there is a file of this name"
            raise InputError("a new one", where=str(target), problem=problem, hint=hint)
    with writing(out.parent):
        out.parent.mkdir(parents=True, exist_ok=True)
    for file, target in targets:
        put_output(target, file.read_bytes())
    return [target for _, target in targets]


def _read_template(main: Path) -> Template | None:
    """Return the template of a main file; None where a package it needs is missing."""
    text = main.read_text(encoding="utf-8")
    needs = re.search(r"^# Needs: (\S+)$", text, re.MULTILINE)
    if needs and importlib.util.find_spec(needs[1]) is None:
        return None
    study = re.search(r"^base:", text, re.MULTILINE)
    command = "simfed study run FILE" if study else "simfed run FILE"
    if re.search(r"^plugins:", text, re.MULTILINE):
        command += " --allow-plugins"
    about = text.partition("\n")[0].removeprefix("# ")
    others = [
        file
        for file in sorted(main.parent.iterdir())
        if file.is_file() and file != main
    ]
    return Template(main.stem, about, command, (main, *others))
