"""The registered rules on made-up times, the picture, and the plans of the real studies."""

import pandas as pd
import pytest
from adaptive_figure import (
    ARM,
    CONTROL,
    FLEET,
    SHOWN,
    STUDIES,
    adaptive_figure,
    against,
    best_of,
    decided,
    in_full,
    levels_set,
    role,
    settings,
    table,
    times_to,
    verdicts,
)

from simfed.report.statistics import holm
from simfed.study import plan_study

BASE = {
    "top-k@100": [10, 11, 12, 10.5],
    "top-k@400": [8, 8.8, 9.1, 8.5],
    "50 and 1600": [6, 6.5, 7, 6.4],
    "balance": [6, 6.5, 7.1, 6.3],
    "ascend": [12, 13, 13.4, 12.9],
}
CLOSE = (1.03, 1.031, 1.029, 1.032)


def times(fleet=SHOWN, reached=True, **changed):
    return pd.DataFrame(
        [
            {FLEET: fleet, ARM: arm, "seed": seed, "at_s": at_s, "reached": at_s < 100}
            for arm, several in {**BASE, **changed}.items()
            for seed, at_s in enumerate(several)
        ]
    )


def three(**control):
    return settings(pd.concat([times(), times("drawn"), times(CONTROL, **control)]))


def test_the_reference_is_the_best_fixed_k_alone():
    (of,) = settings(times())
    assert (of.best, of.best_pair, of.seeds) == ("top-k@400", "50 and 1600", 4)
    assert of.arms["balance"].paired.ratio.least == pytest.approx(1.33, abs=0.01)
    assert of.arms["top-k@400"].paired.ratio.least == 1
    assert [role(arm) for arm in BASE] == ["fixed", "fixed", "pair", "policy", "policy"]


def test_a_fixed_k_that_once_did_not_get_there_is_not_the_best():
    rows = times(**{"top-k@400": [1, 1, 1, 200]})
    assert best_of(rows, ["top-k@100", "top-k@400"]) == "top-k@100"
    none = times(**{"top-k@400": [1, 1, 1, 200], "top-k@100": [2, 2, 200, 200]})
    assert best_of(none, ["top-k@100", "top-k@400"]) == "top-k@400"


def test_who_never_got_there_is_judged_by_signs():
    one = against(times(ascend=[200, 200, 200, 200]), SHOWN, "ascend", "top-k@400")
    assert one.p_value == 0.125  # two to the power of minus three


def test_seeds_that_missed_what_the_other_reached_are_said():
    """Short rounds that end below the accuracy decide nothing by their times, and are no wins."""
    rows = times(balance=[6, 6.5, 7.1, 6.3])
    ended = (rows[ARM] == "balance") & (rows["seed"] == 3)
    rows.loc[ended, "reached"] = False  # after 6.3 s, where the other got there after 8.5
    one = against(rows, SHOWN, "balance", "top-k@400")
    assert (one.paired.wins, one.paired.losses, one.missed) == (3, 0, 1)
    assert "counted as behind, 3 of 4, p = 0.62" in in_full(one)
    whole = against(times(), SHOWN, "balance", "top-k@400")
    assert whole.missed == 0
    assert "behind" not in in_full(whole)


def test_a_win_takes_both_fleets_and_no_loss_in_the_control():
    won = verdicts(three(balance=[8, 8.9, 9.0, 8.5], ascend=[12, 13, 13.4, 12.9]))
    assert won[-2:] == ["balance: wins", "ascend: has not won"]
    lost = verdicts(three(balance=[9, 9.9, 10.3, 9.6]))
    assert lost[-2:] == ["balance: has not won", "ascend: has not won"]
    assert any(line.startswith(f"balance is behind in {CONTROL}") for line in lost)


def test_small_effects_do_not_win_however_sure():
    close = {"balance": [t / f for t, f in zip(BASE["top-k@400"], CLOSE, strict=True)]}
    (of,) = settings(times(**close))
    assert of.arms["balance"].p_value < 1e-3
    assert decided([of.arms["balance"]]) == [False]


def test_holm_asks_more_of_the_smallest():
    assert holm([0.01, 0.04, 0.03]) == [True, False, False]
    assert holm([]) == []


def test_times_to_an_accuracy_are_the_first_evaluations_there():
    curves = pd.DataFrame(
        [
            {FLEET: SHOWN, ARM: arm, "seed": 0, "at_s": at_s, "accuracy": accuracy}
            for arm, accuracies in (("balance", (0.5, 0.86, 0.8)), ("ascend", (0.1, 0.2, 0.84)))
            for at_s, accuracy in zip((1.0, 2.0, 3.0), accuracies, strict=True)
        ]
    )
    found = times_to(curves, 0.85).set_index(ARM)
    assert found["at_s"].to_dict() == {"balance": 2.0, "ascend": 3.0}
    assert found["reached"].to_dict() == {"balance": True, "ascend": False}


def test_k_and_rate_are_means_of_later_rounds():
    rows = pd.DataFrame(
        {
            FLEET: SHOWN,
            ARM: "balance",
            "seed": 0,
            "client": 0,
            "round": [3, 20, 30],
            "k": [999, 100, 300],
            "uplink_bytes": 1250.0,
            "uplink_s": 0.02,
        }
    )
    (found,) = levels_set(rows).itertuples()
    assert (found.k, found.mbps) == (200, pytest.approx(1.0))


def test_it_is_drawn_and_tabled():
    found = three()
    bands = pd.DataFrame(
        [
            {"setting": SHOWN, "arm": arm, "at_s": at_s, "accuracy": 0.5, "low": 0.4, "high": 0.6}
            for arm in BASE
            for at_s in (1.0, 2.0)
        ]
    )
    plays = pd.DataFrame({FLEET: [SHOWN, "drawn"], "mbps": [0.2, 5.0], "k": [40, 1000]})
    groups = {"": found, " (held out)": settings(times("new", ascend=[200] * 4))}
    figure = adaptive_figure(groups, bands, plays)
    left, middle, right = figure.axes
    assert len(left.get_yticks()) == 4 * 4  # every arm but the reference, in four settings
    assert len(middle.lines) == 4 + 1
    assert len(right.lines) == 2
    assert table(found).splitlines()[2].startswith(f"| {SHOWN} | top-k@400, 8.59 s | 50 and 1600:")


@pytest.mark.parametrize(("name", "runs"), [("adaptive", 300), ("adaptive-held-out", 120)])
def test_the_registered_studies_are_what_they_say(name, runs):
    plan = plan_study(STUDIES / f"{name}.yaml")
    assert len(plan.runs) == runs
    assert plan.seeds == tuple(range(10))
    assert plan.arms_axis.name == ARM
