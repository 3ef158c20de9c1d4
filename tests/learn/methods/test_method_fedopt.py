"""FedOpt against the paper's algorithm, written out."""

from types import SimpleNamespace

import pytest
import torch
from textbook import arrival, assert_close, beside, scenario

from simfed.learn.methods.fedopt import FedOpt


@pytest.mark.parametrize("optimizer", ["momentum", "adagrad", "adam", "yogi"])
def test_the_server_steps_as_the_paper_says(optimizer):
    options = {"optimizer": optimizer, "server_rate": 0.1, "beta1": 0.8}
    options |= {"tau": 0.01} if optimizer != "momentum" else {}
    options |= {"beta2": 0.95} if optimizer in ("adam", "yogi") else {}
    made = scenario(
        {"kind": "fedopt", **options}, participation={"clients_per_round": 3}
    )
    workload, book, w = beside(made)
    w = w.double()
    m, v = torch.zeros_like(w), torch.full_like(w, 0.01**2)
    for round in (1, 2, 3):
        clients, local = book.locals(w, round)
        samples = [book.samples[c] for c in clients]
        delta = sum(n * (one - w) for n, one in zip(samples, local, strict=True)) / sum(
            samples
        )
        if optimizer == "momentum":
            m = 0.8 * m + delta
            w = w + 0.1 * m
            continue
        m = 0.8 * m + (1 - 0.8) * delta
        if optimizer == "adagrad":
            v = v + delta**2
        elif optimizer == "adam":
            v = 0.95 * v + 0.05 * delta**2
        else:
            v = v - 0.05 * delta**2 * torch.sign(v - delta**2)
        w = w + 0.1 * m / (v.sqrt() + 0.01)
    assert_close(workload.array("server/a/weights"), w)


def test_late_updates_weigh_what_the_server_mode_says():
    method = FedOpt(optimizer="momentum", beta1=0.0)
    model = {"weights": torch.zeros(3), "buffers": torch.zeros(0)}
    server = method.begin(SimpleNamespace(prototypes=["a"], initial={"a": model}.get))
    values = [
        {"update": torch.full((3,), x), "buffers": torch.zeros(0)} for x in (1.0, 5.0)
    ]
    arrivals = [
        arrival(values[0]),
        arrival(values[1], client=1, staleness=1, weight=1 / 3),
    ]
    after, _ = method.merge(None, server, arrivals, 1)
    assert after["a"]["weights"].tolist() == [-2.0] * 3
