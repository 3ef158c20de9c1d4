"""FedOpt against the paper's algorithm, written out."""

from types import SimpleNamespace

import pytest
import torch
from textbook import arrival, assert_close, beside, scenario, update

from simfed.learn.methods.fedopt import FedOpt


@pytest.mark.parametrize("optimizer", ["momentum", "adagrad", "adam", "yogi"])
def test_the_server_steps_as_the_paper_says(optimizer):
    options = {"optimizer": optimizer, "server_rate": 0.1, "beta1": 0.8}
    options |= {"tau": 0.01} if optimizer != "momentum" else {}
    options |= {"beta2": 0.95} if optimizer in ("adam", "yogi") else {}
    some = {"clients_per_round": 3}
    made = scenario({"kind": "fedopt", **options}, participation=some)
    workload, book, w = beside(made)
    w = w.double()
    m, v = torch.zeros_like(w), torch.full_like(w, 0.01**2)
    for round in (1, 2, 3):
        clients, local = book.locals(w, round)
        samples = torch.tensor([book.samples[c] for c in clients]).double()
        delta = samples @ (torch.stack(local) - w) / samples.sum()
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
    model = {"weights": torch.zeros(3), "buffers": torch.zeros(1)}
    server = method.begin(SimpleNamespace(prototypes=["a"], initial={"a": model}.get))
    late = arrival(update(5.0), client=1, staleness=1, weight=1 / 3)
    after, _ = method.merge(None, server, [arrival(update(1.0)), late], 1)
    assert after["a"]["weights"].tolist() == [-2.0] * 3
