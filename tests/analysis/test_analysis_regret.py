"""What other arms would have brought, measured in forks of a run that goes on
undisturbed.
"""

import itertools
import re

import changes_worlds as worlds
import pandas as pd
import pytest
from regret import RegretSample, regret_of, run_with_oracle

from simfed import InputError
from simfed.experiment import run
from simfed.policy import Pull

ARMS = ["top-k", "random-k", "dense"]


def scenario(policy="ascend", **changes):
    options = {
        "rounds": 5,
        "policy": {"kind": policy},
        "downlink": {},
        "server": {},
        "compression": {"k": 40, "strategies": ARMS, "index_code": "fixed"},
        "participation": {},
    }
    return worlds.scenario(**{**options, **changes})


HOSTED = {"kind": "fedprox", "mu": 0.1}
FEDKD = {
    "method": "fedkd",
    "dataset": {"name": "stripes", "public": 16},
    "safeguard": {"rollback": {"threshold": 1.0001}},
}


DOWN = {
    "downlink": {"compression": {"k": 60, "strategy": "periodic-k"}},
    "participation": {"clients_per_round": 2},
}


@pytest.mark.parametrize(
    ("changes", "least"),
    [({}, 12), ({"policy": "thompson", "method": HOSTED}, 12), (DOWN, 12), (FEDKD, 3)],
    ids=["fedavg", "hosted", "changes down", "undone rounds"],
)
def test_the_run_is_the_same_with_and_without_an_oracle(changes, least):
    made = scenario(**changes)
    alone = run(made, progress=False, workers=1)
    rounds = []
    watched, samples = run_with_oracle(
        made, every=2, progress=lambda round, *_: rounds.append(round)
    )
    assert rounds == [*range(1, made.rounds + 1)]
    assert watched.fingerprint == alone.fingerprint
    assert set(samples["round"]) <= {2, 4}
    assert len(samples) % len(ARMS) == 0
    assert len(samples) >= least


def test_what_was_played_is_paid_what_the_run_paid():
    made = scenario("exp3", method=HOSTED, rounds=3)
    result, samples = run_with_oracle(made, every=1, progress=False)
    at = ["round", "client"]
    played = samples[samples["played"]].set_index(at)
    assert len(played) == 3 * 2  # all but the first round
    columns = ["arm", "reward_raw", "reward"]
    paid = result.participations.set_index(at).loc[played.index, columns]
    pd.testing.assert_frame_equal(played[columns], paid, check_exact=True)
    assert set(samples.groupby(at)["arm"].nunique()) == {len(ARMS)}


def test_an_arm_that_was_not_played_is_paid_what_a_run_would_pay_that_plays_it(
    add_part,
):
    """Two clients on fixed arms, of which the oracle replaces one: against a run with
    that arm.
    """

    class Fixed:
        learns, draws = True, False

        def __init__(self, arms, reward_range, *, plan: str = "aaaa"):
            self.arms, self.plan = tuple(arms), iter(plan)

        def pull(self, rng):
            return Pull(self.arms["abc".index(next(self.plan))], "exploit")

        def update(self, pull, reward):
            pass

        def void(self, pull):
            pass

        def values(self):
            return (0.0,) * len(self.arms)

    add_part("policy", "by-plan", Fixed)

    def made(plans):
        groups = scenario(count=2).model_dump(mode="json")["clients"]
        for group, plan in zip(groups, plans, strict=True):
            group["policy"] = {"kind": "by-plan", "plan": plan}
        return scenario(rounds=3, clients=groups, policy="by-plan")

    _, samples = run_with_oracle(made(["aba", "bca"]), every=3, progress=False)
    assert set(samples["round"]) == {3}
    for client, letter in itertools.product((0, 1), "abc"):
        plans = ["aba", "bca"]
        plans[client] = plans[client][:2] + letter
        played = run(made(plans), progress=False, workers=1).participations
        row = played.query("round == 3 and client == @client").iloc[0]
        assert row["arm"] == ARMS["abc".index(letter)]
        mine = samples.query("client == @client and arm == @row.arm")
        assert mine["reward_raw"].tolist() == [row["reward_raw"]]


def test_regret_by_hand():
    rewards = {  # (round, client) → of arms a, b, c; what was played
        (2, 0): ((0.5, 0.1, 0.3), "b"),
        (2, 1): ((0.0, 0.2, 0.4), "c"),
        (4, 0): ((0.6, 0.0, 0.0), "a"),
    }
    rows = [
        RegretSample(*at, "p", arm, arm == played, "explore", reward, reward)
        for at, (of_arms, played) in rewards.items()
        for arm, reward in zip("abc", of_arms, strict=True)
    ]
    regret = regret_of(pd.DataFrame(rows))
    assert (regret.pulls, regret.rounds) == (3, 2)
    assert regret.best == pytest.approx(0.5)
    assert regret.low == 0  # two rounds leave an interval wider than the regret
    assert regret.played == pytest.approx(1.1 / 3)
    assert regret.regret == pytest.approx(0.4 / 3)
    assert regret.random == pytest.approx((0.2 + 0.2 + 0.4) / 3)
    assert (regret.fixed, regret.fixed_arm) == (pytest.approx(0.5 - 1.1 / 3), "a")
    assert regret.hits == pytest.approx(2 / 3)
    # rounds of mean 0.2 and 0: 12.7062 standard errors of 0.1
    assert regret.high - regret.regret == pytest.approx(1.27062, rel=1e-4)
    with pytest.raises(InputError):
        regret_of(pd.DataFrame(rows[:0]))


@pytest.mark.parametrize(
    ("changes", "every", "sentence"),
    [
        (
            {"mode": "buffered", "participation": {}},
            2,
            "aggregation.mode: got 'buffered', expected synchronous",
        ),
        (
            {"policy": {"kind": "uniform", "strategy": "top-k"}},
            2,
            "policy.kind: got 'uniform', expected a policy that learns",
        ),
        ({}, 0, "every: got 0, expected a whole number of at least 1"),
        (
            {"policy": {"kind": "adaptive-k"}},
            2,
            "policy.kind: got 'adaptive-k', expected a policy that chooses among arms",
        ),
    ],
)
def test_what_cannot_be_asked(changes, every, sentence):
    made = worlds.scenario(**{"policy": {"kind": "ucb"}, **changes})
    with pytest.raises(InputError, match=re.escape(sentence)):
        run_with_oracle(made, every=every, progress=False)


def test_all_pairs_are_played_where_two_bandits_choose_apart():
    pairs = {
        "strategies": ["top-k", "random-k"],
        "k_choices": [20, 60],
        "pairs": "factored",
        "index_code": "fixed",
    }
    made = scenario("ucb", compression=pairs, rounds=4)
    _, samples = run_with_oracle(made, every=2, progress=False)
    names = {"top-k@20", "top-k@60", "random-k@20", "random-k@60"}
    of_pull = samples.groupby(["round", "client"])
    for _, rows in of_pull:
        assert set(rows["arm"]) == names
        assert rows["played"].sum() == 1
    assert regret_of(samples).pulls == len(of_pull)


def test_arms_that_not_everybody_has():
    rows = [
        RegretSample(2, client, "p", arm, arm != "b", "exploit", reward, reward)
        for client, arm, reward in ((0, "a", 0.1), (0, "b", 0.4), (1, "c", 0.3))
    ]
    regret = regret_of(pd.DataFrame(rows))
    assert (regret.pulls, regret.fixed_arm) == (2, "")
    assert regret.regret == pytest.approx(0.15)
    assert regret.fixed != regret.fixed
