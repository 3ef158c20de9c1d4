"""ANSWERS.md says what its kept rows say, and chooses under other seeds than it
reports.
"""

import answers
import not_waiting
import numpy as np
import pandas as pd
import pytest

PAGE = answers.PAGE.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def rows():
    return pd.read_parquet(answers.ROWS)


@pytest.fixture(scope="module")
def cells(rows):
    return answers.answers(rows)


def test_sentences_about_one_rate_follow_from_the_rows(rows, cells):
    page = " ".join(PAGE.split())
    late = [cell for cell in cells if cell.target == 0.93]
    assert len(late) == 6 * 5
    gains = sorted(
        (cell.over_dense[answers.DGC].ratio for cell in late), key=lambda r: r.exact
    )
    least, most = gains[0], gains[-1]
    assert (
        f"is {least.exact:.2f} times sooner than dense at least (Redmi on fibre, "
        f"[{least.low:.2f}, {least.high:.2f}]) and {most.exact:.1f} times at most "
        f"(V100 on DSL, [{most.low:.1f}, {most.high:.1f}])"
    ) in page
    of_levels, of_ascend = [], []
    reported = rows[rows["seed"].isin(answers.REPORTED) & (rows["target"] == 0.93)]
    for cell in late:
        here = reported["device"].eq(cell.device) & reported["link"].eq(cell.link)
        times = answers.times_of(reported[here])
        of_levels.append(answers.compare_ways(times, answers.DGC, "top-k@1%").ratio)
        of_ascend.append(answers.compare_ways(times, "top-k@1%", "ascend").ratio.exact)
    assert {f"{ratio.exact:.1f}" for ratio in of_levels} == {"1.7"}
    ends = min(r.low for r in of_levels), max(r.high for r in of_levels)
    assert (
        "1.7 times sooner than Top-K at 1 % in every cell (intervals within "
        f"[{ends[0]:.1f}, {ends[1]:.1f}])"
    ) in page
    assert f"cell, {min(of_ascend):.1f} to {max(of_ascend):.1f} times" in page


def test_every_way_was_played_in_every_cell_under_every_seed(rows):
    momentum = rows["arm"].isin(answers.WITH_MOMENTUM)
    assert set(rows["seed"]) == {*answers.REPORTED, *answers.CHOOSING}
    assert not set(answers.REPORTED) & set(answers.CHOOSING)
    for part, arms, seeds in ((rows[~momentum], 11, 8), (rows[momentum], 2, 5)):
        assert len(part) == 6 * 5 * arms * seeds * len(answers.TARGETS)
        assert not part.duplicated(["device", "link", "arm", "seed", "target"]).any()


def test_a_way_is_chosen_without_a_look_at_the_seeds_that_report(rows, cells):
    reported = rows["seed"].isin(answers.REPORTED)
    times = rows["at_s"].where(~reported, 1.0)
    blind = answers.answers(rows.assign(at_s=times))
    assert [cell.level for cell in blind] == [cell.level for cell in cells]
    # all alike: nothing is clearly sooner
    assert {cell.use for cell in blind} == {"dense"}


def test_of_ways_that_did_not_always_get_there_that_which_did_most_often_is_best():
    times = {
        "never": {0: (1.0, False), 1: (1.0, False)},
        "once": {0: (9.0, True), 1: (1.0, False)},
        "always": {0: (50.0, True), 1: (50.0, True)},
    }
    assert answers.best_way(times, list(times)) == "always"
    assert answers.best_way(times, ["never", "once"]) == "once"


# ---- not waiting ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs():
    return pd.read_parquet(not_waiting.ROWS)


def test_the_page_says_when_not_waiting_wins(runs):
    page = " ".join(not_waiting.PAGE.read_text(encoding="utf-8").split())
    first = " ".join(PAGE.partition("## What to use")[0].split())
    buffers = ("buffered 4", "buffered 2")
    of_spreads = not_waiting.pooled(runs)
    for spread, text, after in (
        (4, "1.7 to 1.9 times", "sooner"),
        (16, ("3.1 to 3.9 times"), "at"),
    ):
        ratios = [of_spreads[spread][way][0].ratio for way in buffers]
        assert all(ratio.low > 1 for ratio in ratios)
        sooner = [ratio.exact for ratio in ratios]
        assert f"{min(sooner):.1f} to {max(sooner):.1f} times" == text
        moved = [1 / of_spreads[spread][way][1].ratio.exact for way in buffers]
        assert f"{text} {after}" in first
        assert f"for {min(moved):.1f} to {max(moved):.1f} of" in page
        assert f"{text} {after}" in page
    equal = of_spreads[1]
    assert {way for way, (times, _) in equal.items() if times.ratio.low > 1} == {
        "over-selection"
    }
    assert (
        f"{equal['over-selection'][0].ratio.exact:.1f} times; a buffer of two" in page
    )
    alone = [cell for cell in not_waiting.cells(runs) if cell.spread == 1]
    later = [cell.skew for cell in alone if cell.sooner["buffered 2"].verdict < 0]
    assert later == ["alike", "alpha 0.5"]
    two = runs[(runs["arm"] == "buffered 2") & (runs["spread"] == 1)]
    assert (len(two), int((~two["reached"]).sum())) == (15, 2)


def test_the_page_says_what_not_waiting_moves(runs):
    page = " ".join(not_waiting.PAGE.read_text(encoding="utf-8").split())
    mapped = [
        cell for cell in not_waiting.cells(runs) if cell.skew in not_waiting.MAPPED
    ]
    share = {
        way: [
            1 / cell.fewer_bytes[way].ratio.exact
            for cell in mapped
            if cell.spread >= least
        ]
        for way, least in (
            ("over-selection", 1),
            ("buffered 2", 16),
            ("buffered 4", 16),
        )
    }
    more = [f"{100 * end(share['over-selection']) - 100:.0f}" for end in (min, max)]
    assert f"moves {' to '.join(more)} % more bytes" in page
    saved = 1 - min(share["buffered 2"] + share["buffered 4"])
    assert f"saves at most {100 * saved:.0f} % of the bytes" in page


def test_a_border_is_where_the_ratio_passes_one():
    runs = pd.DataFrame(
        [
            {"skew": "alike", "spread": spread, "arm": arm, "seed": 0, "at_s": at_s}
            for spread, waiting_s in ((1, 1.0), (2, 1.0), (4, 4.0), (16, 8.0))
            for arm, at_s in (("synchronous", waiting_s), ("asynchronous", 2.0))
        ]
    )
    assert not_waiting.border(runs, "alike", "asynchronous") == pytest.approx(
        (8**0.5,) * 3
    )
    never = runs.assign(at_s=runs["at_s"].where(runs["arm"] == "synchronous", 9.0))
    assert not_waiting.border(never, "alike", "asynchronous") == (np.inf,) * 3


def test_labels_go_with_speed_or_with_nothing():
    labels = np.arange(10).repeat(400)
    owners = not_waiting.owned_by_class(labels, with_speed=True)
    slowest = labels[owners >= 32]
    assert np.isin(slowest, (8, 9)).mean() == pytest.approx(0.9, abs=0.03)
    at_random = not_waiting.owned_by_class(labels, with_speed=False)
    assert np.unique(labels[at_random >= 32]).size > 4
    counts = np.bincount(owners, minlength=40)
    assert sorted(np.bincount(at_random, minlength=40)) == sorted(counts)
