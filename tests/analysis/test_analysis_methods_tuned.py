"""Every method is tuned alike, and judged by the registered rules."""

import doctest
import itertools

import methods_page
import methods_tuned
import numpy as np
import pandas as pd

import simfed
from simfed.ground.registry import registry


def test_every_method_tries_eight_settings_that_can_be_played(tmp_path):
    assert {*methods_tuned.OWN} <= {*registry("method").names()}
    for method in methods_tuned.OWN:
        rates = [
            one["training.learning_rate"] for one in methods_tuned.settings_of(method)
        ]
        assert len(set(rates)) == len(rates) == 8
        changes = methods_tuned.overrides_of("synthetic(1, 1)", method, 3, 0, tmp_path)
        scenario = simfed.load_scenario(methods_tuned.BASE, changes)
        assert scenario.method.kind == method
        assert scenario.training.learning_rate == rates[3]


def made_up():
    """Curves in which everybody is alike and moves 1 MB a second."""
    noise = np.random.default_rng(0)
    seeds = (*methods_tuned.CHOOSING, *range(5))
    every = itertools.product(methods_tuned.DATA, methods_tuned.OWN, [0], seeds)
    rows = pd.DataFrame(every, columns=[*methods_tuned._KEY])
    rows = rows.assign(at_s=40.0, moved_bytes=40e6)
    end = 0.5 + 0.001 * noise.random(len(rows))
    return rows.assign(**dict.fromkeys(methods_tuned.MEASURES, end))


def test_the_pages_helpers_do_what_their_examples_say():
    assert not doctest.testmod(methods_page).failed


def test_what_the_same_clip_changes_is_bold_where_it_is_clear():
    rows = made_up()
    clipped = rows[rows["seed"].isin(methods_tuned.CLIP_SEEDS)]
    gained = clipped["accuracy"] + 0.1 * (clipped["method"] == "scaffold")
    table = methods_page.clip_table(rows, clipped.assign(accuracy=gained))
    (bold,) = (line for line in table.splitlines() if "**" in line)
    assert bold.startswith("| scaffold | **+3.7 [")  # 15 of 40 seconds
    less = clipped.query("data == 'mnist-mini' or seed > 0")
    table = methods_page.clip_table(rows, less.query("method != 'fedmd' or seed != 3"))
    for unknown in ("synthetic", "fedmd", "not played"):
        assert unknown not in table
    less = clipped.query("method != 'fedmd' or data != 'mnist-mini'")
    table = methods_page.clip_table(rows, less)
    assert "| fedmd | not played | not played | " in table


def test_the_kept_rows_are_of_the_runs_that_choose_and_report():
    rows = pd.read_parquet(methods_tuned.ROWS)
    assert set(rows["data"]) == set(methods_tuned.DATA)
    assert set(rows["method"]) == set(methods_tuned.OWN)
    assert set(rows["seed"]) <= {*methods_tuned.CHOOSING, *methods_tuned.REPORTED}
    assert methods_tuned.reported(rows)["seed"].nunique() >= methods_tuned.FEWEST_SEEDS
    assert methods_tuned.join([rows]).equals(rows)


def test_the_pages_sentences_follow_from_the_rows():
    page = " ".join(methods_page.PAGE.read_text(encoding="utf-8").split())
    rows = methods_page.read_rows()
    families = methods_tuned.judge(rows)
    lines = methods_page.tally_table(families).splitlines()[2:]
    tally = {name: counts for name, *counts in (line.split(" | ") for line in lines)}
    tally = {
        name.strip("| "): [*map(int, counts[:2])] for name, counts in tally.items()
    }
    points = {
        method: 100 * (accuracies.iloc[0] - accuracies.iloc[1])
        for (data, method), accuracies in methods_tuned.tried(rows).items()
        if data == "mnist-mini"
    }
    coarse = sum(behind >= 5 for behind in points.values())
    by_key = {(f.data, f.measure, f.budget): f.means for f in families}
    images = 100 * by_key["mnist-mini", "accuracy", "seconds"]
    few = 100 * by_key["mnist-mini", "accuracy", "bytes"]
    few = few[
        ["fedavg", "fedprox", "fedopt", "scaffold", "fedbuff", "fedasync", "fedgen"]
    ]
    lost = [f.measure for f in families for one in tally if "feddf" in f.behind(one)]
    assert (len(lost), lost.count("own_accuracy")) == (10, 9)
    assert methods_page.diverged(rows) == "3 of scaffold (mnist-mini)"
    clip = methods_page.clip_table(rows, pd.read_parquet(methods_tuned.CLIPPED))
    assert clip.count("**") == 2 * 4
    ahead, behind = tally["scaffold"]
    for said in (
        f"behind the best for {coarse} of {len(points)} methods (feddf: "
        f"{points['feddf']:.0f})",
        "feddf is clearly ahead in {} of its 120 comparisons and behind in {}, fedkd "
        "in {} and {}; of feddf's 10, 9 are on".format(
            *tally["feddf"], *tally["fedkd"]
        ),
        f"clearly behind in {behind}, ahead in {ahead}, and three of its ten runs",
        f"fedbuff ({images['fedbuff']:.1f} %) and fedasync ({images['fedasync']:.1f}",
        f"({few.min():.1f} to {few.max():.1f} %)",
        "Of 64 comparisons four are told apart",
    ):
        assert said in page
