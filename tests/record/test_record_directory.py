"""Run directories: whole or not there, never over another, readable, resumable."""

import errno
import os
import shutil

import numpy as np
import pytest
import safetensors.numpy
from safetensors import SafetensorError

from simfed import InputError, RunFailed
from simfed.record import (
    LinkUse,
    PrototypeResult,
    Recorder,
    Round,
    RunDirectory,
    fingerprint,
    lock_folder,
    open_run,
    read_manifest,
)
from simfed.record.directory import reserve

SCENARIO = "name: tiny\nrounds: 3\n"


@pytest.fixture
def run(tmp_path):
    return tmp_path / "run"


def record_some(recorder, rounds=range(1, 4)):
    plain = Round(**dict.fromkeys(Round._fields, 0))
    plain = plain._replace(rolled_back=False, critical_phase=None, critical_link=None)
    for number in rounds:
        recorder.rounds.append(plain._replace(round=number, duration_s=1.0))
        result = PrototypeResult(number, "small", 0.5 / number, None, None)
        recorder.prototypes.append(result)
        recorder.links.append(LinkUse("up", number - 1.0, float(number), 8.0, 10.0, 1))


def create(path, facts=(), **options):
    manifest = {"name": "tiny", "mode": "full", **dict(facts)}
    return RunDirectory.create(
        path, scenario_yaml=SCENARIO, manifest=manifest, **options
    )


def resume(path, text=SCENARIO, mode="full", **options):
    return RunDirectory.resume(path, scenario_yaml=text, mode=mode, **options)


def finished(path):
    directory = create(path)
    recorder = directory.recorder()
    record_some(recorder)
    directory.finish(recorder, manifest={"seed": 0}, summary={"rounds": 3})
    return directory


def test_finished_run_reads_back_as_it_was_recorded(run):
    prints = [finished(run).manifest["fingerprint"]]
    read, recorder = open_run(run), Recorder()
    record_some(recorder)
    assert read.table("links").equals(recorder.table("links"))
    assert read.rounds.duration_s.tolist() == [1.0, 1.0, 1.0]
    assert read.prototypes.test_accuracy.isna().all()
    assert str(read.rounds.critical_client.dtype) == "Int64"
    assert read.summary == {"rounds": 3}
    assert read.manifest["seed"] == 0
    assert read.scenario == {"name": "tiny", "rounds": 3}
    assert [*prints, fingerprint(recorder.batches)] == 2 * [read.fingerprint]
    tables = "links participations policies prototypes rounds spans"
    assert names(run) == sorted(
        ["scenario.yaml", "manifest.json", "summary.json"]
        + [f"{table}.parquet" for table in tables.split()]
    )
    assert names(run.parent) == ["run"]


def test_run_is_never_overwritten_without_being_asked(run):
    finished(run)
    with pytest.raises(InputError, match="it holds a run"):
        create(run)
    create(run, overwrite=True)
    with pytest.raises(InputError, match="its status is running"):
        open_run(run)


OF_0_1 = '{"format": 1, "status": "finished", "versions": {"simfed": "0.1.0"}}'
TWICE = '{"rounds": 2, "rounds": 3}'


@pytest.mark.parametrize(
    ("file", "content", "sentence"),
    [
        ("manifest.json", None, "a folder without manifest.json"),
        ("manifest.json", "{", "a whole JSON file"),
        ("manifest.json", "[]", "a JSON object"),
        ("manifest.json", '{"format": 99}', "got 99, expected .*of format 2"),
        ("manifest.json", OF_0_1, "got 1, .*of format 2 .simfed 0.1.0 wrote it and"),
        ("manifest.json", "{}", "got None, expected .*of format 2"),
        ("summary.json", TWICE, "json: cannot be read: the key 'rounds' stands"),
        ("summary.json", "", "a whole JSON file"),
        ("spans.parquet", None, "spans.parquet is missing, expected a whole run"),
        *(
            ("spans.parquet", content, r"spans\.parquet: cannot be read")
            for content in ("", "PAR1", "no parquet at all", "PAR1 and half of it")
        ),
    ],
)
def test_damaged_directory_is_refused_in_one_sentence(run, file, content, sentence):
    finished(run)
    (run / file).unlink()
    if content is not None:
        (run / file).write_text(content)
    with pytest.raises(InputError, match=sentence) as caught:
        _ = open_run(run).spans
    assert "\n" not in str(caught.value)


def save(directory, journal, number, arrays):
    """A checkpoint after a round whose answer is in the journal."""
    journal.note("", f"answer {number}", number)
    directory.save_checkpoint(number, {"at": number}, arrays)


