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
        simfed.run(
            scenario,
            folder / "run",
            source=folder / "tiny.yaml",
            progress=stop_after(4),
        )
    return scenario, folder, whole.fingerprint


def gone_on(begun, path, progress=False):
    scenario, folder, _ = begun
    return simfed.run(
        scenario, path, source=folder / "tiny.yaml", resume=True, progress=progress
    )


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


@pytest.mark.parametrize(("damage", "said"), DAMAGES.values(), ids=DAMAGES)
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


@pytest.fixture(scope="module")
def ended(begun):
    """The run, played to its end."""
    scenario, folder, _ = begun
    return simfed.run(
        scenario, folder / "ended", source=folder / "tiny.yaml", progress=False
    )


@pytest.mark.parametrize(
    "damage", [damage for damage, _ in DAMAGES.values()], ids=DAMAGES
)
def test_a_damaged_journal_is_told_by_verify_and_replays_no_arms(
    begun, ended, tmp_path, capsys, damage
):
    shutil.copytree(ended.path, tmp_path / "run")
    if damage is None:
        (tmp_path / "run" / COMPRESSED).unlink()
    else:
        write_journal(tmp_path / "run", damage(read_journal(ended.path).encode()))
    (tmp_path / "tiny.yaml").write_text(
        (begun[1] / "tiny.yaml")
        .read_text()
        .replace("policy: {", "policy: {arms_from: run, ")
    )
    assert main(["verify", str(tmp_path / "run")]) == 3
    assert (
        main(["run", str(tmp_path / "tiny.yaml"), "--time-only", "--no-figures"]) == 2
    )
    said = capsys.readouterr().err.splitlines()
    assert [f"run/{COMPRESSED}: " in line for line in said] == [True, True]


@pytest.mark.parametrize(("bytes", "said"), [(float("nan"), None), (10**400, ANEW)])
def test_a_state_of_a_journal_that_cannot_be_is_no_state(begun, tmp_path, bytes, said):
    """Its digest is right, as if a version to come had written it."""
    shutil.copytree(begun[1] / "run", tmp_path / "run")
    for name in ("state.json", "earlier.json"):
        path = tmp_path / "run" / "checkpoint" / name
        state = json.loads(path.read_text())
        del state["digest"]
        state["journal"][0] = bytes
        path.write_text(json.dumps({**state, "digest": digest_value(state)}))
    if said is None:
        with pytest.raises(
            InputError,
            match=r"its journal has .* bytes.*--overwrite "
            r"begins",
        ):
            gone_on(begun, tmp_path / "run")
    else:
        run = gone_on(begun, tmp_path / "run")
        assert run.fingerprint == begun[2]
        assert any(said in warning for warning in run.manifest["warnings"])


def test_a_disk_that_is_full_in_the_journal_ends_the_run_in_a_sentence(begun, tmp_path):
    """It goes on from what was saved before."""
    shutil.copytree(begun[1] / "run", tmp_path / "run")
    length = (tmp_path / "run" / NAME).stat().st_size
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    flush = Journal.flush

    def flush_on_full_disk(journal):
        resource.setrlimit(resource.RLIMIT_FSIZE, (length, limits[1]))
        try:
            return flush(journal)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Journal, "flush", flush_on_full_disk)
        with pytest.raises(
            RunFailed,
            match=r"journal.jsonl: cannot be written \(File "
            r"too large\)",
        ):
            gone_on(begun, tmp_path / "run")
    assert gone_on(begun, tmp_path / "run").fingerprint == begun[2]


def test_a_run_that_decides_otherwise_is_refused_and_what_it_learned_is_kept(
    begun, tmp_path, monkeypatch
):
    shutil.copytree(begun[1] / "run", tmp_path / "run")
    state = (tmp_path / "run" / "checkpoint" / "state.json").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(
            "simfed.replay.journaled.Journaled._settle_lost",
            lambda self, *_: self._go(),
        )
        with pytest.raises(
            RunFailed,
            match=r"what was decided before.*--resume goes "
            r"on from it",
        ):
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


def test_who_stops_while_it_plays_again_is_told_what_is_kept(
    begun, tmp_path, capsys, monkeypatch
):
    def stop():
        raise KeyboardInterrupt

    shutil.copytree(begun[1] / "run", tmp_path / "run")
    stopped = pytest.raises(Interrupted, match=r"keeps the last checkpoint")
    with interrupted_in(monkeypatch, 1, stop), stopped:
        gone_on(begun, tmp_path / "run")
    gone_on(begun, tmp_path / "run", progress=True)
    assert "playing again up to round 3" in capsys.readouterr().err


@pytest.mark.parametrize(("pressed", "kept"), [(4, 4)])
def test_ctrl_c_says_up_to_where_it_is_kept(
    begun, tmp_path, pressed, kept, monkeypatch
):
    def press_ctrl_c():
        os.kill(os.getpid(), signal.SIGINT)

    shutil.copytree(begun[1] / "run", tmp_path / "run")
    stopped = pytest.raises(
        Interrupted, match=f"stopped after round {kept}; --resume goes on"
    )
    with interrupted_in(monkeypatch, pressed, press_ctrl_c), stopped:
        gone_on(begun, tmp_path / "run")
    assert gone_on(begun, tmp_path / "run").fingerprint == begun[2]


def test_the_journal_of_a_finished_run_is_small_and_named_by_its_manifest(
    begun, tmp_path
):
    shutil.copytree(begun[1] / "run", tmp_path / "run")
    run = gone_on(begun, tmp_path / "run")
    labels = [line.label for line in read_finished(run.path, run.manifest["journal"])]
    assert labels == [*(f"merge {n}" for n in range(1, 6)), "under way"]
    assert json.loads((run.path / "manifest.json").read_text())["journal"]
