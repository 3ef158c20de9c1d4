"""One process at a time in a folder: a lock that ends with the process holding it."""

from __future__ import annotations

import fcntl
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from simfed.ground.errors import InputError
from simfed.ground.inputs import check_file

LOCK = ".lock"
"""The file in the folder; it names its holder and goes when the lock is given back."""


class Held(InputError):
    """Raised where a folder is locked by another process, which the message names."""


@contextmanager
def lock_folder(folder: Path, what: str, hint: str | None = None) -> Iterator[None]:
    """Lock an existing folder for the body of the `with`.

    The lock ends with the process, however that ends. On a file system without locks
    nobody is kept out.

    Args:
        folder: must be there; the lock is its file `LOCK`.
        what: what the folder holds, for the message: `run folder`, say.
        hint: what to do then, for the message.

    Raises:
        Held: another process has the lock.
        InputError: the lock's file is a link.
        OSError: nothing can be written there.
    """
    file = _lock_file(folder / LOCK, what, hint)
    try:
        file.truncate(0)
        file.write(f"process {os.getpid()} on {platform.node()}\n")
        file.flush()
        yield
    finally:
        # a full disk or a lost folder leaves no lock behind, nor does a forked process
        # that still has the file open
        try:
            (folder / LOCK).unlink(missing_ok=True)
        finally:
            _flock(file, fcntl.LOCK_UN)
            file.close()


def is_held(folder: Path) -> bool:
    """Return whether a process holds the folder now.

    On a file system without locks: whether a lock's file lies there, which a killed
    process leaves as well.
    """
    try:
        check_file(folder / LOCK)
        with (folder / LOCK).open(encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except (OSError, InputError):
        return (folder / LOCK).exists()
    return False


def _lock_file(path: Path, what: str, hint: str | None) -> TextIO:
    """Return the lock's file, open and locked.

    It is opened anew where its holder deleted it between opening and locking.
    """
    while True:
        if path.is_symlink():  # whose target would be emptied
            raise InputError(
                "a file of its own, or none", where=str(path), problem="a link"
            )
        file = path.open("a+", encoding="utf-8")
        try:
            _flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "another process"
            file.close()
            raise Held(
                f"a {what} that nobody else is writing",
                where=str(path.parent),
                got=f"one held by {holder}",
                hint=hint,
            ) from None
        if _is_same_file(path, file):
            return file
        file.close()  # its holder deleted it between our two steps


def _flock(file: TextIO, operation: int) -> None:
    """Lock or unlock a file; where a file system has no locks nothing happens."""
    try:
        fcntl.flock(file, operation)
    except BlockingIOError:
        raise
    except OSError:
        pass  # a file system without locks: the user has to know


def _is_same_file(path: Path, file: TextIO) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False
