"""Work at the server within participations, and barriers with deadlines: hand-worked
instants, blame, drop-outs, checkpoints.
"""

from dataclasses import dataclass

import pytest
import sim_worlds as sim
import worlds

from simfed.ground import SERVER, Field, Method, Plan, Work
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
def _registered(add_part):
    add_part("method", "served", Served)
    add_part("method", "gated", Gated)


def world(kind, clients, **more):
    """What travels up takes size / 1000 s, each on its own; client c trains c + 1 s."""
    plain = sim.scenario(rounds=1, clients=clients, method=kind)
    star = Star(clients, up_bytes_per_s=1000.0)
    devices = [sim.Fixed(1.0 + c) for c in range(clients)]
    return sim.build(plain, star=star, devices=devices, **more)


def test_work_on_the_server_queues_for_its_one_processor():
    played = world("served", 3, server_device=sim.Fixed(2.0)).run()
    # all messages are there at 1; the server needs 2 s for each, in order of the
    # clients
    turns = played.spans("server · steps")
    assert [span[2:] for span in turns] == [(1.0, 3.0), (3.0, 5.0), (5.0, 7.0)]
    assert played.rows("participations", "training_s", "uplink_s", "waiting_s") == [
        (0.0, 2.0, 2.0 + 4.0),
        (0.0, 2.0, 4.0 + 2.0),
        (0.0, 2.0, 6.0),
    ]
    assert played.rows("rounds", "duration_s", "critical_phase") == [(8.0, "half")]


def test_a_barrier_opens_at_its_deadline_and_who_comes_later_fails():
    played = world("gated", 4).run()
    # the first comes at 1, so it opens at 2.5 with clients 0 and 1
    told = played.rows("participations", "outcome", "uplink_s")
    assert told == [("aggregated", 1.0)] * 2 + [("failed", 0.0)] * 2
    assert played.spans("client 0")[1] == ("barrier", "sums", 1.0, 2.5)


@pytest.mark.parametrize(
    ("at_s", "waited"),
    [
        (2.0, [("barrier", "turn", 1.0, 2.0)]),
        (4.0, [("barrier", "turn", 1.0, 3.0), ("barrier", "half", 3.0, 4.0)]),
    ],
)
def test_who_leaves_in_the_queue_or_at_the_server_makes_room(at_s, waited):
    played = world("served", 3, server_device=sim.Fixed(2.0)).lose(at_s, 1).run()
    assert played.spans("client 1")[1 : len(waited) + 1] == waited
    rows = played.rows("participations", "outcome", "uplink_bytes")
    assert [outcome for outcome, _ in rows] == ["aggregated", "dropped", "aggregated"]
    assert rows[1][1] == 1000.0
    last = ("half", "half", max(at_s, 3.0), max(at_s, 3.0) + 2.0)
    assert played.spans("server · steps")[-1] == last


def test_a_run_without_any_span_is_told_as_it_is(tmp_path):
    """Nothing takes time: no track has a span, which no check may stumble over."""
    nothing = {"training": "0 s", "compression": "0 s"}
    made = worlds.world("tiny", {"clients[0].device": nothing, "clients[0].link": {}})
    run = worlds.play(made, tmp_path / "run", time_only=True)
    assert len(run.spans) == 0
    assert verify(run.path) == []
