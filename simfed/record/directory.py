"""Writing a run directory: one run, never half of one that looks whole, never over another.

The folder appears with `scenario.yaml` and a `manifest.json` that says `running`. Tables get their
names when they are whole; the manifest says `finished` last. Whatever happens in between, a reader
knows that the run is not done, and a resumed run finds its checkpoint.
"""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simfed.errors import InputError, RunFailed
from simfed.record import checkpoint as checkpoints
from simfed.record import files
from simfed.record.checkpoint import Checkpoint
from simfed.record.digest import Fingerprint
from simfed.record.read import read_manifest
from simfed.record.recorder import Recorder
from simfed.record.schema import FORMAT, TABLES, arrow_schema

__all__ = ["RunDirectory"]

_ROWS_PER_GROUP = 250_000


class RunDirectory:
    """A run directory that is being written.

    Made by `create` (a new run) or `resume` (one that stopped on its way).
    """

    def __init__(self, path: Path, manifest: dict[str, Any]) -> None:
        self.path = path
        self.manifest = manifest
        self.checkpoint_folder = path / "checkpoint"

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        *,
        scenario_yaml: str,
        manifest: Mapping[str, Any],
        overwrite: bool = False,
    ) -> RunDirectory:
        """Begin a new run in a new or empty folder.

        `overwrite`: replace the folder of a run; one that holds no run is never touched.
        Raises: `InputError`.
        """
        path = Path(path)
        made = cls(path, {"format": FORMAT, **manifest, "status": "running"})
        temporary = path.with_name(f".{path.name}.partial-{os.getpid()}")
        try:
            _make_room(path, overwrite)
            temporary.mkdir(parents=True)
            files.put_text(temporary / "scenario.yaml", scenario_yaml)
            files.put_json(temporary / "manifest.json", made.manifest)
            os.replace(temporary, path)
        except OSError as error:
            shutil.rmtree(temporary, ignore_errors=True)
            raise InputError(
                "a folder that can be written", where=str(path), got=error.strerror
            ) from error
        return made

    @classmethod
    def resume(cls, path: str | os.PathLike[str], *, scenario_yaml: str, mode: str) -> RunDirectory:
        """Go on with a run that was interrupted, failed or died.

        `mode` is the manifest's (`full` or `time-only`); like the scenario it must be the same as
        when the run began. Raises: `InputError`.
        """
        path = Path(path)
        manifest = read_manifest(path)
        if manifest["status"] == "finished":
            raise InputError("a run that is not finished", where=str(path), got="a finished one")
        begun = (path / "scenario.yaml").read_text(encoding="utf-8")
        if begun != scenario_yaml:
            raise InputError(
                "the scenario that this run began with", where=f"{path}/scenario.yaml",
                got=_first_difference(begun, scenario_yaml),
            )  # fmt: skip
        if manifest.get("mode") != mode:
            raise InputError(
                f"a {manifest.get('mode')} run, as it began", where=str(path), got=mode
            )
        files.sweep(path)
        resumed = cls(path, {**manifest, "status": "running"})
        resumed.manifest.pop("reason", None)
        files.put_json(path / "manifest.json", resumed.manifest)
        return resumed

    def recorder(self, *, rows_in_memory: int = 200_000) -> Recorder:
        """A recorder that spills into this directory."""
        return Recorder(self.checkpoint_folder / "segments", rows_in_memory=rows_in_memory)

    def save_checkpoint(self, checkpoint: Checkpoint, recorder: Recorder) -> None:
        """Replace the checkpoint."""
        try:
            checkpoints.save(self.checkpoint_folder, checkpoint, recorder)
        except OSError as error:
            raise RunFailed(
                f"{self.checkpoint_folder}: cannot be written ({error.strerror}); "
                "the last whole checkpoint is kept, --resume goes on from it"
            ) from error

    def load_checkpoint(self, recorder: Recorder) -> Checkpoint | None:
        """The checkpoint to go on from; None: there is none, begin at the beginning."""
        return checkpoints.load(self.checkpoint_folder, recorder)

    def stop(self, status: str, reason: str) -> None:
        """The run ends here for now: `interrupted` or `failed`, with its reason in one sentence."""
        self.manifest.update(status=status, reason=reason)
        files.put_json(self.path / "manifest.json", self.manifest)

    def finish(
        self, recorder: Recorder, *, manifest: Mapping[str, Any], summary: Mapping[str, Any]
    ) -> str:
        """Write the tables, the summary and, last, the manifest; give the fingerprint.

        The checkpoint's state stays (it holds the trained weights), its segments go: the tables
        have their rows now.
        """
        try:
            running = Fingerprint()
            for name in TABLES:
                write = functools.partial(
                    _write_table, name=name, recorder=recorder, running=running
                )
                files.put(self.path / f"{name}.parquet", write)
            files.put_json(self.path / "summary.json", summary)
            self.manifest.update(manifest, fingerprint=running.hexdigest(), status="finished")
            files.put_json(self.path / "manifest.json", self.manifest)
        except OSError as error:
            raise RunFailed(
                f"{self.path}: cannot be written ({error.strerror}); "
                "the last checkpoint is kept, --resume goes on from it"
            ) from error
        shutil.rmtree(self.checkpoint_folder / "segments", ignore_errors=True)
        return str(self.manifest["fingerprint"])


def _make_room(path: Path, overwrite: bool) -> None:
    if not path.exists():
        return
    if not path.is_dir():
        raise InputError("a folder", where=str(path), got="a file")
    if not any(path.iterdir()):
        return
    try:
        read_manifest(path)
    except InputError:
        raise InputError(
            "a new or empty folder", where=str(path), got="a folder with other files in it"
        ) from None
    if not overwrite:
        raise InputError(
            "a new or empty folder", where=str(path), got="one that holds a run",
            hint="--resume goes on with an unfinished run, --overwrite replaces it",
        )  # fmt: skip
    shutil.rmtree(path)


def _write_table(path: Path, name: str, recorder: Recorder, running: Fingerprint) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    def write(pieces: list[pa.Table]) -> None:
        writer.write_table(pa.concat_tables(pieces).combine_chunks())

    with pq.ParquetWriter(path, arrow_schema(name), compression="zstd") as writer:
        waiting: list[pa.Table] = []
        for piece in recorder.batches(name):
            running.add(name, piece)
            waiting.append(piece)
            if sum(map(len, waiting)) >= _ROWS_PER_GROUP:
                write(waiting)
                waiting = []
        if waiting:
            write(waiting)


def _first_difference(begun: str, now: str) -> str:
    ours, theirs = begun.splitlines(), now.splitlines()
    for was, is_ in zip(ours, theirs, strict=False):
        if was != is_:
            return f"{is_.strip()} in place of {was.strip()}"
    return "more or fewer lines"
