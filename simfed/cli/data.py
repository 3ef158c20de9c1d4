"""`simfed data`: get published data sets, see which are here, and where they lie."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simfed.cli.inspect import (
    AllowPlugins,
    Imports,
    Overrides,
    ScenarioFile,
    Width,
    load,
)
from simfed.cli.terminal import show_progress
from simfed.ground.errors import InputError
from simfed.ground.units import counted, format_bytes

if TYPE_CHECKING:
    from simfed.learn.data.store import Published
    from simfed.learn.facts import DatasetFacts
    from simfed.scenario.dataset import DatasetSpec

app = typer.Typer(
    no_args_is_help=True, help="Get data sets, list them, show who owns what."
)


@app.command()
def get(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="mnist, fashion-mnist, cifar10, mnist-mini, or huggingface:OWNER/NAME",
        ),
    ],
    source: Annotated[
        Path | None,
        typer.Option(
            "--from",
            help="A folder or archive that holds its files; nothing is fetched.",
        ),
    ] = None,
) -> None:
    """Make a data set available on this machine.

    Every file is checked by its SHA-256.

    It is taken from where it already is, else from its publisher.
    """
    from simfed.learn.data.fetch import get as fetch
    from simfed.learn.data.hub import fetch_hub_set

    kind, _, hub_name = name.partition(":")
    if kind == "huggingface":
        if source is not None:
            hint = "name the folder: dataset: {huggingface: FOLDER}"
            raise InputError(
                where="--from", problem="it belongs to published sets", hint=hint
            )
        print(f"{name}: {fetch_hub_set(hub_name)}")
        return
    published = _find_published(name)
    with show_progress(_say_fetching, "DownloadColumn") as progress:
        place, how = fetch(published, source=source, progress=progress)
    print(f"{name}: {place} ({how})")


@app.command("list")
def list_() -> None:
    """List the known data sets: size, licence, and where each is.

    Its files are checked.
    """
    from simfed.ground.registry import registry
    from simfed.learn.data.store import Published

    print(f"{'name':<15}{'training':>9}{'test':>8}  {'sample':<9}{'licence':<14}where")
    for name in registry("dataset").names():
        entry = registry("dataset").get(name)
        if isinstance(entry, Published):
            facts = entry.facts
            sizes = (
                f"{facts.train_samples:>9,}{facts.test_samples:>8,}  "
                f"{'×'.join(map(str, facts.input_shape)):<9}"
            )
            print(f"{name:<15}{sizes}{entry.licence:<14}{_describe_place(entry)}")
        else:
            print(f"{name:<15}{'':28}{'':<14}{registry('dataset').origin(name)}")


@app.command()
def show(
    scenario: ScenarioFile,
    out: Annotated[
        Path | None, typer.Option(help="Picture to write: png, svg or pdf.")
    ] = None,
    set_: Overrides = None,
    allow_plugins: AllowPlugins = False,
    import_: Imports = None,
    width: Width = "7in",
) -> None:
    """Show what is learned from, and what each client owns.

    How many samples, of which classes.
    """
    from simfed.experiment.checks import check_parts
    from simfed.learn.catalogue import dataset_facts
    from simfed.report.owned import draw_owned_figure, format_owned_lines
    from simfed.report.pictures import parse_width, save_picture

    loaded = load(scenario, set_, allow_plugins)
    parts = check_parts(loaded, scenario, time_only=False)
    owned, data = parts.owned, loaded.dataset
    facts = dataset_facts(data)
    shape = "×".join(map(str, facts.input_shape))
    told = [counted(facts.owners, "owner")] if facts.owners else []
    told += [
        f"{facts.classes} classes" if facts.task == "classification" else facts.task
    ]
    print(
        f"{data.label}: {facts.train_samples:,} training and {facts.test_samples:,} "
        f"test samples of {shape}"
    )
    print(f"{', '.join(told)}; partition {data.partition.kind}")
    print(
        "\n".join(
            format_owned_lines(
                owned.plain(), _describe_samples(data, facts, owned.labels)
            )
        )
    )
    if out is not None:
        figure = draw_owned_figure(
            owned.samples,
            owned.classes,
            owned.names,
            parse_width(width),
            owned.owners,
        )
        print(save_picture(figure, out))


def _describe_samples(
    data: DatasetSpec, facts: DatasetFacts, labels: Sequence[tuple[str, int, int]]
) -> list[str]:
    """Return lines on a data set: how images are read, inputs, and classes.

    Args:
        data: the scenario's section.
        facts: of the data set.
        labels: (class, training samples, test samples); none where there are no
        classes.
    """
    from simfed.learn.data.own import list_inputs
    from simfed.report.owned import format_label_lines, wrap_lines

    lines = []
    if facts.layout:
        axes = "H×W×C" if facts.layout == "channels-last" else "C×H×W"
        reasons = {
            "channels-first": "its first axis alone has length 1 or 3",
            "channels-last": "its last axis alone has length 1 or 3",
            "either": "the models take no other",
        }
        why = "dataset.layout says so" if data.layout else reasons[facts.layout]
        lines.append(f"a sample is read as {axes}: {why}")
    if inputs := list_inputs(data):
        lines.append(f"inputs: {', '.join(inputs)}")
    lines = wrap_lines(lines)
    return [*lines, *format_label_lines(labels)] if labels else lines


@app.command()
def path() -> None:
    """Print the folders data sets are looked for in.

    The first is where `get` puts them.
    """
    from simfed.learn.data.store import list_data_folders

    for folder in list_data_folders():
        print(folder)


def _find_published(name: str) -> Published:
    """Return the data set of this name, where simfed can fetch it.

    Raises:
        InputError: there is no such set, or it comes from elsewhere.
    """
    from simfed.ground.registry import registry
    from simfed.learn.data.store import Published

    entry = registry("dataset").get(name, where="NAME")
    if not isinstance(entry, Published):
        hint = f"this one comes from: {registry('dataset').origin(name)}"
        raise InputError(
            "a data set that simfed can fetch", where="NAME", got=name, hint=hint
        )
    return entry


def _describe_place(published: Published) -> str:
    """Return where the files of a data set are, or what brings them here."""
    try:
        place = published.locate()
    except InputError as error:
        return f"damaged: {error}"
    if place is None:
        return f"not here: simfed data get {published.name}"
    return "comes with simfed" if published.home else str(place[0])


def _say_fetching(what: str, before: int, done: int, total: int | None) -> str | None:
    """Return a line when a file begins, else None; see `show_progress`."""
    size = f" ({format_bytes(total)})" if total else ""
    return f"fetching {what}{size}" if before < 0 else None
