"""What the study of servers counts, in made-up runs of four clients."""

import numpy as np
import pandas as pd
import pytest
from servers_figure import (
    SERVERS,
    STUDY,
    absences,
    gini,
    line,
    measured,
    needed_s,
    servers_figure,
    tables,
)

from simfed.ground.errors import RunFailed
from simfed.scenario.load import load_scenario
from simfed.study import plan_study

MB = 1e6
SLOW_FIRST = np.array([3, 2, 1, 0])


def run(*parts):
    """Rounds that end at 10, 20, 30 s; `parts`: (merge, client, outcome, MB up)."""
    rounds = pd.DataFrame({"round": [1, 2, 3], "finished_at_s": [10.0, 20.0, 30.0]})
    columns = ["merge", "client", "outcome", "uplink_bytes"]
    participations = pd.DataFrame(parts, columns=columns).assign(downlink_bytes=MB)
    participations["uplink_bytes"] *= MB
    clients = pd.DataFrame(
        {
            "round": [1] * 4 + [2] * 4 + [3] * 4,
            "client": [0, 1, 2, 3] * 3,
            "accuracy": [0.1] * 4 + [0.5] * 4 + [0.9] * 4,
            "own_accuracy": [0.0] * 4 + [0.4, 0.6, 0.5, 0.1] + [1.0] * 4,
        }
    )
    return rounds, participations, clients


def test_what_was_merged_or_lost_up_to_an_instant_counts():
    parts = [
        (1, 0, "aggregated", 1),
        (1, 3, "dropped", 0),
        (2, 0, "late", 1),
        (2, 1, "aggregated", 1),
        (2, 2, "failed", 1),
        (3, 3, "aggregated", 9),
    ]
    found = measured(*run(*parts), SLOW_FIRST, until_s=20.0)
    assert (found["merges"], found["started"], found["merged"]) == (2, 5, 3)
    assert found["moved_mb"] == 9.0  # five downloads, four uploads of 1 MB
    assert found["wasted_mb"] == 3.0
    assert found["wasted"] == pytest.approx(1 / 3)
    assert found["unheard"] == 2
    assert [found[f"heard_{q}"] for q in ("slow", "second", "third", "fast")] == pytest.approx(
        [0, 0, 1 / 3, 2 / 3]
    )
    assert found["accuracy"] == 0.5
    assert (found["own_slow"], found["own_fast"]) == (0.1, 0.4)
    assert found["gini"] == pytest.approx(gini(np.array([0.0, 0, 1, 2])))


def test_a_run_that_is_over_too_soon_is_no_match():
    with pytest.raises(RunFailed, match="it needs more rounds"):
        measured(*run((1, 0, "aggregated", 1)), SLOW_FIRST, until_s=31.0)


def test_a_line_takes_each_seeds_last_evaluation():
    curves = pd.DataFrame(
        {
            "seed": [0, 0, 1, 1, 2],
            "at_s": [1.0, 5.0, 2.0, 6.0, 3.0],
            "accuracy": [0.2, 0.6, 0.4, 0.8, 0.3],
        }
    )
    mean, low, high = line(curves, "at_s", np.array([0.5, 2.5, 4.0, 7.0]))
    assert np.isnan(mean[:2]).all()  # the third seed was not evaluated yet
    assert mean[2:] == pytest.approx([30.0, 100 * (0.6 + 0.8 + 0.3) / 3])
    assert (low[2:] < mean[2:]).all()
    assert (high[2:] > mean[2:]).all()


def test_everything_is_drawn_and_told():
    rows, times, curves = [], [], []
    for seed in range(3):
        for place, server in enumerate(SERVERS):
            parts = [(1, c, "aggregated" if (c + seed) % 4 else "dropped", 1) for c in range(4)]
            found = measured(*run(*parts), SLOW_FIRST, until_s=20.0 + seed)
            rows.append({"server": server, "seed": seed, **found})
            times.append((server, seed, 0.8, (40.0 + seed) / (1 + place), True))
            curves += [(server, seed, at, at / 2, at / 100) for at in (5.0, 50.0, 90.0)]
    found = pd.DataFrame(rows)
    columns = ["server", "seed", "threshold", "at_s", "reached"]
    text = tables(found, pd.DataFrame(times, columns=columns))
    assert "| synchronous | 50.0 ± 0.0 % | 41 s | 3 |" in text
    assert "| deadline | 50.0 ± 0.0 % | 20 s, 2.0 × [2.0, 2.0] | 3 |" in text
    curves = pd.DataFrame(curves, columns=["server", "seed", "at_s", "moved_mb", "accuracy"])
    figure = servers_figure(found, curves)
    assert [ax.get_title(loc="left") for ax in figure.axes] == list("abcde")


def test_the_study_compares_as_many_clients_in_flight_and_knows_who_is_slow():
    servers = {run.point["list"]: run.scenario for run in plan_study(STUDY).runs}
    assert tuple(servers) == SERVERS
    in_flight = set()
    for of in servers.values():
        asked = of.aggregation.concurrency or of.participation.clients_per_round
        in_flight.add(round(asked * (1 + (of.aggregation.over_selection or 0))))
    assert in_flight == {10}
    scenario = load_scenario(STUDY.parents[1] / "servers.yaml")
    needed = needed_s(scenario, seed=0)
    assert len(needed) == scenario.client_count
    assert needed.min() > 0
    assert needed.max() < 10
    away = absences(scenario, seed=0)
    share = sum(to - at for mine in away for at, to in mine) / (50 * len(away))
    assert 0.3 < share < 0.5  # 20 of 50 s
