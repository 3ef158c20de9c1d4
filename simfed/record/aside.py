"""Sets aside the run that another one replaces, and puts it back if that fails.

The folder stays, so that a link to it, a mount or a shell in it stays good; only what
simfed wrote is moved, into a hidden folder inside. Whatever is killed when, `recover`
knows from two files what there is to do: the old run's manifest leaves last and comes
back first.
"""

from __future__ import annotations

import os
import shutil
from itertools import chain
from pathlib import Path
from typing import Any

from simfed.ground.errors import InputError
from simfed.ground.inputs import read_json
from simfed.record import files, journal
from simfed.record.checkpoint import CheckpointFolder
from simfed.record.lock import LOCK
from simfed.record.schema import TABLES

_ASIDE = ".replaced"
_DOOMED = ".replaced-gone"
_MANIFEST = "manifest.json"
_OURS = {
    "scenario.yaml",
    "summary.json",
    "calibration",
    "network",
    "plugins",
    "checkpoint",
    journal.NAME,
    journal.COMPRESSED,
    *(f"{name}.parquet" for name in TABLES),
    # what `simfed run`, `timeline` and `report` draw unless told elsewhere
    "accuracy.png",
    *(f"timeline.{kind}" for kind in ("png", "svg", "pdf", "html", "json.gz")),
    "report.html",
}


def list_written(folder: Path) -> list[Path]:
    """Return the files that simfed wrote for the run in `folder`, the manifest last.

    Files of other programs in the same folder are not among them, nor are the lock,
    files without their names yet, and a run that was set aside.
    """
    names = {path.name for path in folder.iterdir()} & {*_OURS, _MANIFEST}
    ordered = sorted(names, key=lambda name: (name == _MANIFEST, name))
    return [folder / name for name in ordered]


def find_link(folder: Path) -> Path | None:
    """Return a link among the files that simfed writes in a run's folder, else None.

    Through a link something elsewhere would be written or deleted; simfed makes none. A
    folder that is not there has none.
    """
    names = {*_OURS, _MANIFEST, LOCK, _ASIDE, _DOOMED}
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.name in names or files.is_partial(path):
            for inner in chain([path], path.rglob("*")):
                if inner.is_symlink():
                    return inner
    return None


def set_aside(folder: Path) -> None:
    """Move the run in `folder` out of the way, whole or not at all.

    The manifest leaves last, so a process that is killed on the way leaves one that
    `recover` knows. A run must not be aside already.

    Raises:
        OSError: the disk refuses; the run is back then.
    """
    (folder / _ASIDE).mkdir()
    try:
        for path in list_written(folder):
            os.replace(path, folder / _ASIDE / path.name)
    except BaseException:
        _return_run(folder)
        raise


def is_there(folder: Path) -> bool:
    """Return whether a run is aside in `folder`."""
    return (folder / _ASIDE).is_dir()


def is_left_over(path: Path) -> bool:
    """Return whether `path` is what is left of a run that was being deleted."""
    return path.name == _DOOMED


def delete_run(folder: Path) -> None:
    """Delete the run in `folder`, and what a killed process left half-written.

    Files of other programs stay, and so does a run that is aside.
    """
    for path in list_written(folder):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    files.delete_partials(folder)


def put_back(folder: Path) -> None:
    """Delete the run in `folder`, and bring back the one that is aside, if any."""
    delete_run(folder)
    _return_run(folder)


def drop(folder: Path) -> None:
    """Delete the run that is aside, if there is one.

    It is renamed first, so that a process that is killed on the way leaves nothing that
    `recover` could take for a run.
    """
    if is_there(folder):
        shutil.rmtree(folder / _DOOMED, ignore_errors=True)
        # at once: half of it must never come back
        os.replace(folder / _ASIDE, folder / _DOOMED)
    shutil.rmtree(folder / _DOOMED, ignore_errors=True)


def recover(folder: Path) -> None:
    """Finish what a killed process began with a run that is aside.

    That run goes where the new one has a checkpoint or is finished, and comes back
    where it has neither. To be called with the folder locked.
    """
    aside = folder / _ASIDE
    if not aside.is_dir() or _has_something(folder):
        drop(folder)
    elif (aside / _MANIFEST).exists():
        put_back(folder)
    else:  # killed on the way out or back: nothing was written in its place
        _return_run(folder)


def _has_something(folder: Path) -> bool:
    """Return whether the run in `folder` has a checkpoint or is finished.

    Only asked with another aside.
    """
    if not (folder / _ASIDE / _MANIFEST).exists():
        return False  # the one in `folder` is that run itself
    if CheckpointFolder(folder / "checkpoint", "").has_one:
        return True
    try:
        manifest: Any = read_json(folder / _MANIFEST)
        return bool(manifest["status"] == "finished")
    except (InputError, LookupError, TypeError):
        return False


def _return_run(folder: Path) -> None:
    """Bring the run that is aside back, the manifest first."""
    aside = folder / _ASIDE
    if not aside.is_dir():
        return
    for path in sorted(aside.iterdir(), key=lambda path: path.name != _MANIFEST):
        os.replace(path, folder / path.name)
    aside.rmdir()
