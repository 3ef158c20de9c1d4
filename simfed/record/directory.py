"""Writing a run directory: one run, never half of one that looks whole, never over another.

The folder begins with a `manifest.json` that says `running`. Tables get their names when they are
whole; the manifest says `finished` last. Whatever happens in between, a reader knows that the run
is not done, and a resumed run finds its checkpoint.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from simfed.errors import InputError, RunFailed
from simfed.record import aside, files
from simfed.record import checkpoint as checkpoints
from simfed.record.checkpoint import Checkpoint
from simfed.record.digest import Fingerprint, scenario_digest
from simfed.record.lock import LOCK, held
from simfed.record.read import read_manifest
from simfed.record.recorder import Recorder
from simfed.record.schema import FORMAT, OPTIONAL_TABLES, TABLES

__all__ = ["RunDirectory", "reserved"]

_ROWS_PER_GROUP = 250_000


class RunDirectory:
    """A run directory that is being written.

    Made by `create` (a new run) or `resume` (one that stopped on its way), inside `reserved`
    wherever another process could have the same idea.
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
        beside: Mapping[str, bytes] | None = None,
    ) -> RunDirectory:
        """Begin a new run in a new or empty folder.

        `overwrite`: replace the run in the folder. It is out of the way until the new one has a
        checkpoint or is finished, and `abandon` brings it back; files that simfed did not write
        stay. `beside`: further files, by their place in the folder. Raises: `InputError`.
        """
        path = Path(path)
        _refuse_others(path, overwrite)
        made = cls(
            path,
            {
                "format": FORMAT, **manifest,
                "scenario_sha256": scenario_digest(scenario_yaml), "status": "running",
            },
        )  # fmt: skip
        with _writing(path):
            path.mkdir(parents=True, exist_ok=True)
            if (path / "manifest.json").exists():
                aside.set_aside(path)
            try:
                files.put_json(path / "manifest.json", made.manifest)
                for name, content in (beside or {}).items():
                    (path / name).parent.mkdir(exist_ok=True)
                    (path / name).write_bytes(content)
                files.put_text(path / "scenario.yaml", scenario_yaml)
            except BaseException:
                made.abandon()
                raise
        return made

    @classmethod
    def resume(
        cls, path: str | os.PathLike[str], *, scenario_yaml: str, mode: str, device: str = "cpu"
    ) -> RunDirectory:
        """A run that was interrupted, failed or died; nothing is changed before `go_on`.

        `mode` and `device` are the manifest's (`full` or `time-only`, where it learns); like the
        scenario they must be the same as when the run began. Raises: `InputError`.
        """
        path = Path(path)
        manifest = _unfinished(path)
        if not (path / "scenario.yaml").is_file():
            raise InputError("a run directory with scenario.yaml", where=str(path), got="none")
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
        if manifest.get("device", device) != device:  # its last bits would be another machine's
            raise InputError(
                f"a run that learns on {manifest['device']}, as it began",
                where=str(path),
                got=device,
            )
        resumed = cls(path, {**manifest, "status": "running"})
        resumed.manifest.pop("reason", None)
        return resumed

    def go_on(self) -> None:
        """Say that the run is under way again."""
        with _writing(self.path):
            files.sweep(self.path)
            files.put_json(self.path / "manifest.json", self.manifest)

    @property
    def has_checkpoint(self) -> bool:
        """Whether there is a state to go on from."""
        return (self.checkpoint_folder / "state.json").exists()

    @property
    def replaces(self) -> bool:
        """Whether an older run is only out of the way."""
        return aside.is_there(self.path)

    def abandon(self) -> None:
        """Nothing came of the run: its files go, and the run that it was to replace is back."""
        with contextlib.suppress(OSError):  # what is left, the next one who writes here clears up
            aside.put_back(self.path)

    def recorder(self, *, rows_in_memory: int = 50_000, losses: tuple[str, ...] = ()) -> Recorder:
        """A recorder that spills into this directory."""
        folder = self.checkpoint_folder / "segments"
        return Recorder(folder, rows_in_memory=rows_in_memory, losses=losses)

    def save_checkpoint(self, checkpoint: Checkpoint, recorder: Recorder) -> None:
        """Replace the checkpoint."""
        try:
            checkpoints.save(self.checkpoint_folder, checkpoint, recorder)
        except OSError as error:
            raise RunFailed(
                f"{self.checkpoint_folder}: cannot be written ({error.strerror or error})"
            ) from error
        aside.drop(self.path)

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
                if name in OPTIONAL_TABLES and not any(map(len, recorder.batches(name))):
                    continue
                write = functools.partial(
                    _write_table, name=name, recorder=recorder, running=running
                )
                files.put(self.path / f"{name}.parquet", write)
            files.put_json(self.path / "summary.json", summary)
            self.manifest.update(manifest, fingerprint=running.hexdigest(), status="finished")
            files.put_json(self.path / "manifest.json", self.manifest)
        except OSError as error:
            raise RunFailed(
                f"{self.path}: cannot be written ({error.strerror or error})"
            ) from error
        aside.drop(self.path)
        shutil.rmtree(self.checkpoint_folder / "segments", ignore_errors=True)
        return str(self.manifest["fingerprint"])


@contextmanager
def reserved(
    path: str | os.PathLike[str], *, overwrite: bool = False, resume: bool = False
) -> Iterator[None]:
    """Have the folder for one run, new or gone on with, and nobody else; the run in it is untouched.

    Everything that can be refused is refused here, before long work. A folder that was made for it
    and is empty in the end goes again. Raises: `InputError`.
    """
    path = Path(path)

    def check() -> None:
        if resume:
            _unfinished(path)
        else:
            _refuse_others(path, overwrite)

    check()
    made = not path.exists()
    with contextlib.ExitStack() as stack:
        with _writing(path):
            path.mkdir(parents=True, exist_ok=True)
            if made:
                stack.callback(_delete_if_empty, path)
            stack.enter_context(held(path, "run folder"))
            aside.recover(path)
        check()  # again: now nobody else can change the answer
        yield


def _delete_if_empty(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.rmdir()


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(
            "a folder that can be written", where=str(path), got=error.strerror or str(error)
        ) from error


def _unfinished(path: Path) -> dict[str, Any]:
    manifest = read_manifest(path)
    if manifest["status"] == "finished":
        raise InputError("a run that is not finished", where=str(path), got="a finished one")
    return manifest


def _refuse_others(path: Path, overwrite: bool) -> None:
    """Refuse what a new run must not be written into."""
    if not path.exists():
        return
    if not path.is_dir():
        raise InputError("a folder", where=str(path), got="a file")
    if all(inner.name == LOCK for inner in path.iterdir()):
        return
    if not aside.is_there(path):
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


def _write_table(path: Path, name: str, recorder: Recorder, running: Fingerprint) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    def write(pieces: list[pa.Table]) -> None:
        writer.write_table(pa.concat_tables(pieces).combine_chunks())

    with pq.ParquetWriter(path, recorder.schema(name), compression="zstd") as writer:
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
