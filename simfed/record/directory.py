"""Run directories: one run, never half of one that looks whole, never over another.

The folder begins with a `manifest.json` that says `running`. Tables get their names
when they are whole; the manifest says `finished` last. Whatever happens in between, a
reader knows that the run is not done, and a resumed run finds its checkpoint.

`reserve` gives one process the folder, `RunDirectory` is the run in it, `find_status`
looks from outside. What the folder holds is on the page of the run directory.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import yaml

from simfed.ground.errors import InputError, RunFailed
from simfed.ground.inputs import read_bytes
from simfed.ground.plain import Plain
from simfed.ground.version import VERSION
from simfed.ground.writing import find_disk_refusal, replacing, writing
from simfed.record import aside, files
from simfed.record.checkpoint import Checkpoint, CheckpointFolder
from simfed.record.digest import Fingerprint, digest_manifest, digest_scenario, sha256
from simfed.record.journal import COMPRESSED, NAME, Journal
from simfed.record.lock import LOCK, Held, is_held, lock_folder
from simfed.record.manifest import list_differences
from simfed.record.read import read_manifest
from simfed.record.recorder import Recorder
from simfed.record.schema import FORMAT, OPTIONAL_TABLES, TABLES, OwnColumns

_ROWS_PER_GROUP = 250_000

_SAME = ("data", "models")
"""The manifest's keys from the beginning that must be the same where a run goes on."""


