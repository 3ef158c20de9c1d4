"""Periodic-K: every coordinate exactly once per period before the fill-in.

And its hidden order.
"""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2_contingency, chisquare

from simfed.compress import PeriodicK
from simfed.compress.permutation import permute


def play(d, ks, seed=0):
    """[(indices, state before, state after)] of one client."""
    rng, state, plays = np.random.default_rng(seed), None, []
    for k in ks:
        made = PeriodicK().select(np.zeros(d), k, state=state, rng=rng)
        plays.append((made.indices, state, made.state))
        state = made.state
    return plays


@given(d=st.integers(1, 200), ks=st.lists(st.integers(1, 220), min_size=1, max_size=30))
def test_new_coordinates_first_then_all_that_are_left_and_visited_ones(d, ks):
    visited = set()
    for (indices, _, state), k in zip(play(d, ks), ks, strict=True):
        chosen = set(indices.tolist())
        assert len(indices) == len(chosen) == min(k, d)
        new = chosen - visited
        # a visited one only when no other is left
        assert len(new) == min(k, d, d - len(visited))
        visited |= chosen
        assert (state is None) == (len(visited) == d)
        if state is None:
            visited = set()


def test_the_next_period_has_another_order():
    plays = play(1000, [100] * 20)
    assert not np.array_equal(plays[0][0], plays[10][0])


def test_the_fill_in_is_uniform_over_the_visited():
    (visited, _, state), *_ = play(20, [15])
    counts = np.zeros(20)
    for seed in range(1000):
        rng = np.random.default_rng(seed)
        counts[PeriodicK().select(np.zeros(20), 10, state=state, rng=rng).indices] += 1
    assert (np.delete(counts, visited) == 1000).all()
    assert counts[visited].sum() == 5 * 1000
    assert chisquare(counts[visited]).pvalue > 1e-4


def test_undoing_a_play_visits_the_same_coordinates_again():
    first, second = play(50, [20, 20])
    again = PeriodicK().select(
        np.zeros(50), 20, state=second[1], rng=np.random.default_rng(99)
    )
    assert np.array_equal(again.indices, second[0])  # the order belongs to the period
    assert again.state == second[2]
    assert first[2] == second[1]


@pytest.mark.parametrize("d", [*range(1, 40), 99, 100, 101, 4096, 61_706])
def test_the_order_is_a_bijection(d):
    order = permute(np.arange(d), d, key=d)
    assert np.array_equal(np.sort(order), np.arange(d))


@pytest.mark.long
def test_the_order_of_the_largest_model_is_a_bijection():
    d = 11_173_962
    seen = np.zeros(d, bool)
    for start in range(0, d, 2**20):
        seen[permute(np.arange(start, min(d, start + 2**20)), d, 5)] = True
    assert seen.all()


@pytest.mark.parametrize("d", [3, 4])
def test_all_orders_of_few_are_equally_likely(d):
    counts = dict.fromkeys(permutations(range(d)), 0)
    for key in range(300 * len(counts)):
        counts[tuple(permute(np.arange(d), d, key).tolist())] += 1
    # tiny Feistel networks are uniform only nearly: every order within a third of its
    # share
    assert min(counts.values()) > 200
    assert max(counts.values()) < 400


def test_neighbouring_positions_go_to_independent_places():
    d, keys = 10_000, 3000
    places = np.array([permute(np.array([4321, 4322]), d, key) for key in range(keys)])
    table, _, _ = np.histogram2d(*places.T, bins=8, range=[[0, d], [0, d]])
    assert chisquare(table.sum(axis=0)).pvalue > 1e-4
    assert chisquare(table.sum(axis=1)).pvalue > 1e-4
    assert chi2_contingency(table).pvalue > 1e-4


def test_a_key_gives_the_order_that_it_gave_in_earlier_versions():
    """Runs that go on, and the two ends of a deployment, have to agree on it."""
    order = permute(np.arange(10), 10, 7).tolist()
    assert order == [6, 2, 0, 8, 3, 1, 5, 4, 9, 7]
