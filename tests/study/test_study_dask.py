"""A study on a real Dask cluster of two workers on this machine."""

import json
import os
import signal
import socket
import threading

import distributed
import pytest
import study_fakes as fakes

from simfed import InputError, RunFailed
from simfed.cli import main
from simfed.study import drive, load_study, run_study
from simfed.study.places import Cluster

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")
LONG = {"rounds": 400, "compression": {"k": 5000, "index_code": "seeded"}}
OPTIONS = {"time_only": True, "progress": False}


def test_a_cluster_that_does_not_answer():
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # bound, never listening
        address = f"tcp://127.0.0.1:{nobody.getsockname()[1]}"
        with pytest.raises(InputError) as caught:
            Cluster(address, timeout_s=0.5)
    assert str(caught.value).startswith(
        f"--dask: got '{address}', expected the address of a Dask scheduler that "
        "answers within 0.5 s ("
    )
    assert "\n" not in str(caught.value)


def test_an_address_without_a_port_is_one_sentence(write_study, tmp_path, capsys):
    """A client that is half made takes its time to go, and leaves a traceback."""
    command = ["study", "run", str(write_study(seeds=[0])), "--quiet"]
    out = str(tmp_path / "out")
    assert main([*command, "--dask", "nowhere", "--out", out]) == 2
    assert capsys.readouterr().err == (
        "simfed: --dask: got 'nowhere', expected the address of a Dask scheduler that "
        "answers within 10 s (missing port number in address 'nowhere')\n"
    )


@pytest.fixture
def cluster():
    with distributed.LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        host="127.0.0.1",
        dashboard_address=None,
        silence_logs=50,
    ) as made:
        yield made


def begin(path, out, cluster):
    """A thread that runs the study on the cluster, and what comes of it."""
    outcome = {}

    def work():
        try:
            outcome["result"] = run_study(
                path, out, dask=cluster.scheduler_address, **OPTIONS
            )
        except RunFailed as error:
            outcome["error"] = str(error)

    thread = threading.Thread(target=work)
    thread.start()
    pause = threading.Event()
    for _ in range(600):
        if (out / "study.json").is_file():
            status = load_study(out).summary["status"]
            if list(status).count("running") == 2:
                break
        pause.wait(0.1)
    return thread, outcome


@pytest.mark.long
def test_the_same_results_as_here_though_a_worker_is_killed(
    write_study, tmp_path, cluster, monkeypatch
):
    path = write_study(base=LONG, grid={"compression.k": [500, 1000]}, seeds=[0, 1, 2])
    thread, outcome = begin(path, tmp_path / "there", cluster)
    os.kill(next(iter(cluster.workers.values())).pid, signal.SIGKILL)
    thread.join(240)
    there = outcome["result"]
    monkeypatch.setattr(drive, "RunProcesses", fakes.Inline)
    here = run_study(path, tmp_path / "here", **OPTIONS)
    assert list(there.summary["status"]) == ["finished"] * 6
    for column in ("fingerprint", "address"):
        assert list(there.summary[column]) == list(here.summary[column])


@pytest.mark.long
def test_a_cluster_that_goes_away_loses_nothing_finished(write_study, out, cluster):
    path = write_study(base={**LONG, "rounds": 100_000}, seeds=[0, 1])
    thread, outcome = begin(path, out, cluster)
    cluster.close()
    thread.join(90)
    assert "the Dask cluster at" in outcome["error"]
    assert "finished runs are kept" in outcome["error"]
    for manifest in out.glob("runs/*/manifest.json"):
        assert json.loads(manifest.read_text())["status"] in ("running", "interrupted")
