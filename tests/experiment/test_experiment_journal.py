"""Runs that go on over their journal, whatever became of it."""

import contextlib
import json
import os
import resource
import shutil
import signal
from functools import partial

import pytest
from forging import TINY, read_journal, write_journal

import simfed
from simfed import InputError, Interrupted, RunFailed
from simfed.cli import main
from simfed.record import COMPRESSED, NAME, Journal, digest_value, read_finished
from simfed.replay.journaled import Journaled


def play(folder, out=None, **options):
    options = {"progress": False, **options}
    return simfed.run(folder / "tiny.yaml", out, **options)


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A folder of a run that was stopped after three of five rounds."""
    folder = tmp_path_factory.mktemp("begun")
    trace = "{file: up.csv, format: csv, end: hold}"
    text = TINY.replace("rounds: 3", "rounds: 5").replace(trace, "9 Mbps")
    (folder / "tiny.yaml").write_text(text)

    def stop(round, time_s, accuracy):
        if round == 4:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        play(folder, folder / "run", progress=stop)
    return folder


@pytest.fixture(scope="module")
def whole(begun):
    """The run, played to its end."""
    return play(begun, begun / "whole")


@pytest.fixture
def run(begun, tmp_path):
    """A copy of the stopped run."""
    return shutil.copytree(begun / "run", tmp_path / "run")


@pytest.fixture
def go_on(begun, run):
    return lambda **options: play(begun, run, resume=True, **options)


def keep(lines, text, but=0):
    """The first lines of a journal, but for some bytes at their end."""
    kept = b"".join(text.splitlines(keepends=True)[:lines])
    return kept[: len(kept) - but]


def double_first_line(text):
    return text.splitlines(keepends=True)[0] + text


ANEW, EARLIER = (
    "began at round 1 again",
    "went on from an earlier checkpoint, after round 2",
)
DAMAGES = {
    "more": (lambda text: text + b'["half a line', None),
    "a line less": (partial(keep, 2), EARLIER),
    "cut in a line": (partial(keep, 3, but=20), EARLIER),
    "empty": (lambda text: b"", ANEW),
    "edited": (lambda text: text.replace(b'"merge 1"', b'"merge 7"'), ANEW),
    "one number": (lambda text: text.replace(b",[1,", b",[2,", 1), ANEW),
    "a line twice": (double_first_line, ANEW),
    "no UTF-8": (lambda text: b"\xff" + text[1:], ANEW),
    "no number": (lambda text: text.replace(b",[1,", b",[NaN,", 1), ANEW),
    "missing": (None, ANEW),
}
"""What became of a journal → its new text, and what a run that goes on warns of."""


def read_journal_warnings(run):
    return [one for one in run.manifest["warnings"] if "journal" in one]


@pytest.mark.parametrize(("damage", "said"), DAMAGES.values(), ids=DAMAGES)
def test_run_goes_on_to_the_same_bits_whatever_is_left_of_its_journal(
    run, go_on, whole, damage, said
):
    journal = run / NAME
    if damage is None:
        journal.unlink()
    else:
        journal.write_bytes(damage(journal.read_bytes()))
    done = go_on()
    assert done.fingerprint == whole.fingerprint
    assert not journal.exists()
    told = [said in one for one in read_journal_warnings(done)]
    assert told == ([] if said is None else [True])


@pytest.mark.parametrize(("damage", "_"), DAMAGES.values(), ids=DAMAGES)
def test_damaged_journal_is_told_by_verify_and_replays_no_arms(
    begun, whole, tmp_path, capsys, damage, _
):
    run, scenario = tmp_path / "run", tmp_path / "tiny.yaml"
    shutil.copytree(whole.path, run)
    if damage is None:
        (run / COMPRESSED).unlink()
    else:
        write_journal(run, damage(read_journal(whole.path).encode()))
    text = (begun / "tiny.yaml").read_text()
    scenario.write_text(text.replace("policy: {", "policy: {arms_from: run, "))
    assert main(["verify", str(run)]) == 3
    assert main(["run", str(scenario), "--time-only", "--no-figures"]) == 2
    said = capsys.readouterr().err.splitlines()
    assert [f"run/{COMPRESSED}: " in line for line in said] == [True, True]


@pytest.mark.parametrize(("bytes", "said"), [(float("nan"), None), (10**400, ANEW)])
def test_state_of_a_journal_that_cannot_be_is_no_state(run, go_on, whole, bytes, said):
    """Its digest is right, as if a version to come had written it."""
    for name in ("state.json", "earlier.json"):
        path = run / "checkpoint" / name
        state = json.loads(path.read_text())
        del state["digest"]
        state["journal"][0] = bytes
        path.write_text(json.dumps({**state, "digest": digest_value(state)}))
    if said is None:
        refused = r"its journal has .* bytes.*--overwrite begins"
        with pytest.raises(InputError, match=refused):
            go_on()
    else:
        done = go_on()
        assert done.fingerprint == whole.fingerprint
        assert said in " ".join(read_journal_warnings(done))


def test_disk_that_is_full_in_the_journal_ends_the_run_in_a_sentence(
    run, go_on, whole, monkeypatch
):
    """It goes on from what was saved before."""
    length = (run / NAME).stat().st_size
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    flush = Journal.flush

    def flush_on_full_disk(journal):
        resource.setrlimit(resource.RLIMIT_FSIZE, (length, limits[1]))
        try:
            return flush(journal)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    said = r"journal.jsonl: cannot be written \(File too large\)"
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "flush", flush_on_full_disk)
        with pytest.raises(RunFailed, match=said):
            go_on()
    assert go_on().fingerprint == whole.fingerprint


def test_run_that_decides_otherwise_is_refused_and_what_it_learned_is_kept(
    run, go_on, whole, monkeypatch
):
    path = run / "checkpoint" / "state.json"
    state, said = path.read_bytes(), "what was decided before.*--resume goes on from it"
    with monkeypatch.context() as patch:
        patch.setattr(Journaled, "_settle_lost", lambda self, *_: self._go())
        with pytest.raises(RunFailed, match=said):
            go_on()
    assert path.read_bytes() == state
    assert go_on().fingerprint == whole.fingerprint


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


def test_who_stops_while_it_plays_again_is_told_what_is_kept(
    go_on, capsys, monkeypatch
):
    def stop():
        raise KeyboardInterrupt

    stopped = pytest.raises(Interrupted, match=r"keeps the last checkpoint")
    with interrupted_in(monkeypatch, 1, stop), stopped:
        go_on()
    go_on(progress=True)
    assert "playing again up to round 3" in capsys.readouterr().err


def test_ctrl_c_says_up_to_where_it_is_kept(go_on, whole, monkeypatch):
    def press_ctrl_c():
        os.kill(os.getpid(), signal.SIGINT)

    said = "stopped after round 4; --resume goes on"
    stopped = pytest.raises(Interrupted, match=said)
    with interrupted_in(monkeypatch, 4, press_ctrl_c), stopped:
        go_on()
    assert go_on().fingerprint == whole.fingerprint


def test_journal_of_a_finished_run_is_small_and_named_by_its_manifest(whole):
    manifest = json.loads((whole.path / "manifest.json").read_text())
    labels = [line.label for line in read_finished(whole.path, manifest["journal"])]
    assert labels == [*(f"merge {n}" for n in range(1, 6)), "under way"]
