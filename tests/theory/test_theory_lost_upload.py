"""A lost upload in a run with real learning: as if the client had only kept what it
could not send.
"""

import numpy as np

from simfed.experiment import Parts
from simfed.ground import Streams
from simfed.learn import HostedWorkload
from simfed.net import Network, Star
from simfed.policy import Choice
from simfed.record import Recorder
from simfed.scenario import Scenario
from simfed.sim import Clock, Simulation

SCENARIO = Scenario.model_validate(
    {
        "name": "lost",
        "rounds": 2,
        "dataset": {"name": "mnist-mini", "public": 32},
        "prototypes": {"small": {"model": "lenet5-half"}},
        "clients": [{"count": 3, "prototype": "small", "device": "rtx3090-ryzen4800h"}],
        "compression": {"k": 500},
        "policy": {"kind": "uniform", "strategy": "periodic-k"},
    }
)


class Losing(Clock):
    """Loses the upload of client 1 in round 1, half-way."""

    def carry(self, flight):
        super().carry(flight)
        if flight.client == 1 and flight.task.round == 1:
            self.env.timeout(0.5).callbacks.append(
                lambda _: self.cut(flight, "dropped")
            )


def after_a_run_with_a_loss():
    parts = Parts(SCENARIO)
    workload = HostedWorkload(SCENARIO, parts.streams)
    star = Star(3, up_bytes_per_s=[1e6, 4e3, 1e6])
    recorder = Recorder()
    simulation = Simulation(
        SCENARIO,
        workload=workload,
        world=Losing(
            lambda env, on_use: Network(env, star, on_use=on_use),
            parts.device,
            parts.streams,
        ),
        make_policy=parts.policy,
        recorder=recorder,
        streams=parts.streams,
    )
    simulation.run()
    return workload, recorder.table("participations").to_pylist()


def after_the_contract_by_hand():
    workload = HostedWorkload(SCENARIO, Streams(SCENARIO.seed))
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
    played, rows = after_a_run_with_a_loss()
    by_hand = after_the_contract_by_hand()
    (facts, arrays), (expected_facts, expected) = played.state(), by_hand.state()
    assert facts == expected_facts
    assert arrays.keys() == expected.keys()
    assert all(np.array_equal(arrays[name], expected[name]) for name in arrays)
    lost = rows[1]
    assert (lost["client"], lost["outcome"], lost["reward"]) == (1, "dropped", None)
    assert 0 < lost["uplink_bytes"] < rows[0]["uplink_bytes"]
    assert [row["outcome"] for row in rows].count("aggregated") == 5
    for workload in (played, by_hand):
        workload.close()
