"""Journals: the answers of learning in a run, in order, one JSON line each.

    ["<key>", "<label>", answer]

`key` is a hash of all decisions up to there (who was started with what, lost, merged),
so that whoever plays a clock over a journal notices at the next answer that it decides
otherwise. `label` says whose answer it is to people, and to runs on another clock. What
follows from the scenario is not in it: where no size depends on what is learned, there
is one line per merge.

A state names how many bytes of the journal it goes with, and their digest; what lies
beyond is of work that is done again, and is cut off. The journal of a finished run is
compressed, and its manifest has the digest.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

from simfed.ground.errors import InputError, RunFailed
from simfed.ground.inputs import find_memory_bytes, open_file
from simfed.ground.plain import Plain
from simfed.ground.writing import replacing

NAME = "journal.jsonl"
COMPRESSED = f"{NAME}.zst"
_MOST_WAITING = 4096
"""Lines that are kept in memory before they are written."""
_ENCODER = json.JSONEncoder(separators=(",", ":"))
"""Made once: `json.dumps` makes one for each line."""
_LONGEST_BYTES = 1 << 28
"""The longest line that is read."""


class DamagedJournal(InputError):
    """Raised for a journal that is not whole: answers of learning are lost."""


class OtherDecisions(RunFailed):
    """Raised where a clock played over a journal decides otherwise than it did."""


class JournalLine(NamedTuple):
    """An answer of learning, with a hash of what was decided before."""

    key: str
    label: str
    answer: Plain


class Prefix(NamedTuple):
    """The part of a journal that a checkpoint goes with: its bytes and their digest."""

    bytes: int
    digest: str


NOTHING = Prefix(0, "")


class Journal:
    """The journal of a run that is played: read from its beginning, then appended to.

    `known` returns the answers that are there, in their order; after the last one
    `note` appends. Lines wait in memory until a merge is among them, and are on the
    disk for certain after `flush`.
    """

    def __init__(
        self, path: Path, end: int | None = 0, *, appends: bool = True
    ) -> None:
        """Open a journal.

        Args:
            path: its file.
            end: how many bytes of the file count; None for all, as in a finished run.
            appends: False to read it alone.
        """
        self.path = path
        self._appends = appends
        self._digest = _begin_digest()
        self._lines = read_lines(path, end, self._digest)
        self._next = next(self._lines, None)
        self._bytes = end or 0
        self._waiting: list[str] = []
        self._written = False
        """Whether something was written that may not be on the disk yet."""

    def known(self, key: str, label: str) -> Plain:
        """Return the next answer, None after the last one.

        Args:
            key: the hash of all decisions up to here.
            label: whose answer is asked for, `merge 3` say.

        Raises:
            OtherDecisions: the next line answers something else.
            DamagedJournal: the line after it is damaged.
        """
        line = self._next
        if line is None:
            return None
        if (line.key, line.label) != (key, label):
            said = (
                label
                if line.label == label
                else f"{line.label} where {label} is asked for"
            )
            raise OtherDecisions(
                f"{self.path}: answers {said}, but what was decided before is not what "
                "is decided now"
            )
        self._next = next(self._lines, None)
        return line.answer

    @property
    def next(self) -> JournalLine | None:
        """The next line; None: all answers were given."""
        return self._next

    def note(self, key: str, label: str, answer: Plain) -> None:
        """Append an answer; nothing happens to a journal that is only read.

        Args:
            key: the hash of all decisions up to here.
            label: whose answer it is.
            answer: JSON-able.

        Raises:
            RunFailed: the disk refuses it.
        """
        if not self._appends:
            return
        self._waiting.append(_ENCODER.encode([key, label, answer]) + "\n")
        # after each merge, for whoever watches the run: 20 µs, as nothing is synced
        if label.startswith("merge ") or len(self._waiting) >= _MOST_WAITING:
            self._write()

    def flush(self) -> Prefix:
        """Write all lines to the disk; return the part that a checkpoint now goes with.

        Raises:
            RunFailed: the disk refuses.
        """
        self._write(syncs=True)
        return Prefix(self._bytes, self._digest.hexdigest())

    def _write(self, *, syncs: bool = False) -> None:
        content = "".join(self._waiting).encode()
        if not content and not (syncs and self._written):
            return
        try:
            with self.path.open("r+b" if self._bytes else "wb") as file:
                file.truncate(self._bytes)
                file.seek(self._bytes)
                file.write(content)
                if syncs:
                    file.flush()
                    os.fsync(file.fileno())
        except OSError as error:
            why = error.strerror or error
            raise RunFailed(f"{self.path}: cannot be written ({why})") from error
        self._digest.update(content)
        self._bytes += len(content)
        self._written = not syncs
        self._waiting.clear()

    def compress(self) -> str:
        """Write the compressed journal beside it; return the digest of its lines."""
        import pyarrow as pa

        _, digest = self.flush()

        with (
            replacing(self.path.with_name(COMPRESSED)) as whole,
            pa.CompressedOutputStream(str(whole), "zstd") as out,
            self.path.open("rb") as file,
        ):
            left = self._bytes
            while left and (block := file.read(min(left, 1 << 20))):
                out.write(block)
                left -= len(block)
        return digest


def read_lines(
    path: Path, end: int | None = None, digest: hashlib.blake2b | None = None
) -> Iterator[JournalLine]:
    """Yield the lines of a journal, compressed or not.

    Args:
        path: its file; `.zst` at its end means compressed.
        end: how many bytes count, before compression; None for all.
        digest: is told every byte that was read.

    Raises:
        InputError: the file is no journal, or ends within a line.
    """
    done = 0
    with open_file(path, find_memory_bytes()) if end != 0 else nullcontext() as file:
        if path.suffix == ".zst" and file is not None:
            import pyarrow as pa

            file = io.BufferedReader(pa.input_stream(file, compression="zstd"))
        while file is not None and (end is None or done < end):
            try:
                text = file.readline(_LONGEST_BYTES)
                if not text and end is None:
                    return
                line = read_line(text)
            except (OSError, ValueError, TypeError, RecursionError) as error:
                problem = f"damaged at byte {done}: {error}"
                raise _make_damage_error(path, problem) from error
            done += len(text)
            if digest is not None:
                digest.update(text)
            yield line


def read_line(text: bytes) -> JournalLine:
    """Return the line of a journal with this text.

    Raises:
        ValueError, TypeError: it is none.
    """
    line = JournalLine(*json.loads(text))
    if not isinstance(line.key, str) or not isinstance(line.label, str):
        raise TypeError("that is no line of a journal")
    return line


def check_prefix(path: Path, prefix: Prefix) -> None:
    """Hold the beginning of a journal against the part that a checkpoint goes with.

    Raises:
        DamagedJournal: the file is missing, shorter, or begins otherwise.
    """
    digest, left = _begin_digest(), prefix.bytes
    if not path.exists():
        raise _make_damage_error(path, "it is missing")
    if left:
        with open_file(path, find_memory_bytes()) as file:
            while left and (block := file.read(min(left, 1 << 20))):
                digest.update(block)
                left -= len(block)
    if left:
        raise _make_damage_error(path, f"{left} bytes of it are missing")
    if digest.hexdigest() != prefix.digest:
        raise _make_damage_error(path, "it was changed, or is of another run")


def read_finished(folder: Path, digest: Plain) -> Iterator[JournalLine]:
    """Return the lines of the journal of a finished run.

    Args:
        folder: the run's.
        digest: of the plain journal, as the manifest has it under `journal`.

    Raises:
        DamagedJournal: the file has another digest; known before the first line.
    """
    path, running = folder / COMPRESSED, _begin_digest()
    for _ in read_lines(path, digest=running):
        pass
    if running.hexdigest() != digest:
        raise _make_damage_error(path, "it was changed, or is of another run")
    return read_lines(path)


def _begin_digest() -> hashlib.blake2b:
    return hashlib.blake2b(digest_size=16)


def _make_damage_error(path: Path, problem: str) -> DamagedJournal:
    return DamagedJournal("the journal of this run", where=str(path), problem=problem)
