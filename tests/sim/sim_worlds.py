"""Tiny worlds: a scenario as plain values, and its simulation over a real network."""

from dataclasses import dataclass
from typing import Any

from simfed.device import DeviceSpec, build_processor, load_profile
from simfed.ground import Streams
from simfed.ground.registry import registry
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
    plain = {
        "name": "tiny",
        "rounds": 3,
        "dataset": {
            "name": "mnist-mini",
            **({} if "method" in changes else {"public": 8}),
        },
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
    return {
        "count": count,
        "prototype": prototype,
        "device": "rtx3090-ryzen4800h",
        **changes,
    }


class Fixed:
    """A device whose every piece of work takes as long as it is told."""

    def __init__(self, training_s=1.0, compression_s=0.5, **others):
        self.seconds = {"training": training_s, "compression": compression_s, **others}

    counts_energy = True

    def work_s(self, work):
        return self.seconds[work.quantity]

    def stretch_s(self, work):
        return work.times * self.work_s(work)

    def charges(self, quantity, model):
        return quantity in self.seconds or quantity not in (
            "handling",
            "evaluation",
            "losses",
        )

    def duration_s(self, nominal_s, start_at_s, *, round, phase, nth=0, steps=1.0):
        return nominal_s

    def energy_j(self, phases_s):
        return None


class TasksOf(Tasks):
    """The tasks of a scenario, with as much on the way down as a test says."""

    def __init__(self, plain, samples_of=lambda client: 600, down_bytes=None):
        sizes = {
            name: facts(p.model, plain.dataset.name)
            for name, p in plain.prototypes.items()
        }
        super().__init__(plain, sizes, samples_of)
        self._down_bytes = down_bytes

    def downlink_bytes(self, plan):
        return (
            super().downlink_bytes(plan)
            if self._down_bytes is None
            else self._down_bytes
        )


@dataclass
class World:
    """A simulation and what it records."""

    scenario: Scenario
    simulation: Simulation
    recorder: Recorder
    workload: Any
    clock: Any = None

    def run(self, **options):
        self.simulation.run(**options)
        return self

    def rows(self, table):
        return self.recorder.table(table).to_pylist()

    def column(self, table, name):
        return self.recorder.table(table).column(name).to_pylist()


def build(
    plain,
    *,
    star=None,
    devices=None,
    workload=None,
    recorder=None,
    downlink_bytes=0.0,
    seed=0,
    server_device=None,
    recorded=None,
    samples_of=lambda client: 600,
    presence=None,
    faults=None,
):
    """`devices`: one `Fixed` per client; the calibrated profile if omitted."""
    group_of = plain.group_of_client()
    streams = Streams(seed)
    processor = build_processor(
        DeviceSpec(profile="p"), load_profile("rtx3090-ryzen4800h")
    )
    star = star or Star(plain.client_count)
    recorder = recorder or Recorder()
    if workload is None:
        tasks = TasksOf(plain, samples_of, downlink_bytes)
        workload = TimeOnlyWorkload(tasks, recorded=recorded)

    def make_policy(client):
        policy = plain.policy_of_group(plain.clients[group_of[client]])
        if recorded is not None:
            return Replay(plain.compression.choices, recorded=recorded.arms(client))
        cls = registry("policy").get(policy.kind)
        return cls(plain.compression.choices, policy.reward.clip, **policy.options)

    clock = Clock(
        lambda env, on_use: Network(env, star, on_use=on_use),
        (lambda c: devices[c]) if devices else lambda c: processor.client(streams, c),
        streams,
        server_device=server_device,
        presence=presence,
        faults=faults,
        story=workload.tasks.story,
    )
    simulation = Simulation(
        plain,
        workload=workload,
        world=clock,
        make_policy=make_policy,
        recorder=recorder,
        streams=streams,
        faults=faults,
    )
    return World(plain, simulation, recorder, workload, clock)


def write(path, world_of, plain, **run_options):
    """Run into a directory, as the composition root does.

    `world_of(recorder)` builds the world.
    """
    directory = RunDirectory.create(
        path,
        scenario_yaml=as_yaml(plain),
        manifest={
            "name": plain.name,
            "mode": "time-only",
            "models": {n: {"model": m} for n, m in plain.model_names.items()},
        },
    )
    recorder = directory.recorder()
    world = world_of(recorder)
    world.simulation.run(**run_options)
    return finish(directory, recorder, plain)


def finish(directory, recorder, plain):
    directory.finish(
        recorder,
        manifest={},
        summary=summarise(recorder.table, plain.clients_of_prototype),
    )
    return open_run(directory.path)


def as_yaml(plain):
    import yaml

    return yaml.safe_dump(plain.model_dump(mode="json"), sort_keys=False)
