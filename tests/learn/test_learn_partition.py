"""Partitions: complete, disjoint, always ending, keyed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simfed.ground import Streams
from simfed.learn import deal

TEN_EACH = np.repeat(np.arange(10), 100)


@given(
    labels=st.lists(st.integers(0, 5), min_size=2, max_size=80),
    kind=st.sampled_from(["dirichlet", "iid", "shards", "quantity", "feature"]),
    alpha=st.floats(1e-320, 1e6),
    sigma=st.floats(0, allow_infinity=False),
    seed=st.integers(0, 2**63),
    data=st.data(),
)
def test_every_sample_has_exactly_one_owner_and_every_client_a_sample(
    labels, kind, alpha, sigma, seed, data
):
    public = data.draw(st.integers(0, len(labels) - 1), "public")
    clients = data.draw(st.integers(1, len(labels) - public), "clients")
    split = deal(
        np.array(labels),
        Streams(seed),
        clients=clients,
        public=public,
        kind=kind,
        alpha=alpha,
        shards_per_client=1,
        sigma=sigma,
    )
    parts = [split.public, *split.clients]
    assert sorted(np.concatenate(parts)) == list(range(len(labels)))
    assert len(split.public) == public
    assert len(split.clients) == clients
    assert all(part.dtype == np.int64 for part in parts)
    assert all((np.diff(part) > 0).all() for part in parts)
    assert min(map(len, split.clients)) >= 1


@pytest.mark.parametrize(
    ("clients", "public", "more"),
    [
        (900, 100, {"alpha": 0.05}),
        (1000, 0, {"kind": "shards", "shards_per_client": 1}),
        (100, 0, {"kind": "quantity", "sigma": 300.0}),
        (100, 0, {"kind": "quantity", "sigma": 1e308}),
    ],
)
def test_very_skewed_splits_end_and_leave_everyone_a_sample(clients, public, more):
    split = deal(TEN_EACH, Streams(0), clients=clients, public=public, **more)
    sizes = [len(part) for part in split.clients]
    assert (min(sizes), sum(sizes)) == (1, 1000 - public)
    if "sigma" in more:
        assert max(sizes) == 901


def test_dirichlet_shares_have_the_mean_and_variance_of_the_distribution():
    # a client's share of one class is Beta(α, (N−1)α): mean 1/N, variance
    # (1/N)(1−1/N)/(Nα+1)
    clients, alpha, labels = 4, 0.7, np.zeros(5000, int)
    splits = (
        deal(labels, Streams(seed), clients=clients, public=0, alpha=alpha)
        for seed in range(600)
    )
    shares = np.array([len(split.clients[0]) / 5000 for split in splits])
    variance = (1 / clients) * (1 - 1 / clients) / (clients * alpha + 1)
    # 99.9 %: z = 3.29 for the mean; the variance of a bounded share within 25 %
    assert abs(shares.mean() - 1 / clients) < 3.29 * np.sqrt(variance / 600)
    assert abs(shares.var() / variance - 1) < 0.25


def test_a_client_of_two_shards_sees_at_most_as_many_classes_as_borders_allow():
    split = deal(
        TEN_EACH, Streams(0), clients=50, public=0, kind="shards", shards_per_client=2
    )
    # 100 shards of 10 samples fit the classes of 100 exactly
    assert all(len(part) == 20 for part in split.clients)
    assert all(len(np.unique(TEN_EACH[part])) <= 2 for part in split.clients)


def test_the_split_is_keyed_by_the_seed_alone():
    a, b = (deal(TEN_EACH, Streams(5), clients=10, public=50) for _ in range(2))
    assert all(np.array_equal(x, y) for x, y in zip(a.clients, b.clients, strict=True))
    other = deal(TEN_EACH, Streams(6), clients=10, public=50)
    assert not np.array_equal(a.public, other.public)
    assert [len(p) for p in a.clients] != [len(p) for p in other.clients]
    # the public set depends neither on the clients nor on their split
    few = deal(TEN_EACH, Streams(5), clients=3, public=50, kind="iid")
    assert np.array_equal(a.public, few.public)


def test_the_public_set_is_drawn_from_all_samples_alike():
    drawn = np.zeros(1000)
    for seed in range(400):
        drawn[deal(TEN_EACH, Streams(seed), clients=1, public=100).public] += 1
    # each sample is drawn with probability 0.1: 40 ± 6 times in 400; all 1,000 within
    # ±5.5 sd
    assert drawn.sum() == 40_000
    assert abs(drawn - 40).max() < 5.5 * 6
