"""Federated averaging against the textbook, and on a scenario of a thousand clients."""

from __future__ import annotations

import numpy as np
import pytest
from engine_worlds import Host
from textbook import Textbook, answers, assert_close, flat, with_weights
from textbook import scenario as four

SIX = [{"count": 6, "prototype": "a", "device": "any"}]


def scenario(method="fedavg", **changes):
    """Six clients, of whom four take part in a round."""
    plain = {
        "clients": SIX,
        "training": {"batch_size": 10, "learning_rate": 0.05, "local_epochs": 2},
        "participation": {"clients_per_round": 4},
    }
    return four(method, **{**plain, **changes})


MOMENTUM = {"batch_size": 16, "learning_rate": 0.05, "local_steps": 5, "momentum": 0.9}
WORLDS = {
    "epochs": {},
    "lenets": {"prototypes": {"a": {"model": "lenet5-half"}}},
    "momentum": {"training": {**MOMENTUM, "weight_decay": 0.01, "clip_norm": 1.0}},
}


@pytest.mark.parametrize("name", WORLDS)
def test_a_round_is_the_sample_weighted_mean_of_local_training(name):
    made = scenario(**{"clients": SIX, **WORLDS[name]})
    host, book, clients = Host(made), Textbook(made), [0, 2, 3, 5]
    outcome = host.play(1, clients)
    samples = [book.samples[c] for c in clients]
    trained = [flat(book.trained(book.module("a"), c, 1)) for c in clients]
    mean = sum(n * one for n, one in zip(samples, trained, strict=True)) / sum(samples)
    assert_close(host.array("server/a/weights"), mean, 1e-5)
    assert outcome.shared_loss == outcome.shared_loss_before == {}


def test_a_shared_model_is_also_evaluated_in_every_clients_own_label_mix():
    host = Host(scenario(evaluation={"every": 1, "clients": True}))
    outcome, data = host.play(1, [0, 2]), host.data
    tested = outcome.evaluation["a"]
    model = with_weights(
        Textbook(host.scenario).module("a"), host.array("server/a/weights")
    )
    right = answers(model, data.test_samples).argmax(1) == data.test_labels
    of_class = [right[data.test_labels == k].float().mean().item() for k in range(4)]
    assert sorted(outcome.clients) == list(range(6))  # whether or not they took part
    for client, evaluation in outcome.clients.items():
        owned = data.at(data.owned[client])[1]
        mix = np.bincount(owned, minlength=4) / len(owned)
        assert evaluation.own_accuracy == pytest.approx(float(mix @ of_class), abs=1e-6)
        assert evaluation.accuracy == pytest.approx(tested.accuracy)
        assert evaluation.loss == pytest.approx(tested.loss, rel=1e-6)


def test_two_uploads_of_a_client_in_one_merge_have_losses_of_their_own():
    made = scenario(
        policy={"kind": "ascend", "reward": {"local_loss": {"samples": 20}}},
        compression={"k": 200, "strategies": ["top-k", "random-k"]},
        participation={},
        aggregation={"mode": "buffered", "buffer": 2, "concurrency": 3},
    )
    host = Host(made)
    late, on_time = (host.begin(1, client, "top-k", 200) for client in (0, 1))
    first = host.merge(1, [on_time])
    fresh, other = (host.begin(2, client, "top-k", 200) for client in (0, 1))
    second = host.merge(2, [fresh, late, other])
    assert set(first.local_loss) == {"1/1"}
    assert set(second.local_loss) == {"0/1", "0/2", "1/2"}
    (before_late, after_late), (before, after) = (
        second.local_loss[key] for key in ("0/1", "0/2")
    )
    assert after_late == after
    # of the initial models, and of those that the first merge made
    assert before_late != before
    assert second.local_loss["1/2"][0] == first.local_loss["1/1"][1]
