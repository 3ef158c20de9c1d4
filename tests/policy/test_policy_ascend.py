"""ASCEND against its formulas and an independent slow version."""

import math
from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from simfed.ground import Streams
from simfed.policy import Ascend, Pull

ARMS = ("top-k", "random-k", "periodic-k")


def played(policy, reward_of, rounds, seed=0):
    """[(pull, values before it)] of a client that is paid at once."""
    streams, story = Streams(seed), []
    for t in range(1, rounds + 1):
        values = policy.values()
        pull = policy.pull(streams("policy", 0, t))
        policy.update(pull, reward_of(pull.arm, t))
        story.append((pull, values))
    return story


def unpaid(arm, t):
    return 0.0


@given(warmup=st.integers(1, 8), arms=st.integers(1, 5), seed=st.integers(0, 1000))
def test_warm_up_plays_each_arm_exactly_h_times(warmup, arms, seed):
    names = [f"arm-{i}" for i in range(arms)]
    slots, policy = warmup * arms, Ascend(names, warmup=warmup)
    story = [pull for pull, _ in played(policy, unpaid, slots + 5, seed)]
    first = Counter((pull.arm, pull.choice) for pull in story[:slots])
    assert first == {(name, "warm-up"): warmup for name in names}
    assert "warm-up" not in {pull.choice for pull in story[slots:]}


def test_every_warm_up_order_is_equally_likely():
    orders = dict.fromkeys(set(permutations("aabb")), 0)
    for seed in range(200 * len(orders)):
        story = played(Ascend("ab", warmup=2), unpaid, 4, seed)
        orders[tuple(pull.arm for pull, _ in story)] += 1
    assert chisquare(list(orders.values())).pvalue > 1e-4


def test_the_probability_of_a_warm_up_pull_is_its_share_of_the_slots_left():
    (first, _), (second, _), _, (last, _) = played(Ascend("ab", warmup=2), unpaid, 4)
    assert first.probability == 1 / 2
    assert second.probability == (1 / 3 if second.arm == first.arm else 2 / 3)
    assert last.probability == 1.0


def test_exploitation_takes_the_best_and_the_lowest_of_equals():
    for rewards, best in (((0, 1, 0.5), 1), ((0.5, 0.2, 0.5), 0), ((0, 0.3, 0.3), 1)):
        policy = Ascend(ARMS, warmup=2, c=0)
        story = played(policy, lambda arm, t, paid=rewards: paid[ARMS.index(arm)], 7)
        assert story[-1][0] == Pull(ARMS[best], "exploit", 1.0)


def test_equal_sets_of_warm_up_rewards_tie_in_any_order():
    policy = Ascend("ab", warmup=3, c=0)
    for arm, rewards in (("b", [0.1, 0.2, 0.3]), ("a", [0.3, 0.1, 0.2])):
        for reward in rewards:
            policy.update(Pull(arm, "warm-up"), reward)
    assert policy.values()[0] == policy.values()[1]


def test_a_void_warm_up_pull_gives_its_slot_back():
    policy, streams = Ascend(ARMS, warmup=2), Streams(0)
    plays, choices = Counter(), []
    for t in range(1, 9):
        pull = policy.pull(streams("policy", 0, t))
        choices.append(pull.choice)
        if t == 3:
            policy.void(pull)
        else:
            policy.update(pull, 0.0)
            plays[pull.arm] += t < 8
    assert plays == dict.fromkeys(ARMS, 2)
    assert choices.index("explore") == 7


def test_a_late_warm_up_reward_joins_the_mean_or_the_running_average():
    policy, streams = Ascend("ab", warmup=2, ema=0.5, c=0), Streams(0)
    pulls = [policy.pull(streams("policy", 0, t)) for t in range(4)]
    late_a = next(pull for pull in pulls if pull.arm == "a")
    for pull in pulls:
        if pull is not late_a:
            policy.update(pull, 0.2 if pull.arm == "a" else 0.0)
    policy.update(late_a, 0.4)
    assert policy.values() == (pytest.approx(0.3), 0.0)
    policy.update(Pull("a", "exploit"), 0.5)
    policy.update(late_a, 0.0)
    assert policy.values()[0] == pytest.approx(0.2)


