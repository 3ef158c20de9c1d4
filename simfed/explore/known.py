"""Answers of recorded runs about learning, by node, of journals that may grow."""

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
        self._needed: dict[Path, bool] = {}
        self._done: dict[Path, int] = {}
        """Bytes that were read; -1: all, as the run is finished."""
        self._known: dict[str, Plain] = {}
        self.merged_at: dict[tuple[Path, int], str] = {}
        """Run and round → the key of its merge."""

    def add(self, folder: Path, *, is_needed: bool = False) -> None:
        """Add the answers of one more run.

        `is_needed`: without it nothing is answered.
        """
        self._needed[folder] = is_needed

    @property
    def folders(self) -> list[Path]:
        """The runs whose answers these are."""
        return [*self._needed]

    def find(self, node: str) -> Plain:
        """Return the answer at a node as far as was read; None: nobody knows it."""
        return self._known.get(node)

    def read_on(self) -> bool:
        """Read what is new, and return whether something is.

        Raises: `InputError` for a journal that is gone or damaged.
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
        except (
            FileNotFoundError
        ):  # it has just finished: next time the whole one is there
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
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def list_runs_beside(folder: Path) -> Iterator[Path]:
    """Yield the runs that learned what this one did, as far as their manifests tell.

    They lie in the same folder, or in a study's that lies there.
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
