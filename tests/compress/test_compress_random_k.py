"""Random-K draws every subset of K indices equally often."""

from itertools import combinations

import numpy as np
import pytest
from scipy.stats import chisquare

from simfed.compress import random_k_indices


@pytest.mark.parametrize(("d", "k"), [(6, 2), (6, 3), (6, 4), (6, 6)])
def test_all_subsets_are_equally_likely(d, k):
    # p-value of a right generator below 1e-4 once in 10,000 seeds; this seed is fixed
    rng = np.random.default_rng(1)
    subsets = list(combinations(range(d), k))
    counts = dict.fromkeys(subsets, 0)
    for _ in range(200 * len(subsets)):
        counts[tuple(random_k_indices(d, k, rng).tolist())] += 1
    assert len(subsets) == 1 or chisquare(list(counts.values())).pvalue > 1e-4


@pytest.mark.parametrize("k", [4, 30, 70])
def test_all_indices_are_equally_likely_when_sparse_dense_or_nearly_all(k):
    rng = np.random.default_rng(2)
    counts = np.zeros(100)
    for _ in range(4000):
        counts[random_k_indices(100, k, rng)] += 1
    # Without replacement the counts vary by 1 - k/d less than a multinomial's.
    expected = 4000 * k / 100
    statistic = ((counts - expected) ** 2).sum() / (expected * (1 - k / 100))
    assert 50 < statistic < 160  # chi-square with 99 degrees: 1e-4 on either side
