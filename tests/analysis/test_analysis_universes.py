"""Claims in other universes, choices in the course of runs and the safeguard's second attempts, on
results whose answers are known."""

import numpy as np
import pytest
from analysis_made_up import ARMS, facts, with_rounds
from campaign import CHOICES
from choices import losses_around, shares_over_time
from claims import judge
from multiverse import (
    FACTORS,
    cells,
    effects,
    is_folded,
    readings,
    settings,
    shares_by_choice,
)
from pictures import PICTURES
from report import _setups, results_text
from results import Result, Results
from sentences import sentences

WOBBLE = (0.0, 0.001, -0.001, 0.002, -0.002)


def code(arm, choice):
    return sorted(ARMS).index(arm) + 16 * CHOICES.index(choice)


# ---- readings -----------------------------------------------------------------------------------


def test_a_claim_that_holds_per_round_and_not_per_second_hangs_on_the_axis(keep):
    """Twice the K: a point higher in every round, and five times as long."""
    made = []
    for seed, wobble in enumerate(WOBBLE):
        for k, final, end_s in ((500, 0.9, 2.0), (1000, 0.91, 10.0), (5000, 0.92, 50.0)):
            one = facts("top-k", seed, final=final + wobble, k=k)
            curve = [0.1 + final / 10, 0.5 + final / 10, final + wobble]
            one["curve"]["accuracy"] = {model: list(curve) for model in one["curve"]["accuracy"]}
            one["curve"]["round"] = [10, 500, 1000]
            one["curve"]["at_s"] = [end_s / 100, end_s / 2, end_s]
            made.append(one)
    read = [one for one in readings(Results(keep(*made))) if one.choices.get("policy") == "Top-K"]
    name, of_value = next(iter(shares_by_choice(read).items()))
    assert name == "axis"
    assert of_value["per round"] == 1.0
    assert of_value["per second"] < 0.2


def test_readings_without_runs_are_short_of_seeds(keep):
    assert {one.state for one in readings(Results(keep()))} == {"short of seeds"}


# ---- settings -----------------------------------------------------------------------------------


def test_every_two_factors_meet_equally_often():
    levels = np.array([[cell.choices[f.words] == f.other for f in FACTORS] for cell in cells()])
    assert levels.shape == (8, 5)
    for first in range(5):
        for second in range(first):
            pairs = levels[:, [first, second]].tolist()
            assert {pairs.count(pair) for pair in pairs} == {2}
            assert len({str(pair) for pair in pairs}) == 4


def test_what_a_factor_changes_is_found_among_the_others():
    """As-printed credit takes two points, unclipped rewards add one; seeds differ by a level."""
    wobble = np.random.default_rng(1).normal(scale=1e-4, size=(8, 3))
    table = (
        np.array(
            [
                [
                    -0.02 * (cell.choices["credit"] == "as printed")
                    + 0.01 * (cell.choices["rewards"] == "unclipped")
                    + level
                    for level in (0.0, 0.3, -0.2)
                ]
                for cell in cells()
            ]
        )
        + wobble
    )
    estimates = {one.factor.words: one for one in effects(table, cells())}
    assert estimates["credit"].estimate.least == pytest.approx(-0.02, abs=3e-4)
    assert estimates["rewards"].estimate.least == pytest.approx(0.01, abs=3e-4)
    assert {name for name, one in estimates.items() if one.clear} == {"credit", "rewards"}


def test_the_folded_design_tells_a_point_from_a_pair():
    """Credit and compression act together and neither does by itself: in a quarter of all
    combinations that is the clip; folded over it is nobody's."""

    def found(those):
        table = np.random.default_rng(1).normal(scale=1e-4, size=(len(those), 3))
        for row, cell in zip(table, those, strict=True):
            both = {cell.choices["credit"] == "as printed", cell.choices["compression in"] == "ms"}
            row += 0.01 * (len(both) == 1)
        return [one.factor.name for one in effects(table, those) if abs(one.estimate.least) > 0.005]

    quarter, half = cells(), cells(folded=True)
    assert found(quarter) == ["clip"]
    assert found(half) == []
    others = {factor.words: {factor.taken, factor.other} for factor in FACTORS}
    for one, other in zip(quarter, half[8:], strict=True):
        assert all({one.choices[w], other.choices[w]} == values for w, values in others.items())


