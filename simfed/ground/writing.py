"""One sentence for a file that cannot be written."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from simfed.ground.errors import InputError


@contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[None]:
    """A block that writes `path`. Raises: `InputError` where the disk refuses."""
    try:
        yield
    except OSError as error:
        problem = f"cannot be written: {error.strerror or error}"
        raise InputError(where=str(path), problem=problem) from error
