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
GROUPS = (
    {"count": 2, "device": {"profile": "laws.yaml", "speed": 0.01}},
    {"count": 2, "device": {"profile": "laws.yaml", "speed": 0.02}},
)


def app():
    """Flower's federated averaging of logistic regression, on as many batches."""
    made = ClientApp()
    inputs = torch.rand(BATCH * STEPS, 784)
    labels = torch.arange(BATCH * STEPS) % 10

    @made.train()
    def train(message, context):
        net = torch.nn.Linear(784, 10)
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimizer = torch.optim.SGD(net.parameters(), lr=RATE)
        for batch in torch.arange(BATCH * STEPS).split(BATCH):
            optimizer.zero_grad()
            F.cross_entropy(net(inputs[batch]), labels[batch]).backward()
            optimizer.step()
        metrics = MetricRecord({"num-examples": BATCH * STEPS})
        content = RecordDict(
            {"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}
        )
        return Message(content, reply_to=message)

    def main(grid, context):
        net = torch.nn.Linear(784, 10)
        strategy = FedAvg(fraction_evaluate=0.0)
        strategy.start(grid, ArrayRecord(net.state_dict()), num_rounds=ROUNDS)

    return server(main), made


def test_a_scenario_and_a_flower_app_take_the_same_simulated_time(tmp_path):
    (tmp_path / "laws.yaml").write_text(LAW)
    link = {"up": "2 Mbps", "down": "8 Mbps", "latency": "20 ms"}
    shared = {"receive": "5 Mbps", "send": "12 Mbps"}
    source = tmp_path / "fleet.yaml"
    world = {
        "name": "same",
        "clients": [{**group, "link": link} for group in GROUPS],
        "network": {"server": shared},
    }
    flower = simfed.flower.run(*app(), world, source=source, progress=False)
    parts = flower.participations
    up, down = (
        float(parts[f"{way}_bytes"].unique().item()) for way in ("uplink", "downlink")
    )

    # Flower's messages are some hundred bytes longer than the weights: links that are
    # as much slower carry the bare weights in the same time
    weights = 4.0 * 7850

    def scaled(rate, size):
        return f"{float(rate.split()[0]) * 1e6 * weights / size!r} bps"

    link = {
        "up": scaled("2 Mbps", up),
        "down": scaled("8 Mbps", down),
        "latency": "20 ms",
    }
    shared = {"receive": scaled("5 Mbps", up), "send": scaled("12 Mbps", down)}
    native = simfed.run(
        {
            **world,
            "method": "fedavg",
            "rounds": ROUNDS,
            "dataset": {
                "name": "mnist-mini",
                "public": 0,
                "partition": {"kind": "iid"},
            },
            "prototypes": {"only": {"model": "logistic-regression"}},
            "clients": [
                {**group, "link": link, "prototype": "only"} for group in GROUPS
            ],
            "network": {"server": shared},
            "training": {
                "batch_size": BATCH,
                "local_steps": STEPS,
                "learning_rate": RATE,
            },
            "compression": {"strategies": ["dense"]},
            "policy": {"kind": "uniform", "strategy": "dense"},
        },
        source=source,
        time_only=True,
        progress=False,
    )
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
