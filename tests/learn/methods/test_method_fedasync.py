"""FedAsync: arrivals are mixed in one after another, each with the model that it was
sent.
"""

from types import SimpleNamespace

import torch
from engine_worlds import Host
from textbook import Textbook, arrival, assert_close, beside, flat, scenario, update

from simfed.learn.methods.fedasync import FedAsync


def test_rounds_mix_client_after_client():
    made = scenario({"kind": "fedasync", "mixing": 0.4, "mu": 0.1}, rounds=2)
    workload, book, w = beside(made)
    for round in (1, 2):
        _, local = book.locals(w, round, lambda x, at=w: 0.1 * (x - at))
        for one in local:
            w = 0.6 * w + 0.4 * one
    assert_close(workload.array("server/a/0/weights"), w)


def test_a_late_client_is_mixed_in_as_it_trained_from_the_older_model():
    made = scenario(
        {"kind": "fedasync", "mu": 0.0, "mixing": 0.5, "a": 1.0},
        aggregation={"mode": "deadline", "deadline": "1 s", "late": "merge"},
    )
    workload, book = Host(made), Textbook(made)
    slow = workload.begin(1, 0)
    workload.merge(1, [workload.begin(1, 1)])
    workload.merge(2, [slow])
    first = book.module("a")
    late, on_time = (flat(book.trained(first, client, 1)) for client in (0, 1))
    w = 0.75 * (0.5 * flat(first) + 0.5 * on_time) + 0.25 * late
    assert_close(workload.array("server/a/2/weights"), w)


def test_the_server_remembers_no_more_than_it_may_need():
    method, kit = FedAsync(), SimpleNamespace(setting=SimpleNamespace(latest=2))
    model = {"weights": torch.zeros(3), "buffers": torch.zeros(1)}
    server = {"a": [{**model, "round": 0}]}
    for round in range(1, 6):
        server, _ = method.merge(kit, server, [arrival(update(1.0))], round)
    assert len(server["a"]) == 3
