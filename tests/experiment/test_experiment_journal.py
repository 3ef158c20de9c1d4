"""Runs that go on over their journal, whatever became of it."""

import contextlib
import json
import os
import shutil
import signal

import pytest
from struck import TINY

import simfed
from simfed.ground.errors import Interrupted, RunFailed
from simfed.record.journal import NAME, read_finished
from simfed.replay.journaled import Journaled


def stop_after(last):
    def progress(round, time_s, accuracy):
        if round == last:
            raise KeyboardInterrupt

    return progress


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A run that was stopped after three of five rounds, and what it comes to."""
    folder = tmp_path_factory.mktemp("begun")
    trace = "{file: up.csv, format: csv, end: hold}"
    text = TINY.replace("rounds: 3", "rounds: 5").replace(trace, "9 Mbps")
    (folder / "tiny.yaml").write_text(text)
    scenario = simfed.load_scenario(folder / "tiny.yaml")
    whole = simfed.run(scenario, source=folder / "tiny.yaml", progress=False)
    with pytest.raises(Interrupted):
        simfed.run(scenario, folder / "run", source=folder / "tiny.yaml", progress=stop_after(4))
    return scenario, folder, whole.fingerprint


def gone_on(begun, path, progress=False):
    scenario, folder, _ = begun
    return simfed.run(scenario, path, source=folder / "tiny.yaml", resume=True, progress=progress)


def cut_last_line(text):
    return b"".join(text.splitlines(keepends=True)[:-1])


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda text: text + b'["half a line', None),
        (cut_last_line, "went on from an earlier checkpoint, after round 2"),
        (lambda text: b"", "began at round 1 again"),
        (lambda text: text.replace(b'"merge 1"', b'"merge 7"'), "began at round 1 again"),
        (None, "began at round 1 again"),
    ],
    ids=["more", "a line less", "empty", "edited", "missing"],
)
def test_a_run_goes_on_to_the_same_bits_whatever_is_left_of_its_journal(
    begun, tmp_path, damage, said
):
    shutil.copytree(begun[1] / "run", tmp_path / "run")
    journal = tmp_path / "run" / NAME
    if damage is None:
        journal.unlink()
    else:
        journal.write_bytes(damage(journal.read_bytes()))
    run = gone_on(begun, tmp_path / "run")
    assert run.fingerprint == begun[2]
    assert not journal.exists()
    warnings = [one for one in run.manifest["warnings"] if "journal" in one]
    assert [said in one for one in warnings] == ([] if said is None else [True])


def test_a_run_that_decides_otherwise_is_refused_and_what_it_learned_is_kept(
    begun, tmp_path, monkeypatch
):
    shutil.copytree(begun[1] / "run", tmp_path / "run")
    state = (tmp_path / "run" / "checkpoint" / "state.json").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr("simfed.replay.journaled.Journaled._settle_lost", lambda self, *_: self._go())
        with pytest.raises(RunFailed, match=r"is asked for.*--resume goes on from it"):
            gone_on(begun, tmp_path / "run")
    assert (tmp_path / "run" / "checkpoint" / "state.json").read_bytes() == state
    assert gone_on(begun, tmp_path / "run").fingerprint == begun[2]


@contextlib.contextmanager
def interrupted_in(monkeypatch, round, interrupt):
    """The merge of this round is interrupted, played again or not."""
    merge = Journaled.merge

    def merge_interrupted(self, number, *more):
        if number == round:
            interrupt()
        return merge(self, number, *more)

    with monkeypatch.context() as patch:
        patch.setattr(Journaled, "merge", merge_interrupted)
        yield


def test_who_stops_while_it_plays_again_is_told_what_is_kept(begun, tmp_path, capsys, monkeypatch):
    def stop():
        raise KeyboardInterrupt

    shutil.copytree(begun[1] / "run", tmp_path / "run")
    stopped = pytest.raises(Interrupted, match=r"keeps the last checkpoint")
    with interrupted_in(monkeypatch, 1, stop), stopped:
        gone_on(begun, tmp_path / "run")
    gone_on(begun, tmp_path / "run", progress=True)
    assert "playing again up to round 3" in capsys.readouterr().err


@pytest.mark.parametrize(("pressed", "kept"), [(1, 3), (4, 4)])
def test_ctrl_c_says_up_to_where_it_is_kept(begun, tmp_path, pressed, kept, monkeypatch):
    def press_ctrl_c():
        os.kill(os.getpid(), signal.SIGINT)

    shutil.copytree(begun[1] / "run", tmp_path / "run")
    stopped = pytest.raises(Interrupted, match=f"stopped after round {kept}; --resume goes on")
    with interrupted_in(monkeypatch, pressed, press_ctrl_c), stopped:
        gone_on(begun, tmp_path / "run")
    assert gone_on(begun, tmp_path / "run").fingerprint == begun[2]


def test_the_journal_of_a_finished_run_is_small_and_named_by_its_manifest(begun, tmp_path):
    shutil.copytree(begun[1] / "run", tmp_path / "run")
    run = gone_on(begun, tmp_path / "run")
    labels = [line.label for line in read_finished(run.path, run.manifest["journal"])]
    assert labels == [*(f"merge {n}" for n in range(1, 6)), "under way"]
    assert json.loads((run.path / "manifest.json").read_text())["journal"]
