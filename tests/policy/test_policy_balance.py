"""K set by the client's clock: where it settles, who fills whose time, and what it
ignores.
"""

import copy

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simfed.policy import Balance, Pull, Spent
from simfed.policy.interval import Interval

RNG = np.random.default_rng(0)


@given(
    share=st.floats(0.1, 2),
    rest_s=st.floats(1e-3, 10),
    per_entry_s=st.floats(1e-6, 1e-3),
)
def test_an_upload_takes_its_share_of_the_rest_or_k_is_at_an_end(
    share, rest_s, per_entry_s
):
    policy = Balance(("top-k",), share=share, least=10, most=10_000)
    pull = policy.pull(RNG)
    # download, work and waiting
    parts_s = 0.2 * rest_s, 0.5 * rest_s, pull.k.amount * per_entry_s, 0.3 * rest_s
    policy.watch(pull, Spent(*parts_s))
    wanted = share * rest_s / per_entry_s
    k = policy.pull(RNG).k.amount  # at once: nothing disturbs
    assert k == pytest.approx(min(max(wanted, 10), 10_000), abs=0.51)


def test_an_upload_without_any_duration_may_be_whole():
    policy = Balance(("top-k",), least="1%", most="50%")
    policy.watch(policy.pull(RNG), Spent(0.0, 0.1, 0.0, 0.0))
    assert policy.values() == (50.0,)


def test_shares_are_shares_of_each_model():
    pull = Balance(
        ("top-k", "random-k"), strategy="random-k", least="1%", most="4%"
    ).pull(RNG)
    assert (str(pull.arm), pull.k.plain, pull.choice) == ("random-k", "2%", "fixed")


def test_forced_and_foreign_pulls_change_nothing():
    policy = Balance(("top-k",), least=10, most=1000)
    before = copy.deepcopy(vars(policy))
    for pull in (Pull("top-k", "forced"), Pull("top-k", "fixed")):
        policy.watch(pull, Spent(0.0, 1.0, 1e-6, 0.0))
    assert vars(policy) == before


def test_an_interval_keeps_its_unit():
    share, number = Interval.of("top-k", "0.5%", "50%"), Interval.of("top-k", 5, 500)
    assert share.level(share.middle).plain == "5%"
    assert number.level(number.middle).plain == 50
    assert (number.clamp(3), number.clamp(70), number.clamp(800)) == (5, 70, 500)
