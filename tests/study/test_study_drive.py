"""Running studies: what is done once, what is done again, what stops it.

Without learning.
"""

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import threading

import pytest
import study_fakes as fakes
from study_fakes import DIES, DIES_ONCE

from simfed import InputError, Interrupted, RunFailed
from simfed.experiment import CtrlC
from simfed.record import lock_folder
from simfed.study import (
    RunProcesses,
    ScenarioRuns,
    StudyFolder,
    drive,
    load_study,
    plan_study,
    run_study,
)
from simfed.study.address import compute_path_key
from simfed.study.tables import build_runs_table

STRATEGIES = {"policy.strategy": ["top-k", "random-k", "periodic-k"]}
SHORT = {"rounds": 2, "compression": {"k": 5000, "index_code": "seeded"}}
BAD = 101
"""A batch size that raises."""
pytestmark = pytest.mark.usefixtures("inline")


@pytest.fixture
def write(write_study):
    return lambda text="", base=None, **keys: write_study(
        text, base={**SHORT, **(base or {})}, **keys
    )


def study(path, out, **options):
    return run_study(path, out, **{"time_only": True, "progress": False, **options})


def manifest(out, address):
    return json.loads((out / "runs" / address / "manifest.json").read_text())


def fail_at_bad(monkeypatch, error):
    real = ScenarioRuns.play

    def play(kind, job, out):
        if job.plain["training"]["batch_size"] == BAD:
            raise error
        real(kind, job, out)

    monkeypatch.setattr(ScenarioRuns, "play", play)


def test_every_point_and_seed_is_run_once(write, out, inline):
    path = write(grid=STRATEGIES, seeds=[0, 1])
    result = study(path, out)
    table = result.summary
    assert set(table["status"]) == {"finished"}
    assert [*table["policy.strategy"]] == 2 * STRATEGIES["policy.strategy"]
    assert sorted(os.listdir(out / "runs")) == sorted(table["address"])
    assert study(path, out).fingerprint == result.fingerprint
    assert len(inline) == 6


def test_a_study_that_grows_runs_only_what_is_new(write, out, inline):
    study(write(grid=STRATEGIES, seeds=[0]), out)
    result = study(write(grid=STRATEGIES, seeds=[0, 1]), out)
    assert [job.plain["seed"] for job in inline] == [0, 0, 0, 1, 1, 1]
    assert len(result.summary) == 6
    # what is compared, and how the base is called, is no reason to run anything again
    result = study(write(base={"name": "renamed"}, grid=STRATEGIES, seeds=[1]), out)
    assert (len(inline), len(result.summary)) == (6, 3)
    old = {job.address for job in inline if job.plain["seed"] == 0}
    assert dict(StudyFolder(out).prune()) == dict.fromkeys(old, True)
    assert sorted(os.listdir(out / "runs")) == sorted(result.summary["address"])


def test_runs_of_another_folder_are_merged_by_a_copy(write, tmp_path, inline):
    here, there = tmp_path / "here", tmp_path / "there"
    study(write(grid=STRATEGIES, seeds=[0]), here)
    study(write(grid=STRATEGIES, seeds=[1]), there)
    shutil.copytree(there / "runs", here / "runs", dirs_exist_ok=True)
    result = study(write(grid=STRATEGIES, seeds=[0, 1]), here)
    assert [*result.summary["status"]] == ["finished"] * 6
    assert len(inline) == 6


def test_a_failed_run_keeps_its_error_and_stops_nobody(write, out, inline, monkeypatch):
    path = write(grid={"training.batch_size": [32, BAD, 64]})
    said = "1 of 3 runs failed, such as batch_size 101, seed 0: RuntimeError: unlucky; "
    with monkeypatch.context() as patch:
        fail_at_bad(patch, RuntimeError("unlucky\nsecond line"))
        with pytest.raises(RunFailed, match=said):
            study(path, out)
    table = load_study(out).summary
    assert list(table["status"]) == ["finished", "failed", "finished"]
    assert list(table["reason"]) == ["", "RuntimeError: unlucky", ""]
    shown = build_runs_table(load_study(out))
    at = shown.header.index("status")
    assert shown.rows[1][at] == "failed: RuntimeError: unlucky"
    address = table["address"][1]
    assert "in play\n    raise error" in manifest(out, address)["traceback"]
    with pytest.raises(RunFailed):  # not tried again unasked
        study(path, out)
    assert len(inline) == 3
    assert set(study(path, out, retry_failed=True).summary["status"]) == {"finished"}
    assert len(inline) == 4
    assert "traceback" not in manifest(out, table["address"][1])


