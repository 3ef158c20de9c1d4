"""The map of a made-up study, and the plan of the real one."""

import pandas as pd
import pytest
from top_k_map import (
    ARM,
    AXES,
    FILE,
    SPEED,
    UP,
    cell_of,
    map_figure,
    map_table,
    rounds_table,
)

from simfed.study import plan_study


def times(of_arm, speed=1.0, up="1 Mbps", reached=True):
    """Rows of a study's `times`: per arm one time for each seed."""
    return pd.DataFrame(
        [
            {
                SPEED: speed,
                UP: up,
                ARM: arm,
                "seed": s,
                "at_s": at_s,
                "reached": reached,
                "round": s,
            }
            for arm, several in of_arm.items()
            for s, at_s in enumerate(several)
        ]
    )


def test_the_first_arm_is_clear_where_it_leads_in_every_seed():
    cell = cell_of(
        times(
            {
                "top-k": [10, 11, 12],
                "random-k": [20, 22, 24.1],
                "periodic-k": [30, 33, 36.1],
            }
        )
    )
    assert (cell.first, cell.is_clear, cell.rival) == ("top-k", True, "random-k")
    assert cell.against.ratio.least == pytest.approx(2.0, rel=0.01)


def test_a_map_has_a_square_and_the_table_a_place_per_cell():
    cells = [
        times(
            {"top-k": [1, 2, 3], "random-k": [4, 5, 6], "periodic-k": [7, 8, 9]},
            speed,
            up,
        )
        for speed in (0.1, 1.0)
        for up in ("1 Mbps", "10 Mbps")
    ]
    together = pd.concat(cells, ignore_index=True)
    assert len(map_figure(together).axes[0].patches) == 4
    lines = map_table(together).splitlines()
    assert [line.split("|")[1].strip() for line in lines] == [
        "processors",
        "---",
        "0.1×",
        "1×",
    ]
    assert all(line.count("**Top-K** 2.") == 2 for line in lines[2:])
    assert rounds_table(together).splitlines()[2:] == [
        "| Top-K | 0 | 1 | 2 |", "| Random-K | 0 | 1 | 2 |", ("| Periodic-K | 0 | 1 | "
                                                              "2 "
                                                             "|")
    ]  # fmt: skip


def test_the_study_varies_the_clock_alone():
    """Its whole map learns once per strategy and seed."""
    plan = plan_study(FILE)
    assert {axis.name for axis in plan.axes} == set(AXES.values())
    scenario = plan.runs[0].scenario
    assert scenario.compression.index_code == "seeded"
    assert {group.device.profile for group in scenario.clients} == {"x86-2core-vm"}
