"""Files that are whole or as they were, with one sentence where writing fails."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from simfed.ground.errors import InputError

PARTIAL = ".partial-"
"""The prefix of the names of files that are not whole yet."""


_DISK = (
    *(errno.ENOSPC, errno.EROFS, errno.EDQUOT),
    *(errno.EACCES, errno.EPERM, errno.EIO),
)


def find_disk_refusal(error: BaseException | None) -> OSError | None:
    """Return the disk's refusal (full, read-only, …) behind an error, if any."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _DISK:
            return error
        error = error.__cause__ or error.__context__
    return None


@contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[None]:
    """Return a block that writes `path`.

    Raises: `InputError` where the disk refuses.
    """
    try:
        yield
    except OSError as error:
        problem = f"cannot be written: {error.strerror or error}"
        raise InputError(where=str(path), problem=problem) from error


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Return a block that writes a file at the path that it is given.

    Once the block is over, the file gets its name. A pipe or a device is written as it
    is.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        yield target
        return
    # of this process: others may write the same file, as those of one study do
    temporary = target.with_name(f"{PARTIAL}{os.getpid()}-{target.name}")
    try:
        yield temporary
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def put_output(path: str | os.PathLike[str], content: str | bytes) -> Path:
    """Write a file that somebody asked for.

    Raises: `InputError` where the disk refuses.
    """
    content = content.encode() if isinstance(content, str) else content
    with writing(path), replacing(path) as whole:
        whole.write_bytes(content)
    return Path(path)
