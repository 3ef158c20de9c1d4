"""Messages of Flower apps on the simulated clock."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

import numpy as np
import pytest
from flower_worlds import DEVICE, ask, client, fleet, payload, play, to
from flwr.common.constant import ErrorCode

from simfed import InputError, RunFailed

CLIENT = "client app of node 0"
SLOW = {"device": {"profile": DEVICE, "speed": 0.25}}


def ask_all(grid, context):
    replies = ask(grid)
    sum(i * i for i in range(20_000) for _ in replies)


def test_an_exchange_takes_the_bytes_that_flower_writes_over_the_links_and_the_work(
    tmp_path,
):
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

    sizes = []

    def main(grid, context):
        (node,) = grid.get_node_ids()
        message = to(node, payload(size=1000))
        for one in (message, *grid.send_and_receive([message])):
            parts = get_all_nested_objects(one).values()
            sizes.append(sum(len(part.deflate()) for part in parts))

    link = {"up": "8 kbps", "down": "16 kbps", "latency": "10 ms"}
    run = play(main, fleet({"link": link}), tmp_path)
    (row,) = run.participations.itertuples()
    down, up = sizes
    assert (row.downlink_bytes, row.uplink_bytes) == (down, up)
    phases_s = row.downlink_s, row.training_s, row.uplink_s
    expected = down / 2000 + 0.01, 1.0, up / 1000 + 0.01
    assert phases_s == pytest.approx(expected, rel=1e-9)
    assert run.rounds["duration_s"].sum() == sum(phases_s)


def outcomes(run):
    """Client → what became of its messages, in their order."""
    parts = run.participations.sort_values("started_at_s")
    return parts.groupby("client")["outcome"].apply(list).to_dict()


def count(message, context):
    """An app whose state is how many messages its node has worked on."""
    from flwr.app import MetricRecord

    seen = context.state.get("seen", {"n": 0})["n"] + 1
    context.state["seen"] = MetricRecord({"n": seen})
    return payload(seen)


def test_a_node_handles_one_message_after_another_and_keeps_its_state(tmp_path):
    replies = []

    def main(grid, context):
        asked = [to(node) for node in grid.get_node_ids() * 3]
        replies.extend(r.content["metrics"]["v"] for r in grid.send_and_receive(asked))

    run = play(main, fleet({}), tmp_path, client(count))
    assert replies == [1, 2, 3]
    assert run.participations["started_at_s"].tolist() == [0.0, 1.0, 2.0]
    assert run.rounds["finished_at_s"].tolist() == [3.0]


def test_what_a_node_has_not_finished_it_does_not_know_of(tmp_path):
    """It goes away in the middle of its second message."""
    trace = tmp_path / "online.csv"
    trace.write_text("client,from_s,to_s\n0,0,1.5\n0,100,1000\n")
    seen = []

    def main(grid, context):
        (node,) = grid.get_node_ids()
        for _ in range(3):
            while not grid.get_node_ids():
                time.sleep(10)
            (reply,) = grid.send_and_receive([to(node)])
            error = reply.error.code if reply.has_error() else None
            seen.append((error or reply.content["metrics"]["v"], time.monotonic()))

    world = fleet({"availability": {"trace": str(trace)}})
    run = play(main, world, tmp_path, client(count))
    assert seen == [(1, 1.0), (ErrorCode.NODE_UNAVAILABLE, 61.5), (2, 102.5)]
    assert run.participations["outcome"].tolist() == [
        "aggregated",
        "dropped",
        "aggregated",
    ]


def test_a_timeout_leaves_the_late_reply_to_be_pulled_later(tmp_path):
    seen = []

    def main(grid, context):
        nodes = grid.get_node_ids()
        ids = grid.push_messages([to(node) for node in nodes])
        quick = grid.send_and_receive([to(nodes[0], kind="query")], timeout=1.5)
        seen.append((len(list(quick)), time.monotonic()))
        time.sleep(3)
        seen.append((len(list(grid.pull_messages(ids))), time.monotonic()))
        seen.extend(reply.error.code for reply in grid.pull_messages(ids))

    run = play(main, fleet({}, SLOW), tmp_path)
    # the query waited for the first message's end, and a reply is given once
    again = [ErrorCode.MESSAGE_UNAVAILABLE] * 2
    assert seen == [(0, 1.5), (2, 4.5), *again]
    assert outcomes(run) == {0: ["aggregated", "dropped"], 1: ["aggregated"]}


def test_an_exception_on_a_node_comes_back_as_an_error(tmp_path):
    def fail(message, context):
        raise ValueError("no data here")

    seen = []

    def main(grid, context):
        errors = [reply.error for reply in ask(grid)]
        seen.extend((error.code, "no data here" in error.reason) for error in errors)

    run = play(main, fleet(), tmp_path, client(fail))
    assert seen == [(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, True)] * 2
    assert run.participations["outcome"].tolist() == ["failed"] * 2
    assert run.manifest["warnings"] == [
        "node 0 raised ValueError: no data here; so did 1 more",
        "a message of type train was charged 0 s: nothing is declared of a reply that "
        "is an error (2 times)",
    ]


def test_the_app_is_told_simulated_time_and_the_host_keeps_its_own(tmp_path):
    real = time.time, time.sleep, time.monotonic
    told = []

    def nap(message, context):
        told.append(time.monotonic())
        time.sleep(0.5)
        told.append(time.monotonic())
        return message.content

    def main(grid, context):
        began = time.time()
        time.sleep(3600)
        ask(grid)
        told.append(time.time() - began)

    run = play(main, fleet({}), tmp_path, client(nap))
    assert told == [3600.0, 3600.5, 3601.5]
    assert run.participations["training_s"].tolist() == [1.5]
    assert (time.time, time.sleep, time.monotonic) == real


def test_contents_are_those_of_when_they_were_sent(tmp_path):
    replies, content = [], payload()

    def main(grid, context):
        (node,) = grid.get_node_ids()
        ids = []
        for value in (1.0, 2.0):
            content["metrics"]["v"] = value
            ids += grid.push_messages([to(node, content)])
        content["metrics"]["v"] = 3.0
        time.sleep(5)
        replies.extend(grid.pull_messages(ids))

    play(main, fleet({}), tmp_path)
    assert [reply.content["metrics"]["v"] for reply in replies] == [1.0, 2.0]


def test_waiting_for_more_nodes_than_there_are_is_an_error_in_simulated_time(tmp_path):
    from flwr.app import ArrayRecord
    from flwr.serverapp.strategy import FedAvg

    def main(grid, context):
        FedAvg(min_available_nodes=5).start(grid, ArrayRecord(), num_rounds=1)

    with pytest.raises(RunFailed, match=r"at .* s the server app has looked .* 2 node"):
        play(main, fleet(), tmp_path)


@pytest.mark.parametrize(
    ("who", "workers"), [("server app", 1), *((CLIENT, n) for n in (1, 2))]
)
def test_an_app_that_blocks_is_given_up(tmp_path, who, workers):
    lock = threading.Lock()
    lock.acquire()

    def block(*_):
        lock.acquire()

    main, app = (ask_all, client(block)) if who == CLIENT else (block, None)
    with pytest.raises(RunFailed, match=f"{who} has not come back for 1 s of host"):
        play(main, fleet(), tmp_path, app, host_timeout_s=1.0, workers=workers)
    lock.release()


def test_a_price_that_no_message_had_is_said_and_a_metric_missed_by_name(tmp_path):
    seconds = {"trian": "3 s", "default": "1 s"}
    computing = {"kind": "declared", "seconds": seconds}
    run = play(ask_all, fleet(computing=computing), tmp_path)
    assert run.manifest["warnings"] == [
        "computing.seconds has a price for 'trian', but messages were called train"
    ]
    computing = {"kind": "declared", "seconds": "0.01 * num_exmaples"}
    with pytest.raises(InputError, match=r"num_exmaples.*did you mean 'num_examples'"):
        play(ask_all, fleet(computing=computing), tmp_path / "b")


def test_the_servers_own_work_is_declared_per_exchange(tmp_path):
    def main(grid, context):
        for _ in range(2):
            ask(grid)

    server = {"computing": {"kind": "declared", "seconds": "0.25 * replies"}}
    run = play(main, fleet(server=server), tmp_path)
    assert run.rounds["server_s"].tolist() == [0.5, 0.5]
    assert run.rounds["finished_at_s"].tolist() == [1.5, 3.0]
    spans = run.spans[run.spans["track"] == "server"]
    assert spans["kind"].tolist() == ["aggregation"] * 2


def test_an_app_that_sends_nothing_and_one_that_raises_are_said(tmp_path):
    with pytest.raises(RunFailed, match=r"never sent a message"):
        play(lambda grid, context: None, fleet(), tmp_path)

    def main(grid, context):
        time.sleep(2)
        raise KeyError("lr")

    with pytest.raises(RunFailed, match=r"at 2 s the server app raised KeyError: 'lr'"):
        play(main, fleet(), tmp_path / "other")


def test_metrics_of_nodes_and_of_the_server_become_accuracy(tmp_path):
    from flwr.app import MetricRecord, RecordDict

    def main(grid, context):
        ask(grid, "evaluate")

    def measure(message, context):
        first = context.node_config["partition-id"] == 0
        values = {"num-examples": 1 + 2 * first, "eval_acc": float(first), "loss": 2.0}
        return RecordDict({"metrics": MetricRecord(values)})

    run = play(main, fleet(), tmp_path, client(measure))
    (row,) = run.prototypes.itertuples()
    assert (row.test_accuracy, row.test_loss) == (0.75, 2.0)


def test_results_do_not_depend_on_how_many_processes_work(tmp_path):
    """Nodes leave in the middle, raise, sleep, and ask for the time."""
    import random

    def draw(message, context):
        if random.random() < 0.1:
            raise ValueError("unlucky")
        content = count(message, context)
        content["metrics"]["drawn"] = float(np.random.rand())  # noqa: NPY002
        time.sleep(0.25)
        content["metrics"]["at"] = time.monotonic()
        return content

    def main(grid, context):
        waiting = set()
        for _ in range(20):
            nodes = random.sample(list(grid.get_node_ids()), 3)
            waiting |= set(grid.push_messages([to(node) for node in nodes]))
            time.sleep(1)
            for reply in grid.pull_messages(waiting):
                waiting.discard(reply.metadata.reply_to_message_id)
                told.append(reply.has_content() and str(reply.content["metrics"]))

    groups = (
        {"count": 8, "link": {"up": "100 kbps"}},
        {"count": 4, "availability": {"markov": {"on": "5 s", "off": "2 s"}}},
    )
    seen = []
    for workers in (1, 3):
        told: list = []
        folder = tmp_path / str(workers)
        run = play(main, fleet(*groups), folder, client(draw), workers=workers)
        seen.append((run.fingerprint, told))
    assert seen[0] == seen[1]
    assert False in told


def test_a_reply_that_was_waited_for_is_taken_before_it_expires(tmp_path):
    """The other node's message lives longer.

    A server that only looks later finds it expired.
    """
    seen = []

    def main(grid, context):
        quick, slow = grid.get_node_ids()
        replies = grid.send_and_receive([to(quick, ttl=2.0), to(slow)])
        seen.append(([reply.has_content() for reply in replies], time.monotonic()))
        ids = grid.push_messages([to(quick, ttl=2.0)])
        time.sleep(3)
        seen.append([reply.error.code for reply in grid.pull_messages(ids)])
        (reply,) = grid.send_and_receive([to(quick, ttl=0.25)])
        seen.append([reply.error.code, time.monotonic()])
        time.sleep(2)

    run = play(main, fleet({}, SLOW), tmp_path)
    gone, expired_at_s = ErrorCode.MESSAGE_UNAVAILABLE, pytest.approx(7.25, abs=1e-6)
    assert seen == [([True, True], 4.0), [gone], [gone, expired_at_s]]
    assert outcomes(run) == {0: ["aggregated", *["dropped"] * 2], 1: ["aggregated"]}


def test_nodes_that_come_and_go_are_those_that_the_grid_lists(tmp_path):
    trace = tmp_path / "online.csv"
    trace.write_text("client,from_s,to_s\n0,0,10\n1,5,20\n2,0,100\n")
    seen = []

    def main(grid, context):
        everybody = None
        for _ in range(3):
            nodes = list(grid.get_node_ids())
            seen.append(len(nodes))
            everybody = everybody or nodes
            time.sleep(7)
        (reply,) = grid.send_and_receive([to(everybody[0])])
        seen.append((reply.error.code, time.monotonic()))

    world = fleet({"count": 3, "availability": {"trace": str(trace)}})
    run = play(main, world, tmp_path)
    assert seen == [2, 3, 2, (ErrorCode.NODE_UNAVAILABLE, 21.0)]
    assert len(run.participations) == 0


def test_work_on_nodes_can_fail_and_the_server_waits_in_vain(tmp_path):
    def main(grid, context):
        for _ in range(4):
            ask(grid, timeout=30)

    world = fleet({"count": 10, "failure": {"training": 0.2, "upload": 0.2}})
    run = play(main, world, tmp_path)
    outcomes = run.participations["outcome"].value_counts()
    assert 5 <= outcomes["failed"] <= 25
    assert outcomes["failed"] + outcomes["aggregated"] == 40
    assert run.rounds["finished_at_s"].tolist() == [30.0, 60.0, 90.0, 120.0]


# ---- nothing is free in silence ------------------------------------------------------


def busy(message, context):
    """Work that takes a while on any host."""
    sum(i * i for i in range(20_000))
    return message.content


def fail_busily(message, context):
    raise ValueError(busy(message, context) and "no data here")


@pytest.mark.parametrize(("work", "workers"), [(busy, 1), (busy, 2), (fail_busily, 1)])
def test_measured_seconds_are_the_hosts_though_the_app_is_told_simulated_time(
    tmp_path, work, workers
):
    measured = {"kind": "measured", "speed": 1000.0}
    world = fleet(computing=measured, server={"computing": measured})
    run = play(ask_all, world, tmp_path, client(work), workers=workers)
    assert (run.participations["training_s"] > 0.1).all()
    assert (run.rounds["server_s"] > 0.1).all()
    assert not [sentence for sentence in run.manifest["warnings"] if "0 s" in sentence]


@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_work_that_metered_computing_cannot_see_ends_the_run(tmp_path, kind):
    def main(grid, context):
        ask(grid, kind)

    refused = f"type {kind} cannot be charged 0 s: it does nothing"
    with pytest.raises(RunFailed, match=refused):
        play(main, fleet(computing="metered"), tmp_path)


def test_a_price_that_comes_to_nothing_ends_the_run(tmp_path):
    computing = {"kind": "declared", "seconds": {"train": "0.5 * v"}}
    refused = r"more than 0 s .* '0.5 \* v' comes to 0.*train: 0 s"
    with pytest.raises(InputError, match=refused):
        play(ask_all, fleet(computing=computing), tmp_path)
    computing = {"kind": "declared", "seconds": {"train": "0 s"}}
    run = play(ask_all, fleet(computing=computing), tmp_path / "free")
    assert run.participations["training_s"].tolist() == [0.0, 0.0]
    assert not run.manifest["warnings"]


def test_other_messages_that_cost_nothing_are_named(tmp_path):
    def main(grid, context):
        ask(grid, "query")

    server = {"device": DEVICE}
    run = play(main, fleet(computing="metered", server=server), tmp_path)
    assert run.manifest["warnings"] == [
        "a message of type query was charged 0 s: it does nothing that PyTorch's hooks "
        "see (2 times)",
        "the server app's work on replies was charged 0 s: it does nothing that "
        "PyTorch's hooks see",
    ]


# ---- messages whose replies nobody looks for -----------------------------------------


def test_what_is_sent_and_forgotten_is_no_waste(tmp_path):
    """As in vertical learning: activations are asked for, gradients are sent to be
    applied. Nodes have two messages in one exchange, and work on one after the other.
    """
    from flwr.app import MetricRecord

    def work(message, context):
        applied = context.state.get("applied", {"n": 0})["n"]
        if message.metadata.message_type == "train":
            context.state["applied"] = MetricRecord({"n": applied + 1})
        if message.content["metrics"]["v"] == 13.0:
            raise ValueError("unlucky")
        return payload(applied)

    applied = []

    def main(grid, context):
        nodes = grid.get_node_ids()
        for turn in range(3):
            asked = ask(grid, "query")
            applied.append([reply.content["metrics"]["v"] for reply in asked])
            grid.push_messages(
                [to(nodes[0], payload(13.0 if turn == 1 else 0.0)), to(nodes[1])]
            )
        time.sleep(10)
        grid.push_messages([to(nodes[0])])
        time.sleep(0.5)  # the app ends while the node is at work

    run = play(main, fleet(), tmp_path, client(work))
    # what raised has left no trace in the state
    assert applied == [[0, 0], [1, 1], [1, 2]]
    parts = run.participations
    first = ["aggregated"] * 3 + ["failed"] + ["aggregated"] * 2 + ["dropped"]
    assert outcomes(run) == {0: first, 1: ["aggregated"] * 6}
    assert parts.duplicated(["round", "client"]).any()
    wasted = parts[parts["outcome"].isin(["failed", "dropped"])]
    assert run.summary["wasted_bytes"]["uplink"] == wasted["uplink_bytes"].sum()


def test_a_forgotten_reply_may_arrive_in_a_later_exchange_and_be_looked_for_after_all(
    tmp_path,
):
    def main(grid, context):
        quick, slow = grid.get_node_ids()
        (late,) = grid.push_messages([to(slow)])
        for _ in range(5):
            assert len(list(grid.send_and_receive([to(quick)]))) == 1
            time.sleep(0.5)
        assert [reply.has_content() for reply in grid.pull_messages([late])] == [True]

    run = play(main, fleet({}, SLOW), tmp_path)
    (row,) = run.participations[run.participations["client"] == 1].itertuples()
    assert (row.outcome, row.round, row.merge, row.staleness) == ("late", 1, 3, 2)
    assert run.rounds["late"].tolist() == [0, 0, 1, 0, 0]


def test_a_node_with_a_flat_battery_charges_before_its_next_message(tmp_path):
    """Three messages at once, 60 J each, to a battery of 100 J: the third waits until
    50 J are charged at 1 W.
    """
    battery = {"kind": "battery", "capacity_j": 100.0, "charge_w": 1.0, "work_w": 60.0}
    always = {"charges_from": "00:00", "charges_to": "23:59"}

    def main(grid, context):
        list(grid.send_and_receive([to(node) for node in grid.get_node_ids() * 3]))

    run = play(main, fleet({"availability": {**battery, **always}}), tmp_path)
    starts_s = run.participations["started_at_s"].tolist()
    assert starts_s == pytest.approx([0.0, 1.0, 52.0])


# ---- what a fleet says of a node, and nodes that end ---------------------------------


def test_nodes_have_settings_of_their_group_and_of_their_own(tmp_path):
    seen = {}

    def note(message, context):
        config = dict(context.node_config)
        seen[config["partition-id"]] = config
        return message.content

    sharded = {"data-path": "shards/{node}-{nth}.csv", "gpu": False}
    groups = [
        {"count": 2, "node_config": sharded},
        {"node_config": {"data-path": "other.csv", "partition-id": 7}},
        {},
    ]
    # a node's number in its group follows the order of clients
    world = fleet(*groups, client_order="round-robin")
    play(ask_all, world, tmp_path, client(note))
    own = {
        0: {"data-path": "shards/0-0.csv", "gpu": False},
        7: {"data-path": "other.csv"},
        2: {},
        3: {"data-path": "shards/3-1.csv", "gpu": False},
    }
    assert seen == {
        node: {"partition-id": node, "num-partitions": 4, **config}
        for node, config in own.items()
    }


def leave_without_clean_up(status):
    child = os.fork()
    if child == 0:
        os._exit(0)  # a process that the app made ends as ever
    assert os.waitpid(child, 0)[1] == 0
    os._exit(status)


@pytest.mark.parametrize(
    ("end", "workers"), [(sys.exit, 1), (sys.exit, 2), (leave_without_clean_up, 1)]
)
def test_an_app_that_ends_its_process_ends_its_node(tmp_path, end, workers):
    def work(message, context):
        if context.node_config["partition-id"] == 1:
            end(7)
        return message.content

    seen = []

    def main(grid, context):
        nodes = list(grid.get_node_ids())
        for _ in range(2):
            replies = list(grid.send_and_receive([to(node) for node in nodes]))
            codes = [reply.error.code if reply.has_error() else 0 for reply in replies]
            seen.append((codes, time.monotonic(), len(list(grid.get_node_ids()))))

    leaves = os._exit
    run = play(main, fleet(), tmp_path, client(work), workers=workers)
    assert os._exit is leaves
    gone = ErrorCode.NODE_UNAVAILABLE
    # charged nothing as it is an error, then two heartbeats; the next message is
    # refused at once
    assert seen == [([0, gone], 60.0, 1), ([0, gone], 61.0, 1)]
    assert outcomes(run) == {0: ["aggregated"] * 2, 1: ["dropped"]}
    gone = "node 1 ended its process, and so is gone (SystemExit: 7)"
    assert gone in run.manifest["warnings"]


def test_a_killed_process_ends_its_node_alone(tmp_path):
    """As the operating system does where memory runs out.

    The others' calls are made anew.
    """

    def work(message, context):
        node = context.node_config["partition-id"]
        if node == 1 and message.content["metrics"]["v"] == 1.0:
            os.kill(os.getpid(), signal.SIGKILL)
        return payload(node)

    answers = []

    def main(grid, context):
        for turn in range(3):
            asked = [to(node, payload(float(turn))) for node in grid.get_node_ids()]
            replies = [r for r in grid.send_and_receive(asked) if r.has_content()]
            answers.append({reply.content["metrics"]["v"] for reply in replies})

    run = play(main, fleet({"count": 6}), tmp_path, client(work), workers=2)
    assert answers == [{0, 1, 2, 3, 4, 5}, *[{0, 2, 3, 4, 5}] * 2]
    others = {node: ["aggregated"] * 3 for node in range(6)}
    assert outcomes(run) == {**others, 1: ["aggregated", "dropped"]}
    assert run.manifest["warnings"][0] == (
        "node 1 ended its process, and so is gone (its process was killed)"
    )


@pytest.mark.parametrize("workers", [1, 2])
def test_a_child_that_comes_back_from_the_app_is_ended(tmp_path, capfd, workers):
    def work(message, context):
        child = os.fork()
        ended = child == 0 or os.waitpid(child, 0)[1]
        return message.content if ended else payload(-1.0)

    run = play(ask_all, fleet(), tmp_path, client(work), workers=workers)
    assert run.participations["outcome"].tolist() == ["aggregated"] * 2
    said = "the client app of node {} forked a process that did not end: it is ended"
    lines = sorted(capfd.readouterr().err.splitlines())
    assert lines == [said.format(node) for node in (0, 1)]
