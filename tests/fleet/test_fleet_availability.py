"""Who is there when: tiny worlds, one truth however it is asked, closed forms at a
stated confidence.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simfed import InputError
from simfed.fleet import Availability, Daily, Fleet, Markov
from simfed.fleet.availability import Always, Intervals, PresenceTrace
from simfed.ground import Streams
from simfed.scenario import validate_scenario

H = 3600.0


def intervals(*rows):
    ids, starts, ends = zip(*rows, strict=True)
    return Intervals.of(np.array(ids), np.array(starts, float), np.array(ends, float))


RECORD = intervals((4, 5, 8), (0, 0, 3), (0, 6, 10), (4, 8, 9), (7, 2, 4))
"""Device 0: 0–3 and 6–10; 4: 5–9, in two rows that touch; 7: 2–4."""


def presences():
    """(presence, how many clients) of every kind."""
    zones = np.array([0.0, 8 * H, -5 * H])
    return [
        (Always(3), 3),
        (Daily(22 * H, 6 * H, zones), 3),
        (Daily(9.1 * H, 9.2 * H, zones), 3),
        (
            Markov(
                Streams(1),
                np.array([3, 4, 900_000]),
                700.0,
                np.array([500.0, 3000.0, 1e5]),
            ),
            3,
        ),
        (PresenceTrace(RECORD, np.array([0, 1, 2, 0, -1])), 5),
        (PresenceTrace(RECORD, np.array([0, 1, 2, 0, -1]), period_s=10.0), 5),
        (PresenceTrace(RECORD, np.array([0, 1]), period_s=12.34), 2),
        (PresenceTrace(intervals((0, 0, 7)), np.array([0]), period_s=7.0), 1),
    ]


@given(
    st.integers(0, 7), st.lists(st.floats(0, 1e4), min_size=1, max_size=3), st.data()
)
def test_all_answers_are_one_truth(which, instants, data):
    """Masks in any order of instants, single clients, and walks from change to change
    agree.
    """
    presence, count = presences()[which]
    fresh, _ = presences()[which]
    for at_s in instants:
        at_s *= 1 if which == 3 else 30  # several days, where that costs nothing
        mask = presence.mask(at_s)
        place = data.draw(st.integers(0, count - 1))
        assert mask[place] == presence.there(place, at_s) == fresh.there(place, at_s)
        change_s = presence.change_after(place, at_s)
        assert change_s > at_s
        assert change_s == fresh.change_after(place, at_s)
        if change_s == math.inf:
            assert presence.there(place, at_s + 1e7) == mask[place]
            continue
        before_s = np.nextafter(change_s, 0)
        assert presence.there(place, before_s) == mask[place]
        assert presence.there(place, change_s) != mask[place]
        assert presence.mask(change_s)[place] != mask[place]


@given(st.integers(1, 7), st.floats(0, 1e4))
def test_an_arrival_is_the_first_instant_at_which_somebody_comes(which, at_s):
    presence, count = presences()[which]
    comes_s = []
    for place in range(count):
        next_s = presence.change_after(place, at_s)
        if presence.there(place, at_s) and next_s < math.inf:
            next_s = presence.change_after(place, next_s)
        elif presence.there(place, at_s):
            next_s = math.inf
        comes_s.append(next_s)
    assert presence.arrival_after(at_s) == min(comes_s)


def test_a_trace_once_and_again():
    once = PresenceTrace(RECORD, np.array([0, 1, 2, -1]))
    assert [once.mask(t).tolist() for t in (0, 3, 4, 8, 9, 10)] == [
        [True, False, False, False],
        [False, False, True, False],
        [False, False, False, False],
        [True, True, False, False],
        [True, False, False, False],
        [False, False, False, False],
    ]
    assert [once.change_after(1, t) for t in (0, 5, 8, 9)] == [5, 9, 9, math.inf]
    assert once.change_after(3, 0.0) == math.inf
    assert [once.arrival_after(t) for t in (0, 2, 5, 6)] == [2, 5, 6, math.inf]
    again = PresenceTrace(RECORD, np.array([0, 1]), period_s=10.0)
    assert again.mask(16).tolist() == [True, True]
    assert again.change_after(0, 7.0) == 13.0, (
        "there until the record's end and from its beginning"
    )
    assert again.arrival_after(6.0) == 15.0


def test_changes_at_the_end_of_a_turn_are_where_the_next_one_begins():
    """12.34 + n · 12.34 is not (n + 1) · 12.34 in floating point, and no client may
    fall in between.
    """
    again = PresenceTrace(RECORD, np.array([0, 1]), period_s=12.34)
    at_s = 0.0
    for _ in range(2000):
        before = again.there(0, at_s)
        at_s = again.change_after(0, at_s)
        assert again.there(0, at_s) != before


def test_a_night_in_two_time_zones():
    night = Daily(22 * H, 6 * H, np.array([0.0, 8 * H]))
    assert [night.mask(h * H).tolist() for h in (0, 6, 13.9, 14, 21.9, 22)] == [
        [True, False],
        [False, False],
        [False, False],
        [False, True],
        [False, True],
        [True, False],
    ]
    assert night.change_after(0, 0.0) == 6 * H
    assert night.change_after(0, 6 * H) == 22 * H
    assert night.arrival_after(14 * H) == 22 * H
    assert night.arrival_after(22 * H) == (24 + 14) * H


def test_markov_clients_do_not_hang_on_each_other():
    few = Markov(Streams(0), np.array([5]), 10.0, 30.0)
    many = Markov(Streams(0), np.arange(100), 10.0, 30.0)
    at_s = 0.0
    for _ in range(20):
        many.mask(at_s)
        assert few.there(0, at_s) == many.there(5, at_s)
        assert few.change_after(0, at_s) == many.change_after(5, at_s)
        at_s = few.change_after(0, at_s)


def test_who_is_there_first_is_pinned():
    """A change here changes runs that anybody has recorded."""
    there = Markov(Streams(0), np.arange(10), 10.0, 30.0).mask(0.0)
    assert np.flatnonzero(there).tolist() == [4, 5, 6, 9]


def test_markov_presence_is_stationary_from_the_beginning():
    """Share there = on/(on + off) at 0 and later, at 4.5 standard errors of independent
    clients.
    """
    n, on_s, off_s = 40_000, 2 * H, 6 * H
    fleet = Markov(Streams(0), np.arange(n), on_s, off_s)
    share = on_s / (on_s + off_s)
    bound = 4.5 * math.sqrt(share * (1 - share) / n)
    masks = [fleet.mask(t) for t in (0.0, 1800.0, 1e5)]
    for mask in masks:
        assert abs(mask.mean() - share) < bound
    # a client that is there now is there t later with share + (1 − share)·exp(−t/on −
    # t/off)
    stays = share + (1 - share) * math.exp(-1800 / on_s - 1800 / off_s)
    clients = masks[0].sum()
    assert abs(masks[1][masks[0]].mean() - stays) < 4.5 * math.sqrt(
        stays * (1 - stays) / clients
    )


def test_a_fleet_asks_each_client_where_it_belongs():
    fleet = Availability(
        [
            (np.array([0, 2]), Always(2)),
            (np.array([1, 4]), PresenceTrace(RECORD, np.array([0, 1]))),
            (np.array([3]), Daily(6 * H, 12 * H, np.array([0.0]))),
        ]
    )
    assert fleet.mask(7.0).tolist() == [True, True, True, False, True]
    assert [fleet.there(c, 9.5) for c in range(5)] == [True, True, True, False, False]
    assert [fleet.change_after(c, 9.5) for c in (3, 4)] == [6 * H, math.inf]
    assert fleet.change_after(0, 0.0) == math.inf
    assert fleet.arrival_after(6.0) == 6 * H
    assert not fleet.always
    idle = Availability([(np.arange(5), Always(5))])
    assert idle.always
    assert idle.mask(3.0).all()
    assert idle.arrival_after(0.0) == math.inf


def scenario(folder, *groups):
    data = {
        "name": "n",
        "rounds": 2,
        "dataset": {"name": "mnist-mini"},
        "prototypes": {"p": {"model": "lenet5-half"}},
        "clients": [
            {"prototype": "p", "device": "x86-2core-vm", "link": {}, **g}
            for g in groups
        ],
        "policy": {"kind": "uniform", "strategy": "top-k"},
    }
    return validate_scenario(data, source="s", folder=folder)


def test_a_scenario_says_who_is_there(tmp_path):
    (tmp_path / "t.csv").write_text("client,from_s,to_s\n3,10,20\n4,15,30\n")
    daily = {"from": "22:00", "to": "06:00", "zones": [0, 8]}
    made = scenario(
        tmp_path,
        {"count": 3},
        {"count": 2, "availability": {"trace": "t.csv", "period": "40 s"}},
        {"count": 300, "availability": {"daily": daily}},
        {"count": 300, "availability": {"markov": {"on": "2 h", "off": "8 h"}}},
        {"count": 40, "availability": {"trace": "t.csv", "devices": "drawn"}},
        {
            "availability": {
                "markov": {"on": {"choice": {"values": ["1 h"]}}, "off": "1 s"}
            }
        },
    )
    fleet = Fleet(made, Streams(0)).availability()
    assert fleet.mask(12.0)[:5].tolist() == [True, True, True, True, False]
    assert fleet.change_after(3, 20.0) == 50.0
    shares = [fleet.mask(h * H)[5:305].mean() for h in (0, 14, 10)]
    # each client in one of the two zones, asleep in one of them
    assert shares[0] + shares[1] == 1
    assert 0.3 < shares[0] < 0.7
    assert shares[2] == 0
    assert 0.1 < fleet.mask(0.0)[305:605].mean() < 0.3
    assert fleet.mask(12.0)[605:645].any()
    assert not fleet.mask(12.0)[605:645].all()
    assert fleet.mask(17.0)[605:645].all()


@pytest.mark.parametrize(
    ("trace", "sentence"),
    [
        ({"trace": "none.csv"}, "none.csv: no such file"),
        (
            {"trace": "t.csv"},
            "got 3, expected clients of this scenario, 0 to 1 (`devices: drawn`",
        ),
        (
            {"trace": "u.csv"},
            "there are none, expected intervals of some client of the group",
        ),
        (
            {"trace": "u.csv", "devices": "drawn", "period": "5 s"},
            "period: got '5 s', expected a period of at least the trace's 20 s",
        ),
    ],
)
def test_a_trace_that_does_not_fit_is_one_sentence(tmp_path, trace, sentence):
    (tmp_path / "t.csv").write_text("client,from_s,to_s\n3,10,20\n")
    (tmp_path / "u.csv").write_text("client,from_s,to_s\n0,10,20\n")
    made = scenario(tmp_path, {}, {"availability": trace})
    with pytest.raises(InputError) as refused:
        Fleet(made, Streams(0)).availability()
    assert str(refused.value).startswith("clients[1].availability.trace: ")
    assert sentence in str(refused.value)


def test_a_server_asks_in_its_own_words(tmp_path):
    (tmp_path / "t.csv").write_text("client,from_s,to_s\n2,10,20\n")
    made = scenario(
        tmp_path,
        {"count": 2, "failure": {"upload": 0.25}},
        {"availability": {"trace": "t.csv"}},
    )
    presence = Fleet(made, Streams(0)).presence()
    assert presence.available(5.0).tolist() == [0, 1]
    failures = [presence.failure(c, p) for c in (0, 2) for p in ("upload", "training")]
    assert failures == [0.25, 0.0, 0.0, 0.0]
    assert Fleet(scenario(tmp_path, {"count": 2}), Streams(0)).presence() is None
