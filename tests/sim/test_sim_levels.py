"""K that varies by client and round, in whole runs: tables, bytes, time, replay,
resuming.
"""

import numpy as np
import pytest
import worlds

from simfed import RunFailed
from simfed.experiment import Parts
from simfed.learn import Kit
from simfed.policy import Choice

D = {"a": 15_738, "b": 61_706}
MODELS = {"a": "lenet5-half", "b": "lenet5"}
LEVELS = {
    "strategies": ["top-k", "random-k"],
    "k_choices": [100, "2%"],
    "index_code": "fixed",
}
ADAPTIVE = {"kind": "adaptive-k", "least": "0.5%", "most": "20%"}


def world(policy, **changes):
    keys = {
        "rounds": 5,
        "prototypes.a.model": MODELS["a"],
        "prototypes.b.model": MODELS["b"],
        "clients[*].device": "x86-2core-vm",
        "clients[*].link": {"up": "5 Mbps", "down": "50 Mbps", "latency": "2 ms"},
        "compression": LEVELS,
        "policy": policy,
        "evaluation.every": 100,
    }
    return worlds.world("two", keys, **changes)


@pytest.mark.parametrize(("kind", "pairs"), [("ascend", "full"), ("exp3", "factored")])
def test_k_is_that_of_the_arm_and_of_the_clients_model(kind, pairs):
    made = world({"kind": kind}, **{"compression.pairs": pairs})
    parts = worlds.play(made).participations
    assert parts["arm"].nunique() > 2
    for row in parts.itertuples():
        choice, d = Choice.of(row.arm), D[row.prototype]
        assert row.k == choice.level.k(d)
        assert row.uplink_bytes == choice.codec.size_bytes(d, row.k, "fixed")


def test_compression_takes_as_long_as_the_profile_says_for_this_k():
    made = world(ADAPTIVE)
    run, parts = worlds.play(made), Parts(made)
    devices = [parts.device(client) for client in range(4)]
    for row in run.participations.itertuples():
        nominal = devices[row.client].processor.nominal_s(
            "compression", model=MODELS[row.prototype], strategy="top-k", k=row.k
        )
        assert row.compression_s == pytest.approx(nominal)
    ks = run.participations.groupby("prototype")["k"]
    assert (ks.min() >= [0.005 * d - 1 for d in D.values()]).all()
    assert (ks.nunique() > 3).all()


@pytest.mark.parametrize(
    "policy", [{"kind": "uniform", "strategy": "random-k@50"}, ADAPTIVE]
)
def test_an_update_that_is_not_finite_names_client_and_round(monkeypatch, policy):
    trained_each = Kit.trained_each

    def spoiled(self, participations):
        answers = trained_each(self, participations)
        for (who, round, _), (model, _) in zip(participations, answers, strict=True):
            if (who.client, round) == (3, 2):
                model["gradient"][7] = np.inf
        return answers

    monkeypatch.setattr(Kit, "trained_each", spoiled)
    with pytest.raises(RunFailed, match="client 3, round 2: update has values"):
        worlds.play(world(policy))
