"""Checkpoints: what a run has learned, and the length of the journal that goes with it.

    checkpoint/state.json                 round, facts, the journal's part
    checkpoint/earlier.json               the same of the checkpoint before
    checkpoint/arrays-000050.safetensors  the arrays that a state names
    checkpoint/links/                     files of further arrays, never changed

A state carries the run's id, a digest of itself, one of its arrays and one of the part
of the journal that it goes with. So a byte that has changed, files that changed places
and files of another run are found before anything is made of them. `state.json` is
replaced last and at once: a process that is killed leaves the old checkpoint or the new
one.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from simfed.ground.errors import InputError
from simfed.ground.inputs import read_json
from simfed.ground.plain import Plain
from simfed.ground.writing import replacing
from simfed.record import files
from simfed.record.digest import digest_file, digest_value
from simfed.record.journal import NAME, NOTHING, DamagedJournal, Prefix, check_prefix

FORMAT = 4
"""Version of the checkpoint's layout."""

_NEWEST, _EARLIER = "state.json", "earlier.json"
_NAMES = _NEWEST, _EARLIER
"""The files that may hold a state, the newest first."""
_LINKS = "links"
UNDER_WAY = "clients"
"""The folder of files that the run has for itself; checkpoints have links of those that
they need, so a file goes when nobody needs it any longer."""


class FileOfArrays(NamedTuple):
    """A safetensors file that is never changed, with the digest of its content.

    Checkpoints name such files and have links of them, so saving one does not write
    again what has not changed since the last.
    """

    path: Path
    digest: str

    def load(self) -> dict[str, np.ndarray]:
        """Return the file's arrays by name.

        Raises:
            InputError: it is missing, or its content is not what its digest says.
        """
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        try:
            self.check()
            return load_file(self.path)
        except (OSError, SafetensorError) as error:
            raise _make_damage_error(self.path, str(error)) from error

    def check(self) -> None:
        """Read the file and hold its content against its digest.

        Raises:
            InputError: it is missing, or its content is not what its digest says.
        """
        if not self.path.exists():
            raise _make_damage_error(self.path, "it is missing")
        if digest_file(self.path) != self.digest:
            raise _make_damage_error(
                self.path, "its content is not what its digest says"
            )


Arrays = Mapping[str, Any]
"""By name; a `FileOfArrays` by that with which those of its arrays begin, once it is
loaded each of them by its own."""


class FiledArrays(Mapping[str, np.ndarray]):
    """A mapping of arrays, some of which are read from files when they are asked for.

    The first two words of an array's name are the key of its file in `files`:
    `clients/3` has all arrays of client 3. The file that was read last is kept in
    memory, the others are not.
    """

    def __init__(
        self, arrays: Mapping[str, np.ndarray], files: Mapping[str, FileOfArrays]
    ) -> None:
        self._arrays, self.files = arrays, files
        self._last: tuple[str, Mapping[str, np.ndarray]] = "", {}

    def __getitem__(self, name: str) -> np.ndarray:
        if name in self._arrays:
            return self._arrays[name]
        first = "/".join(name.split("/")[:2])
        if self._last[0] != first:
            self._last = first, self.files[first].load()
        return self._last[1][name]

    def __iter__(self) -> Iterator[str]:
        yield from self._arrays
        for file in self.files.values():
            yield from file.load()

    def __len__(self) -> int:
        return sum(1 for _ in self)


@dataclass(frozen=True)
class Checkpoint:
    """The learned state of a run between two rounds, as `checkpoint/` holds it.

    Weights, residuals and own models are arrays (safetensors), everything else is JSON.
    Left out is the state of the clock: the journal plays that again. Nothing in it is
    code or a pickle.

    `RunDirectory.save_checkpoint` makes them, `RunDirectory.last` has the one that a
    run goes on from.
    """

    round: int
    """Rounds done."""
    facts: Mapping[str, Plain]
    """JSON-able."""
    arrays: Arrays
    """Of one that was loaded, those of files are read when they are asked for."""
    journal: Prefix
    """The part of the journal that it goes with."""
    warning: str | None = None
    """A sentence on the newer one that was passed over, and why."""


