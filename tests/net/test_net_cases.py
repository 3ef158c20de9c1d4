"""Case files: what is computed from them, and every way in which one can be wrong."""

from __future__ import annotations

import numpy as np
import pytest

from simfed import net

FLOW = {"start_s": 0.0, "size_bytes": 8.0, "path": [0]}


def case(*changes, **others):
    """Flows over one link, each the usual one with what is different."""
    links = [{"capacity_bytes_per_s": 4.0, "latency_s": 1.0}]
    flows = [FLOW | change for change in changes]
    return {"name": "two", "links": links, "flows": flows, **others}


def test_finish_times_are_float64_in_the_order_of_the_flows():
    finish = net.replay(case({"start_s": 10}, {"size_bytes": 4}), model="fluid")
    assert finish.dtype == np.float64
    assert finish.tolist() == [13.0, 2.0]


def test_weights_and_caps_are_optional_keys_of_a_flow():
    assert net.replay(case({"cap_bytes_per_s": 2})).tolist() == [5.0]
    two = [{"size_bytes": 6, "weight": weight} for weight in (2, 1)]
    assert net.replay(case(*two)).tolist() == [3.25, 4.0]


def test_keys_of_the_users_own_are_left_alone():
    own = {"client": "pi-7", "finish_s": None}
    assert net.replay(case(own, packets_lost=3)).tolist() == [3.0]


@pytest.mark.parametrize("direction", [1, -1])
def test_the_furthest_weights_share_exactly(direction):
    """8 bytes of one take the link first, then 8 of the other.

    Both cross it alone in turn.
    """
    weights = [{"weight": 10.0 ** (sign * 9)} for sign in (direction, -direction)]
    finish = net.replay(case(*weights))
    assert finish[::direction].tolist() == pytest.approx([3.0, 5.0], rel=1e-12)


def test_errors_are_relative_to_the_time_the_flow_took():
    spans = (10, 12), (11, 15), (12, 22)
    known = case(*({"start_s": start, "finish_s": end} for start, end in spans))
    row, pooled = net.error_table([known], [[12.2, 14.0, 22.0]])
    assert (row.name, row.flows, row.makespan) == ("two", 3, 0.0)
    expected = (0.1 + 0.25) / 3, 0.1, 0.25, 0.22
    assert (row.mean, row.median, row.worst, row.p90) == pytest.approx(expected)
    assert pooled.name == "all"


def test_cases_without_known_finishes_have_no_row():
    known, unknown = case({"finish_s": 5.0}, {"finish_s": 5.0}), case({})
    row, pooled = net.error_table([unknown, known], [[1.0], [5.5, 4.0]])
    assert [row.name, pooled.name] == ["two", "all"]
    assert row.makespan == pytest.approx(0.1)
    assert net.error_table([unknown], [[1.0]]) == []