class RunDirectory:
    """A run directory that is being written.

    Made by `create` (a new run) or `resume` (one that stopped on its way), inside
    `reserve` wherever another process could have the same idea. Then come
    `open_journal`, `recorder`, a `save_checkpoint` now and then, and `finish`; or
    `stop`, or `abandon`.

    `path` is its folder, `manifest` what `manifest.json` says now.
    """

    def __init__(self, path: Path, manifest: dict[str, Plain]) -> None:
        self.path = path
        self.manifest = manifest
        self.warnings: list[str] = []
        """Sentences for the user on how the run went on, for the manifest."""
        self._id = str(manifest.get("id", ""))
        self._checkpoints = CheckpointFolder(path / "checkpoint", self._id)
        self._loaded: Checkpoint | None = None
        self._beside: dict[str, bytes] = {}
        self._journal: Journal | None = None

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        *,
        scenario_yaml: str,
        manifest: Mapping[str, Plain],
        overwrite: bool = False,
        beside: Mapping[str, bytes] | None = None,
    ) -> RunDirectory:
        """Begin a new run in a new or empty folder.

        Args:
            path: the folder.
            scenario_yaml: the resolved scenario, as `scenario.yaml` will have it.
            manifest: the facts that are known at the beginning; `format`, `id`,
                `status` and digests are added.
            overwrite: replace the run in the folder. It is out of the way until the new
                one has a checkpoint or is finished, and `abandon` brings it back; files
                that simfed did not write stay.
            beside: further files, path below the folder → content.

        Raises:
            InputError: the folder holds something else, or cannot be written.
        """
        path = Path(path)
        beside = beside or {}
        _refuse_others(path, overwrite)
        whole_manifest = {
            "format": FORMAT,
            "id": uuid.uuid4().hex,
            **manifest,
            "scenario_sha256": digest_scenario(scenario_yaml),
            "files": {name: sha256(content) for name, content in beside.items()},
            "status": "running",
        }
        run = cls(path, whole_manifest)
        with writing(path):
            path.mkdir(parents=True, exist_ok=True)
            if _holds_run(path):
                aside.set_aside(path)
            else:
                aside.delete_run(path)  # of a beginning that was killed
            try:
                run._put_manifest()
                _write_beside(path, beside)
                # now the run has begun
                files.put_text(path / "scenario.yaml", scenario_yaml)
            except BaseException:
                run.abandon()
                raise
        return run

    @classmethod
    def resume(
        cls,
        path: str | os.PathLike[str],
        *,
        scenario_yaml: str,
        mode: str,
        device: str = "cpu",
        manifest: Mapping[str, Plain] | None = None,
        beside: Mapping[str, bytes] | None = None,
    ) -> RunDirectory | None:
        """Return the run in the folder, finished or not, and None where none has begun.

        Nothing is changed before `go_on`. What must be as it was when the run began is
        refused where it is not; other versions of packages are only warned of.

        Args:
            path: the folder.
            scenario_yaml: the resolved scenario; all but its name and its checkpoints
                must be the same.
            mode: `full` or `time-only`; must be the same.
            device: where the run learns; must be the same, as last bits may differ.
            manifest: what the manifest would say if the run began now; its data and
                models must be the same. None: only for looking.
            beside: further files as of `create`; must be the same.

        Raises:
            InputError: something is not the same, an unfinished run is of another
                version of simfed, or no checkpoint is whole.
        """
        path = Path(path)
        if not _holds_run(path):
            return None
        begun = _read_whole_manifest(path)
        # first, as another version writes scenarios otherwise
        if begun["status"] != "finished":
            _refuse_other_version(path, begun)
        _refuse_other_scenario(path, begun, scenario_yaml)
        for key, now in (("mode", mode), ("device", device)):
            # on another device the last bits would be others
            if begun.get(key, now) != now:
                kind = "a {} run" if key == "mode" else "a run that learns on {}"
                allowed = f"{kind.format(begun[key])}, as it began"
                raise InputError(allowed, where=str(path), got=now)
        for key in _SAME:
            if manifest is not None and begun.get(key, manifest[key]) != manifest[key]:
                allowed = f"the {key} that this run began with, {begun[key]}"
                raise InputError(allowed, where=str(path), got=manifest[key])
        for name, content in (beside or {}).items():
            if (
                name in begun.get("files", {})
                and sha256(content) != begun["files"][name]
            ):
                raise InputError(
                    where=str(path / name),
                    problem=f"another {Path(name).name} is in use than this run began "
                    f"with",
                )
        run = cls(path, begun)
        if run.finished:
            return run
        run.manifest["status"] = "running"
        for key in ("reason", "traceback"):
            run.manifest.pop(key, None)
        run._beside = dict(beside or {})
        if manifest is not None:
            run.warnings += list_differences(
                begun.get("versions", {}), manifest["versions"]
            )
        run._loaded = run._checkpoints.load()
        if run._loaded is not None:
            run.warnings += filter(None, [run._loaded.warning])
        return run

    @property
    def finished(self) -> bool:
        """True if the run is done."""
        return bool(self.manifest["status"] == "finished")

    def go_on(self) -> None:
        """Note that the run is under way again, from `last` on.

        What a killed process left half-done is deleted, and so is what is newer than
        `last`.
        """
        with writing(self.path):
            files.delete_partials(self.path)
            self._checkpoints.sweep()
            self._delete_segments()
            if self._loaded is not None:
                self._checkpoints.take_up(self._loaded)
            _write_beside(self.path, self._beside)  # its copies may be damaged
            before = self.manifest.get("warnings", [])
            self._put_manifest(warnings=[*before, *self.warnings])

    @property
    def last(self) -> Checkpoint | None:
        """The checkpoint that the run goes on from; None where it begins anew."""
        return self._loaded if self._loaded is not None and self._loaded.round else None

    @property
    def has_checkpoint(self) -> bool:
        """True if there is a checkpoint to go on from, whole or not."""
        return self._checkpoints.has_one

    @property
    def replaces(self) -> bool:
        """True if an older run is aside that this one may still give way to."""
        return aside.is_there(self.path)

    def abandon(self) -> None:
        """Delete the run's files, as nothing came of it.

        The run that it was to replace is back.
        """
        # what is left, the next one who writes here clears up
        with contextlib.suppress(OSError):
            aside.put_back(self.path)

    def recorder(
        self, *, rows_in_memory: int = 50_000, own: OwnColumns | None = None
    ) -> Recorder:
        """Return a recorder whose files lie in this directory; see `Recorder`."""
        return Recorder(
            self._checkpoints.path / "segments",
            rows_in_memory=rows_in_memory,
            own=own,
        )

    def open_journal(self) -> Journal:
        """Return the run's journal up to the checkpoint that it goes on from."""
        end = 0 if self.last is None else self.last.journal.bytes
        self._journal = Journal(self.path / NAME, end)
        return self._journal

    def save_checkpoint(
        self, round: int, facts: Mapping[str, Plain], arrays: Mapping[str, np.ndarray]
    ) -> None:
        """Save a checkpoint of what was learned; the one before stays beside it.

        The journal is on the disk before it, and a run that was to be replaced is gone
        after.

        Args:
            round: rounds done.
            facts: JSON-able values.
            arrays: weights, residuals and own models by name.

        Raises:
            RunFailed: the disk refuses.
        """
        assert self._journal is not None
        with self._end_on_disk_errors():
            self._checkpoints.save(
                Checkpoint(round, facts, arrays, self._journal.flush())
            )
            aside.drop(self.path)

    def stop(self, status: str, reason: str) -> None:
        """Note that the run ends here for now, and why.

        Args:
            status: `interrupted` or `failed`.
            reason: one sentence.
        """
        self._put_manifest(status=status, reason=reason)

    def finish(
        self,
        recorder: Recorder,
        *,
        manifest: Mapping[str, Plain],
        summary: Mapping[str, Plain],
    ) -> str:
        """Write the tables, the summary and, last, the manifest.

        The checkpoint's state stays, as it holds the trained weights. Its segments go:
        the tables have their rows now.

        Args:
            recorder: all rows of the run.
            manifest: further facts, which are known at the end.
            summary: the content of `summary.json`.

        Returns:
            The fingerprint.

        Raises:
            RunFailed: the disk refuses; the run is as it was at its last checkpoint.
        """
        with self._end_on_disk_errors():
            running = Fingerprint()
            for name in TABLES:
                if name in OPTIONAL_TABLES and not any(
                    map(len, recorder.batches(name))
                ):
                    continue
                with replacing(self.path / f"{name}.parquet") as whole:
                    _write_table(whole, name, recorder, running)
                    files.sync(whole)  # before a manifest says that it is whole
            files.put_json(self.path / "summary.json", summary)
            fingerprint = running.hexdigest()
            if self._journal is not None:
                manifest = {**manifest, "journal": self._journal.compress()}
                files.sync(self.path / COMPRESSED)
            self._put_manifest(**manifest, fingerprint=fingerprint, status="finished")
        self.tidy()
        return fingerprint

    def tidy(self) -> None:
        """Delete what a finished run needs no more, and the rest of one it replaced."""
        with contextlib.suppress(OSError):
            aside.drop(self.path)
            files.delete_partials(self.path)
            (self.path / NAME).unlink(missing_ok=True)
        self._delete_segments()

    def _delete_segments(self) -> None:
        shutil.rmtree(self._checkpoints.path / "segments", ignore_errors=True)

    def _put_manifest(self, **changes: Plain) -> None:
        """Write the manifest with `changes`, sealed by its digest."""
        manifest = {**self.manifest, **changes}
        manifest["digest"] = digest_manifest(manifest)
        files.put_json(self.path / "manifest.json", manifest)
        self.manifest = manifest

    @contextmanager
    def _end_on_disk_errors(self) -> Iterator[None]:
        """End the run, in a sentence, where the disk refuses something in the block."""
        try:
            yield
        except OSError as error:
            where = error.filename or self.path
            raise RunFailed(
                f"{where}: cannot be written ({error.strerror or error})"
            ) from error


