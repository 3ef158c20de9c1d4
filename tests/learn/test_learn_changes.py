"""Models that travel down as changes, with the error kept at the server."""

import changes_worlds as worlds
import numpy as np
import pytest
import torch
from changes_worlds import TOP_K_BYTES, D
from engine_worlds import Host
from textbook import Textbook, answers, assert_same, flat, with_weights

from simfed import RunFailed
from simfed.compress import codec_from_spec
from simfed.experiment import Parts
from simfed.learn.federation import draw_own


def weights_of(host):
    """What the server has, and what clients that are up to date hold."""
    return host.kept.server["only"]["weights"], host.kept.held["only", "weights"]


class ByHand(Textbook):
    """Federated averaging whose server sends everybody what they lack.

    Clients hold what they got.
    """

    def __init__(self, made):
        super().__init__(made)
        self.k = made.downlink.compression.k
        self.model = self.module("only")
        self.weights = flat(self.model).double()
        self.error = torch.zeros(D, dtype=torch.float64)
        self.common = self.weights.clone()
        self.sent, self.mine, self.version_of = [], {}, {}

    def download(self, client):
        """Bytes, and the client's own copy brought up to date."""
        size = TOP_K_BYTES[self.k]
        version = self.version_of.get(client)
        self.version_of[client] = len(self.sent)
        missed = [] if version is None else self.sent[version:]
        if version is None or len(missed) * size >= 4 * D:
            self.mine[client] = self.common.clone()
            return 4 * D, 0
        for indices, values in missed:
            self.mine[client][indices] += values
        return len(missed) * size, len(missed)

    def train(self, client, round):
        local = self.trained(with_weights(self.model, self.mine[client]), client, round)
        return self.mine[client] - flat(local)

    def merge(self, updates):
        before, total = self.weights.clone(), sum(self.samples[c] for c in updates)
        for client, update in updates.items():
            self.weights -= self.samples[client] / total * update
        whole = self.weights - before + self.error
        order = np.argsort(-whole.abs().numpy(), kind="stable")[: self.k]
        indices = torch.from_numpy(np.sort(order))
        self.sent.append((indices, whole[indices].clone()))
        self.common[indices] += whole[indices]
        whole[indices] = 0.0
        self.error = whole


ROUNDS = [(0, 1), (0, 1), (0, 2), (0, 1), (0, 1), (0, 2), (1, 2), (0, 1)]
"""Clients 1 and 2 begin late, miss one round, or two."""


@pytest.mark.parametrize("k", [40, 200])
def test_clients_that_missed_rounds_train_from_what_they_were_sent(k):
    """Against a version by hand in which every client keeps a copy and adds what it is
    sent.
    """
    made = worlds.scenario(downlink={"compression": {"k": k}})
    host, hand = Host(made), ByHand(made)
    held, dense = {}, 0
    for round, clients in enumerate(ROUNDS, 1):
        uploads, updates = [], {}
        for client in clients:
            upload = host.begin(round, client, held=held.get(client))
            received, changes = hand.download(client)
            assert upload.task.downlink_bytes == received
            assert sum(unpacked.times for unpacked in upload.task.unpacking) == changes
            dense += received == 4 * D
            held[client] = upload.task.model_version
            uploads.append(upload)
            updates[client] = hand.train(client, round)
        host.merge(round, uploads)
        hand.merge(updates)
        server, common = weights_of(host)
        assert_same(server.double(), hand.weights, 0, 1e-6)
        assert_same(common.double(), hand.common, 0, 1e-6)
    assert float((server - common).abs().max()) > 1e-4  # there is an error to be kept
    # first downloads; three changes of 1,050 B are more
    assert dense == (3 if k == 40 else 4)


@pytest.mark.parametrize(
    "strategy",
    ["dense", "periodic-k", "ef-sign", "top-k+qsgd(4)", {"powersgd": {"rank": 2}}],
    ids=str,
)
def test_what_was_sent_is_the_change_of_the_model_less_the_error(strategy):
    made = worlds.scenario(downlink={"compression": {"k": 60, "strategy": strategy}})
    host, sent = Host(made), []
    first = weights_of(host)[0].clone()
    for changes in host.held_models.of_prototype("only").values():
        changes.next = noting(changes.next, sent)
    for round in range(1, 6):
        host.play(round)
    server, held = weights_of(host)
    assert_same(sum(sent), held - first, 0, 1e-5)
    assert len(sent) == 5
    assert ((server - held).norm() > 1e-3) == (strategy != "dense")


def noting(function, results):
    def noted(*arguments):
        results.append(function(*arguments).clone())
        return results[-1]

    return noted


WRESNET = {
    "dataset": {"name": "cifar10"},
    "prototypes": {"only": {"model": "wresnet40-2"}},
    "downlink": {"compression": {"k": 1000}},
}
CHANGE, BUFFERS = 4 * 1000 + 22 * 1000 // 8, 4 * 5408
HALVES = {"downlink": {"payload": "fp16", "compression": {"k": 200}}}


