"""One real client alone on this machine: what a participation takes of its processors, messages
through sockets included. The part of `simfed calibrate measure` that no call of a function shows.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from simfed.deploy.local import deploy
from simfed.ground.plain import Plain
from simfed.learn.catalogue import facts, of_text
from simfed.record.read import open_run
from simfed.sim.flight import BusySeconds

_FIRST = 2
"""Rounds that load what later ones find in memory."""


def participations(
    model: str,
    dataset: str,
    *,
    rounds: int,
    batch: int,
    steps: int,
    k: int,
    between: Callable[[], object] = lambda: None,
) -> list[BusySeconds]:
    """Processor seconds of so many participations of a client of this model.

    It is a process of its own, deployed over the loopback with the default method, or with
    `fedavg` for models of text; samples of other models are random, of the data set's shape.
    between: called before each participation, on the server's side, while the client waits.
    Raises: `InputError`, `RunFailed`.
    """
    with tempfile.TemporaryDirectory("-simfed") as folder:
        if of_text(model):  # which the default method does not learn
            learnt: Plain = {"dataset": {"name": dataset}, "method": "fedavg"}
        else:
            learnt = {"dataset": {**_write_samples(Path(folder), model, dataset), "public": 64}}
        scenario: Plain = {
            "name": "alone",
            "seed": 0,
            "rounds": _FIRST + rounds,
            **learnt,
            "prototypes": {"alone": {"model": model}},
            "clients": [
                {
                    "count": 1,
                    "prototype": "alone",
                    "device": {"training": "1 ms", "compression": "1 ms"},
                    "link": {"up": "1 Gbps", "down": "1 Gbps"},
                }
            ],
            "compression": {"k": k},
            "training": {"batch_size": batch, "local_steps": steps},
            "policy": {"kind": "uniform", "strategy": "top-k"},
            "evaluation": {"every": _FIRST + rounds},
            "checkpoint": {"every": 0},
        }
        deploy(scenario, Path(folder) / "run", progress=lambda *_: between())
        table = open_run(Path(folder) / "run").table("processor").to_pylist()
    return [
        BusySeconds(row["training_s"], row["compression_s"], row["other_s"])
        for row in table
        if row["round"] > _FIRST
    ]


def _write_samples(folder: Path, model: str, dataset: str) -> Plain:
    model_facts, rng = facts(model, dataset), np.random.default_rng(0)
    count = 2048 + model_facts.classes
    np.savez(
        folder / "samples.npz",
        x_train=rng.standard_normal((count, *model_facts.input_shape), np.float32),
        y_train=np.arange(count) % model_facts.classes,
    )
    return {"file": str(folder / "samples.npz")}
