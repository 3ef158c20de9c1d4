"""FedBuff: the buffer's mean, with late updates discounted."""

import torch
from textbook import (
    Textbook,
    arrival,
    assert_close,
    data_of,
    flat,
    played,
    scenario,
    with_weights,
)

from simfed.compress.choice import Choice
from simfed.ground.seeding import Streams
from simfed.learn.hosted import HostedWorkload
from simfed.learn.methods.fedbuff import FedBuff


def test_rounds_are_the_plain_mean_of_updates():
    made = scenario(
        {"kind": "fedbuff", "server_rate": 0.9}, participation={"clients_per_round": 3}
    )
    workload, _ = played(made)
    book = Textbook(made)
    model = book.module("a")
    w = flat(model)
    for round in (1, 2, 3):
        clients = book.cohort(round)
        updates = [
            flat(book.trained(with_weights(model, w), c, round)) - w for c in clients
        ]
        w = w + 0.9 * sum(updates) / 3
    assert_close(torch.tensor(workload.state()[1]["server/a/weights"]), w)


def test_a_late_update_counts_by_the_root_of_its_staleness():
    server = {"a": {"weights": torch.zeros(3), "buffers": torch.zeros(1)}}
    arrivals = [
        arrival({"update": torch.full((3,), 2.0), "buffers": torch.tensor([4.0])}),
        arrival(
            {"update": torch.full((3,), 6.0), "buffers": torch.tensor([1.0])},
            1,
            staleness=3,
        ),
    ]
    after, _ = FedBuff().merge(None, server, arrivals, 9)
    # (1·2 + ½·6)/2, not divided by 1½
    assert after["a"]["weights"].tolist() == [-2.5] * 3
    assert after["a"]["buffers"].tolist() == [3.0]


def test_an_upload_that_misses_a_merge_comes_late():
    made = scenario("fedbuff")
    workload = HostedWorkload(made, Streams(0), data=data_of(made))
    book = Textbook(made)
    model = book.module("a")
    w = flat(model)
    slow = workload.execute(workload.task(1, 0), Choice("dense", 1))
    fast = workload.execute(workload.task(1, 1), Choice("dense", 1))
    workload.merge(1, [fast])
    workload.merge(2, [slow])
    late, soon = (flat(book.trained(model, client, 1)) - w for client in (0, 1))
    expected = w + soon + late / 2**0.5
    assert_close(torch.tensor(workload.state()[1]["server/a/weights"]), expected)
    workload.close()


def test_bytes_and_work_are_those_of_averaging():
    workload, last = played(scenario("fedbuff"), rounds=1)
    d = workload.tasks.setting.prototypes["a"].parameters
    assert workload.task(2, 0).downlink_bytes == 4 * d
    assert set(last.uplink_bytes.values()) == {4.0 * d}
    assert [w[:4] for w in workload.task(2, 0).plan.work] == [
        ("training", "logistic-regression", 16, 3)
    ]
