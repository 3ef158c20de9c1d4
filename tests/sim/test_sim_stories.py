"""Methods that tell their own story: messages beside the model, barriers, maybe with
deadlines, and work at the server within participations.
"""

from dataclasses import dataclass

import pytest
import sim_worlds as sim
import worlds

from simfed import InputError, InputErrors, RunFailed, register
from simfed.ground import SERVER, Field, Method, Plan, Work
from simfed.net import Star
from simfed.verify import verify

MODEL = "lenet5-half"
TRAINING = Work("training", MODEL, 32)
UP = {"counts": Field("counts", 250)}


@dataclass(frozen=True)
class Staged(Method):
    """Three stages as in secure aggregation: keys, shares, then the update."""

    gate: str = "shares"

    def plan(self, setting, who, round):
        down = {"weights": Field("weights", who.parameters)}
        return Plan(down, (TRAINING,), UP)

    def participate(self, setting, client):
        yield from client.send(1000.0)
        yield from client.wait("keys")
        yield from client.receive(2000.0)
        yield from client.work()
        yield from client.send(500.0)
        yield from client.wait(self.gate)
        yield from client.receive()
        yield from client.send()


@dataclass(frozen=True)
class Split(Method):
    """Split learning: activations up and gradients down for each of three batches.

    The client's half is priced by its share of the work.
    """

    def plan(self, setting, who, round):
        return Plan({}, (), UP)

    def participate(self, setting, client):
        for _ in range(3):
            yield from client.work(Work("training", MODEL, 32, 0.5, kind="half"))
            yield from client.send(800.0)
            yield from client.receive(400.0)
        yield from client.send()


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
    for kind in (Staged, Split, Served, Gated):
        add_part("method", kind.__name__.lower(), kind)


def world(kind="staged", trains_s=(1, 2, 3), server_device=None, **options):
    """What travels up takes size / 1000 s, down size / 2000."""
    clients = len(trains_s)
    plain = sim.scenario(rounds=1, clients=clients, method={"kind": kind, **options})
    star = Star(clients, up_bytes_per_s=1000.0, down_bytes_per_s=2000.0)
    return sim.build(
        plain,
        star=star,
        devices=[sim.Fixed(float(seconds)) for seconds in trains_s],
        downlink_bytes=4000.0 if kind == "staged" else 0.0,
        server_device=server_device,
    )


def blame(played):
    return played.rows("rounds", "duration_s", "critical_client", "critical_phase")


def test_stages_wait_for_each_other_to_the_hand_worked_instants():
    played = world().run()
    assert played.spans("client 0") == [
        ("upload", "upload", 0.0, 1.0),
        ("download", "download", 1.0, 2.0),
        ("training", "training", 2.0, 3.0),
        ("upload", "upload", 3.0, 3.5),
        ("barrier", "shares", 3.5, 5.5),  # for client 2, which trains until 5
        ("download", "download", 5.5, 7.5),
        ("upload", "upload", 7.5, 8.5),
    ]
    names = "uplink_s", "downlink_s", "waiting_s", "uplink_bytes", "downlink_bytes"
    first, _, last = played.rows("participations", *names)
    assert first == (2.5, 3.0, 2.0, 2500.0, 6000.0)
    assert last == (2.5, 3.0, 0.0, 2500.0, 6000.0)
    # all end at 8.5; what they waited for is the training of client 2, which came to
    # shares last
    assert blame(played) == [(8.5, 2, "training")]


@pytest.mark.parametrize(
    ("at_s", "opens_at_s"),
    [
        (0.5, 4.5),  # on its way to keys: client 1 comes to shares last
        (4.0, 4.5),  # in training, between barriers
        (5.25, 5.25),  # on its way to shares: they open at once
        (6.0, 5.5),  # behind them: nobody waits for it any longer
    ],
)
def test_a_drop_out_in_each_stage_is_told_to_every_barrier_it_would_have_come_to(
    at_s, opens_at_s
):
    played = world().lose(at_s, 2).run()
    outcomes = ["aggregated", "aggregated", "dropped"]
    assert played.column("participations", "outcome") == outcomes
    assert ("barrier", "shares", 3.5, opens_at_s) in played.spans("client 0")
    assert played.column("rounds", "duration_s") == [opens_at_s + 3.0]


def test_who_was_lost_at_a_barrier_is_not_who_came_to_it_last():
    # client 1 comes at 3.5; client 0 at 7.5, for half a second; client 2 never: the
    # barrier opens with its loss
    played = world(trains_s=(5, 1, 20)).lose(8.0, 0).lose(9.0, 2).run()
    assert blame(played) == [(12.0, 1, "download")]


def test_a_barrier_may_be_called_what_a_pause_before_sending_again_is():
    played = world(gate="timeout").run()
    assert ("barrier", "timeout", 3.5, 5.5) in played.spans("client 0")
    assert played.column("participations", "waiting_s") == [2.0, 1.0, 0.0]


def test_who_waits_at_a_barrier_can_leave():
    played = world().lose(4.0, 0).run()
    assert played.rows("participations", "outcome", "waiting_s", "offline_s") == [
        ("dropped", 0.5, 4.5),
        ("aggregated", 1.0, 0.0),
        ("aggregated", 0.0, 0.0),
    ]


def test_split_learning_is_as_long_as_its_batches():
    played = world("split", trains_s=(1, 2)).run()
    names = "training_s", "uplink_s", "downlink_s", "uplink_bytes"
    for client, row in enumerate(played.rows("participations", *names)):
        expected = 1.5 * (client + 1), 3 * 0.8 + 1.0, 3 * 0.2, 3 * 800.0 + 1000.0
        assert row == pytest.approx(expected, rel=1e-12)


