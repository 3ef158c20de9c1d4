"""What a resumed run needs, at a round border: JSON for facts, safetensors for arrays, no code.

    checkpoint/state.json                 round, facts of each part, which segments count
    checkpoint/earlier.json               the same of the checkpoint before, to fall back to
    checkpoint/older-000016.json          the same of one long before, in case rows are damaged
    checkpoint/arrays-000050.safetensors  the arrays that a state names
    checkpoint/segments/*.parquet         rows recorded so far, each written once

A state carries the run's id, a digest of itself and one of its arrays, and names the last link of
each table's chain of segments. So a byte that has changed, files that changed places and files of
another run are found before anything is made of them. `state.json` is replaced last and at once: a
process that is killed leaves the old checkpoint or the new one.
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
from simfed.record import files
from simfed.record.digest import digest_file, digest_value
from simfed.record.journal import NAME, NOTHING, DamagedJournal, Journal, Prefix, check_prefix
from simfed.record.recorder import DamagedSegment, Recorder

FORMAT = 2
"""Version of the checkpoint's layout."""

_NEWEST, _EARLIER = "state.json", "earlier.json"

_LARGEST_OLDER_BYTES = 16 * 2**20
"""Larger states are not kept for long: there are as many as the run's rounds have binary digits."""

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Checkpoint:
    """A run between two rounds."""

    round: int
    """Rounds done."""
    facts: Mapping[str, Plain]
    """JSON-able state of each part, by the part's name."""
    arrays: Arrays


@dataclass(frozen=True)
class Loaded:
    """A checkpoint that was found whole."""

    checkpoint: Checkpoint
    segments: Mapping[str, Plain] | None
    """The recorder's state; None: rows come again."""
    name: str
    """The file that holds it."""
    journal: Prefix = NOTHING
    """What it goes with; of a run that keeps no journal, nothing."""
    warning: str | None = None
    """Which newer checkpoint was passed over, and why."""


_MALFORMED = (ValueError, LookupError, TypeError, AttributeError, OverflowError)
"""What reading a state raises that is no state."""

_BEGINNING = Loaded(Checkpoint(0, {}, {}), {}, "")
"""Of a run: no rounds are done, and no rows are recorded."""


