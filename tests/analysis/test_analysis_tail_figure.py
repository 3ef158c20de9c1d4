"""Rows of the longest rounds are of the same runs, and intervals keep runs together."""

import numpy as np
import tail_figure


def test_every_arm_has_the_same_runs():
    rows = tail_figure.read_rows()
    sizes = rows.groupby(["codec", "server", "seed", "start"], observed=True).size()
    assert set(sizes) == {50}
    assert len(sizes) == 12 * 5 * 4


def test_intervals_are_as_wide_as_seeds_differ():
    rng = np.random.default_rng(1)
    alike = rng.exponential(1.0, (5, 4, 50))
    apart = alike * np.arange(1, 6)[:, None, None]
    wide, narrow = (np.ptp(tail_figure.redrawn(cells, 200)[:, 0]) for cells in (apart, alike))
    assert wide > 3 * narrow
