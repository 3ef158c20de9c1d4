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
MBPS = 1e6 / 8


def world(latency=SPREAD, **changes):
    link = {"up": "5 Mbps", "down": "20 Mbps", "latency": latency}
    return worlds.world("tiny", {"clients[0].link": link, "rounds": 3, **changes})


def drawn(client, round, message, nth=0, link="up", seed=0):
    return (
        0.02
        + 0.2 * Streams(seed)("latency", link, client, round, message, nth).random()
    )


def played(scenario, **options):
    return worlds.play(scenario, time_only=True, **options).participations


def each(rows):
    return [row for _, row in rows.iterrows()]


def test_every_message_takes_its_own_draw_and_its_bytes():
    rows = each(played(world()))
    assert len(rows) == 6
    for row in rows:
        key = row.client, row["round"]
        down_s, up_s = drawn(*key, "download"), drawn(*key, "upload")
        assert row.downlink_s == pytest.approx(down_s + row.downlink_bytes / 20 / MBPS)
        assert row.uplink_s == pytest.approx(up_s + row.uplink_bytes / 5 / MBPS)


def test_a_way_down_with_a_law_of_its_own_has_draws_of_its_own():
    own = {"clients[0].link.down_latency": SPREAD}
    for row in each(played(world(**own))):
        key = row.client, row["round"]
        down_s = drawn(*key, "download", link="down")
        assert row.downlink_s == pytest.approx(down_s + row.downlink_bytes / 20 / MBPS)
    constant = {"clients[0].link.down_latency": "7 ms"}
    for row in each(played(world(**constant))):
        assert row.downlink_s == pytest.approx(0.007 + row.downlink_bytes / 20 / MBPS)


@pytest.mark.parametrize("back_s", [None, 0.007])
def test_a_handshake_and_slow_start_take_the_round_trips_of_the_message(back_s):
    """Beside what a path without latency takes, an upload of one window has a round
    trip of handshake and the way up: three times its draw, or twice and the way back.
    """
    tcp = {"network.model": "tcp", "compression.k": 100}
    back = {} if back_s is None else {"clients[0].link.down_latency": f"{back_s} s"}
    still = each(played(world("0 s", **tcp)))
    for row, alone in zip(each(played(world(**tcp, **back))), still, strict=True):
        assert row.uplink_bytes < 14480
        delay_s = drawn(row.client, row["round"], "upload")
        waited_s = 2 * delay_s + (delay_s if back_s is None else back_s)
        assert row.uplink_s - alone.uplink_s == pytest.approx(waited_s, rel=1e-9)


def test_draws_hang_neither_on_other_clients_nor_on_the_order_of_messages():
    few = played(world()).set_index(["round", "client"])
    order = {"clients[0].count": 5, "participation.clients_per_round": 5}
    many = played(world(**order)).set_index(["round", "client"])
    assert many.loc[few.index, "uplink_s"].tolist() == few["uplink_s"].tolist()
    mode = {"aggregation": {"mode": "asynchronous", "concurrency": 1}}
    turns = each(played(world(**mode)))
    assert len({row["round"] for row in turns}) > 1
    for row in turns:
        delay_s = drawn(row.client, row["round"], "upload")
        assert row.uplink_s == pytest.approx(delay_s + row.uplink_bytes / 5 / MBPS)


def test_a_message_that_is_sent_again_draws_again():
    faults = {"faults": {"messages": {"lost": 0.5, "timeout": "1 s", "tries": 9}}}
    run = worlds.play(world(**faults, rounds=6), time_only=True)
    spans = run.spans[run.spans["kind"] == "upload"]
    again = 0
    for key, tries in spans.groupby(["client", "round"]):
        client, round = map(int, key)
        for nth, (_, row) in enumerate(tries.sort_values("started_at_s").iterrows()):
            size = run.participations.set_index(["client", "round"]).loc[key]
            each_bytes = size.uplink_bytes / len(tries)
            spent_s = row.finished_at_s - row.started_at_s
            delay_s = drawn(client, round, "upload", nth)
            assert spent_s == pytest.approx(delay_s + each_bytes / 5 / MBPS)
            again += nth > 0
    assert again


def test_a_table_is_drawn_row_by_row(tmp_path):
    table = tmp_path / "rtt.csv"
    table.write_text("rtt_ms,often\n40,1\n90,0\n1000,3\n")
    of_table = {"table": str(table), "column": "rtt_ms", "unit": "ms"}
    weighted = {"per_message": {**of_table, "weights": "often"}}
    rows = each(played(world(weighted, rounds=20)))
    delays = {round(row.uplink_s - row.uplink_bytes / 5 / MBPS, 9) for row in rows}
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
    sizes = run.participations.set_index(["round", "client"])
    met = set()
    for row in each(run.spans[run.spans["kind"].isin(["download", "upload"])]):
        size = sizes.loc[(row["round"], int(row.client))]
        up = row.kind == "upload"
        moving_s = (size.uplink_bytes / 5 if up else size.downlink_bytes / 20) / MBPS
        delay_s = look_up(row.started_at_s)
        met.add(delay_s)
        spent_s = size.uplink_s if up else size.downlink_s
        assert spent_s == pytest.approx(delay_s + moving_s)
    assert met == {0.05, 0.2, 0.12}


def test_a_column_per_client_half_a_round_trip_and_a_handshake(tmp_path):
    keys = {"latency_column": "rtt{client}", "factor": 0.5, "end": "hold"}
    tcp = {"network.model": "tcp", "compression.k": 100, "rounds": 1}
    rows = each(played(world(traced(tmp_path, **keys), **tcp)))
    for row, alone in zip(rows, each(played(world("0 s", **tcp))), strict=True):
        at_s = row.started_at_s + row.downlink_s + row.training_s + row.compression_s
        delay_s = look_up(min(at_s, 1.3), 1 + row.client) / 2
        assert row.uplink_s - alone.uplink_s == pytest.approx(3 * delay_s)


def test_a_trace_that_ends_fails_the_message_that_starts_after_it(tmp_path):
    ends = world(traced(tmp_path, end="error"), rounds=9)
    with pytest.raises(
        RunFailed,
        match=r"link client-\d/(up|down): at .* s the trace of its latency has ended, "
        "and a message starts; a trace with `end: loop` goes on",
    ):
        worlds.play(ends, time_only=True)


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
    worlds.play(world(latency, **shared), time_only=True)
    assert len(waited) == 3
    for spent_s, again_s, uploads_s in waited:
        assert again_s == pytest.approx(spent_s, rel=1e-9)
        assert uploads_s == pytest.approx(spent_s, rel=1e-9)


def test_edge_servers_have_no_access_link_and_so_none_of_its_delays():
    tiers = [{"name": "edge", "count": 2, "latency": "5 ms", "up": "40 Mbps"}]
    below = {
        "network": {"topology": "tree", "tiers": tiers},
        "aggregation": {"edge_servers": {"at": "edge"}},
        "clients[0].count": 4,
    }
    run = worlds.play(world(**below), time_only=True)
    for row in each(run.participations):
        delay_s = drawn(row.client, row["round"], "upload")
        assert row.uplink_s == pytest.approx(delay_s + row.uplink_bytes / 5 / MBPS)


def test_shaped_deployments_refuse_them():
    parts = Parts(world())
    with pytest.raises(InputError, match="differ from message to message"):
        _require_star(parts)
