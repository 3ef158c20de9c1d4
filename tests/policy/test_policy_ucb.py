"""UCB1, D-UCB and SW-UCB, one class, against formulas over the whole history."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simfed.policy import Pull, Ucb

ARMS = ("top-k", "random-k", "periodic-k")
RNG = np.random.default_rng(0)
KINDS = {
    "ucb1": {},
    "d-ucb": {"exploration": 2.4, "discount": 0.9},
    "sw-ucb": {"exploration": 0.6, "window": 12},
}


def made(kind):
    return Ucb(ARMS, (0.0, 1.0), **KINDS[kind])


def indices(history, exploration=2.0, discount=1.0, window=0):
    """Each arm's mean and its padding, over the whole history."""
    recent = history[-window:]
    plays = [(discount**age, *play) for age, play in enumerate(reversed(recent))]
    counts = [sum(w for w, arm, _ in plays if arm == s) for s in ARMS]
    sums = [sum(w * r for w, arm, r in plays if arm == s) for s in ARMS]
    log_all = math.log(max(1.0, sum(counts)))
    return [
        s / n + math.sqrt(exploration * log_all / n) if n else math.inf
        for n, s in zip(counts, sums, strict=True)
    ]


@pytest.mark.parametrize("kind", KINDS)
@given(rewards=st.lists(st.tuples(*[st.floats(0, 1)] * 3), min_size=1, max_size=60))
def test_equals_the_formula_over_the_whole_history(kind, rewards):
    policy, history = made(kind), []
    for paid in rewards:
        expected = indices(history, **KINDS[kind])
        pull = policy.pull(RNG)
        at = ARMS.index(pull.arm)
        assert expected[at] >= max(expected) - 1e-9
        policy.update(pull, paid[at])
        history.append((pull.arm, paid[at]))


def test_it_exploits_the_arm_of_the_largest_mean():
    policy = Ucb(ARMS, (0.0, 1.0))
    for arm, reward in (("top-k", 0.1), ("random-k", 0.9), ("periodic-k", 0.2)):
        policy.update(Pull(arm, "explore"), reward)
    assert policy.pull(RNG) == Pull("random-k", "exploit", 1.0)
    assert policy.values() == pytest.approx((0.1, 0.9, 0.2))


def test_rewards_are_scaled_by_their_range_and_values_are_not():
    wide, unit = Ucb(ARMS, (-10.0, 10.0)), Ucb(ARMS, (0.0, 1.0))
    for t in range(200):
        pull, twin = wide.pull(RNG), unit.pull(RNG)
        assert pull == twin
        share = (0.2, 0.5, 0.7)[ARMS.index(pull.arm)] + 0.1 * (t % 3)
        wide.update(pull, 20 * share - 10)
        unit.update(twin, share)
    assert wide.values() == pytest.approx([20 * value - 10 for value in unit.values()])


@pytest.mark.parametrize("kind", KINDS)
def test_an_arm_whose_uploads_never_arrive_does_not_hold_the_client_up(kind):
    policy, arms = made(kind), []
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


@pytest.mark.parametrize("kind", KINDS)
def test_a_late_reward_counts_when_it_comes(kind):
    policy = made(kind)
    pulls = [policy.pull(RNG) for _ in range(3)]
    assert pulls == [Pull(arm, "explore", 1.0) for arm in ARMS]
    for pull in reversed(pulls):
        policy.update(pull, 0.5)
    assert policy.values() == pytest.approx((0.5, 0.5, 0.5))


def test_a_discount_forgets_and_a_window_forgets_for_good():
    for options, rewards, value in (
        ({"discount": 0.5}, (1.0, 0.0, 0.0, 0.0), 0.125 / 1.875),
        ({"window": 3}, (1.0, 0.0, 0.0, 0.0), 0.0),
        ({"discount": 0.5, "window": 2}, (1.0, 0.0, 1.0), 1 / 1.5),
    ):
        policy = Ucb(("a",), (0.0, 1.0), **options)
        for reward in rewards:
            policy.update(Pull("a", "explore"), reward)
        assert policy.values() == pytest.approx((value,))


def test_a_discount_of_next_to_nothing_is_a_memory_of_one_play():
    policy = Ucb(ARMS, (0.0, 1.0), discount=1e-300)
    for _ in range(50):
        pull = policy.pull(RNG)
        policy.update(pull, 0.5)
    assert not any(math.isinf(value) for value in policy.values())
