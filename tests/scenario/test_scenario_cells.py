"""Radio cells in scenarios: what stands there, what it becomes, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import simpy

import simfed
from simfed.cli import main
from simfed.experiment import check_parts
from simfed.net import FlowStart, Network, play
from simfed.net.cells import CELLULAR_LATENCY_S, WIFI_LATENCY_S, Wifi
from simfed.record import explain_rounds
from simfed.scenario import validate_scenario as validated_in
from simfed.verify import find_broken

MBPS = 1e6 / 8
DEVICE = {"training": "10 ms", "compression": "1 ms"}


def scenario(links, cells=None, **network):
    home = {"home": {"wifi": {"standard": "n"}}}
    return {
        "name": "cells",
        "rounds": 2,
        "dataset": {"name": "mnist-mini", "public": 16},
        "prototypes": {"small": {"model": "lenet5-half"}},
        "clients": [
            {"count": 2, "prototype": "small", "device": DEVICE, "link": link}
            for link in links
        ],
        "compression": {"k": 100, "strategies": ["top-k"]},
        "policy": {"kind": "uniform", "strategy": "top-k"},
        "network": {"cells": home if cells is None else cells, **network},
    }


def validated(plain):
    return validated_in(plain, source="s", folder=Path())


def topology(*args, **network):
    return check_parts(
        validated(scenario(*args, **network)), "s", time_only=True
    ).topology


def test_the_quick_answer_runs_and_says_whose_airtime_was_waited_for(tmp_path):
    """One access point behind a line, boards of two kinds: rounds, blame, table,
    invariants.
    """
    plain = scenario(
        [{"cell": "home", "mcs": 7}, {"cell": "home", "rate": "6.5 Mbps"}],
        {"home": {"wifi": {"standard": "n", "width": "20 MHz"}, "at": "dsl"}},
        topology="tree",
        tiers=[
            {"name": "dsl", "up": "40 Mbps", "down": "100 Mbps", "latency": "10 ms"}
        ],
        model="tcp",
    )
    result = simfed.run(plain, out=tmp_path / "run", time_only=True, progress=False)
    assert set(result.rounds["critical_client"]) <= {2, 3}
    assert set(result.rounds["critical_link"]) == {"airtime of cell home"}
    assert ", shared airtime of cell home" in explain_rounds(result.table)[1]
    air = result.links[result.links["link"] == "airtime of cell home"]
    took_s = air["to_s"] - air["from_s"]
    assert (air["airtime_s"] <= took_s * (1 + 1e-9)).all()
    sent = result.participations[["uplink_bytes", "downlink_bytes"]].to_numpy().sum()
    assert air["bytes"].sum() == pytest.approx(sent * 1502 / 1448)
    others = result.links["link"] != "airtime of cell home"
    assert result.links[others]["airtime_s"].isna().all()
    table = pq.read_table(tmp_path / "run" / "links.parquet")
    twice = pc.multiply(table["airtime_s"], 2.0)
    at = table.schema.names.index("airtime_s")
    forged = table.set_column(at, "airtime_s", twice)
    pq.write_table(forged, tmp_path / "run" / "links.parquet")
    broken = find_broken(simfed.load_run(tmp_path / "run"))
    assert any("have more airtime than time" in sentence for sentence in broken)


def test_clients_of_a_cell_have_its_airtime_in_place_of_links():
    built = topology([{"cell": "home", "mcs": 7}, {"up": "5 Mbps", "latency": "3 ms"}])
    wifi = Wifi("n")
    path = built.path(0, "down")
    assert [built.link_name(link) for link in path.links] == ["airtime of cell home"]
    (cost,) = path.air.costs.values()
    assert 1 / cost == pytest.approx(float(wifi.alone(65 * MBPS)))
    assert path.latency_s == WIFI_LATENCY_S
    assert path.rtt_s == 2 * WIFI_LATENCY_S
    assert built.path(2, "up").air is None


def test_a_cellular_cell_has_an_airtime_for_each_way_and_weights_by_rates():
    link = {
        "cell": "street",
        "up": "10 Mbps",
        "down": {"choice": {"values": ["9 Mbps"]}},
    }
    street = {"street": {"cellular": {"scheduler": "rr"}, "share": 0.5}}
    built = topology([link, {**link, "up": "30 Mbps"}], street)
    up, down = built.path(0, "up"), built.path(0, "down")
    assert [built.link_name(k) for k in (*up.links, *down.links)] == [
        "airtime of cell street, up",
        "airtime of cell street, down",
    ]
    assert up.air.weight == 0.5
    assert down.air.weight == 1.0
    assert built.capacities_bytes_per_s[up.links[0]] == 0.5
    assert up.latency_s == CELLULAR_LATENCY_S


def test_rates_may_be_drawn_or_vary_per_client():
    drawn = {"uniform": {"low": "10 Mbps", "high": "60 Mbps"}}
    fades = {
        "generate": {
            "kind": "lognormal-ar1",
            "mean": "20 Mbps",
            "cv": 0.2,
            "correlation": 0.5,
            "step": "1 s",
            "length": "9 s",
        },
        "end": "loop",
    }
    built = topology([{"cell": "home", "rate": drawn}, {"cell": "home", "rate": fades}])
    rates = built.capacities_bytes_per_s[:8].reshape(4, 2)
    assert (rates[:, 0] == rates[:, 1]).all()
    assert len(np.unique(rates[:, 0])) == 4
    assert set(built.traces) == {4, 5, 6, 7}
    up, down = built.traces[4].trace, built.traces[5].trace
    assert up.rates_bytes_per_s == down.rates_bytes_per_s
    assert up.rates_bytes_per_s != built.traces[6].trace.rates_bytes_per_s
    assert built.path(2, "up").links == (4, *built.path(0, "up").links)


CELLS = {
    "airtime": {"home": {"wifi": {"standard": "n", "fair": "airtime"}}},
    "packets": {"home": {"wifi": {"standard": "n", "fair": "packets"}}},
    "cellular": {"home": {"cellular": {}}},
}


def uploads(folder, cells, slow, falls_at_s=None):
    """When uploads of a client at 65 Mbps and one at `slow` end.

    Of the latter's own 65 Mbps until it falls.
    """
    (folder / "rate.csv").write_text(f"0,{65 * MBPS}\n{falls_at_s},{slow * MBPS}\n")
    table = {"file": "rate.csv", "format": "csv", "end": "hold", "rate_unit": "B/s"}
    links = []
    for rate in ("65 Mbps", f"{slow} Mbps" if falls_at_s is None else table):
        rates = (
            {"up": rate, "down": rate}
            if "cellular" in cells["home"]
            else {"rate": rate}
        )
        links.append({"cell": "home", **rates})
    plain = validated_in(scenario(links, cells), source="s", folder=folder)
    built = check_parts(plain, "s", time_only=True).topology
    sends = [FlowStart(0, 0, 250_000), FlowStart(0, 2, 250_000)]
    return [end.duration_s for end in play(built, sends)]


@pytest.mark.parametrize("fair", CELLS)
def test_a_rate_that_falls_before_it_matters_is_the_rate_that_it_falls_to(
    tmp_path, fair
):
    fixed = uploads(tmp_path, CELLS[fair], 6.5)
    assert uploads(tmp_path, CELLS[fair], 6.5, 1e-4) == pytest.approx(fixed)


@pytest.mark.parametrize("fair", CELLS)
def test_weights_follow_a_rate_that_falls_in_the_middle(tmp_path, fair):
    """Half of the time each, whatever the slow one's rate, where airtime is shared
    evenly; as many turns each where packets are. Until the fall both get the same, then
    by weight; who is left has the air alone.
    """
    falls_at_s, latency_s = (
        0.03,
        CELLULAR_LATENCY_S if fair == "cellular" else WIFI_LATENCY_S,
    )
    rates = np.array([65.0, 6.5]) * MBPS
    if fair == "cellular":
        alone = weights = rates
    else:
        wifi = Wifi("n", fair=fair)
        alone, weights = wifi.alone(rates), wifi.weights(rates)[0]
    left = np.full(2, 250_000 - (falls_at_s - latency_s) * alone[0] / 2)
    together = weights / (weights / alone).sum()
    first_s = falls_at_s + left[0] / together[0]
    last_s = first_s + (left[1] - together[1] * (first_s - falls_at_s)) / alone[1]
    assert uploads(tmp_path, CELLS[fair], 6.5, falls_at_s) == pytest.approx(
        [first_s, last_s]
    )
    if fair != "packets":
        assert first_s == pytest.approx(uploads(tmp_path, CELLS[fair], 65)[0])


STREET = {"cell": "street", "up": "8 Mbps", "down": "8 Mbps"}
ONOFF = {
    "kind": "markov-on-off",
    "high": 1,
    "low": 0.4,
    "mean_high": "9 s",
    "mean_low": "3 s",
}
COMES = {"file": "air.csv", "format": "csv", "end": "hold"}


def street(share):
    return {"street": {"cellular": {"scheduler": "pf"}, "share": share}}


def ends_of(topology):
    """When two uploads of 1 MB each and a download of 0.2 MB end that start at 0 s."""
    env = simpy.Environment()
    network = Network(env, topology)
    transfers = [network.send(0, 1e6, "up"), network.send(1, 1e6, "up")]
    transfers.append(network.send(0, 2e5, "down"))
    env.run(env.all_of(transfers))
    return sorted(transfer.value for transfer in transfers)


@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_a_share_of_the_air_may_vary(tmp_path, factor):
    """A neighbour comes at 1 s: 1 MB/s until then, 0.5 MB/s from then on.

    Uploads, 9 ms on their way, have sent 0.991 of 2 MB at 1 s, so that 2.018 s are
    left; the download, in an airtime of its own, ends before.
    """
    (tmp_path / "air.csv").write_text(f"at,share\n0,{1 / factor}\n1,{0.5 / factor}\n")
    share = {**COMES, "time_column": "at", "rate_column": "share", "factor": factor}
    plain = validated_in(scenario([STREET], street(share)), source="s", folder=tmp_path)
    built = check_parts(plain, "s", time_only=True).topology
    assert [built.link_name(link) for link in built.traces] == [
        "airtime of cell street, up",
        "airtime of cell street, down",
    ]
    ends = ends_of(built)
    assert ends == pytest.approx([0.209, 3.018, 3.018])


def test_shares_are_generated_from_the_seed_and_stay_shares():
    drawn = {
        "kind": "lognormal-ar1",
        "mean": 0.8,
        "cv": 0.5,
        "correlation": 0.5,
        "step": "1 s",
    }
    cells = street({"generate": {**drawn, "length": "99 s"}, "end": "loop"})
    one, two = topology([STREET], cells), topology([STREET], cells)
    up, down = one.traces.values()
    assert up == down
    assert one.traces == two.traces
    shares = np.asarray(up.trace.rates_bytes_per_s)
    assert shares.max() == 1
    assert 0 < shares.min() < 0.6
    traces = topology([STREET], street({"generate": ONOFF, "end": "loop"})).traces
    assert [set(air.trace.rates_bytes_per_s) for air in traces.values()] == [
        {1.0, 0.4}
    ] * 2


def test_show_fleet_says_what_a_cell_has_of_the_air(tmp_path, capsys):
    cells = street({"generate": ONOFF, "end": "loop"})
    cells["hall"] = {"cellular": {}, "share": 0.5}
    (tmp_path / "s.json").write_text(
        json.dumps(scenario([STREET, {**STREET, "cell": "hall"}], cells))
    )
    picture = str(tmp_path / "f.svg")
    assert main(["show", "fleet", str(tmp_path / "s.json"), "--out", picture]) == 0
    said = capsys.readouterr().out
    assert "cell street, whose share of the air varies" in said
    assert "cell hall, which has 0.5 of the air" in said


MEMBER = {"cell": "home", "mcs": 7}


def test_a_graph_carries_cells_at_its_nodes():
    built = topology(
        [MEMBER, {"at": "ap", "up": "1 Mbps"}],
        {"home": {"wifi": {"standard": "n"}, "at": "ap"}},
        topology="graph",
        edges=[{"between": ["ap", "server"], "up": "10 Mbps", "down": "9 Mbps"}],
    )
    names = [built.link_name(link) for link in built.path(1, "up").links]
    assert names == ["airtime of cell home", "ap>server"]
