"""Work at the server within participations, and barriers with deadlines: hand-worked
instants, blame, drop-outs, checkpoints.
"""

from dataclasses import dataclass

import pytest
import sim_worlds as sim
import worlds
from test_sim_clock import spans
from test_sim_policies import lose_at

from simfed import register
from simfed.ground import SERVER, Field, Method, Plan, Work
from simfed.ground.registry import registry
from simfed.net import Star
from simfed.verify import verify

MODEL = "lenet5-half"
TRAINING = Work("training", MODEL, 32)
UP = {"counts": Field("counts", 250)}


@dataclass(frozen=True)
class Served(Method):
    """Each client's 1000 bytes are worked on by the server before it goes on."""

    def plan(self, setting, who, round):
        return Plan({}, (), UP)

    def participate(self, setting, client):
        yield from client.send(1000.0)
        yield from client.work(TRAINING._replace(kind="half"), at=SERVER)
        yield from client.send()


@dataclass(frozen=True)
class Gated(Method):
    """Trains and waits at a barrier with a deadline."""

    def plan(self, setting, who, round):
        return Plan({}, (TRAINING,), UP)

    def participate(self, setting, client):
        yield from client.work()
        yield from client.wait("sums", deadline_s=1.5)
        yield from client.send()


@pytest.fixture(autouse=True)
def _registered():
    kinds = {"served": Served, "gated": Gated}
    for name, kind in kinds.items():
        register("method", name, kind, replace=True)
    yield
    for name in kinds:
        registry("method").remove(name)


def world(kind, clients=1, rounds=1, recorder=None, **changes):
    """What travels up takes size / 1000 s, each on its own; client c trains c + 1 s."""
    server_device = changes.pop("server_device", None)
    plain = sim.scenario(rounds=rounds, clients=clients, method=kind, **changes)
    star = Star(clients, up_bytes_per_s=1000.0)
    devices = [sim.Fixed(1.0 + c) for c in range(clients)]
    return sim.build(
        plain,
        star=star,
        devices=devices,
        recorder=recorder,
        server_device=server_device,
    )


def test_work_on_the_server_queues_for_its_one_processor():
    played = world("served", clients=3, server_device=sim.Fixed(2.0)).run()
    # all messages are there at 1; the server needs 2 s for each, in order of the
    # clients
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
    assert [row["outcome"] for row in rows] == [
        "aggregated",
        "aggregated",
        "failed",
        "failed",
    ]
    assert spans(played, "client 0")[1] == ("barrier", "sums", 1.0, 2.5)
    assert [row["uplink_s"] for row in rows] == [1.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("at_s", "spans_of_it"),
    [
        (2.0, [("upload", "upload", 0.0, 1.0), ("barrier", "turn", 1.0, 2.0)]),
        (
            4.0,
            [
                ("upload", "upload", 0.0, 1.0),
                ("barrier", "turn", 1.0, 3.0),
                ("barrier", "half", 3.0, 4.0),
            ],
        ),
    ],
)
def test_who_leaves_in_the_queue_or_at_the_server_makes_room(at_s, spans_of_it):
    simulation = world("served", clients=3, server_device=sim.Fixed(2.0))
    played = lose_at(simulation, at_s, 1, "dropped").run()
    assert spans(played, "client 1")[: len(spans_of_it)] == spans_of_it
    rows = played.rows("participations")
    assert [row["outcome"] for row in rows] == ["aggregated", "dropped", "aggregated"]
    last = ("half", "half", max(at_s, 3.0), max(at_s, 3.0) + 2.0)
    assert spans(played, "server · steps")[-1] == last
    assert rows[1]["uplink_bytes"] == 1000.0


def test_a_run_without_any_span_is_told_as_it_is(tmp_path):
    """Nothing takes time: no track has a span, which no check may stumble over."""
    keys = {
        "clients[0].device": {"training": "0 s", "compression": "0 s"},
        "clients[0].link": {},
    }
    run = worlds.play(worlds.world("tiny", keys), tmp_path / "run", time_only=True)
    assert len(run.spans) == 0
    assert "\n".join(verify(run.path)) == ""
