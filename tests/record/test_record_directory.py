"""Run directories: whole or not there, never over another, readable, resumable."""

import errno
import os
import shutil

import numpy as np
import pytest

from simfed import InputError, RunFailed
from simfed.record import (
    LinkUse,
    PolicyValue,
    PrototypeResult,
    Recorder,
    Round,
    RunDirectory,
    Span,
    fingerprint,
    lock_folder,
    open_run,
    read_manifest,
)
from simfed.record.directory import reserve

SCENARIO = "name: tiny\nrounds: 3\n"


def a_round(number, **changes):
    row = Round(
        round=number,
        started_at_s=number - 1.0,
        finished_at_s=float(number),
        participants=0,
        late=0,
        dropped=0,
        uplink_bytes=0.0,
        downlink_bytes=0.0,
        rolled_back=False,
        critical_client=None,
        critical_phase=None,
        critical_link=None,
        duration_s=1.0,
        server_s=0.0,
        saved_without_critical_s=None,
    )
    return row._replace(**changes)


def record_some(recorder, rounds=range(1, 4)):
    for number in rounds:
        recorder.rounds.append(a_round(number))
        recorder.prototypes.append(
            PrototypeResult(number, "small", 0.5 / number, None, None)
        )
        recorder.policies.append(PolicyValue(number, 0, "top-k", 0.1 * number))
        recorder.links.append(LinkUse("up", number - 1.0, float(number), 8.0, 10.0, 1))
        recorder.spans.append(
            Span("client 0", "training", "training", number, 0, 0.0, 1.0)
        )


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


def test_a_finished_run_reads_back_as_it_was_recorded(tmp_path):
    fingerprints = [finished(tmp_path / "run").manifest["fingerprint"]]
    run = open_run(tmp_path / "run")
    recorder = Recorder()
    record_some(recorder)
    assert run.table("links").equals(recorder.table("links"))
    assert run.rounds.duration_s.tolist() == [1.0, 1.0, 1.0]
    assert run.prototypes.test_accuracy.isna().all()
    assert str(run.rounds.critical_client.dtype) == "Int64"
    assert run.summary == {"rounds": 3}
    assert run.manifest["seed"] == 0
    assert run.scenario == {"name": "tiny", "rounds": 3}
    assert fingerprints == [run.fingerprint] == [fingerprint(recorder.batches)]
    tables = "links participations policies prototypes rounds spans"
    assert names(tmp_path / "run") == sorted(
        ["scenario.yaml", "manifest.json", "summary.json"]
        + [f"{table}.parquet" for table in tables.split()]
    )
    assert names(tmp_path) == ["run"]


def test_a_run_is_never_overwritten_without_being_asked(tmp_path):
    finished(tmp_path / "run")
    with pytest.raises(InputError, match="it holds a run"):
        create(tmp_path / "run")
    create(tmp_path / "run", overwrite=True)
    with pytest.raises(InputError, match="its status is running"):
        open_run(tmp_path / "run")


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
        (
            "summary.json",
            TWICE,
            "summary.json: cannot be read: the key 'rounds' stands",
        ),
        ("summary.json", "", "a whole JSON file"),
        ("spans.parquet", None, "spans.parquet is missing, expected a whole run"),
    ],
)
def test_a_damaged_directory_is_refused_in_one_sentence(
    tmp_path, file, content, sentence
):
    finished(tmp_path)
    (tmp_path / file).unlink()
    if content is not None:
        (tmp_path / file).write_text(content)
    with pytest.raises(InputError, match=sentence) as caught:
        open_run(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"no parquet at all", "half"])
def test_a_truncated_table_is_refused_in_one_sentence(tmp_path, content):
    finished(tmp_path / "run")
    path = tmp_path / "run" / "spans.parquet"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2] if content == "half" else content)
    with pytest.raises(InputError, match=r"spans\.parquet: cannot be read") as caught:
        _ = open_run(tmp_path / "run").spans
    assert "\n" not in str(caught.value)


def save(directory, journal, number, arrays):
    """A checkpoint after a round whose answer is in the journal."""
    journal.note("", f"answer {number}", number)
    directory.save_checkpoint(number, {"at": number}, arrays)


