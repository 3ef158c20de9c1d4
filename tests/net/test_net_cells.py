"""Radio cells: what a byte costs, who gets how much air, what records say of it."""

from __future__ import annotations

import numpy as np
import pytest
import simpy

from simfed import net
from simfed.ground import Discrete, Streams
from simfed.ground.strikes import Rhythm, Strikes
from simfed.net import (
    FlowStart,
    LinkTrace,
    LinkUses,
    Network,
    Star,
    Trace,
    play,
    stall,
)
from simfed.net.cells import Cellular, Wifi
from simfed.net.topology import Cell

MBPS = 1e6 / 8
HOME = "airtime of cell home"


def cell(weights=(1.0, 1.0), **more):
    return Cell("home", range(len(weights)), weights, weights, **more)


def star(rates, home=None, **more):
    """Clients whose radios have these rates in one cell."""
    cells = [home or cell([1.0] * len(rates))]
    return Star(
        len(rates), up_bytes_per_s=rates, down_bytes_per_s=rates, cells=cells, **more
    )


def durations(topology, *starts):
    """The seconds of uploads of (client, bytes), all at once."""
    starts = [FlowStart(0, client, size) for client, size in starts]
    return pytest.approx([end.duration_s for end in play(topology, starts)])


def fades(starts_s, rates):
    return LinkTrace(Trace.of(starts_s, rates, 100.0, "hold"))


# ---- rates of the standards ----------------------------------------------------------


@pytest.mark.parametrize(
    ("wifi", "mcs", "mbps"),
    [
        (Wifi("n", 20), 0, 6.5),
        (Wifi("n", 40, 4, 400), 7, 600.0),
        (Wifi("ac", 20), 8, 78.0),
        (Wifi("ac", 80), 9, 390.0),
        (Wifi("ac", 160, 8, 400), 9, 6933.3),
        (Wifi("ax", 20), 11, 143.4),
        (Wifi("ax", 40), 0, 17.2),
        (Wifi("ax", 80, 2), 11, 1201.0),
        (Wifi("ax", 160, 1, 3200), 5, 490.0),
    ],
)
def test_phy_rates_are_those_of_the_standards(wifi, mcs, mbps):
    assert wifi.phy_rate(mcs) / MBPS == pytest.approx(mbps, abs=0.06)


def test_weights_are_one_on_average_and_equal_without_aggregation():
    rates = np.array([6.5, 65.0, 65.0]) * MBPS
    up, down = Wifi("n", 20).weights(rates)
    assert up.mean() == pytest.approx(1)
    assert up[0] < up[1] == up[2]
    assert (down == down[0]).all()
    assert (Wifi("n", 20, aggregation=False).weights(rates)[0] == 1).all()
    up, down = Wifi("n", 20, fair="airtime").weights(rates)
    assert up / up[0] == pytest.approx(
        Wifi("n", 20).alone(rates) / Wifi("n", 20).alone(rates[0])
    )
    assert (up == down).all()


def test_who_has_no_rate_weighs_one():
    none, one = np.zeros(2), np.array([0.0, 1e6])
    for fair in ("airtime", "packets"):
        assert list(Wifi("n", fair=fair).weights(none)[0]) == [1, 1]
    assert list(Cellular().weights(none)) == [1, 1]
    assert list(Cellular().weights(one)) == [1, 2]


# ---- sharing -------------------------------------------------------------------------


def test_a_slow_station_slows_all():
    """At equal rates a byte of the slow one costs four times as much: 5 s for 4 bytes
    of each.
    """
    fast, slow = play(star([4.0, 1.0]), [FlowStart(0, 0, 4.0), FlowStart(0, 1, 4.0)])
    assert fast == slow == (5.0, HOME)


def test_wifi_is_half_duplex_and_cellular_is_not():
    both = [FlowStart(0, 0, 8.0, "up"), FlowStart(0, 0, 8.0, "down")]
    half, apart = star([4.0]), star([4.0], home=cell((1.0,), one_air=False))
    assert [end.duration_s for end in play(half, both)] == [4.0, 4.0]
    assert play(apart, both) == [(2.0, f"{HOME}, up"), (2.0, f"{HOME}, down")]
    assert (apart.ways_apart, half.ways_apart) == (True, False)


def test_what_a_trace_gives_a_client_is_what_its_bytes_cost():
    """8 bytes each.

    Until 2 s both cost 1/4 s per byte (2 bytes/s each), then one costs 1 s, and both
    get 0.8 bytes/s for their last 4 bytes.
    """
    home = star([4.0, 4.0], traces={(1, "up"): fades([0.0, 2.0], [4.0, 1.0])})
    assert durations(home, (0, 8.0), (1, 8.0)) == [7.0, 7.0]
    assert durations(home, (1, 10.0)) == [4.0]


