"""Plays forked from a warm process, and what a stretch of code works and waits."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest
from flower_worlds import write_app

from simfed.flower import Forge, WorkWatch
from simfed.flower.children import UsageMeter, list_children, read_children_s

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
    content = RecordDict({"m": MetricRecord({"pid": os.getpid(), "warm": int(WARM)})})
    return Message(content, reply_to=message)


@server.main()
def main(grid, context):
    content = RecordDict({"config": ConfigRecord({"a": 1})})
    asked = [Message(content, n, "train") for n in grid.get_node_ids()]
    list(grid.send_and_receive(asked))
"""


@pytest.fixture
def app(tmp_path):
    code = APP.replace("@PID", str(tmp_path / "child"))
    config = 'spin = 200000\nbehaves = "well"\n'
    return write_app(tmp_path / "app", "forged_app", code, config)


def job(app, *, groups=({"count": 2},), **overrides):
    return {"folder": str(app), "overrides": overrides, "groups": list(groups)}


def test_plays_are_forks_and_a_nodes_own_exception_is_what_is_read(app):
    needs = {"behaves": "needs rows"}
    with Forge(app) as forge:
        first, more = forge.play(job(app)), forge.play(job(app, spin=20_000_000))
        failed = forge.play(job(app, **needs))
        groups = [{"count": 1, "node_config": {"rows": 3}}]
        rows = forge.play(job(app, groups=groups, **needs))
    assert first.error is None
    pids = {seen.reply["pid"] for said in (first, more) for seen, *_ in said.messages}
    assert len(pids) == 2  # a process for each play
    least, most = (min(m[1].work_s for m in said.messages) for said in (first, more))
    assert most > 2 * least  # of a hundred times the work
    assert failed.error == "node 0 raised KeyError: 'rows'"
    ((seen, _, exchange),) = rows.messages
    assert (seen.node_config, exchange) == ({"rows": 3}, 1)


def test_a_play_that_hangs_is_ended_with_its_children(app):
    with Forge(app, limit_s=6.0) as forge:
        said = forge.play(job(app, behaves="hangs"))
    assert said.error == "it died, or took longer than 6 s"
    assert not _is_alive(int((app.parent / "child").read_text()))


def test_what_does_not_survive_a_fork_is_played_in_new_processes(app):
    with Forge(app) as forge:
        for _ in range(2):
            said = forge.play(job(app, behaves="cannot be forked"))
            assert said.error is None
            assert not said.messages[0][0].reply["warm"]  # it has imported all anew


def _is_alive(process):
    try:
        with open(f"/proc/{process}/stat", encoding="ascii") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def charge(monkeypatch):
    monkeypatch.setattr(WorkWatch, "meter", UsageMeter())
    return WorkWatch(None)


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
    began_s = time.monotonic()
    with charge.watched():
        run_child(code)
    host_s, spent = time.monotonic() - began_s, charge.collect()
    # a child's own start is work as well, on a busy machine more than on an idle one
    assert works_s <= spent.work_s < works_s + 0.25
    # on a machine with nothing else to do all of it is seen
    assert 0.3 * waits_s <= spent.waited_s <= waits_s + 0.3 * host_s


def test_threads_of_the_app_work_for_it(charge):
    def work():
        began = time.thread_time()
        while time.thread_time() - began < 0.2:
            pass

    began_s = time.monotonic()
    with charge.watched():
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    host_s, spent = time.monotonic() - began_s, charge.collect()
    assert 0.2 <= spent.work_s < 0.4
    assert spent.waited_s <= 0.3 * host_s


def test_a_child_that_lives_on_is_read_while_it_works():
    code = f"import time\n{BUSY}\nprint(flush=True)\ntime.sleep(60)"
    command = [sys.executable, "-S", "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        before_s = read_children_s()
        child.stdout.read(1)
        children, worked_s = list_children(), read_children_s() - before_s
        child.kill()
    assert child.pid in children
    assert 0.1 < worked_s < 0.6
