"""EXP3-IX and EXP3.S against their formulas."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simfed.ground.errors import InputError
from simfed.policy import Exp3, Exp3Ix, Exp3S, Pull

ARMS = ("top-k", "random-k", "periodic-k")
pays = st.lists(st.tuples(st.sampled_from(ARMS), st.floats(0, 1)), max_size=60)


@given(pays=pays, rate=st.none() | st.floats(0.001, 2))
def test_ix_equals_the_loss_estimates_written_out(pays, rate):
    policy = Exp3Ix(ARMS, (0.0, 1.0), rate=rate)
    losses = dict.fromkeys(ARMS, 0.0)
    for t, (arm, reward) in enumerate(pays, start=1):
        eta = rate if rate is not None else math.sqrt(math.log(3) / (3 * t))
        weights = {s: math.exp(-eta * losses[s]) for s in ARMS}
        p = {s: weights[s] / sum(weights.values()) for s in ARMS}
        assert policy.values() == pytest.approx(tuple(p.values()), rel=1e-9, abs=1e-300)
        policy.update(Pull(arm, "explore", p[arm]), reward)
        losses[arm] += (1 - reward) / (p[arm] + eta / 2)


def test_an_estimate_of_ix_never_exceeds_its_bound_however_rare_the_pull():
    """Which is what keeps its regret small with high probability: 1/(η/2) at most."""
    policy = Exp3Ix(ARMS, (0.0, 1.0), rate=0.1)
    policy.update(Pull("top-k", "explore", 1e-12), 0.0)
    assert policy.state()["losses"][0] == pytest.approx(2 / 0.1)


@given(pays=pays, share=st.floats(0, 0.5))
def test_s_equals_the_weights_written_out(pays, share):
    policy = Exp3S(ARMS, (0.0, 1.0), mixing=0.1, share=share)
    weights = dict.fromkeys(ARMS, 1.0)
    for arm, reward in pays:
        total = sum(weights.values())
        p = {s: 0.9 * weights[s] / total + 0.1 / 3 for s in ARMS}
        assert policy.values() == pytest.approx(tuple(p.values()), rel=1e-9)
        policy.update(Pull(arm, "explore", p[arm]), reward)
        weights[arm] *= math.exp(0.1 * reward / p[arm] / 3)
        weights = {s: w + math.e * share / 3 * total for s, w in weights.items()}


def test_without_shares_s_is_exp3():
    plain, shared = Exp3(ARMS), Exp3S(ARMS, share=0.0)
    rng = np.random.default_rng(0)
    for _ in range(100):
        arm, reward = ARMS[rng.integers(3)], rng.uniform(-1, 1)
        for policy in (plain, shared):
            policy.update(Pull(arm, "explore", 0.4), reward)
    assert plain.values() == shared.values()


def test_s_never_gives_an_arm_up():
    """After any number of plays an arm is back in a time that hangs on the share, not on the
    past."""
    plain, shared = Exp3(ARMS), Exp3S(ARMS, share=0.01)
    for policy in (plain, shared):
        for _ in range(5000):
            policy.update(Pull("top-k", "explore", policy.values()[0]), 1.0)
        for _ in range(20):
            policy.update(Pull("random-k", "explore", policy.values()[1]), 1.0)
    assert plain.values()[1] < 0.05
    assert shared.values()[1] > 0.4


@pytest.mark.parametrize("cls", [Exp3Ix, Exp3S])
def test_forced_and_void_pulls_change_nothing(cls):
    policy = cls(ARMS)
    before = policy.state()
    policy.update(Pull("top-k", "forced"), 1.0)
    policy.void(Pull("top-k", "forced"))
    policy.void(Pull("top-k", "explore", 0.3))
    assert policy.state() == before


@pytest.mark.parametrize("cls", [Exp3Ix, Exp3S])
def test_numbers_stay_numbers_in_a_long_run(cls):
    policy = cls(ARMS)
    for _ in range(5_000):
        policy.update(Pull("top-k", "explore", policy.values()[0]), 1.0)
        policy.update(Pull("random-k", "explore", policy.values()[1]), -1.0)
    assert math.fsum(policy.values()) == pytest.approx(1)
    assert min(policy.values()) > 0


@pytest.mark.parametrize(
    ("cls", "options", "sentence"),
    [
        (Exp3Ix, {"rate": 0}, "rate: got 0, expected a number above 0, or null"),
        (Exp3Ix, {"rate": math.inf}, "rate: got inf, expected a number above 0, or null"),
        (Exp3S, {"share": -0.1}, "share: got -0.1, expected a number from 0 to 1"),
        (Exp3S, {"mixing": 1.1}, "mixing: got 1.1, expected a number from 0 to 1"),
        (Exp3, {"mixing": math.nan}, "mixing: got nan, expected a number from 0 to 1"),
    ],
)
def test_options_out_of_range_are_named(cls, options, sentence):
    with pytest.raises(InputError) as refused:
        cls(ARMS, **options)
    assert str(refused.value) == sentence
