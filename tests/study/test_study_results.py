"""What a study tells in the end: frames, comparisons, sentences. Runs are made up."""

import json
import re
import shutil

import numpy as np
import pandas as pd
import pytest

from simfed import InputError, InputErrors
from simfed.study import compare, load_study, render_study_page
from simfed.study.tables import list_notes

UP = "clients[*].link.up"


def test_every_frame_says_which_run_a_row_is_of(studied):
    keys = [UP, "policy.strategy", "seed"]
    for name in (
        "rounds",
        "participations",
        "prototypes",
        "curves",
        "times",
        "summary",
    ):
        frame = getattr(studied, name)
        assert list(frame.columns[:3]) == keys, name
        assert len(frame[keys].drop_duplicates()) == 18, name
    assert len(studied.rounds) == 18 * 60
    lengths_s = studied.rounds.groupby(UP)["duration_s"].unique()
    assert lengths_s["5 Mbps"].tolist() == [0.1 + 6000 / 625e3]
    assert studied.spans.empty
    assert list(studied.spans.columns[:3]) == keys


def test_values_keep_their_type_and_mappings_become_labels(write_study, make_up):
    path = write_study(
        """
        grid:
          compression.k: [500, 1000]
          policy: {ours: {kind: uniform, strategy: top-k}}
        zip: {UP: [5 Mbps, 6 Mbps], rounds: [5, 10]}
        """
    )
    table = make_up(path).summary
    keys = ["compression.k", "policy", "zip", UP, "rounds", "seed"]
    assert list(table.columns[:6]) == keys
    assert table["compression.k"].dtype == np.int64
    assert set(table["policy"]) == {"ours"}
    assert list(table["zip"][:2]) == ["5 Mbps, 5", "6 Mbps, 10"]
    assert list(table["rounds"][:2]) == [5, 10]


def test_what_was_never_reached_is_censored_at_the_runs_end(studied):
    never = "`policy.strategy` == 'periodic-k' and threshold == 0.9"
    times = studied.times.query(never)
    assert not times["reached"].any()
    ends = studied.summary.query("`policy.strategy` == 'periodic-k'")["simulated_s"]
    assert list(times["at_s"]) == list(ends)
    arms = studied.arms.query("arm == 'periodic-k' and threshold == 0.9")
    assert list(arms["reached"]) == [0, 0]
    assert arms["median_s"].isna().all()
    assert (arms["median_at_least_s"] > 0).all()


def test_arms_are_compared_seed_by_seed_in_every_setting(studied):
    table = studied.comparisons
    assert len(table) == 2 * 2 * 3  # settings × thresholds × pairs
    row = table.query("a == 'top-k' and b == 'random-k' and threshold == 0.5")
    assert set(row["setting"]) == {"up 5 Mbps", "up 50 Mbps"}
    assert list(row["wins"]) == [3, 3]
    assert list(row["verdict"]) == [1, 1]
    # round 25 of random-k against round 15 of top-k, seed by seed
    assert list(row["ratio"]) == pytest.approx([25 / 15] * 2)
    row = table.query("a == 'top-k' and b == 'periodic-k' and threshold == 0.9")
    assert row["ratio"].isna().all()
    assert list(row["ratio_at_least"]) == pytest.approx([60 / 50] * 2)
    assert list(row["coverage"]) == [0.75, 0.75]
    assert list(row["verdict"]) == [0, 0]


def test_verdicts_are_sentences(studied):
    assert studied.verdicts[0] == (
        "top-k before random-k to 50 %: at up 5 Mbps top-k 1.67× [1.67, 1.67] sooner "
        "in 3 of 3 seeds, at up 50 Mbps top-k 1.67× [1.67, 1.67] sooner in 3 of 3 "
        "seeds."
    )
    # three seeds of which some are censored: an interval that covers 75 % is no verdict
    (sentence,) = (s for s in studied.verdicts if "top-k and periodic-k to 90 %" in s)
    assert "no clear difference" in sentence
    assert "top-k at least 1.20×" in sentence
    assert "(covers 75 %) sooner in 3 of 3 seeds, too few to decide" in sentence
    assert "random-k against periodic-k undecided to 90 %" in " ".join(studied.verdicts)


def test_a_run_that_was_never_evaluated_never_got_there(write_study, make_up):
    path = write_study(
        grid={"rounds": [4, 60]},
        seeds=[0],
        compare={"arms": "rounds", "thresholds": [0.5]},
    )  # the fake evaluates in round 5
    times = make_up(path).times
    assert list(times["reached"]) == [False, True]
    assert times["at_s"][0] == pytest.approx(4 * (0.1 + 6000 / 6.25e6))


