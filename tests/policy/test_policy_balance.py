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
SECONDS = st.floats(1e-3, 10)


def play(policy, seconds_of, rest_s, rounds=60):
    """(K, seconds of the upload) after so many rounds on a link that takes
    `seconds_of(K)`.
    """
    for _ in range(rounds):
        pull = policy.pull(RNG)
        policy.watch(pull, Spent(0.0, rest_s, seconds_of(pull.k.amount), 0.0))
        policy.update(pull, 1.0)
    k = policy.pull(RNG).k.amount
    return k, seconds_of(k)


@given(share=st.floats(0.1, 2), rest_s=SECONDS, per_entry_s=st.floats(1e-6, 1e-3))
def test_an_upload_takes_its_share_of_the_rest_or_k_is_at_an_end(
    share, rest_s, per_entry_s
):
    policy = Balance(("top-k",), share=share, least=10, most=10_000)
    # at once: nothing disturbs
    k, _ = play(policy, lambda k: k * per_entry_s, rest_s, rounds=1)
    wanted = share * rest_s / per_entry_s
    assert k == pytest.approx(min(max(wanted, 10), 10_000), abs=0.51)


@given(latency_s=st.floats(0, 0.04))
def test_latency_counts_as_upload(latency_s):
    policy = Balance(("top-k",), share=0.5, least=1, most=100_000)
    _, upload_s = play(policy, lambda k: latency_s + 1e-5 * k, rest_s=0.1)
    assert upload_s == pytest.approx(0.05, rel=0.01)


def test_a_link_that_is_slower_to_answer_than_it_may_take_leaves_the_least():
    policy = Balance(("top-k",), share=0.5, least=7, most=1000)
    assert play(policy, lambda k: 0.2 + 1e-5 * k, rest_s=0.1)[0] == 7


def test_download_work_and_waiting_are_the_rest():
    policy = Balance(("top-k",), share=0.5, least=1, most=10**6)
    pull = policy.pull(RNG)
    policy.watch(pull, Spent(downlink_s=0.2, work_s=0.3, uplink_s=0.25, slack_s=1.5))
    assert policy.pull(RNG).k.amount == pytest.approx(4 * pull.k.amount, abs=2)


@given(
    needs=st.lists(st.tuples(SECONDS, st.floats(1e-5, 1e-2)), min_size=2, max_size=6),
    share=st.floats(0.1, 0.8),
)
def test_a_cohort_settles_where_uploads_take_a_share_of_the_longest_rest(needs, share):
    cohort = [
        Balance(("top-k",), share=share, least="0.0000001%", most="100%") for _ in needs
    ]
    longest_s = max(work_s for work_s, _ in needs)
    for _ in range(200):
        pulls = [policy.pull(RNG) for policy in cohort]
        uploads_s = [
            per_cent_s * pull.k.amount
            for pull, (_, per_cent_s) in zip(pulls, needs, strict=True)
        ]
        ends_s = [work_s + u for (work_s, _), u in zip(needs, uploads_s, strict=True)]
        for policy, pull, (work_s, _), u, end_s in zip(
            cohort, pulls, needs, uploads_s, ends_s, strict=True
        ):
            policy.watch(pull, Spent(0.0, work_s, u, max(ends_s) - end_s))
    round_s = max(ends_s)
    assert round_s <= (1 + share) * longest_s * 1.001
    for (_, per_cent_s), upload_s in zip(needs, uploads_s, strict=True):
        all_s = 100 * per_cent_s  # who can send everything in that time does
        assert upload_s == pytest.approx(
            min(all_s, share / (1 + share) * round_s), rel=0.01
        )


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
