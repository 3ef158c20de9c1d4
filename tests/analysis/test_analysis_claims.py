"""Verdicts on results whose answer is known."""

import math

import numpy as np
import pytest
from analysis_made_up import ARMS, facts
from claims import CLAIMS, Check, headline, judge, state_of, survives_holm, verdict_of
from report import check_text
from results import (
    POLICIES,
    Results,
    accuracy_gap,
    equal_time_gap,
    grid_gaps,
    shares,
    time_ratio,
)
from scipy import stats

from simfed.ground.errors import InputError
from simfed.report.statistics import Estimate

SEEDS = range(5)
WOBBLE = (0.0, 0.001, -0.001, 0.002, -0.002)


def judged(folder, name):
    return next(one for one in judge(Results(folder)) if one.claim.name == name)


def of_arms(finals, ks=(500, 1000), times=None, seeds=SEEDS, **more):
    return [
        facts(
            arm,
            s,
            final=final + WOBBLE[s],
            k=k,
            reached_at_s=(times or {}).get(arm, 1.0) + 0.01 * s,
            **more,
        )
        for k in ks
        for s in seeds
        for arm, final in finals.items()
    ]


def test_nothing_run_is_not_run(keep):
    one = {j.verdict for j in judge(Results(keep()))}
    assert one == {"not run", "not comparable"}


def test_top_k_higher_and_sooner_everywhere_is_reproduced(keep):
    finals = {"top-k": 0.95, "random-k": 0.9, "periodic-k": 0.91}
    times = {"top-k": 1.0, "random-k": 2.0, "periodic-k": 2.0}
    one = judged(keep(*of_arms(finals, times=times)), "top-k-at-small-k")
    assert one.verdict == "holds"
    gap = one.checks[0].estimate
    assert gap.least == pytest.approx(0.05)
    assert one.checks[1].estimate.least == pytest.approx(2.0, rel=0.02)


def test_the_best_that_is_higher_but_later_is_not_the_best(keep):
    finals = {"top-k": 0.95, "random-k": 0.9, "periodic-k": 0.91}
    times = {"top-k": 3.0, "random-k": 2.0, "periodic-k": 2.0}
    one = judged(keep(*of_arms(finals, times=times)), "top-k-at-small-k")
    assert one.verdict == "fails"
    assert {c.state for c in one.checks} == {"holds", "fails"}
    assert headline(one).what == "K 500, over random-k: sooner to 90%"


def test_the_reverse_is_not_reproduced(keep):
    finals = {"top-k": 0.9, "random-k": 0.95, "periodic-k": 0.95}
    times = {"top-k": 3.0, "random-k": 2.0, "periodic-k": 2.0}
    one = judged(keep(*of_arms(finals, times=times)), "top-k-at-small-k")
    assert one.verdict == "fails"
    assert {c.state for c in one.checks} == {"fails"}


@pytest.mark.parametrize("missing", range(5))
def test_one_missing_seed_leaves_it_open_and_shows_what_there_is(keep, missing):
    finals = {"top-k": 0.95, "random-k": 0.9, "periodic-k": 0.91}
    runs = [
        f
        for f in of_arms(finals)
        if not (f["seed"] == missing and f["setting"]["policy"] == "top-k")
    ]
    one = judged(keep(*runs), "top-k-at-small-k")
    assert one.verdict == "cannot be told"
    assert {c.seeds for c in one.checks} == {4}
    more = [
        facts(arm, s, final=f, k=1000) for arm, f in finals.items() for s in SEEDS if s == missing
    ]
    some = judged(keep(*more), "top-k-at-small-k")  # K 1,000 is whole now
    assert (some.verdict, headline(some).seeds) == ("cannot be told", 5)
    assert headline(some).what.startswith("K 1,000")
    assert one.checks[0].estimate.least == pytest.approx(0.05, abs=0.003)


def test_equal_arms_differ_in_nothing_that_is_clear(keep):
    one = judged(keep(*of_arms(dict.fromkeys(ARMS, 0.9), ks=(1000,))), "half-learns-by-top-k")
    # identical runs: the interval is the number 0, which is not above 0
    assert {c.state for c in one.checks} == {"fails"}
    assert one.verdict == "fails"


