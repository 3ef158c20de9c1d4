"""The maps of made-up studies, and the plans of the real ones."""

from math import inf

import pandas as pd
import pytest
from codecs_figure import (
    ARM,
    CODECS,
    LEVELS,
    OWN_SIZE,
    SPEED,
    UP,
    Setting,
    chosen,
    codecs_figure,
    codecs_table,
    column,
    columns,
    complete,
    firsts,
    in_words,
    is_pair,
    kilobytes,
    levels_table,
    rounds_needed,
    with_interval,
)

from simfed.compress import codec_from_spec
from simfed.report.statistics import Estimate, Paired
from simfed.study import plan_study

SETTINGS = [Setting(0.1, "2 Mbps"), Setting(1.0, "2 Mbps")]


def times(of_arm, setting=SETTINGS[0], reached=True):
    """Rows of a study's `times`: per arm one time for each seed."""
    return pd.DataFrame(
        [
            {
                SPEED: setting.speed,
                UP: setting.up,
                ARM: arm,
                "seed": s,
                "at_s": at_s,
                "reached": reached and at_s < 100,
            }
            for arm, several in of_arm.items()
            for s, at_s in enumerate(several)
        ]
    )


MADE_UP = {"top-k": [10, 11, 12], "dgc": [5, 5.4, 6.1], "dense": [20, 23, 24]}
PAIRS = {
    "top-k@100": [9, 9.9, 11],
    "top-k@400": [6, 6.6, 7.1],
    "random-k@400": [100, 100, 100],
    "ascend": [8, 8.8, 9.5],
}


def test_a_column_compares_every_arm_with_the_reference():
    found = column(SETTINGS[0], times(MADE_UP))
    assert (found.reference, found.first, found.is_clear) == ("top-k", "dgc", True)
    assert found.against["dgc"].ratio.least == pytest.approx(2.0, rel=0.02)
    assert found.against["dense"].verdict == -1
    assert found.against["top-k"].ratio.least == 1


def test_bandits_are_held_against_the_pair_that_was_first():
    found = column(SETTINGS[0], times(PAIRS), None)
    assert (found.reference, found.first) == ("top-k@400", "top-k@400")
    assert found.against["ascend"].ratio.least == pytest.approx(0.75, rel=0.02)
    sooner = column(SETTINGS[0], times({**PAIRS, "ascend": [3, 3.3, 3.5]}), None)
    assert (sooner.reference, sooner.first) == ("top-k@400", "ascend")


def test_of_what_never_got_there_a_bound_is_said():
    found = column(SETTINGS[0], times(PAIRS), None)
    assert in_words(found.against["random-k@400"]).startswith("<0.0")
    assert in_words(Paired(1, 0, 0, Estimate(2.0, inf, 1, inf, 0.9), 1.0)) == ">2.00"
    assert with_interval(found.against["ascend"]).startswith("0.75 [0.7")


def test_seeds_that_lack_an_arm_are_left_out():
    both = times(MADE_UP)
    lacking = both[(both[ARM] != "dgc") | (both["seed"] != 2)]
    assert sorted(set(complete(lacking)["seed"])) == [0, 1]


def test_rounds_bytes_and_plays_are_counted():
    rows = [
        (arm, seed, round, accuracy)
        for arm, at in (("top-k", 4), ("dense", 99))
        for seed in (0, 1)
        for round, accuracy in ((2, 0.5), (4, 0.85 if at == 4 else 0.7), (6, 0.8))
    ]
    curves = pd.DataFrame(rows, columns=[ARM, "seed", "round", "accuracy"])
    needed = rounds_needed(curves.assign(**{SPEED: 0.1, UP: "2 Mbps"})).set_index([ARM, "seed"])
    assert needed.loc[("top-k", 0), ["round", "reached"]].tolist() == [4, True]
    assert needed.loc[("dense", 1), ["round", "reached"]].tolist() == [6, False]
    played = pd.DataFrame(
        {
            ARM: ["ascend"] * 4 + ["top-k@400"],
            SPEED: 0.1,
            UP: "2 Mbps",
            "arm": ["top-k@400"] * 3 + ["top-k@100", "top-k@400"],
            "uplink_bytes": [2e3, 2e3, 2e3, 6e3, 2e3],
        }
    )
    assert kilobytes(played) == {"ascend": 3.0, "top-k@400": 2.0}
    shares = chosen(played).set_index([ARM, "arm"])["share"]
    assert shares.to_dict() == {("ascend", "top-k@400"): 0.75, ("ascend", "top-k@100"): 0.25}


def test_two_maps_are_drawn_and_their_tables_printed():
    both = pd.concat([times(MADE_UP, s) for s in SETTINGS], ignore_index=True)
    pairs = pd.concat([times(PAIRS, s) for s in SETTINGS], ignore_index=True)
    of_codecs, of_levels = columns(both), columns(pairs, None)
    kb = dict.fromkeys(MADE_UP, 6.0)
    figure = codecs_figure(of_codecs, of_levels, kb)
    assert [len(ax.patches) for ax in figure.axes] == [2 * 4, 2 * 5]  # squares, and a frame each
    rounds = both.assign(round=20).drop(columns="at_s")
    table = codecs_table(of_codecs, rounds, kb, SETTINGS[:1]).splitlines()
    assert table[3].startswith("| dgc | 6.0 | 20 | 2.00 [1.9")
    plays = pd.DataFrame(
        {ARM: ["ascend"] * 2, SPEED: [0.1, 1.0], UP: "2 Mbps", "arm": "top-k@400", "share": 0.6}
    )
    last = levels_table(of_levels, pairs, plays, "top-k@100").splitlines()[-1]
    assert last.startswith("| 1×, 2 Mbps | top-k@400, 6.60 s | 0.66 [0.6")
    assert "0.75 [0.7" in last
    assert "60 %, top-k 60 %" in last
    assert "0.1×, 2 Mbps: dgc first, clearly" in firsts(of_codecs)


def test_the_studies_learn_every_codec_once_per_seed_and_bring_it_to_its_size():
    plan = plan_study(CODECS)
    assert {axis.name for axis in plan.axes} >= {SPEED, UP, ARM}
    sizes = {}
    for run in plan.runs:
        chosen_k, shapes = (
            run.scenario.compression.k,
            (
                (3, 1, 5, 5),
                (3,),
                (8, 3, 5, 5),
                (8,),
                (60, 200),
                (60,),
                (42, 60),
                (42,),
                (10, 42),
                (10,),
            ),
        )
        codec = codec_from_spec(run.scenario.policy.strategy)
        size = codec.size_bytes(15_738, chosen_k, "seeded", layout=shapes)
        sizes[run.point[ARM]] = size
    assert sizes.pop("adacomp") is None
    for own in OWN_SIZE:
        del sizes[own]
    low_rank = [sizes.pop("powersgd(3)"), sizes.pop("svd(3)")]
    assert low_rank == [6756, 6756]
    assert all(5990 <= size <= 6030 for size in sizes.values())
    arms = {run.point[ARM] for run in plan_study(LEVELS).runs}
    assert sum(map(is_pair, arms)) == 6
    assert len(arms) == 9