_MALFORMED = (ValueError, LookupError, TypeError, AttributeError, OverflowError)
"""The exceptions that reading raises for what is no state."""

_BEGINNING = Checkpoint(0, {}, {}, NOTHING)
"""The beginning of a run: no rounds are done."""


class CheckpointFolder:
    """The folder `checkpoint` of one run: saves states and finds whole ones.

    At most two states are in it, the newest and the one before. A folder that is not
    there has none. States carry the id of their run, and those of another one are
    damaged.
    """

    def __init__(self, path: Path, run: str) -> None:
        self.path = path
        self._run = run

    @property
    def has_one(self) -> bool:
        """True if there is a checkpoint, whole or not."""
        return any((self.path / name).exists() for name in _NAMES)

    def save(self, checkpoint: Checkpoint) -> None:
        """Save a new checkpoint; the one before stays beside it.

        Arrays of older ones are deleted.

        Raises:
            OSError: the disk refuses; the checkpoint before is still the newest then.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        arrays = self.path / f"arrays-{checkpoint.round:06d}.safetensors"
        files_of = {
            name: array
            for name, array in checkpoint.arrays.items()
            if isinstance(array, FileOfArrays)
        }
        whole = {
            n: array for n, array in checkpoint.arrays.items() if n not in files_of
        }
        digest = put_arrays(arrays, whole).digest
        for file in files_of.values():
            self._link(file.path)
        state = {
            "format": FORMAT,
            "run": self._run,
            "round": checkpoint.round,
            "arrays": {"file": arrays.name, "digest": digest},
            "files": {
                name: [file.path.name, file.digest] for name, file in files_of.items()
            },
            "journal": checkpoint.journal,
            "facts": checkpoint.facts,
        }
        sealed = json.dumps({**state, "digest": digest_value(state)})
        with files.write_named_after(self.path / _NEWEST, sealed):
            if (self.path / _NEWEST).exists():
                os.replace(self.path / _NEWEST, self.path / _EARLIER)
        self._delete_unnamed_arrays()

    def load(self) -> Checkpoint | None:
        """Return the newest whole checkpoint, None where there is none.

        Nothing is changed. Where a state is damaged it is the one before, with a
        `warning`. Where states are whole but the journal does not reach up to them, it
        is the run's beginning (`round` 0), with a `warning`: what was learned is lost.

        Raises:
            InputError: no checkpoint is whole; it names the first damaged file.
        """
        damaged: InputError | None = None
        journal_alone = False
        for name in _NAMES:
            if not (self.path / name).exists():
                continue
            try:
                loaded = self._read(name)
                check_prefix(self.path.parent / NAME, loaded.journal)
            except InputError as error:
                damaged = damaged or error
                journal_alone |= isinstance(error, DamagedJournal)
                continue
            if damaged is None:
                return loaded
            went_on = f"went on from an earlier checkpoint, after round {loaded.round}"
            return replace(loaded, warning=f"{damaged}; {went_on}")
        if damaged is None:
            return None
        if journal_alone:
            begun = (
                "no checkpoint goes with what is left, so the run began at round "
                "1 again"
            )
            return replace(_BEGINNING, warning=f"{damaged}; {begun}")
        raise damaged.changed(
            hint="no other checkpoint is whole, --overwrite begins the run again"
        )

    def take_up(self, loaded: Checkpoint) -> None:
        """Make a checkpoint that `load` returned the newest one; what is newer goes."""
        if not loaded.round:
            for name in _NAMES:
                (self.path / name).unlink(missing_ok=True)
        elif loaded.warning is not None:
            os.replace(self.path / _EARLIER, self.path / _NEWEST)

    def sweep(self) -> None:
        """Delete files that a killed process left half-written, arrays included.

        The run's own folder of clients' files goes too: checkpoints have links of those
        that they need.
        """
        files.delete_partials(self.path)
        # as safetensors calls a file that is not whole yet
        for left in self.path.glob(".tmp*"):
            left.unlink(missing_ok=True)
        shutil.rmtree(self.path / UNDER_WAY, ignore_errors=True)

    def list_damages(self) -> list[InputError]:
        """Return the errors of a finished run's states and their arrays.

        Unlike `load` it leaves the journal out, which a finished run has compressed.
        """
        return [
            state for state in self._list_finished() if isinstance(state, InputError)
        ]

    def kept(self) -> list[Checkpoint]:
        """Return the whole states of a finished run, the last one first."""
        return [
            state for state in self._list_finished() if isinstance(state, Checkpoint)
        ]

    def _list_finished(self) -> Iterator[Checkpoint | InputError]:
        """Yield the states of a finished run, the newest first, or their damages."""
        for name in _NAMES:
            try:
                if (self.path / name).exists():
                    yield self._read(name)
            except InputError as error:
                yield error

    def _read(self, name: str) -> Checkpoint:
        """Return the state of a file, with its arrays read and their digests checked.

        Raises:
            InputError: something in it is not as it was written, or of another run.
        """
        path = self.path / name
        try:
            state: Any = read_json(path)
            if state["format"] != FORMAT:
                raise _make_damage_error(
                    path, f"it has format {state['format']}, not {FORMAT}"
                )
            digest = state.pop("digest")
            if digest_value(state) != digest:
                raise _make_damage_error(
                    path, "its content is not what its digest says"
                )
            if state["run"] != self._run:
                raise _make_damage_error(
                    path, f"it is of run {state['run']}, not {self._run}"
                )
            arrays = FileOfArrays(
                self.path / state["arrays"]["file"], state["arrays"]["digest"]
            )
            filed = {
                name: FileOfArrays(self.path / _LINKS / file, digest)
                for name, (file, digest) in state["files"].items()
            }
            for file in filed.values():
                file.check()
            whole: Mapping[str, np.ndarray] = arrays.load()
            whole = FiledArrays(whole, filed) if filed else whole
            prefix = Prefix(*state["journal"])
            if not isinstance(prefix.bytes, int) or prefix.bytes < 0:
                raise _make_damage_error(path, f"its journal has {prefix.bytes} bytes")
            return Checkpoint(int(state["round"]), state["facts"], whole, prefix)
        except InputError:
            raise
        except _MALFORMED as error:
            raise _make_damage_error(
                path, f"{type(error).__name__}: {error}"
            ) from error
        except OSError as error:
            raise _make_damage_error(path, error.strerror or str(error)) from error

    def _link(self, path: Path) -> None:
        """Link a file that is never changed into the checkpoint, unless it is there."""
        link = self.path / _LINKS / path.name
        if not link.exists():
            link.parent.mkdir(exist_ok=True)
            os.link(path, link)

    def _delete_unnamed_arrays(self) -> None:
        """Delete arrays that neither state names."""
        named = set()
        for name in _NAMES:
            if (self.path / name).exists():
                state: Any = read_json(self.path / name)
                named.add(state["arrays"]["file"])
                named.update(file for file, _ in state["files"].values())
        links = (self.path / _LINKS).glob("*")
        for path in (*self.path.glob("arrays-*.safetensors"), *links):
            if path.name not in named:
                path.unlink()


def put_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> FileOfArrays:
    """Write arrays to a safetensors file, and return it with its digest.

    Args:
        path: its file; one of this name is replaced at once.
        arrays: by name, of any shape and dtype that safetensors knows.

    Raises:
        OSError: the disk refuses.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    whole = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    try:
        with replacing(path) as temporary:
            save_file(whole, temporary)
            digest = digest_file(temporary)
    except SafetensorError as error:  # it wraps what the disk says
        number = re.search(r"(?:os error|code:) (\d+)", str(error))
        if number is None:
            raise OSError(str(error)) from error
        code = int(number[1])
        raise OSError(code, os.strerror(code), str(path)) from error
    return FileOfArrays(path, digest)


def _make_damage_error(path: Path, got: str) -> InputError:
    return InputError(
        "a whole checkpoint file of this run", where=str(path), problem=got
    )
