"""Every picture and chart of made-up runs looks as kept in `looks.txt`.

See `looks.py`.
"""

import dataclasses
from pathlib import Path

import looks
import numpy as np
from synthetic_run import run_maker

from simfed.device import load_profile, read_table
from simfed.fleet.columns import FleetColumn
from simfed.record import open_run
from simfed.report import accuracy_figure, build_page, gantt_figure
from simfed.report.calibration import profile_figure
from simfed.report.fleet import draw_fleet_figure
from simfed.report.owned import draw_owned_figure

HERE = Path(__file__).parent
MEASURED = HERE.parents[1] / "calibration" / "xeon-2core-vm.csv"


def column(group, field, *values):
    drawn = np.array(values, dtype=float)
    return FleetColumn(
        group, field, "fixed" if len(values) == 1 else "uniform", drawn, len(values)
    )


def fleet_of_nine():
    """Nine groups, one more than there are colours and dashes of one kind."""
    columns = [column(i, "device.speed", *range(1, 3 + i)) for i in range(9)]
    columns += [column(i, "link.up", 1e5, 4e6) for i in range(9)]
    columns += [column(0, "link.latency", 0.02), column(1, "k", 100, 100, 2000)]
    hours = np.linspace(0, 48, 97)
    there = np.array([0.5 + 0.4 * np.sin(hours / 4 + i) for i in range(9)]).T
    return columns, [f"group {i}" for i in range(9)], there, hours


def profiled():
    """A few curves of a device, and what was measured of them."""
    profile, table = load_profile("xeon-2core-vm"), read_table([MEASURED])
    keys = list(dict.fromkeys(row.key for row in table.rows))[::20]
    rows = tuple(row for row in table.rows if row.key in keys)
    curves = {key: curve for key, curve in profile.curves.items() if key in keys}
    return dataclasses.replace(profile, curves=curves), dataclasses.replace(
        table, rows=rows
    )


def pictures(run):
    """(name, figure) of each kind."""
    one = run(6, 6)
    yield "timeline", gantt_figure(one, rounds=(2, 3))
    yield "timeline, narrow", gantt_figure(one, width_in=3.5)
    yield "timeline of many", gantt_figure(run(130, 2), rounds=(1, 1))
    yield "accuracy", accuracy_figure(one)
    yield "accuracy of two", accuracy_figure([one, run(6, 6, 1)], x="round")
    yield "fleet", draw_fleet_figure(*fleet_of_nine())
    yield "fleet, narrow", draw_fleet_figure(*fleet_of_nine()[:2], width_in=3.5)
    profile, rows = profiled()
    yield "profile", profile_figure(profile)
    yield "profile, measured", profile_figure(profile, rows)
    yield (
        "profile without intervals",
        profile_figure(load_profile("rtx3090-ryzen4800h")),
    )
    classes = np.array([[5, 1], [0, 3], [9, 0]])
    yield "owned", draw_owned_figure(classes.sum(axis=1), classes, ["cat", "dog"])
    owners = [
        "north ward",
        "an intensive care unit",
        *map(str, range(len(classes) - 2)),
    ]
    named = draw_owned_figure(classes.sum(axis=1), classes, ["cat", "dog"], 4.0, owners)
    yield "owned, named", named
    yield "owned, alike", draw_owned_figure(np.array([5, 5, 4]), np.empty((3, 0)), [])


def lines(run):
    for name, figure in pictures(run):
        yield from looks.of_figure(name, figure)
    for name, runs in (("one", [run(6, 6)]), ("two", [run(6, 6), run(130, 2)])):
        yield from looks.of_page(f"page of {name}", build_page(runs))


def test_groups_that_lie_upon_each_other_take_turns():
    columns = [column(i, "device.speed", 1, 2) for i in range(2)]
    columns.append(column(2, "device.speed", 1, 3))
    alike, other, alone = draw_fleet_figure(columns, list("abc")).axes[0].lines
    (first, dash), (second, other_dash) = (
        line._unscaled_dash_pattern for line in (alike, other)
    )
    assert list(dash) == list(other_dash)
    assert len(set(dash)) == 1  # as long as the gap that the other fills
    assert second - first == dash[0]
    assert alone.get_linestyle() == "-"


def test_every_picture_and_chart_looks_as_kept(tmp_path):
    # folders of its own: what they are called is on the page
    make = run_maker(tmp_path)
    looks.assert_looks(HERE / "looks.txt", lines(lambda *world: open_run(make(*world))))
