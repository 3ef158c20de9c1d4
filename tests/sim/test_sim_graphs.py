"""Plans whose steps fork and join: hand-worked instants, lanes, blame, drop-outs, checkpoints."""

from dataclasses import dataclass
from itertools import pairwise

import pytest
import sim_worlds as sim
from test_sim_clock import spans
from test_sim_policies import lose_at

import simfed
from simfed.ground.errors import InputError
from simfed.ground.method import Field, Method, Plan, Work
from simfed.ground.registry import register, registry
from simfed.ground.steps import (
    CLIENT,
    DOWNLOAD,
    SERVER,
    UPLOAD,
    Do,
    Send,
    Wait,
    check_steps,
    message_up,
)
from simfed.net import Star
from simfed.report.trace import list_events
from simfed.verify.invariants import verify

MODEL = "lenet5-half"
TRAINING = Do(CLIENT, Work("training", MODEL, 32), "training")
UP = {"counts": Field("counts", 250)}


def up(size_bytes, stream=""):
    return Send(CLIENT, SERVER, "upload", size_bytes, stream)


@dataclass(frozen=True)
class Forked(Method):
    """Trains while a large message leaves, and joins both in the upload."""

    first: float = 3000.0

    def plan(self, setting, who, round):
        steps = message_up(500.0), TRAINING, message_up(self.first), UPLOAD
        return Plan({}, (), UP, steps=steps, after=((), (0,), (0,), (1, 2)))


@dataclass(frozen=True)
class Units(Method):
    """Two units become ready at once, a third while the first is done; one message each."""

    stream: str = ""

    def plan(self, setting, who, round):
        steps = (TRAINING, TRAINING, up(500.0), TRAINING, up(2000.0, self.stream),
                 up(3000.0, self.stream), UPLOAD)  # fmt: skip
        after = ((), (), (), (2,), (0,), (1,), (3, 4, 5))
        return Plan({}, (), UP, steps=steps, after=after)


@dataclass(frozen=True)
class Served(Method):
    """Each client's 1000 bytes are worked on by the server before it goes on."""

    def plan(self, setting, who, round):
        served = Do(SERVER, Work("training", MODEL, 32), "half")
        return Plan({}, (), UP, steps=(message_up(1000.0), served, UPLOAD))


@dataclass(frozen=True)
class Gated(Method):
    """Trains and waits at a barrier with a deadline."""

    least: int = 1

    def plan(self, setting, who, round):
        return Plan({}, (), UP, steps=(TRAINING, Wait("sums", self.least, deadline_s=1.5), UPLOAD))


@pytest.fixture(autouse=True)
def _registered():
    kinds = {"forked": Forked, "units": Units, "served": Served, "gated": Gated}
    for name, kind in kinds.items():
        register("method", name, kind, replace=True)
    yield
    for name in kinds:
        registry("method").remove(name)


def world(kind, clients=1, rounds=1, recorder=None, options=(), **changes):
    """What travels up takes size / 1000 s, each on its own; client c trains c + 1 s."""
    group = {"count": clients, "prototype": "small", "device": "rtx3090-ryzen4800h"}
    method = {"kind": kind, **dict(options)}
    server_device = changes.pop("server_device", None)
    plain = sim.scenario(rounds=rounds, clients=[group], method=method, **changes)
    star = Star(clients, up_bytes_per_s=1000.0)
    devices = [sim.Fixed(1.0 + c) for c in range(clients)]
    return sim.build(
        plain, star=star, devices=devices, recorder=recorder, server_device=server_device
    )


def test_a_fork_is_as_long_as_its_longer_branch():
    played = world("forked").run()
    # the message ends at 0.5; training until 1.5, the other message until 3.5; then 1000 bytes
    assert spans(played, "client 0") == [
        ("upload", "upload", 0.0, 0.5),
        ("training", "training", 0.5, 1.5),
        ("upload", "upload", 1.5, 3.5),
        ("upload", "upload", 3.5, 4.5),
    ]
    assert spans(played, "client 0 · link") == [
        ("upload", "upload", 0.0, 0.5),
        ("upload", "upload", 0.5, 3.5),
        ("upload", "upload", 3.5, 4.5),
    ]
    (row,) = played.rows("participations")
    assert (row["training_s"], row["uplink_s"], row["waiting_s"]) == (1.0, 3.5, 0.0)
    assert row["uplink_bytes"] == 4500.0
    assert played.column("rounds", "critical_phase") == ["upload"]


