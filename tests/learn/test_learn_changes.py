"""Models that travel down as changes, with the error kept at the server."""

from __future__ import annotations

from types import SimpleNamespace

import changes_worlds as worlds
import engine_worlds as tiny
import numpy as np
import pytest
import torch
from changes_worlds import D
from hypothesis import given
from hypothesis import strategies as st

from simfed.compress.choice import Choice
from simfed.compress.codec import codec_from_spec
from simfed.fleet.contract import Workload
from simfed.ground.errors import RunFailed
from simfed.ground.seeding import Streams
from simfed.learn.hosted import HostedWorkload
from simfed.tasks.tasks import Tasks


def workload(made, **options) -> Workload:
    return HostedWorkload(made, Streams(made.seed), **options)


def weights_of(work):
    """What the server has, and what clients that are up to date hold."""
    state = tiny.state_of(work)
    return state.server["only"]["weights"], state.held["only", "weights"]


ROUNDS = [(0, 1), (0, 1), (0, 2), (0, 1), (0, 1), (0, 2), (1, 2), (0, 1)]
"""Clients 1 and 2 begin late, miss one round, or two."""


@pytest.mark.parametrize("k", [40, 200])
def test_clients_that_missed_rounds_train_from_what_they_were_sent(k):
    """Against a version by hand in which every client keeps a copy and adds what it is
    sent.
    """
    made = worlds.scenario(downlink={"compression": {"k": k}})
    work, hand = workload(made), worlds.ByHand(made)
    held, dense = {}, 0
    for round, clients in enumerate(ROUNDS, 1):
        uploads, updates = [], {}
        for client in clients:
            task = work.task(round, client, held=held.get(client))
            received, changes = hand.download(client)
            assert task.downlink_bytes == received
            assert sum(unpacked.times for unpacked in task.unpacking) == changes
            dense += received == 4 * D
            held[client] = task.model_version
            uploads.append(work.execute(task, Choice("dense", 1)))
            updates[client] = hand.train(client, round)
        work.merge(round, uploads)
        hand.merge(updates)
        server, common = weights_of(work)
        torch.testing.assert_close(server.double(), hand.weights, rtol=0, atol=1e-6)
        torch.testing.assert_close(common.double(), hand.common, rtol=0, atol=1e-6)
    assert float((server - common).abs().max()) > 1e-4  # there is an error to be kept
    # first downloads; three changes of 1,050 B are more
    assert dense == (3 if k == 40 else 4)


@pytest.mark.parametrize(
    "strategy",
    [
        "top-k",
        "random-k",
        "periodic-k",
        "dense",
        "ef-sign",
        {"qsgd": {"levels": 4}},
        "fp16",
        {"chain": ["top-k", {"qsgd": {"levels": 4}}]},
        {"powersgd": {"rank": 2}},
        {"svd": {"rank": 2}},
    ],
    ids=str,
)
def test_what_was_sent_is_the_change_of_the_model_less_the_error(strategy):
    made = worlds.scenario(downlink={"compression": {"k": 60, "strategy": strategy}})
    work = workload(made)
    first = weights_of(work)[0].clone()
    for changes in work.held_models.of_prototype("only").values():
        changes.next, sent = _noting(changes.next)
    for round in range(1, 6):
        work.merge(
            round,
            [work.execute(work.task(round, c), Choice("dense", 1)) for c in range(3)],
        )
    server, held = weights_of(work)
    error = server - held
    torch.testing.assert_close(sum(sent), server - first - error, rtol=0, atol=1e-5)
    assert len(sent) == 5
    if strategy == "dense":
        assert float(error.abs().max()) < 1e-6
    elif strategy != "fp16":
        assert float(error.norm()) > 1e-3


def _noting(function):
    results = []

    def noting(*arguments):
        results.append(function(*arguments).clone())
        return results[-1]

    return noting, results


def test_everything_sent_means_learning_as_without():
    plain = workload(worlds.scenario(downlink={}))
    changed = workload(worlds.scenario(downlink={"compression": {"strategy": "dense"}}))
    for round in range(1, 5):
        for work in (plain, changed):
            work.merge(
                round,
                [
                    work.execute(work.task(round, c), Choice("dense", 1))
                    for c in range(3)
                ],
            )
    weights = weights_of(changed)[0]
    want = tiny.state_of(plain).server["only"]["weights"]
    torch.testing.assert_close(weights, want, rtol=0, atol=1e-6)


