"""Files of a run, which are on the disk before they get their names."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from simfed.ground.plain import Plain
from simfed.ground.writing import PARTIAL, replacing


@contextmanager
def write_named_after(path: Path, text: str) -> Iterator[None]:
    """Write a text to the disk; the file gets its name after the body of the `with`.

    So what the body does is done before anybody can read the file. A file of this name
    is replaced at once. A body that raises leaves it as it was.

    Raises:
        OSError: the disk refuses.
    """
    with replacing(path) as temporary:
        with temporary.open("w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        yield


def put_text(path: Path, text: str) -> None:
    """Write text that is on the disk before the file gets its name."""
    with write_named_after(path, text):
        pass


def put_json(path: Path, value: Plain) -> None:
    """Write plain values as readable JSON; floats read back to the same floats."""
    put_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def sync(path: Path) -> None:
    """Put on the disk what was written to a file."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def delete_partials(folder: Path) -> None:
    """Delete the files in `folder` that a killed process left half-written."""
    for left in folder.glob(f"{PARTIAL}*"):
        left.unlink(missing_ok=True)


def is_partial(path: Path) -> bool:
    """Return whether this is a file that never got its name."""
    return path.name.startswith(PARTIAL)
