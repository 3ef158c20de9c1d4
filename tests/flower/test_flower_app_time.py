"""What apps read from their clocks, and how server apps wait: loops, threads, event
loops.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import select
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from flower_worlds import DEVICE, ask, client, fleet, payload, play, to

from simfed import RunFailed
from simfed.flower.work import NodeClock

SPEEDS = tuple(
    {"device": {"profile": DEVICE, "speed": speed}} for speed in (0.25, 1.0, 0.5)
)


def ask_all(grid, context):
    replies = ask(grid)
    told.append([reply.content["metrics"]["v"] for reply in replies])


told: list = []


@pytest.fixture(autouse=True)
def _nothing_told():
    told.clear()


def step():
    torch.nn.Linear(64, 64)(torch.ones(32, 64)).sum().backward()


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    "computing", ["metered", {"kind": "declared", "seconds": "1 s"}]
)
def test_a_nodes_clock_is_its_start_and_its_sleep(tmp_path, workers, computing):
    """Its second message begins when the first is over, of which it has seen 2 s."""

    def train(message, context):
        began, busy = time.monotonic(), time.process_time()
        step()
        time.sleep(2.0)
        step()
        assert time.monotonic() == began + 2.0
        assert time.process_time() - busy < 1e-5
        return payload(began)

    def ask_twice(grid, context):
        ask_all(grid, context)
        time.sleep(60)
        ask_all(grid, context)

    world = fleet(computing=computing)
    run = play(ask_twice, world, tmp_path, client(train), workers=workers)
    parts = run.participations.sort_values(["started_at_s", "client"])
    begun_at_s = parts["started_at_s"].tolist()
    assert told == [begun_at_s[:2], begun_at_s[2:]]
    assert begun_at_s[2] > 62
    assert (parts["training_s"] > 2.0).all()


def test_a_node_that_works_until_its_clock_shows_a_time_is_given_up_and_ended(tmp_path):
    def train(message, context):
        told.append(threading.current_thread())
        began = time.monotonic()
        while time.monotonic() - began < 10:
            sum(range(1000))

    given_up = r"app of node 0 has not come back .* which sleep alone"
    with pytest.raises(RunFailed, match=given_up):
        play(ask_all, fleet({}), tmp_path, client(train), host_timeout_s=1.0)
    # it would abort the process when Python ends
    assert not told[0].is_alive()


@pytest.mark.parametrize("workers", [1, 2])
def test_what_an_app_times_of_its_own_work_means_nothing_and_is_said(tmp_path, workers):
    def train(message, context):
        began = time.perf_counter()
        return payload(1 / (time.perf_counter() - began))

    run = play(ask_all, fleet({"count": 3}), tmp_path, client(train), workers=workers)
    assert told == [[pytest.approx(1 / NodeClock.TICK_S)] * 3]
    (warning,) = run.manifest["warnings"]
    assert "read its clock more than once on a message: sleep alone moves it" in warning
    assert warning.endswith("(3 times)")


def test_an_event_loop_waits_in_simulated_time_on_a_node(tmp_path):
    async def nap(seconds):
        await asyncio.sleep(seconds)
        return time.monotonic()

    async def naps():
        return await asyncio.gather(nap(2000), nap(3000))

    def work(message, context):
        first, second = asyncio.run(naps())
        return payload(first * 100 + second)

    run = play(ask_all, fleet({}), tmp_path, client(work))
    assert told == [[203_000.0]]
    assert run.participations["training_s"].tolist() == [3001.0]


def test_logs_keep_the_hosts_time(tmp_path):
    def note(message, context):
        record = logging.LogRecord("app", logging.INFO, "", 1, "", (), None)
        return payload(record.created)

    began = time.time()
    play(ask_all, fleet({}), tmp_path, client(note))
    assert began <= told[0][0] <= time.time()


# ---- server apps ---------------------------------------------------------------------


def test_a_server_that_only_looks_finds_replies_when_they_come(tmp_path):
    def main(grid, context):
        nodes = list(grid.get_node_ids())
        waiting = set(grid.push_messages([to(node) for node in nodes]))
        while waiting:
            for reply in grid.pull_messages(waiting):
                told.append((nodes.index(reply.metadata.src_node_id), time.monotonic()))
                waiting.discard(reply.metadata.reply_to_message_id)

    play(main, fleet(*SPEEDS), tmp_path)
    assert told == [(1, 1.0), (2, 2.0), (0, 4.0)]


def test_threads_of_a_pool_work_one_after_another(tmp_path):
    def ask(grid, node):
        list(grid.send_and_receive([to(node)]))
        list(grid.get_node_ids())
        return time.monotonic()

    def main(grid, context):
        with ThreadPoolExecutor(3) as pool:
            told.extend(pool.map(ask, [grid] * 3, grid.get_node_ids()))

    server = {"computing": {"kind": "declared", "seconds": "0.25 * replies"}}
    run = play(main, fleet({"count": 3}, server=server), tmp_path)
    assert told == [1.25, 1.5, 1.75]
    assert run.rounds["server_s"].tolist() == [0.75]


def test_threads_of_pools_wait_for_each_other_in_simulated_time(tmp_path):
    """Producers and a consumer, an event, a future with a timeout, an exception of a
    thread.
    """

    def main(grid, context):
        replies, done = queue.Queue(), threading.Event()
        nodes = list(grid.get_node_ids())

        def ask(node):
            replies.put(next(iter(grid.send_and_receive([to(node)]))))

        def consume():
            for _ in nodes:
                node = replies.get(timeout=100).metadata.src_node_id
                told.append((nodes.index(node), time.monotonic()))
            done.set()
            try:
                replies.get(timeout=5)
            except queue.Empty:
                told.append(("empty", time.monotonic()))
            raise ValueError("of a thread")

        with ThreadPoolExecutor() as pool:
            futures = [pool.submit(ask, node) for node in nodes]
            consumer = pool.submit(consume)
            with pytest.raises(TimeoutError):
                futures[0].result(timeout=0.5)
            told.append(time.monotonic())
            assert done.wait(100)
            told.append(("done", time.monotonic()))
            assert str(consumer.exception()) == "of a thread"

    play(main, fleet(*SPEEDS), tmp_path)
    assert told == [0.5, (1, 1.0), (2, 2.0), (0, 4.0), ("done", 4.0), ("empty", 9.0)]


@pytest.mark.parametrize(
    ("start", "what"),
    [
        (lambda: threading.Thread(target=print).start(), "a thread of its own"),
        (lambda: asyncio.run(asyncio.sleep(1)), r"an event loop \(asyncio\)"),
    ],
)
def test_what_nobody_gives_turns_is_refused(tmp_path, start, what):
    def main(grid, context):
        start()

    refused = f"the server app starts {what}, which .*ThreadPool"
    with pytest.raises(RunFailed, match=refused):
        play(main, fleet({}), tmp_path)


def test_threads_that_wait_for_each_other_for_ever_are_said(tmp_path):
    def main(grid, context):
        never = threading.Event()
        ThreadPoolExecutor().submit(never.wait)
        never.wait()

    with pytest.raises(RunFailed, match="at 0 s all threads of the server app wait"):
        play(main, fleet({}), tmp_path)


@pytest.mark.parametrize("starts", ["at once", "slowly"])
def test_a_pool_calls_as_many_at_once_as_it_has_threads(tmp_path, monkeypatch, starts):
    """Calls that are cancelled never run, and one pool after another has the same
    threads, however long the host takes to start one.
    """
    seen, begun = [], []
    begin = threading.Thread._bootstrap_inner

    def begin_late(thread):
        select.select([], [], [], 0.1)  # whatever the clock does to time.sleep
        begin(thread)

    if starts == "slowly":
        monkeypatch.setattr(threading.Thread, "_bootstrap_inner", begin_late)

    def nap(number):
        time.sleep(1)
        seen.append((number, threading.current_thread().ident))

    def main(grid, context):
        for _ in range(2):
            with ThreadPoolExecutor(2, initializer=begun.append, initargs=(7,)) as pool:
                futures = [pool.submit(nap, number) for number in range(4)]
                assert futures[3].cancel()
            told.append(time.monotonic())
        ask(grid)

    play(main, fleet({}), tmp_path)
    assert told == [2.0, 4.0]
    assert begun == [7] * 4
    assert [number for number, _ in seen] == [0, 1, 2] * 2
    assert len({thread for _, thread in seen}) == 2
