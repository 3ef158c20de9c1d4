"""Radio cells in scenarios: what stands there, and what it becomes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import simpy
import worlds
import yaml

import simfed
from simfed.cli import main
from simfed.experiment import check_parts
from simfed.net import FlowStart, Network, play
from simfed.net.cells import CELLULAR_LATENCY_S, WIFI_LATENCY_S, Wifi
from simfed.record import explain_rounds
from simfed.scenario import validate_scenario
from simfed.verify import find_broken

MBPS = 1e6 / 8
N = {"wifi": {"standard": "n"}}
HOME = {"home": N}


def scenario(links, cells=HOME, **network):
    """Two clients behind each link."""
    [group] = worlds.TINY["clients"]
    changes = {
        "method": "fedkd",
        "dataset.public": 16,
        "prototypes.a.model": "lenet5-half",
        "compression.k": 100,
        "clients": [{**group, "link": link} for link in links],
        "network": {"cells": cells, **network},
    }
    return worlds.change(worlds.TINY, changes)


def topology(*args, folder=Path(), **network):
    made = validate_scenario(scenario(*args, **network), source="s", folder=folder)
    return check_parts(made, "s", time_only=True).topology


def list_links(topology, *ways):
    return [topology.link_name(k) for way in ways for k in topology.path(*way).links]


MEMBER = {"cell": "home", "mcs": 7}
AIR = "airtime of cell home"


def test_rounds_say_whose_airtime_was_waited_for(tmp_path):
    """One access point behind a line, boards of two kinds: rounds, blame, table,
    invariants.
    """
    plain = scenario(
        [MEMBER, {"cell": "home", "rate": "6.5 Mbps"}],
        {"home": {"wifi": {"standard": "n", "width": "20 MHz"}, "at": "dsl"}},
        topology="tree",
        tiers=[
            {"name": "dsl", "up": "40 Mbps", "down": "100 Mbps", "latency": "10 ms"}
        ],
        model="tcp",
    )
    run = simfed.run(plain, out=tmp_path, time_only=True, progress=False)
    assert set(run.rounds["critical_client"]) <= {2, 3}
    assert set(run.rounds["critical_link"]) == {AIR}
    assert f", shared {AIR}" in explain_rounds(run.table)[1]
    in_air = run.links["link"] == AIR
    air = run.links[in_air]
    assert (air["airtime_s"] <= (air["to_s"] - air["from_s"]) * (1 + 1e-9)).all()
    sent = run.participations[["uplink_bytes", "downlink_bytes"]].to_numpy().sum()
    assert air["bytes"].sum() == pytest.approx(sent * 1502 / 1448)
    assert run.links[~in_air]["airtime_s"].isna().all()
    path = tmp_path / "links.parquet"
    table = pq.read_table(path)
    at, twice = (
        table.column_names.index("airtime_s"),
        pc.multiply(table["airtime_s"], 2),
    )
    pq.write_table(table.set_column(at, "airtime_s", twice), path)
    broken = find_broken(simfed.load_run(tmp_path))
    assert "have more airtime than time" in " ".join(broken)


def test_clients_of_a_cell_have_its_airtime_in_place_of_links():
    built = topology([MEMBER, {"up": "5 Mbps", "latency": "3 ms"}])
    path = built.path(0, "down")
    assert list_links(built, (0, "down")) == [AIR]
    (cost,) = path.air.costs.values()
    assert 1 / cost == pytest.approx(float(Wifi("n").alone(65 * MBPS)))
    assert (path.latency_s, path.rtt_s) == (WIFI_LATENCY_S, 2 * WIFI_LATENCY_S)
    assert built.path(2, "up").air is None


STREET = {"cell": "street", "up": "8 Mbps", "down": "8 Mbps"}


def street(share):
    return {"street": {"cellular": {}, "share": share}}


def test_cellular_cell_has_an_airtime_for_each_way_and_weights_by_rates():
    link = {**STREET, "down": {"choice": {"values": ["9 Mbps"]}}}
    cells = {"street": {"cellular": {"scheduler": "rr"}, "share": 0.5}}
    built = topology([link, {**link, "up": "24 Mbps"}], cells)
    up, down = built.path(0, "up"), built.path(0, "down")
    assert list_links(built, (0, "up"), (0, "down")) == [
        "airtime of cell street, up",
        "airtime of cell street, down",
    ]
    assert (up.air.weight, down.air.weight) == (0.5, 1.0)
    assert built.capacities_bytes_per_s[up.links[0]] == 0.5
    assert up.latency_s == CELLULAR_LATENCY_S


FADES = yaml.safe_load("""
{kind: lognormal-ar1, cv: 0.5, correlation: 0.5, step: 1 s, length: 99 s}
""")


def test_rates_may_be_drawn_or_vary_per_client():
    drawn = {"uniform": {"low": "10 Mbps", "high": "60 Mbps"}}
    fades = {"generate": {**FADES, "mean": "8 Mbps"}, "end": "loop"}
    built = topology([{"cell": "home", "rate": rate} for rate in (drawn, fades)])
    ups, downs = built.capacities_bytes_per_s[:8].reshape(4, 2).T
    assert (ups == downs).all()
    assert len({*ups}) == 4
    assert {*built.traces} == {4, 5, 6, 7}
    up, down, other = (built.traces[k].trace.rates_bytes_per_s for k in (4, 5, 6))
    assert up == down != other
    assert built.path(2, "up").links == (4, *built.path(0, "up").links)


CELLS = {
    **{
        fair: {"wifi": {"standard": "n", "fair": fair}}
        for fair in ("airtime", "packets")
    },
    "cellular": {"cellular": {}},
}


def list_ends(folder, fair, slow, falls_at_s=None):
    """When uploads of a client at 65 Mbps and one at `slow` end.

    Of the latter's own 65 Mbps until it falls.
    """
    (folder / "rate.csv").write_text(f"0,{65 * MBPS}\n{falls_at_s},{slow * MBPS}\n")
    falls = {"file": "rate.csv", "format": "csv", "end": "hold", "rate_unit": "B/s"}
    keys = ("up", "down") if fair == "cellular" else ("rate",)
    links = [
        {"cell": "home", **dict.fromkeys(keys, rate)}
        for rate in ("65 Mbps", falls if falls_at_s else f"{slow} Mbps")
    ]
    built = topology(links, {"home": CELLS[fair]}, folder=folder)
    sends = [FlowStart(0, client, 250_000) for client in (0, 2)]
    return [end.duration_s for end in play(built, sends)]


@pytest.mark.parametrize("fair", CELLS)
def test_rate_that_falls_before_it_matters_is_the_rate_that_it_falls_to(tmp_path, fair):
    fixed = list_ends(tmp_path, fair, 6.5)
    assert list_ends(tmp_path, fair, 6.5, 1e-4) == pytest.approx(fixed)


@pytest.mark.parametrize("fair", CELLS)
def test_weights_follow_a_rate_that_falls_in_the_middle(tmp_path, fair):
    """Half of the time each, whatever the slow one's rate, where airtime is shared
    evenly; as many turns each where packets are. Until the fall both get the same, then
    by weight; who is left has the air alone.
    """
    falls_at_s = 0.03
    alone = weights = np.array([65.0, 6.5]) * MBPS
    latency_s = CELLULAR_LATENCY_S
    if fair != "cellular":
        wifi, latency_s = Wifi("n", fair=fair), WIFI_LATENCY_S
        alone, weights = wifi.alone(alone), wifi.weights(alone)[0]
    left = np.full(2, 250_000 - (falls_at_s - latency_s) * alone[0] / 2)
    together = weights / (weights / alone).sum()
    first_s = falls_at_s + left[0] / together[0]
    last_s = first_s + (left[1] - together[1] * (first_s - falls_at_s)) / alone[1]
    ends_s = list_ends(tmp_path, fair, 6.5, falls_at_s)
    assert ends_s == pytest.approx([first_s, last_s])
    if fair != "packets":
        assert first_s == pytest.approx(list_ends(tmp_path, fair, 65)[0])


@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_share_of_the_air_may_vary(tmp_path, factor):
    """A neighbour comes at 1 s: 1 MB/s until then, 0.5 MB/s from then on.

    Uploads, 9 ms on their way, have sent 0.991 of 2 MB at 1 s, so that 2.018 s are
    left; the download, in an airtime of its own, ends before.
    """
    (tmp_path / "air.csv").write_text(f"at,share\n0,{1 / factor}\n1,{0.5 / factor}\n")
    comes = {"file": "air.csv", "format": "csv", "end": "hold", "factor": factor}
    share = {**comes, "time_column": "at", "rate_column": "share"}
    env = simpy.Environment()
    network = Network(env, topology([STREET], street(share), folder=tmp_path))
    sent = (0, 1e6, "up"), (1, 1e6, "up"), (0, 2e5, "down")
    transfers = [network.send(*one) for one in sent]
    env.run(env.all_of(transfers))
    ends_s = [transfer.value for transfer in transfers]
    assert ends_s == pytest.approx([3.018, 3.018, 0.209])


def list_shares(**generate):
    built = topology([STREET], street({"generate": generate, "end": "loop"}))
    return [air.trace.rates_bytes_per_s for air in built.traces.values()]


ONOFF = yaml.safe_load("""
{kind: markov-on-off, high: 1, low: 0.4, mean_high: 9 s, mean_low: 3 s}
""")


def test_shares_are_generated_from_the_seed_and_stay_shares():
    up, down = list_shares(**FADES, mean=0.8)
    assert up == down
    assert [up, down] == list_shares(**FADES, mean=0.8)
    assert max(up) == 1
    assert 0 < min(up) < 0.6
    assert [{*shares} for shares in list_shares(**ONOFF)] == [{1.0, 0.4}] * 2


def test_show_fleet_says_what_a_cell_has_of_the_air(tmp_path, capsys):
    cells = street({"generate": ONOFF, "end": "loop"})
    cells["hall"] = {"cellular": {}, "share": 0.5}
    path = tmp_path / "s.json"
    path.write_text(json.dumps(scenario([STREET, {**STREET, "cell": "hall"}], cells)))
    assert main(["show", "fleet", str(path), "--out", f"{tmp_path}/f.svg"]) == 0
    said = capsys.readouterr().out
    assert "cell street, whose share of the air varies" in said
    assert "cell hall, which has 0.5 of the air" in said


def test_graph_carries_cells_at_its_nodes():
    built = topology(
        [MEMBER, {"at": "ap", "up": "1 Mbps"}],
        {"home": {**N, "at": "ap"}},
        topology="graph",
        edges=[{"between": ["ap", "server"], "up": "10 Mbps", "down": "9 Mbps"}],
    )
    assert list_links(built, (1, "up")) == [AIR, "ap>server"]