def universes(clip_changes, only=None):
    """ASCEND in settings (all eight) and the fixed strategies; unclipped, Top-K's lead is gone."""
    plays = {"top-k": 80, "random-k": 10, "periodic-k": 10}
    even = {"top-k": 10, "random-k": 70, "periodic-k": 20}
    noise = np.random.default_rng(2)
    for seed in range(3):
        for cell in only or cells():
            plays["top-k"] = 80 + int(noise.integers(5))
            chosen = even if clip_changes and "clip" in cell.universe else plays
            more = {"universe": dict(cell.universe)} if cell.universe else {}
            yield facts("ascend", seed, final=0.95 + WOBBLE[seed], plays=chosen, **more)
        for arm in ARMS:
            yield facts(arm, seed, final=0.95 + WOBBLE[seed])


def test_settings_say_in_how_many_a_claim_holds_and_what_changes_it(keep):
    results = Results(keep(*universes(clip_changes=True)))
    of = {question.short: (each, changes) for question, each, changes in settings(results, 1000)}
    each, changes = of["LeNet5-half: Top-K's lead"]
    assert [one.state for one in each].count("holds") == 4
    assert [one.state for one in each].count("fails") == 4
    assert [one.factor.name for one in changes if one.clear] == ["clip"]
    assert [one.factor.name for one in changes if one.stays] == ["clip"]
    each, changes = of["final accuracy − best fixed"]
    assert {one.state for one in each} == {"holds"}
    assert not any(one.clear for one in changes)


def test_folded_settings_count_once_each_of_them_has_three_seeds(keep):
    runs = list(universes(True, cells(folded=True)))
    short = [*runs[:-4], *runs[-3:]]  # the last setting's third seed
    for there, count, share in ((runs, 16, "half"), (short, 8, "quarter")):
        results = Results(keep(*there))
        assert is_folded(results, 1000) == (count == 16)
        for _, each, _ in settings(results, 1000):
            assert len(each) == count
        page = results_text(results)
        assert f"ASCEND in a {share} of all combinations" in page
        assert ("though not from how three do" in page) == (count == 16)
        assert ("points (or their aliases)" in page) == (count == 8)
        apart = "told" if count == 16 else "not told"
        assert f"A point is {apart} apart from how [two others]" in page
        assert f"of {count // 2} settings of the other open points" in page
        for path in results.folder.glob("*.json"):
            path.unlink()


def test_slow_compression_changes_when_fixed_strategies_arrive_and_nothing_else(keep):
    from multiverse import _fixed

    results = Results(keep(*universes(clip_changes=False)))
    fast, slow = (_fixed(results, 1000, slow)[0]["top-k"] for slow in (False, True))
    assert slow.accuracies() == fast.accuracies()
    # 0.61 us of Top-K become 610 us in each round of the larger model
    rounds = np.array(fast.facts["curve"]["round"])
    assert np.diff(slow.at_s) == pytest.approx(slow.at_s[0] * np.diff(rounds))
    assert slow.at_s[0] > 0.005


# ---- choices and second attempts ----------------------------------------------------------------


def test_shares_over_time_are_of_free_choices_alone():
    best, other = code("top-k", "exploit"), code("random-k", "explore")
    half = [code("top-k", "warm-up")] * 2 + [best] * 4
    half += [other] * 3 + [best] + [code("top-k", "forced")] * 2
    run = Result(with_rounds(facts("ascend", 0), [half, half]))
    shares = shares_over_time(run, "lenet5", 2)
    assert shares["top-k"] == [1.0, 0.25]
    assert shares["random-k"] == [0.0, 0.75]
    assert shares_over_time(Result(facts("ascend", 0)), "lenet5", 2) is None