class RunStatus(NamedTuple):
    """The status of the run in a folder, as `find_status` sees it from outside."""

    status: str
    """`waiting`, `running`, `interrupted`, `failed` or `finished`."""
    reason: str = ""
    """The reason why it stopped, where it was interrupted or has failed."""


def find_status(path: Path) -> RunStatus:
    """Return how far the run in a folder is, and why it stopped.

    A folder that is not there, or is empty, is `waiting`. A manifest that says
    `running` with no process at it is `interrupted`. Something else in the folder is
    `failed`.
    """
    try:
        if not (path / "manifest.json").is_file():
            _holds_run(path)
            return RunStatus("running" if is_held(path) else "waiting")
        manifest = read_manifest(path)
    except InputError as error:  # something else lies there
        return RunStatus("failed", str(error))
    status = str(manifest["status"])
    if status != "finished" and is_held(path):
        return RunStatus("running")
    if status == "running":
        return RunStatus("interrupted", "its process ended in the middle of it")
    return RunStatus(status, str(manifest.get("reason", "")))


def note_failure(path: Path, reason: str, traceback: str) -> None:
    """Note in the manifest of a run why it failed; what it has learned stays.

    Nothing is noted where another process goes on with it, where something else lies,
    and where the manifest is not whole.

    Args:
        path: the run's folder.
        reason: one sentence.
        traceback: Python's, for a bug of simfed or of a plug-in; else empty.

    Raises:
        InputError: the disk refuses.
    """
    try:
        with reserve(path, resume=True):
            begun = _read_whole_manifest(path) if _holds_run(path) else {}
            run = RunDirectory(path, {"format": FORMAT, **begun})
            with writing(path):
                run._put_manifest(status="failed", reason=reason, traceback=traceback)
    except InputError as error:
        if find_disk_refusal(error) is not None:
            raise


