"""Numbers as targets: the loss, the measure, and what is said of it everywhere."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

import simfed
from simfed import InputError, InputErrors
from simfed.ground.measure import MEASURES
from simfed.learn.data import load_data
from simfed.learn.objective import Regression
from simfed.report.compare import list_headline_facts
from simfed.report.curves import accuracy_figure
from simfed.report.export import rows
from simfed.report.page import build_page
from simfed.report.summary import build_summary_table
from simfed.study.page import draw_study_figure, render_study_page
from simfed.study.tables import build_arms_table
from simfed.study.targets import parse_target
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
        "dataset": dataset
        or {"table": "rows.csv", "target": "price", "task": "regression"},
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


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A run of six rounds."""
    folder = tmp_path_factory.mktemp("finished")
    simfed.run(
        write_world(folder, rounds=6), out=folder / "run", workers=1, progress=False
    )
    return folder / "run"


def test_squares_and_their_gradient_are_autograds():
    outputs = torch.randn(6, 1, requires_grad=True)
    targets = torch.randn(6)
    expected = torch.nn.functional.mse_loss(outputs[:, 0], targets)
    expected.backward()
    value, gradient = Regression(2.0).loss(outputs.detach(), targets)
    assert torch.allclose(value, expected)
    assert torch.allclose(gradient, outputs.grad)
    shares, losses = Regression(2.0).each(outputs.detach(), targets)
    assert shares.mean().item() == pytest.approx(1 - losses.mean().item() / 2)
    assert Regression(2.0, sd=3.0).measure(4.0) == 6.0


def test_targets_are_standardised_by_the_training_rows(tmp_path):
    spec = simfed.load_scenario(write_world(tmp_path)).dataset
    data = load_data(spec)
    assert (data.task, data.classes, spec.partition.kind) == ("regression", 1, "iid")
    assert abs(data.train_labels.mean()) < 1e-6
    assert data.train_labels.std() == pytest.approx(1, abs=1e-6)


def test_a_regression_is_learned_measured_by_rmse_and_said_so(tmp_path):
    result = simfed.run(
        write_world(tmp_path), out=tmp_path / "run", workers=1, progress=False
    )
    tested = result.prototypes
    data = load_data(simfed.load_scenario(tmp_path / "prices.yaml").dataset)
    prices = [
        float(row.split(",")[2])
        for row in (tmp_path / "rows.csv").open().readlines()[1:]
    ]
    # in the unit of the prices
    assert data.target_sd == pytest.approx(np.std(prices), rel=0.1)
    assert np.allclose(tested.test_measure, data.target_sd * np.sqrt(tested.test_loss))
    assert tested.test_measure.iloc[-1] < 2 < tested.test_measure.iloc[0]
    variance = data.test_labels.var(dtype=np.float64)
    # R² beside it
    assert np.allclose(tested.test_accuracy, 1 - tested.test_loss / variance)
    assert verify(tmp_path / "run") == []
    assert result.manifest["measure"] == {"name": "RMSE", "better": "lower"}
    clients = result.clients
    assert np.allclose(clients.own_loss, clients.loss)  # nobody owns test rows
    assert np.allclose(clients.own_measure, clients.measure)


def test_reports_of_a_regression_follow_the_lower_rmse(finished):
    result = simfed.load_run(finished)
    values = result.prototypes.test_measure
    facts = result.summary["measure"]["p"]
    assert (facts["final"], facts["best"]) == (values.iloc[-1], values.min())
    assert facts["best_round"] == values.argmin() + 1
    (step, first_s), *_ = facts["time_to_s"].items()  # the easiest first
    there = result.prototypes["round"][values <= float(step)].iloc[0]
    assert first_s == result.rounds.set_index("round").finished_at_s[there]
    name, final, about = list_headline_facts(result)[0]
    assert (name, final) == ("RMSE", f"{values.iloc[-1]:.4g}")
    assert f"best {values.min():.4g} in round" in about
    html = build_page([result])
    assert "test RMSE" in html
    assert "When each RMSE was reached" in html
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(build_summary_table(result))
    assert f"p reached {facts_hardest(facts)} after" in console.export_text().replace(
        "\n ", " "
    )
    assert set(rows(result).columns) >= {"measure", "loss"}
    assert accuracy_figure(result).axes[0].get_ylabel() == "test RMSE"


def facts_hardest(facts: dict) -> str:
    """The first of the three hardest thresholds of a summary."""
    return [*facts["time_to_s"]][-3:][0]


def test_progress_says_the_measure(tmp_path, capsys):
    simfed.run(write_world(tmp_path, rounds=1), workers=1)
    assert "RMSE" in capsys.readouterr().err