def test_a_clear_difference_that_does_not_matter_is_no_verdict(write_study, make_up):
    rates = {"as it was": "10 Mbps", "a bit more": "50 Mbps"}

    def verdicts(name, **compared):
        compared |= {"arms": UP, "thresholds": [0.5]}
        path = write_study(grid={UP: rates}, seeds=[0, 1, 2], compare=compared)
        return make_up(path, name).verdicts

    assert verdicts("out") == [
        "no relevant difference between as it was and a bit more to 50 %: a bit more "
        "1.04× [1.04, 1.04] sooner in 3 of 3 seeds, less than 1.05×."
    ]
    (sentence,) = verdicts("every", relevant_ratio=1)
    assert sentence.startswith("a bit more before as it was to 50 %: a bit more ")
    with pytest.raises(
        InputErrors, match=r"relevant_ratio: got 0\.9, expected a ratio"
    ):
        verdicts("wrong", relevant_ratio=0.9)


def test_runs_are_compared_without_a_study_as_within_one(studied):
    def side(strategy):
        point = {UP: "5 Mbps", "policy.strategy": strategy}.items()
        return [
            run for entry, run in studied.finished if point <= entry["point"].items()
        ]

    names = ["top-k", "random-k"]
    a, b = map(side, names)
    paths = [run.path for run in b]
    result = compare(a, paths, names=names, thresholds=[0.5, 0.9])
    of_both = "setting == 'up 5 Mbps' and a == 'top-k' and b == 'random-k'"
    same = studied.comparisons.query(of_both)
    same = same.drop(columns="setting").reset_index(drop=True)
    pd.testing.assert_frame_equal(result.table, same)
    assert str(result).splitlines()[0] == (
        "top-k before random-k to 50 %: top-k 1.67× [1.67, 1.67] sooner in 3 of 3 "
        "seeds."
    )
    assert str(result).splitlines()[-1].startswith("top-k ends 11.")
    assert "<li>top-k before random-k" in result._repr_html_()
    alone = compare(a[0], b[0])
    assert alone.names == (f"tiny ({a[0].path})", f"tiny ({b[0].path})")
    assert "in 1 of 1 seed, too few to decide" in str(alone)


@pytest.mark.parametrize(
    ("sides", "options", "said"),
    [
        ("a", {}, "got '1', expected two sides or more"),
        ("aA", {"names": ["x", "x"]}, "['x', 'x'], expected one name of its own for"),
        ("aA", {"thresholds": [2]}, "got 2, expected an accuracy above 0, at most 1"),
        ("aA", {"confidence": 1}, "got 1, expected a number between 0 and 1"),
        ("aA", {"relevant_ratio": 0}, "got 0, expected a number of at least 1"),
        ("ab", {"names": ["a", "b"]}, "a and b with a seed in common"),
        ("ad", {}, "one run of a side per seed"),
        ("ae", {}, "a run or more for each side"),
    ],
)
def test_sides_that_cannot_be_compared_are_refused(studied, sides, options, said):
    (_, zero), *_, (_, one) = studied.finished  # of seed 0, of seed 2
    given = {"a": zero, "A": zero.path, "b": one, "d": [one, one], "e": []}
    with pytest.raises(InputError, match=re.escape(said)):
        compare(*map(given.get, sides), **options)


def test_a_baseline_is_compared_with_all_others(write_arms, make_up):
    path = write_arms("trp", 0.5, seeds=[0], baseline="random-k")
    table = make_up(path).comparisons
    pairs = [["top-k", "random-k"], ["random-k", "periodic-k"]]
    assert table[["a", "b"]].values.tolist() == pairs


def test_thresholds_default_to_what_half_of_the_runs_reach(write_arms, make_up):
    result = make_up(write_arms("trp", seeds=[0]))
    assert result.thresholds == [0.8]  # 0.95, 0.83 and 0.45 at the end


def test_a_study_that_is_not_done_compares_what_it_has(write_arms, out, make_up):
    result = make_up(write_arms("tr", 0.5))
    # random-k of seed 0, top-k of seed 1
    for address in result.summary["address"][[1, 2]]:
        shutil.rmtree(out / "runs" / address)
    partial = load_study(out)
    assert list(partial.comparisons["seeds"]) == [1]
    assert list(partial.summary["status"]).count("waiting") == 2
    for address in result.summary["address"]:
        shutil.rmtree(out / "runs" / address, ignore_errors=True)
    nothing = load_study(out)
    assert nothing.rounds.empty
    assert nothing.verdicts == [
        "top-k against random-k undecided to 50 %: no seed is finished for both."
    ]


def test_runs_of_unlike_processors_are_told_beside_the_table(studied, tmp_path):
    assert studied.unlike == ""
    copy = shutil.copytree(studied.path, tmp_path / "copy")
    for number, address in enumerate(studied.summary["address"]):
        path = copy / "runs" / address / "manifest.json"
        versions = {"numpy": "2.1", "processor": "slow" if number else "fast"}
        manifest = json.loads(path.read_text()) | {"versions": versions}
        path.write_text(json.dumps(manifest))
    said = (
        "Runs come from unlike places, so last bits may differ: processor fast (1 "
        "run), slow (17 runs)"
    )
    unlike = load_study(copy)
    assert list_notes(unlike) == [said]
    assert said in render_study_page(unlike)
