"""Real sockets, real training: the simulation's bits, the seconds of this machine."""

import threading

import deploy_worlds as worlds
import numpy as np
import pytest
import yaml

from simfed.compress import codec_from_spec
from simfed.learn import ChangesDown, ChangesHeld
from simfed.learn.own_losses import OwnLosses

ORDER = "download", "training", "compression", "upload"


def assert_spans_fill_every_participation(real):
    spans = real.spans
    for client in range(3):
        mine = spans[spans["track"] == f"client {client}"]
        assert [*mine["started_at_s"][1:]] == [*mine["finished_at_s"][:-1]]
        for _, of_round in mine.groupby("round"):
            kinds = [kind for kind in of_round["kind"] if kind in ORDER]
            assert kinds == [kind for kind in ORDER if kind in kinds]
    # on a busy machine, clocks hide what is short
    least_s, *_, most_s = sorted(real.participations["training_s"])
    assert 0 <= least_s < most_s
    assert "merge" in set(spans[spans["track"] == "server"]["kind"])


@pytest.mark.parametrize(
    ("method", "strategy", "index_code"),
    [("fedkd", "periodic-k", "ideal"), ("scaffold", "random-k", "seeded")],
)
def test_three_clients_on_the_loopback_learn_the_bits_of_the_simulation(
    out, method, strategy, index_code
):
    plan = worlds.scenario(
        method=method,
        rounds=2,
        compression={"k": 500, "index_code": index_code},
        policy={"kind": "uniform", "strategy": strategy},
    )
    real = worlds.deployed(plan, out)
    worlds.assert_same_learning(real, plan)
    assert real.manifest["mode"] == "deployed"
    assert_spans_fill_every_participation(real)
    clocks = real.manifest["clocks"]
    assert {*clocks} == {"0", "1", "2"}
    for clock in clocks.values():
        assert abs(clock["ahead_s"]) <= clock["unsure_s"] + 1e-3


@pytest.mark.parametrize("residuals", ["restored", "as-sent"])
def test_round_that_is_rolled_back_is_rolled_back_at_the_clients_as_well(
    out, residuals
):
    """Whatever becomes of what they had sent, they go on from the bits of the
    simulation.
    """
    rollback = {"threshold": 1.0, "max_consecutive": 2}
    plan = worlds.scenario(
        rounds=6,
        safeguard={"rollback": rollback, "residuals": residuals},
        policy={"kind": "uniform", "strategy": "random-k"},
    )
    real = worlds.deployed(plan, out)
    simulated = worlds.assert_same_learning(real, plan)
    assert real.rounds["rolled_back"].equals(simulated.rounds["rolled_back"])
    assert 0 < real.rounds["rolled_back"].sum() < 6


def test_policy_that_has_nothing_to_choose_is_told_no_reward(out):
    """fedmd compresses nothing."""
    plan = worlds.scenario(
        method="fedmd", policy={"kind": "exp3"}, evaluation={"every": 2}
    )
    real = worlds.deployed(plan, out)
    assert real.participations["reward"].isna().all()


def deploy_without_client_2(plan, out):
    """A run in which client 2 trains until the last round is over."""
    over = threading.Event()

    def progress(round, time_s, accuracy):
        if round == plan.rounds:
            over.set()

    return worlds.deployed(plan, out, slow={"client_2": over}, progress=progress)


def test_personal_models_are_evaluated_of_clients_whose_uploads_were_merged(out):
    """Client 2 trains all the time, and nothing of it is ever merged."""
    plan = worlds.scenario(
        method="local-only",
        rounds=4,
        evaluation={"every": 1, "measures": ["auc"]},
        aggregation={"mode": "asynchronous", "concurrency": 3},
    )
    real = deploy_without_client_2(plan, out)
    assert set(real.clients["client"]) == {0, 1}
    assert real.clients["auc"].between(0, 1).all()


CHANGES = {"compression": {"k": 300, "strategy": "top-k"}}


def assert_changes_travelled(real, simulated):
    """Whole models first, and then as few bytes as simulated but for the messages'
    heads.
    """
    one, other = (run.participations["downlink_bytes"] for run in (real, simulated))
    assert other.min() < 0.1 * other.max()
    assert (one - other).between(1, 499).all()


def test_changes_of_the_model_travel_to_whom_has_the_rest(out):
    """Of a round that is undone none do; who was away for a round gets each of them."""
    plan = worlds.scenario(
        rounds=8,
        participation={"clients_per_round": 2},
        downlink=CHANGES,
        safeguard={"rollback": {"threshold": 1.0, "max_consecutive": 2}},
    )
    real = worlds.deployed(plan, out)
    simulated = worlds.assert_same_learning(real, plan)
    assert 0 < real.rounds["rolled_back"].sum() < 8
    assert_changes_travelled(real, simulated)


MODES = """
- [fedavg, {mode: deadline, deadline: 500 ms, late: merge}, 1.2]
- [fedavg, {mode: first, over_selection: 0.5, late: merge}, 0.5]
- [fedbuff, {mode: buffered, buffer: 2, concurrency: 3}, 0.5]
- [fedasync, {mode: asynchronous, concurrency: 2}, 0.5]
"""


