"""Case files: what is computed from them, and every way in which one can be wrong."""

from __future__ import annotations

import numpy as np
import pytest

from simfed import net


def case(**changes):
    made = {
        "name": "two",
        "links": [{"capacity_bytes_per_s": 4.0, "latency_s": 1.0}],
        "flows": [
            {"start_s": 0.0, "size_bytes": 8.0, "path": [0], "finish_s": 5.0}
            for _ in range(2)
        ],
    }
    return {**made, **changes}


def flow(**changes):
    return {"flows": [{"start_s": 0.0, "size_bytes": 8.0, "path": [0], **changes}]}


def test_finish_times_are_float64_in_the_order_of_the_flows():
    flows = [{"start_s": at, "size_bytes": 4, "path": [0]} for at in (10, 0)]
    finish = net.replay(case(flows=flows), model="fluid")
    assert finish.dtype == np.float64
    assert finish.tolist() == [12.0, 2.0]


def test_weights_and_caps_are_optional_keys_of_a_flow():
    assert net.replay(case(**flow(cap_bytes_per_s=2))).tolist() == [5.0]
    flows = [{"start_s": 0, "size_bytes": 6, "path": [0], "weight": w} for w in (2, 1)]
    assert net.replay(case(flows=flows)).tolist() == [3.25, 4.0]


def test_keys_of_the_users_own_are_left_alone():
    assert net.replay(
        case(packets_lost=3, **flow(client="pi-7", finish_s=None))
    ).tolist() == [3.0]


@pytest.mark.parametrize("direction", [1, -1])
def test_the_furthest_weights_share_exactly(direction):
    """10 bytes of one take the link first, then 10 of the other.

    Both cross it alone in turn.
    """
    flows = [
        {"start_s": 0, "size_bytes": 10.0, "path": [0], "weight": 10.0 ** (sign * 9)}
        for sign in (direction, -direction)
    ]
    links = [{"capacity_bytes_per_s": 10.0}]
    finish = net.replay({"links": links, "flows": flows})
    assert sorted(finish) == pytest.approx([1.0, 2.0], rel=1e-12)
    assert (finish[0] < finish[1]) == (direction == 1)


def test_errors_are_relative_to_the_time_the_flow_took():
    flows = [
        {"start_s": s, "size_bytes": 1, "path": [0], "finish_s": f}
        for s, f in ((10, 12), (11, 15), (12, 22))
    ]
    rows = net.error_table([case(flows=flows)], [[12.2, 14.0, 22.0]])
    row = rows[0]
    assert (row.name, row.flows) == ("two", 3)
    assert (row.mean, row.median, row.worst) == pytest.approx(
        ((0.1 + 0.25) / 3, 0.1, 0.25)
    )
    assert row.p90 == pytest.approx(0.22)
    assert row.makespan == 0.0
    assert rows[1].name == "all"


def test_cases_without_known_finishes_have_no_row():
    known, unknown = case(), case(**flow())
    rows = net.error_table([unknown, known], [[1.0], [5.5, 4.0]])
    assert [row.name for row in rows] == ["two", "all"]
    assert rows[0].makespan == pytest.approx(0.1)
    assert net.error_table([unknown], [[1.0]]) == []
