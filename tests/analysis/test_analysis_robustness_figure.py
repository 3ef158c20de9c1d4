"""Rules against attackers: cells, undefined ones, the worst case, and going on from
kept rows.
"""

import math

import numpy as np
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


def test_the_picture_names_what_it_shows(rows):
    texts = [text.get_text() for axes in figure.draw(rows).axes for text in axes.texts]
    assert texts.count("undefined") == len(ATTACKS) + 1
    assert "90" in texts
    assert any("(25)" in text for text in texts)


def test_what_is_kept_is_not_run_again(rows, tmp_path, monkeypatch):
    path = tmp_path / "rows.csv"
    rows.sample(frac=1, random_state=0).to_csv(path, index=False)
    monkeypatch.setattr(figure, "ROWS", path)
    before = path.read_text()
    figure.run_all(1, 3)
    assert path.read_text() == before
    places = figure.read_rows()[list(Cell._fields)].itertuples(index=False, name=None)
    assert [Cell(*place) for place in places] == list(figure.cells(3))
    np.testing.assert_array_equal(
        figure.means(figure.read_rows(), 0.1, "accuracy")[0],
        figure.means(rows, 0.1, "accuracy")[0],
    )