def test_a_resumed_run_goes_on_from_its_checkpoint(tmp_path):
    directory = create(tmp_path / "run")
    journal, recorder = directory.open_journal(), directory.recorder(rows_in_memory=1)
    for number in (2, 4):
        save(
            directory, journal, number, {"weights": np.arange(number, dtype=np.float32)}
        )
    record_some(recorder, range(5, 7))
    recorder.settle()  # on disk, then the process dies
    del recorder, directory

    directory, checkpoint = look(tmp_path / "run")
    assert (checkpoint.round, checkpoint.facts) == (4, {"at": 4})
    assert checkpoint.arrays["weights"].tolist() == [0.0, 1.0, 2.0, 3.0]
    arrays = sorted(p.name for p in (tmp_path / "run" / "checkpoint").glob("arrays*"))
    assert arrays == ["arrays-000002.safetensors", "arrays-000004.safetensors"]
    directory.go_on()
    assert not (tmp_path / "run" / "checkpoint" / "segments").exists()
    journal = directory.open_journal()
    assert [journal.known("", f"answer {number}") for number in (2, 4)] == [2, 4]


def test_without_a_checkpoint_a_run_begins_again(tmp_path):
    directory = create(tmp_path)
    recorder = directory.recorder(rows_in_memory=1)
    record_some(recorder)
    recorder.settle()
    directory.stop("failed", "the power went")
    directory, checkpoint = look(tmp_path)
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
        (
            {"versions": {"simfed": "0.1.0"}},
            {},
            r"simfed 0\.1\.0 began this run, this is",
        ),
    ],
)
def test_a_run_is_resumed_only_as_what_it_was(tmp_path, begun, now, sentence):
    create(tmp_path, begun)
    with pytest.raises(InputError, match=sentence):
        resume(tmp_path, **now)


def test_a_finished_run_is_known_by_its_scenario_and_one_that_never_began_is_none(
    tmp_path,
):
    finished(tmp_path / "done")
    assert resume(tmp_path / "done").finished
    with pytest.raises(InputError, match="the scenario that this run began with"):
        resume(tmp_path / "done", "rounds: 4")
    assert resume(tmp_path / "no") is None


def test_other_versions_are_said_where_a_run_goes_on(tmp_path):
    begun = {**NOW, "versions": {"torch": "2.4.0", "numpy": "2.1.0"}}
    create(tmp_path, begun)
    now = {**begun, "versions": {"torch": "2.5.1", "numpy": "2.1.0"}}
    resume(tmp_path, manifest=now).go_on()
    said = "began with torch 2.4.0 and went on with 2.5.1: its last bits may be others"
    assert read_manifest(tmp_path)["warnings"] == [said]


# ---- damage --------------------------------------------------------------------------


def with_two_checkpoints(path):
    directory = create(path)
    journal = directory.open_journal()
    for number in (1, 2):
        save(directory, journal, number, {"w": np.full(3, number, np.float32)})
    return path / "checkpoint"


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


DAMAGED_NEWEST = {
    "a torn state": write("state.json", '{"format": 1'),
    "a state of another layout": write("state.json", '{"format": 1}'),
    "no object": write("state.json", "[]"),
    "a changed fact": lambda folder: (folder / "state.json").write_text(
        (folder / "state.json").read_text().replace('"at": 2', '"at": 3')
    ),
    "a byte of an array": lambda folder: flip(folder / "arrays-000002.safetensors", -1),
    "no arrays": lambda folder: (folder / "arrays-000002.safetensors").unlink(),
    "arrays of another round": lambda folder: shutil.copy(
        folder / "arrays-000001.safetensors", folder / "arrays-000002.safetensors"
    ),
    "a byte of the journal": lambda folder: flip(folder.parent / "journal.jsonl", -3),
}