def test_an_arm_without_a_reward_is_not_exploited():
    policy = Ascend(ARMS, warmup=1, c=0)
    policy._slots_left = [0, 0, 0]
    policy.update(Pull("periodic-k", "exploit"), -0.9)
    assert policy.pull(np.random.default_rng(0)).arm == "periodic-k"
    assert policy.values()[2] == -0.9


def slow_values(history, h, ema):
    """Each arm's utility from the method's text alone: all history, recomputed."""
    values = []
    for arm in range(3):
        rewards = [reward for played, reward in history if played == arm]
        q = math.fsum(rewards[:h]) / h
        for reward in rewards[h:]:
            q = (1 - ema) * q + ema * reward
        values.append(q)
    return tuple(values)


def test_300_rounds_equal_the_slow_version():
    policy, streams = Ascend(ARMS, warmup=5, c=3, ema=0.1), Streams(3)
    history, chosen = [], set()
    for t in range(1, 301):
        pull = policy.pull(streams("policy", 0, t))
        arm = ARMS.index(pull.arm)
        if t > 15:
            values = policy.values()
            assert values == slow_values(history, 5, 0.1)
            rng = streams("policy", 0, t)  # the same draws, read independently
            epsilon, best = min(1, 3 / t**0.5), values.index(max(values))
            explores = rng.random() < epsilon
            drawn = int(rng.integers(3)) if explores else best
            assert (arm, pull.choice == "explore") == (drawn, explores)
            share = epsilon / 3 + (1 - epsilon) * (arm == best)
            assert pull.probability == pytest.approx(share, abs=1e-15)
            chosen.add((arm, pull.choice))
        reward = float(np.clip(streams("reward", t).normal(0.1 * arm, 0.5), -1, 1))
        policy.update(pull, reward)
        history.append((arm, reward))
    assert len(chosen) >= 5


def test_a_step_of_1_over_n_makes_the_utility_the_mean_of_all_rewards():
    rewards = [0.5, -1.0, 0.25, 0.75, 0.9, -0.3, 0.1]
    for initial in ("warm-up-mean", "ema-from-zero"):
        policy = Ascend(("only",), warmup=3, ema="1/n", initial=initial)
        for n, reward in enumerate(rewards, 1):
            policy.update(policy.pull(np.random.default_rng(0)), reward)
            assert policy.values() == pytest.approx((np.mean(rewards[:n]),))


def test_the_moving_average_from_zero_is_taken_through_the_warm_up():
    policy = Ascend(("only",), warmup=3, ema=0.25, initial="ema-from-zero")
    rewards = [0.5, -1.0, 0.25, 0.75]
    story = played(policy, lambda arm, t: rewards[t - 1], 4)
    assert story[0][1] == (0.0,)
    closed = sum(0.25 * 0.75 ** (3 - i) * reward for i, reward in enumerate(rewards))
    assert policy.values()[0] == pytest.approx(closed)


@pytest.mark.parametrize("count_forced", [False, True])
def test_forced_rounds_count_in_t_where_asked(count_forced):
    policy = Ascend(ARMS, warmup=1, count_forced=count_forced)
    for _ in range(97):
        policy.void(Pull("top-k", "forced"))
    played(policy, unpaid, 3)
    pull = policy.pull(np.random.default_rng(0))
    epsilon = min(1.0, 3 / math.sqrt(101 if count_forced else 4))
    best = 1 - epsilon if pull.choice == "exploit" or pull.arm == ARMS[0] else 0.0
    assert pull.probability == pytest.approx(epsilon / 3 + best)
