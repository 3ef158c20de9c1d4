"""The map of the kept rows, and the plan of its study."""

from kept import read
from top_k_map import AXES, FILE, ROWS, SPEED, UP, map_figure

from simfed.study import plan_study


def test_a_map_has_a_square_per_cell():
    rows = read(ROWS)
    (ax, *_) = map_figure(rows).axes
    assert len(ax.patches) == len(rows[[SPEED, UP]].drop_duplicates()) > 1


def test_the_study_varies_the_clock_alone():
    """Its whole map learns once per strategy and seed."""
    plan = plan_study(FILE)
    assert {axis.name for axis in plan.axes} == set(AXES.values())
    scenario = plan.runs[0].scenario
    assert scenario.compression.index_code == "seeded"
    assert {group.device.profile for group in scenario.clients} == {"x86-2core-vm"}