def test_an_interval_around_the_bound_is_undecided(keep):
    runs = [facts("top-k", s, final=0.9 + 5 * WOBBLE[s]) for s in SEEDS]
    runs += [facts(arm, s, final=0.9) for arm in ARMS[1:] for s in SEEDS]
    one = judged(keep(*runs), "half-learns-by-top-k")
    assert {c.state for c in one.checks} == {"cannot be told"}
    assert one.verdict == "cannot be told"


def test_a_threshold_never_reached_by_the_other_is_a_bound(keep):
    runs = [facts("top-k", s, reached_at_s=1.0) for s in SEEDS]
    runs += [facts("random-k", s, final=0.6, reached_at_s=None) for s in SEEDS]
    results = Results(keep(*runs))
    paired = time_ratio(results.runs("top-k"), results.runs("random-k"), 0.9)
    assert paired.ratio.low == pytest.approx(10.0)  # cut at 10 s against 1 s
    assert paired.ratio.most == math.inf
    assert (paired.wins, paired.losses) == (5, 0)
    back = time_ratio(results.runs("random-k"), results.runs("top-k"), 0.9)
    assert back.ratio.high == pytest.approx(0.1)


def test_a_threshold_that_nobody_reached_decides_nothing(keep):
    runs = of_arms(dict.fromkeys(ARMS, 0.6))
    for one in runs:
        one["curve"]["accuracy"] = {
            m: [0.1, 0.2, v[-1]] for m, v in one["curve"]["accuracy"].items()
        }
    one = judged(keep(*runs), "top-k-at-small-k")
    times = [c for c in one.checks if c.unit == "×"]
    assert {c.state for c in times} == {"cannot be told"}


def test_a_margin_lets_ascend_lack_half_a_point(keep):
    def with_ascend(final):
        runs = of_arms(dict.fromkeys(ARMS, 0.95), ks=(10_000,))
        return keep(
            *runs,
            *(
                facts("ascend", s, final=final + WOBBLE[s], k=10_000, reached_at_s=1.0 + 0.01 * s)
                for s in SEEDS
            ),
        )

    height = judged(with_ascend(0.947), "devices-10000").checks[0]
    assert height.state == "holds"
    height = judged(with_ascend(0.94), "devices-10000").checks[0]
    assert height.state == "fails"


def test_ascend_is_held_against_the_best_fixed_strategy(keep):
    finals = {"top-k": 0.97, "random-k": 0.8, "periodic-k": 0.8}
    runs = of_arms(finals, ks=(10_000,))
    runs += [facts("ascend", s, final=0.9, k=10_000) for s in SEEDS]
    height = judged(keep(*runs), "devices-10000").checks[0]
    assert height.state == "fails"
    assert height.estimate.least == pytest.approx(-0.07)


def test_what_rests_on_unpublished_times_stays_not_comparable(keep):
    runs = of_arms(dict.fromkeys(ARMS, 0.9), ks=(10_000,))
    runs += [facts("ascend", s, final=0.95, k=10_000) for s in SEEDS]
    assert judged(keep(*runs), "devices-10000").verdict == "not comparable"


def test_selection_counts_free_choices_alone(keep):
    plays = {"top-k": 60, "random-k": 20, "periodic-k": 20}
    runs = [facts("ascend", s, plays=plays) for s in SEEDS]
    folder = keep(*runs)
    share = shares(Results(folder).runs("ascend")[0], "lenet5")
    assert share == {"top-k": 0.6, "random-k": 0.2, "periodic-k": 0.2}
    assert judged(folder, "half-chooses-top-k").verdict == "holds"
    assert judged(folder, "lenet5-balanced").verdict == "fails"


def test_even_choices_are_balanced(keep):
    plays = {"top-k": 36, "random-k": 34, "periodic-k": 30}
    folder = keep(*(facts("ascend", s, plays=plays) for s in SEEDS))
    assert judged(folder, "lenet5-balanced").verdict == "holds"


