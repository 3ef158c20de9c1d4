"""A world whose policies are paid, without learning."""

import sim_worlds as sim

from simfed.device import DeviceSpec
from simfed.net import Star

STAR = Star(
    4, up_bytes_per_s=[1e3, 2e3, 3e3, 4e3], receive_bytes_per_s=6e3, latency_s=0.01
)


class Rewarding:
    """A stand-in for learning whose losses fall, so that policies have something to
    learn.
    """

    def __init__(self, sizes):
        self._sizes = sizes

    def __getattr__(self, name):
        return getattr(self._sizes, name)

    def merge(self, round, contributions, weights=()):
        from simfed.fleet import Outcome

        done = self._sizes.merge(round, contributions)
        local = {
            c.task.label: (1.0 / round, 1.0 / round - 1e-3 * len(c.choice.strategy))
            for c in contributions
        }
        return Outcome(round, done.model_version, local_loss=local)


def plain(rounds=7):
    return sim.scenario(rounds=rounds, policy={"kind": "ascend", "warmup": 1, "c": 1})


def world(recorder=None, rounds=7):
    from simfed.device import build_processor, load_profile
    from simfed.ground import Streams

    sizes = sim.TimeOnlyWorkload(sim.TasksOf(plain(rounds), down_bytes=100.0))
    processor = build_processor(
        DeviceSpec.model_validate({"profile": "p", "noise": {"cv": 0.3}}),
        load_profile("rtx3090-ryzen4800h"),
    )
    devices = [processor.client(Streams(0), client) for client in range(4)]
    return sim.build(
        plain(rounds),
        star=STAR,
        devices=devices,
        workload=Rewarding(sizes),
        recorder=recorder,
    )
