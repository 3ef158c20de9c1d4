"""Damage: a changed byte, wherever it is, is named or without consequence."""

import re
import shutil
from collections import Counter

import pytest
from forging import TINY

import simfed
from simfed import InputError
from simfed.record import open_run
from simfed.verify import verify

FULL, CLOCK = "full", "time-only"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A scenario, and what `made` makes of it."""
    folder = tmp_path_factory.mktemp("damage")
    (folder / "tiny.yaml").write_text(TINY)
    (folder / "up.csv").write_text("0,20\n0.01,5\n")
    return folder


def play(folder, mode, out, **options):
    clock = {"workers": 1, "time_only": mode == CLOCK, "progress": False}
    return simfed.run(folder / "tiny.yaml", out, **clock | options)


def made(folder, mode):
    """In the folder a finished run, and one that stopped after two of three rounds."""

    def stop(round, simulated_s, accuracy):
        if round == 3:  # before its checkpoint
            raise KeyboardInterrupt

    if not (folder / mode).exists():
        play(folder, mode, folder / mode)
        with pytest.raises(simfed.Interrupted):
            play(folder, mode, folder / f"{mode}-stopped", progress=stop)
    return folder / mode


def flips(run, every, tmp_path):
    """A copy of the run for each byte that is flipped, and which file it was of."""
    copy = tmp_path / "copy"
    for file in sorted(path for path in run.rglob("*") if path.is_file()):
        for at in range(0, file.stat().st_size, every):
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(run, copy)
            changed = copy / file.relative_to(run)
            content = bytearray(changed.read_bytes())
            content[at] ^= 1
            changed.write_bytes(content)
            yield copy, file.relative_to(run).as_posix(), at


def going_on_is_refused_or_right(folder, mode, every, tmp_path):
    whole = open_run(made(folder, mode))
    came = Counter()
    for copy, file, at in flips(folder / f"{mode}-stopped", every, tmp_path):
        try:
            run = play(folder, mode, copy, resume=True)
        except InputError as error:
            sentence = str(error)
            assert "\n" not in sentence, (file, at)
            named = file.rpartition("/")[0] if "segments" in file else file
            assert str(copy / named) in sentence, (file, at, sentence)
            came["refused"] += 1
            continue
        assert run.fingerprint == whole.fingerprint, (file, at)
        assert verify(copy) == [], (file, at)
        told = " ".join(run.manifest["warnings"])
        said = re.search("went on from an earlier checkpoint|began at round 1 ag", told)
        came["from the checkpoint before" if said else "unharmed"] += 1
        # not needed, or a copy of what the scenario names
        harmless = (
            "checkpoint/earlier.json",
            "checkpoint/arrays-000001",
            "calibration/",
            "network/",
        )
        assert said or file.startswith(harmless), (file, at)
    return came


def test_run_goes_on_to_the_same_result_or_names_the_changed_file(folder, tmp_path):
    came = going_on_is_refused_or_right(folder, CLOCK, 9973, tmp_path)
    assert {*came} >= {"refused", "unharmed"}, came


@pytest.mark.long
@pytest.mark.parametrize(("mode", "every"), [(CLOCK, 200), (FULL, 3988)])
def test_wherever_a_byte_is_changed_a_run_goes_on_or_names_the_file(
    folder, tmp_path, mode, every
):
    going_on_is_refused_or_right(folder, mode, every, tmp_path)


def a_finished_run_is_refused_or_what_it_was(run, every, tmp_path):
    whole = open_run(run)
    for copy, file, at in flips(run, every, tmp_path):
        try:
            broken = verify(copy)
            seen = open_run(copy)
            tables = {
                name: seen.table(name) for name in ("rounds", "spans", "participations")
            }
        except InputError as error:
            broken, tables = [str(error)], {}
        if not broken:
            # a byte that says nothing of the rows, or a digit beyond what a number
            # keeps
            same = file == "manifest.json" and seen.manifest == whole.manifest
            assert same or file.endswith(".parquet"), (file, at)
            assert all(
                table.equals(whole.table(name)) for name, table in tables.items()
            ), (file, at)
        assert all("\n" not in sentence for sentence in broken), (file, at)


def test_changed_byte_of_a_finished_run_is_said(folder, tmp_path):
    a_finished_run_is_refused_or_what_it_was(made(folder, CLOCK), 2503, tmp_path)