def test_bandwidth_that_changes_nothing_is_no_gain(keep):
    """Fixed strategies learn the same at every bandwidth; their times scale together."""
    runs = [
        facts(arm, s, final=final, up_mbps=float(up), reached_at_s=at_s * (2 if up == 5 else 1))
        for up in (5, 500)
        for s in SEEDS
        for arm, final, at_s in (("top-k", 0.95, 1.0), ("random-k", 0.9, 2.0))
    ]
    one = judged(keep(*runs), "fast-links")
    assert {c.state for c in one.checks} == {"given by the set-up"}
    assert one.verdict == "follows from the set-up"
    for run in runs:  # were something learned by the clock, the runs would decide
        for curve in run["curve"]["accuracy"].values():
            curve[0] = 0.0  # times are those of evaluations
        run["curve"]["accuracy"]["lenet5"][-1] += 0.01 * (run["setting"]["up_mbps"] == 5)
    one = judged(keep(*runs), "fast-links")
    assert {c.state for c in one.checks} == {"fails"}
    assert one.verdict == "fails"


def fast_links(keep, random_k_fast_s, top_k_slow=True):
    runs = [
        facts(arm, s, final=0.95 + up / 1e6, up_mbps=float(up), reached_at_s=at_s)
        for s in SEEDS
        for arm, up, at_s in (
            ("top-k", 5, 2.0 if top_k_slow else None),
            ("top-k", 500, 1.0),
            ("random-k", 5, 4.0),
            ("random-k", 500, random_k_fast_s),
        )
    ]
    for run in runs:  # 0.8 is passed where 0.9 is, or never
        for curve in run["curve"]["accuracy"].values():
            curve[0] = 0.0
        if (
            run["setting"]["up_mbps"] == 5
            and run["setting"]["policy"] == "top-k"
            and not top_k_slow
        ):
            run["curve"]["accuracy"] = {m: [0.1, 0.5, 0.6] for m in run["curve"]["accuracy"]}
    return judged(keep(*runs), "fast-links").checks[1]


def test_a_constant_of_the_clock_is_no_gain(keep):
    """It has no scatter at all, so any interval of it is above 1; it must be at least 1 %."""
    check = fast_links(keep, 2.0 / 1.00007)
    assert check.state == "fails"
    assert check_text(check) == "+0.007 % [+0.007 %, +0.007 %]"
    assert fast_links(keep, 2.0 / 1.02).state == "holds"


def test_a_gain_with_a_time_never_reached_is_a_bound(keep):
    check = fast_links(keep, 2.0, top_k_slow=False)
    # Top-K took longer than 10 s at 5 Mbps: Random-K gained (4/10)/(2/1) = 0.2 times, or less
    assert check.estimate.most == pytest.approx(0.2)
    assert check.state == "fails"


def test_pairs_are_of_equal_seeds(keep):
    """Seeds differ by much more than arms do; pairs cancel that."""
    levels = (0.5, 0.6, 0.7, 0.8, 0.9)
    runs = [
        facts(arm, s, final=levels[s] + gain)
        for s in SEEDS
        for arm, gain in (("top-k", 0.01), ("random-k", 0))
    ]
    results = Results(keep(*runs, facts("top-k", 7, final=0.1)))  # without a partner: not counted
    gap, seeds = accuracy_gap(results.runs("top-k"), results.runs("random-k"))
    assert seeds == 5
    assert gap.low == pytest.approx(0.01)
    assert gap.high == pytest.approx(0.01)


def test_settings_are_told_apart(keep):
    results = Results(keep(facts("ascend", 0), facts("ascend", 0, c=5.0), facts("top-k", 0, k=500)))
    assert len(results.runs("ascend")) == len(results.runs("ascend", c=5)) == 1
    assert results.runs("ascend", c=4) == {}
    assert results.runs("top-k") == {}
    assert list(results.runs("top-k", k=500)) == [0]
    assert results.runs("top-k", task="cifar10", k=500) == {}


