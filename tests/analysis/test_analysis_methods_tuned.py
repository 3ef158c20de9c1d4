"""Every method is tuned alike, and judged by the registered rules."""

import doctest

import methods_page
import methods_tuned
import numpy as np
import pandas as pd

import simfed
from simfed.ground.registry import registry


def test_every_method_tries_eight_settings_that_can_be_played(tmp_path):
    assert {*methods_tuned.OWN} <= {*registry("method").names()}
    for method in methods_tuned.OWN:
        settings = methods_tuned.settings_of(method)
        assert (
            len({one["training.learning_rate"] for one in settings})
            == len(settings)
            == 8
        )
        changes = methods_tuned.overrides_of("synthetic(1, 1)", method, 3, 0, tmp_path)
        scenario = simfed.load_scenario(methods_tuned.BASE, changes)
        assert scenario.method.kind == method
        assert scenario.training.learning_rate == settings[3]["training.learning_rate"]


def made_up(seeds, lead):
    """Curves in which fedavg is `lead` above the others, and everybody moves 1 MB a
    second.
    """
    noise = np.random.default_rng(0)
    rows = []
    for data in methods_tuned.DATA:
        for method in methods_tuned.OWN:
            for seed in (*methods_tuned.CHOOSING, *range(seeds)):
                end = 0.5 + lead * (method == "fedavg") + 0.001 * noise.random()
                rows.append((data, method, 0, seed, 40.0, 40e6, end, end))
    return pd.DataFrame(
        rows,
        columns=[*methods_tuned._KEY, "at_s", "moved_bytes", *methods_tuned.MEASURES],
    )


def test_tables_name_whom_a_method_is_ahead_of():
    rows = made_up(5, 0.2)
    families = methods_tuned.judge(rows)
    table = methods_page.apart_table(families, "mnist-mini", "accuracy").splitlines()
    assert table[2] == "| fedavg | all | all |"
    assert all(line.endswith("| – | – |") for line in table[3:])
    tally = methods_page.tally_table(families).splitlines()
    assert tally[2:4] == ["| fedavg | 120 | 0 | 0 |", "| fedprox | 0 | 8 | 112 |"]
    line = methods_page.seeds_line(rows, families)
    assert "Over 5 of 10 seeds 120 of 960 comparisons are told apart" in line
    assert line.endswith("guesses: none.")
    lost = (
        (rows["method"] == "scaffold")
        & (rows["seed"] == 2)
        & (rows["data"] == "mnist-mini")
    )
    for column, value in methods_tuned.DIVERGED.items():
        rows.loc[lost, column] = value
    assert methods_page.diverged(rows) == "1 of scaffold (mnist-mini)"
    row = methods_page.accuracy_table(rows, "synthetic(1, 1)").splitlines()[2]
    # three quarters of the way from a guess to 70 %
    assert row.startswith("| fedavg | 55.1 [")
    assert not doctest.testmod(methods_page).failed


def test_what_the_same_clip_changes_is_bold_where_it_is_clear():
    rows = made_up(5, 0.0)
    clipped = rows[rows["seed"].isin(methods_tuned.CLIP_SEEDS)]
    gained = clipped["accuracy"] + 0.1 * (clipped["method"] == "scaffold")
    table = methods_page.clip_table(rows, clipped.assign(accuracy=gained))
    (bold,) = (line for line in table.splitlines() if "**" in line)
    assert bold.startswith("| scaffold | **+3.7 [")  # 15 of 40 seconds
    less = clipped[(clipped["data"] == "mnist-mini") | (clipped["seed"] > 0)]
    less = less[(less["method"] != "fedmd") | (less["seed"] != 3)]
    table = methods_page.clip_table(rows, less)
    assert "synthetic" not in table
    assert "fedmd" not in table
    assert "not played" not in table
    lost = (clipped["method"] == "fedmd") & (clipped["data"] == "mnist-mini")
    assert "| fedmd | not played | not played | " in methods_page.clip_table(
        rows, clipped[~lost]
    )


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
    tally = {
        cells[1]: [int(cell) for cell in cells[2:5]]
        for cells in (
            [cell.strip() for cell in line.split("|")]
            for line in methods_page.tally_table(families).splitlines()[2:]
        )
    }
    behind = {
        method: 100 * (accuracies.iloc[0] - accuracies.iloc[1])
        for (data, method), accuracies in methods_tuned.tried(rows).items()
        if data == "mnist-mini"
    }
    coarse = sum(points >= 5 for points in behind.values())
    said = (
        f"behind the best for {coarse} of {len(behind)} methods (feddf: "
        f"{behind['feddf']:.0f})"
    )
    assert said in page
    by_losses = sorted(tally, key=lambda method: tally[method][1])
    assert by_losses[:2] == ["feddf", "fedkd"]
    assert (
        "feddf is clearly ahead in {} of its 120 comparisons and behind in {}, fedkd "
        "in".format(*tally["feddf"][:2])
        in page
    )
    assert (
        "fedkd in {} and {}; of feddf's 10, 9 are on".format(*tally["fedkd"][:2])
        in page
    )
    lost = [
        f.measure for f in families for method in tally if "feddf" in f.behind(method)
    ]
    assert (len(lost), lost.count("own_accuracy")) == (10, 9)
    ahead, behind, _ = tally["scaffold"]
    assert (
        f"clearly behind in {behind}, ahead in {ahead}, and three of its ten runs"
        in page
    )
    assert methods_page.diverged(rows) == "3 of scaffold (mnist-mini)"
    for family in families:
        if family.measure == "own_accuracy":
            assert not any(
                "local-only" in family.behind(method) for method in methods_tuned.OWN
            )
        assert "fedprox" not in family.behind("fedavg")
        assert "fedavg" not in family.behind("fedprox")
    by_key = {(f.data, f.measure, f.budget): f for f in families}
    images = by_key["mnist-mini", "accuracy", "seconds"].means
    assert (
        f"fedbuff ({100 * images['fedbuff']:.1f} %) and fedasync "
        f"({100 * images['fedasync']:.1f}" in page
    )
    few = by_key["mnist-mini", "accuracy", "bytes"].means
    averaging = [
        "fedavg",
        "fedprox",
        "fedopt",
        "scaffold",
        "fedbuff",
        "fedasync",
        "fedgen",
    ]
    assert few[["local-only", "fedproto"]].min() > few[averaging].max()
    by_seconds, by_bytes = (
        by_key["mnist-mini", "accuracy", budget] for budget in methods_tuned.BUDGETS
    )
    personal = set(methods_tuned.PERSONAL)
    assert (
        sum(len(personal & {*by_seconds.behind(method)}) for method in averaging) == 42
    )
    assert not any({*averaging} & {*by_seconds.behind(method)} for method in personal)
    for method in ("local-only", "fedproto"):
        assert {"scaffold", "fedasync"} <= {*by_bytes.behind(method)}
    assert any(
        p.told for p in by_bytes.pairs if {p.one, p.other} == {"fedavg", "feddf"}
    )
    assert (
        f"({100 * few[averaging].min():.1f} to {100 * few[averaging].max():.1f} %)"
        in page
    )
    for budget, ahead in (("seconds", 11), ("bytes", 49)):
        own = by_key["synthetic(1, 1)", "own_accuracy", budget]
        assert (
            sum(len({*averaging} & {*own.behind(method)}) for method in personal)
            == ahead
        )
        assert not any(personal & {*own.behind(method)} for method in averaging)
    clip = methods_page.clip_table(rows, pd.read_parquet(methods_tuned.CLIPPED))
    assert clip.count("**") == 2 * 4
    assert "Of 64 comparisons four are told apart" in page
