"""Checkpoints: what a run has learned, and the length of the journal that goes with it.

    checkpoint/state.json                 round, facts, the journal's part
    checkpoint/earlier.json               the same of the checkpoint before
    checkpoint/arrays-000050.safetensors  the arrays that a state names

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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from simfed.ground.errors import InputError
from simfed.ground.inputs import read_json
from simfed.ground.plain import Plain
from simfed.ground.writing import replacing
from simfed.record import files
from simfed.record.digest import digest_file, digest_value
from simfed.record.journal import NAME, NOTHING, DamagedJournal, Prefix, check_prefix

FORMAT = 3
"""Version of the checkpoint's layout."""

_NEWEST, _EARLIER = "state.json", "earlier.json"
_NAMES = _NEWEST, _EARLIER
"""The files that may hold a state, the newest first."""

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Checkpoint:
    """The learned state of a run between two rounds."""

    round: int
    """Rounds done."""
    facts: Mapping[str, Plain]
    """JSON-able."""
    arrays: Arrays
    journal: Prefix
    """The part of the journal that it goes with."""
    warning: str | None = None
    """A sentence on the newer one that was passed over, and why."""


_MALFORMED = (ValueError, LookupError, TypeError, AttributeError, OverflowError)
"""The exceptions that reading raises for what is no state."""

_BEGINNING = Checkpoint(0, {}, {}, NOTHING)
"""The beginning of a run: no rounds are done."""


class CheckpointFolder:
    """The folder `checkpoint` of the run with this id."""

    def __init__(self, path: Path, run: str) -> None:
        self.path = path
        self._run = run

    @property
    def has_one(self) -> bool:
        """True if there is a checkpoint, whole or not."""
        return any((self.path / name).exists() for name in _NAMES)

    def save(self, checkpoint: Checkpoint) -> None:
        """Save a new checkpoint; the one before stays beside it.

        Raises: `OSError`.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        arrays = self.path / _name_arrays_file(checkpoint.round)
        digest = _put_arrays(arrays, checkpoint.arrays)
        state = {
            "format": FORMAT,
            "run": self._run,
            "round": checkpoint.round,
            "arrays": {"file": arrays.name, "digest": digest},
            "journal": checkpoint.journal,
            "facts": checkpoint.facts,
        }
        with files.named_after(self.path / _NEWEST, _seal_state(state)):
            if (self.path / _NEWEST).exists():
                os.replace(self.path / _NEWEST, self.path / _EARLIER)
        self._delete_unnamed_arrays()

    def load(self) -> Checkpoint | None:
        """Return the newest whole checkpoint, None where there is none.

        Nothing is changed.

        Where a checkpoint is whole, but the journal is not up to one, it is that of the
        beginning, with a warning: what was learned is lost. Raises: `InputError` that
        names the first damaged file where no checkpoint is whole.
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
            begun = "no checkpoint goes with what is left, so the run began at round 1 again"
            return replace(_BEGINNING, warning=f"{damaged}; {begun}")
        raise damaged.changed(hint="no other checkpoint is whole, --overwrite begins the run again")

    def take_up(self, loaded: Checkpoint) -> None:
        """Go on from a checkpoint that `load` gave: what is newer than it goes."""
        if not loaded.round:
            for name in _NAMES:
                (self.path / name).unlink(missing_ok=True)
        elif loaded.warning is not None:
            os.replace(self.path / _EARLIER, self.path / _NEWEST)

    def sweep(self) -> None:
        """Delete files that a killed process left half-written, arrays included."""
        files.delete_partials(self.path)
        # as safetensors calls a file that is not whole yet
        for left in self.path.glob(".tmp*"):
            left.unlink(missing_ok=True)

    def damages(self) -> list[InputError]:
        """Return the damages of a finished run's states and arrays."""
        return [state for state in self._of_finished() if isinstance(state, InputError)]

    def kept(self) -> list[Checkpoint]:
        """Return the whole states of a finished run, the last one first."""
        return [state for state in self._of_finished() if isinstance(state, Checkpoint)]

    def _of_finished(self) -> Iterator[Checkpoint | InputError]:
        for name in _NAMES:
            try:
                if (self.path / name).exists():
                    yield self._read(name)
            except InputError as error:
                yield error

    def _read(self, name: str) -> Checkpoint:
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        path = self.path / name
        try:
            state: Any = read_json(path)
            if state["format"] != FORMAT:
                raise _make_damage_error(path, (f"it has format {state['format']}, not {FORMAT}"))
            digest = state.pop("digest")
            if digest_value(state) != digest:
                raise _make_damage_error(path, ("its content is not what its digest says"))
            if state["run"] != self._run:
                raise _make_damage_error(path, (f"it is of run {state['run']}, not {self._run}"))
            arrays = self.path / state["arrays"]["file"]
            if not arrays.exists():
                raise _make_damage_error(arrays, "it is missing")
            if digest_file(arrays) != state["arrays"]["digest"]:
                raise _make_damage_error(arrays, ("its content is not what its digest says"))
            prefix = Prefix(*state["journal"])
            if not isinstance(prefix.bytes, int) or prefix.bytes < 0:
                raise _make_damage_error(path, f"its journal has {prefix.bytes} bytes")
            return Checkpoint(int(state["round"]), state["facts"], load_file(arrays), prefix)
        except InputError:
            raise
        except (*_MALFORMED, SafetensorError) as error:
            raise _make_damage_error(path, (f"{type(error).__name__}: {error}")) from error
        except OSError as error:
            raise _make_damage_error(path, error.strerror or str(error)) from error

    def _delete_unnamed_arrays(self) -> None:
        """Delete arrays that neither state names."""
        named = set()
        for name in _NAMES:
            if (self.path / name).exists():
                state: Any = read_json(self.path / name)
                named.add(state["arrays"]["file"])
        for path in self.path.glob("arrays-*.safetensors"):
            if path.name not in named:
                path.unlink()


def _name_arrays_file(round: int) -> str:
    """Return the file with the arrays of the checkpoint after this round."""
    return f"arrays-{round:06d}.safetensors"


def _put_arrays(path: Path, arrays: Arrays) -> str:
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
    return digest


def _seal_state(state: Mapping[str, Plain]) -> str:
    """Return a state as JSON with a digest of the rest as its last key."""
    return json.dumps({**state, "digest": digest_value(state)})


def _make_damage_error(path: Path, got: str) -> InputError:
    return InputError("a whole checkpoint file of this run", where=str(path), problem=got)
