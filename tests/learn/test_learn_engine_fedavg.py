"""Federated averaging against the textbook, and on a scenario of a thousand clients."""

import pytest
from engine_worlds import Host
from textbook import Textbook, assert_close, assert_evaluated, flat, with_weights
from textbook import scenario as four


def scenario(**changes):
    """Six clients, of whom four take part in a round."""
    plain = {
        "clients": 6,
        "training": {"batch_size": 10, "learning_rate": 0.05, "local_epochs": 2},
        "participation": {"clients_per_round": 4},
    }
    return four("fedavg", **{**plain, **changes})


MOMENTUM = {"batch_size": 16, "learning_rate": 0.05, "local_steps": 5, "momentum": 0.9}
WORLDS = {
    "epochs": {},
    "lenets": {"prototypes": {"a": {"model": "lenet5-half"}}},
    "momentum": {"training": {**MOMENTUM, "weight_decay": 0.01, "clip_norm": 1.0}},
}


@pytest.mark.parametrize("name", WORLDS)
def test_a_round_is_the_sample_weighted_mean_of_local_training(name):
    """It is evaluated in the label mixes of all, whether or not they took part."""
    made = scenario(evaluation={"every": 1, "clients": True}, **WORLDS[name])
    host, book, clients = Host(made), Textbook(made), [0, 2, 3, 5]
    outcome, model = host.play(1, clients), book.module("a")
    samples = [book.samples[c] for c in clients]
    trained = [flat(book.trained(model, c, 1)) for c in clients]
    mean = sum(n * one for n, one in zip(samples, trained, strict=True)) / sum(samples)
    weights = host.array("server/a/weights")
    assert_close(weights, mean, 1e-5)
    assert outcome.shared_loss == outcome.shared_loss_before == {}
    merged = with_weights(model, weights)
    assert_evaluated(book, outcome, dict.fromkeys(range(6), merged))
    assert outcome.clients[0].accuracy == outcome.evaluation["a"].accuracy


def test_two_uploads_of_a_client_in_one_merge_have_losses_of_their_own():
    host = Host(
        scenario(
            policy={"kind": "ascend", "reward": {"local_loss": {"samples": 20}}},
            compression={"k": 200, "strategies": ["top-k", "random-k"]},
            participation={},
            aggregation={"mode": "buffered", "buffer": 2, "concurrency": 3},
        )
    )

    def begun(round):
        return [host.begin(round, client, "top-k", 200) for client in (0, 1)]

    late, on_time = begun(1)
    first = host.merge(1, [on_time]).local_loss
    fresh, other = begun(2)
    second = host.merge(2, [fresh, late, other]).local_loss
    assert set(first) == {"1/1"}
    assert set(second) == {"0/1", "0/2", "1/2"}
    assert second["0/1"][1] == second["0/2"][1]
    # of the initial models, and of those that the first merge made
    assert second["0/1"][0] != second["0/2"][0]
    assert second["1/2"][0] == first["1/1"][1]
