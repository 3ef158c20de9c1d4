"""Clients that vanish, servers that are stopped, and what both come back to."""

import contextlib
import signal
import threading
import time

import deploy_worlds as worlds
import pytest
from test_deploy_loopback import CHANGES

import simfed
from simfed import RunFailed
from simfed.deploy import Patience, serve
from simfed.deploy.playing import Remote
from simfed.verify import verify


class Vanishes(Exception):
    pass


@pytest.mark.parametrize("downlink", [{}, CHANGES], ids=["models", "changes"])
def test_client_that_vanishes_is_dropped_and_may_join_again(out, monkeypatch, downlink):
    """Its process dies at its second task.

    Another one comes in its place, to which a whole model is sent. Client 0 is at work
    until that one is there, however long its coming takes.
    """
    plan = worlds.scenario(method="fedprox", rounds=5, downlink=downlink)
    crowd, joined, there = worlds.Crowd(), Remote.joined, threading.Event()
    tasks = []

    def note(world, client):
        joined(world, client)
        if client == 1:
            there.set()

    monkeypatch.setattr(Remote, "joined", note)

    class Dies(worlds.Wrapped):
        def work(self, parcel):
            tasks.append(parcel)
            if len(tasks) == 2:
                there.clear()
                crowd.begin_again(1)
                raise Vanishes
            return self._end.work(parcel)

    slow = {"client_0": there}
    with worlds.wrapped(1, Dies, lambda: not tasks):
        real = worlds.deployed(plan, out, crowd=crowd, slow=slow)
    rows = real.participations[real.participations["client"] == 1]
    assert isinstance(crowd.errors[1], Vanishes)
    assert rows["outcome"].tolist()[:2] == ["aggregated", "dropped"]
    assert rows["outcome"].iloc[-1] == "aggregated"
    whole = rows["downlink_bytes"] > 0.9 * rows["downlink_bytes"].max()
    assert whole.sum() == (2 if downlink else len(rows))
    assert any("client 1 was gone" in warning for warning in real.manifest["warnings"])


def stop_after(last):
    """A run's progress that ends it."""

    def stop(round, time_s, accuracy):
        if round == last:
            raise KeyboardInterrupt

    return stop


@pytest.mark.parametrize(
    ("method", "downlink", "stops_after"),
    [
        ("scaffold", {}, 3),
        ("scaffold", CHANGES, 3),
        ("fedkd", CHANGES, 3),
        ("fedprox", {}, 1),
    ],
    ids=["models", "changes", "batched", "nothing saved"],
)
def test_stopped_server_resumes_with_its_clients_to_the_same_bits(
    out, method, downlink, stops_after
):
    """Clients look for the server; who is there again goes on from the checkpoint.

    Without one they forget what they left unsent in the run that no longer counts.
    """
    plan = {"rounds": 5, "checkpoint": {"every": 2}, "downlink": downlink}
    plan = worlds.scenario(method=method, **plan)
    real = worlds.returned(plan, out, stop_after(stops_after))
    worlds.assert_same_learning(real, plan)


@pytest.mark.parametrize("every", [0, 2])
def test_another_process_goes_on_from_what_codecs_agreed_on_with_the_one_before_it(
    out, every
):
    """`ef21` keeps nothing else: the run learns as if nothing had happened, whatever
    was saved. The server goes on once the other one is there, however long its coming
    takes.
    """
    plan = worlds.scenario(
        rounds=6,
        checkpoint={"every": every},
        method="fedavg",
        clients=[{"count": 3, "prototype": "small", "device": worlds.TIMES}],
        compression={"k": 500, "strategies": [{"ef21": {}}]},
        policy={"kind": "uniform", "strategy": "ef21(top-k)"},
    )
    settled, crowd, merged = [], worlds.Crowd(), threading.Event()

    class Dies(worlds.Wrapped):
        def settle(self, label, fate):
            settled.append(label)
            if len(settled) == 3:
                merged.wait()
                raise Vanishes
            self._end.settle(label, fate)

    def replace(round, time_s, accuracy):
        if round == 3:
            (peers,) = servers
            merged.set()
            worlds.wait_for(lambda: 0 not in peers.there)
            crowd.begin_again(0)
            worlds.wait_for(lambda: 0 in peers.there)

    dying = worlds.wrapped(0, Dies, lambda: not settled)
    with dying, worlds.watched() as servers:
        real = worlds.deployed(plan, out, crowd=crowd, progress=replace)
    assert [*crowd.errors] == [0]
    assert isinstance(crowd.errors[0], Vanishes)
    assert (real.participations["outcome"] == "aggregated").all()
    worlds.assert_same_learning(real, plan)