def test_a_model_that_is_not_finite_is_named():
    work = workload(worlds.scenario())
    server, held = weights_of(work)
    server[3] = float("inf")
    with pytest.raises(
        RunFailed,
        match=r"the model of only has values that are not "
        r"finite",
    ):
        work.held_models.of_prototype("only")["weights"].next(
            server, held, np.random.default_rng(0)
        )


def test_clients_that_are_up_to_date_are_sent_nothing():
    made = worlds.scenario()
    tasks = workload(made).tasks
    assert tasks.task(3, 0, 2, held=2).downlink_bytes == 0
    assert tasks.task(3, 0, 2, held=2).unpacking == ()
    assert [
        tasks.task(9, 0, 8, held=held).downlink_bytes for held in (7, 6, 5, None)
    ] == [
        1050,
        2100,
        4 * D,
        4 * D,
    ]
    free = worlds.scenario(charge={"downlink": False})
    task = workload(free).tasks.task(9, 0, 8, held=7)
    assert (task.downlink_bytes, task.unpacking) == (0, ())


@given(
    k=st.integers(1, D),
    version=st.integers(0, 30),
    missed=st.integers(0, 30),
    strategy=st.sampled_from(["top-k", "ef-sign", "qsgd(4)", "random-k+fp16"]),
    code=st.sampled_from(["ideal", "fixed", "seeded"]),
)
def test_a_client_is_sent_each_change_or_the_model_whichever_is_less(
    k, version, missed, strategy, code
):
    compression = {"k": k, "strategy": strategy, "index_code": code}
    made = worlds.scenario(downlink={"compression": compression})
    facts = {"only": SimpleNamespace(**FACTS)}
    task = Tasks(made, facts, lambda client: 10).task(
        1, 0, version + missed, held=version
    )
    size = codec_from_spec(strategy).size_bytes(D, k, code)
    assert task.downlink_bytes == min(missed * size, 4 * D)
    sent_as_changes = 0 < missed * size < 4 * D
    assert [unpacked.times for unpacked in task.unpacking] == [missed] * sent_as_changes


FACTS = {
    "parameters": D,
    "buffers": 0,
    "features": 144,
    "layers": (),
    "classes": 4,
    "shapes": ((4, 144), (4,)),
    "names": (),
}


def test_whole_models_may_be_of_two_bytes_a_weight():
    made = worlds.scenario(downlink={"payload": "fp16", "compression": {"k": 200}})
    tasks = workload(made).tasks
    sizes = [tasks.task(9, 0, 8, held=held).downlink_bytes for held in (7, 6, None)]
    assert sizes == [1050, 2 * D, 2 * D]


def test_running_statistics_travel_with_every_change():
    made = worlds.scenario(
        dataset={"name": "cifar10"},
        prototypes={"only": {"model": "wresnet40-2"}},
        downlink={"compression": {"k": 1000}},
    )
    from simfed.experiment.assembly import Parts

    tasks = Parts(made).tasks
    change, buffers = 4 * 1000 + 22 * 1000 // 8, 4 * 5408
    sizes = [tasks.task(9, 0, 8, held=held).downlink_bytes for held in (8, 7, 6, None)]
    assert sizes == [0, change + buffers, 2 * change + buffers, 4 * 2_243_546 + buffers]


def test_a_round_that_is_undone_sends_nothing(monkeypatch):
    """fedkd: what clients hold, and the codec's memory, are as before it.

    A resumed server sends what the round after it sends, which is no longer that of its
    version.
    """
    made = worlds.scenario(
        method="fedkd",
        dataset={"name": "change-stripes", "public": 16},
        downlink={
            "compression": {"k": 60, "strategy": "periodic-k", "index_code": "rice"}
        },
        safeguard={"rollback": {"threshold": 1.5}},
    )
    surged = tiny.surging(made, Streams(made.seed), surge={2: 1e9})
    surged.merge(
        1, [surged.execute(surged.task(1, c), Choice("dense", 1)) for c in range(3)]
    )
    before = weights_of(surged)[1].clone()
    changes = tiny.state_of(surged).changes
    outcome = surged.merge(
        2, [surged.execute(surged.task(2, c), Choice("dense", 1)) for c in range(3)]
    )
    assert outcome.rolled_back
    assert torch.equal(weights_of(surged)[1], before)
    assert tiny.state_of(surged).changes == changes
    assert surged.task(3, 0, held=1).downlink_bytes == 0  # it has all that there is
    again, rounds = workload(made), []
    send = again.method.send
    monkeypatch.setattr(
        type(again.method),
        "send",
        lambda _, *each: rounds.append(each[2]) or send(*each),
    )
    again.restore(*surged.state())
    assert set(rounds) == {3}


