"""Deployments of whatever can be chosen together, with servers that stop and
connections that are cut: the run is whole, and where nothing was lost it learned the
bits of the simulation.
"""

import contextlib
import random
import threading

import deploy_worlds as worlds
import pytest
import yaml

from simfed import InputErrors, Interrupted
from simfed.deploy import peers
from simfed.experiment import check_parts
from simfed.ground.registry import registry
from simfed.verify import verify

RUNS = 12
CHOICES = """
aggregation:
- {mode: synchronous}
- {mode: synchronous}
- {mode: deadline, deadline: 60 ms, late: merge}
- {mode: deadline, deadline: 200 ms, late: drop}
- {mode: first, over_selection: 0.5, late: drop}
- {mode: buffered, buffer: 2, concurrency: 3}
- {mode: asynchronous, concurrency: 2}
policy:
- {kind: uniform, strategy: top-k}
- {kind: uniform, strategy: random-k}
- {kind: uniform, strategy: ef21(top-k)}
- {kind: ascend, warmup: 1}
- {kind: exp3}
compression:
- {k: 500, strategies: [top-k, random-k, {ef21: {}}]}
rounds: [4, 8]
checkpoint: [{every: 0}, {every: 1}, {every: 3}]
evaluation: [{every: 1}, {every: 2}, {every: 50}]
"""
GROUP = """
count: 3
prototype: small
device:
  {training: 12 ms, compression: 0.3 ms, auxiliary: 1 ms, inference: 1 ms,
   distillation: 1 ms}
"""


def draw_scenario(rng):
    """The first valid one."""
    methods = registry("method")
    names = [name for name in methods.names() if methods.origin(name) == "built in"]
    while True:
        choices = yaml.safe_load(CHOICES).items()
        plain = {key: rng.choice(values) for key, values in choices}
        group = yaml.safe_load(GROUP)
        if rng.random() < 0.2:
            group["failure"] = {"training": 0.1, "upload": 0.1}
        plain |= {"method": rng.choice(names), "clients": [group]}
        if plain["aggregation"]["mode"] == "first":
            plain["participation"] = {"clients_per_round": 2}
        with contextlib.suppress(ValueError, InputErrors):
            plan = worlds.scenario(**plain)
            check_parts(plan, None, time_only=False)
            return plan


def cut_once(monkeypatch, client, after_s):
    """Have a client's first connection aborted some time after it was admitted."""
    admit, due = peers.Peers._admit, [client]

    async def admit_and_cut(server, wire, seat):
        peer = await admit(server, wire, seat)
        if seat.client in due:
            due.remove(client)
            server._loop.call_later(after_s, wire.connection.transport.abort)
        return peer

    monkeypatch.setattr(peers.Peers, "_admit", admit_and_cut)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(RUNS))
def test_random_deployment_is_whole(tmp_path, monkeypatch, seed):
    rng = random.Random(seed)
    plan, out = draw_scenario(rng), tmp_path / "real"
    stops, cuts = rng.random() < 0.5, rng.random() < 0.3
    if cuts:
        cut_once(monkeypatch, rng.randrange(3), rng.uniform(0.2, 0.6))
    listening = worlds.at_a_port()
    crowd, stopped = worlds.Crowd(patience_s=4.0), threading.Event()

    def stop(round, time_s, accuracy):
        if stops and round == 2 and not stopped.is_set():
            stopped.set()
            raise KeyboardInterrupt

    slow = {f"client_{client}": rng.choice([0.0, 0.01, 0.1]) for client in range(3)}
    with worlds.slowed(**slow):
        crowd.begin("127.0.0.1", listening.port)
        try:
            real = worlds.serve(plan, out, listening=listening, progress=stop)
        except Interrupted:
            real = worlds.serve(
                plan, out, listening=listening, progress=False, resume=True
            )
        crowd.end()
    assert verify(out) == []
    # who was cut off at the end finds no server any more
    assert all("no server for" in str(error) for error in crowd.errors.values())
    plain = plan.aggregation.mode == "synchronous" and plan.clients[0].failure is None
    if plain and plan.policy.kind == "uniform" and not cuts:
        worlds.assert_same_learning(real, plan)
