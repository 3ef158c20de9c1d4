"""Numbers as targets: the loss, the measure, and what is said of it everywhere."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import simfed
from simfed.ground.errors import InputErrors
from simfed.learn.data import load_data
from simfed.learn.objective import Regression
from simfed.report.compare import headline_facts
from simfed.report.page import page
from simfed.verify.run import verify


def write_world(folder: Path, dataset: dict | None = None, **changes) -> Path:
    """A table whose target is 100 + 20 a − 10 b, and a scenario of linear models."""
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 200))
    lines = [f"{x},{y},{100 + 20 * x - 10 * y}" for x, y in zip(a, b, strict=True)]
    (folder / "rows.csv").write_text("\n".join(["a,b,price", *lines]))
    device = {"assume": {"training": "1 ms", "compression": "1 ms"}}
    plain = {
        "name": "prices",
        "method": "fedavg",
        "rounds": 20,
        "dataset": dataset or {"table": "rows.csv", "target": "price", "task": "regression"},
        "prototypes": {"p": {"model": "logistic-regression"}},
        "clients": [{"count": 2, "prototype": "p", "device": device, "link": {}}],
        "training": {"local_steps": 4, "batch_size": 16, "learning_rate": 0.1},
        "compression": {"strategies": ["dense"]},
        "policy": {"kind": "uniform", "strategy": "dense"},
        "evaluation": {"every": 1, "clients": True},
        **changes,
    }
    (folder / "prices.yaml").write_text(json.dumps(plain))
    return folder / "prices.yaml"


def test_squares_and_their_gradient_are_autograds():
    outputs = torch.randn(6, 1, requires_grad=True)
    targets = torch.randn(6)
    expected = torch.nn.functional.mse_loss(outputs[:, 0], targets)
    expected.backward()
    value, gradient = Regression(2.0).loss(outputs.detach(), targets)
    assert torch.allclose(value, expected)
    assert torch.allclose(gradient, outputs.grad)
    measures, losses = Regression(2.0).each(outputs.detach(), targets)
    assert measures.mean().item() == pytest.approx(1 - losses.mean().item() / 2)


def test_targets_are_standardised_by_the_training_rows(tmp_path):
    spec = simfed.load_scenario(write_world(tmp_path)).dataset
    data = load_data(spec)
    assert (data.task, data.classes, spec.partition.kind) == ("regression", 1, "iid")
    assert abs(data.train_labels.mean()) < 1e-6
    assert data.train_labels.std() == pytest.approx(1, abs=1e-6)


def test_a_regression_is_learned_measured_by_r2_and_said_so(tmp_path):
    result = simfed.run(write_world(tmp_path), out=tmp_path / "run", workers=1, progress=False)
    tested = result.prototypes
    assert tested.test_accuracy.iloc[-1] > 0.99 > tested.test_accuracy.iloc[0]
    data = load_data(simfed.load_scenario(tmp_path / "prices.yaml").dataset)
    variance = data.test_labels.var(dtype=np.float64)
    assert np.allclose(tested.test_accuracy, 1 - tested.test_loss / variance)
    assert verify(tmp_path / "run") == []
    assert result.manifest["measure"] == "R²"
    assert headline_facts(result)[0][0] == "R²"
    html = page([result])
    assert "test R²" in html
    assert "reached" in html  # thresholds follow
    own = result.clients
    assert np.allclose(own.own_loss, own.loss)  # nobody owns test rows


@pytest.mark.parametrize(
    ("dataset", "changes", "sentence"),
    [
        (None, {"method": "feddf"}, "feddf compares classes"),
        ({"table": "rows.csv", "target": "price"}, {}, "task: regression"),
        (
            {
                "table": "rows.csv",
                "target": "price",
                "task": "regression",
                "partition": {"kind": "shards"},
            },
            {},
            "as a regression has no classes",
        ),
        ({"leaf": ".", "task": "regression"}, {}, "what leaf names are classes"),
    ],
)
def test_what_needs_classes_refuses_a_regression(tmp_path, dataset, changes, sentence):
    path = write_world(tmp_path, dataset, **changes)
    with pytest.raises((simfed.InputError, InputErrors)) as error:
        simfed.run(path, workers=1, progress=False)
    assert sentence in str(error.value)