@pytest.mark.parametrize(
    ("states", "verdict"),
    [
        (["holds"] * 3, "holds"),
        (["holds", "cannot be told"], "cannot be told"),
        (["holds", "fails"], "fails"),
        (["holds", "cannot be told", "fails"], "fails"),
        (["cannot be told", "fails"], "fails"),
        (["cannot be told"] * 2, "cannot be told"),
        (["holds", "short of seeds"], "cannot be told"),
        ([], "not run"),
    ],
)
def test_verdicts(states, verdict):
    some = Estimate(0, 0, 0, 0, 0.95)
    assert verdict_of([Check("", state, some, "points", 5) for state in states]) == verdict


@pytest.mark.parametrize(
    ("coverage", "state"),
    [(0.95, "holds"), (0.9375, "holds"), (0.75, "cannot be told"), (0, "cannot be told")],
)
def test_an_interval_that_covers_too_little_decides_no_check(coverage, state):
    assert state_of(Estimate(2, 3, 1.5, math.inf, coverage), 1, 5, 5) == state


# --- grids -------------------------------------------------------------------------------------


def grid(finals):
    """Runs of ASCEND at c = 3, and at the others in turn; rows are settings, columns seeds."""
    cs = (3.0, 1.0, 2.0, 4.0, 5.0)
    return [
        facts("ascend", s, c=c, final=float(row[s]))
        for c, row in zip(cs, finals, strict=False)
        for s in range(len(row))
    ]


def test_a_grid_of_two_is_a_paired_t_test(keep):
    results = Results(keep(*grid([[0.9, 0.92, 0.95], [0.91, 0.9, 0.92]])))
    good, other = results.runs("ascend"), results.runs("ascend", c=1)
    (pooled,), seeds, freedom = grid_gaps(good, [other])
    plain, _ = accuracy_gap(good, other)
    assert (seeds, freedom) == (3, 2)
    assert (pooled.least, pooled.low, pooled.high) == pytest.approx(
        (plain.least, plain.low, plain.high)
    )


def test_a_grid_of_settings_that_do_not_differ_is_rarely_called_different(keep):
    """400 grids of 5 settings × 3 seeds, without an effect: 95 % of intervals hold 0."""
    rng = np.random.default_rng(5)
    tries, hits = 400, 0
    from results import Result

    for _ in range(tries):
        seeds, noise = rng.normal(0.9, 0.02, 3), rng.normal(0, 0.004, (5, 3))
        runs = [
            {f["seed"]: Result(f) for f in grid(seeds + noise) if f["setting"]["c"] == c}
            for c in (3, 1, 2, 4, 5)
        ]
        gaps, _, _ = grid_gaps(runs[0], runs[1:])
        hits += sum(gap.low <= 0 <= gap.high for gap in gaps) / len(gaps)
    # the four of a grid share c = 3, so count grids: three standard errors of an unclustered share,
    # doubled
    assert hits / tries == pytest.approx(0.95, abs=6 * math.sqrt(0.95 * 0.05 / (4 * tries)))


def test_a_grid_short_of_seeds_is_not_judged(keep):
    runs = grid([[0.9, 0.9, 0.9]] * 4)
    assert judged(keep(*runs), "exploration").verdict == "not run"
    finals = [[0.9, 0.91, 0.905]] * 4 + [[0.9, 0.909, 0.905]]
    one = judged(keep(*grid(finals)), "exploration")
    assert one.verdict == "holds"
    note = one.claim.note(Results(keep()))
    assert "spans 0.03 points (3 seeds; a difference's interval is ±" in note
    assert note.endswith("less than the margin of 0.5: the parameter hardly matters")
    finals[1] = [0.85, 0.86, 0.855]
    assert "hardly" not in one.claim.note(Results(keep(*grid(finals))))


# --- across K, and CIFAR-10 ----------------------------------------------------------------------


def test_equal_time_ends_with_the_shorter_run(keep):
    slow = facts("top-k", 0, k=5000, final=0.99, reached_at_s=2.0)
    slow["curve"]["at_s"][-1] = 20.0  # 0.99 comes after the other has ended at 10 s
    results = Results(keep(slow, facts("top-k", 0, final=0.95)))
    gap, seeds = equal_time_gap(results.runs("top-k", k=5000), results.runs("top-k"))
    assert seeds == 1
    assert gap.least == pytest.approx(0.9 - 0.95)


