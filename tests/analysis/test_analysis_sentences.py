"""Sentences conclude what the numbers say: each on results that lean one way, the other way, and
neither."""

import pytest
from analysis_made_up import ARMS, facts, with_rounds
from campaign import CHOICES
from claims import SETTINGS, judge
from multiverse import FACTORS, alias_text, aliases, cells, readings
from results import Results
from sentences import sentences

SEEDS = range(5)
SCATTER = (-0.01, -0.005, 0.0, 0.006, 0.009)
"""Of seeds, far larger than their mean."""
OFF = {"universe": {"usual safeguard": False}}


def said(folder, word):
    """The sentence with this word, or nothing."""
    results = Results(folder)
    texts = sentences(results, judge(results), list(readings(results)))
    return next((one for one in texts if word in one), "")


def beside(lean, *, other, policy="ascend", times=False):
    """Two policies in each of the source's settings; the first ends higher by `lean` or is at 90 %
    sooner by as large a share; seeds scatter around it."""
    for _, setting in SETTINGS:
        for seed, scatter in zip(SEEDS, SCATTER, strict=True):
            by = lean + scatter * (1 if lean == 0 else 0.1)
            yield facts(
                policy,
                seed,
                final=0.95 + (0 if times else by),
                reached_at_s=2.0 * (1 - by) if times else 1.0,
                **setting,
            )
            yield facts(other, seed, final=0.95, reached_at_s=2.0 if times else 1.0, **setting)


@pytest.mark.parametrize(
    ("lean", "opening"),
    [
        (0.05, "Choosing per client beats playing Top-K always: pooled over 7 settings"),
        (-0.05, "Choosing per client does not beat playing Top-K always: pooled"),
        (0.0, "Whether choosing per client beats playing Top-K always is not decided: pooled"),
    ],
)
def test_choosing_beside_top_k(keep, lean, opening):
    one = said(keep(*beside(lean, other="top-k")), "playing Top-K always")
    assert one.startswith(opening)
    clear = [0, 7, 0][round(lean / 0.05)], [0, 0, 7][round(lean / 0.05)]
    assert f"clearly lower in {clear[1]} and clearly higher in {clear[0]}" in one
    assert f"Holm's correction leaves {7 * (lean != 0)}" in one


def test_what_all_settings_share_is_counted_once(keep):
    """Seven settings whose seeds differ alike are five numbers, not thirty-five."""
    from results import over_settings

    results = Results(keep(*beside(0.05, other="top-k")))
    pairs = [(results.runs("ascend", **s), results.runs("top-k", **s)) for _, s in SETTINGS]
    pooled, seeds = over_settings(lambda a, b: a.final() - b.final(), pairs)
    alone, _ = over_settings(lambda a, b: a.final() - b.final(), pairs[:1])
    assert seeds == 5
    assert (pooled.low, pooled.high) == pytest.approx((alone.low, alone.high))


@pytest.mark.parametrize(
    ("lean", "opening"),
    [
        (0.3, "What it does is spare one the wrong choice:"),
        (-0.3, "It is later than even the wrong choice:"),
        (0.0, "Whether it spares one the wrong choice is not decided:"),
    ],
)
def test_choosing_beside_the_wrong_strategy(keep, lean, opening):
    runs = [
        one for other in ("random-k", "periodic-k") for one in beside(lean, other=other, times=True)
    ]
    assert said(keep(*runs), "the wrong choice").startswith(opening)


@pytest.mark.parametrize(
    ("lean", "word"), [(0.1, "ahead"), (-0.1, "behind"), (0.0, "not told apart")]
)
@pytest.mark.parametrize("times", [False, True])
def test_ascend_beside_exp3(keep, lean, word, times):
    one = said(keep(*beside(lean, other="exp3", times=times)), "EXP3")
    assert f"ASCEND is {word} once 7 settings are pooled (blocks: 5 seeds)" in one


def larger_k(per_round, per_second):
    """Every policy at three K: how much higher each round's accuracy is from one K to the next, and
    how many times sooner it is at 90 %."""
    for policy in (*ARMS, "exp3", "ascend"):
        for step, k in enumerate((500, 1000, 5000)):
            for seed in SEEDS:
                one = facts(policy, seed, final=0.95, k=k)
                level = 0.01 * per_round * step + 0.0001 * seed * (-1) ** step
                end_s = 10.0 * per_second**-step * (1 + 0.001 * seed)
                one["curve"] = {
                    "round": [10, 500, 1000],
                    "at_s": [end_s / 100, end_s / 2, end_s],
                    "accuracy": {
                        m: [0.5, 0.92 + level, 0.95 + level] for m in ("lenet5", "lenet5-half")
                    },
                }
                one["simulated_s"] = end_s
                yield one


@pytest.mark.parametrize(
    ("per_round", "per_second", "opening"),
    [
        (1, 0.2, "Whether a larger K learns faster is a matter of the axis:"),
        (1, 2.0, "A larger K learns faster on either axis:"),
        (-1, 0.2, "A larger K learns more slowly on either axis:"),
        (0, 0.2, "Whether a larger K learns faster is not decided on both axes:"),
    ],
)
def test_a_larger_k(keep, per_round, per_second, opening):
    assert said(keep(*larger_k(per_round, per_second)), "larger K").startswith(opening)


def undone(seed, second, accuracy, **setting):
    """A run of 400 rounds, one of them undone at three times the loss; the next at `second`."""
    losses = [[1.0] * 400, [1.0] * 400]
    losses[0][99], losses[0][100] = 3.0, second
    top_k = CHOICES.index("exploit") * 16 + sorted(ARMS).index("top-k")
    one = facts("ascend", seed, final=accuracy, **setting)
    return with_rounds(one, [[top_k] * 400] * 2, [100], losses)


