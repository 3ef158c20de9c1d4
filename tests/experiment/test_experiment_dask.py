"""Runs on a real Dask cluster on this machine: the bits of one process."""

import functools
import os
import re
import signal
import sys
import threading
import time

import distributed
import pytest
import worlds

from simfed import InputError, RunFailed
from simfed.experiment import dask_pool
from simfed.experiment.progress import RunProgress
from simfed.ground.cluster import SchedulerConnection

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

WORLDS = {
    "residuals of lost uploads": (
        "tiny",
        {"clients[0].failure.upload": 0.4, "rounds": 6},
    ),
    "server's logits and distillation": ("two", {}),
    "states of a method's own": ("tiny", {"method": "scaffold"}),
}


def begin_cluster(workers=2, processes=False):
    return distributed.LocalCluster(
        n_workers=workers,
        threads_per_worker=1,
        processes=processes,
        host="127.0.0.1",
        protocol="tcp",
        dashboard_address=":0",
        silence_logs=50,
    )


@pytest.fixture(scope="module")
def cluster():
    with begin_cluster() as made:
        yield made.scheduler_address


@pytest.fixture
def play(cluster):
    return functools.partial(worlds.play, workers=cluster)


@pytest.mark.parametrize("name", WORLDS)
def test_cluster_learns_the_same_bits(name, play, monkeypatch):
    monkeypatch.setattr(dask_pool, "_WORTH_FLOPS", 0)
    scenario = worlds.world(*WORLDS[name])
    there, here = play(scenario), worlds.play(scenario)
    assert there.fingerprint == here.fingerprint
    assert there.manifest["workers"] == 2


def test_work_that_takes_less_than_its_messages(play, capfd, monkeypatch):
    monkeypatch.setattr(dask_pool, "_WORTH_CLIENT_S", 60.0)
    play("tiny", progress=RunProgress(2))
    [told] = [line for line in capfd.readouterr().err.splitlines() if "--dask" in line]
    assert told.endswith("--workers on one machine will be faster")


@pytest.mark.parametrize(
    ("key", "what", "name", "other"),
    [
        ("code", "version of simfed", "code_digest", None),
        ("data", "data set", "_describe_setup", {"data": "other"}),
        ("torch", "torch", "_describe_setup", {"torch": "other"}),
        ("bits", "bits", "_digest_work", None),
    ],
)
def test_worker_that_would_learn_other_bits(
    key, what, name, other, play, tmp_path, monkeypatch
):
    server, real = threading.current_thread(), getattr(dask_pool, name)

    def change(*arguments):
        found = real(*arguments)
        if threading.current_thread() is server:
            return found
        return found | other if other else "other"

    monkeypatch.setattr(dask_pool, name, change)
    said = f"^{key}: --dask: tcp://127.0.0.1:.*another {what}, expected a worker that "
    with pytest.raises(InputError, match=f"{said}learns what the server would$"):
        play(worlds.world("tiny", {"name": key, "seed": 7}), out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_worker_without_these_parts(play, monkeypatch):
    monkeypatch.setattr(dask_pool, "_SERVE", "simfed.gone:serve")
    with pytest.raises(InputError, match="another version of simfed"):
        play("tiny")


def test_an_error_of_the_work_is_told_as_of_this_process(play):
    scenario = worlds.world("tiny", {"training.learning_rate": 1e38, "rounds": 3})
    with pytest.raises(RunFailed) as here:
        worlds.play(scenario)
    with pytest.raises(RunFailed, match=f"^{re.escape(str(here.value))}$"):
        play(scenario)


def test_work_whose_workers_always_die(play, monkeypatch):
    send = dask_pool.DaskPool._send
    monkeypatch.setattr(
        dask_pool.DaskPool,
        "_send",
        lambda self, messages, *more: send(self, messages, *more) if more else {},
    )
    with pytest.raises(RunFailed, match="have died 5 times at the same work"):
        play("tiny")


def test_cluster_without_workers(monkeypatch):
    monkeypatch.setattr(dask_pool, "_LOOK_EVERY_WALL_S", 0.1)
    with (
        begin_cluster(workers=0) as empty,
        pytest.raises(RunFailed, match="no worker for 0"),
    ):
        worlds.play("tiny", workers=empty.scheduler_address)


@pytest.mark.parametrize("more", [{"time_only": True}, {"device": "cuda"}])
def test_runs_that_no_cluster_does(more):
    with pytest.raises(InputError, match=r"--dask: .*a run that learns on processors"):
        worlds.play("tiny", workers="tcp://127.0.0.1:9", **more)


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(InputError, match=r"missing \(pip install 'simfed\[dask\]'\)"):
        SchedulerConnection("tcp://127.0.0.1:9")


@pytest.mark.long
def test_killed_workers_cost_their_work_alone(tmp_path):
    scenario = worlds.world("two", {"rounds": 8})
    killed = 0

    def kill(round, simulated_s, value):
        nonlocal killed
        if round in (2, 5):
            mine = list(cluster.workers.values())[: 1 if round == 2 else 2]
            threading.Thread(target=end, args=(mine,)).start()
            killed += len(mine)

    def end(workers):
        time.sleep(0.02)
        for worker in workers:
            os.kill(worker.process.pid, signal.SIGKILL)

    with begin_cluster(processes=True) as cluster:
        there = worlds.play(scenario, workers=cluster.scheduler_address, progress=kill)
    assert killed >= 2
    assert there.fingerprint == worlds.play(scenario).fingerprint