@pytest.mark.parametrize(
    ("claim", "small", "large", "half", "whole"),
    [
        ("cifar10", "100,000", "2,000,000", "WResNet40-2", "ResNet18"),
        ("cifar10-small", "1,000", "16,000", "LeNet5-half", "LeNet5"),
    ],
)
def test_cifar10_asks_who_chose_what_by_prototype(keep, claim, small, large, half, whole):
    checks = [c for c in judged(keep(), claim).checks if c.unit == "share"]
    assert [c.what.split(":")[0] for c in checks] == [
        f"K {small}, {half}",
        f"K {small}, {whole}",
        f"K {large}, {half}",
        f"K {large}, {whole}",
    ]
    assert {c.needed for c in checks} == {3}


@pytest.mark.parametrize(("highest", "at_chance"), [(0.105, True), (0.12, False)])
def test_runs_that_have_learned_nothing_are_said_to(keep, highest, at_chance):
    models = ("resnet18", "wresnet40-2")
    cifar10 = {"dataset": "cifar10", "rounds": 300, "k": 100_000, "models": models}
    ends = {"top-k": highest, "random-k": 0.1, "periodic-k": 0.1}
    runs = [facts(arm, 0, final=end, reached_at_s=None, **cifar10) for arm, end in ends.items()]
    one = judged(folder := keep(*runs), "cifar10")
    assert (one.verdict, headline(one).seeds) == ("cannot be told", 1)
    said = "all runs end at chance, which tells nothing apart (K 100,000, 3 runs, after 50.0 % at "
    assert one.claim.note(Results(folder)) == (f"{said}best)" if at_chance else "")


# --- reasons -----------------------------------------------------------------------------------


def test_a_preference_is_a_reason_where_the_prototype_learns_by_it(keep):
    plays = {"top-k": 60, "random-k": 20, "periodic-k": 20}
    better = of_arms({"top-k": 0.95, "random-k": 0.9, "periodic-k": 0.9}, ks=(1000,))
    chosen = [facts("ascend", s, plays=plays) for s in SEEDS]
    one = judged(folder := keep(*chosen, *better), "lenet5-balanced")
    reason = one.claim.reason(Results(folder))
    assert reason.startswith("LeNet5 plays Top-K in 60.0 % of its free choices")
    assert "5.0 points [5.0, 5.0] higher than by Random-K" in reason
    equal = of_arms(dict.fromkeys(ARMS, 0.9), ks=(1000,))
    assert one.claim.reason(Results(keep(*chosen, *equal))) == ""


def test_rejected_rounds_are_among_the_reasons_of_an_adaptive_policy(keep):
    runs = [facts("ascend", s, rollbacks=30 + s) for s in SEEDS]
    for run in runs:
        for of_arm in run["plays"].values():
            of_arm["top-k"] = {"forced": 5, "explore": 10, "exploit": 85}
            of_arm.pop("ascend", None)
    claim = next(one for one in CLAIMS if one.name == "ascend-everywhere")
    reason = claim.reason(Results(keep(*runs)))
    assert "at random in 10 % of its plays" in reason
    assert "undoes 3.0 to 3.4 % of a run's rounds" in reason
    assert "forces Top-K in 5.0 % of all choices" in reason


def test_a_margin_wider_than_what_it_compares_is_said(keep):
    claim = next(one for one in CLAIMS if one.name == "ascend-everywhere")
    close = of_arms({"top-k": 0.951, "random-k": 0.95, "periodic-k": 0.949}, ks=(5000,))
    far = of_arms({"top-k": 0.96, "random-k": 0.95, "periodic-k": 0.94}, ks=(500,))
    note = claim.note(Results(keep(*close, *far)))
    assert "0.20 points at K 5,000, 5 seeds" in note
    assert "K 500" not in note


def test_accuracies_that_differ_between_bandwidths_are_no_reason_about_the_clock(keep):
    runs = [
        facts(arm, s, up_mbps=up, final=0.9) for arm in ARMS for s in SEEDS for up in (5.0, 500.0)
    ]
    claim = next(one for one in CLAIMS if one.name == "fast-links")
    assert "same accuracy in every round" in claim.reason(Results(keep(*runs)))
    runs[0]["curve"]["accuracy"]["lenet5"][-1] += 0.001
    assert claim.reason(Results(keep(*runs))) == ""