def test_the_critical_path_goes_through_the_branch_that_ended_last():
    played = world("forked", clients=1, options={"first": 100.0}).run()
    # training ends at 1.5, the message at 0.6: 0.5 + 1 + 1 = training, uploads 1.5
    assert played.column("rounds", "duration_s") == [2.5]
    assert played.column("rounds", "critical_phase") == ["upload"]
    slow = world("forked", clients=4, options={"first": 100.0}).run()
    assert slow.column("rounds", "critical_client") == [3]
    assert slow.column("rounds", "critical_phase") == ["training"]


def test_a_processor_does_one_unit_at_a_time_in_order_of_readiness():
    played = world("units").run()
    # units 0 and 1 are ready at 0, unit 3 at 0.5: they are done by 1, 2 and 3
    training = [span for span in spans(played, "client 0") if span[0] == "training"]
    assert [span[2:] for span in training] == [(0.0, 1.0), (1.0, 2.0), (2.0, 3.0)]
    # both messages share the line of 1000 bytes/s from 2 on: 1000 of the first 2000 are left
    assert [span[2:] for span in spans(played, "client 0 · link")] == [
        (0.0, 0.5),
        (1.0, 4.0),
        (6.0, 7.0),
    ]
    assert [span[2:] for span in spans(played, "client 0 · link 2")] == [(2.0, 6.0)]


def test_messages_of_one_stream_queue():
    played = world("units", options={"stream": "line"}).run()
    assert [span[2:] for span in spans(played, "client 0 · link")] == [
        (0.0, 0.5),
        (1.0, 3.0),
        (3.0, 6.0),
        (6.0, 7.0),
    ]


def test_work_on_the_server_queues_for_its_one_processor():
    played = world("served", clients=3, server_device=sim.Fixed(2.0)).run()
    # all messages are there at 1; the server needs 2 s for each, in order of the clients
    assert [span[2:] for span in spans(played, "server · steps")] == [
        (1.0, 3.0),
        (3.0, 5.0),
        (5.0, 7.0),
    ]
    rows = played.rows("participations")
    assert [row["training_s"] for row in rows] == [0.0] * 3
    assert [row["uplink_s"] for row in rows] == [2.0] * 3
    assert [row["waiting_s"] for row in rows] == [2.0 + 4.0, 4.0 + 2.0, 6.0]
    assert played.column("rounds", "duration_s") == [8.0]
    assert played.column("rounds", "critical_phase") == ["half"]


def test_a_barrier_opens_at_its_deadline_and_who_comes_later_fails():
    played = world("gated", clients=4).run()
    # the first comes at 1, so it opens at 2.5 with clients 0 and 1
    rows = played.rows("participations")
    assert [row["outcome"] for row in rows] == ["aggregated", "aggregated", "failed", "failed"]
    assert spans(played, "client 0")[1] == ("barrier", "sums", 1.0, 2.5)
    assert [row["uplink_s"] for row in rows] == [1.0, 1.0, 0.0, 0.0]
    few = world("gated", clients=4, options={"least": 3}).run()
    assert {row["outcome"] for row in few.rows("participations")} == {"failed"}


@pytest.mark.parametrize("at_s", [0.25, 0.75, 2.0, 3.75])
def test_who_leaves_in_any_step_of_a_fork_leaves_all_of_them(at_s):
    played = lose_at(world("forked", clients=2), at_s, 0, "dropped").run()
    row, other = played.rows("participations")
    assert (row["outcome"], other["outcome"]) == ("dropped", "aggregated")
    moved = min(at_s, 0.5) + max(min(at_s, 3.5) - 0.5, 0.0) + max(at_s - 3.5, 0.0)
    assert row["uplink_bytes"] == pytest.approx(1000.0 * moved)
    spent_s = row["uplink_s"] + row["training_s"]
    assert spent_s == pytest.approx(at_s)


