"""Running studies: what is done once, what is done again, what stops it. Runs are made up."""

import contextlib
import dataclasses
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Annotated

import pydantic
import pytest
import study_fakes as fakes
import yaml

from simfed.experiment.interrupt import CtrlC
from simfed.ground.errors import InputError, InputErrors, Interrupted, RunFailed
from simfed.record.lock import lock_folder
from simfed.study import drive, executors, load_study, run_study
from simfed.study.executors import LocalExecutor
from simfed.study.kinds import ScenarioRuns
from simfed.study.plan import plan_study
from simfed.study.store import StudyFolder, find_disk_refusal
from simfed.study.tables import describe_status
from simfed.study.work import Job, do

STRATEGIES = {
    "policy.strategy": ["top-k", "random-k", "periodic-k"],
}
pytestmark = pytest.mark.usefixtures("fake_runs")


def study(path, out, **options):
    options = {"executor": fakes.Inline(), "progress": False, "trajectories": False, **options}
    return run_study(path, out, **options)


def on_two_processes(path, out, **options):
    return study(path, out, executor="local", jobs=2, **options)


def test_every_point_and_seed_is_run_once(write_study, tmp_path):
    path = write_study(grid=STRATEGIES, seeds=[0, 1])
    out = tmp_path / "out"
    result = study(path, out)
    assert len(fakes.begun(out)) == 6
    assert list(result.summary["status"]) == ["finished"] * 6
    assert list(result.summary["policy.strategy"]) == ["top-k", "random-k", "periodic-k"] * 2
    assert sorted(os.listdir(out / "runs")) == sorted(result.summary["address"])
    assert os.listdir(out / "partial") == []
    again = study(path, out)
    assert len(fakes.begun(out)) == 6
    assert again.fingerprint == result.fingerprint


def test_a_study_that_grows_runs_only_what_is_new(write_study, tmp_path):
    out = tmp_path / "out"
    study(write_study(grid=STRATEGIES, seeds=[0]), out)
    result = study(write_study(grid=STRATEGIES, seeds=[0, 1]), out)
    assert fakes.begun(out)[3:] == ["1 32 top-k", "1 32 random-k", "1 32 periodic-k"]
    assert len(result.summary) == 6
    # what is compared, and how the base is called, is no reason to run anything again
    write_study(base={"name": "renamed"}, grid=STRATEGIES, seeds=[1])
    result = study(tmp_path / "study.yaml", out)
    assert len(fakes.begun(out)) == 6
    assert len(result.summary) == 3


def test_a_moved_study_is_not_run_again(write_study, tmp_path):
    path = write_study(grid=STRATEGIES)
    study(path, tmp_path / "out")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in ("base.yaml", "study.yaml", "out"):
        shutil.move(tmp_path / name, elsewhere / name)
    study(elsewhere / "study.yaml", elsewhere / "out")
    assert not fakes.control_of(elsewhere / "out").exists()  # nothing began


def test_a_profile_counts_by_its_content(write_study, tmp_path):
    from simfed.device import find_profile

    (tmp_path / "calibration").mkdir()
    mine = tmp_path / "calibration" / "mine.yaml"
    mine.write_text(find_profile("rtx3090-ryzen4800h").read_text())
    keys = {"set": {"clients[*].device.profile": "mine"}}
    out = tmp_path / "out"
    study(write_study(**keys), out)
    mine.rename(tmp_path / "calibration" / "yours.yaml")
    study(write_study(set={"clients[*].device.profile": "yours"}), out)
    assert len(fakes.begun(out)) == 1
    with (tmp_path / "calibration" / "yours.yaml").open("a") as file:
        file.write("# edited\n")
    study(tmp_path / "study.yaml", out)
    assert len(fakes.begun(out)) == 2


def test_a_failed_run_keeps_its_error_and_stops_nobody(write_study, tmp_path):
    sizes = [32, fakes.FAILS, 64]
    path = write_study(grid={"training.batch_size": sizes})
    out = tmp_path / "out"
    with pytest.raises(RunFailed) as caught:
        study(path, out)
    assert str(caught.value).startswith(
        f"1 of 3 runs failed, such as batch_size {fakes.FAILS}, seed 0: RuntimeError: unlucky; "
    )
    table = load_study(out).summary
    assert list(table["status"]) == ["finished", "failed", "finished"]
    assert table["reason"][1] == "RuntimeError: unlucky"
    (record,) = (out / "failed").iterdir()
    assert "Traceback" in json.loads(record.read_text())["detail"]
    with pytest.raises(RunFailed):  # not tried again unasked
        study(path, out)
    assert len(fakes.begun(out)) == 3
    with pytest.raises(RunFailed):
        study(path, out, retry_failed=True)
    assert len(fakes.begun(out)) == 4


