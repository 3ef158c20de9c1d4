"""UCB1, D-UCB and SW-UCB, one class, against formulas over the whole history."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simfed.policy import Pull, Ucb

ARMS = ("top-k", "random-k", "periodic-k")
RNG = np.random.default_rng(0)
UCBS = {
    "ucb1": lambda history: ucb1_indices(history),
    "d-ucb": lambda history: d_ucb_indices(history, 0.9, 0.6),
    "sw-ucb": lambda history: sw_ucb_indices(history, 12, 0.6),
}
MADE = {
    "ucb1": lambda: Ucb(ARMS, (0.0, 1.0)),
    "d-ucb": lambda: Ucb(ARMS, (0.0, 1.0), exploration=2.4, discount=0.9),
    "sw-ucb": lambda: Ucb(ARMS, (0.0, 1.0), exploration=0.6, window=12),
}


def indices(counts, sums, padding):
    return [
        s / n + padding(n) if n else math.inf for n, s in zip(counts, sums, strict=True)
    ]


def ucb1_indices(history):
    counts = [sum(1 for a, _ in history if a == arm) for arm in ARMS]
    sums = [sum(r for a, r in history if a == arm) for arm in ARMS]
    t = max(1, len(history))
    return indices(counts, sums, lambda n: math.sqrt(2 * math.log(t) / n))


def d_ucb_indices(history, discount, xi):
    weights = [discount ** (len(history) - 1 - i) for i in range(len(history))]
    counts = [
        sum(w for w, (a, _) in zip(weights, history, strict=True) if a == s)
        for s in ARMS
    ]
    sums = [
        sum(w * r for w, (a, r) in zip(weights, history, strict=True) if a == s)
        for s in ARMS
    ]
    everything = max(1.0, sum(counts))
    return indices(counts, sums, lambda n: 2 * math.sqrt(xi * math.log(everything) / n))


def sw_ucb_indices(history, window, xi):
    recent = history[-window:]
    counts = [sum(1 for a, _ in recent if a == arm) for arm in ARMS]
    sums = [sum(r for a, r in recent if a == arm) for arm in ARMS]
    return indices(
        counts, sums, lambda n: math.sqrt(xi * math.log(max(1, len(recent))) / n)
    )


@pytest.mark.parametrize("kind", UCBS)
@given(rewards=st.lists(st.tuples(*[st.floats(0, 1)] * 3), min_size=1, max_size=60))
def test_equals_the_formula_over_the_whole_history(kind, rewards):
    policy, history = MADE[kind](), []
    for paid in rewards:
        expected = UCBS[kind](history)
        pull = policy.pull(RNG)
        at = ARMS.index(pull.arm)
        assert expected[at] >= max(expected) - 1e-9
        reward = paid[at]
        policy.update(pull, reward)
        history.append((pull.arm, reward))


def test_it_exploits_the_arm_of_the_largest_mean():
    policy = Ucb(ARMS, (0.0, 1.0))
    for arm, reward in (("top-k", 0.1), ("random-k", 0.9), ("periodic-k", 0.2)):
        policy.update(Pull(arm, "explore"), reward)
    assert policy.pull(RNG) == Pull("random-k", "exploit", 1.0)
    assert policy.values() == pytest.approx((0.1, 0.9, 0.2))


def test_rewards_are_scaled_by_their_range_and_values_are_not():
    wide = Ucb(ARMS, (-10.0, 10.0))
    unit = Ucb(ARMS, (0.0, 1.0))
    for t in range(200):
        pull, twin = wide.pull(RNG), unit.pull(RNG)
        assert pull == twin
        share = (0.2, 0.5, 0.7)[ARMS.index(pull.arm)] + 0.1 * (t % 3)
        wide.update(pull, 20 * share - 10)
        unit.update(twin, share)
    assert wide.values() == pytest.approx([20 * value - 10 for value in unit.values()])


@pytest.mark.parametrize("kind", UCBS)
def test_an_arm_whose_uploads_never_arrive_does_not_hold_the_client_up(kind):
    policy, arms = MADE[kind](), []
    for _ in range(400):
        pull = policy.pull(RNG)
        arms.append(pull.arm)
        if pull.arm == "top-k":
            policy.void(pull)
        else:
            policy.update(pull, 0.8 if pull.arm == "random-k" else 0.3)
    assert math.isnan(policy.values()[0])
    # it is tried again, ever more rarely
    assert arms.count("random-k") > arms.count("top-k") >= 2


def test_nothing_is_stuck_where_no_upload_arrives_at_all():
    policy, arms = Ucb(ARMS), []
    for _ in range(30):
        pull = policy.pull(RNG)
        arms.append(pull.arm)
        policy.void(pull)
    assert {arms.count(arm) for arm in ARMS} == {10}


@pytest.mark.parametrize("kind", UCBS)
def test_a_late_reward_counts_when_it_comes(kind):
    policy = MADE[kind]()
    pulls = [policy.pull(RNG) for _ in range(3)]
    assert [(pull.arm, pull.choice) for pull in pulls] == [
        (arm, "explore") for arm in ARMS
    ]
    for pull in reversed(pulls):
        policy.update(pull, 0.5)
    assert policy.values() == pytest.approx((0.5, 0.5, 0.5))


def test_a_discount_forgets_and_a_window_forgets_for_good():
    discounted = Ucb(("a",), (0.0, 1.0), discount=0.5)
    windowed = Ucb(("a",), (0.0, 1.0), window=3)
    for reward in (1.0, 0.0, 0.0, 0.0):
        for policy in (discounted, windowed):
            policy.update(Pull("a", "explore"), reward)
    assert discounted.values()[0] == pytest.approx(0.125 / 1.875)
    assert windowed.values() == (0.0,)


def test_a_discount_of_next_to_nothing_is_a_memory_of_one_play():
    policy = Ucb(ARMS, (0.0, 1.0), discount=1e-300)
    for _ in range(50):
        pull = policy.pull(RNG)
        policy.update(pull, 0.5)
    assert not any(math.isinf(value) for value in policy.values())


def test_a_discount_and_a_window_hold_together():
    policy = Ucb(("a",), (0.0, 1.0), discount=0.5, window=2)
    for reward in (1.0, 0.0, 1.0):
        policy.update(Pull("a", "explore"), reward)
    assert policy.values() == (1 / 1.5,)