def test_local_losses_are_those_of_what_the_client_holds():
    made = worlds.scenario(
        policy={"kind": "ucb"},
        compression={"k": 30, "strategies": ["top-k", "random-k"]},
        downlink={"compression": {"k": 20}},
    )
    work = workload(made)
    outcome = work.merge(
        1, [work.execute(work.task(1, c), Choice("top-k", 30)) for c in range(3)]
    )
    streams, data = Streams(made.seed), work.data
    from simfed.learn.federation import draw_own

    local = made.policy.reward.local_loss
    for client in range(3):
        _, after = outcome.local_loss[work.tasks.task(1, client, 0).label]
        owned = data.owned[client]
        at = torch.from_numpy(draw_own(streams, local, client, 1, owned, made.training))
        held = (
            work.kit._seats["only"]
            .flat.load(
                {
                    **tiny.state_of(work).server["only"],
                    "weights": work.held_models.held["only", "weights"],
                }
            )
            .module.eval()
        )
        with torch.no_grad():
            loss = torch.nn.functional.cross_entropy(
                held(data.samples(at)), data.labels[at]
            )
        assert after == pytest.approx(float(loss), rel=1e-6)


def test_sizes_that_depend_on_the_data_are_those_of_the_payloads():
    made = worlds.scenario(downlink={"compression": {"k": 100, "index_code": "rice"}})
    work = workload(made)
    for round in range(1, 4):
        work.merge(
            round,
            [work.execute(work.task(round, c), Choice("dense", 1)) for c in (0, 1)],
        )
    [(*_, sizes, _)] = tiny.state_of(work).changes
    assert len(sizes) == 3
    assert all(400 < size < 400 + 125 for size in sizes)
    for held, expected in ((3, 0), (2, sizes[2]), (1, sizes[1] + sizes[2])):
        asked = work.task(4, 0, held=held)
        sent = work.execute(asked, Choice("dense", 1))
        assert sent.task.downlink_bytes == pytest.approx(expected)
        # the most that it can be
        assert asked.downlink_bytes == (4 * D if held < 3 else 0)
        work.discard(sent)


class Diverging(HostedWorkload):
    """A workload whose second round spoils the model."""

    def _merged(self, arrivals, round):
        losses = super()._merged(arrivals, round)
        if round == 2:
            self._server["only"]["weights"].fill_(float("nan"))
            losses = {"only": {"kd_loss": float("nan")}}
        return losses


@pytest.mark.parametrize("rollback", [{"threshold": 1.5}, None])
def test_a_spoilt_model_is_undone_with_what_would_have_been_sent_of_it(rollback):
    made = worlds.scenario(
        method="fedkd",
        dataset={"name": "change-stripes", "public": 16},
        downlink={"compression": {"k": 60, "strategy": "top-k", "index_code": "rice"}},
        safeguard={"rollback": rollback},
    )
    work = Diverging(made, Streams(made.seed))
    work.merge(1, [work.execute(work.task(1, c), Choice("dense", 1)) for c in range(3)])
    held, changes = weights_of(work)[1].clone(), tiny.state_of(work).changes
    uploads = [work.execute(work.task(2, c), Choice("dense", 1)) for c in range(3)]
    if rollback is None:
        with pytest.raises(
            RunFailed, match="the model of only has values that are not finite"
        ):
            work.merge(2, uploads)
        return
    assert work.merge(2, uploads).rolled_back
    assert torch.equal(weights_of(work)[1], held)
    assert tiny.state_of(work).changes == changes