def test_second_attempts_are_held_against_the_last_accepted_round():
    """Round 4 is undone at three times the loss, of one prototype; the next has four, then five."""
    losses = [[1, 1, 1, 3, 4, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1, 1]]
    plays = [[code("top-k", "exploit")] * 8] * 2
    for after, again in ((4, True), (1.9, False)):
        losses[0][4] = after
        made = with_rounds(facts("ascend", 0), plays, [4], losses)
        (one,) = losses_around(Result(made), 3, 3)
        assert (one.round, one.undone, one.second) == (4, 3.0, pytest.approx(after))
        assert one.exceeds_again is again
    assert losses_around(Result(facts("ascend", 0))) == []


def test_a_loss_of_nothing_is_no_rise():
    """Of a prototype that has collapsed the loss is 0 and stays there; the other one exceeded."""
    plays = [[code("top-k", "exploit")] * 8] * 2
    losses = [[0] * 8, [1, 1, 1, 3, 4, 1, 1, 1]]
    (one,) = losses_around(Result(with_rounds(facts("ascend", 0), plays, [4], losses)), 3, 3)
    assert (one.undone, one.second, one.bound) == (3.0, 4.0, 2.0)


# ---- sentences and pictures ---------------------------------------------------------------------


def test_sentences_and_pictures_say_only_what_there_is(keep):
    results = Results(keep(*universes(clip_changes=True)))
    said = sentences(results, judge(results), list(readings(results)))
    assert any("*rewards unclipped* changes 2," in one for one in said)
    assert not any("sending everything" in one for one in said)
    nothing = Results(keep(), planned=[])
    assert sentences(nothing, judge(nothing), list(readings(nothing))) == []
    assert [name for name, picture in PICTURES.items() if picture.draw(nothing)] == []
    assert PICTURES["open-points"].draw(results) is not None


def test_dense_is_said_beside_top_k(keep):
    dense = facts("dense", 0, final=0.97)
    dense["uplink_bytes"] = 40.0
    results = Results(keep(dense, facts("top-k", 0, final=0.96)))
    said = sentences(results, judge(results), list(readings(results)))
    (said,) = (one for one in said if "everything" in one)
    assert "uploads 1/40 of what sending everything does" in said
    assert "less that of sending everything is -1.00 points" in said


def test_cifar_is_said_once_it_has_three_seeds(keep):
    where = {"dataset": "cifar10", "rounds": 600}
    ends = {"top-k": 0.40, "random-k": 0.20, "periodic-k": 0.25, "ascend": 0.39}
    runs = [
        facts(arm, seed, final=(end if k == 1_000 else 0.41) + 0.001 * seed, k=k, **where)
        for arm, end in ends.items()
        for k in (1_000, 16_000)
        for seed in range(3)
    ]
    for there, times in ((runs[:-1], 0), (runs, 1)):
        results = Results(keep(*there))
        said = sentences(results, judge(results), list(readings(results)))
        assert sum("On CIFAR-10" in one for one in said) == times
        if times:
            (one,) = (one for one in said if "On CIFAR-10" in one)
            assert "+15.0 points [+15.0, +15.0] at K = 1,000" in one
            assert "are within 0.0 points" in one
            assert "ASCEND's end less Top-K's is -1.0 points [-1.0, -1.0]" in one


def test_fixed_strategies_stand_beside_each_other_in_each_set_up(keep):
    five = {"universe": {"local steps": 5}}
    ten = {"universe": {"distillation ×": 10.0}}  # as it is written, 0.2 / 0.02
    runs = [
        facts(arm, seed, final=final + 0.001 * seed, **setting)
        for arm, usual, more in zip(ARMS, (0.95, 0.94, 0.93), (0.96, 0.97, 0.9), strict=True)
        for setting, final in (({}, usual), (five, more), (ten, more))
        for seed in range(3)
    ]
    rows = _setups(Results(keep(*runs))).split("\n")
    (usual,) = (row for row in rows if row.startswith("| 1,000 | as taken"))
    (more,) = (row for row in rows if row.startswith("| 1,000 | five local steps"))
    assert "| 95.1 % | -1.00 points" in usual
    assert "| 96.1 % | +1.00 points" in more
    for other in ("distillation rate × 10", "compression in ms"):
        assert any(row.startswith(f"| 1,000 | {other}") for row in rows)
    assert _setups(Results(keep(), planned=[])) == ""
