"""Latencies that differ from message to message, against sums on paper."""

from __future__ import annotations

import pytest
import worlds

from simfed import InputError, RunFailed
from simfed.deploy.shaping import _require_star
from simfed.experiment import Parts
from simfed.ground import Streams
from simfed.scenario import load_scenario
from simfed.sim import blame, server

SPREAD = {"per_message": {"uniform": {"low": "20 ms", "high": "220 ms"}}}
RATES = {"up": 5, "down": 20}
MBPS = 1e6 / 8


def world(latency=SPREAD, **changes):
    link = {"up": "5 Mbps", "down": "20 Mbps", "latency": latency}
    return worlds.world("tiny", {"clients[0].link": link, "rounds": 3, **changes})


def drawn(row, message="upload", nth=0, link="up"):
    key = int(row.client), int(row.round), message, nth
    return 0.02 + 0.2 * Streams(0)("latency", link, *key).random()


def played(scenario):
    return worlds.play(scenario, time_only=True).participations


def moving_s(row, way):
    return getattr(row, f"{way}link_bytes") / RATES[way] / MBPS


def assert_waits(rows, way, delay_s):
    """Each message takes its delay and its bytes."""
    for row in rows.itertuples():
        took_s = getattr(row, f"{way}link_s")
        assert took_s == pytest.approx(delay_s(row) + moving_s(row, way))


def test_every_message_takes_its_own_draw_and_its_bytes():
    rows = played(world())
    assert len(rows) == 6
    assert_waits(rows, "up", drawn)
    assert_waits(rows, "down", lambda row: drawn(row, "download"))


def test_a_way_down_with_a_law_of_its_own_has_draws_of_its_own():
    key = "clients[0].link.down_latency"
    own = played(world(**{key: SPREAD}))
    assert_waits(own, "down", lambda row: drawn(row, "download", link="down"))
    assert_waits(played(world(**{key: "7 ms"})), "down", lambda row: 0.007)


TCP = {"network.model": "tcp", "compression.k": 100}


def waits_of_tcp(latency, **more):
    """(row, seconds of its upload beside those without latency)."""
    still = played(world("0 s", **TCP)).itertuples()
    for row, alone in zip(
        played(world(latency, **TCP, **more)).itertuples(), still, strict=True
    ):
        assert row.uplink_bytes < 14480
        yield row, row.uplink_s - alone.uplink_s


@pytest.mark.parametrize("back_s", [None, 0.007])
def test_a_handshake_and_slow_start_take_the_round_trips_of_the_message(back_s):
    """Beside what a path without latency takes, an upload of one window has a round
    trip of handshake and the way up: three times its draw, or twice and the way back.
    """
    back = {} if back_s is None else {"clients[0].link.down_latency": f"{back_s} s"}
    for row, waited_s in waits_of_tcp(SPREAD, **back):
        up_s = drawn(row)
        expected_s = 2 * up_s + (up_s if back_s is None else back_s)
        assert waited_s == pytest.approx(expected_s, rel=1e-9)


def test_draws_hang_neither_on_other_clients_nor_on_the_order_of_messages():
    order = {"clients[0].count": 5, "participation.clients_per_round": 5}
    assert_waits(played(world(**order)), "up", drawn)
    mode = {"aggregation": {"mode": "asynchronous", "concurrency": 1}}
    turns = played(world(**mode))
    assert turns["round"].nunique() > 1
    assert_waits(turns, "up", drawn)


def test_a_message_that_is_sent_again_draws_again():
    faults = {"faults": {"messages": {"lost": 0.5, "timeout": "1 s", "tries": 9}}}
    run = worlds.play(world(**faults, rounds=6), time_only=True)
    spans, most = run.spans[run.spans["kind"] == "upload"], 0
    for row in run.participations.itertuples():
        mine = spans[(spans["client"] == row.client) & (spans["round"] == row.round)]
        for nth, span in enumerate(mine.sort_values("started_at_s").itertuples()):
            spent_s = span.finished_at_s - span.started_at_s
            expected_s = drawn(row, nth=nth) + moving_s(row, "up") / len(mine)
            assert spent_s == pytest.approx(expected_s)
            most = max(most, nth)
    assert most


