"""LinUCB against the formulas over the whole history, and what it is told by a run."""

from typing import ClassVar

import numpy as np
import pytest
import worlds

from simfed import InputError
from simfed.experiment import make_parts
from simfed.learn import plain_rounds
from simfed.policy import Context, LinUcb, build_policy
from simfed.policy.linucb import list_features

ARMS = ("top-k", "random-k", "dense")


def draw_context(rng, round):
    rate = None if rng.random() < 0.2 else 10 ** rng.uniform(3, 8)
    return Context(round, 50, rng.random(), rate)


def test_each_pull_is_that_of_the_formulas():
    rng, policy = np.random.default_rng(3), LinUcb(ARMS, alpha=0.7, ridge=0.5)
    paid = {arm: [] for arm in ARMS}
    for round in range(1, 51):
        context = draw_context(rng, round)
        x = list_features(context)
        indices, means = [], []
        for arm in ARMS:
            rows = np.array([row for row, _ in paid[arm]]).reshape(-1, 4)
            gram = rows.T @ rows + 0.5 * np.eye(4)
            theta = np.linalg.inv(gram) @ rows.T @ np.array([r for _, r in paid[arm]])
            means.append(theta @ x)
            indices.append(means[-1] + 0.7 * np.sqrt(x @ np.linalg.inv(gram) @ x))
        pull, at = policy.pull(rng, context), int(np.argmax(indices))
        choice = "exploit" if means[at] == max(means) else "explore"
        assert (str(pull.arm), pull.choice) == (ARMS[at], choice)
        share = rng.random()
        policy.update(pull, 2 * share - 1)
        paid[str(pull.arm)].append((x, share))
    assert all(paid.values())


def test_an_arm_whose_uploads_never_arrive_does_not_hold_the_client_up():
    policy, rng, played = LinUcb(ARMS), np.random.default_rng(0), []
    for round in range(1, 60):
        pull = policy.pull(rng, Context(round, 60))
        played.append(str(pull.arm))
        if pull.arm == "top-k":
            policy.void(pull)
        else:
            policy.update(pull, 0.5)
    assert 1 < played.count("top-k") < 20


def test_strategy_and_level_apart_both_know_the_context():
    arms = ("top-k@5", "top-k@50", "random-k@5", "random-k@50")
    policy = build_policy("linucb", arms, factored=True)
    context = Context(2, 9, 0.4, 1e5)
    pull = policy.pull(np.random.default_rng(0), context)
    assert [part.context for part in pull.parts] == [context] * 2
    policy.update(pull, 0.5)


class Listens(LinUcb):
    """Writes down with what it is asked."""

    learns = False
    heard: ClassVar[list] = []

    def pull(self, rng, context=None):
        self.heard.append(context)
        return super().pull(rng, context)


@pytest.fixture
def listening(add_part):
    add_part("policy", "listens", Listens)
    Listens.heard.clear()
    return Listens.heard


def load(clients):
    keys = {"compression.strategies": ["top-k"], "policy": {"kind": "listens"}}
    return worlds.world("tiny", keys, clients=clients, rounds=4)


@pytest.mark.parametrize("time_only", [False, True])
def test_a_policy_is_told_round_battery_and_the_last_rate(listening, time_only):
    battery = {"kind": "battery", "capacity_j": 200.0, "charge_w": 0.5, "work_w": 2.0}
    group = {"availability": {**battery, "charges_from": "00:00"}}
    made = load(worlds.groups(group))
    rows = worlds.play(made, time_only=time_only).participations
    assert [told.round for told in listening] == [1, 2, 3, 4]
    assert {told.rounds for told in listening} == {4}
    rates = (rows.uplink_bytes / rows.uplink_s).tolist()
    assert [told.rate for told in listening] == [None, *rates[:-1]]
    level = 200.0
    for told, row in zip(listening, rows.itertuples(), strict=True):
        assert told.battery == pytest.approx(level / 200.0)
        took_s = row.finished_at_s - row.started_at_s
        level = min(200.0, level + 0.5 * took_s) - 2.0 * took_s
    assert 0.2 < listening[-1].battery < 1


def test_without_a_clock_there_is_no_context(listening):
    made = load(worlds.TINY["clients"])
    parts = make_parts(made, "here")
    with pytest.raises(InputError, match="needs no time"):
        next(plain_rounds(made, None, parts.streams))