def test_work_on_the_server_queues_for_its_one_processor():
    played = world("served", server_device=sim.Fixed(2.0)).run()
    # all messages are there at 1; the server needs 2 s for each, in order of the
    # clients
    turns = played.spans("server · steps")
    assert [span[2:] for span in turns] == [(1.0, 3.0), (3.0, 5.0), (5.0, 7.0)]
    assert played.rows("participations", "training_s", "uplink_s", "waiting_s") == [
        (0.0, 2.0, 2.0 + 4.0),
        (0.0, 2.0, 4.0 + 2.0),
        (0.0, 2.0, 6.0),
    ]
    assert blame(played)[0][::2] == (8.0, "half")


def test_a_barrier_opens_at_its_deadline_and_who_comes_later_fails():
    played = world("gated", trains_s=(1, 2, 3, 4)).run()
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
    played = world("served", server_device=sim.Fixed(2.0)).lose(at_s, 1).run()
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


def play(method, out=None, time_only=True, **more):
    keys = {
        "clients[0].count": 4,
        "clients[0].device": "x86-2core-vm",
        "prototypes.a.model": MODEL,
    }
    made = worlds.world("tiny", keys, method=method, **more)
    return worlds.play(made, out, time_only=time_only)


def test_what_is_learned_does_not_hang_on_messages_beside_the_model(add_part):
    from simfed.learn import FedAvg

    @dataclass(frozen=True)
    class Talking(FedAvg):
        def participate(self, setting, client):
            yield from client.send(1e4)
            yield from client.wait("keys")
            yield from super().participate(setting, client)

    add_part("method", "talking", Talking)
    plain, talking = (play(kind, time_only=False) for kind in ("fedavg", "talking"))
    assert talking.table("prototypes").equals(plain.table("prototypes"))
    assert talking.rounds["duration_s"].gt(plain.rounds["duration_s"]).all()


def play_told(tell, out=None, rounds=1):
    """Play a method whose clients do this."""

    @dataclass(frozen=True)
    class Told(Split):
        def participate(self, setting, client):
            return tell(client)

    register("method", "told", Told, replace=True)
    return play("told", out, rounds=rounds)


def test_a_server_that_keeps_clients_in_flight_refuses_barriers():
    asynchronous = {"mode": "asynchronous", "concurrency": 2}
    with pytest.raises(InputErrors, match="a server that starts its clients together"):
        play("staged", aggregation=asynchronous)


def never_tells(client):
    client.work()
    yield from client.send()


def yields_a_verb(client):
    yield client.send()


def sends_twice(client):
    yield from client.send()
    yield from client.send()


def goes_on_for_ever(client):
    while True:
        yield from client.work()


def breaks(client):
    yield from client.receive()
    raise KeyError("no such key")


def waits_alone(client):
    yield from client.wait(f"for {client.who.client}")
    yield from client.send()


@pytest.mark.parametrize(
    ("tell", "sentence"),
    [
        (
            lambda client: None,
            "client 0 is told nothing with `yield from`; it stood at its begin",
        ),
        (
            lambda client: client.receive(),
            "client 0 ends without send(), though the plan",
        ),
        (never_tells, "client 0 comes to send() before the verb ahead of it is told"),
        (
            yields_a_verb,
            "client 0 yields a generator, where every verb is told with `yield from`",
        ),
        (sends_twice, "client 0 sends twice; it stood at send()"),
        (
            goes_on_for_ever,
            "client 0 never ends: it is told 1,000,000 verbs; it stood at work",
        ),
        (breaks, "client 0 raises KeyError: 'no such key'; it stood at receive()"),
        (waits_alone, "client 0 waits for nobody at barrier 'for 0'"),
        (
            lambda client: client.wait("end", deadline_s=0.0),
            "client 0 waits at barrier 'end' for 0.0 s, not for more than 0 s",
        ),
        (
            lambda client: client.send(-1.0),
            "client 0 has send move -1.0 bytes; it stood at its beginning",
        ),
        (
            lambda client: client.work(at="edge"),
            "client 0 works at 'edge', which is neither client nor server",
        ),
    ],
)
def test_a_story_that_cannot_be_played_is_refused_before_the_run(tell, sentence):
    with pytest.raises(InputErrors) as raised:
        play_told(tell)
    assert f"method: the story of told: {sentence}" in str(raised.value)


def crossed(client):
    """Of two clients each waits for the other elsewhere."""
    for barrier in ("even", "odd")[:: 1 if client.who.client % 2 else -1]:
        yield from client.wait(barrier)
    yield from client.send()


def test_clients_that_wait_for_each_other_for_ever_are_named():
    with pytest.raises(RunFailed) as raised:
        play_told(crossed)
    assert str(raised.value) == (
        "the story of told never ends: client 0 stands at wait('odd'), client 1 stands "
        "at wait('even'), client 2 stands at wait('odd'), client 3 stands at "
        "wait('even'), and nothing is on the clock"
    )


def goes_astray(client):
    """Ends otherwise in the second round, which no check before the run has seen."""
    yield from client.receive()
    if client.round < 2:
        yield from client.send()


def test_a_story_that_goes_astray_later_ends_the_run_in_a_sentence(tmp_path):
    sentence = r"the story of told: client 0 ends without send\(\)"
    with pytest.raises(InputError, match=sentence):
        play_told(goes_astray, tmp_path / "run", rounds=3)