def test_a_table_is_drawn_row_by_row(tmp_path):
    table = tmp_path / "rtt.csv"
    table.write_text("rtt_ms,often\n40,1\n90,0\n1000,3\n")
    law = {"table": str(table), "column": "rtt_ms", "unit": "ms", "weights": "often"}
    rows = played(world({"per_message": law}, rounds=20)).itertuples()
    delays = {round(row.uplink_s - moving_s(row, "up"), 9) for row in rows}
    assert delays == {0.04, 1.0}


TRACE = "t,ms,rtt0,rtt1\n0,50,10,30\n0.4,200,90,20\n0.9,120,10,70\n"


def traced(tmp_path, **keys):
    (tmp_path / "rtt.csv").write_text(TRACE)
    file = {"file": str(tmp_path / "rtt.csv"), "time_column": "t", "unit": "ms"}
    return {**file, "latency_column": "ms", "end": "loop", "offset": "0 s", **keys}


def look_up(at_s, column=0):
    """The delay of the file at an instant: a turn of it takes 1.4 s."""
    pieces = [[float(x) for x in row.split(",")] for row in TRACE.split("\n")[1:4]]
    return [row for row in pieces if row[0] <= at_s % 1.4][-1][1 + column] / 1000


def test_a_message_takes_the_delay_of_the_instant_at_which_it_starts(tmp_path):
    run = worlds.play(world(traced(tmp_path), rounds=8), time_only=True)
    starts = run.spans.set_index(["round", "client", "kind"])["started_at_s"]
    met = set()

    def delay_s(row, kind):
        met.add(look_up(starts[row.round, row.client, kind]))
        return look_up(starts[row.round, row.client, kind])

    assert_waits(run.participations, "up", lambda row: delay_s(row, "upload"))
    assert_waits(run.participations, "down", lambda row: delay_s(row, "download"))
    assert met == {0.05, 0.2, 0.12}


def test_a_column_per_client_half_a_round_trip_and_a_handshake(tmp_path):
    keys = {"latency_column": "rtt{client}", "factor": 0.5, "end": "hold"}
    for row, waited_s in waits_of_tcp(traced(tmp_path, **keys)):
        at_s = row.finished_at_s - row.waiting_s - row.uplink_s
        delay_s = look_up(min(at_s, 1.3), 1 + row.client) / 2
        assert waited_s == pytest.approx(3 * delay_s)


def test_a_trace_that_ends_fails_the_message_that_starts_after_it(tmp_path):
    ends = world(traced(tmp_path, end="error"), rounds=9)
    sentence = (
        r"link client-\d/(up|down): at .* s the trace of its latency has ended, "
        "and a message starts; a trace with `end: loop` goes on"
    )
    with pytest.raises(RunFailed, match=sentence):
        played(ends)


def test_a_run_keeps_the_trace_that_it_read(tmp_path):
    whole = worlds.play(world(traced(tmp_path)), tmp_path / "run", time_only=True)
    (tmp_path / "rtt.csv").unlink()
    again = load_scenario(str(tmp_path / "run" / "scenario.yaml"))
    assert worlds.play(again, time_only=True).fingerprint == whole.fingerprint


@pytest.mark.parametrize("latency", ["drawn", "traced"])
def test_play_again_for_blame_meets_the_same_delays(latency, monkeypatch, tmp_path):
    """What the server would have waited for all clients is what it did wait."""
    shared, waited = {"clients[0].count": 4, "network.server.receive": "8 Mbps"}, []
    latency = SPREAD if latency == "drawn" else traced(tmp_path)

    def compare(flights, work, network, **options):
        spent_s = max(flight.elapsed_s for flight in flights)
        uploads_s = blame.play_uploads_again(flights, flights[0], network)
        waited.append((spent_s, blame.play_again(flights, network), uploads_s))
        return blame.blame_round(flights, work, network, **options)

    monkeypatch.setattr(server, "blame_round", compare)
    played(world(latency, **shared))
    assert len(waited) == 3
    for spent_s, *again_s in waited:
        assert again_s == pytest.approx([spent_s] * 2, rel=1e-9)


def test_edge_servers_have_no_access_link_and_so_none_of_its_delays():
    tiers = [{"name": "edge", "count": 2, "latency": "5 ms", "up": "40 Mbps"}]
    below = {
        "network": {"topology": "tree", "tiers": tiers},
        "aggregation": {"edge_servers": {"at": "edge"}},
        "clients[0].count": 4,
    }
    assert_waits(played(world(**below)), "up", drawn)


def test_shaped_deployments_refuse_them():
    with pytest.raises(InputError, match="differ from message to message"):
        _require_star(Parts(world()))
