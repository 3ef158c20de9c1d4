"""A lost upload in a run with real learning: as if the client had only kept what it
could not send.
"""

import numpy as np
import sim_worlds as sim

from simfed.ground import Streams
from simfed.learn import HostedWorkload
from simfed.net import Star
from simfed.policy import Choice

PLAIN = sim.scenario(
    3,
    rounds=2,
    compression={"k": 500},
    policy={"kind": "uniform", "strategy": "periodic-k"},
)


def learn():
    return HostedWorkload(PLAIN, Streams(PLAIN.seed))


def learn_by_hand():
    """What the contract is asked for, without a clock."""
    workload = learn()
    for round in (1, 2):
        uploads = [
            workload.execute(workload.task(round, client), Choice("periodic-k", 500))
            for client in range(3)
        ]
        if round == 1:
            workload.discard(uploads.pop(1))
        workload.merge(round, uploads)
    return workload


def test_a_lost_upload_returns_to_the_residual_and_to_nobody_else():
    star = Star(3, up_bytes_per_s=[1e6, 4e3, 1e6])
    world = sim.build(PLAIN, workload=learn(), star=star).lose(0.5, 1).run()
    played, by_hand = world.workload, learn_by_hand()
    (facts, arrays), (expected_facts, expected) = played.state(), by_hand.state()
    assert facts == expected_facts
    np.testing.assert_equal(arrays, expected)
    rows = world.rows("participations", "outcome", "reward", "uplink_bytes")
    assert rows[1][:2] == ("dropped", None)
    assert 0 < rows[1][2] < rows[0][2]
    assert [outcome for outcome, *_ in rows].count("aggregated") == 5
    for workload in (played, by_hand):
        workload.close()
