"""Which run is next, and how long the rest will take."""

from dataclasses import dataclass, field

import pytest

from simfed.study.address import path_key
from simfed.study.drive import _is_known, _next
from simfed.study.plan import plan_study
from simfed.study.show import headline, time_left_s


@dataclass
class State:
    """As much of a `RunState` as the schedule looks at."""

    path_key: str | None
    family: str | None = None
    status: str = "waiting"
    replayed: bool = False
    wall_s: float | None = None
    progress: dict = field(default_factory=dict)
    address: str = "a"


def play(states, slots):
    """Which indices run together, step by step, when all that run end at once."""
    steps = []
    while True:
        begun = []
        while (state := _next(states, slots)) is not None:
            finished = {other.path_key for other in states if other.status == "finished"}
            state.status, state.replayed = "running", _is_known(state, finished)
            begun.append(states.index(state))
        if not begun:
            return steps
        steps.append(begun)
        for index in begun:
            states[index].status = "finished"


def states(*keys):
    return [State(key, address=str(i)) for i, key in enumerate(keys)]


def test_what_is_learned_twice_is_learned_once_first():
    # three bandwidths of two strategies: one of each goes first, then all others at once
    assert play(states("a", "b", "a", "b", "a", "b"), slots=4) == [[0, 1], [2, 3, 4, 5]]


def test_runs_with_a_way_of_their_own_wait_for_nobody():
    assert play(states(None, None, "a", None, "a"), slots=4) == [[0, 1, 2, 3], [4]]


def test_runs_that_may_begin_alike_are_kept_apart_where_there_is_other_work():
    found = states(None, None, None, None)
    for state, family in zip(found, "aabb", strict=True):
        state.family = family
    assert play(found, slots=2) == [[0, 2], [1, 3]]
    found = states(None, None)
    found[0].family = found[1].family = "a"
    assert play(found, slots=2) == [[0, 1]]  # better than an idle core


def test_no_more_than_the_slots():
    assert play(states(None, None, None), slots=2) == [[0, 1], [2]]


def test_a_failed_leader_is_followed_by_another():
    found = states("a", "a")
    first = _next(found, 2)
    first.status = "failed"
    second = _next(found, 2)
    assert second is found[1]
    assert not _is_known(second, set())


def test_fixed_strategies_share_a_path_over_bandwidths_and_learning_policies_do_not(write_study):
    grid = {
        "clients[*].link.up": ["5 Mbps", "50 Mbps"],
        "policy": [
            {"kind": "uniform", "strategy": "top-k"},
            {"kind": "uniform", "strategy": "random-k"},
            {"kind": "ascend"},
        ],
    }
    keys = [path_key(run.scenario, device="cpu") for run in plan_study(write_study(grid=grid)).runs]
    top, random, ascend = keys[:3]
    assert keys == [top, random, None] * 2
    assert ascend is None
    assert len({top, random}) == 2
    longer = plan_study(write_study(base={"rounds": 61}, grid=grid)).runs[0]
    assert path_key(longer.scenario, device="cpu") != top


def test_time_left_is_unknown_at_first():
    assert time_left_s(states(None, None), 2) is None


def test_time_left_takes_what_runs_took():
    found = states(None, None, None, None, None)
    for state in found[:2]:
        state.status, state.wall_s = "finished", 10.0
    assert time_left_s(found, slots=1) == pytest.approx(30.0)
    assert time_left_s(found, slots=3) == pytest.approx(10.0)


def test_time_left_knows_replays_from_learning():
    found = states("a", "a", "a", "b", "b")
    found[0].status, found[0].wall_s = "finished", 100.0
    found[1].status, found[1].wall_s, found[1].replayed = "finished", 2.0, True
    # a again: a replay; b: learned once, then a replay
    assert time_left_s(found, slots=1) == pytest.approx(2 + 100 + 2)


def test_time_left_of_a_run_under_way(monkeypatch):
    monkeypatch.setattr("simfed.study.show.time.time", lambda: 1030.0)
    (state,) = states(None)
    state.status = "running"
    state.progress = {"begun_at_wall": 1000.0, "told_at_wall": 1020.0, "round": 20, "rounds": 100}
    assert time_left_s([state], slots=1) == pytest.approx(100 - 30)


def test_the_headline_counts_what_is_there():
    found = states(None, None, None)
    found[0].status, found[1].status = "finished", "failed"
    assert headline(found, 1) == "1 of 3 runs done, 1 failed"


def test_the_live_table_shows_what_runs_and_what_ended(write_study):
    from rich.console import Console

    from simfed.study.drive import RunState
    from simfed.study.show import LiveTable

    grid = {"clients[*].link.up": ["5 Mbps", "50 Mbps"], "compression.k": [500, 1000]}
    plan = plan_study(write_study(grid=grid))
    found = [RunState(run, str(i)) for i, run in enumerate(plan.runs)]
    found[0].status, found[0].wall_s = "finished", 12.0
    found[1].status, found[1].reason = "failed", "unlucky"
    found[2].status = "running"
    found[2].progress = {
        "round": 30,
        "rounds": 60,
        "simulated_s": 1.5,
        "accuracy": 0.42,
        "begun_at_wall": 0.0,
        "told_at_wall": 6.0,
    }
    table = LiveTable(plan)
    table.ended(found, found[0])
    table.ended(found, found[1])
    console = Console(record=True, width=100, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(table._table(found, 1))
    lines = [line.split() for line in console.export_text().splitlines()]
    assert "test: 1 of 4 runs done, 1 running, 1 failed" in " ".join(lines[0])
    assert lines[1] == ["up", "k", "seed", "round", "simulated", "accuracy", "took"]
    assert lines[2] == ["5", "Mbps", "500", "0", "done", "60/60", "12", "s"]
    assert lines[3] == ["5", "Mbps", "1000", "0", "failed", "unlucky"]
    assert lines[4][:4] == ["50", "Mbps", "500", "0"]
    assert lines[4][-4:] == ["30/60", "1.5", "s", "42.0%"]