def test_resumed_run_goes_on_from_its_checkpoint(run):
    directory = create(run)
    journal, recorder = directory.open_journal(), directory.recorder(rows_in_memory=1)
    for number in (2, 4):
        weights = np.arange(number, dtype=np.float32)
        save(directory, journal, number, {"weights": weights})
    record_some(recorder, range(5, 7))
    recorder.settle()  # on disk, then the process dies
    del recorder, directory

    directory, checkpoint = look(run)
    assert (checkpoint.round, checkpoint.facts) == (4, {"at": 4})
    assert checkpoint.arrays["weights"].tolist() == [0.0, 1.0, 2.0, 3.0]
    kept = [name for name in names(run / "checkpoint") if name.startswith("arrays")]
    assert kept == ["arrays-000002.safetensors", "arrays-000004.safetensors"]
    directory.go_on()
    assert not (run / "checkpoint" / "segments").exists()
    journal = directory.open_journal()
    assert [journal.known("", f"answer {number}") for number in (2, 4)] == [2, 4]


def test_without_a_checkpoint_a_run_begins_again(run):
    directory = create(run)
    recorder = directory.recorder(rows_in_memory=1)
    record_some(recorder)
    recorder.settle()
    directory.stop("failed", "the power went")
    directory, checkpoint = look(run)
    assert checkpoint is None
    assert "reason" not in directory.manifest


NOW = {"data": {"mnist": "2"}, "models": {}, "versions": {}}


@pytest.mark.parametrize(
    ("begun", "now", "sentence"),
    [
        ({}, {"text": "rounds: 4\n"}, "got 'rounds: 4 in place of rounds: 3'"),
        ({}, {"mode": "time-only"}, "a full run, as it began"),
        (
            {"device": "cuda"},
            {},
            "got 'cpu', expected a run that learns on cuda, as it",
        ),
        ({"data": {}}, {"manifest": NOW}, "the data that this run began with"),
        ({"versions": {"simfed": "0.1.0"}}, {}, r"simfed 0\.1\.0 began this run"),
    ],
)
def test_run_is_resumed_only_as_what_it_was(run, begun, now, sentence):
    create(run, begun)
    with pytest.raises(InputError, match=sentence):
        resume(run, **now)


def test_finished_run_is_known_by_its_scenario_and_one_that_never_began_is_none(run):
    assert resume(run) is None
    finished(run)
    assert resume(run).finished
    with pytest.raises(InputError, match="the scenario that this run began with"):
        resume(run, "rounds: 4")


def test_other_versions_are_said_where_a_run_goes_on(run):
    create(run, {**NOW, "versions": {"torch": "2.4.0", "numpy": "2.1.0"}})
    now = {**NOW, "versions": {"torch": "2.5.1", "numpy": "2.1.0"}}
    resume(run, manifest=now).go_on()
    said = "began with torch 2.4.0 and went on with 2.5.1: its last bits may be others"
    assert read_manifest(run)["warnings"] == [said]


# ---- damage --------------------------------------------------------------------------


@pytest.fixture
def folder(run):
    """Of two checkpoints."""
    return make_checkpoints(run)


def make_checkpoints(run):
    directory = create(run)
    journal = directory.open_journal()
    for number in (1, 2):
        save(directory, journal, number, {"w": np.full(3, number, np.float32)})
    return run / "checkpoint"


def look(path):
    """The run taken up again, and what it goes on from."""
    directory = resume(path)
    return directory, directory.last


def flip(path, at=-20):
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def write(file, text):
    return lambda folder: (folder / file).write_text(text)


NEWEST, BEFORE = "arrays-000002.safetensors", "arrays-000001.safetensors"
DAMAGED_NEWEST = {
    "a torn state": write("state.json", '{"format": 1'),
    "a state of another layout": write("state.json", '{"format": 1}'),
    "no object": write("state.json", "[]"),
    "a changed fact": lambda folder: (folder / "state.json").write_text(
        (folder / "state.json").read_text().replace('"at": 2', '"at": 3')
    ),
    "a byte of an array": lambda folder: flip(folder / NEWEST, -1),
    "no arrays": lambda folder: (folder / NEWEST).unlink(),
    "arrays of another round": lambda folder: shutil.copy(
        folder / BEFORE, folder / NEWEST
    ),
    "a byte of the journal": lambda folder: flip(folder.parent / "journal.jsonl", -3),
}


@pytest.mark.parametrize("damage", DAMAGED_NEWEST.values(), ids=DAMAGED_NEWEST)
def test_where_the_newest_checkpoint_is_damaged_the_one_before_is_used_and_it_is_said(
    run, folder, damage
):
    damage(folder)
    directory, checkpoint = look(run)
    assert checkpoint.round == checkpoint.facts["at"] == 1
    assert checkpoint.arrays["w"].tolist() == [1.0, 1.0, 1.0]
    (said,) = directory.warnings
    assert said.startswith(f"{run}/")
    assert "a whole" in said or "the journal" in said
    assert said.endswith("; went on from an earlier checkpoint, after round 1")
    directory.go_on()
    save(directory, directory.open_journal(), 2, {})
    assert look(run)[1].round == 2


