"""Edge servers: to their clients a server, to the cloud a client."""

from dataclasses import dataclass

import pytest
from sim_worlds import group, scenario

from simfed.experiment import Checks, Parts
from simfed.experiment.running import (
    build_simulation,
    make_method_workload,
    make_time_only_workload,
)
from simfed.learn import Averaging
from simfed.record import Recorder

SLOW = {"profile": "rtx3090-ryzen4800h", "speed": 0.2, "noise": {"cv": 0.3}}
CLIENTS = [
    group(3, link={"up": "5 Mbps", "down": "20 Mbps"}),
    group(3, device=SLOW, link={"up": "1 Mbps", "down": "9 Mbps"}),
]
BACKBONE = {"up": "10 Mbps", "down": "50 Mbps", "latency": "20 ms"}
MODES = {
    "synchronous": {},
    "deadline": {"mode": "deadline", "deadline": "350 ms", "late": "merge"},
    "first": {"mode": "first", "over_selection": 0.6},
    "buffered": {"mode": "buffered", "buffer": 2, "concurrency": 4},
    "asynchronous": {"mode": "asynchronous", "concurrency": 3},
}
MODEL_BYTES = 4 * 15_738
MBPS = 1e6 / 8


def world(
    edges=None, cloud=None, *, count=1, tier=None, method="fedavg", rounds=4, **changes
):
    """Six clients below `count` nodes.

    `edges`: keys of their edge servers, None: there are none.
    """
    at_edges = {} if edges is None else {"edge_servers": {"at": "edge", **edges}}
    tree = {
        "topology": "tree",
        "tiers": [{"name": "edge", "count": count, **(tier or {})}],
    }
    return scenario(
        CLIENTS, rounds=rounds, method=method, client_order="round-robin", network=tree,
        compression={"k": 500}, policy={"kind": "uniform", "strategy": "top-k"},
        aggregation={**(cloud or {}), **at_edges}, **changes,
    )  # fmt: skip


def play(scenario, *, learn=False):
    parts, recorder = Parts(scenario), Recorder()
    assert Checks(parts, time_only=not learn).errors() == []
    workload = (
        make_method_workload(parts, 1, "cpu")
        if learn
        else make_time_only_workload(parts)
    )
    build_simulation(parts, workload, recorder).run()
    workload.close()
    return recorder


def rows(recorder, table, **only):
    """The rows whose columns have these values."""
    told = recorder.table(table).to_pylist()
    return [row for row in told if only.items() <= row.items()]


@pytest.mark.parametrize("mode", MODES)
def test_one_edge_server_with_free_links_above_is_the_flat_run(mode):
    some = {"participation": {"clients_per_round": 3}} if mode == "first" else {}
    flat = play(world(cloud=MODES[mode], **some))
    tiered = play(world(MODES[mode], **some))
    for table in ("rounds", "participations", "links"):
        assert rows(tiered, table) == rows(flat, table)
    clients = [row for row in rows(tiered, "spans") if row["track"] != "edge"]
    assert clients == rows(flat, "spans")


@pytest.mark.parametrize(
    ("method", "mode"),
    [("fedavg", "deadline"), ("fedopt", "synchronous"), ("scaffold", "buffered")],
)
def test_it_learns_as_the_flat_run_does_to_the_bit(method, mode):
    options = {"method": method, "rounds": 3, "training": {"local_steps": 1}}
    flat = play(world(cloud=MODES[mode], **options), learn=True)
    tiered = play(world(MODES[mode], **options), learn=True)
    for table in ("rounds", "prototypes", "participations"):
        assert rows(tiered, table) == rows(flat, table)


def test_several_edge_servers_that_merge_once_learn_what_one_server_does():
    options = {"training": {"local_steps": 2}, "method": "fedprox", "count": 3}
    flat, tiered = (
        rows(
            play(world(edges, tier=tier, rounds=2, **options), learn=True), "prototypes"
        )
        for edges, tier in ((None, None), ({}, BACKBONE))
    )
    for one, other in zip(flat, tiered, strict=True):
        assert other["test_loss"] == pytest.approx(one["test_loss"], rel=1e-5)


def test_the_instants_of_two_merges_between_two_transfers_are_sums():
    recorder = play(world({"merges": 2}, count=3, tier=BACKBONE, rounds=1))
    merges = {(row["node"], row["merge"]): row for row in rows(recorder, "merges")}
    begun_s = 0.02 + MODEL_BYTES / (50 * MBPS)
    assert merges["edge-1", 1]["started_at_s"] == pytest.approx(begun_s, rel=1e-12)
    assert merges["edge-1", 2]["started_at_s"] == merges["edge-1", 1]["finished_at_s"]
    server = merges.pop(("server", 1))
    last_s = max(row["finished_at_s"] for row in merges.values())
    ended_s = last_s + 0.02 + MODEL_BYTES / (10 * MBPS)
    assert server["finished_at_s"] == pytest.approx(ended_s, rel=1e-12)
    assert (server["participants"], server["uplink_bytes"]) == (3, 3 * MODEL_BYTES)
    assert len(rows(recorder, "participations")) == 2 * 6


def test_what_an_edge_server_forwards_too_late_is_lost_with_all_that_it_merged():
    cloud = {"mode": "deadline", "deadline": "0.7 s"}
    recorder = play(world({"merges": 3}, cloud, count=3, tier=BACKBONE, rounds=2))
    assert {row["outcome"] for row in rows(recorder, "participations")} == {"dropped"}
    assert rows(recorder, "merges")[-1]["participants"] == 3
    assert len(rows(recorder, "rounds", critical_phase="deadline")) == 2


def test_an_edge_server_that_goes_down_loses_what_it_got():
    restarts = {"between": "1 s", "lasts": "100 ms"}
    recorder = play(world({"restarts": restarts}, count=3, tier=BACKBONE, rounds=8))
    down = rows(recorder, "spans", kind="restart")
    assert down
    assert all(row["track"].startswith("edge-") for row in down)
    assert len(rows(recorder, "participations", outcome="dropped")) == 2 * len(down)


def test_an_edge_server_waits_for_its_last_upload_and_then_decompresses_all():
    device = {"device": {"decompression": "50 ms"}}
    recorder = play(world(device, count=3, tier=BACKBONE, rounds=2))
    for number in range(3):
        for round in (1, 2):
            mine = {"track": f"edge-{number}", "round": round}
            [wait] = rows(recorder, "spans", kind="waiting", **mine)
            assert wait["name"] == "merge 1"
            at_s = wait["finished_at_s"]
            work = rows(recorder, "spans", kind="decompression", **mine)
            assert len(work) == 2
            for row in work:
                assert row["started_at_s"] == at_s
                at_s = row["finished_at_s"]
                assert at_s - row["started_at_s"] == pytest.approx(0.05)


@dataclass(frozen=True)
class Talking(Averaging):
    """Averaging with a message before its upload."""

    two_levels = True

    def participate(self, setting, client):
        yield from client.receive()
        yield from client.send(64.0)
        yield from client.work()
        yield from client.send()


def test_edge_servers_cannot_pass_on_what_is_beside_the_model(add_part):
    add_part("method", "talking", Talking)
    made = world({"merges": 2}, count=2, tier=BACKBONE, method="talking")
    errors = Checks(Parts(made), time_only=True).errors()
    assert [error.where for error in errors] == ["method"]
