"""A world whose policies are paid, without learning."""

import sim_worlds as sim

from simfed.net import Star

ROUNDS = 7
STAR = Star(
    4, up_bytes_per_s=[1e3, 2e3, 3e3, 4e3], receive_bytes_per_s=6e3, latency_s=0.01
)


def plain():
    return sim.scenario(rounds=ROUNDS, policy={"kind": "ascend", "warmup": 1, "c": 1})


def world(recorder=None):
    """Losses fall, so that policies have something to learn."""
    losses = {
        round: {
            "local_loss": {c: (1 / round, 1 / round - 1e-2 * (c + 1)) for c in range(4)}
        }
        for round in range(1, ROUNDS + 1)
    }
    return sim.build(
        plain(),
        star=STAR,
        workload=sim.Scripted(plain(), losses, down_bytes=100.0),
        recorder=recorder,
    )