class CheckpointFolder:
    """The folder `checkpoint` of the run with this id."""

    def __init__(self, path: Path, run: str) -> None:
        self.path = path
        self._run = run
        self._rounds: list[int] = []
        """Of the newest checkpoint and the one before, ascending."""

    @property
    def has_one(self) -> bool:
        """Whether there is a checkpoint, whole or not."""
        return any((self.path / name).exists() for name in self._names())

    def save(
        self, checkpoint: Checkpoint, recorder: Recorder, journal: Journal | None = None
    ) -> None:
        """A new checkpoint; the one before stays beside it.

        Of older ones those stay that are small and whose rounds are at least twice those of the
        next one: from wherever rows are damaged, at most half of the whole rounds before come
        again. The recorder's new rows become segments. Raises: `OSError`.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        if journal is None:
            recorder.flush()
        prefix = None if journal is None else journal.flush()
        arrays = self.path / _name_arrays_file(checkpoint.round)
        digest = _put_arrays(arrays, checkpoint.arrays)
        state = {
            "format": FORMAT,
            "run": self._run,
            "round": checkpoint.round,
            "arrays": {"file": arrays.name, "digest": digest},
            "segments": recorder.state() if journal is None else None,
            "journal": prefix,
            "facts": checkpoint.facts,
        }
        with files.named_after(self.path / _NEWEST, _seal_state(state)):
            if (self.path / _NEWEST).exists():
                self._keep_as_older()
                os.replace(self.path / _NEWEST, self.path / _EARLIER)
        self._rounds = [*self._rounds[-1:], checkpoint.round]
        self._delete_unnamed_arrays()

    def load(self, recorder: Recorder) -> Loaded | None:
        """The newest whole checkpoint, None where there is none; nothing is changed.

        Where a checkpoint is whole, but no rows are up to one, it is `_BEGINNING`: they come again
        when the run does. Raises: `InputError` that names the first damaged file where no
        checkpoint is whole.
        """
        damaged: InputError | None = None
        rows_alone = False
        for name in self._names():
            if not (self.path / name).exists():
                continue
            try:
                loaded = self._read(name, recorder)
            except InputError as error:
                damaged = damaged or error
                rows_alone |= isinstance(error, (DamagedSegment, DamagedJournal))
                continue
            if damaged is None:
                return loaded
            went_on = f"went on from an earlier checkpoint, after round {loaded.checkpoint.round}"
            return replace(loaded, warning=f"{damaged}; {went_on}")
        if damaged is None:
            return None
        if rows_alone:
            begun = "no checkpoint goes with what is left, so the run began at round 1 again"
            return replace(_BEGINNING, warning=f"{damaged}; {begun}")
        raise damaged.changed(hint="no other checkpoint is whole, --overwrite begins the run again")

    def take_up(self, loaded: Loaded, recorder: Recorder) -> None:
        """Go on from a checkpoint that `load` gave: what is newer than it goes."""
        names = self._names()
        begins_again = loaded.checkpoint.round == 0
        newer = names if begins_again else names[: names.index(loaded.name)]
        for name in reversed(newer):
            (self.path / name).unlink(missing_ok=True)
        if begins_again:
            recorder.restore(None)
            return
        if loaded.name != _NEWEST:
            os.replace(self.path / loaded.name, self.path / _NEWEST)
        self._rounds = [loaded.checkpoint.round]
        recorder.restore(loaded.segments)

    def delete_older(self) -> None:
        """Of a finished run, whose rows are in its tables, two states say enough."""
        for round in self._older_rounds():
            for name in (_name_older_file(round), _name_arrays_file(round)):
                (self.path / name).unlink(missing_ok=True)

    def sweep(self) -> None:
        """Delete what a killed process left half-written, arrays in the making included."""
        files.delete_partials(self.path)
        for left in self.path.glob(".tmp*"):  # as safetensors calls a file that is not whole yet
            left.unlink(missing_ok=True)

    def damages(self) -> list[InputError]:
        """What is wrong with the states and arrays that are kept of a finished run."""
        return [state for state in self._of_finished() if isinstance(state, InputError)]

    def kept(self) -> list[Loaded]:
        """The whole states of a finished run, the last one first."""
        return [state for state in self._of_finished() if isinstance(state, Loaded)]

    def _of_finished(self) -> Iterator[Loaded | InputError]:
        for name in (_NEWEST, _EARLIER):
            try:
                if (self.path / name).exists():
                    yield self._read(name, None)
            except InputError as error:
                yield error

    def _read(self, name: str, recorder: Recorder | None) -> Loaded:
        """`recorder` None: its segments are gone, as those of a finished run are."""
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        path = self.path / name
        try:
            state: Any = read_json(path)
            if state["format"] != FORMAT:
                raise _make_damage_error(path, f"it has format {state['format']}, not {FORMAT}")
            digest = state.pop("digest")
            if digest_value(state) != digest:
                raise _make_damage_error(path, "its content is not what its digest says")
            if state["run"] != self._run:
                raise _make_damage_error(path, f"it is of run {state['run']}, not {self._run}")
            arrays = self.path / state["arrays"]["file"]
            if not arrays.exists():
                raise _make_damage_error(arrays, "it is missing")
            if digest_file(arrays) != state["arrays"]["digest"]:
                raise _make_damage_error(arrays, "its content is not what its digest says")
            prefix = Prefix(*(state["journal"] or NOTHING))
            if recorder is not None and prefix.bytes:
                check_prefix(self.path.parent / NAME, prefix)
            elif recorder is not None:
                recorder.check(state["segments"])
            checkpoint = Checkpoint(int(state["round"]), state["facts"], load_file(arrays))
            return Loaded(checkpoint, state["segments"], name, prefix)
        except (*_MALFORMED, SafetensorError) as error:
            raise _make_damage_error(path, f"{type(error).__name__}: {error}") from error
        except OSError as error:
            raise _make_damage_error(path, error.strerror or str(error)) from error

    def _names(self) -> list[str]:
        """The files that may hold a state, the newest first."""
        older = [_name_older_file(round) for round in reversed(self._older_rounds())]
        return [_NEWEST, _EARLIER, *older]

    def _older_rounds(self) -> list[int]:
        """Of the checkpoints before the last two, ascending."""
        numbers = (path.stem.removeprefix("older-") for path in self.path.glob("older-*.json"))
        return sorted(int(number) for number in numbers if number.isdecimal())

    def _keep_as_older(self) -> None:
        """The last but one is about to be replaced: give it a name of its own, where it is to
        stay."""
        if len(self._rounds) < 2:
            return
        round, earlier = self._rounds[0], self.path / _EARLIER
        files = (earlier, self.path / _name_arrays_file(round))
        small = sum(file.stat().st_size for file in files) <= _LARGEST_OLDER_BYTES
        if small and round >= 2 * max(self._older_rounds(), default=0):
            os.replace(earlier, self.path / _name_older_file(round))

    def _delete_unnamed_arrays(self) -> None:
        named = {_name_arrays_file(round) for round in (*self._rounds, *self._older_rounds())}
        for path in self.path.glob("arrays-*.safetensors"):
            if path.name not in named:
                path.unlink()


def _name_arrays_file(round: int) -> str:
    """The file with the arrays of the checkpoint after this round."""
    return f"arrays-{round:06d}.safetensors"


def _name_older_file(round: int) -> str:
    """The file with the state after this round, where it is before the last two."""
    return f"older-{round:06d}.json"


def _put_arrays(path: Path, arrays: Arrays) -> str:
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    whole = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    digest = ""

    def write(temporary: Path) -> None:
        nonlocal digest
        save_file(whole, temporary)
        digest = digest_file(temporary)

    try:
        files.put_file(path, write)
    except SafetensorError as error:  # it wraps what the disk says
        number = re.search(r"(?:os error|code:) (\d+)", str(error))
        if number is None:
            raise OSError(str(error)) from error
        code = int(number[1])
        raise OSError(code, os.strerror(code), str(path)) from error
    return digest


def _seal_state(state: Mapping[str, Plain]) -> str:
    """JSON with a digest of the rest as its last key."""
    return json.dumps({**state, "digest": digest_value(state)})


def _make_damage_error(path: Path, got: str) -> InputError:
    return InputError("a whole checkpoint file of this run", where=str(path), problem=got)