def flip_both(folder):
    for name in ("state.json", "earlier.json"):
        flip(folder / name)


def flip_earlier(folder):
    flip(folder / BEFORE)
    (folder / "state.json").unlink()


@pytest.mark.parametrize(
    ("damage", "named"), [(flip_both, "state.json"), (flip_earlier, BEFORE)]
)
def test_where_no_checkpoint_is_whole_the_file_is_named_and_nothing_changed(
    run, folder, damage, named
):
    damage(folder)
    before = {path: path.read_bytes() for path in folder.glob("*.*")}
    said = (
        f"{named}: its content is not what its digest says, expected a whole "
        r"checkpoint file of this run \(no other checkpoint is whole, "
        r"--overwrite begins the run again\)$"
    )
    with pytest.raises(InputError, match=said):
        look(run)
    assert before == {path: path.read_bytes() for path in folder.glob("*.*")}


def test_where_only_the_journal_is_damaged_the_run_begins_again_and_it_is_said(
    run, folder
):
    flip(run / "journal.jsonl", 3)
    directory, checkpoint = look(run)
    (said,) = directory.warnings
    assert "it was changed" in said
    assert said.endswith(
        "; no checkpoint goes with what is left, so the run began at round 1 again"
    )
    assert checkpoint is None
    directory.go_on()
    assert not list(folder.glob("*.json"))
    save(directory, directory.open_journal(), 1, {})
    assert look(run)[1].round == 1


def test_checkpoint_of_another_run_is_not_taken_for_ones_own(run, folder, tmp_path):
    shutil.copytree(make_checkpoints(tmp_path / "other"), folder, dirs_exist_ok=True)
    with pytest.raises(InputError, match=r"state\.json: it is of run \w+, not \w+"):
        look(run)


def test_segment_that_is_damaged_while_the_run_goes_on_ends_it_in_a_sentence(run):
    directory = create(run)
    recorder = directory.recorder(rows_in_memory=1)
    record_some(recorder)
    recorder.settle()
    flip(run / "checkpoint" / "segments" / "links-000000.parquet")
    with pytest.raises(RunFailed, match=r"links-000000\.parquet: was changed while"):
        directory.finish(recorder, manifest={}, summary={})
    assert read_manifest(run)["status"] == "running"


def test_changed_manifest_is_refused_where_a_run_goes_on(run):
    create(run)
    path = run / "manifest.json"
    path.write_text(path.read_text().replace("running", "runninG"))
    with pytest.raises(InputError, match=r"json: it was changed, expected a whole man"):
        look(run)
    path.write_text("{")
    with pytest.raises(InputError, match=r"manifest\.json: cannot be read: .*column 2"):
        look(run)
    create(run, overwrite=True)
    assert read_manifest(run)["status"] == "running"


# ---- one folder, several processes, several runs -------------------------------------


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_reserved_folder_is_nobody_elses_and_goes_if_nothing_was_written(run):
    with reserve(run):
        by_whom = f"process {os.getpid()} on .*nobody else is writing"
        with pytest.raises(InputError, match=by_whom), reserve(run):
            raise AssertionError
        assert names(run) == [".lock"]
    assert not run.exists()
    with reserve(run):
        create(run)
    assert names(run) == ["manifest.json", "scenario.yaml"]


@pytest.mark.parametrize(
    ("folder", "how", "sentence"),
    [
        ("run", {}, "it holds a run"),
        ("thesis/text", {"overwrite": True}, "this is a file, expected a folder"),
        ("thesis", {}, "other files in it"),
        ("thesis", {"resume": True}, "other files in it"),
        ("thesis", {"overwrite": True}, "other files in it"),
    ],
)
def test_what_is_refused_is_refused_before_anything_is_written(
    run, tmp_path, folder, how, sentence
):
    finished(run)
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "text").write_text("years of work")
    with pytest.raises(InputError, match=sentence), reserve(tmp_path / folder, **how):
        raise AssertionError
    assert names(tmp_path) == ["run", "thesis"]
    assert names(tmp_path / "thesis") == ["text"]


