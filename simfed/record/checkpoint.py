"""What a resumed run needs, at a round border: JSON for facts, safetensors for arrays, no code.

    checkpoint/state.json                 round, facts of each part, how many segments count
    checkpoint/arrays-000050.safetensors  the arrays that state.json names
    checkpoint/segments/*.parquet         rows recorded so far, each written once

`state.json` is replaced last and at once, so a checkpoint is either the old or the new one.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from simfed.errors import InputError
from simfed.record import files
from simfed.record.recorder import Recorder
from simfed.record.schema import FORMAT

__all__ = ["Checkpoint", "load", "save"]

Arrays = Mapping[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Checkpoint:
    """A run between two rounds."""

    round: int
    """Rounds done."""
    facts: Mapping[str, Any]
    """JSON-able state of each part, by the part's name."""
    arrays: Arrays


def save(folder: Path, checkpoint: Checkpoint, recorder: Recorder) -> None:
    """Replace the checkpoint in `folder`; the recorder's new rows become segments."""
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    recorder.flush()
    arrays = folder / f"arrays-{checkpoint.round:06d}.safetensors"
    whole = {name: np.ascontiguousarray(array) for name, array in checkpoint.arrays.items()}
    try:
        files.put(arrays, lambda temporary: save_file(whole, temporary))
    except SafetensorError as error:  # it wraps what the disk says
        number = re.search(r"(?:os error|code:) (\d+)", str(error))
        if number is None:
            raise OSError(str(error)) from error
        code = int(number[1])
        raise OSError(code, os.strerror(code), str(arrays)) from error
    state = {
        "format": FORMAT,
        "round": checkpoint.round,
        "arrays": arrays.name,
        "segments": recorder.state(),
        "facts": checkpoint.facts,
    }
    files.put(folder / "state.json", lambda temporary: temporary.write_text(json.dumps(state)))
    for old in folder.glob("arrays-*.safetensors"):
        if old != arrays:
            old.unlink()


def load(folder: Path, recorder: Recorder) -> Checkpoint | None:
    """The checkpoint in `folder`, None if there is none; the recorder goes on after its rows.

    Raises: `InputError` for one that is damaged.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    path = folder / "state.json"
    if not path.exists():
        recorder.restore(dict.fromkeys(recorder.state(), 0))
        return None
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
        if state["format"] != FORMAT:
            raise InputError(
                f"a checkpoint of format {FORMAT}", where=str(path), got=state["format"]
            )
        arrays = load_file(folder / state["arrays"])
        checkpoint = Checkpoint(int(state["round"]), state["facts"], arrays)
        recorder.restore(state["segments"])
    except (ValueError, KeyError, TypeError, OSError, SafetensorError) as error:
        raise InputError(
            "a whole checkpoint", where=str(path), got=f"{type(error).__name__}: {error}"
        ) from error
    return checkpoint