def test_a_run_whose_worker_dies_is_begun_again_once(write_study, tmp_path):
    out = tmp_path / "out"
    path = write_study(grid={"training.batch_size": [32, fakes.DIES_ONCE, fakes.DIES, 64]})
    with pytest.raises(
        RunFailed, match=r"1 of 4 runs failed, such as batch_size 102.*died \(SIGKILL"
    ):
        on_two_processes(path, out)
    table = load_study(out).summary
    assert list(table["status"]) == ["finished", "finished", "failed", "finished"]
    assert len(fakes.begun(out)) == 1 + 2 + 2 + 1


def test_a_full_disk_stops_the_study_and_blames_no_run(write_study, tmp_path):
    out = tmp_path / "out"
    path = write_study(grid={"training.batch_size": [32, fakes.FULL_DISK, 64]})
    with pytest.raises(RunFailed) as caught:
        study(path, out)
    text = str(caught.value)
    assert text.startswith(f"{out}: No space left on device; finished runs are kept in {out}")
    assert list(load_study(out).summary["status"]) == ["finished", "waiting", "waiting"]


def test_a_disk_that_refuses_is_found_behind_other_errors():
    wrapped = RunFailed("cannot be written")
    wrapped.__cause__ = OSError(30, "Read-only file system", "/mnt/x")
    assert find_disk_refusal(wrapped) is wrapped.__cause__
    assert find_disk_refusal(RunFailed("other")) is None
    assert find_disk_refusal(FileNotFoundError(2, "no")) is None


def test_folders_that_cannot_be_a_studys(write_study, tmp_path):
    path = write_study(grid=STRATEGIES)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="file: this is a file, expected a folder"):
        study(path, tmp_path / "file")
    with pytest.raises(InputError, match="cannot be written: Not a directory"):
        study(path, tmp_path / "file" / "below")
    with pytest.raises(InputError, match="a new or empty folder, or a study"):
        study(path, tmp_path)
    with pytest.raises(InputError, match="a folder without study"):
        load_study(tmp_path)
    with pytest.raises(InputError, match="no such folder, expected a study's folder"):
        load_study(tmp_path / "nothing")
    study(path, tmp_path / "out")
    data = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump({**data, "name": "another"}))
    with pytest.raises(InputError, match="the folder of study 'test', or a new one"):
        study(path, tmp_path / "out")