def test_checkpoint_is_saved_while_a_client_is_under_way_which_is_lost_to_it(
    out,
):
    plan = worlds.scenario(
        rounds=8,
        checkpoint={"every": 3},
        method="fedavg",
        aggregation={"mode": "asynchronous", "concurrency": 3},
    )
    merged, stop_last = threading.Event(), stop_after(4)

    def stop(round, *more):
        if round == 3:
            merged.set()  # client 2 has its task, and is asked for its state
        stop_last(round, *more)

    with worlds.slowed(client_2=merged) as ends:
        real = worlds.returned(plan, out, stop)
    first, *_ = real.participations.query("client == 2").itertuples()
    assert (first.outcome, first.merge) == ("dropped", 4)
    # no client believes that it may still be merged
    states = [state for end in ends for state in end._here.states.values()]
    assert all(one.name[0] != first.round for state in states for one in state.open)
    assert len(real.rounds) == 8


@contextlib.contextmanager
def ending(processes):
    """None of these processes outlives the body."""
    try:
        yield
    finally:
        for process in processes:
            process.kill()


@pytest.mark.long
def test_server_killed_at_five_moments_ends_with_the_bits_of_the_simulation(
    tmp_path, out
):
    plan = worlds.scenario(rounds=30, checkpoint={"every": 1}, method="fedprox")
    where, serve = worlds.serving(plan, tmp_path)
    clients = [
        worlds.command("join", where, "--client", str(n), "--patience", "60")
        for n in range(3)
    ]
    servers = [worlds.command(*serve)]
    with ending(clients), ending(servers):
        for kill in range(5):
            server = servers[-1]
            assert worlds.wait_for_line(server, "clients join")
            worlds.wait_for_round(server, out, 1 + 3 * kill)
            time.sleep(0.01 * kill)
            server.kill()
            assert server.wait() == -signal.SIGKILL
            servers.append(worlds.command(*serve, "--resume"))
        assert worlds.wait_for_line(servers[-1], "clients join")
        assert servers[-1].wait(timeout=240) == 0
        # who was looking for the server when the last round was done finds none
        assert {client.wait(timeout=120) for client in clients} <= {0, 1}
    worlds.assert_same_learning(simfed.load_run(out), plan)
    assert verify(out) == []


@pytest.mark.long
def test_clients_killed_at_five_moments_leave_a_whole_run(tmp_path, out):
    plan = worlds.scenario(rounds=120, method="fedprox", evaluation={"every": 40})
    where, serve = worlds.serving(plan, tmp_path)
    server = worlds.command(*serve)

    def begin(client):
        return worlds.command("join", where, "--client", str(client))

    clients = [begin(n) for n in range(3)]
    with ending(clients), ending([server]):
        worlds.wait_for_line(server, "clients join")
        for kill in range(5):
            time.sleep(0.6 + 0.1 * kill)
            if server.poll() is None:
                clients[kill % 3].kill()
                clients[kill % 3].wait()
                clients[kill % 3] = begin(kill % 3)
        assert server.wait(timeout=240) == 0
    assert len(simfed.load_run(out).rounds) == 120
    assert verify(out) == []


def test_client_that_slept_comes_back_and_goes_on(out):
    """Its process stands still, as a laptop's does, longer than silence is borne."""
    plan = worlds.scenario(rounds=12, method="fedprox", evaluation={"every": 12})
    listening = worlds.at_a_port(patience=Patience(silence_s=1.0, beat_s=0.2))
    where = f"127.0.0.1:{listening.port}"
    sleeper = worlds.command("join", where, "--client", "1", "--patience", "120")
    crowd = worlds.Crowd((0, 2))

    def sleep(round, time_s, accuracy):
        (peers,) = servers
        if round == 2:
            sleeper.send_signal(signal.SIGSTOP)
            worlds.wait_for(lambda: 1 not in peers.there)
        if round == 4:
            sleeper.send_signal(signal.SIGCONT)
            worlds.wait_for(lambda: 1 in peers.there)

    how = {"listening": listening, "crowd": crowd, "progress": sleep}
    with ending([sleeper]), worlds.watched() as servers:
        real = worlds.deployed(plan, out, **how)
        assert sleeper.wait(timeout=60) == 0
    assert crowd.errors == {}
    merged = real.participations.query("client == 1 and outcome == 'aggregated'")
    assert {1, 12} <= {*merged["round"]}
    assert {3, 4}.isdisjoint(merged["round"])
    assert any("client 1 was gone" in line for line in real.manifest["warnings"])


def test_server_to_which_nobody_comes_says_how_many_came(tmp_path):
    listening = worlds.at_a_port(join_s=0.1)
    with pytest.raises(RunFailed, match=r"0 of 3 clients joined within 0\.1 s"):
        serve(worlds.scenario(), tmp_path / "run", listening=listening, progress=False)