def test_a_run_whose_worker_dies_is_begun_again_once(write, out, monkeypatch):
    monkeypatch.setattr(drive, "RunProcesses", RunProcesses)
    monkeypatch.setattr(drive, "play", fakes.play_or_die)
    path = write(grid={"training.batch_size": [32, DIES_ONCE, DIES]})
    said = r"1 of 3 runs failed, .* batch_size 102.*died 2"
    with pytest.raises(RunFailed, match=said):
        study(path, out, jobs=2)
    assert list(load_study(out).summary["status"]) == ["finished", "finished", "failed"]


def test_a_worker_that_died_with_nothing_to_do_is_followed_by_another():
    place = RunProcesses(1)
    try:
        first = place.submit(os.getpid)
        pid = first.result()
        place.collect(first)
        os.kill(pid, signal.SIGKILL)
        (seat,) = place._idle
        wait_until(lambda: seat.pool._broken)
        assert place.submit(os.getpid).result() != pid
    finally:
        place.close()


@pytest.mark.parametrize("number", [28, 30])
def test_a_disk_that_refuses_stops_the_study_and_blames_no_run(
    write, out, monkeypatch, number
):
    fail_at_bad(monkeypatch, OSError(number, "", str(out)))
    with pytest.raises(RunFailed) as caught:
        study(write(grid={"training.batch_size": [32, BAD, 64]}), out)
    said = f"{out}: {os.strerror(number)}; finished runs are kept in {out}"
    assert str(caught.value).startswith(said)
    assert list(load_study(out).summary["status"]) == ["finished", "waiting", "waiting"]


def test_the_folder_of_another_study_is_refused(write, out):
    study(write(grid=STRATEGIES), out)
    with pytest.raises(InputError, match="the folder of study 'test', or a new one"):
        study(write(grid=STRATEGIES, name="another"), out)


def test_a_run_folder_of_somebody_else_is_left_alone_and_named(write, out):
    path = write(grid=STRATEGIES)
    runs = [out / "runs" / address for address in study(path, out).summary["address"]]
    for run in runs[:2]:
        shutil.rmtree(run)
    runs[0].write_text("a file")
    runs[1].mkdir()
    (runs[1] / "notes.txt").write_text("mine")
    with pytest.raises(RunFailed, match=f"2 of 3 runs failed.*{runs[0]}: this is a fi"):
        study(path, out)
    table = load_study(out).summary
    assert list(table["status"]) == ["failed", "failed", "finished"]
    said = f"{runs[1]}: a folder with other files in it, expected a new or empty folder"
    assert table["reason"][1] == said
    assert os.listdir(runs[1]) == ["notes.txt"]


def test_a_run_that_another_process_is_at_is_waited_for(write, out, inline):
    path = write(grid=STRATEGIES)
    address = study(path, out).summary["address"][0]
    run = out / "runs" / address
    shutil.rmtree(run)
    run.mkdir()
    with contextlib.ExitStack() as stack:
        stack.enter_context(lock_folder(run, "run folder"))
        assert load_study(out).summary["status"][0] == "running"
        threading.Timer(1.0, stack.pop_all().close).start()
        assert set(study(path, out).summary["status"]) == {"finished"}
    assert len(inline) == 4


def test_workers_with_other_code_are_refused(write, out, monkeypatch):
    class Elsewhere(fakes.Inline):
        def submit(self, function, job):
            return super().submit(function, dataclasses.replace(job, code="another"))

    monkeypatch.setattr(drive, "RunProcesses", Elsewhere)
    with pytest.raises(RunFailed, match="the same version of simfed on every worker"):
        study(write(grid=STRATEGIES), out)
    assert os.listdir(out / "runs") == []