def delete_run(path: Path) -> bool:
    """Delete the files of the run in a folder, and the folder if it is empty then.

    Returns:
        False where another process is at it; it stays then.

    Raises:
        InputError: the folder holds something else.
    """
    try:
        with reserve(path, resume=True), writing(path):
            aside.delete_run(path)
    except Held:
        return False
    _delete_if_empty(path)
    return True


@contextmanager
def reserve(
    path: str | os.PathLike[str], *, overwrite: bool = False, resume: bool = False
) -> Iterator[None]:
    """Keep the folder for one run, new or gone on with, in the body of the `with`.

    Everything that can be refused is refused here, before long work. What a killed
    process left half-done is settled: a run that was out of the way comes back if
    nothing came of the other. A folder that was made for this and is empty in the end
    goes again. The run in it is untouched.

    Args:
        path: the folder; made where it is not there.
        overwrite: a run in it may be replaced.
        resume: a run in it may go on.

    Raises:
        InputError: the folder holds something else, a link, or a run that neither may
            happen to, or cannot be written.
        Held: another process has it.
    """
    path = Path(path)
    _refuse_others(path, overwrite or resume)
    is_new = not path.exists()
    with contextlib.ExitStack() as stack:
        with writing(path):
            path.mkdir(parents=True, exist_ok=True)
            if is_new:
                stack.callback(_delete_if_empty, path)
            stack.enter_context(lock_folder(path, "run folder"))
            aside.recover(path)
        # now nobody else can change the answer
        _refuse_others(path, overwrite or resume)
        yield


