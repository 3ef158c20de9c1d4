"""Batteries by hand: what work takes, when they charge, who is away for how long."""

import numpy as np
import pytest
import worlds

from simfed import InputError
from simfed.fleet import Battery
from simfed.ground import Streams

H = 3600.0
SMALL = {"capacity_j": 10_000.0, "charge_w": 1.0, "low": 0.2, "back": 0.5}


def batteries(count=2, **options):
    return Battery(**{**SMALL, **options}).presence(np.arange(count), Streams(0))


def test_who_has_worked_much_is_away_until_half_is_charged_in_the_night():
    phones = batteries()
    # at 8:00 it has 1,000 J; 4,000 J take 4,000 s
    phones.worked(0, 8 * H, 60.0, 9_000.0)
    back_s = 22 * H + 4_000.0
    assert phones.mask(8 * H).tolist() == [False, True]
    assert phones.change_after(0, 8 * H) == phones.arrival_after(8 * H) == back_s
    assert phones.there(0, back_s)


def test_little_work_sends_nobody_away():
    phones = batteries()
    for hour in (8, 9, 10):
        phones.worked(0, hour * H, 60.0, 2_000.0)
    assert phones.mask(11 * H).all()
    phones.worked(0, 11 * H, 60.0, 3_000.0)  # 1,000 J are below a fifth
    assert not phones.there(0, 11 * H)


def test_what_charges_in_several_nights_comes_back_in_the_last_one():
    slow = batteries(charge_w=0.1, charges_from="22:00", charges_to="23:00")
    # 100 J; an hour gives 360 J, 4,900 J take 13.6 hours
    slow.worked(0, 8 * H, 60.0, 9_900.0)
    back_s = slow.change_after(0, 8 * H)
    assert back_s == pytest.approx(13 * 24 * H + 22 * H + 4_900 / 0.1 - 13 * H)


def test_a_night_goes_on_where_work_ends_in_it_and_is_that_of_the_zone():
    for zone, at_s, charges_s in ((0.0, 23 * H, 23 * H), (9.0, 0.0, 13 * H)):
        phones = batteries(zone=zone)  # 22:00 in Tokyo is 13:00 at UTC
        phones.worked(0, at_s, 60.0, 9_000.0)
        assert phones.change_after(0, at_s) == charges_s + 4_000.0


def test_no_battery_holds_more_than_it_holds():
    phones = batteries()
    phones.worked(0, 8 * H, 60.0, 100.0)
    phones.worked(0, 32 * H, 60.0, 8_100.0)  # full again at 8:00 on the next day
    assert not phones.there(0, 32 * H)
    assert phones.change_after(0, 32 * H) == pytest.approx(46 * H + 3_100.0)


def test_seconds_count_where_the_profile_knows_no_power():
    phones = batteries(work_w=5.0)
    phones.worked(0, 8 * H, 1_800.0, None)
    assert not phones.there(0, 8 * H)
    with pytest.raises(InputError, match="availability: got None, expected joules"):
        batteries().worked(0, 8 * H, 1_800.0, None)


def played(count, device, battery, **keys):
    """A run of clients with batteries, whose policy sends everything."""
    group = {"count": count, "device": device, "link": {}}
    group["availability"] = {"kind": "battery", **battery}
    keys = {"training.local_steps": 1, "policy.strategy": "dense", **keys}
    made = worlds.world("tiny", {"clients": worlds.groups(group), **keys})
    return made, worlds.play(made, time_only=True).participations


def test_a_run_waits_for_the_night():
    """Each task takes 3,001 s and 6,002 J: who worked twice in a day is away until the
    night.
    """
    device = {"training": "3000 s", "compression": "1 s"}
    battery = {**SMALL, "work_w": 2.0, "zone": 8.0}
    chosen = {"rounds": 6, "participation.clients_per_round": 2}
    _, starts = played(3, device, battery, **chosen, **{"policy.strategy": "top-k"})
    assert (starts.groupby("client").size() > 1).all()
    assert (starts["started_at_s"] > 14 * H).any()  # 22:00 there
    before = starts[starts["started_at_s"] < 14 * H]
    assert before.groupby("client").size().max() == 2


def test_nobody_with_a_flat_battery_is_kept_in_flight():
    """The server chooses anew with each arrival, long before it merges what arrived."""
    device = {
        "training": "100 s",
        "speed": {"lognormal": {"median": 1, "cv": 0.3}},
    }
    battery = {"capacity_j": 1000.0, "charge_w": 1.0, "work_w": 6.0}
    battery |= {"charges_from": "00:00", "charges_to": "23:59"}
    mode = {"mode": "buffered", "buffer": 12, "concurrency": 3}
    made, rows = played(6, device, battery, rounds=3, aggregation=mode)
    phones = made.clients[0].availability.made.presence(np.arange(6), Streams(0))
    events = [(row.finished_at_s, "ends", row) for row in rows.itertuples()]
    events += [(row.started_at_s, "starts", row) for row in rows.itertuples()]
    flat = 0
    for at_s, event, row in sorted(events, key=lambda event: event[:2]):
        if event == "starts":
            assert phones.there(row.client, at_s), (row.client, at_s)
        else:
            phones.worked(row.client, at_s, row.training_s, None)
            flat += not phones.there(row.client, at_s)
    assert flat > 6
