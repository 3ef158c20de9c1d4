"""Who is there when: tiny worlds, one truth however it is asked, closed forms at a
stated confidence.
"""

import math

import numpy as np
import worlds
from hypothesis import given
from hypothesis import strategies as st

from simfed.fleet import Availability, Daily, Fleet, Markov
from simfed.fleet.availability import Always, Intervals, PresenceTrace
from simfed.ground import Streams

H = 3600.0


def intervals(*rows):
    ids, starts, ends = zip(*rows, strict=True)
    return Intervals.of(np.array(ids), np.array(starts, float), np.array(ends, float))


RECORD = intervals((4, 5, 8), (0, 0, 3), (0, 6, 10), (4, 8, 9), (7, 2, 4))
"""Device 0: 0–3 and 6–10; 4: 5–9, in two rows that touch; 7: 2–4."""


def presences():
    """(presence, how many clients) of every kind."""
    zones, somebody = np.array([0.0, 8 * H, -5 * H]), np.array([0, 1, 2, 0, -1])
    off_s = np.array([500.0, 3000.0, 1e5])
    return [
        (Always(3), 3),
        (Daily(22 * H, 6 * H, zones), 3),
        (Daily(9.1 * H, 9.2 * H, zones), 3),
        (Markov(Streams(1), np.array([3, 4, 900_000]), 700.0, off_s), 3),
        (PresenceTrace(RECORD, somebody), 5),
        (PresenceTrace(RECORD, somebody, period_s=10.0), 5),
        (PresenceTrace(RECORD, np.array([0, 1]), period_s=12.34), 2),
        (PresenceTrace(intervals((0, 0, 7)), np.array([0]), period_s=7.0), 1),
    ]


@given(
    st.integers(0, 7), st.lists(st.floats(0, 1e4), min_size=1, max_size=3), st.data()
)
def test_all_answers_are_one_truth(which, instants, data):
    """Masks in any order of instants, single clients, walks from change to change, and
    the first instant at which somebody comes agree.
    """
    (presence, count), (fresh, _) = presences()[which], presences()[which]
    for at_s in instants:
        at_s *= 1 if which == 3 else 30  # several days, where that costs nothing
        mask = presence.mask(at_s)
        place = data.draw(st.integers(0, count - 1))
        assert mask[place] == presence.there(place, at_s) == fresh.there(place, at_s)
        change_s = presence.change_after(place, at_s)
        assert change_s > at_s
        assert change_s == fresh.change_after(place, at_s)
        comes_s = [presence.change_after(who, at_s) for who in range(count)]
        for who in np.flatnonzero(mask):
            if comes_s[who] < math.inf:
                comes_s[who] = presence.change_after(who, comes_s[who])
        assert presence.arrival_after(at_s) == min(comes_s)
        if change_s == math.inf:
            assert presence.there(place, at_s + 1e7) == mask[place]
            continue
        assert presence.there(place, np.nextafter(change_s, 0)) == mask[place]
        assert presence.there(place, change_s) != mask[place]
        assert presence.mask(change_s)[place] != mask[place]


def seen(presence, *instants):
    """Places of those who are there at each instant."""
    return [np.flatnonzero(presence.mask(at_s)).tolist() for at_s in instants]


def test_a_trace_once_and_again():
    once = PresenceTrace(RECORD, np.array([0, 1, 2, -1]))
    assert seen(once, 0, 3, 4, 8, 9, 10) == [[0], [2], [], [0, 1], [0], []]
    assert [once.change_after(1, t) for t in (0, 5, 8, 9)] == [5, 9, 9, math.inf]
    assert once.change_after(3, 0.0) == math.inf
    assert [once.arrival_after(t) for t in (0, 2, 5, 6)] == [2, 5, 6, math.inf]
    again = PresenceTrace(RECORD, np.array([0, 1]), period_s=10.0)
    assert seen(again, 16) == [[0, 1]]
    # there until the record's end and from its beginning
    assert again.change_after(0, 7.0) == 13.0
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
    hours = (0, 6, 13.9, 14, 21.9, 22)
    assert seen(night, *(h * H for h in hours)) == [[0], [], [], [1], [1], [0]]
    assert night.change_after(0, 0.0) == 6 * H
    assert night.change_after(0, 6 * H) == 22 * H
    assert night.arrival_after(14 * H) == 22 * H
    assert night.arrival_after(22 * H) == (24 + 14) * H


def test_who_is_there_first_is_pinned():
    """A change here changes runs that anybody has recorded."""
    assert seen(Markov(Streams(0), np.arange(10), 10.0, 30.0), 0) == [[4, 5, 6, 9]]


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
    assert seen(fleet, 7.0) == [[0, 1, 2, 4]]
    assert [c for c in range(5) if fleet.there(c, 9.5)] == [0, 1, 2]
    assert [fleet.change_after(c, 9.5) for c in (3, 4)] == [6 * H, math.inf]
    assert fleet.change_after(0, 0.0) == math.inf
    assert fleet.arrival_after(6.0) == 6 * H
    assert not fleet.always
    idle = Availability([(np.arange(5), Always(5))])
    assert idle.always
    assert idle.mask(3.0).all()
    assert idle.arrival_after(0.0) == math.inf


def test_a_scenario_says_who_is_there(tmp_path, monkeypatch):
    (tmp_path / "t.csv").write_text("client,from_s,to_s\n3,10,20\n4,15,30\n")
    monkeypatch.chdir(tmp_path)
    asked = [
        {"trace": "t.csv", "period": "40 s"},
        {"daily": {"from": "22:00", "to": "06:00", "zones": [0, 8]}},
        {"markov": {"on": "2 h", "off": "8 h"}},
        {"trace": "t.csv", "devices": "drawn"},
        {"markov": {"on": {"choice": {"values": ["1 h"]}}, "off": "1 s"}},
    ]
    counted = zip([2, 300, 300, 40, 1], asked, strict=True)
    clients = [{"count": n, "availability": presence} for n, presence in counted]
    made = worlds.world("tiny", clients=worlds.groups({"count": 3}, *clients))
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


def test_a_server_asks_in_its_own_words(tmp_path):
    (tmp_path / "t.csv").write_text("client,from_s,to_s\n2,10,20\n")
    trace = {"trace": str(tmp_path / "t.csv")}
    groups = {"count": 2, "failure": {"upload": 0.25}}, {"availability": trace}
    made = worlds.world("tiny", clients=worlds.groups(*groups))
    presence = Fleet(made, Streams(0)).presence()
    assert presence.available(5.0).tolist() == [0, 1]
    failures = [presence.failure(c, p) for c in (0, 2) for p in ("upload", "training")]
    assert failures == [0.25, 0.0, 0.0, 0.0]
    assert Fleet(worlds.world("tiny"), Streams(0)).presence() is None
