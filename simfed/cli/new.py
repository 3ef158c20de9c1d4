"""`simfed new` and `simfed help`: something to begin with, and pages to go on with."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from simfed.ground.errors import InputError, check_known
from simfed.ground.shipped import list_shipped_folders
from simfed.templates import templates, write_template


def _complete_template(incomplete: str) -> list[tuple[str, str]]:
    """Return names, with sentences, of templates that begin so; for the shell."""
    return [(t.name, t.about) for t in templates() if t.name.startswith(incomplete)]


def new(
    template: Annotated[
        str | None,
        typer.Argument(
            metavar="TEMPLATE",
            autocompletion=_complete_template,
            help="A name; without one: which there are.",
        ),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="DIR", help="Where to write; here if omitted."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The scenario's file; TEMPLATE.yaml if omitted.")
    ] = None,
) -> None:
    """Write a commented scenario, or study, that runs as it is."""
    if template is None:
        width = max(len(one.name) for one in templates())
        for one in templates():
            typer.echo(f"{one.name:<{width}}  {one.about}")
        return
    if folder is not None and out is not None and out.is_absolute():
        raise InputError("a file below DIR", where="--out", got=str(out))
    target = (folder or Path()) / (out if out is not None else f"{template}.yaml")
    written = write_template(template, target)
    command = next(one.command for one in templates() if one.name == template)
    for path in written:
        typer.echo(path)
    quoted = shlex.quote(str(written[0]))
    typer.echo(f"run it: {command.replace('FILE', quoted)}")


def show_page(
    page: Annotated[
        str | None,
        typer.Argument(
            metavar="PAGE",
            autocompletion=lambda incomplete: [
                p for p in _list_pages() if p.startswith(incomplete)
            ],
            help="A name; without one: which pages there are.",
        ),
    ] = None,
) -> None:
    """Show a page of the documentation, which comes with simfed."""
    pages = _list_pages()
    if page is None:
        width = max((len(name) for name in pages), default=0)
        for name, path in pages.items():
            typer.echo(f"{name:<{width}}  {_read_title(path)}")
        return
    check_known(page, pages, "a page:", where="help")
    typer.echo(pages[page].read_text(encoding="utf-8"), nl=False)


def _list_pages() -> dict[str, Path]:
    """Return the file of each page; that of devices stands beside their profiles."""
    pages = {
        path.stem: path
        for folder in reversed(list_shipped_folders("docs"))
        for path in sorted(folder.glob("*.md"))
    }
    for folder in list_shipped_folders("calibration"):
        if (folder / "README.md").is_file():
            pages["devices"] = folder / "README.md"
    return dict(sorted(pages.items()))


def _read_title(path: Path) -> str:
    """Return the first heading of a page, empty where it has none."""
    with path.open(encoding="utf-8") as lines:
        return next((line.strip("# \n") for line in lines if line.startswith("# ")), "")
