"""The same federated averaging as a scenario and as a Flower app: the same simulated
times.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from flower_worlds import server
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from worlds import TINY, change

import simfed

BATCH, STEPS, RATE, ROUNDS = 50, 5, 0.05, 3
LAW = """kind: law
name: laws-alone
description: a machine that was never measured
training:
  any:
    law: roofline
    parameters: {overhead: 7.0e-05, per_flop: 5.0e-12, per_byte: 2.0e-09}
inference:
  any:
    law: affine-flops
    parameters: {a: 1.0e-05, b: 4.0e-12}
"""
GROUPS = tuple(
    {
        "count": 2,
        "prototype": "app",
        "device": {"profile": "laws.yaml", "speed": speed},
    }
    for speed in (0.01, 0.02)
)


def app():
    """Flower's federated averaging of logistic regression, on as many batches."""
    made = ClientApp()
    inputs, labels = torch.rand(STEPS, BATCH, 784), torch.arange(BATCH) % 10

    @made.train()
    def train(message, context):
        net = torch.nn.Linear(784, 10)
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimizer = torch.optim.SGD(net.parameters(), lr=RATE)
        for batch in inputs:
            optimizer.zero_grad()
            F.cross_entropy(net(batch), labels).backward()
            optimizer.step()
        metrics = MetricRecord({"num-examples": BATCH * STEPS})
        arrays = ArrayRecord(net.state_dict())
        content = RecordDict({"arrays": arrays, "metrics": metrics})
        return Message(content, reply_to=message)

    def main(grid, context):
        start = ArrayRecord(torch.nn.Linear(784, 10).state_dict())
        FedAvg(fraction_evaluate=0.0).start(grid, start, num_rounds=ROUNDS)

    return server(main), made


def networks(up=1.0, down=1.0):
    """The links of nodes and of the server, some times as fast as they are."""
    link = {"up": f"{2 * up!r} Mbps", "down": f"{8 * down!r} Mbps", "latency": "20 ms"}
    shared = {"receive": f"{5 * up!r} Mbps", "send": f"{12 * down!r} Mbps"}
    groups = [{**group, "link": link} for group in GROUPS]
    return {"clients": groups, "network": {"server": shared}}


def test_a_scenario_and_a_flower_app_take_the_same_simulated_time(tmp_path):
    (tmp_path / "laws.yaml").write_text(LAW)
    options = {"source": tmp_path / "fleet.yaml", "progress": False}
    flower = simfed.flower.run(*app(), {"name": "same", **networks()}, **options)
    # Flower's messages are some hundred bytes longer than the weights: links that are
    # as much slower carry the bare weights in the same time
    weights = 4.0 * 7850
    slower = [
        weights / flower.participations[f"{way}_bytes"].unique().item()
        for way in ("uplink", "downlink")
    ]
    scenario = {
        **networks(*slower),
        "rounds": ROUNDS,
        "prototypes": {"app": {"model": "logistic-regression"}},
        "training": {"batch_size": BATCH, "local_steps": STEPS, "learning_rate": RATE},
        "compression": {"strategies": ["dense"]},
        "policy.strategy": "dense",
    }
    native = simfed.run(change(TINY, scenario), time_only=True, **options)
    assert (native.participations["uplink_bytes"] == weights).all()
    ends = ["started_at_s", "finished_at_s", "duration_s", "critical_client"]
    phases = ["client", "downlink_s", "training_s", "uplink_s", "waiting_s", "slack_s"]
    for table, columns in (
        ("rounds", [*ends, "saved_without_critical_s"]),
        ("participations", phases),
    ):
        ours, theirs = (
            getattr(run, table)[columns].to_numpy(float) for run in (flower, native)
        )
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)
    phase = "critical_phase"
    assert flower.rounds[phase].tolist() == native.rounds[phase].tolist()
