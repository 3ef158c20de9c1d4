"""Rules against attackers: the cells, and those that are undefined."""

import robustness_figure as figure
from robustness_figure import ATTACKS, RULES, SHARES, Cell


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