def test_compare_knows_that_the_lower_rmse_is_better(tmp_path):
    sides = []
    for rate in (0.1, 0.01):
        training = {"local_steps": 4, "batch_size": 16, "learning_rate": rate}
        path = write_world(tmp_path, training=training, rounds=10)
        seeds = [simfed.load_scenario(path, {"seed": seed}) for seed in (0, 1)]
        sides.append([simfed.run(one, workers=1, progress=False) for one in seeds])
    fast, slow = (
        [run.prototypes.test_measure.iloc[-1] for run in side] for side in sides
    )
    assert max(fast) < min(slow)
    comparison = simfed.compare(*sides, names=["fast", "slow"], thresholds=[15])
    assert (comparison.table.wins[0], comparison.table.losses[0]) == (2, 0)
    assert "to RMSE 15" in comparison.sentences[0]
    assert comparison.sentences[1].partition(" [")[0].endswith("below slow in RMSE")
    assert comparison.table.measure_difference[0] == pytest.approx(
        np.mean(fast) - np.mean(slow)
    )
    chosen = simfed.compare(*sides, names=["fast", "slow"]).thresholds
    # the hardest that half of the runs reach
    assert max(fast) <= chosen[0] < 2 * max(fast)


def test_runs_of_different_measures_are_not_compared(tmp_path):
    path = write_world(tmp_path, rounds=1)
    number = simfed.run(path, workers=1, progress=False)
    rows = (tmp_path / "rows.csv").read_text().splitlines()
    marks = (
        f"{row.rpartition(',')[0]},{'ab'[i % 2]}" for i, row in enumerate(rows[1:])
    )
    (tmp_path / "marks.csv").write_text("\n".join([rows[0], *marks]))
    path = write_world(tmp_path, {"table": "marks.csv", "target": "price"}, rounds=1)
    mark = simfed.run(path, workers=1, progress=False)
    for refuse in (simfed.compare, lambda *runs: build_page(list(runs))):
        with pytest.raises(InputError, match="measured alike") as error:
            refuse(number, mark)
        assert error.value.got == "RMSE and accuracy"


def test_a_study_of_a_regression_compares_times_to_an_rmse(tmp_path):
    write_world(tmp_path, rounds=10)
    study = {
        "name": "rates",
        "base": "prices.yaml",
        "seeds": [0, 1],
        "grid": {"training.learning_rate": [0.1, 0.01]},
        "compare": {"arms": "training.learning_rate", "thresholds": [15]},
    }
    (tmp_path / "rates.yaml").write_text(json.dumps(study))
    result = simfed.run_study(
        tmp_path / "rates.yaml", tmp_path / "out", jobs=1, progress=False
    )
    assert result.thresholds == [15]
    assert (
        "to RMSE 15 (0.1 sooner in 2, 0.01 in 0 of 2 seeds: 0.1 " in result.verdicts[0]
    )
    assert set(result.summary.columns) >= {"final_measure", "best_measure"}
    assert (result.summary.best_measure <= result.summary.final_measure).all()
    assert result.bands.measure.notna().all()
    html = render_study_page(result)
    assert "RMSE over simulated time" in html
    assert "final RMSE" in html
    assert draw_study_figure(result).axes[0].get_ylabel() == "test RMSE"
    (row, *_) = result.targets("sent", [20]).to_dict("records")
    assert row["reached"] == 2
    assert "to RMSE 15" in build_arms_table(result).header


def test_a_study_has_one_measure(tmp_path):
    write_world(tmp_path, rounds=1)
    table = {"table": "rows.csv", "target": "price"}
    study = {
        "name": "tasks",
        "base": "prices.yaml",
        "grid": {"dataset": [{**table, "task": "regression"}, {"name": "mnist-mini"}]},
    }
    (tmp_path / "tasks.yaml").write_text(json.dumps(study))
    with pytest.raises(InputError, match="measured alike") as error:
        simfed.run_study(
            tmp_path / "tasks.yaml", tmp_path / "out", jobs=1, progress=False
        )
    assert error.value.got == "RMSE and accuracy"
    study = {"name": "far", "base": "prices.yaml", "compare": {"thresholds": [15]}}
    (tmp_path / "far.yaml").write_text(json.dumps(study))
    # 15 is no accuracy, but an RMSE
    simfed.study.plan.plan_study(tmp_path / "far.yaml")


def test_thresholds_that_no_model_can_have_are_refused_before_anything_runs(tmp_path):
    assert parse_target("12.5", MEASURES["regression"]) == 12.5
    for text in ("0", "85%", "x"):
        with pytest.raises(InputError, match="RMSE above 0"):
            parse_target(text, MEASURES["regression"])
    number = MEASURES["regression"]
    with pytest.raises(InputError, match="RMSE above 0"):
        number.check(0.0, where="thresholds")


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
