"""Federated averaging against the textbook, and on a scenario of a thousand clients."""

from __future__ import annotations

import copy

import engine_worlds as tiny
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from simfed.compress.choice import Choice
from simfed.ground.seeding import Streams
from simfed.learn.federation import draw_epoch
from simfed.learn.hosted import HostedWorkload
from simfed.learn.models import build_model
from simfed.learn.plain import plain_rounds


def scenario(**changes):
    plain = {
        "method": "fedavg",
        "dataset": {"name": "mnist-mini"},
        "prototypes": {"only": {"model": "logistic-regression"}},
        "clients": [{"count": 6, "prototype": "only", "device": "any"}],
        "training": {"batch_size": 10, "learning_rate": 0.05, "local_epochs": 2},
        "policy": {"kind": "uniform", "strategy": "dense"},
        "compression": {"strategies": ["dense"]},
        "participation": {"clients_per_round": 4},
    }
    return tiny.scenario(**{**plain, **changes})


def flat(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("model", ["logistic-regression", "lenet5-half"])
def test_a_round_is_the_sample_weighted_mean_of_local_training(model):
    made = scenario(prototypes={"only": {"model": model}})
    data = tiny.federation(made)
    work = HostedWorkload(made, Streams(0), data=data, learns=False)
    streams, sizes = Streams(0), [len(owned) for owned in data.owned]
    initial = build_model(
        model, data.input_shape, data.classes, seed=streams.integer("init", "only")
    )
    clients = [0, 2, 3, 5]
    trained = []
    for client in clients:
        local = copy.deepcopy(initial)
        optimiser = torch.optim.SGD(local.parameters(), lr=0.05)
        for batch in draw_epoch(streams("batch", client, 1), data.owned[client], 10, 2):
            positions = torch.from_numpy(batch)
            optimiser.zero_grad()
            F.cross_entropy(
                local(data.samples(positions)), data.labels[positions]
            ).backward()
            optimiser.step()
        trained.append(flat(local) * (sizes[client] / sum(sizes[c] for c in clients)))
    outcome = work.merge(
        1, [work.execute(work.task(1, c), Choice("dense", 1)) for c in clients]
    )
    torch.testing.assert_close(
        tiny.state_of(work).server["only"]["weights"],
        sum(trained),
        rtol=1e-5,
        atol=1e-6,
    )
    assert outcome.shared_loss == outcome.shared_loss_before == {}


def test_tasks_count_the_steps_of_all_epochs():
    made = scenario()
    data = tiny.federation(made)
    work = HostedWorkload(made, Streams(0), data=data, learns=False)
    for client, owned in enumerate(data.owned):
        (training,) = work.task(1, client).plan.work
        assert (training.size, training.times) == (
            10,
            2 * int(np.ceil(len(owned) / 10)),
        )


def test_what_is_not_sent_of_a_difference_stays_as_residual():
    made = scenario(
        compression={"k": 50, "strategies": ["top-k"]},
        policy={"kind": "uniform", "strategy": "top-k"},
    )
    work = HostedWorkload(made, Streams(0), learns=False)
    start = tiny.state_of(work).server["only"]["weights"]
    upload = work.execute(work.task(1, 0), Choice("top-k", 50))
    sent = tiny.dense(work, upload)
    assert (sent != 0).sum() == 50
    difference = sent + tiny.residual(work, 0)
    work.merge(1, [upload])
    torch.testing.assert_close(
        tiny.state_of(work).server["only"]["weights"], start - sent
    )
    assert difference.abs().max() == sent.abs().max()


def test_rewards_have_a_local_term_only():
    made = scenario(compression={"k": 200}, policy={"kind": "ascend"})
    assert made.safeguard.rollback is None
    work = HostedWorkload(made, Streams(0))
    rounds = list(plain_rounds(made, work, Streams(0)))
    for played in rounds:
        assert len(played.arms) == 4
        for client, reward in played.rewards.items():
            before, after = played.outcome.local_loss[f"{client}/{played.round}"]
            assert reward == pytest.approx(0.4 * (before - after))


def test_a_thousand_clients_of_which_ten_play_learn():
    made = scenario(
        rounds=30,
        clients=[{"count": 1000, "prototype": "only", "device": "any"}],
        dataset={"name": "mnist-mini", "partition": {"kind": "iid"}},
        training={"batch_size": 10, "learning_rate": 0.03},
        participation={"clients_per_round": 10},
        evaluation={"every": 30},
    )
    work = HostedWorkload(made, Streams(0), learns=False)
    *_, last = plain_rounds(made, work, Streams(0))
    assert last.outcome.evaluation["only"].accuracy > 0.75


@pytest.mark.parametrize("method", ["fedavg", "fedprox"])
def test_two_uploads_of_a_client_in_one_merge_have_losses_of_their_own(method):
    policy = {"kind": "ascend", "reward": {"local_loss": {"samples": 20}}}
    made = scenario(
        method=method,
        policy=policy,
        compression={"k": 200},
        participation={},
        aggregation={"mode": "buffered", "buffer": 2, "concurrency": 3},
    )
    work = HostedWorkload(made, Streams(0))

    def begin(round, client, turn=0):
        return work.execute(work.task(round, client, turn), Choice("top-k", 200))

    late, on_time = begin(1, 0), begin(1, 1)
    first = work.merge(1, [on_time])
    fresh, other = begin(2, 0), begin(2, 1)
    second = work.merge(2, [fresh, late, other])
    assert set(first.local_loss) == {"1/1"}
    assert set(second.local_loss) == {"0/1", "0/2", "1/2"}
    (before_late, after_late), (before, after) = (
        second.local_loss["0/1"],
        second.local_loss["0/2"],
    )
    assert after_late == after
    # of the initial models, and of those that the first merge made
    assert before_late != before
    assert second.local_loss["1/2"][0] == first.local_loss["1/1"][1]
    work.close()


@pytest.mark.parametrize("method", ["fedavg", "fedprox"])
def test_a_shared_model_is_also_evaluated_in_every_clients_own_label_mix(method):
    made = scenario(method=method, evaluation={"every": 1, "clients": True})
    work = HostedWorkload(made, Streams(0))
    outcome = work.merge(
        1, [work.execute(work.task(1, c), Choice("dense", 1)) for c in (0, 2)]
    )
    tested = outcome.evaluation["only"]
    model = build_model("logistic-regression", work.data.input_shape, 10, seed=0)
    weights = tiny.state_of(work).server["only"]["weights"]
    torch.nn.utils.vector_to_parameters(weights, model.parameters())
    right = model(work.data.test_samples).argmax(1) == work.data.test_labels
    of_class = [
        right[work.data.test_labels == label].float().mean().item()
        for label in range(10)
    ]
    assert sorted(outcome.clients) == list(range(6))  # whether or not they took part
    for client, evaluation in outcome.clients.items():
        owned = work.data.labels[torch.from_numpy(work.data.owned[client])]
        mix = np.bincount(owned, minlength=10) / len(owned)
        assert evaluation.own_accuracy == pytest.approx(float(mix @ of_class), abs=1e-6)
        assert evaluation.accuracy == pytest.approx(tested.accuracy)
        assert evaluation.loss == pytest.approx(tested.loss, rel=1e-6)
    work.close()