# --- which runs count --------------------------------------------------------------------------


def test_a_foreign_run_takes_nobodys_place(keep, planned_hashes):
    foreign = {**facts("top-k", 0, final=0.1), "hash": "f" * 16}
    folder = keep(facts("top-k", 0, final=0.95), foreign)
    results = Results(folder, {hash_ for hash_, *_ in planned_hashes.values()})
    assert results.foreign == ["f" * 16]
    assert results.runs("top-k")[0].accuracies()[-1] == pytest.approx(0.95)


def test_two_runs_of_one_setting_and_seed_are_refused(keep):
    folder = keep(facts("top-k", 0), {**facts("top-k", 0), "hash": "f" * 16})
    with pytest.raises(InputError, match="one run per setting and seed"):
        Results(folder)


def test_claims_have_names_of_their_own():
    assert len({claim.name for claim in CLAIMS}) == len({claim.text for claim in CLAIMS}) == 25


@pytest.mark.parametrize("content", ["{", '{"format": 99}'])
def test_a_damaged_result_is_named(tmp_path, content):
    (tmp_path / "bad.json").write_text(content)
    with pytest.raises(InputError, match=r"bad\.json"):
        Results(tmp_path)


def test_a_time_between_two_evaluations_is_taken_from_the_line_between_them(keep):
    results = Results(keep(facts("top-k", 0, reached_at_s=1.5)))  # 0.1 at 0.5 s, 0.9 at 1.5 s
    assert results.runs("top-k")[0].first_at_s(0.7) == (pytest.approx(1.25), True)
    assert results.runs("top-k")[0].first_at_s(0.96) == (10.0, False)


@pytest.mark.parametrize(
    ("measure", "accuracy"), [("last", 0.95), ("last ten", 1.95 / 3), ("whole run", 1.95 / 3)]
)
def test_accuracy_is_what_the_measure_says(keep, measure, accuracy):
    results = Results(keep(facts("top-k", 0, final=0.95))).measured_by(measure)
    assert results.runs("top-k")[0].final() == pytest.approx(accuracy)


def test_holm_asks_more_of_the_first_than_of_the_last():
    def check(p):
        """Five seeds whose mean is this far from 0 in its own error."""
        middle, half = float(stats.t.isf(p / 2, 4)), float(stats.t.ppf(0.975, 4))
        estimate = Estimate(middle, middle, middle - half, middle + half, 0.95)
        return Check("", "holds", estimate, "points", 5)

    ps = (0.02, 0.001, 0.04)
    checks = [check(p) for p in ps]
    assert [c.p_value for c in checks] == pytest.approx(ps)
    assert survives_holm(checks) == [True, True, True]  # 0.001 ≤ 5 %/3, 0.02 ≤ 5 %/2, 0.04 ≤ 5 %
    assert survives_holm([check(p) for p in (0.03, 0.001, 0.04)]) == [False, True, False]
    bound = Check("", "holds", Estimate(1, math.inf, 1, math.inf, 0.94), "×", 5)
    assert survives_holm([bound, check(0.04)]) == [None, True]


def test_faster_per_round_is_not_faster_per_second(keep):
    """Twice the accuracy in the middle, at four times the time."""
    runs = []
    for k, middle, at_s in ((500, 0.3, 0.6), (1000, 0.5, 2.0), (5000, 0.8, 8.0)):
        for policy in POLICIES:
            for s in SEEDS:
                run = facts(policy, s, k=k, final=0.95 + WOBBLE[s], reached_at_s=at_s)
                run["curve"]["accuracy"] = {
                    model: [0.1, middle + WOBBLE[s], 0.95 + WOBBLE[s]]
                    for model in run["curve"]["accuracy"]
                }
                run["curve"]["at_s"][2] = 20 * at_s
                runs.append(run)
    folder = keep(*runs)
    assert judged(folder, "larger-k-per-round").verdict == "holds"
    assert judged(folder, "larger-k-per-second").verdict == "fails"
