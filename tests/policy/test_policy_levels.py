"""Strategy and level together: bandits over pairs, apart, and policies that set K
themselves.
"""

import copy
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from simfed.compress import Choice, list_choices
from simfed.ground.registry import registry
from simfed.policy import AdaptiveK, Ascend, Factored, Pull, build_policy

PAIRS = list_choices(["top-k", "random-k", "dense"], [10, 20])
LEARNERS = [
    name
    for name in registry("policy").names()
    if registry("policy").get(name).learns and name != "adaptive-k"
]


def paid(arm):
    """The best codec is random-k, the best level 20."""
    of_codec = {"top-k": 0.1, "random-k": 0.5, "dense": -0.5}[arm.strategy]
    return of_codec + (0.3 if str(arm.level) == "20" else 0.0)


def play(policy, plays, seed=0, wage=paid):
    pulls = []
    for t in range(plays):
        pull = policy.pull(np.random.default_rng([seed, t]))
        policy.update(pull, wage(pull.arm))
        pulls.append(pull)
    return pulls


@pytest.mark.parametrize("kind", LEARNERS)
@pytest.mark.parametrize("factored", [False, True])
def test_every_bandit_finds_the_best_pair(kind, factored):
    policy = build_policy(kind, PAIRS, factored=factored)
    last = Counter(pull.arm for pull in play(policy, 1500)[-300:])
    assert last.most_common(1)[0][0] == Choice("random-k", 20)


def test_apart_is_two_bandits_that_are_paid_the_same():
    def learner(arms):
        return Ascend(arms, warmup=2, c=1.0)

    policy = Factored(PAIRS, learner)
    codec = learner(tuple(map(Choice, ("top-k", "random-k", "dense"))))
    level = learner((Choice("", 10), Choice("", 20)))
    for t in range(60):
        pull, rng = policy.pull(np.random.default_rng(t)), np.random.default_rng(t)
        parts = [codec.pull(rng)]
        if parts[0].arm.strategy != "dense":
            parts.append(level.pull(rng))
        assert pull.arm.label == "".join(part.arm.label for part in parts)
        assert pull.probability == pytest.approx(
            math.prod(part.probability for part in parts)
        )
        for bandit, part in zip((policy, codec, level), (pull, *parts), strict=False):
            if t % 7 == 3:
                bandit.void(part)
            else:
                bandit.update(part, paid(pull.arm))
    assert " ".join(map(str, policy.arms)) == "top-k random-k dense @10 @20"
    assert policy.values() == (*codec.values(), *level.values())


def test_apart_a_forced_pull_teaches_nothing():
    policy, other = (
        Factored(PAIRS, lambda arms: Ascend(arms, warmup=1, count_forced=True))
        for _ in range(2)
    )
    play(policy, 10), play(other, 10)
    forced = Pull(Choice("top-k"), "forced")
    policy.update(forced, 1.0)
    policy.void(forced)
    assert policy.values() == other.values()
    assert policy._codec._pulls == other._codec._pulls + 1
    assert policy._level._pulls == other._level._pulls + 1


# ---- K that moves --------------------------------------------------------------------


class Textbook:
    """The rule in few lines, told the reward of any K at once."""

    def __init__(self, least, most, window, widen):
        self.least, self.most, self.window, self.widen = least, most, window, widen
        self.low, self.high, self.k = least, most, math.sqrt(least * most)
        self.m, self.before, self.seen = 0, 0, []

    def step(self, wage):
        delta = (self.high - self.low) / math.sqrt(2 * (self.m + 1))
        near = self.k - delta / 2
        if near < self.low:
            near += delta
        rising = np.sign(wage(near) - wage(self.k)) * np.sign(self.k - near)
        played = self.k, near
        self.k = min(max(self.k - delta * rising, self.low), self.high)
        self.m += 1
        self.seen.append(self.k)
        if len(self.seen) == self.window:
            low = max(min(self.seen) / self.widen, self.least)
            high = min(max(self.seen) * self.widen, self.most)
            pays = high - low <= (math.sqrt(2) - 1) * (self.high - self.low)
            if high - low > 1e-6 * high and pays and self.m >= self.before:
                self.low, self.high, self.before, self.m = low, high, self.m, 0
            self.seen = []
        return played


def hill(best):
    return lambda k: -((math.log(k / best)) ** 2) / 50


# an interval that shrinks to a point
@example(best=8.0, window=2, widen=1.0000000000000002)
@example(best=1.0, window=2, widen=1.0000000000000002)
@settings(max_examples=15, deadline=None)
@given(best=st.floats(0.3, 90), window=st.integers(2, 12), widen=st.floats(1.0, 2.0))
def test_k_moves_as_the_textbook_says(best, window, widen):
    options = {"least": "0.2%", "most": "100%", "window": window, "widen": widen}
    policy, book = AdaptiveK(("top-k",), **options), Textbook(0.2, 100, window, widen)
    wage = hill(best)
    for t in range(60):
        expected = book.step(wage)
        for choice, k in zip(("exploit", "explore"), expected, strict=True):
            pull = policy.pull(np.random.default_rng(t))
            assert (str(pull.arm), pull.choice) == ("top-k", choice)
            assert pull.k.amount == pytest.approx(k)
            policy.update(pull, wage(pull.k.amount))
        assert policy.values() == pytest.approx((book.k,))
        assert [policy._low, policy._high] == pytest.approx([book.low, book.high])


@pytest.mark.parametrize("best", [120, 900, 4000])
def test_k_comes_near_the_best_one(best):
    policy, wage = AdaptiveK(("top-k",), least=100, most=5000), hill(best)
    ks = []
    for t in range(800):
        pull = policy.pull(np.random.default_rng(t))
        ks.append(pull.k.amount)
        policy.update(pull, wage(pull.k.amount))
    assert all(isinstance(k, int) and 1 <= k <= 2 * 5000 for k in ks)
    assert np.median(ks[-200:]) == pytest.approx(best, rel=0.35)


def test_a_lost_pull_is_played_again_and_late_ones_are_forgotten():
    policy, rng = AdaptiveK(("top-k",), least=10, most=11), np.random.default_rng(0)
    first = policy.pull(rng)
    policy.void(first)
    assert policy.pull(rng) == first
    policy.update(first, 0.1)
    second = policy.pull(rng)
    # an entry apart, however near the ends
    assert (first.k.plain, second.k.plain) == (10, 11)
    policy.update(second, 0.2)
    state = copy.deepcopy(vars(policy))
    policy.update(second, -1.0)  # of a point that K has left
    assert vars(policy) == state
    policy.update(Pull(Choice("top-k"), "forced"), 1.0)
    assert vars(policy) == state
