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
DEVICE = {"decompression": "50 ms"}


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


def build(scenario, *, learn=False):
    parts, recorder = Parts(scenario), Recorder()
    assert Checks(parts, time_only=not learn).errors() == []
    workload = (
        make_method_workload(parts, 1, "cpu")
        if learn
        else make_time_only_workload(parts)
    )
    return build_simulation(parts, workload, recorder), recorder, workload


def play(scenario, *, learn=False):
    simulation, recorder, workload = build(scenario, learn=learn)
    simulation.run()
    workload.close()
    return recorder


def rows(recorder, table):
    return recorder.table(table).to_pylist()


def per_round(mode):
    return {"participation": {"clients_per_round": 3}} if mode == "first" else {}


@pytest.mark.parametrize("mode", MODES)
def test_one_edge_server_with_free_links_above_is_the_flat_run(mode):
    flat = play(world(cloud=MODES[mode], **per_round(mode)))
    tiered = play(world(MODES[mode], **per_round(mode)))
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
    options = {"rounds": 2, "training": {"local_steps": 2}, "method": "fedprox"}
    flat = play(world(**options, count=3), learn=True)
    tiered = play(world({}, **options, count=3, tier=BACKBONE), learn=True)
    for one, other in zip(
        rows(flat, "prototypes"), rows(tiered, "prototypes"), strict=True
    ):
        assert other["test_loss"] == pytest.approx(one["test_loss"], rel=1e-5)


def test_the_instants_of_two_merges_between_two_transfers_are_sums():
    recorder = play(world({"merges": 2}, count=3, tier=BACKBONE, rounds=1))
    merges = {(row["node"], row["merge"]): row for row in rows(recorder, "merges")}
    begun_s = 0.02 + MODEL_BYTES / (50 * MBPS)
    assert merges["edge-1", 1]["started_at_s"] == pytest.approx(begun_s, rel=1e-12)
    assert merges["edge-1", 2]["started_at_s"] == merges["edge-1", 1]["finished_at_s"]
    last_s = max(
        row["finished_at_s"] for row in merges.values() if row["node"] != "server"
    )
    ended_s = last_s + 0.02 + MODEL_BYTES / (10 * MBPS)
    assert merges["server", 1]["finished_at_s"] == pytest.approx(ended_s, rel=1e-12)
    assert merges["server", 1]["participants"] == 3
    assert merges["server", 1]["uplink_bytes"] == 3 * MODEL_BYTES
    assert len(rows(recorder, "participations")) == 2 * 6


def test_what_an_edge_server_forwards_too_late_is_lost_with_all_that_it_merged():
    cloud = {"mode": "deadline", "deadline": "0.7 s"}
    recorder = play(world({"merges": 3}, cloud, count=3, tier=BACKBONE, rounds=2))
    assert {row["outcome"] for row in rows(recorder, "participations")} == {"dropped"}
    assert rows(recorder, "merges")[-1]["participants"] == 3
    assert [row["critical_phase"] for row in rows(recorder, "rounds")] == [
        "deadline"
    ] * 2


def test_an_edge_server_that_goes_down_loses_what_it_got():
    restarts = {"between": "1 s", "lasts": "100 ms"}
    recorder = play(world({"restarts": restarts}, count=3, tier=BACKBONE, rounds=8))
    down = [row for row in rows(recorder, "spans") if row["kind"] == "restart"]
    assert down
    assert all(row["track"].startswith("edge-") for row in down)
    dropped = [
        row for row in rows(recorder, "participations") if row["outcome"] == "dropped"
    ]
    assert len(dropped) == 2 * len(down)


def test_its_device_decompresses_what_arrives():
    recorder = play(world({"device": DEVICE}, count=3, tier=BACKBONE, rounds=1))
    work = [row for row in rows(recorder, "spans") if row["kind"] == "decompression"]
    assert (
        sorted(row["track"] for row in work)
        == ["edge-0"] * 2 + ["edge-1"] * 2 + ["edge-2"] * 2
    )
    for row in work:
        assert row["finished_at_s"] - row["started_at_s"] == pytest.approx(0.05)


def test_an_edge_server_waits_from_a_merges_start_until_its_last_upload():
    recorder = play(world({"device": DEVICE}, count=3, tier=BACKBONE, rounds=2))
    waits = [row for row in rows(recorder, "spans") if row["kind"] == "waiting"]
    waits = [row for row in waits if row["track"].startswith("edge-")]
    assert sorted((row["track"], row["round"]) for row in waits) == [
        (f"edge-{number}", round) for number in range(3) for round in (1, 2)
    ]
    for wait in waits:
        one = (row for row in rows(recorder, "spans") if row["track"] == wait["track"])
        then = min(
            row["started_at_s"]
            for row in one
            if row["started_at_s"] > wait["started_at_s"]
        )
        assert wait["finished_at_s"] == then  # what it does with them begins
        assert wait["name"] == "merge 1"


@dataclass(frozen=True)
class Talking(Averaging):
    """Averaging with a message before its upload."""

    two_levels = True

    def participate(self, setting, client):
        yield from client.receive()
        yield from client.send(64.0)
        yield from client.work()
        yield from client.send()


PRIVATE = {
    "privacy": {"level": "client", "clip": 1.0, "noise": 1.0, "delta": 1e-5},
    "participation": {"clients_per_round": 3},
}


@pytest.mark.parametrize(
    ("changes", "where"),
    [(PRIVATE, "aggregation.edge_servers"), ({"method": "talking"}, "method")],
)
def test_what_edge_servers_cannot_pass_on_is_refused_before_anything_runs(
    changes, where, add_part
):
    add_part("method", "talking", Talking)
    made = world({"merges": 2}, count=2, tier=BACKBONE, **changes)
    errors = Checks(Parts(made), time_only=True).errors()
    assert [error.where for error in errors] == [where]