@pytest.mark.parametrize(
    "name",
    [".lock", ".partial-manifest.json", ".replaced", "checkpoint", "rounds.parquet",
     "calibration/device.yaml", "checkpoint/.partial-state.json"],
)  # fmt: skip
@pytest.mark.parametrize("how", ["resume", "overwrite"])
def test_link_in_a_run_folder_is_refused_and_not_followed(run, tmp_path, name, how):
    """It came with somebody else's run: what it leads to is nobody's to write or
    delete.
    """
    link = make_link(tmp_path, run / name)
    refused = pytest.raises(InputError, match=f"{name}: a link")
    with refused, reserve(run, **{how: True}):
        pass
    assert link.is_symlink()
    assert link.read_text() == "precious"


def make_link(tmp_path, link):
    (tmp_path / "mine").write_text("precious")
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(tmp_path / "mine")
    return link


def test_lock_that_is_a_link_is_refused(tmp_path):
    link = make_link(tmp_path, tmp_path / ".lock")
    with pytest.raises(InputError, match="a link"), lock_folder(tmp_path, "study"):
        pass
    assert link.read_text() == "precious"


@pytest.mark.parametrize("stub", ["lock", "torn manifest", "manifest", "profile"])
def test_what_is_left_of_a_beginning_that_was_killed_holds_nobody_up(run, stub):
    create(run, beside={"calibration/a.yaml": b"name: a"})
    (run / "scenario.yaml").unlink()  # written last
    if stub != "profile":
        shutil.rmtree(run / "calibration")
    if stub in ("lock", "torn manifest"):
        (run / "manifest.json").replace(run / ".partial-manifest.json")
    if stub == "lock":
        (run / ".partial-manifest.json").unlink()
    (run / ".lock").write_text("process 4 on a host")
    for options in ({}, {"resume": True}, {"overwrite": True}):
        with reserve(run, **options):
            assert resume(run) is None
    create(run)
    assert names(run) == ["manifest.json", "scenario.yaml"]


@pytest.mark.parametrize(
    "when", ["before anything", "on the way out", "with a stub", "with a checkpoint"]
)
def test_whenever_the_replacing_process_is_killed_one_whole_run_is_left(
    run, when, monkeypatch
):
    """`kill -9` cleans nothing up: the next process to reserve the folder does it."""
    old = finished(run).manifest["fingerprint"]
    (run / "notes.txt").write_text("mine")
    if when == "on the way out":  # half moved
        (run / ".replaced").mkdir()
        for name in ("links.parquet", "scenario.yaml"):
            (run / name).rename(run / ".replaced" / name)
    elif when != "before anything":
        directory = create(run, overwrite=True)
        if when == "with a checkpoint":
            monkeypatch.setattr("simfed.record.aside.drop", lambda folder: None)
            save(directory, directory.open_journal(), 1, {})
            monkeypatch.undo()
    (run / ".lock").write_text("process 4 on a host")
    with reserve(run, overwrite=True):
        pass
    assert (run / "notes.txt").read_text() == "mine"
    assert not list(run.glob(".*"))
    if when == "with a checkpoint":
        assert read_manifest(run)["status"] == "running"
        assert not (run / "rounds.parquet").exists()
    else:
        assert open_run(run).fingerprint == old
        assert fingerprint(lambda name: [open_run(run).table(name)]) == old


def test_full_disk_behind_safetensors_is_a_sentence(run, monkeypatch):
    def full_disk(*arguments):
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    directory = create(run)
    monkeypatch.setattr(safetensors.numpy, "save_file", full_disk)
    with pytest.raises(
        RunFailed, match=r"safetensors: cannot be written \(No space left on device\)$"
    ):
        save(directory, directory.open_journal(), 1, {"w": np.zeros(3)})


@pytest.mark.parametrize(
    ("facts", "stop", "hint"),
    [
        (
            {},
            ("interrupted", "stopped after round 3"),
            "stopped after round 3; --resume goes on with it",
        ),
        ({"mode": "flower"}, ("failed", "the app raised"), "the app raised"),
    ],
)
def test_why_a_run_stopped_and_how_to_go_on_is_said_once_where_it_can(
    run, facts, stop, hint
):
    create(run, facts).stop(*stop)
    with pytest.raises(InputError) as caught:
        open_run(run)
    assert caught.value.hint == hint


def test_folder_whose_holder_could_not_be_written_is_free_again(tmp_path, monkeypatch):
    """Not first when the error, and the open file behind it, are forgotten."""

    def fill_disk():
        with pytest.raises(InputError, match="got 'one held by another process'"):
            lock_folder(tmp_path, "run").__enter__()
        raise OSError(errno.ENOSPC, "the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr("platform.node", fill_disk)
        held = lock_folder(tmp_path, "run")
        with pytest.raises(OSError, match="full") as kept:
            held.__enter__()
    with lock_folder(tmp_path, "run"):
        assert kept.value.errno == errno.ENOSPC
    assert list(tmp_path.iterdir()) == []
