"""Text for the terminal, in which nothing steers it.

Names come from strangers' scenarios, data and run folders; a control character in one
would move the cursor, change what was written, or set the window's title.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

from simfed.ground.names import STEERING, escape_steering


class _Steering:
    """A stream for rich, which writes control sequences between escaped texts."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self.write = stream, stream.write

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def escaping_output() -> Iterator[None]:
    """Escape control characters of names in the block's output.

    Standard output and error get a question mark for what their encoding lacks.
    """
    from rich import control

    # in place, as rich's functions have it as a default: what it drops from texts
    table = getattr(control, "_CONTROL_STRIP_TRANSLATE", {})
    table.update({ord(char): escape_steering(char) for char in STEERING})
    patched: list[Any] = []
    streams: list[Any] = [
        stream for stream in (sys.stdout, sys.stderr) if stream is not None
    ]
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
        steering = _Steering(stream)
        try:
            stream.rich_proxied_file = steering
            stream.write = _make_write(steering)
        except AttributeError:  # somebody else's stream, which takes no new attributes
            continue
        patched.append(stream)
    try:
        yield
    finally:
        for stream in patched:
            del stream.write, stream.rich_proxied_file


def _make_write(steering: _Steering) -> Any:
    """Return a `write` that escapes what would steer the terminal."""

    def write(text: str) -> int:
        steering.write(escape_steering(text))
        return len(text)

    return write


def print_columns(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    words: int = 1,
    indent: str = "",
) -> None:
    """Print a table, each column as wide as its widest cell.

    Args:
        headers: one per column.
        rows: one cell per column.
        words: the first columns, which are texts and stand at the left; others are
        numbers.
        indent: before each line.
    """
    widths = [max(map(len, column)) for column in zip(headers, *rows, strict=True)]
    for row in (headers, *rows):
        cells = [
            cell.ljust(width) if at < words else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        print(indent + "  ".join(cells).rstrip())


@contextmanager
def show_progress(
    say: Callable[[str, int, int, int | None], str | None], amount: str
) -> Iterator[Callable[[str, int, int | None], None]]:
    """Yield `tell(what, done, total)`, which moves a bar for each `what`.

    Where standard error is no terminal there are lines in place of bars.

    Args:
        say: called as `say(what, before, done, total)` there; what it returns is a line
            of its own, None is none. `before` is -1 at first.
        amount: the class of `rich.progress` that writes how much is done.
    """
    if not sys.stderr.isatty():
        before: dict[str, int] = {}

        def line(what: str, done: int, total: int | None) -> None:
            said = say(what, before.get(what, -1), done, total)
            before[what] = done
            if said is not None:
                print(said, file=sys.stderr)

        yield line
        return
    from rich import progress
    from rich.console import Console

    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        getattr(progress, amount)(),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=Console(stderr=True)) as bars:
        tasks: dict[str, progress.TaskID] = {}

        def bar(what: str, done: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done, total=total)

        yield bar