def test_a_scenario_that_cannot_run_is_found_before_anything_runs(write_study, tmp_path):
    path = write_study(grid={"clients[0].device.profile": ["rtx3090-ryzen4800h", "rtx3091"]})
    with pytest.raises(InputErrors, match="no calibration profile"):
        study(path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_policy_that_learns_is_refused_where_nothing_does(write_study, tmp_path):
    ours = {"top-k": {"kind": "uniform", "strategy": "top-k"}, "ascend": {"kind": "ascend"}}
    path = write_study(grid={"policy": ours, "rounds": [5, 6]}, seeds=[0, 1])
    with pytest.raises(InputErrors) as caught:
        study(path, tmp_path / "out", time_only=True)
    (error,) = caught.value.errors
    assert str(error) == (
        f"{path}: with policy ascend, rounds 5: {tmp_path}/base.yaml: policy.kind: "
        "got 'ascend', expected a policy that needs no rewards in a time-only run "
        "(policy.arms_from: RUN replays the arms of a full run)"
    )
    assert not (tmp_path / "out").exists()


def test_sizes_that_depend_on_data_are_refused_where_nothing_is_learned(write_study, tmp_path):
    path = write_study(set={"compression": {"k": 100, "index_code": "rice"}}, grid=STRATEGIES)
    with pytest.raises(InputErrors, match="a size on the wire that does not depend on the data"):
        study(path, tmp_path / "out", time_only=True)
    assert not (tmp_path / "out").exists()


def test_a_profile_is_read_once_however_many_runs_use_it(write_study, tmp_path, monkeypatch):
    from simfed.device import find_profile, load
    from simfed.ground import reading

    parsed = []
    real = reading._construct
    monkeypatch.setattr(reading, "_construct", lambda loader: parsed.append(1) or real(loader))
    (tmp_path / "calibration").mkdir()
    mine = tmp_path / "calibration" / "mine.yaml"
    mine.write_text(find_profile("rtx3090-ryzen4800h").read_text() + "# not parsed before\n")
    path = write_study(set={"clients[*].device.profile": "mine"}, grid=STRATEGIES, seeds=[0, 1, 2])
    read = plan_study(path)
    before = len(parsed)  # the study file and the base
    drive.make_states(read, str(path), "cpu", False, replays=True)
    assert len(parsed) == before + 1
    # what a profile is told of one run is not known to another
    one, other = load.load_profile(mine), load.load_profile(mine)
    assert one.curves is other.curves
    one.models["m"], one.provenance["by"] = None, "me"
    one.warnings.append("extrapolated")
    assert not other.models
    assert not other.warnings
    assert "by" not in other.provenance


def test_two_processes_do_not_run_one_study(write_study, tmp_path):
    out = tmp_path / "out"
    path = write_study(grid=STRATEGIES)
    study(path, out)
    plan = (out / "study.json").read_text()
    bigger = write_study(grid=STRATEGIES, seeds=[0, 1])
    with (
        StudyFolder(out).locked(),
        pytest.raises(InputError, match=r"nobody else is writing.*simfed study status"),
    ):
        study(bigger, out)
    assert (out / "study.json").read_text() == plan  # that of the study which is running
    study(bigger, out)


def test_of_two_workers_that_do_the_same_the_first_counts(write_study, tmp_path):
    """What a cluster does when it takes a slow worker for a dead one."""

    class Twice(fakes.Inline):
        def submit(self, job):
            job = dataclasses.replace(job, contested=True)
            inner = threading.Thread(target=lambda: self.results.append(do(job)))
            inner.start()
            result = do(job)
            inner.join()
            self.results = [result]

    out = tmp_path / "out"
    result = study(write_study(grid=STRATEGIES), out, executor=Twice())
    assert len(fakes.begun(out)) == 6
    assert list(result.summary["status"]) == ["finished"] * 3
    assert os.listdir(out / "partial") == []
    assert len(os.listdir(out / "runs")) == 3


def test_an_executor_that_does_not_exist(write_study, tmp_path):
    path = write_study(grid=STRATEGIES)
    with pytest.raises(InputError, match="got 'slurm', expected local or dask=ADDRESS"):
        study(path, tmp_path / "out", executor="slurm")
    with pytest.raises(InputError, match="--executor: got 'dask=', expected local or dask=ADDRESS"):
        study(path, tmp_path / "out", executor="dask=")


def test_workers_with_other_code_are_refused(write_study, tmp_path, monkeypatch):
    monkeypatch.setattr("simfed.study.address.own_code", lambda: "other")
    with pytest.raises(RunFailed, match="the same version of simfed on every worker"):
        study(write_study(grid=STRATEGIES), tmp_path / "out", executor="local", jobs=1)
    assert fakes.begun(tmp_path / "out") == []


# --- killing -----------------------------------------------------------------------------------

RUN = """
import sys
import simfed.study.drive as drive
import simfed.study.address as address
drive.RUNNER = "study_fakes:fake_run"
address.own_code = lambda: ""
if __name__ == "__main__":
    drive.run_study(sys.argv[1], sys.argv[2], jobs=2, trajectories=False)
"""


def start(path, out):
    script = path.parent / "script.py"
    script.write_text(RUN)
    here = Path(__file__).parent
    return subprocess.Popen(
        [sys.executable, str(script), str(path), str(out)],
        env={**os.environ, "PYTHONPATH": str(here)},
        stderr=subprocess.PIPE,
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
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def held(write_study, tmp_path):
    """A study of six runs under way: two are finished, two held up in mid-run."""
    out = tmp_path / "out"
    control = fakes.control_of(out)
    control.mkdir()
    (control / "hold-64").touch()
    path = write_study(grid={"training.batch_size": [32, 64, 128]}, seeds=[0, 1])
    # 64 of both seeds fill the two workers, so 128 of the second seed has to wait
    process = start(path, out)
    wait_until(lambda: sum(line.split()[1] == "64" for line in fakes.begun(out)) == 2)
    yield path, out, process
    for child in children_of(process.pid) if process.poll() is None else []:
        os.kill(child, signal.SIGKILL)
    process.kill()
    process.wait()
    process.stderr.close()


def finish_after_a_kill(path, out, lost):
    before = {p.name for p in (out / "runs").iterdir()}
    (fakes.control_of(out) / "hold-64").unlink()
    already = len(fakes.begun(out))
    result = study(path, out)
    assert list(result.summary["status"]) == ["finished"] * 6
    assert before <= set(result.summary["address"])  # both processes call a run alike
    assert len(fakes.begun(out)) - already == 6 - len(before)
    assert set(result.summary["fingerprint"].isna()) == {False}
    assert os.listdir(out / "partial") == []
    assert len(before) >= 6 - lost - 2


@pytest.mark.long
def test_kill_9_of_the_study_loses_the_runs_in_flight_only(held):
    path, out, process = held
    workers = children_of(process.pid)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    wait_until(lambda: not any(map(alive, workers)))  # nobody is left behind
    assert "under way" not in describe_status(load_study(out))[0]
    finish_after_a_kill(path, out, lost=2)


@pytest.mark.long
def test_kill_9_of_a_worker_costs_nothing_but_its_run(held):
    _, out, process = held
    # meanwhile, from elsewhere: what is done, and how far the rest is
    assert {"finished", "waiting"} == set(load_study(out).summary["status"])
    first, *under_way = describe_status(load_study(out))
    assert first == "test: 3 of 6 runs finished, 2 under way, 1 waiting"
    assert [line.endswith("round 0/60") for line in under_way] == [True, True]
    before = len(fakes.begun(out))
    workers = [
        pid
        for pid in children_of(process.pid)
        if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    assert len(workers) == 2
    os.kill(workers[0], signal.SIGKILL)
    wait_until(lambda: len(fakes.begun(out)) == before + 1)  # begun again on another worker
    (fakes.control_of(out) / "hold-64").unlink()
    assert process.wait(60) == 0
    assert list(load_study(out).summary["status"]) == ["finished"] * 6


def test_ctrl_c_does_not_reach_a_worker_that_is_starting():
    worker = executors._JobWorker()  # a second of its processor: it imports what runs need
    worker.signal(signal.SIGINT)
    worker.signal(signal.SIGTERM)
    assert worker.end() == "exit code 0"


def test_ctrl_c_says_how_to_go_on(held):
    path, out, process = held
    process.send_signal(signal.SIGINT)
    while "Ctrl-C again stops at once" not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    text = process.communicate(timeout=60)[1]
    assert "Interrupted: interrupted with" in text
    assert "the same command goes on" in text
    finish_after_a_kill(path, out, lost=2)


def test_what_a_crash_left_half_done_is_not_taken_for_a_run(write_study, tmp_path):
    out = tmp_path / "out"
    path = write_study(grid=STRATEGIES)
    result = study(path, out)
    address = result.summary["address"][0]
    run = out / "runs" / address
    shutil.move(run, out / "partial" / address)  # whole tables, of a run that did not end
    (out / "partial" / address / "manifest.json").unlink()
    (out / "partial" / f"{address}.json").write_text("{torn")
    again = study(path, out)
    assert len(fakes.begun(out)) == 4
    assert again.fingerprint == result.fingerprint


@pytest.mark.long
def test_a_run_begins_again_where_an_idle_worker_died_beside_its_own(tmp_path):
    folder = StudyFolder(tmp_path / "out")
    folder.make("test")
    strangers = multiprocessing.active_children()
    executor = LocalExecutor(2)

    def submit(address):
        runner = "study_fakes:wait_for_go"
        executor.submit(Job(address, str(folder.path), "", "", None, runner=runner))

    def wait_for(count):
        ended = []
        while len(ended) < count:
            ended += executor.ended(1.0)
        return {result.address: result.status for result in ended}

    go = tmp_path / "go"
    go.touch()
    submit("a")
    submit("b")
    assert wait_for(2) == {"a": "finished", "b": "finished"}
    go.unlink()
    submit("c")
    for worker in multiprocessing.active_children():
        if worker not in strangers:
            worker.kill()
            worker.join()
    go.touch()
    try:
        assert wait_for(1) == {"c": "finished"}
    finally:
        executor.close()


def keep_rounds(folder, number):
    """A checkpoint after so many rounds, as far as a study looks into it."""
    (folder / "checkpoint").mkdir(parents=True)
    (folder / "checkpoint" / "state.json").write_text(json.dumps({"round": number}))


def rounds_kept(folder):
    return json.loads((folder / "checkpoint" / "state.json").read_text())["round"]


def test_a_run_that_fails_keeps_what_it_learned(write_study, tmp_path, monkeypatch):
    found = []

    def fail(job, out, tell):
        found.append(out.exists() and rounds_kept(out))
        if not out.exists():
            keep_rounds(out, 7)
        raise RuntimeError("no memory for round 8")

    monkeypatch.setattr(fakes, "fake_run", fail)
    for retry_failed in (False, True):
        with pytest.raises(RunFailed, match="no memory for round 8"):
            study(write_study(), tmp_path / "out", retry_failed=retry_failed)
    assert found == [False, 7]


def test_of_what_a_cluster_left_the_furthest_stays(tmp_path):
    folder = StudyFolder(tmp_path / "out")
    folder.make("test")
    for name, number in {"a": 2, "a-1": 5, "a-2": 4, "b-1": 3, "c": 3, "c-1": 1}.items():
        keep_rounds(folder.partial / name, number)
    (folder.partial / "d-1" / "checkpoint").mkdir(parents=True)
    keep_rounds(folder.partial / "e-1", 2)
    keep_rounds(folder.partial / "f-1", 2)
    (folder.runs / "f").mkdir()
    (folder.runs / "f" / "manifest.json").touch()
    with lock_folder(folder.partial / "e-1", "run"):
        folder.sweep()
    left = {path.name: rounds_kept(path) for path in folder.partial.iterdir()}
    assert left == {"a": 5, "b": 3, "c": 3, "e-1": 2}


def test_on_a_cluster_a_run_goes_on_from_what_another_process_left(tmp_path, monkeypatch):
    folder = StudyFolder(tmp_path / "out")
    folder.make("test")
    keep_rounds(folder.partial / "a", 5)
    found = []
    monkeypatch.setattr(fakes, "fake_run", lambda job, out, tell: found.append(rounds_kept(out)))
    runner = "study_fakes:fake_run"
    job = Job("a", str(folder.path), "", "", None, contested=True, runner=runner)
    assert do(job).status == "finished"
    assert found == [5]


def test_a_device_that_is_absent_today_is_no_runs_failure(write_study, tmp_path, monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    out = tmp_path / "out"
    with pytest.raises(InputError, match="--device: got 'cuda', expected cpu"):
        on_two_processes(write_study(), out, device="cuda")
    assert list(load_study(out).summary["status"]) == ["waiting"]


class InterruptedInline(fakes.Inline):
    def ended(self, timeout_s):
        raise KeyboardInterrupt


def test_interrupted_is_what_a_caller_sees(write_study, tmp_path):
    with pytest.raises(Interrupted, match=r"interrupted with \d of 3 runs finished"):
        study(write_study(grid=STRATEGIES), tmp_path / "out", executor=InterruptedInline())


def swallowing(function):
    """`function`, during which somebody presses Ctrl-C, in code that takes it for an odd value."""

    def called(*arguments, **options):
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        return function(*arguments, **options)

    return called


def test_ctrl_c_is_not_lost_in_code_that_swallows_it(write_study, tmp_path, monkeypatch):
    """pydantic's validators and serializers do, and every run that begins is serialized."""
    before = signal.getsignal(signal.SIGINT)
    path = write_study(grid=STRATEGIES)
    with monkeypatch.context() as patch:
        patch.setattr(ScenarioRuns, "dump", swallowing(ScenarioRuns.dump))
        with pytest.raises(Interrupted, match="interrupted with 1 of 3 runs finished"):
            study(path, tmp_path / "out")
    assert len(fakes.begun(tmp_path / "out")) == 1
    with monkeypatch.context() as patch:  # while it is planned nothing is there to be kept
        patch.setattr(drive, "plan_study", swallowing(drive.plan_study))
        with pytest.raises(KeyboardInterrupt):
            study(path, tmp_path / "another")
    assert not (tmp_path / "another").exists()
    assert signal.getsignal(signal.SIGINT) is before
    assert list(study(path, tmp_path / "out").summary["status"]) == ["finished"] * 3


def test_pydantic_does_swallow_ctrl_c():
    """If this fails, it no longer does, and `CtrlC` need not remember."""

    def serialize(value):
        raise KeyboardInterrupt

    kind = Annotated[int, pydantic.Tag("a")] | Annotated[str, pydantic.Tag("b")]
    adapter = pydantic.TypeAdapter(Annotated[kind, pydantic.Discriminator(serialize)])
    with pytest.warns(UserWarning, match="erializ"):
        adapter.dump_python(1)


def test_the_second_ctrl_c_does_not_wait():
    with CtrlC().heard() as ctrl_c, ctrl_c.patient():
        signal.raise_signal(signal.SIGINT)  # says nothing yet
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            ctrl_c.check()