def by_codec(strategy, code):
    """Changes of 60 entries, and what two of them take."""
    size = codec_from_spec(strategy).size_bytes(D, 60, code)
    keys = {"k": 60, "strategy": strategy, "index_code": code}
    return {"downlink": {"compression": keys}}, [0, size, 2 * size, 4 * D]


@pytest.mark.parametrize(
    ("changes", "sizes"),
    [
        by_codec("ef-sign", "ideal"),
        by_codec("random-k+fp16", "seeded"),
        by_codec("top-k", "fixed"),
        by_codec("qsgd(4)", "fixed"),
        ({"charge": {"downlink": False}}, [0, 0, 0, 0]),
        (HALVES, [0, 1050, 2 * D, 2 * D]),  # whole models of two bytes a weight
        # running statistics travel with every change
        (
            WRESNET,
            [0, CHANGE + BUFFERS, 2 * CHANGE + BUFFERS, 4 * 2_243_546 + BUFFERS],
        ),
    ],
)
def test_sizes_of_downloads_by_what_the_client_holds(changes, sizes):
    tasks = Parts(worlds.scenario(**changes)).tasks
    sent = [tasks.task(9, 0, 8, held=held) for held in (8, 7, 6, None)]
    assert [task.downlink_bytes for task in sent] == sizes


FEDKD = {
    "method": "fedkd",
    "dataset": {"name": "stripes", "public": 16},
    "downlink": {
        "compression": {"k": 60, "strategy": "periodic-k", "index_code": "rice"}
    },
}


def test_a_round_that_is_undone_sends_nothing():
    """What clients hold, and the codec's memory, are as before it."""
    safeguard = {"rollback": {"threshold": 1.5}}
    host = Host(worlds.scenario(**FEDKD, safeguard=safeguard))
    host.play(1)
    host.safeguard.rejects = lambda before, after: True
    before, changes = weights_of(host)[1].clone(), host.kept.changes
    assert host.play(2).rolled_back
    assert torch.equal(weights_of(host)[1], before)
    assert host.kept.changes == changes
    assert host.task(3, 0, held=1).downlink_bytes == 0  # it has all that there is


def test_local_losses_are_those_of_what_the_client_holds():
    made = worlds.scenario(
        policy={"kind": "ucb"},
        compression={"k": 30, "strategies": ["top-k", "random-k"]},
        downlink={"compression": {"k": 20}},
    )
    host, book = Host(made), Textbook(made)
    outcome = host.play(1, arm="top-k", k=30)
    held = with_weights(book.module("only"), weights_of(host)[1])
    local = made.policy.reward.local_loss
    for client, owned in enumerate(book.data.owned):
        at = draw_own(book.streams, local, client, 1, owned, made.training)
        samples, labels = book.data.at(at)
        loss = torch.nn.functional.cross_entropy(answers(held, samples), labels)
        _, after = outcome.local_loss[f"{client}/1"]
        assert after == pytest.approx(loss.item(), rel=1e-6)


def test_sizes_that_depend_on_the_data_are_those_of_the_payloads():
    made = worlds.scenario(downlink={"compression": {"k": 100, "index_code": "rice"}})
    host = Host(made)
    for round in range(1, 4):
        host.play(round, (0, 1))
    [(*_, sizes, _)] = host.kept.changes
    assert len(sizes) == 3
    assert all(400 < size < 400 + 125 for size in sizes)
    for held in (3, 2, 1):
        # the most that it can be
        assert host.task(4, 0, held=held).downlink_bytes == (4 * D if held < 3 else 0)
        sent = host.begin(4, 0, held=held)
        assert sent.task.downlink_bytes == pytest.approx(sum(sizes[held:]))
        host.discard(sent)


class Diverging(Host):
    """An engine whose second round spoils the model."""

    def _merge_by_method(self, arrivals, round):
        losses = super()._merge_by_method(arrivals, round)
        if round == 2:
            self._server["only"]["weights"].fill_(float("nan"))
            losses = {"only": {"kd_loss": float("nan")}}
        return losses


@pytest.mark.parametrize("rollback", [{"threshold": 1.5}, None])
def test_a_spoilt_model_is_undone_with_what_would_have_been_sent_of_it(rollback):
    host = Diverging(worlds.scenario(**FEDKD, safeguard={"rollback": rollback}))
    host.play(1)
    held, changes = weights_of(host)[1].clone(), host.kept.changes
    if rollback is None:
        with pytest.raises(
            RunFailed, match="the model of only has values that are not finite"
        ):
            host.play(2)
        return
    assert host.play(2).rolled_back
    assert torch.equal(weights_of(host)[1], held)
    assert host.kept.changes == changes