@pytest.mark.parametrize(
    ("seconds", "opening"),
    [
        ((4.0, 4.0, 4.0), "The safeguard against bad rounds mostly makes a worse one: of 3"),
        ((1.0, 1.0, 1.0), "The safeguard against bad rounds mostly makes a better one: of 3"),
        ((4.0, 1.0, 4.0), "Whether the safeguard's second attempts are better or worse is not"),
    ],
)
def test_second_attempts(keep, seconds, opening):
    runs = [undone(seed, second, 0.9 + 0.001 * seed) for seed, second in enumerate(seconds)]
    runs += [facts("ascend", seed, final=0.8, rounds=400, **OFF) for seed in range(3)]
    one = said(keep(*runs), "second attempts")
    assert one.startswith(opening)
    assert "in 3 seeds of 400 rounds" in one
    assert "every recorded seed and setting with this safeguard (3 runs) these are 3, of" in one
    assert "accuracy less that without it is +3." in one  # a third of ten points, of three rounds


def test_one_seed_says_nothing_of_second_attempts(keep):
    assert said(keep(undone(0, 4.0, 0.9)), "second attempts") == ""


def choices(half, whole):
    """In every cell, who plays what: by the cell's credit."""
    for seed in SEEDS:
        for cell in cells():
            credit = cell.choices["credit"]
            more = {"universe": dict(cell.universe)} if cell.universe else {}
            one = facts("ascend", seed, final=0.95, **more)
            one["plays"] = {
                "lenet5-half": {arm: {"exploit": n + seed} for arm, n in half[credit].items()},
                "lenet5": {arm: {"exploit": n + seed} for arm, n in whole[credit].items()},
            }
            yield one
        for arm in ARMS:
            yield facts(arm, seed)


TOP = {"top-k": 800, "random-k": 100, "periodic-k": 100}
EVEN = {"top-k": 330, "random-k": 330, "periodic-k": 330}
RANDOM = {"top-k": 100, "random-k": 800, "periodic-k": 100}


@pytest.mark.parametrize(
    ("half", "whole", "opening", "parts"),
    [
        # as it came out: each reading has one half of the figure
        ((TOP, EVEN), (TOP, EVEN), "No reading of the credit reproduces both", [(4, 0), (0, 4)]),
        ((TOP, TOP), (TOP, EVEN), "Both halves of the source's figure", [(4, 0), (4, 4)]),
        (
            (RANDOM, RANDOM),
            (TOP, TOP),
            "No reading of the credit reproduces both",
            [(0, 0), (0, 0)],
        ),
    ],
)
def test_who_chooses_what(keep, half, whole, opening, parts):
    credits = ("causal", "as printed")
    runs = choices(*(dict(zip(credits, each, strict=True)) for each in (half, whole)))
    one = said(keep(*runs), "figure of choices")
    assert one.startswith(opening)
    for credit, (prefers, even) in zip(credits, parts, strict=True):
        assert (
            f"{credit} credit gives the first clearly in {prefers} and the second in {even} of 4"
            in one
        )


def test_points_are_said_with_what_the_design_does_not_tell_from_them(keep):
    assert {f.name: alias_text(pairs) for f, pairs in aliases().items()} == {
        "credit": "−fₙ × safeguard = −rewards × compression",
        "f_n": "−credit × safeguard",
        "clip": "−credit × compression",
        "usual safeguard": "−credit × fₙ",
        "compression ×": "−credit × rewards",
    }
    runs = choices({"causal": TOP, "as printed": RANDOM}, {"causal": TOP, "as printed": TOP})
    one = said(keep(*runs), "five points")
    assert "*credit as printed* changes 1, and the other points none clearly" in one
    assert "not told apart from how [two others](#in-other-universes) act together" in one
    runs = choices({"causal": TOP, "as printed": TOP}, {"causal": TOP, "as printed": TOP})
    assert "none changes clearly" in said(keep(*runs), "five points")


def test_a_pair_and_its_alias_are_equal_in_every_cell():
    """Counted out, without the signs that `aliases` uses."""
    safeguard, credit, f_n = (FACTORS[i] for i in (3, 0, 1))
    assert (-1, credit, f_n) in aliases()[safeguard]
    for cell in cells():
        other = {f: cell.choices[f.words] == f.other for f in (safeguard, credit, f_n)}
        assert other[safeguard] == (other[credit] != other[f_n])


@pytest.mark.parametrize(("share_s", "words"), [(0.001, "alike"), (5.0, "may change the order")])
def test_bandwidth_and_compression(keep, share_s, words):
    runs = []
    for up in (5, 500):
        for arm in ARMS:
            one = facts(arm, 0, up_mbps=up)
            one["phases_s"]["compression_s"] = share_s
            runs.append(one)
    assert words in said(keep(*runs), "own table of times")


@pytest.mark.parametrize(
    ("top", "words"), [(0.40, "Top-K leads the other"), (0.2505, "but not clearly")]
)
def test_the_lead_on_cifar(keep, top, words):
    ends = {"top-k": top, "random-k": 0.20, "periodic-k": 0.25, "ascend": 0.39}
    runs = [
        facts(
            arm,
            seed,
            final=end + (0.01 * seed if arm == "top-k" else 0.002 * seed) - 0.01,
            k=k,
            dataset="cifar10",
            rounds=600,
        )
        for arm, end in ends.items()
        for k in (1_000, 16_000)
        for seed in range(3)
    ]
    assert words in said(keep(*runs), "On CIFAR-10")