def _write_beside(folder: Path, beside: Mapping[str, bytes]) -> None:
    """Write further files below a run's folder, path → content."""
    for name, content in beside.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def _delete_if_empty(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.rmdir()


def _holds_run(path: Path) -> bool:
    """Return whether a run has begun in a folder.

    False for a folder that is not there, is empty, or has at most what is left of a
    beginning that was killed.

    Raises: `InputError` for a folder of something else.
    """
    if not path.exists():
        return False
    if not path.is_dir():
        raise InputError("a folder", where=str(path), problem="this is a file")
    if aside.is_there(path):
        return True
    if all(
        inner.name == LOCK or files.is_partial(inner) or aside.is_left_over(inner)
        for inner in path.iterdir()
    ):
        return False
    problem = "a folder with other files in it"
    refusal = InputError("a new or empty folder", where=str(path), problem=problem)
    if not (path / "manifest.json").is_file():
        raise refusal
    try:
        begun = read_manifest(path)["status"] == "finished"
    except InputError:
        if not (path / "scenario.yaml").is_file():  # another program's manifest
            raise refusal from None
        return True
    return begun or any(
        (path / one).exists() for one in ("scenario.yaml", "checkpoint")
    )


def _refuse_others(path: Path, allowed: bool) -> None:
    """Refuse a folder of something else, and a run in it unless that is `allowed`.

    Links in it by which something else would be written are refused too.
    """
    link = aside.find_link(path)
    if link is not None:
        allowed_here = "files and folders of the run's own"
        raise InputError(
            allowed_here, where=str(link), problem="a link", hint="delete it"
        )
    if _holds_run(path) and not allowed:
        raise InputError(
            "a new or empty folder",
            where=str(path),
            problem="it holds a run",
            hint="--resume goes on with an unfinished run, --overwrite replaces it",
        )


def _read_whole_manifest(path: Path) -> dict[str, Plain]:
    """Return a run's manifest, whose digest is right.

    Raises:
        InputError: it was changed, or is none.
    """
    where = path / "manifest.json"
    try:
        manifest = read_manifest(path)
        if manifest.get("digest") != digest_manifest(manifest):
            raise InputError(
                "a whole manifest", where=str(where), problem="it was changed"
            )
    except InputError as error:
        raise error.changed(hint="--overwrite begins the run again") from None
    return manifest


def _refuse_other_version(path: Path, begun: Mapping[str, Plain]) -> None:
    """Refuse an unfinished run that another version of simfed began."""
    version = begun.get("versions", {}).get("simfed", VERSION)
    if version != VERSION:
        raise InputError(
            "the version that began it",
            where=str(path),
            problem=f"simfed {version} began this run, this is {VERSION}",
            hint="--overwrite begins the run again",
        )


def _refuse_other_scenario(
    path: Path, manifest: Mapping[str, Plain], scenario_yaml: str
) -> None:
    """Refuse to go on with a scenario that would give other results."""
    where = path / "scenario.yaml"
    if not where.is_file():
        raise InputError(
            "a whole run directory",
            where=str(path),
            problem="scenario.yaml is missing",
            hint="--overwrite begins the run again",
        )
    begun = read_bytes(where).decode(errors="replace")
    if begun == scenario_yaml:
        return
    ours, theirs = _drop_undeciding(begun), _drop_undeciding(scenario_yaml)
    if ours != theirs:
        _refuse_other_version(path, manifest)
        difference = _describe_difference(ours, theirs)
        raise InputError(
            "the scenario that this run began with", where=str(where), got=difference
        )


def _drop_undeciding(scenario_yaml: str) -> str:
    """Return a scenario without what decides nothing of a run's results."""
    with contextlib.suppress(yaml.YAMLError):
        plain = yaml.safe_load(scenario_yaml)
        if isinstance(plain, dict):
            deciding = {
                k: v for k, v in plain.items() if k not in ("name", "checkpoint")
            }
            return yaml.safe_dump(deciding, sort_keys=False)
    return scenario_yaml


def _write_table(
    path: Path, name: str, recorder: Recorder, running: Fingerprint
) -> None:
    """Write a table as a Parquet file, and add its rows to the fingerprint."""
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


def _describe_difference(begun: str, now: str) -> str:
    """Return the first line in which two scenarios differ, and what it was before."""
    ours, theirs = begun.splitlines(), now.splitlines()
    for was, is_ in zip(ours, theirs, strict=False):
        if was != is_:
            return f"{is_.strip()} in place of {was.strip()}"
    return "more or fewer lines"
