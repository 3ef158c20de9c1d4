"""Settings of publications: each is a scenario, and what came out is tabled."""

import pandas as pd
import pytest
from published_accuracies import RESULTS, SETTINGS, changed, table

from simfed.scenario.load import validate_scenario


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_every_method_of_a_setting_is_a_scenario(setting, tmp_path):
    for label, changes in setting.methods.items():
        scenario = validate_scenario(
            changed(setting.base, changes, 3), source=label, folder=tmp_path
        )
        assert scenario.seed == 3
        assert label.startswith(scenario.method.kind)


def test_the_table_takes_each_seeds_last_evaluation():
    setting = SETTINGS[0]
    rows = [
        (setting.name, "fedavg", seed, round, accuracy, None)
        for seed, last in ((0, 97.5), (1, 98.5))
        for round, accuracy in ((10, 50.0), (20, last))
    ]
    results = pd.DataFrame(rows, columns=pd.read_csv(RESULTS).columns)
    assert f"| {setting.name} | fedavg | 98.0 (97.5 to 98.5) |  | 2 |" in table(results)
