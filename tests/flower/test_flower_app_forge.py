"""Plays forked from a warm process, and what a stretch of code works and waits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from simfed.flower.children import UsageMeter, list_children, read_children_s
from simfed.flower.computing import Charge
from simfed.flower.forge import Forge

PROJECT = """
[project]
name = "forged"
version = "1.0.0"
license = "Apache-2.0"
[tool.flwr.app]
publisher = "me"
[tool.flwr.app.components]
serverapp = "forged_app:server"
clientapp = "forged_app:client"
[tool.flwr.app.config]
spin = 200000
behaves = "well"
"""
APP = """
import os, signal, subprocess, sys, time

WARM = "tabnanny" in sys.modules
import tabnanny
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

client, server = ClientApp(), ServerApp()


@client.train()
def train(message, context):
    if context.run_config["behaves"] == "hangs":
        sleeper = subprocess.Popen(["sleep", "600"])
        print(sleeper.pid, file=open("@PID", "w"), flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
    if context.run_config["behaves"] == "cannot be forked" and WARM:
        os.kill(os.getpid(), signal.SIGKILL)
    if context.run_config["behaves"] == "needs rows":
        context.node_config["rows"]
    sum(range(context.run_config["spin"]))
    content = RecordDict({"m": MetricRecord({"pid": os.getpid()})})
    return Message(content, reply_to=message)


@server.main()
def main(grid, context):
    content = RecordDict({"config": ConfigRecord({"a": 1})})
    asked = [Message(content, n, "train") for n in grid.get_node_ids()]
    list(grid.send_and_receive(asked))
"""


@pytest.fixture
def app(tmp_path):
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    (tmp_path / "forged_app.py").write_text(
        APP.replace("@PID", str(tmp_path / "child"))
    )
    return tmp_path


def job(app, *, groups=({"count": 2},), **overrides):
    return {"folder": str(app), "overrides": overrides, "groups": list(groups)}


def test_plays_are_forks_and_a_nodes_own_exception_is_what_is_read(app):
    with Forge(app) as forge:
        first, more = forge.play(job(app)), forge.play(job(app, spin=4_000_000))
        failed = forge.play(job(app, behaves="needs rows"))
        rows = forge.play(
            job(
                app,
                behaves="needs rows",
                groups=[{"count": 1, "node_config": {"rows": 3}}],
            )
        )
    assert first.error is None
    pids = {
        m["visible"]["reply"]["pid"] for said in (first, more) for m in said.messages
    }
    assert len(pids) == 2  # a process for each play
    least, most = (min(m["work_s"] for m in said.messages) for said in (first, more))
    assert 5 < most / least < 80
    assert failed.error == "node 0 raised KeyError: 'rows'"
    assert rows.messages[0]["visible"]["node_config"] == {"rows": 3}


def test_a_play_that_hangs_is_ended_with_its_children(app):
    with Forge(app, limit_s=6.0) as forge:
        said = forge.play(job(app, behaves="hangs"))
    assert said.error == "it died, or took longer than 6 s"
    assert not _is_alive(int((app / "child").read_text()))


def test_what_does_not_survive_a_fork_is_played_in_new_processes(app):
    with Forge(app) as forge:
        assert forge.play(job(app, behaves="cannot be forked")).error is None
        began_s = time.monotonic()
        assert forge.play(job(app, behaves="cannot be forked")).error is None
        assert time.monotonic() - began_s > 0.5  # which has imported Flower anew


def _is_alive(process):
    try:
        with open(f"/proc/{process}/stat", encoding="ascii") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def charge(monkeypatch):
    monkeypatch.setattr(Charge, "meter", UsageMeter())
    return Charge(None)


def run_child(code):
    subprocess.run([sys.executable, "-S", "-c", "import time\n" + code], check=True)


BUSY = "began = time.process_time()\nwhile time.process_time() - began < 0.3: pass"


@pytest.mark.parametrize(
    ("code", "works_s", "waits_s"),
    [
        (BUSY, 0.3, 0.0),
        ("time.sleep(0.3)", 0.0, 0.3),
        (f"time.sleep(0.3)\n{BUSY}", 0.3, 0.3),
    ],
)
def test_a_child_works_for_the_app_and_its_queueing_is_no_wait(
    charge, code, works_s, waits_s
):
    with charge.watched():
        run_child(code)
    spent = charge.collect()
    assert works_s <= spent.work_s < works_s + 0.15
    # on a machine with nothing else to do all of it is seen
    assert 0.3 * waits_s <= spent.waited_s < waits_s + 0.15


def test_threads_of_the_app_work_for_it(charge):
    def work():
        began = time.thread_time()
        while time.thread_time() - began < 0.2:
            pass

    with charge.watched():
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    spent = charge.collect()
    assert 0.2 <= spent.work_s < 0.4
    assert spent.waited_s < 0.1


def test_a_child_that_lives_on_is_read_while_it_works():
    child = subprocess.Popen(
        [
            sys.executable,
            "-S",
            "-c",
            (f"import time\n{BUSY}\nprint(flush=True)\ntime.sleep(60)"),
        ],
        stdout=subprocess.PIPE,
    )
    try:
        before_s = read_children_s()
        child.stdout.read(1)
        assert child.pid in list_children()
        assert 0.1 < read_children_s() - before_s < 0.6
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.communicate()
