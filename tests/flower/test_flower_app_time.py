"""What apps read from their clocks, and how server apps wait: loops, threads, event loops."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed

import numpy as np
import pytest
import torch
from flower_worlds import DEVICE, client, fleet, payload, play, to

from simfed.flower.work import NodeClock
from simfed.ground.errors import RunFailed

METERED = {"computing": "metered"}
SPEEDS = tuple({"device": {"profile": DEVICE, "speed": speed}} for speed in (0.25, 1.0, 0.5))


def ask_all(grid, context):
    replies = list(grid.send_and_receive([to(node) for node in grid.get_node_ids()]))
    told.append([reply.content["metrics"]["v"] for reply in replies])


told: list = []


@pytest.fixture(autouse=True)
def _nothing_told():
    told.clear()


def step(net, optimizer):
    optimizer.zero_grad()
    net(torch.ones(32, 64)).sum().backward()
    optimizer.step()


def net_and_optimizer():
    net = torch.nn.Linear(64, 64)
    return net, torch.optim.SGD(net.parameters(), lr=0.01)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_nodes_clock_moves_by_the_work_that_is_charged(tmp_path, workers):
    def train(message, context):
        net, optimizer = net_and_optimizer()
        began, busy = time.perf_counter(), time.process_time()
        for _ in range(5):
            step(net, optimizer)
        time.sleep(2.0)
        half = time.perf_counter()
        for _ in range(5):
            step(net, optimizer)
        ended = time.perf_counter()
        assert half - began - 2.0 == pytest.approx(ended - half)
        assert time.process_time() - busy == pytest.approx(ended - began - 2.0)
        assert 320 / (ended - half) > 0
        return payload(ended - began)

    noise = {"kind": "lognormal", "cv": 0.2}
    device = {"profile": DEVICE, "speed": 0.5, "noise": noise}
    world = fleet({"device": device, "count": 2}, **METERED)
    run = play(ask_all, world, tmp_path, client(train), workers=workers)
    by_client = run.participations.sort_values("client")["training_s"]
    assert sorted(told[0]) == pytest.approx(sorted(by_client), rel=1e-9)
    assert by_client.nunique() == 2  # each with its own noise


def test_a_node_may_train_until_its_budget_of_seconds_is_spent(tmp_path):
    """A device of half the speed gets half as far in the same time."""

    def train(message, context):
        net, optimizer = net_and_optimizer()
        steps, began = 0, time.monotonic()
        while time.monotonic() - began < 0.01:
            step(net, optimizer)
            steps += 1
        return payload(steps)

    groups = [{"device": {"profile": DEVICE, "speed": speed}} for speed in (0.5, 0.25)]
    run = play(ask_all, fleet(*groups, **METERED), tmp_path, client(train))
    quick, slow = sorted(told[0], reverse=True)
    assert quick == pytest.approx(2 * slow, abs=1)
    assert run.participations["training_s"].between(0.01, 0.02).all()


def test_a_node_that_only_looks_at_its_clock_waits(tmp_path):
    def wait(message, context):
        net, optimizer = net_and_optimizer()
        step(net, optimizer)
        until_s = time.time() + 30
        while time.time() < until_s:
            pass
        return message.content

    run = play(ask_all, fleet({}, **METERED), tmp_path, client(wait))
    assert run.participations["training_s"].item() == pytest.approx(30, rel=0.02)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_division_by_a_time_that_stands_still_is_refused(tmp_path, workers):
    def train(message, context):
        began = time.perf_counter()
        return payload(1 / (time.perf_counter() - began))

    with pytest.raises(RunFailed, match=r"node 0 divides by zero, and its clock .*measured"):
        play(ask_all, fleet({"count": 3}, **METERED), tmp_path, client(train), workers=workers)


def test_an_app_that_computes_by_a_clock_that_stands_still_is_given_up(tmp_path, monkeypatch):
    """NumPy until a budget is spent: metered computing moves no clock, so it never would be."""
    monkeypatch.setattr(NodeClock, "COMPUTES_S", 0.05)

    def train(message, context):
        began, square = time.perf_counter(), np.ones((100, 100))
        while time.perf_counter() - began < 10:
            square = square @ square / 100
        return payload()

    with pytest.raises(RunFailed, match=r"clock, which stood still while .*measured"):
        play(ask_all, fleet({}, **METERED), tmp_path, client(train))


@pytest.mark.parametrize("workers", [1, 2])
def test_what_is_declared_passes_between_the_readings_of_a_clock(tmp_path, workers):
    """It is known when the reply is there, so the app is played once more with a clock of that
    pace."""

    def train(message, context):
        began = time.perf_counter()
        time.sleep(2)
        return payload(8 / (time.perf_counter() - began))

    groups = [{"device": {"profile": DEVICE, "speed": speed}} for speed in (1.0, 0.5)]
    run = play(ask_all, fleet(*groups), tmp_path, client(train), workers=workers)
    assert told == [[pytest.approx(8 / 3), pytest.approx(8 / 4)]]
    assert run.participations["training_s"].tolist() == [3.0, 4.0]


def test_a_budget_of_declared_seconds_ends_where_the_device_would(tmp_path):
    def train(message, context):
        steps, began = 0, time.monotonic()
        while time.monotonic() - began < 3:
            steps += 1
        return payload(steps)

    computing = {"kind": "declared", "seconds": "0.02 * v"}
    groups = [{"device": {"profile": DEVICE, "speed": speed}} for speed in (1.0, 0.5)]
    run = play(ask_all, fleet(*groups, computing=computing), tmp_path, client(train))
    assert sorted(told[0]) == pytest.approx([75, 150], abs=1)
    assert run.participations["training_s"].tolist() == pytest.approx([3.0, 3.0], abs=0.05)


def test_a_budget_that_declared_seconds_contradict_is_refused(tmp_path):
    played = []

    def train(message, context):
        played.append(1)
        began = time.monotonic()
        try:
            while time.monotonic() - began < 30:
                pass
        except Exception:  # as an app does that reports whatever happens
            return payload(-1)
        return message.content

    with pytest.raises(RunFailed, match=r"its clock .*; declared seconds and those"):
        play(ask_all, fleet({}), tmp_path, client(train))
    assert len(played) == 2  # each further one would take twice as many steps for nothing


def test_an_event_loop_waits_in_simulated_time_on_a_node(tmp_path):
    async def nap(seconds):
        await asyncio.sleep(seconds)
        return await asyncio.to_thread(lambda: time.monotonic())

    async def naps():
        return await asyncio.gather(nap(2000), nap(3000))

    def work(message, context):
        first, second = asyncio.run(naps())
        return payload(first * 100 + second)

    host_s = time.monotonic()
    run = play(ask_all, fleet({}), tmp_path, client(work))
    assert time.monotonic() - host_s < 600  # of 3000
    assert told == [[203_001.0]]  # of 1 s that is declared between the two readings
    assert run.participations["training_s"].tolist() == [3001.0]


def test_logs_keep_the_hosts_time(tmp_path):
    def note(message, context):
        record = logging.LogRecord("app", logging.INFO, "", 1, "", (), None)
        return payload(record.created)

    began = time.time()
    play(ask_all, fleet({}), tmp_path, client(note))
    assert began <= told[0][0] <= time.time()


# ---- server apps --------------------------------------------------------------------------------


def partition(grid, reply):
    return list(grid.get_node_ids()).index(reply.metadata.src_node_id)


def test_a_server_that_only_looks_finds_replies_when_they_come(tmp_path):
    def main(grid, context):
        nodes = list(grid.get_node_ids())
        waiting = set(grid.push_messages([to(node) for node in nodes]))
        while waiting:
            for reply in grid.pull_messages(waiting):
                told.append((nodes.index(reply.metadata.src_node_id), time.monotonic()))
                waiting.discard(reply.metadata.reply_to_message_id)
        until_s = time.monotonic() + 10
        while time.monotonic() < until_s:
            pass
        told.append(time.monotonic())

    play(main, fleet(*SPEEDS), tmp_path)
    assert told[:3] == [(1, 1.0), (2, 2.0), (0, 4.0)]
    assert told[3] == pytest.approx(14, rel=0.02)


def test_a_pool_of_threads_sends_and_waits_side_by_side(tmp_path):
    """Two threads for three nodes: the third is asked when the first thread is free."""

    def ask(grid, node):
        (reply,) = grid.send_and_receive([to(node)])
        return partition(grid, reply), time.monotonic()

    def main(grid, context):
        with ThreadPoolExecutor(max_workers=2) as pool:
            futures = [pool.submit(ask, grid, node) for node in grid.get_node_ids()]
            told.extend(future.result() for future in as_completed(futures))
        told.append(time.monotonic())

    run = play(main, fleet(*SPEEDS), tmp_path)
    assert told == [(1, 1.0), (2, 3.0), (0, 4.0), 4.0]
    assert run.participations.set_index("client")["started_at_s"].to_dict() == {0: 0, 1: 0, 2: 1}


def test_threads_of_an_app_wait_for_each_other_in_simulated_time(tmp_path):
    """A producer and a consumer, an event, a join with a timeout, an exception of a thread."""

    def main(grid, context):
        replies, done = queue.Queue(), threading.Event()
        nodes = list(grid.get_node_ids())

        def ask(node):
            replies.put(next(iter(grid.send_and_receive([to(node)]))))

        def consume():
            for _ in nodes:
                told.append((partition(grid, replies.get(timeout=100)), time.monotonic()))
            done.set()
            try:
                replies.get(timeout=5)
            except queue.Empty:
                told.append(("empty", time.monotonic()))
            raise ValueError("of a thread")

        threads = [threading.Thread(target=ask, args=(node,)) for node in nodes]
        consumer = threading.Thread(target=consume)
        for thread in (*threads, consumer):
            thread.start()
        threads[0].join(timeout=0.5)
        told.append((threads[0].is_alive(), time.monotonic()))
        assert done.wait(100)
        told.append(("done", time.monotonic()))
        consumer.join()

    hook, threading.excepthook = threading.excepthook, lambda arguments: told.append("raised")
    try:
        play(main, fleet(*SPEEDS), tmp_path)
    finally:
        threading.excepthook = hook
    assert told == [
        (True, 0.5),
        (1, 1.0),
        (2, 2.0),
        (0, 4.0),
        ("done", 4.0),
        ("empty", 9.0),
        "raised",
    ]


def test_an_event_loop_of_a_server_app_waits_in_simulated_time(tmp_path):
    async def ask(grid, node):
        (reply,) = await asyncio.to_thread(grid.send_and_receive, [to(node)])
        return partition(grid, reply), time.monotonic()

    async def poll(grid, node):
        ids = list(grid.push_messages([to(node, kind="query")]))
        while not (replies := list(grid.pull_messages(ids))):
            await asyncio.sleep(0.3)
        return partition(grid, replies[0]), time.monotonic()

    async def ask_all_nodes(grid):
        nodes = list(grid.get_node_ids())
        tasks = [ask(grid, node) for node in nodes] + [poll(grid, nodes[2])]
        for answer in asyncio.as_completed(tasks):
            told.append(await answer)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(ask(grid, nodes[0]), timeout=1.5)
        told.append(time.monotonic())

    def main(grid, context):
        asyncio.run(ask_all_nodes(grid))

    play(main, fleet(*SPEEDS), tmp_path)
    times = [(partition, pytest.approx(at_s)) for partition, at_s in ((1, 1.0), (2, 2.1))]
    assert told[:2] == times
    assert sorted(told[2:4]) == [(0, 4.0), (2, 4.0)]
    assert told[4] == 5.5


def test_threads_that_wait_for_each_other_for_ever_are_said(tmp_path):
    def main(grid, context):
        never = threading.Event()
        threading.Thread(target=never.wait).start()
        never.wait()

    with pytest.raises(RunFailed, match=r"at 0 s all threads of the server app wait for each"):
        play(main, fleet({}), tmp_path)


def test_runs_with_threads_repeat_bit_for_bit(tmp_path):
    def main(grid, context):
        import random

        def ask(node):
            time.sleep(random.random())
            (reply,) = grid.send_and_receive([to(node, payload(random.random()))])
            return reply.content["metrics"]["v"]

        with ThreadPoolExecutor(3) as pool:
            told.append(list(pool.map(ask, list(grid.get_node_ids()) * 3)))

    runs = [play(main, fleet(*SPEEDS), tmp_path / str(nth)) for nth in range(2)]
    assert runs[0].fingerprint == runs[1].fingerprint
    assert told[0] == told[1]