@pytest.mark.parametrize("what", DAMAGED_NEWEST)
def test_where_the_newest_checkpoint_is_damaged_the_one_before_is_used_and_it_is_said(
    tmp_path, what
):
    folder = with_two_checkpoints(tmp_path / "run")
    DAMAGED_NEWEST[what](folder)
    directory, checkpoint = look(tmp_path / "run")
    assert checkpoint.round == checkpoint.facts["at"] == 1
    assert checkpoint.arrays["w"].tolist() == [1.0, 1.0, 1.0]
    (said,) = directory.warnings
    assert said.startswith(f"{folder.parent}/")
    assert "a whole" in said or "the journal" in said
    assert said.endswith("; went on from an earlier checkpoint, after round 1")
    directory.go_on()
    save(directory, directory.open_journal(), 2, {})
    assert look(tmp_path / "run")[1].round == 2


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (
            lambda folder: [
                flip(folder / name) for name in ("state.json", "earlier.json")
            ],
            (
                r"state\.json: its content is not what its digest says, expected "
                r"a whole checkpoint file of this run \(no"
            ),
        ),
        (
            lambda folder: (
                flip(folder / "arrays-000001.safetensors"),
                (folder / "state.json").unlink(),
            ),
            (
                r"arrays-000001\.safetensors: its content is not what its digest "
                "says, expected a whole checkpoint file of"
            ),
        ),
    ],
)
def test_where_no_checkpoint_is_whole_the_file_is_named_and_nothing_changed(
    tmp_path, damage, sentence
):
    folder = with_two_checkpoints(tmp_path / "run")
    damage(folder)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(InputError, match=sentence) as caught:
        look(tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(
        "(no other checkpoint is whole, --overwrite begins the run again)"
    )
    assert before == {
        path: path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def test_where_only_the_journal_is_damaged_the_run_begins_again_and_it_is_said(
    tmp_path,
):
    folder = with_two_checkpoints(tmp_path / "run")
    flip(tmp_path / "run" / "journal.jsonl", 3)
    directory, checkpoint = look(tmp_path / "run")
    (said,) = directory.warnings
    assert "it was changed" in said
    assert said.endswith(
        "; no checkpoint goes with what is left, so the run began at round 1 again"
    )
    assert checkpoint is None
    directory.go_on()
    assert not list(folder.glob("*.json"))
    save(directory, directory.open_journal(), 1, {})
    assert look(tmp_path / "run")[1].round == 1


def test_a_checkpoint_of_another_run_is_not_taken_for_ones_own(tmp_path):
    mine = with_two_checkpoints(tmp_path / "run")
    other = with_two_checkpoints(tmp_path / "other")
    shutil.copytree(other, mine, dirs_exist_ok=True)
    with pytest.raises(InputError, match=r"state\.json: it is of run \w+, not \w+"):
        look(tmp_path / "run")


def test_a_segment_that_is_damaged_while_the_run_goes_on_ends_it_in_a_sentence(
    tmp_path,
):
    directory = create(tmp_path / "run")
    recorder = directory.recorder(rows_in_memory=1)
    record_some(recorder)
    recorder.settle()
    flip(tmp_path / "run" / "checkpoint" / "segments" / "links-000000.parquet")
    with pytest.raises(RunFailed, match=r"links-000000\.parquet: was changed while"):
        directory.finish(recorder, manifest={}, summary={})
    assert read_manifest(tmp_path / "run")["status"] == "running"


def test_a_changed_manifest_is_refused_where_a_run_goes_on(tmp_path):
    create(tmp_path / "run")
    path = tmp_path / "run" / "manifest.json"
    path.write_text(path.read_text().replace("running", "runninG"))
    with pytest.raises(InputError, match=r"json: it was changed, expected a whole man"):
        look(tmp_path / "run")
    path.write_text("{")
    with pytest.raises(InputError, match=r"manifest\.json: cannot be read: .*column 2"):
        look(tmp_path / "run")
    create(tmp_path / "run", overwrite=True)
    assert read_manifest(tmp_path / "run")["status"] == "running"


# ---- one folder, several processes, several runs -------------------------------------


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_reserved_folder_is_nobody_elses_and_goes_if_nothing_was_written(tmp_path):
    with reserve(tmp_path / "run"):
        by_whom = f"process {os.getpid()} on .*nobody else is writing"
        with pytest.raises(InputError, match=by_whom), reserve(tmp_path / "run"):
            raise AssertionError
        assert names(tmp_path / "run") == [".lock"]
    assert names(tmp_path) == []
    with reserve(tmp_path / "run"):
        create(tmp_path / "run")
    assert names(tmp_path / "run") == ["manifest.json", "scenario.yaml"]


def test_what_is_refused_is_refused_before_anything_is_written(tmp_path):
    finished(tmp_path / "run")
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "text").write_text("years of work")
    for folder, options, sentence in (
        ("run", {}, "it holds a run"),
        ("thesis/text", {"overwrite": True}, "this is a file, expected a folder"),
        ("thesis", {}, "other files in it"),
        ("thesis", {"resume": True}, "other files in it"),
        ("thesis", {"overwrite": True}, "other files in it"),
    ):
        with (
            pytest.raises(InputError, match=sentence),
            reserve(tmp_path / folder, **options),
        ):
            raise AssertionError
    assert names(tmp_path) == ["run", "thesis"]
    assert names(tmp_path / "thesis") == ["text"]


@pytest.mark.parametrize(
    "name",
    [".lock", ".partial-manifest.json", ".replaced", "checkpoint", "rounds.parquet",
     "calibration/device.yaml", "checkpoint/.partial-state.json"],
)  # fmt: skip
@pytest.mark.parametrize("how", ["resume", "overwrite"])
def test_a_link_in_a_run_folder_is_refused_and_not_followed(tmp_path, name, how):
    """It came with somebody else's run: what it leads to is nobody's to write or
    delete.
    """
    mine, link = tmp_path / "mine", tmp_path / "run" / name
    mine.write_text("precious")
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(mine)
    with (
        pytest.raises(InputError, match=f"{name}: a link"),
        reserve(tmp_path / "run", **{how: True}),
    ):
        pass
    assert mine.read_text() == "precious"
    assert link.is_symlink()


def test_a_lock_that_is_a_link_is_refused(tmp_path):
    (tmp_path / "mine").write_text("precious")
    (tmp_path / ".lock").symlink_to(tmp_path / "mine")
    with pytest.raises(InputError, match="a link"), lock_folder(tmp_path, "study"):
        pass
    assert (tmp_path / "mine").read_text() == "precious"


@pytest.mark.parametrize("stub", ["lock", "torn manifest", "manifest", "profile"])
def test_what_is_left_of_a_beginning_that_was_killed_holds_nobody_up(tmp_path, stub):
    run = tmp_path / "run"
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


KILLED = ["before anything", "on the way out", "with a stub", "with a checkpoint"]


@pytest.mark.parametrize("when", KILLED)
def test_whenever_the_replacing_process_is_killed_one_whole_run_is_left(
    tmp_path, when, monkeypatch
):
    """`kill -9` cleans nothing up: the next process to reserve the folder does it."""
    run = tmp_path / "run"
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


def test_a_full_disk_behind_safetensors_is_a_sentence(tmp_path, monkeypatch):
    import safetensors.numpy
    from safetensors import SafetensorError

    def full_disk(*arguments):
        raise SafetensorError(
            "Error while serializing: I/O error: No space left on device (os error 28)"
        )

    directory = create(tmp_path / "run")
    monkeypatch.setattr(safetensors.numpy, "save_file", full_disk)
    with pytest.raises(
        RunFailed, match=r"safetensors: cannot be written \(No space left on device\)$"
    ):
        save(directory, directory.open_journal(), 1, {"w": np.zeros(3)})


def test_why_a_run_stopped_and_how_to_go_on_is_said_once_where_it_can(tmp_path):
    create(tmp_path / "run").stop("interrupted", "stopped after round 3")
    create(tmp_path / "app", {"mode": "flower"}).stop("failed", "the app raised")
    hints = {}
    for name in ("run", "app"):
        with pytest.raises(InputError) as caught:
            open_run(tmp_path / name)
        hints[name] = caught.value.hint
    assert hints == {
        "run": "stopped after round 3; --resume goes on with it",
        "app": "the app raised",
    }


def test_a_folder_whose_holder_could_not_be_written_is_free_again(
    tmp_path, monkeypatch
):
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
