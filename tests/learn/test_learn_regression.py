"""Numbers as targets: the loss, the measure, and what is said of it everywhere."""

import numpy as np
import pandas as pd
import pytest
import torch
from worlds import play, world

import simfed
from simfed import InputError
from simfed.learn import load_data
from simfed.learn.objective import Regression
from simfed.report import build_page, list_headline_facts

PRICES = {"table": "rows.csv", "target": "price", "task": "regression"}


@pytest.fixture
def prices(tmp_path, monkeypatch):
    """A table whose target is 100 + 20 a − 10 b, and a scenario of linear models."""
    monkeypatch.chdir(tmp_path)
    a, b = np.random.default_rng(0).normal(size=(2, 200))
    price = 100 + 20 * a - 10 * b
    mark = np.where(price > 100, "high", "low")
    rows = pd.DataFrame({"a": a, "b": b, "price": price, "mark": mark})
    rows.to_csv("rows.csv", index=False)

    def scenario(rate=0.1, **changes):
        training = {"local_steps": 4, "batch_size": 16, "learning_rate": rate}
        plain = {
            "rounds": 10,
            "dataset": {**PRICES, "features": ["a", "b"]},
            "training": training,
            "policy.strategy": "dense",
            "evaluation": {"every": 1, "clients": True},
        }
        return world("tiny", {**plain, **changes})

    scenario.prices = price
    return scenario


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
    assert Regression(2.0, sd=3.0).measures(0.5, 4.0, torch.empty(3, 0)) == {
        "measure": 6.0
    }


def test_targets_are_standardised_by_the_training_rows(prices):
    spec = prices().dataset
    data = load_data(spec)
    assert (data.task, data.classes, spec.partition.kind) == ("regression", 1, "iid")
    assert abs(data.train_labels.mean()) < 1e-6
    assert data.train_labels.std() == pytest.approx(1, abs=1e-6)
    # in the unit of the prices
    assert data.target_sd == pytest.approx(np.std(prices.prices), rel=0.1)


def test_a_regression_is_learned_measured_by_rmse_and_said_so(prices):
    made = prices(rounds=20)
    result, data = play(made), load_data(made.dataset)
    tested, clients = result.prototypes, result.clients
    measures = tested.test_measure
    assert np.allclose(measures, data.target_sd * np.sqrt(tested.test_loss))
    assert measures.iloc[-1] < 2 < measures.iloc[0]
    variance = data.test_labels.var(dtype=np.float64)
    # R² beside it
    assert np.allclose(tested.test_accuracy, 1 - tested.test_loss / variance)
    assert result.manifest["measure"] == {"name": "RMSE", "better": "lower"}
    assert np.allclose(clients.own_loss, clients.loss)  # nobody owns test rows
    assert np.allclose(clients.own_measure, clients.measure)
    facts = result.summary["measure"]["a"]
    assert (facts["final"], facts["best"]) == (measures.iloc[-1], measures.min())
    assert facts["best_round"] == measures.argmin() + 1
    (step, first_s), *_ = facts["time_to_s"].items()  # the easiest first
    there = tested["round"][measures <= float(step)].iloc[0]
    assert first_s == result.rounds.set_index("round").finished_at_s[there]
    name, final, about = list_headline_facts(result)[0]
    assert (name, final) == ("RMSE", f"{measures.iloc[-1]:.4g}")
    assert f"best {measures.min():.4g} in round" in about
    assert "When each RMSE was reached" in build_page([result])


def test_compare_knows_that_the_lower_rmse_is_better(prices):
    sides = [[play(prices(rate, seed=seed)) for seed in (0, 1)] for rate in (0.1, 0.01)]
    fast, slow = (
        [run.prototypes.test_measure.iloc[-1] for run in side] for side in sides
    )
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


def test_runs_of_different_measures_are_not_compared(prices):
    number = play(prices(rounds=1))
    marks = {"table": "rows.csv", "target": "mark", "features": ["a", "b"]}
    mark = play(prices(rounds=1, dataset=marks))
    for refuse in (simfed.compare, lambda *runs: build_page(list(runs))):
        with pytest.raises(InputError, match="measured alike") as error:
            refuse(number, mark)
        assert error.value.got == "RMSE and accuracy"
