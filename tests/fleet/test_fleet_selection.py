"""Whom a server asks: rules in tiny worlds."""

import dataclasses
import math

import numpy as np
import pytest

from simfed.fleet import cohort
from simfed.fleet.selection import (
    All,
    BySamples,
    Facts,
    Fastest,
    Oort,
    Poisson,
    UniformSelection,
)
from simfed.ground import Streams


def facts(n, **columns):
    unknown = Facts.unknown(np.ones(n, np.int64))
    arrays = {name: np.asarray(values) for name, values in columns.items()}
    return dataclasses.replace(unknown, **arrays)


def choose(selection, ids, count, facts, round=1, seed=0):
    rng = Streams(seed)("selection", round)
    ids = np.asarray(ids)
    return selection.choose(ids, count, facts, round=round, rng=rng).tolist()


def test_all_and_uniform():
    nothing = facts(10)
    assert choose(All(), [2, 5, 7], 1, nothing) == [2, 5, 7]
    assert choose(UniformSelection(), [2, 5, 7], 3, nothing) == [2, 5, 7]
    for round in range(20):
        everybody = choose(UniformSelection(), range(10), 4, nothing, round)
        assert everybody == cohort(Streams(0), round, 10, 4).tolist()
        assert set(choose(UniformSelection(), [2, 5, 7], 2, nothing, round)) < {2, 5, 7}


def test_poisson_tosses_a_coin_per_client():
    """Rate 3 of 10: the mean and the variance of so many coins, and nobody's hangs on
    who is there.
    """
    seen, draws = facts(10), 4000
    sizes = [
        len(choose(Poisson(), range(10), 3, seen, seed=seed)) for seed in range(draws)
    ]
    assert abs(np.mean(sizes) - 3) < 4 * math.sqrt(2.1 / draws)
    assert abs(np.var(sizes) - 2.1) < 0.25
    assert min(sizes) == 0
    for seed in range(20):
        everybody = choose(Poisson(), range(10), 3, seen, seed=seed)
        few = choose(Poisson(), [2, 5, 7], 3, seen, seed=seed)
        assert few == [client for client in everybody if client in (2, 5, 7)]
    assert choose(Poisson(), range(10), 10, seen) == list(range(10))


def test_by_samples_asks_in_proportion():
    """One of three with 1, 3, 6 samples.

    Of two the pairs have their exact probabilities.
    """
    seen, n = facts(3, samples=[1, 3, 6]), 4000
    ones = [choose(BySamples(), range(3), 1, seen, seed=s)[0] for s in range(n)]
    pairs = [tuple(choose(BySamples(), range(3), 2, seen, seed=s)) for s in range(n)]
    pair = 0.1 * 3 / 9 + 0.3 * 1 / 7  # 0 then 1, or 1 then 0
    counts = [*(ones.count(client) for client in range(3)), pairs.count((0, 1))]
    for count, share in zip(counts, (0.1, 0.3, 0.6, pair), strict=True):
        assert abs(count / n - share) < 4.5 * math.sqrt(share * (1 - share) / n)


def test_fastest_asks_the_unknown_then_the_shortest():
    seen = facts(5, duration_s=[3.0, 1.0, np.nan, 2.0, 1.0])
    assert choose(Fastest(), range(5), 1, seen) == [2]
    assert choose(Fastest(), range(5), 2, seen) == [1, 2]
    assert choose(Fastest(), [0, 1, 3, 4], 2, seen) == [1, 4]
    assert choose(Fastest(), [0, 3, 4], 2, seen) == [3, 4]


@pytest.mark.parametrize("bound", [1, 3, None])
def test_fastest_lets_nobody_get_far_ahead(bound):
    picked = np.zeros(6, np.int64)
    for round in range(1, 200):
        seen = facts(6, duration_s=np.arange(6) + 1.0, picked=picked)
        picked[choose(Fastest(bound), range(6), 2, seen, round)] += 1
        assert not bound or picked.max() - picked.min() <= bound + 1
    if bound:
        assert picked.min() > 60
    else:
        assert picked.tolist() == [199, 199, 0, 0, 0, 0]


def test_oort_explores_and_then_asks_the_useful():
    n = 100
    # nobody is known: all are drawn
    assert len(choose(Oort(), range(n), 10, facts(n))) == 10
    asked = np.arange(n) < 50
    seen = facts(
        n,
        loss=np.where(asked, 1.0, np.nan),
        picked=asked.astype(int),
        last_round=asked.astype(int),
        duration_s=np.where(asked, 1.0, np.nan),
    )
    for round, share in ((1, 0.9), (500, 0.2)):
        chosen = choose(Oort(), range(n), 20, seen, round)
        assert sum(c >= 50 for c in chosen) == 20 * share
    # filled up with what there is
    assert len(choose(Oort(), range(45, n), 52, seen, 500)) == 52


def test_oort_weighs_loss_by_samples_and_punishes_the_slow():
    n, ones = 6, np.ones(6, int)
    seen = facts(
        n,
        samples=[10, 10, 10, 10, 10, 50],
        loss=[1.0, 2.0, 2.0, 1.0, 1.0, 1.0],
        duration_s=[1.0, 1.0, 4.0, 1.0, np.nan, 1.0],
        picked=ones,
        last_round=ones,
    )
    plain = Oort(clip=1.0)
    utility = [10, 20, 20 / 16, 10, 10, 50]
    assert plain.utility(np.arange(n), seen, 1).tolist() == utility
    assert choose(plain, range(n), 2, seen) == [1, 5]
    assert Oort(clip=0.0).utility(np.array([0, 5]), seen, 1).tolist() == [10, 10]
    seen = dataclasses.replace(seen, last_round=np.array([9, 9, 9, 1, 9, 9]))
    later = plain.utility(np.array([0, 3]), seen, 10)
    # who was not asked for long is more uncertain
    spread = 0.1 * math.log(10)
    assert later == pytest.approx(
        [10 + 10 * math.sqrt(spread / last) for last in (9, 1)]
    )