@pytest.mark.long
@pytest.mark.parametrize(("method", "mode", "longest_s"), yaml.safe_load(MODES))
def test_changes_lead_to_the_servers_model_in_every_mode(
    out, monkeypatch, method, mode, longest_s
):
    """Whoever is slow has an older version than the others, and gets what it lacks."""
    sent, arrived = {}, []
    parts_of, arrival = ChangesDown.parts, ChangesHeld.arrived

    def parts(self, held, version, model, still):
        sent[version] = model["weights"].clone()
        return parts_of(self, held, version, model, still)

    def kept(self, said, parts, *, to_keep):
        message = arrival(self, said, parts, to_keep=to_keep)
        arrived.append((said, message["weights"].clone()))
        return message

    monkeypatch.setattr(ChangesDown, "parts", parts)
    monkeypatch.setattr(ChangesHeld, "arrived", kept)
    plain = {"rounds": 8, "aggregation": mode, "downlink": CHANGES}
    if mode["mode"] == "first":
        plain["participation"] = {"clients_per_round": 2}
    plan = worlds.scenario(method=method, **plain)
    slow = {"client_0": 0.1, "client_1": 0.15, "client_2": longest_s}
    real = worlds.deployed(plan, out, slow=slow)
    assert "failed" not in set(real.participations["outcome"])
    assert all(weights.equal(sent[said["version"]]) for said, weights in arrived)
    behind = {said["version"] - said["held"] for said, _ in arrived if said["changes"]}
    assert max(behind) > 1, "nobody lacked several changes"


@pytest.mark.long
@pytest.mark.parametrize(
    "method",
    ["fedavg", "scaffold", "fedopt", {"kind": "fedrep", "head_epochs": 1}],
    ids=str,
)
@pytest.mark.parametrize(
    "strategy",
    ["top-k", "random-k", {"chain": ["top-k", {"qsgd": {"levels": 4}}]}],
    ids=str,
)
def test_losses_are_measured_where_the_changes_lead(method, strategy):
    """Weights by which a policy's gain is measured travel as changes as well."""
    plan = worlds.scenario(
        method=method,
        rounds=5,
        participation={"clients_per_round": 2},
        compression={"k": 500, "strategies": ["top-k"]},
        policy={"kind": "ascend"},
        downlink={
            "compression": {"k": 300, "strategy": strategy, "index_code": "seeded"}
        },
    )
    real = worlds.deployed(plan)
    simulated = worlds.assert_same_learning(real, plan)
    assert real.participations["gain"].equals(simulated.participations["gain"])


CODECS = """
[dense, {qsgd: {levels: 4}}, {chain: [top-k, fp16]}, dgc, {ef21: {}},
 {powersgd: {rank: 2}}, adacomp, detached-ef]
"""


@pytest.mark.long
@pytest.mark.parametrize("strategy", yaml.safe_load(CODECS), ids=str)
def test_every_codec_travels_as_the_bytes_that_its_encoder_writes(strategy):
    assert_travels(strategy, "rice")


def assert_travels(strategy, index_code):
    plan = worlds.scenario(
        clients=[{"count": 3, "prototype": "small", "device": worlds.TIMES}],
        compression={"k": 500, "strategies": [strategy], "index_code": index_code},
        policy={"kind": "uniform", "strategy": codec_from_spec(strategy).label},
    )
    worlds.assert_same_learning(worlds.deployed(plan), plan)


def test_layers_by_codecs_of_low_rank_and_with_seeds_travel_together():
    layers = {"layers": {"*weight": "svd(1)", "*bias": "periodic-k@20%"}}
    assert_travels(layers, "seeded")


@pytest.mark.long
def test_bandit_is_paid_by_measured_seconds(out):
    policy = {"kind": "ascend", "warmup": 1, "reward": {"clip": [-1000, 1000]}}
    real = worlds.deployed(worlds.scenario(policy=policy, rounds=4), out)
    rows = real.participations
    tau_s = rows["training_s"] + rows["compression_s"] + rows["uplink_s"]
    assert np.allclose(rows["gain"] / tau_s, rows["reward_raw"], rtol=1e-9)
    assert (rows.groupby("client")["reward"].nunique() > 1).all()


def test_loss_that_was_measured_after_a_merge_is_not_measured_again(out, monkeypatch):
    asks, asked = OwnLosses.asks, set()

    def noting(self, order):
        asked.add((order.version, answer := asks(self, order)))
        return answer

    monkeypatch.setattr(OwnLosses, "asks", noting)
    policy = {"kind": "exp3", "mixing": 0.1}
    worlds.deployed(worlds.scenario(policy=policy, rounds=3), out)
    assert asked == {(0, True), (1, False), (2, False)}


def test_deadline_drops_who_is_late_and_the_next_round_has_it_again(out):
    plan = worlds.scenario(
        rounds=2, aggregation={"mode": "deadline", "deadline": "1.5 s", "late": "drop"}
    )
    real = deploy_without_client_2(plan, out)
    rows = real.participations
    assert set(rows[rows["client"] == 2]["outcome"]) == {"dropped"}
    assert set(rows[rows["client"] != 2]["outcome"]) == {"aggregated"}
    sent_bytes = rows[rows["round"] == 1]["downlink_bytes"]
    assert (sent_bytes > 0.99 * sent_bytes.max()).all()  # to client 2 as well
    assert (real.rounds["duration_s"] >= 1.5).all()
