"""Rules against attackers: cells, undefined ones, the worst case, and going on from
kept rows.
"""

import math

import pandas as pd
import pytest
import robustness_figure as figure
from robustness_figure import ATTACKS, RULES, SHARES, Cell


@pytest.fixture
def rows():
    """Three seeds; accuracy falls from rule to rule and from attacker to attacker."""
    made = []
    for cell in figure.cells(3):
        accuracy = (
            0.9
            - 0.05 * RULES.index(cell.rule)
            - 0.02 * list(ATTACKS).index(cell.attack)
        )
        defined = figure.is_defined(cell)
        made.append(
            {
                **cell._asdict(),
                "accuracy": accuracy + 0.01 * (cell.seed - 1) if defined else math.nan,
                "attack_success": 0.25
                if defined and cell.attack == "backdoor"
                else math.nan,
                "server_ms": 2.0 if defined else math.nan,
            }
        )
    return pd.DataFrame(made)


def test_every_rule_meets_every_attacker_at_both_shares():
    cells = list(figure.cells(2))
    assert len(cells) == len(set(cells)) == 2 * len(SHARES) * len(RULES) * len(ATTACKS)
    undefined = {
        (cell.share, cell.rule) for cell in cells if not figure.is_defined(cell)
    }
    assert undefined == {(0.3, "bulyan")}  # 4 · 6 + 3 of 20


def test_an_undefined_cell_is_one_that_a_scenario_refuses():
    row = figure.run(Cell("lenet5-half", 0, 0.3, "bulyan", "alie"))
    assert row["accuracy"] == row["server_ms"] == ""


def test_means_worst_cases_and_what_is_undefined(rows):
    accuracy, half = figure.means(rows, 0.3, "accuracy")
    assert accuracy.loc["mean", "none"] == pytest.approx(0.9)
    assert half.loc["mean", "none"] == pytest.approx(
        0.01 * 4.302653 / math.sqrt(3), rel=1e-5
    )
    assert accuracy.loc["bulyan"].isna().all()
    worst = figure.worst_of(accuracy)
    assert worst["median"] == pytest.approx(accuracy.loc["median", "backdoor"])
    assert math.isnan(worst["bulyan"])
    printed = figure.table(rows)
    assert printed.count("undefined") == len(ATTACKS) + 2
    assert "| mean | 90.0 ± 2.5 |" in printed
