"""The costs behind a made-up run's accuracies, and the plan of the real study."""

import math

import pandas as pd
import pytest
from methods_figure import (
    FAMILIES,
    PAIRS,
    SCORED,
    STUDY,
    differences,
    line,
    methods_figure,
    progress,
    table,
)

from simfed.ground.registry import registry
from simfed.study import plan_study


def participations(rows):
    """From (merge, MB up, MB down, training in s, compression in s) of each."""
    columns = ["merge", "uplink_bytes", "downlink_bytes", "training_s", "compression_s"]
    frame = pd.DataFrame(rows, columns=columns)
    frame[["uplink_bytes", "downlink_bytes"]] *= 1e6
    return frame


def curve(*points):
    return pd.DataFrame(points, columns=["round", "at_s", "accuracy"])


def test_costs_of_an_evaluated_round_are_those_of_all_merges_up_to_it():
    spent = participations(
        [(1, 1, 2, 0.5, 0.25), (1, 1, 2, 0.5, 0), (2, 3, 4, 1, 0), (4, 10, 20, 2, 1)]
    )
    found = progress(curve((1, 7, 0.1), (3, 9, 0.2), (4, 11, 0.3)), spent)
    assert found["up_mb"].tolist() == [2, 5, 15]
    assert found["down_mb"].tolist() == [4, 8, 28]
    assert found["device_s"].tolist() == [1.25, 2.25, 5.25]
    assert found["at_s"].tolist() == [7, 9, 11]
    assert found["own_accuracy"].isna().all()


def test_an_upload_counts_at_its_merge_and_an_early_round_has_cost_nothing():
    spent = participations([(3, 1, 1, 1, 0)])
    found = progress(curve((1, 1, 0.1), (3, 5, 0.2)), spent)
    assert found["up_mb"].tolist() == [0, 1]


def test_own_accuracy_is_the_mean_over_clients():
    clients = pd.DataFrame({"round": [2, 2, 4], "own_accuracy": [0.5, 0.7, 0.9]})
    found = progress(curve((2, 1, 0.1), (4, 2, 0.2)), participations([(1, 1, 1, 1, 0)]), clients)
    assert found["own_accuracy"].tolist() == pytest.approx([0.6, 0.9])


def rows_of(method, accuracies, mb):
    return pd.DataFrame(
        [
            {
                "method": method,
                "seed": seed,
                "step": step,
                "accuracy": accuracy,
                "own_accuracy": math.nan,
                "at_s": 1.0 + step,
                "up_mb": mb,
                "down_mb": mb,
                "device_s": 2.0,
            }
            for seed, several in enumerate(accuracies)
            for step, accuracy in enumerate(several)
        ]
    )


def test_a_line_has_the_mean_over_seeds_and_an_interval_of_accuracies_there_are():
    drawn = line(rows_of("fedavg", [[0.1, 0.9], [0.2, 0.8], [0.9, 1.0]], 1.0), "at_s")
    assert drawn["cost"].tolist() == [1, 2]
    assert drawn["accuracy"].tolist() == pytest.approx([0.4, 0.9])
    assert drawn["low"].tolist() == [0.0, pytest.approx(0.9 - 4.303 * 0.1 / math.sqrt(3), abs=1e-3)]
    assert drawn["high"].tolist() == [1.0, 1.0]  # Student's t would go beyond


def test_two_seeds_have_no_interval():
    drawn = line(rows_of("fedavg", [[0.4], [0.6]], 1.0), "at_s")
    assert drawn[["low", "high"]].isna().all(axis=None)


def test_what_sends_nothing_is_a_level_and_has_a_row_of_the_table():
    rows = pd.concat(
        [rows_of("fedavg", [[0.4], [0.6]], 1.0), rows_of("local-only", [[0.2], [0.3]], 0.0)]
    )
    figure = methods_figure(rows)
    sent = figure.axes[-3]
    assert [text.get_text() for text in sent.texts] == ["local-only: 0 MB"]
    lines = table(rows).splitlines()
    assert [text.split("|")[1].strip() for text in lines[2:]] == ["fedavg", "local-only"]
    assert "| 0 | 0 |" in lines[-1]


def test_the_study_has_every_method_once_on_one_fleet():
    plan = plan_study(STUDY)
    shown = [method for methods in FAMILIES.values() for method in methods]
    assert sorted(shown) == sorted(registry("method").names())
    of_seed = [run.scenario for run in plan.runs if run.seed == 0]
    assert sorted(scenario.method.kind for scenario in of_seed) == sorted(shown)
    assert len(plan.runs) == 5 * len(shown)
    facts = {
        (
            str(s.dataset),
            str(s.training.model_copy(update={"clip_norm": None})),  # scaffold clips
            str([(g.count, g.link, g.device.speed) for g in s.clients]),
        )
        for s in of_seed
    }
    assert len(facts) == 1


def test_differences_are_of_equal_seeds():
    rows = pd.concat(
        [
            rows_of("a", [[0.1, 0.5], [0.1, 0.7], [0.1, 0.9]], 1),
            rows_of("b", [[0.4], [0.6], [0.8]], 1),
        ]
    )
    assert "| a | 70.0 [20.3, 100.0] | b | +10.0 [+10.0, +10.0] | – |" in differences(
        rows, [("a", "b")]
    )


def test_the_pairs_are_arms_of_the_study_and_treated_alike():
    """But for what their names say."""
    of_arm = {run.point["list"]: run.scenario for run in plan_study(SCORED).runs}
    assert {name for pair in PAIRS for name in pair} <= set(of_arm)
    for name, scenario in of_arm.items():
        assert (scenario.training.clip_norm is not None) == ("clipped" in name)
        nearest = scenario.method.options.get("predict") == "nearest-mean"
        assert nearest == ("nearest mean" in name)
        assert scenario.method.kind == name.partition(",")[0]
