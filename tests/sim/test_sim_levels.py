"""K that varies by client and round, in whole runs: tables, bytes, time, replay, resuming."""

import numpy as np
import pytest

import simfed
from simfed.compress.choice import Choice
from simfed.ground.errors import InputError, RunFailed
from simfed.ground.seeding import Streams
from simfed.learn.kit import Kit
from simfed.learn.plain import plain_rounds
from simfed.scenario import Scenario
from simfed.verify.run import verify

D = {"small": 15_738, "wide": 61_706}
LEVELS = {"strategies": ["top-k", "random-k"], "k_choices": [100, "2%"], "index_code": "fixed"}
ADAPTIVE = {"kind": "adaptive-k", "least": "0.5%", "most": "20%"}
BALANCE = {"kind": "balance", "share": 0.3, "least": "0.5%", "most": "20%"}
ONE = {"prototypes": {"small": {"model": "lenet5-half"}}, "client_order": "grouped"}
WORLDS = {
    "pairs": {},
    "apart": {"compression": {**LEVELS, "pairs": "factored"}, "policy": {"kind": "exp3"}},
    "moving": {"policy": ADAPTIVE},
    "hosted": {**ONE, "method": "scaffold", "policy": ADAPTIVE, "training": {"local_steps": 1}},
    "balanced": {"policy": BALANCE, "compression": {"index_code": "fixed"}},
    "late": {
        "aggregation": {"mode": "deadline", "deadline": "60 ms", "late": "merge"},
        "policy": ADAPTIVE,
    },
}


def world(name="pairs", rounds=5, **changes):
    def group(prototype, up):
        return {
            "count": 2,
            "prototype": prototype,
            "device": "x86-2core-vm",
            "link": {"up": up, "down": "50 Mbps", "latency": "2 ms"},
        }

    plain = {
        "name": name,
        "rounds": rounds,
        "dataset": {"name": "mnist-mini", "public": 8},
        "prototypes": {"small": {"model": "lenet5-half"}, "wide": {"model": "lenet5"}},
        "clients": [group("small", "5 Mbps"), group("wide", "2 Mbps")],
        "compression": LEVELS,
        "policy": {"kind": "ascend", "warmup": 1},
        "safeguard": {"rollback": None},
        "evaluation": {"every": 100},
        **WORLDS[name],
        **changes,
    }
    if "method" in plain:
        plain["clients"] = plain["clients"][:1]
        plain["dataset"] = {"name": "mnist-mini"}
        del plain["safeguard"]
    return Scenario.model_validate(plain)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    made = {}

    def get(name):
        if name not in made:
            out = tmp_path_factory.mktemp("levels") / name
            made[name] = simfed.run(world(name), out, workers=1, progress=False)
        return made[name]

    return get


@pytest.mark.parametrize("name", WORLDS)
def test_a_run_keeps_every_invariant(runs, name):
    assert verify(runs(name).path) == []


@pytest.mark.parametrize("name", ["pairs", "apart"])
def test_k_is_that_of_the_arm_and_of_the_clients_model(runs, name):
    parts = runs(name).participations
    assert parts["arm"].nunique() > 2
    for row in parts.itertuples():
        choice = Choice.of(row.arm)
        assert row.k == choice.level.k(D[row.prototype])
        assert row.uplink_bytes == choice.codec.size_bytes(D[row.prototype], row.k, "fixed")


def test_compression_takes_as_long_as_the_profile_says_for_this_k(runs):
    run = runs("moving")
    device = {}
    from simfed.experiment.assembly import Parts

    parts = Parts(world("moving"))
    for row in run.participations.itertuples():
        device.setdefault(row.client, parts.device(row.client))
        model = parts.group(row.client).prototype
        model = {"small": "lenet5-half", "wide": "lenet5"}[model]
        nominal = device[row.client].nominal_s(
            "compression", model=model, strategy="top-k", k=row.k
        )
        assert row.compression_s == pytest.approx(nominal)
    ks = run.participations.groupby("prototype")["k"]
    assert (ks.min() >= [0.005 * D["small"] - 1, 0.005 * D["wide"] - 1]).all()
    assert (ks.nunique() > 3).all()


@pytest.mark.parametrize("name", ["pairs", "apart", "moving"])
def test_a_time_only_run_replays_arms_and_levels(runs, name):
    run = runs(name)
    policy = {**WORLDS[name].get("policy", {"kind": "ascend"}), "arms_from": str(run.path)}
    again = simfed.run(world(name, policy=policy), time_only=True, progress=False)
    for column in ("arm", "k", "uplink_bytes", "started_at_s", "finished_at_s", "compression_s"):
        assert (again.participations[column] == run.participations[column]).all(), column


def test_learning_without_a_clock_refuses_who_watches_time():
    scenario = world("balanced")
    with pytest.raises(
        InputError,
        match=r"policy.kind: got 'balance', expected .* no "
        r"time .*",
    ):
        next(plain_rounds(scenario, None, Streams(0)))


def test_a_uniform_level_is_the_same_as_that_k():
    def run(strategy, k):
        compression = {"strategies": ["top-k"], "k": k}
        policy = {"kind": "uniform", "strategy": strategy}
        return simfed.run(
            world(rounds=2, compression=compression, policy=policy), workers=1, progress=False
        )

    one, other = run("top-k@300", 1000), run("top-k", 300)
    same = [c for c in one.participations if c != "arm"]
    assert one.participations[same].equals(other.participations[same])
    assert one.prototypes.equals(other.prototypes)


@pytest.mark.parametrize("policy", [{"kind": "uniform", "strategy": "random-k@50"}, ADAPTIVE])
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
        simfed.run(world(policy=policy), workers=1, progress=False)


@pytest.mark.parametrize("compression", [{}, LEVELS])
def test_so_it_does_with_a_hosted_method(monkeypatch, compression):
    from simfed.learn.methods.scaffold import Scaffold

    trained = Scaffold.trained

    def spoiled(self, kit, who, round, *arguments):
        values, own = trained(self, kit, who, round, *arguments)
        if (who.client, round) == (1, 2):
            values["update"][3] = np.nan
        return values, own

    monkeypatch.setattr(Scaffold, "trained", spoiled)
    changes = {"compression": compression, "policy": {"kind": "exp3"}}
    with pytest.raises(RunFailed, match="client 1, round 2: update has values"):
        simfed.run(world("hosted", **changes), workers=1, progress=False)
