"""Verdicts on results whose answer is known."""

import math

import pytest
from analysis_made_up import ARMS, facts
from paper_claims import CLAIMS, Check, judge, verdict_of
from paper_results import Results, accuracy_gap, shares, time_ratio

from simfed.errors import InputError
from simfed.study.statistics import Estimate

SEEDS = range(5)
WOBBLE = (0.0, 0.001, -0.001, 0.002, -0.002)


def judged(folder, name):
    return next(one for one in judge(Results(folder)) if one.claim.name == name)


def of_arms(finals, ks=(500, 1000), times=None, seeds=SEEDS, **more):
    return [
        facts(arm, s, final=final + WOBBLE[s], k=k, reached_at_s=(times or {}).get(arm, 1.0) + 0.01 * s, **more)
        for k in ks for s in seeds for arm, final in finals.items()
    ]  # fmt: skip


def test_nothing_run_is_not_run(keep):
    one = {j.verdict for j in judge(Results(keep()))}
    assert one == {"not run", "not comparable"}


def test_top_k_higher_and_sooner_everywhere_is_reproduced(keep):
    finals = {"top-k": 0.95, "random-k": 0.9, "periodic-k": 0.91}
    times = {"top-k": 1.0, "random-k": 2.0, "periodic-k": 2.0}
    one = judged(keep(*of_arms(finals, times=times)), "top-k-at-small-k")
    assert one.verdict == "reproduced"
    gap = one.checks[0].estimate
    assert gap.least == pytest.approx(0.05)
    assert one.checks[1].estimate.least == pytest.approx(2.0, rel=0.02)


def test_higher_but_later_is_partly(keep):
    finals = {"top-k": 0.95, "random-k": 0.9, "periodic-k": 0.91}
    times = {"top-k": 3.0, "random-k": 2.0, "periodic-k": 2.0}
    one = judged(keep(*of_arms(finals, times=times)), "top-k-at-small-k")
    assert one.verdict == "partly"
    assert {c.state for c in one.checks} == {"holds", "contradicted"}


def test_the_reverse_is_not_reproduced(keep):
    finals = {"top-k": 0.9, "random-k": 0.95, "periodic-k": 0.95}
    times = {"top-k": 3.0, "random-k": 2.0, "periodic-k": 2.0}
    one = judged(keep(*of_arms(finals, times=times)), "top-k-at-small-k")
    assert one.verdict == "not reproduced"
    assert {c.state for c in one.checks} == {"contradicted"}


@pytest.mark.parametrize("missing", range(5))
def test_one_missing_seed_is_not_run_and_shows_what_there_is(keep, missing):
    finals = {"top-k": 0.95, "random-k": 0.9, "periodic-k": 0.91}
    runs = [f for f in of_arms(finals) if not (f["seed"] == missing and f["setting"]["policy"] == "top-k")]  # fmt: skip
    one = judged(keep(*runs), "top-k-at-small-k")
    assert one.verdict == "not run"
    assert {c.seeds for c in one.checks} == {4}
    assert one.checks[0].estimate.least == pytest.approx(0.05, abs=0.003)


def test_equal_arms_differ_in_nothing_that_is_clear(keep):
    one = judged(keep(*of_arms(dict.fromkeys(ARMS, 0.9), ks=(1000,))), "half-learns-by-top-k")
    # identical runs: the interval is the number 0, which is not above 0
    assert {c.state for c in one.checks} == {"contradicted"}
    assert one.verdict == "not reproduced"


def test_an_interval_around_the_bound_is_undecided(keep):
    runs = [facts("top-k", s, final=0.9 + 5 * WOBBLE[s]) for s in SEEDS]
    runs += [facts(arm, s, final=0.9) for arm in ARMS[1:] for s in SEEDS]
    one = judged(keep(*runs), "half-learns-by-top-k")
    assert {c.state for c in one.checks} == {"undecided"}
    assert one.verdict == "not reproduced"


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
        one["curve"]["accuracy"] = {m: [0.1, 0.2, v[-1]] for m, v in one["curve"]["accuracy"].items()}  # fmt: skip
    one = judged(keep(*runs), "top-k-at-small-k")
    times = [c for c in one.checks if c.unit == "×"]
    assert {c.state for c in times} == {"undecided"}


def test_a_margin_lets_ascend_lack_half_a_point(keep):
    def with_ascend(final):
        runs = of_arms(dict.fromkeys(ARMS, 0.95), ks=(10_000,))
        return keep(*runs, *(facts("ascend", s, final=final + WOBBLE[s], k=10_000, reached_at_s=1.0 + 0.01 * s) for s in SEEDS))  # fmt: skip

    height = judged(with_ascend(0.947), "devices-10000").checks[0]
    assert height.state == "holds"
    height = judged(with_ascend(0.94), "devices-10000").checks[0]
    assert height.state == "contradicted"


def test_against_each_fixed_strategy_the_worst_counts(keep):
    finals = {"top-k": 0.97, "random-k": 0.8, "periodic-k": 0.8}
    runs = of_arms(finals, ks=(10_000,))
    runs += [facts("ascend", s, final=0.9, k=10_000) for s in SEEDS]
    height = judged(keep(*runs), "devices-10000").checks[0]
    assert height.state == "contradicted"
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
    assert judged(folder, "half-chooses-top-k").verdict == "reproduced"
    assert judged(folder, "lenet5-balanced").verdict == "not reproduced"


def test_even_choices_are_balanced(keep):
    plays = {"top-k": 36, "random-k": 34, "periodic-k": 30}
    folder = keep(*(facts("ascend", s, plays=plays) for s in SEEDS))
    assert judged(folder, "lenet5-balanced").verdict == "reproduced"


def test_bandwidth_that_changes_nothing_is_no_gain(keep):
    """Fixed strategies learn the same at every bandwidth; their times scale together."""
    runs = [
        facts(arm, s, final=final, up_mbps=float(up), reached_at_s=at_s * (2 if up == 5 else 1))
        for up in (5, 500) for s in SEEDS
        for arm, final, at_s in (("top-k", 0.95, 1.0), ("random-k", 0.9, 2.0))
    ]  # fmt: skip
    one = judged(keep(*runs), "fast-links")
    assert {c.state for c in one.checks} == {"contradicted"}
    assert one.verdict == "not reproduced"


def test_pairs_are_of_equal_seeds(keep):
    """Seeds differ by much more than arms do; pairs cancel that."""
    levels = (0.5, 0.6, 0.7, 0.8, 0.9)
    runs = [facts(arm, s, final=levels[s] + gain) for s in SEEDS for arm, gain in (("top-k", 0.01), ("random-k", 0))]  # fmt: skip
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
        (["holds"] * 3, "reproduced"),
        (["holds", "undecided"], "partly"),
        (["holds", "contradicted"], "partly"),
        (["undecided", "contradicted"], "not reproduced"),
        (["holds", "short of seeds"], "not run"),
        ([], "not run"),
    ],
)
def test_verdicts(states, verdict):
    some = Estimate(0, 0, 0, 0, 0.95)
    assert verdict_of([Check("", state, some, "points", 5) for state in states]) == verdict


def test_claims_have_names_of_their_own():
    assert len({claim.name for claim in CLAIMS}) == len({claim.text for claim in CLAIMS}) == 17


@pytest.mark.parametrize("content", ["{", '{"format": 99}'])
def test_a_damaged_result_is_named(tmp_path, content):
    (tmp_path / "bad.json").write_text(content)
    with pytest.raises(InputError, match=r"bad\.json"):
        Results(tmp_path)
