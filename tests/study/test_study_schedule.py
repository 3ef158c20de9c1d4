"""Which run is next, and how long the rest will take."""

import pytest

from simfed.study.address import compute_path_key
from simfed.study.plan import plan_study
from simfed.study.show import describe_standing
from simfed.study.standing import RunState, Standing


def play(states, slots):
    """Which indices run together, step by step, when all that run end at once."""
    standing, steps = Standing(states), []
    while True:
        begun = []
        while (state := standing.next(slots)) is not None:
            standing.begin(state)
            begun.append(states.index(state))
        if not begun:
            return steps
        steps.append(begun)
        for index in begun:
            standing.end(states[index], "finished", 1.0)


def states(*keys):
    return [RunState(None, str(i), key) for i, key in enumerate(keys)]


def test_what_is_learned_twice_is_learned_once_first():
    # three bandwidths of two strategies: one of each goes first, then all others at once
    assert play(states("a", "b", "a", "b", "a", "b"), slots=4) == [[0, 1], [2, 3, 4, 5]]


def test_runs_with_a_way_of_their_own_wait_for_nobody():
    assert play(states(None, None, "a", None, "a"), slots=4) == [[0, 1, 2, 3], [4]]


def test_runs_that_may_begin_alike_are_kept_apart_where_there_is_other_work():
    runs = states(None, None, None, None)
    for state, family in zip(runs, "aabb", strict=True):
        state.family = family
    assert play(runs, slots=2) == [[0, 2], [1, 3]]
    runs = states(None, None)
    runs[0].family = runs[1].family = "a"
    assert play(runs, slots=2) == [[0, 1]]  # better than an idle core


def test_no_more_than_the_slots():
    assert play(states(None, None, None), slots=2) == [[0, 1], [2]]


def test_a_failed_leader_is_followed_by_another():
    runs = states("a", "a")
    standing = Standing(runs)
    standing.begin(standing.next(2))
    assert standing.next(2) is None
    standing.end(runs[0], "failed", 1.0)
    assert standing.next(2) is runs[1]
    standing.begin(runs[1])
    assert not runs[1].replayed


def test_fixed_strategies_share_a_path_over_bandwidths_and_learning_policies_do_not(write_study):
    grid = {
        "clients[*].link.up": ["5 Mbps", "50 Mbps"],
        "policy": [
            {"kind": "uniform", "strategy": "top-k"},
            {"kind": "uniform", "strategy": "random-k"},
            {"kind": "ascend"},
        ],
    }
    keys = [
        compute_path_key(run.scenario, device="cpu")
        for run in plan_study(write_study(grid=grid)).runs
    ]
    top, random, ascend = keys[:3]
    assert keys == [top, random, None] * 2
    assert ascend is None
    assert len({top, random}) == 2
    longer = plan_study(write_study(base={"rounds": 61}, grid=grid)).runs[0]
    assert compute_path_key(longer.scenario, device="cpu") != top


def test_time_left_is_unknown_at_first():
    assert Standing(states(None, None)).left_s(2) is None


def test_time_left_takes_what_runs_took():
    runs = states(None, None, None, None, None)
    for state in runs[:2]:
        state.status, state.wall_s = "finished", 10.0
    assert Standing(runs).left_s(1) == pytest.approx(30.0)
    assert Standing(runs).left_s(3) == pytest.approx(10.0)


def test_time_left_knows_replays_from_learning():
    runs = states("a", "a", "a", "b", "b")
    runs[0].status, runs[0].wall_s = "finished", 100.0
    runs[1].status, runs[1].wall_s, runs[1].replayed = "finished", 2.0, True
    # a again: a replay; b: learned once, then a replay
    assert Standing(runs).left_s(1) == pytest.approx(2 + 100 + 2)


def test_time_left_of_a_run_under_way(monkeypatch):
    monkeypatch.setattr("simfed.study.standing.time.time", lambda: 1030.0)
    (state,) = states(None)
    state.status = "running"
    state.progress = {"begun_at_wall": 1000.0, "told_at_wall": 1020.0, "round": 20, "rounds": 100}
    assert Standing([state]).left_s(1) == pytest.approx(100 - 30)


def test_the_headline_counts_what_is_there():
    runs = states(None, None, None)
    runs[0].status, runs[1].status = "finished", "failed"
    assert describe_standing(Standing(runs), 1) == "1 of 3 runs done, 1 failed"


def test_the_live_table_shows_what_runs_and_what_ended(write_study):
    from rich.console import Console

    from simfed.study.show import LiveTable

    grid = {"clients[*].link.up": ["5 Mbps", "50 Mbps"], "compression.k": [500, 1000]}
    plan = plan_study(write_study(grid=grid))
    runs = [RunState(run, str(i)) for i, run in enumerate(plan.runs)]
    runs[0].status, runs[0].wall_s = "finished", 12.0
    runs[1].status, runs[1].reason = "failed", "unlucky"
    runs[2].status = "running"
    runs[2].progress = {
        "round": 30,
        "rounds": 60,
        "simulated_s": 1.5,
        "measure": 0.42,
        "begun_at_wall": 0.0,
        "told_at_wall": 6.0,
    }
    display = LiveTable(plan)
    display.ended(Standing(runs), runs[0])
    display.ended(Standing(runs), runs[1])
    console = Console(record=True, width=100, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(display.table(Standing(runs), 1))
    lines = [line.split() for line in console.export_text().splitlines()]
    assert "test: 1 of 4 runs done, 1 running, 1 failed" in " ".join(lines[0])
    assert lines[1] == ["up", "k", "seed", "round", "simulated", "accuracy", "took"]
    assert lines[2] == ["5", "Mbps", "500", "0", "done", "60/60", "12", "s"]
    assert lines[3] == ["5", "Mbps", "1000", "0", "failed", "unlucky"]
    assert lines[4][:4] == ["50", "Mbps", "500", "0"]
    assert lines[4][-5:] == ["30/60", "1.5", "s", "42.0", "%"]


def test_time_left_counted_as_runs_go_is_what_it_is_counted_anew():
    runs = states("a", "a", "b", None, "b", "c")
    standing, slots = Standing(runs), 2
    while (state := standing.next(slots)) is not None or standing.running:
        if state is not None:
            standing.begin(state)
        else:
            ending = next(iter(standing.running.values()))
            failed = ending is runs[2]  # then another has to learn it
            standing.end(
                ending, "failed" if failed else "finished", 2.0 if ending.replayed else 9.0
            )
        assert standing.left_s(slots) == Standing(runs).left_s(slots)
        assert standing.count == 6
    assert standing.ended == {"finished": 5, "failed": 1}
