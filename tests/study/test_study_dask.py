"""A study on a real Dask cluster of two workers on this machine."""

import logging
import os
import signal
import socket
import subprocess
import sys
import threading

import distributed
import pytest
import study_fakes as fakes

from simfed.ground.errors import InputError, RunFailed
from simfed.study import load_study, run_study

pytestmark = [
    pytest.mark.usefixtures("fake_runs"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


def test_a_cluster_that_does_not_answer(write_study, tmp_path, monkeypatch):
    from simfed.study import executors

    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # bound, never listening
        address = f"tcp://127.0.0.1:{nobody.getsockname()[1]}"
        with pytest.raises(InputError) as caught:
            executors.DaskExecutor(address, timeout_s=0.5)
    assert str(caught.value).startswith(
        f"--executor: got 'dask={address}', expected the address of a Dask scheduler that answers "
        "within 0.5 s ("
    )
    assert "\n" not in str(caught.value)


@pytest.mark.long
def test_an_address_without_a_port_is_one_sentence(write_study, tmp_path):
    """A client that is half made takes its time to go, and leaves a traceback."""
    path = write_study(seeds=[0])
    command = [sys.executable, "-m", "simfed", "study", "run", path, "--executor", "dask=nowhere"]
    done = subprocess.run(
        [*command, "--out", tmp_path / "out", "--time-only"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == (
        "simfed: --executor: got 'dask=nowhere', expected the address of a "
        "Dask scheduler that answers within 10 s (missing port number in "
        "address 'nowhere')\n"
    )


def test_what_the_library_logs_of_a_failed_connection_is_not_shown(monkeypatch, capsys):
    from simfed.study.executors import DaskExecutor

    shown = logging.getLogger("distributed.client")
    handler = logging.StreamHandler(sys.stderr)

    def client(*_, **__):
        shown.error("Traceback")
        raise OSError("nobody there")

    monkeypatch.setattr(distributed, "Client", client)
    shown.addHandler(handler)
    try:
        with pytest.raises(InputError, match="nobody there"):
            DaskExecutor("127.0.0.1:9")
        assert capsys.readouterr().err == ""
        shown.error("later")
        assert "later" in capsys.readouterr().err
    finally:
        shown.removeHandler(handler)


def test_an_address_that_is_none():
    from simfed.study.executors import DaskExecutor

    with pytest.raises(InputError, match="the address of a Dask scheduler"):
        DaskExecutor("nonsense://///", timeout_s=0.5)


def test_jobs_beside_a_cluster(write_study, tmp_path):
    with pytest.raises(InputError, match="no --jobs beside a Dask cluster"):
        run_study(
            write_study(seeds=[0]), tmp_path / "out", executor="dask=x", jobs=2, progress=False
        )


@pytest.fixture
def cluster(monkeypatch):
    here = os.path.dirname(__file__)
    monkeypatch.setenv("PYTHONPATH", here)  # workers import the fakes
    with distributed.LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        host="127.0.0.1",
        dashboard_address=None,
        silence_logs=50,
    ) as made:
        yield made


def wait_until(condition, timeout_s=60):
    pause = threading.Event()
    for _ in range(int(timeout_s / 0.05)):
        if condition():
            return
        pause.wait(0.05)
    raise AssertionError("it did not come to pass")


@pytest.mark.long
def test_the_same_results_as_here_though_a_worker_is_killed(write_study, tmp_path, cluster):
    path = write_study(grid={"training.batch_size": [32, 64]}, seeds=[0, 1, 2, 3])
    here = run_study(
        path, tmp_path / "here" / "out", executor=fakes.Inline(), progress=False, trajectories=False
    )

    out = tmp_path / "there" / "out"
    control = fakes.control_of(out)
    control.mkdir(parents=True)
    (control / "hold-64").touch()
    outcome = {}

    def work():
        outcome["result"] = run_study(
            path,
            out,
            executor=f"dask={cluster.scheduler_address}",
            progress=False,
            trajectories=False,
        )

    study = threading.Thread(target=work)
    study.start()
    held = lambda: sum(line.split()[1] == "64" for line in fakes.begun(out))  # noqa: E731
    wait_until(lambda: held() == 2)  # both workers are in mid-run
    victim = next(iter(cluster.workers.values()))
    os.kill(victim.pid, signal.SIGKILL)
    wait_until(lambda: held() == 3)  # its run is begun again elsewhere
    (control / "hold-64").unlink()
    study.join(120)
    there = outcome["result"]
    assert list(there.summary["status"]) == ["finished"] * 8
    assert list(there.summary["fingerprint"]) == list(here.summary["fingerprint"])
    assert list(there.summary["address"]) == list(here.summary["address"])
    assert os.listdir(out / "partial") == []


@pytest.mark.long
def test_a_cluster_that_goes_away_loses_nothing_finished(write_study, tmp_path, cluster):
    out = tmp_path / "out"
    control = fakes.control_of(out)
    control.mkdir(parents=True)
    (control / "hold-64").touch()
    path = write_study(grid={"training.batch_size": [32, 64]}, seeds=[0, 1])
    outcome = {}

    def work():
        try:
            run_study(
                path,
                out,
                executor=f"dask={cluster.scheduler_address}",
                progress=False,
                trajectories=False,
            )
        except RunFailed as error:
            outcome["error"] = str(error)

    study = threading.Thread(target=work)
    study.start()
    wait_until(lambda: sum(line.split()[1] == "64" for line in fakes.begun(out)) == 2)
    cluster.close()
    study.join(90)
    assert "the Dask cluster at" in outcome["error"]
    assert "finished runs are kept" in outcome["error"]
    assert list(load_study(out).summary["status"]) == ["finished", "waiting"] * 2
