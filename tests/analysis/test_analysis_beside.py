"""Two checkouts are measured side by side."""

from pathlib import Path

import beside
import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.long
def test_two_checkouts_take_turns_and_one_row_says_what_a_further_round_costs(capsys):
    beside.compare((ROOT, ROOT), "fedavg", workers=2, blocks=1)
    row = capsys.readouterr().out
    assert row.startswith("fedavg           2 worker(s)  processor")
    assert row.count("→") == 3


def test_scenarios_of_all_cases_are_valid():
    from simfed.scenario import Scenario

    for scenario, block in beside.CASES.values():
        assert Scenario.model_validate(scenario).rounds > block