def test_what_is_learned_twice_is_learned_once_first(write, out, monkeypatch):
    """Two bandwidths of two strategies, with room for all: one of each strategy goes
    first.
    """
    steps = []

    class Wide(fakes.Inline):
        def slots(self):
            steps.append([])
            return 4

        def submit(self, function, job):
            steps[-1].append(job.plain["policy"]["strategy"])
            return super().submit(function, job)

    monkeypatch.setattr(drive, "RunProcesses", Wide)
    monkeypatch.setattr(ScenarioRuns, "play", lambda kind, job, out: None)
    grid = "grid: {UP: [5 Mbps, 50 Mbps], policy.strategy: [top-k, random-k]}"
    study(write(grid), out, time_only=False)
    assert [sorted(step) for step in steps] == [["random-k", "top-k"]] * 2


def test_fixed_strategies_share_a_path_over_bandwidths_and_learning_policies_do_not(
    write_study,
):
    grid = """
    grid:
      UP: [5 Mbps, 50 Mbps]
      policy:
      - {kind: uniform, strategy: top-k}
      - {kind: uniform, strategy: random-k}
      - {kind: ascend}
    """

    def keys(**base):
        runs = plan_study(write_study(grid, base=base)).runs
        return [compute_path_key(run.scenario, device="cpu") for run in runs]

    top, random, *_ = keys()
    assert keys() == [top, random, None] * 2
    assert len({top, random, None, keys(rounds=61)[0]}) == 4


# --- several processes, and signals ---------------------------------------------------


def start(path, out, *options):
    command = [sys.executable, "-m", "simfed", "study", "run", path, "--out", out]
    return subprocess.Popen(
        [*command, "--time-only", "--jobs", "1", *options],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )


def wait_until(condition, timeout_s=60):
    pause = threading.Event()
    for _ in range(int(timeout_s / 0.02)):
        if condition():
            return
        pause.wait(0.02)
    raise AssertionError("it did not come to pass")


def children_of(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(child) for child in file.read().split()]


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def under_way(out):
    return (out / "study.json").is_file() and "running" in set(
        load_study(out).summary["status"]
    )


@pytest.mark.long
def test_two_processes_share_the_runs_of_one_folder(write, out):
    path = write(base={"rounds": 150}, grid=STRATEGIES, seeds=[0, 1, 2, 3])
    both = [start(path, out), start(path, out)]
    said = [process.communicate(timeout=120)[1].splitlines() for process in both]
    assert [process.returncode for process in both] == [0, 0]
    first, second = (
        {line for line in lines if ": finished in " in line} for lines in said
    )
    assert first
    assert second
    assert len(first) + len(second) == 12
    assert set(load_study(out).summary["status"]) == {"finished"}


@pytest.mark.long
def test_kill_9_of_the_study_leaves_nobody_and_its_runs_begin_again(write, out):
    path = write(base={"rounds": 100_000}, seeds=[0])
    process = start(path, out)
    wait_until(lambda: under_way(out))
    workers = children_of(process.pid)
    process.kill()
    process.communicate()
    wait_until(lambda: not any(map(alive, workers)))
    (status,) = load_study(out).summary["status"]
    # in the middle, or before it had begun
    assert status in ("interrupted", "waiting")


def swallowing(function):
    """`function`, during which somebody presses Ctrl-C, in code that takes it for an
    odd value.
    """

    def called(*arguments, **options):
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        return function(*arguments, **options)

    return called


def test_ctrl_c_is_not_lost_in_code_that_swallows_it(
    write, tmp_path, inline, monkeypatch
):
    """pydantic's validators and serializers do, and every run that begins is
    serialized.
    """
    before = signal.getsignal(signal.SIGINT)
    path = write(grid=STRATEGIES)
    with monkeypatch.context() as patch:
        patch.setattr(ScenarioRuns, "dump", swallowing(ScenarioRuns.dump))
        with pytest.raises(Interrupted, match="interrupted with 0 of 3 runs finished"):
            study(path, tmp_path / "out")
    assert len(inline) == 1  # it heard that one had been pressed
    # while it is planned nothing is there to be kept
    with monkeypatch.context() as patch:
        patch.setattr(drive, "plan_study", swallowing(drive.plan_study))
        with pytest.raises(KeyboardInterrupt):
            study(path, tmp_path / "another")
    assert not (tmp_path / "another").exists()
    assert signal.getsignal(signal.SIGINT) is before
    assert list(study(path, tmp_path / "out").summary["status"]) == ["finished"] * 3


def test_the_second_ctrl_c_does_not_wait():
    with CtrlC().heard() as ctrl_c, ctrl_c.patient():
        signal.raise_signal(signal.SIGINT)  # says nothing yet
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            ctrl_c.check()
