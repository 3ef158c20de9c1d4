"""Other people's numbers: the page is its rows, and what is played follows closed
forms.
"""

from collections import Counter

import numpy as np
import pytest
from grid5000_runs import (
    Seconds,
    Watts,
    fit_seconds,
    fit_watts,
    play_rounds,
    show,
    write_flower_log,
    write_profile,
    write_round_log,
)
from ledger import FITTED, HELD_OUT, HERE, PAGE, REPEATED, median_error, read_rows
from mcmahan_rounds import rounds_to
from pages import put_between
from scipy import stats
from validation_page import SOURCES, page_parts

import simfed
from simfed import InputError
from simfed.calibrate import read_log


def test_the_page_is_made_of_the_kept_rows():
    page = PAGE.read_text(encoding="utf-8")
    for place, text in page_parts().items():
        assert page == put_between(page, place, text), place


@pytest.mark.parametrize("source", SOURCES)
def test_a_source_has_its_readme_scenario_and_rows(source):
    assert (HERE / source / "README.md").is_file()
    simfed.load_scenario(HERE / source / "scenario.yaml")
    if (HERE / source / "rows.csv").is_file():
        assert read_rows(source)
    else:
        not_played = PAGE.read_text(encoding="utf-8").partition("## Not played")[2]
        assert f"analysis/others/{source}/README.md" in not_played


def test_what_the_sources_are_held_to():
    assert sum(row.covered for row in read_rows("staleness")) >= 22  # of 24, at 95 %
    held_out = [row for row in read_rows("openfl") if row.use != FITTED]
    assert median_error(held_out) < 0.07


def test_a_number_is_repeated_where_another_run_of_its_configuration_was_fitted():
    rows = read_rows("grid5000")
    told = [row.use_told(rows) for row in rows if row.quantity.startswith("makespan")]
    counts = {FITTED: 8, HELD_OUT: 21, HELD_OUT + REPEATED: 34}
    assert Counter(told) == counts
    assert not any(row.use_told(rows).endswith(REPEATED) for row in read_rows("openfl"))


def test_what_grid5000_is_held_to():
    held_out = [row for row in read_rows("grid5000") if row.use != FITTED]
    for quantity, count, bound in (
        ("makespan", 55, 0.01),
        ("joules", 48, 0.05),
        ("median round", 66, 0.02),
    ):
        rows = [row for row in held_out if row.quantity.startswith(quantity)]
        assert len(rows) == count
        assert median_error(rows) <= bound
    covered = [row.covered for row in held_out if row.quantity.startswith("mean round")]
    assert len(covered) == 66
    low, high = stats.binomtest(sum(covered), 66).proportion_ci()
    assert low <= 0.9 <= high


def test_seconds_and_watts_are_those_that_two_runs_were_made_of(tmp_path):
    seconds, watts = Seconds(7.5, 17.5), Watts(20.0, 5.0)
    assert fit_seconds(17.5 + 7.5, 17.5 + 5 * 7.5) == seconds
    profile = write_profile(seconds, watts, tmp_path / "xavier.yaml")
    runs = [play_rounds(seconds, epochs, 4, profile) for epochs in (1, 3, 5)]
    ends_s = [run.rounds["finished_at_s"].iloc[-1] for run in runs]
    assert ends_s == pytest.approx([4 * (17.5 + epochs * 7.5) for epochs in (1, 3, 5)])
    joules = [run.participations["energy_j"].sum() / 4 / 10 for run in runs]
    assert fit_watts(seconds, joules[0], joules[2]) == pytest.approx(watts)
    assert joules[1] == pytest.approx(3 * 7.5 * 20 + 17.5 * 5)


def test_logged_rounds_are_a_log_for_twins(tmp_path):
    rows = read_log(write_round_log(np.array([3.0, 2.0, 2.5]), tmp_path / "log.csv"))
    assert [row.duration_s for row in rows] == [3.0, 2.0, 2.5]
    assert {(row.client, row.phase) for row in rows} == {("", "round")}


def test_flowers_logs_become_a_log_for_twins(tmp_path):
    server = """\
[2024-01-20 22:00:00,000][flwr][INFO] - Starting Flower server
[2024-01-20 22:00:01,500][flwr][DEBUG] - fit_round 1: \
strategy sampled 1 clients (out of 1)
[2024-01-20 22:00:11,000][flwr][DEBUG] - fit_round 1 received 1 results and 0 failures
[2024-01-20 22:00:12,000][flwr][DEBUG] - evaluate_round 1: \
strategy sampled 1 clients (out of 1)
[2024-01-20 22:00:14,500][flwr][DEBUG] - evaluate_round 1 \
received 1 results and 0 failures
"""
    client = """\
[2024-01-20 22:00:02,000][flwr][INFO] - CLIENT 4 FIT ROUND 1
[2024-01-20 22:00:10,250][flwr][INFO] - CLIENT 4 END FIT ROUND 1
"""
    whole, training = read_log(write_flower_log(server, [client], tmp_path / "log.csv"))
    assert (whole.round, whole.client, whole.phase, whole.duration_s) == (
        1,
        "",
        "round",
        13.0,
    )
    assert (training.client, training.phase, training.duration_s) == (
        "4",
        "training",
        8.25,
    )
    assert training.started_at_s - whole.started_at_s == 0.5


def test_a_folder_without_the_sources_history_is_refused(tmp_path):
    for folder in (None, tmp_path):
        with pytest.raises(
            InputError, match="clone of tuananhngh/FL-G5K-EnergyConsumption"
        ):
            show(folder, "HEAD", "analysis/experiments.json")


def test_rounds_to_a_target_are_read_off_the_best_accuracy_so_far():
    curve = [(2, 0.90), (4, 0.98), (6, 0.97), (8, 1.0)]
    assert rounds_to(curve, 0.99) == pytest.approx(7.0)
    assert rounds_to(curve, 0.90) == 2.0
    assert rounds_to(curve[:3], 0.99) is None
