"""The one way to open what a scenario, a study or a run folder names."""

from __future__ import annotations

import codecs
import io
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from simfed.ground.errors import InputError, find_closest
from simfed.ground.plain import Plain

MOST_TEXT_BYTES = 100_000_000
"""The largest file that people write: more is no scenario, and would be read for
minutes."""
MOST_JSON_BYTES = 1_000_000_000
"""The largest file of facts that a program writes."""
MOST_FILE_BYTES = 8_000_000_000
"""The largest other file that is read as a whole."""
_MOST_NAMES = 1_000
"""The most names in a folder in which one like the missing one is looked for."""


class MissingFile(InputError):
    """A file is not there."""


def find_memory_bytes() -> int:
    """Return the size of this machine's memory: a bound for what a run has written."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def check_file(path: str | os.PathLike[str], most_bytes: int = MOST_FILE_BYTES) -> int:
    """Return the size in bytes of a file that can be read to its end.

    Whatever a scenario or a run folder names is opened after this check alone: a pipe
    is waited for without end, a device or a sparse file read to the limit of memory.

    Raises: `InputError` that names the file: it is missing, a link to itself, a folder,
        a pipe or a device, or larger than `most_bytes`.
    """
    with named_in_errors(path):
        try:
            status = os.stat(path)
        except ValueError:
            raise OSError("a null byte in its name") from None
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError
    if not stat.S_ISREG(status.st_mode):
        raise InputError(
            "a file", where=str(path), problem="this is a device or a pipe"
        )
    if status.st_size > most_bytes:
        allowed = f"a file of at most {most_bytes:,} bytes"
        got = f"{status.st_size:,} bytes"
        raise InputError(allowed, where=str(path), got=got)
    return status.st_size


@contextmanager
def open_file(
    path: str | os.PathLike[str], most_bytes: int = MOST_FILE_BYTES
) -> Iterator[BinaryIO]:
    """Open what `check_file` lets pass, for reading bytes.

    Raises: `InputError` that names the file, for whatever the system refuses.
    """
    size = check_file(path, most_bytes)
    with named_in_errors(path):
        if not size:  # files of /proc say so, too, and some of them never end
            yield io.BytesIO()
            return
        with open(path, "rb") as file:
            yield file


def read_bytes(
    path: str | os.PathLike[str], most_bytes: int = MOST_FILE_BYTES
) -> bytes:
    """Return the content of a file.

    Args:
        path: of the file.
        most_bytes: that are read; a larger file is refused before it is opened.

    Raises:
        InputError: names the file: it is missing, cannot be read, or is too large.
    """
    with open_file(path, most_bytes) as file:
        return file.read()


def read_text(path: str | os.PathLike[str], most_bytes: int = MOST_TEXT_BYTES) -> str:
    """Return the text of a UTF-8 file, without a byte order mark.

    Raises: `InputError` that names the file, and the line of a byte that is no UTF-8.
    """
    return decode_text(read_bytes(path, most_bytes), path)


def decode_text(content: bytes, path: str | os.PathLike[str]) -> str:
    """Return the text of a UTF-8 file's content, as `read_text` does."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(10, 0, error.start) + 1
        reason = explain_unreadable(error)
        if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            reason = "UTF-16, not UTF-8 text"
        raise InputError(
            where=f"{path}: line {line}", problem=f"cannot be read: {reason}"
        ) from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def list_files_below(path: Path, pattern: str = "*") -> Iterator[Path]:
    """Return a file itself.

    Of a folder all files below whose names match `pattern`, in their order, but for
    hidden ones and what Python compiles.
    """
    if not path.is_dir():
        yield path
        return
    for file in sorted(path.rglob(pattern)):
        parts = file.relative_to(path).parts
        if file.is_file() and not any(
            p.startswith(".") or p == "__pycache__" for p in parts
        ):
            yield file


def read_json(path: str | os.PathLike[str], most_bytes: int = MOST_JSON_BYTES) -> Plain:
    """Return the value in a JSON file.

    Args:
        path: of the file, in UTF-8.
        most_bytes: that are read.

    Raises:
        InputError: names the file: it cannot be read, is no whole JSON, or has a key
            twice in one object.
    """
    text = read_text(path, most_bytes)
    try:
        value: Plain = json.loads(text, object_pairs_hook=_refuse_twice)
    except (ValueError, RecursionError) as error:
        problem = f"cannot be read: {error}"
        raise InputError(
            "a whole JSON file", where=str(path), problem=problem
        ) from None
    return value


def _refuse_twice(pairs: list[tuple[str, Plain]]) -> dict[str, Plain]:
    value: dict[str, Plain] = {}
    for key, member in pairs:
        if key in value:
            raise ValueError(f"the key {key!r} stands twice")
        value[key] = member
    return value


@contextmanager
def named_in_errors(path: str | os.PathLike[str]) -> Iterator[None]:
    """Return a block that reads `path`.

    Its `OSError`s become an `InputError` that names the file.
    """
    try:
        yield
    except FileNotFoundError:
        raise make_missing_file_error(path) from None
    except IsADirectoryError:
        raise InputError(
            "a file", where=str(path), problem="this is a folder"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        reason = explain_unreadable(error)
        raise InputError(where=str(path), problem=f"cannot be read: {reason}") from None


def make_missing_file_error(path: str | os.PathLike[str]) -> MissingFile:
    """Return the error for a missing file, with the nearest name beside it as hint."""
    folder, name = os.path.split(path)
    try:
        names = os.listdir(folder or ".")
    except (OSError, ValueError):
        names = []
    stem, kind = os.path.splitext(name)
    alike = {
        os.path.splitext(other)[0]: other
        for other in names[:_MOST_NAMES]
        if os.path.splitext(other)[1].lower() == kind.lower()
    }
    near = find_closest(stem, alike)
    hint = f"did you mean {alike[near]!r}?" if near else None
    return MissingFile(where=str(path), problem="no such file", hint=hint)


def explain_unreadable(error: Exception) -> str:
    """Return the reason in words: the operating system's, or which byte is no UTF-8."""
    if not isinstance(error, UnicodeDecodeError):
        return getattr(error, "strerror", None) or str(error).strip().partition("\n")[0]
    return f"not UTF-8 text, byte 0x{error.object[error.start]:02X}"