def fading():
    """Two clients who have half of the time each.

    One falls from 4 to 1 byte/s at 2 s, and its weight with it.
    """
    falls = Trace((0.0, 2.0), (4.0, 1.0), 100.0, "hold", (1.0, 0.25))
    return star([4.0, 4.0], traces={(1, "up"): LinkTrace(falls)})


def test_a_weight_may_follow_a_radio():
    """2 bytes/s each until 2 s.

    From then on still 2 for the one, 0.5 for the other, and 1 when it is alone. Twice
    as much for who sends with weight 2.
    """
    assert durations(fading(), (0, 8.0), (1, 6.0)) == [4.0, 5.0]
    heavy = [FlowStart(0, 0, 4.0), FlowStart(0, 1, 8.0, weight=2.0)]
    ends = [end.duration_s for end in play(fading(), heavy)]
    assert ends == pytest.approx([3.0, 5.0])


def test_a_weight_that_follows_a_radio_is_kept_through_a_stall():
    """A stall of the radio from 3 s to 4 s, during which the other one has all of the
    air.
    """
    home = fading()

    def strikes(name):
        between_s = 3.0 if name == "client-1/up" else 1e6
        rhythm = Rhythm(Discrete((between_s,)), Discrete((1.0,)))
        return Strikes(rhythm, Streams(0), "stall", name)

    stall(home, strikes, access=True, lines=False)
    assert durations(home, (0, 12.0), (1, 6.0)) == [5.0, 6.0]


def test_a_radio_that_stands_still_leaves_the_air_to_the_others():
    gone = fades([0.0, 1.0, 4.0], [4.0, 0.0, 4.0])
    home = star([4.0, 4.0], traces={(1, "up"): gone})
    assert durations(home, (0, 10.0), (1, 4.0)) == [3.0, 4.5]


def test_the_air_itself_may_vary():
    """A neighbour's cell takes half of the time."""
    home = cell((1.0,), share=fades([0.0, 1.0], [1.0, 0.5]))
    assert play(star([4.0], home=home), [FlowStart(0, 0, 6.0)])[0] == (2.0, HOME)


# ---- records -------------------------------------------------------------------------


def run(topology, *sends):
    """The records of the air."""
    env, uses = simpy.Environment(), LinkUses()
    network = Network(env, topology, on_use=uses)

    def send(at_s, client, size_bytes, direction="up"):
        yield env.timeout(at_s)
        transfer = network.send(client, size_bytes, direction)
        yield transfer
        return transfer.bottleneck

    sent = env.all_of([env.process(send(*one)) for one in sends])
    bottlenecks = set(env.run(sent).values())
    return bottlenecks, [use for use in uses if use.link == HOME]


def test_the_meter_tells_bytes_and_seconds_of_airtime():
    """Alone until 1 s (4 of 8 bytes).

    Then two that cost 1/4 and 1 s: 0.8 bytes/s each.
    """
    bottlenecks, uses = run(star([4.0, 1.0]), (0, 0, 8.0), (1, 1, 4.0, "down"))
    assert bottlenecks == {HOME}
    assert uses == [
        (HOME, 0.0, 1.0, 4.0, 4.0, 1, 1.0),
        (HOME, 1.0, 6.0, pytest.approx(8.0), pytest.approx(1.6), 2, pytest.approx(5.0)),
    ]


def test_airtime_is_metered_where_something_else_limits():
    """A line of 1 byte/s: the air is a quarter full, its capacity that of this mix."""
    home = star([4.0, 4.0], receive_bytes_per_s=1.0)
    _, [air] = run(home, (0, 0, 4.0), (0, 1, 4.0))
    assert air == (HOME, 0.0, 8.0, 8.0, 4.0, 2, 2.0)


# ---- cases ---------------------------------------------------------------------------


def test_a_case_of_a_cell_is_replayed():
    flow = {"start_s": 0, "size_bytes": 30000, "direction": "up", "station": 0}
    case = {"cell": {"standard": "n"}, "stations": [{"mcs": 7}], "flows": [flow]}
    wifi = Wifi("n")
    alone_s = 30000 / float(wifi.alone(wifi.phy_rate(7)))
    assert net.replay(case) == pytest.approx([alone_s + wifi.latency_s])
    wired = {"capacity_bytes_per_s": 1e5, "latency_s": 0.01}
    slow = net.replay({**case, "wired": wired})
    assert slow == pytest.approx([0.3 + 0.01 + wifi.latency_s])
    cellular = {
        "cell": {"scheduler": "Pf"},
        "ues": [{"alone_up_bytes_per_s": 1e6, "alone_down_bytes_per_s": 4e6}] * 2,
        "flows": [
            {"start_s": 1, "size_bytes": 1e6, "direction": way, "ue": ue}
            for way in ("up", "down")
            for ue in (0, 1)
        ],
    }
    assert net.replay(cellular) - 1 == pytest.approx([2.009, 2.009, 0.509, 0.509])
