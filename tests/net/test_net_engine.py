"""Sharing and time in tiny worlds; every number can be worked out on paper."""

from __future__ import annotations

from itertools import pairwise
from math import inf

import numpy as np
import pytest

from simfed import BrokenInvariant
from simfed.net import max_min, why_not_max_min
from simfed.net.engine import Engine
from simfed.net.flows import Flow
from simfed.net.maxmin import OWN_CAP
from simfed.net.meter import Meter, Use


def play(engine, *flows):
    """How long each flow took that starts at an instant, after playing to the end."""
    for flow, at_s in flows:
        engine.start(flow, at_s=at_s)
    engine.advance(inf)
    return [flow.spent_s for flow, _ in flows]


def test_a_lone_flow_takes_latency_plus_size_over_capacity_to_the_last_digit():
    flow = Flow(0, 1234.5, (0,), latency_s=0.1)
    # a late start must not coarsen the duration
    assert play(Engine([7.0]), (flow, 1e7)) == [0.1 + 1234.5 / 7.0]


def test_a_flow_that_ends_when_another_starts_did_not_share_with_it():
    a, b = Flow(0, 8.0, (0,)), Flow(1, 8.0, (0,))
    assert play(Engine([4.0]), (a, 0.0), (b, 2.0)) == [2.0, 2.0]


def test_a_link_shared_later_starts_to_share_and_says_who_limited_whom():
    a, b = Flow(0, 12.0, (0,)), Flow(1, 4.0, (0, 1))
    # a alone for 1 s (4), then 2.5 against b's 1.5 until b ends after 4/1.5 s, then 4
    a_s = 1 + 8 / 3 + (8 - 2.5 * 8 / 3) / 4
    took_s = play(Engine([4.0, 1.5]), (a, 0.0), (b, 1.0))
    assert took_s == pytest.approx([a_s, 8 / 3])
    assert a.dwelt_s == {0: pytest.approx(a_s)}
    assert b.dwelt_s == {1: pytest.approx(8 / 3)}


def test_an_own_cap_is_no_link():
    flow = Flow(0, 4.0, (0,), cap_bytes_per_s=1.0)
    play(Engine([4.0]), (flow, 0.0))
    assert flow.dwelt_s == {OWN_CAP: 4.0}


def test_nothing_is_lost_when_a_busy_link_turns_its_clock_back():
    """A long queue on one link: stale heap entries are dropped and its clock set back
    many times.
    """
    uses: list[Use] = []
    engine = Engine([10.0], meter=Meter(uses.append))
    rng = np.random.default_rng(0)
    sizes = rng.exponential(9.0, 2000).tolist()
    starts_s = np.cumsum(rng.exponential(1.0, 2000)).tolist()
    flows = [Flow(k, size, (0,)) for k, size in enumerate(sizes)]
    play(engine, *zip(flows, starts_s, strict=True))
    assert sum(use[3] for use in uses) == pytest.approx(sum(sizes), rel=1e-12)
    busy = sum(to_s - from_s for _, from_s, to_s, *_ in uses)
    # it works at full rate whenever it works
    assert busy == pytest.approx(sum(sizes) / 10.0, rel=1e-12)
    assert all(before[2] <= after[1] for before, after in pairwise(uses))


def test_a_link_that_never_limits_keeps_no_memory_of_the_flows_it_saw():
    engine = Engine([1e9, *[1.0] * 3000])
    for k in range(3000):  # ten at a time
        engine.start(Flow(k, 5.0, (0, k + 1)), 0.5 * k)
    engine.advance(1499.0)
    link = engine.sharing.shared[0]
    assert len(link.flows) == 10
    for heap in (link.by_limit, link.ends, link.by_cap, link.guards):
        assert len(heap) < 100


def test_a_use_record_ends_where_the_capacity_changes():
    uses: list[Use] = []
    engine = Engine([4.0], meter=Meter(uses.append))
    engine.start(Flow(0, 8.0, (0,)))
    engine.advance(1.0)
    engine.change_capacity(0, 2.0)
    engine.advance(inf)
    assert [use[:6] for use in uses] == [
        (0, 0.0, 1.0, 4.0, 4.0, 1),
        (0, 1.0, 3.0, 4.0, 2.0, 1),
    ]


def test_a_link_that_would_carry_too_much_is_a_broken_invariant():
    engine = Engine([4.0])
    for k in range(2):
        engine.start(Flow(k, 9.0, (0,), cap_bytes_per_s=1.0))
    engine.advance(0.0)
    link = engine.sharing.shared[0]
    link.load.add(1e3)  # as a bug would
    link.by_limit.clear()
    with pytest.raises(BrokenInvariant, match="above its capacity of 4"):
        engine.change_capacity(0, 4.0)


def test_progressive_filling_with_weights_and_caps():
    caps = [inf, inf, 1.5, 7]
    paths = [[0], [0], [0], []]
    filled = max_min([12.0], paths, weights=[1, 2, 1, 1], caps_bytes_per_s=caps)
    assert filled.rates_bytes_per_s == [3.5, 7.0, 1.5, 7]
    assert filled.bottlenecks == [0, 0, OWN_CAP, OWN_CAP]


@pytest.mark.parametrize(
    ("rates", "sentence"),
    [
        ([2.0, 2.0, 2.0], None),
        ([2.0, 2.0, 3.0], "link 0 carries 7.0 of 6.0 bytes/s"),
        (
            [1.5, 2.0, 2.0],
            "flow 0 is neither at its cap nor the fastest on a full link",
        ),
        ([3.0, 1.5, 1.5], "flow 0 runs at 3.0 bytes/s above its cap of 2.5"),
    ],
)
def test_the_certificate_finds_what_is_unfair(rates, sentence):
    caps = [2.5, inf, inf]
    said = why_not_max_min([6.0], [[0]] * 3, rates, caps_bytes_per_s=caps)
    assert said == sentence


def test_flows_on_long_paths_get_what_flows_on_short_ones_would(monkeypatch):
    """On long paths a flow that is met on many links is looked at once, on short ones
    at each link.
    """

    def took_s(longest):
        monkeypatch.setattr("simfed.net.sharing._LONG_PATH", longest)
        rng = np.random.default_rng(7)
        engine = Engine(rng.integers(1, 9, 40).astype(float))
        paths = rng.integers(1, 20, (60, 2)).tolist()
        sizes, starts_s = rng.exponential(40.0, 60), rng.uniform(0, 60, 60)
        flows = [
            Flow(k, size, tuple(range(a, a + n)), weight=1.0 + k % 3)
            for k, ((a, n), size) in enumerate(zip(paths, sizes.tolist(), strict=True))
        ]
        return play(engine, *zip(flows, starts_s.tolist(), strict=True))

    assert took_s(64) == pytest.approx(took_s(0), rel=1e-9)


def test_an_instant_that_is_no_number_is_an_error_and_no_endless_loop():
    with pytest.raises(BrokenInvariant, match="is at nan s"):
        Engine([10.0]).start(Flow(0, 60.0, (0,)), at_s=float("nan"))
