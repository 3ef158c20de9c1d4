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

D = {"small": 15_738, "wide": 61_706}
LEVELS = {
    "strategies": ["top-k", "random-k"],
    "k_choices": [100, "2%"],
    "index_code": "fixed",
}
ADAPTIVE = {"kind": "adaptive-k", "least": "0.5%", "most": "20%"}
LINK = {
    "link": {"up": "5 Mbps", "down": "50 Mbps", "latency": "2 ms"},
    "device": "x86-2core-vm",
}
PROTOTYPES = {"small": {"model": "lenet5-half"}, "wide": {"model": "lenet5"}}


def world(**changes):
    keys = {
        "rounds": 5,
        "prototypes": PROTOTYPES,
        "clients": [{"count": 2, "prototype": name, **LINK} for name in PROTOTYPES],
        "compression": LEVELS,
        "policy": {"kind": "ascend", "warmup": 1},
        "evaluation": {"every": 100},
    }
    return worlds.world("two", keys, **changes)


@pytest.mark.parametrize(
    "changes",
    [{}, {"compression": {**LEVELS, "pairs": "factored"}, "policy": {"kind": "exp3"}}],
    ids=["pairs", "apart"],
)
def test_k_is_that_of_the_arm_and_of_the_clients_model(changes):
    parts = worlds.play(world(**changes)).participations
    assert parts["arm"].nunique() > 2
    for row in parts.itertuples():
        choice = Choice.of(row.arm)
        assert row.k == choice.level.k(D[row.prototype])
        assert row.uplink_bytes == choice.codec.size_bytes(
            D[row.prototype], row.k, "fixed"
        )


def test_compression_takes_as_long_as_the_profile_says_for_this_k():
    made = world(policy=ADAPTIVE)
    run, parts, device = worlds.play(made), Parts(made), {}
    for row in run.participations.itertuples():
        device.setdefault(row.client, parts.device(row.client))
        model = PROTOTYPES[row.prototype]["model"]
        nominal = device[row.client].processor.nominal_s(
            "compression", model=model, strategy="top-k", k=row.k
        )
        assert row.compression_s == pytest.approx(nominal)
    ks = run.participations.groupby("prototype")["k"]
    assert (ks.min() >= [0.005 * D["small"] - 1, 0.005 * D["wide"] - 1]).all()
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
        worlds.play(world(policy=policy))