@pytest.mark.parametrize("kind", ["forked", "units", "served", "gated"])
def test_a_run_of_graphs_keeps_every_invariant_and_goes_on_from_any_border(kind, tmp_path):
    late = {"mode": "deadline", "deadline": "2.2 s", "late": "merge"}
    options = {"stream": "line"} if kind == "units" else {}

    def made(recorder=None):
        return world(
            kind, clients=3, rounds=6, recorder=recorder, aggregation=late, options=options,
            server_device=sim.Fixed(0.8),
        )  # fmt: skip

    whole = sim.write(tmp_path / "run", made, made().scenario)
    assert "\n".join(verify(whole.path)) == ""
    slices = [event for event in list_events(whole) if event["ph"] == "X"]
    for thread in {event["tid"] for event in slices}:
        mine = sorted((e["ts"], e["dur"]) for e in slices if e["tid"] == thread)
        assert all(at + lasts <= after + 1e-3 for (at, lasts), (after, _) in pairwise(mine))
    for number, facts, again in sim.resumptions(made(), made):
        under_way = any(flight["running"] for flight in facts["simulation"]["flights"])
        assert number > 1 or under_way
        sim.assert_ends_alike(again, whole)


SCENARIO = {
    "name": "graphs", "rounds": 6,
    "policy": {"kind": "uniform", "strategy": "dense"}, "method": {"kind": "units"},
    "dataset": {"name": "mnist-mini"}, "prototypes": {"small": {"model": MODEL}},
    "clients": [{"count": 4, "prototype": "small", "device": "x86-2core-vm",
                 "link": {"up": "1 Mbps", "down": "2 Mbps"},
                 "availability": {"markov": {"on": "2 s", "off": "1 s"}},
                 "failure": {"upload": 0.1}}],
    "faults": {"messages": {"lost": 0.2, "doubled": 0.1, "timeout": "0.1 s", "tries": 3},
               "freezes": {"between": "1 s", "lasts": "0.1 s"}},
}  # fmt: skip


@pytest.mark.parametrize("kind", ["forked", "units", "served"])
def test_graphs_under_faults_and_absences_are_verified(kind, tmp_path):
    made = {**SCENARIO, "method": {"kind": kind}}
    run = simfed.run(made, tmp_path / "run", time_only=True, progress=False)
    assert {"dropped", "failed"} & set(run.participations["outcome"])
    assert "\n".join(verify(run.path)) == ""


@pytest.mark.parametrize("mode", [{"mode": "asynchronous"}, {"mode": "buffered", "buffer": 2}])
def test_servers_that_keep_clients_in_flight_take_graphs_without_barriers(mode, tmp_path):
    made = {**SCENARIO, "method": "served", "aggregation": {**mode, "concurrency": 3}}
    run = simfed.run(made, tmp_path / "run", time_only=True, progress=False)
    assert "\n".join(verify(run.path)) == ""
    assert "aggregated" in set(run.participations["outcome"])


@pytest.mark.parametrize(
    ("after", "sentence"),
    [
        (((), (0,)), "one tuple in `after` for each of 3 steps"),
        (((), (7,), (1,)), r"numbers of steps from 0 to 2 in after\[1\]"),
        (((), (2,), (1,)), r"got 'steps 1, 2, which never start'.*in a circle"),
        (((), (1,), (0,)), "steps 1, which never start"),
    ],
)
def test_an_order_that_leads_nowhere_is_refused(after, sentence):
    plan = Plan(
        {"a": Field("weights", 1)}, (), {"b": Field("update", 1)},
        steps=(DOWNLOAD, TRAINING, UPLOAD), after=after,
    )  # fmt: skip
    with pytest.raises(InputError, match=sentence):
        check_steps(plan, participants=4)


def test_a_run_without_any_span_is_told_as_it_is(tmp_path):
    """Nothing takes time: no track has a span, which no check may stumble over."""
    device = {"training": "0 s", "compression": "0 s"}
    group = {"count": 2, "prototype": "small", "device": device}
    made = {**SCENARIO, "method": "fedavg", "clients": [group]}  # links are unlimited
    del made["faults"]
    run = simfed.run(made, tmp_path / "run", time_only=True, progress=False)
    assert len(run.spans) == 0
    assert "\n".join(verify(run.path)) == ""
