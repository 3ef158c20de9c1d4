"""Tiny worlds: a scenario as plain values, and its simulation over a real network."""

from dataclasses import dataclass
from typing import Any

import yaml

from simfed.experiment import Parts
from simfed.fleet import Outcome
from simfed.ground import Streams
from simfed.learn.catalogue import facts
from simfed.net import Network, Star
from simfed.policy import Replay
from simfed.record import Recorder, RunDirectory, open_run, summarise
from simfed.scenario import Scenario
from simfed.sim import Clock, Simulation, TimeOnlyWorkload
from simfed.tasks import Tasks

D = 15_738


def scenario(clients=4, **changes):
    """Clients of one prototype, by their number or their groups.

    Anything can be replaced.
    """
    if isinstance(clients, int):
        clients = [group(clients)]
    public = {} if "method" in changes else {"public": 8}
    plain = {
        "name": "tiny",
        "rounds": 3,
        "dataset": {"name": "mnist-mini", **public},
        "prototypes": {"small": {"model": "lenet5-half"}},
        "clients": clients,
        "policy": {"kind": "uniform", "strategy": "random-k"},
        # 8,000 bytes: 4 of each value, and a seed of 8
        "compression": {"index_code": "seeded", "k": 1998},
        **changes,
    }
    return Scenario.model_validate(plain)


def group(count, prototype="small", **changes):
    """Clients whose device is calibrated."""
    device = "rtx3090-ryzen4800h"
    return {"count": count, "prototype": prototype, "device": device, **changes}


class Fixed:
    """A device whose every piece of work takes as long as it is told.

    It keeps the (quantity, number) of each, and the seconds that its energy is of.
    """

    counts_energy = True

    def __init__(self, training_s=1.0, compression_s=0.5, **others):
        self.seconds = {"training": training_s, "compression": compression_s, **others}
        self.asked, self.told = [], None

    def work_s(self, work):
        return self.seconds[work.quantity]

    def stretch_s(self, work):
        return work.times * self.work_s(work)

    def charges(self, quantity, model):
        beside = "handling", "evaluation", "losses"
        return quantity in self.seconds or quantity not in beside

    def duration_s(self, nominal_s, start_at_s, *, round, phase, nth=0, steps=1.0):
        self.asked.append((phase, nth))
        return nominal_s

    def energy_j(self, phases_s):
        self.told = dict(phases_s)
        return


class TasksOf(Tasks):
    """The tasks of a scenario, with as much on the way down as a test says."""

    def __init__(self, plain, samples_of=lambda client: 600, down_bytes=None):
        models = plain.prototypes.items()
        sizes = {name: facts(p.model, plain.dataset.name) for name, p in models}
        super().__init__(plain, sizes, samples_of)
        self._down_bytes = down_bytes

    def downlink_bytes(self, plan):
        down_bytes = self._down_bytes
        return super().downlink_bytes(plan) if down_bytes is None else down_bytes


class Scripted(TimeOnlyWorkload):
    """A learning side with given losses: `script[round]` is what its merge says.

    `local_loss` is told by client, or by the task's label.
    """

    def __init__(self, plain, script, down_bytes=0.0):
        super().__init__(TasksOf(plain, down_bytes=down_bytes))
        self.script, self.log = script, []

    def execute(self, task, choice):
        self.log.append(("execute", task.round, task.client))
        return super().execute(task, choice)

    def merge(self, round, contributions, weights=()):
        tasks = [each.task for each in contributions]
        self.log.append(("merge", round, [task.client for task in tasks]))
        version = super().merge(round, contributions).model_version
        said = dict(self.script.get(round, {}))
        told = said.pop("local_loss", {})
        local = {
            task.label: told[name]
            for task in tasks
            for name in (task.client, task.label)
            if name in told
        }
        return Outcome(round, version, local_loss=local, **said)

    def discard(self, contribution):
        self.log.append(("discard", contribution.task.round, contribution.task.client))


@dataclass
class World:
    """A simulation and what it records."""

    simulation: Simulation
    recorder: Recorder
    workload: Any
    clock: Clock

    def run(self, **options):
        self.simulation.run(**options)
        return self

    def rows(self, table, *names):
        """All rows, or of each row the tuple of some columns."""
        rows = self.recorder.table(table).to_pylist()
        return [tuple(row[name] for name in names) for row in rows] if names else rows

    def column(self, table, name):
        return self.recorder.table(table).column(name).to_pylist()

    def spans(self, track):
        """(kind, name, from, to) of each span of a track."""
        rows = self.rows("spans", "kind", "name", "started_at_s", "finished_at_s")
        tracks = self.column("spans", "track")
        return [row for row, of in zip(rows, tracks, strict=True) if of == track]

    def lose(self, at_s, client, outcome="dropped"):
        """Have this client lose its participation at an instant of the first round."""
        clock, carry = self.clock, self.clock.carry

        def carry_and_lose(flight):
            carry(flight)
            if (flight.client, flight.task.round) == (client, 1):
                strike = clock.env.timeout(at_s - clock.env.now)
                strike.callbacks.append(lambda _: clock.cut(flight, outcome))

        clock.carry = carry_and_lose
        return self


def build(
    plain,
    *,
    star=None,
    devices=None,
    workload=None,
    recorder=None,
    downlink_bytes=0.0,
    recorded=None,
    samples_of=lambda client: 600,
    faults=None,
    **others,
):
    """`devices`: one `Fixed` per client; the calibrated profile if omitted."""
    streams, parts = Streams(0), Parts(plain)
    star = star or Star(plain.client_count)
    recorder = recorder or Recorder()
    if workload is None:
        tasks = TasksOf(plain, samples_of, downlink_bytes)
        workload = TimeOnlyWorkload(tasks, recorded=recorded)

    def replay(client):
        return Replay(plain.compression.choices, recorded=recorded.arms(client))

    clock = Clock(
        lambda env, on_use: Network(env, star, on_use=on_use),
        devices.__getitem__ if devices else parts.device,
        streams,
        faults=faults,
        story=workload.tasks.story,
        **others,
    )
    simulation = Simulation(
        plain,
        workload=workload,
        world=clock,
        make_policy=replay if recorded else parts.policy,
        recorder=recorder,
        streams=streams,
        faults=faults,
    )
    return World(simulation, recorder, workload, clock)


def write(path, world_of, plain):
    """Run into a directory, as the composition root does.

    `world_of(recorder)` builds the world.
    """
    models = {name: {"model": model} for name, model in plain.model_names.items()}
    directory = RunDirectory.create(
        path,
        scenario_yaml=yaml.safe_dump(plain.model_dump(mode="json"), sort_keys=False),
        manifest={"name": plain.name, "mode": "time-only", "models": models},
    )
    recorder = directory.recorder()
    world_of(recorder).run()
    summary = summarise(recorder.table, plain.clients_of_prototype)
    directory.finish(recorder, manifest={}, summary=summary)
    return open_run(path)
