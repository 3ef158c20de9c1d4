"""Answers of recorded runs about learning, by node, of journals that may grow.

A run's journal has a line for each thing that the clock asked of learning. Its key is a
hash of all decisions up to there, so that whoever decides the same finds the same line,
on whatever clock. `KnownAnswers` reads the journals of one or several runs, again
whenever they may have grown; `list_runs_beside` and `find_differences` say which runs
may answer for which setting.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from simfed.ground.errors import InputError
from simfed.ground.plain import Plain
from simfed.record.journal import COMPRESSED, NAME, JournalLine, read_line, read_lines
from simfed.record.read import read_manifest

_SAME = ("mode", "device", "seed", "models", "data", "versions", "measure")
"""The keys of manifests that must be the same before one run answers for another."""
_MOST_BESIDE = 2000
"""Runs that are looked at."""


class KnownAnswers:
    """The answers of runs that learn alike, whatever their clocks decide.

    A node is a hash of all decisions that led to it, with what was asked there.
    """

    def __init__(self) -> None:
        """Begin without runs."""
        self._needed: dict[Path, bool] = {}
        self._done: dict[Path, int] = {}
        """Bytes that were read; -1: all, as the run is finished."""
        self._known: dict[str, Plain] = {}
        self.merged_at: dict[tuple[Path, int], str] = {}
        """Run and round → the key of its merge."""

    def add(self, folder: Path, *, is_needed: bool = False) -> None:
        """Add the answers of one more run, to be read by `read_on`.

        Args:
            folder: of the run, finished or under way.
            is_needed: whether a journal that cannot be read is an error.
        """
        self._needed[folder] = is_needed

    @property
    def folders(self) -> list[Path]:
        """The runs whose answers these are."""
        return [*self._needed]

    def find(self, node: str) -> Plain:
        """Return the answer at a node as far as was read; None: nobody knows it.

        Args:
            node: key and label of a journal's line, with a space between.
        """
        return self._known.get(node)

    def read_on(self) -> bool:
        """Read what is new in all journals, and return whether something is.

        Raises:
            InputError: for a journal that is needed and gone or damaged.
        """
        known = len(self._known)
        for folder, is_needed in self._needed.items():
            try:
                for line in self._read(folder):
                    self._known[f"{line.key} {line.label}"] = line.answer
                    if line.label.startswith("merge "):
                        self.merged_at[folder, int(line.label[6:])] = line.key
            except InputError:
                if is_needed:
                    raise
        return len(self._known) > known

    def _read(self, folder: Path) -> Iterator[JournalLine]:
        """Yield a run's lines that were not read yet.

        A growing journal is read from where it ended the last time, up to its last
        whole line; a finished run's compressed one is read once, from its beginning.

        Raises:
            InputError: for a journal that is gone or damaged.
        """
        whole, growing = folder / COMPRESSED, folder / NAME
        done = self._done.get(folder, 0)
        if done < 0 and not self._needed[folder]:
            return
        size_bytes = _measure(growing)
        if 0 < size_bytes == done:
            return
        if whole.exists():
            if done >= 0:
                yield from read_lines(whole)
                self._done[folder] = -1
            return
        if not size_bytes:
            if done or not (folder / "manifest.json").exists():
                raise InputError(
                    "the journal of this run", where=str(growing), got="none"
                )
            return  # it has not learned anything yet
        if done > size_bytes:  # it went on from a checkpoint, and says the same again
            done = 0
        try:
            with growing.open("rb") as file:
                file.seek(done)
                text = file.read()
        except FileNotFoundError:  # just finished: next time the whole one is there
            return
        *lines, rest = text.split(b"\n")
        for line in lines:
            try:
                yield read_line(line)
            except (ValueError, TypeError, RecursionError) as error:
                raise InputError(
                    where=str(growing), problem=f"damaged: {error}"
                ) from None
        self._done[folder] = done + len(text) - len(rest)


def _measure(path: Path) -> int:
    """Return the bytes of a file; 0 where there is none."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def list_runs_beside(folder: Path) -> Iterator[Path]:
    """Yield the runs that learned what this one did, as far as their manifests tell.

    They lie in the same folder, or in a study's that lies there, and are finished.

    Args:
        folder: of this run.
    """
    ours = read_manifest(folder)
    near = sorted(folder.resolve().parent.iterdir())
    studies = [path / "runs" for path in near if (path / "study.json").is_file()]
    others = [
        path for study in studies if study.is_dir() for path in sorted(study.iterdir())
    ]
    for path in [*near, *others][:_MOST_BESIDE]:
        if path == folder.resolve() or not (path / COMPRESSED).is_file():
            continue
        try:
            theirs = read_manifest(path)
        except InputError:
            continue
        if all(theirs.get(key) == ours.get(key) for key in _SAME):
            yield path


def find_differences(base: Plain, other: Plain, path: str = "") -> dict[str, Plain]:
    """Return the other's values where two resolved scenarios differ, by key path.

    Sections and lists are looked into, but not choices of a kind, which are one value.

    Args:
        base: what the other is held against.
        other: of the same form, or any.
        path: where both stand; empty: they are whole scenarios.

    >>> find_differences({"a": {"b": 1}, "c": [2]}, {"a": {"b": 1}, "c": [3]})
    {'c[0]': 3}
    """
    if base == other:
        return {}
    inner: list[tuple[str, Plain, Plain]] = []
    if isinstance(base, dict) and isinstance(other, dict) and "kind" not in base:
        at = f"{path}." if path else ""
        inner = [
            (f"{at}{k}", base.get(k), other.get(k)) for k in base.keys() | other.keys()
        ]
    elif isinstance(base, list) and isinstance(other, list) and len(base) == len(other):
        pairs = zip(base, other, strict=True)
        inner = [
            (f"{path}[{i}]", ours, theirs) for i, (ours, theirs) in enumerate(pairs)
        ]
    found: dict[str, Plain] = {} if inner else {path: other}
    for key, ours, theirs in inner:
        found |= find_differences(ours, theirs, key)
    return found
