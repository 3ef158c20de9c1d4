import copy
import io
from types import SimpleNamespace

import pandas as pd
import pyarrow as pa
import pytest
from rich.console import Console

from simfed.record import rank_stragglers
from simfed.record.summary import count_clipped, warn_of_clipping
from simfed.report import frames, list_headline_facts, reach
from simfed.report.compare import build_results_table, build_stragglers_table
from simfed.report.panels import build_client_choice_panel
from simfed.report.summary import build_strategies_table, build_summary_table


def printed(*tables):
    console = Console(file=io.StringIO(), width=80)
    console.print(*tables)
    return console.file.getvalue()


def test_the_summary_says_what_a_person_asks(report_run):
    run = report_run()
    text = printed(build_summary_table(run))
    final = frames.curves(run).query("round == 20 and prototype == @frames.MEAN")
    facts = ["synthetic", "10 clients", "20 rounds", "seed 0", "large", "top-k"]
    facts += ["download", "training", "compression", "upload", "waiting"]
    facts += [f"{final['accuracy'].item():.3f}", "Who the rounds waited for"]
    facts += ["mean of clients" + 5 * " "]
    for fact in facts:
        assert fact in text


def test_joules_are_said_where_watts_are_known(report_run):
    run = report_run(4, 3)
    assert "energy" not in printed(build_summary_table(run))
    rows, powered = len(run.participations), copy.copy(run)
    energy_j = [float("nan"), *[2.0] * (rows - 1)]
    powered.participations = run.participations.assign(energy_j=energy_j)
    total = f"{2 * (rows - 1)} J"
    known = f"2 J a participation; of {rows - 1} of {rows} participations alone"
    text = " ".join(printed(build_summary_table(powered)).split())
    assert f"energy of devices {total}, {known}" in text
    facts = {what: said for what, *said in list_headline_facts(powered)}
    assert facts["energy of devices"] == [total, known]
    table = build_results_table({"a": powered, "b": run})
    assert ("energy of devices", total, "") in table.rows


@pytest.mark.parametrize("clients", [1, 10, 300])
def test_the_summary_fits_80_columns(report_run, clients):
    run = report_run(clients, 3, name="a name longer than anybody would want it " * 4)
    assert max(map(len, printed(build_summary_table(run)).splitlines())) <= 80


def test_the_mean_weighs_prototypes_by_their_clients(report_run):
    run = report_run(5, 3)  # three small, two large
    last = frames.curves(run).query("round == 3").set_index("prototype")["accuracy"]
    assert last[frames.MEAN] == pytest.approx(0.6 * last["small"] + 0.4 * last["large"])


def test_a_threshold_is_reached_in_the_first_round_that_has_it():
    rounds = [(1, 0.5), (2, None), (3, 0.8), (4, 0.7)]
    tidy = pd.DataFrame(rounds, columns=["round", "accuracy"])
    amounts = dict.fromkeys(("at_s", "uplink_bytes", "total_bytes"), tidy["round"])
    tidy = tidy.assign(run="a", prototype="p", **amounts)
    reached = reach.list_threshold_rows(tidy, [0.5, 0.75, 0.9]).set_index("threshold")
    assert reached.loc[0.5, "round"] == 1
    assert reached.loc[0.75, ["round", "at_s", "uplink_bytes"]].tolist() == [3, 3, 3]
    assert pd.isna(reached.loc[0.9, "at_s"])


def test_what_nobody_knows_to_be_saved_is_no_second(report_run):
    """Nobody was there beside the one client, so no round says how long it took without
    it.
    """
    run = report_run(1, 3)
    assert [row["saved_s"] for row in rank_stragglers(run.table)] == [None]
    _, _, table = printed(build_summary_table(run)).partition(
        "Who the rounds waited for"
    )
    assert table.splitlines()[1].endswith("–")
    assert [row[-1] for row in build_stragglers_table({"run": run}).rows] == ["–"]


def test_arm_shares_add_up_to_one_and_cover_all_rounds(report_run):
    run = report_run(10, 100)
    shares = frames.compute_arm_shares(run.participations, most_bins=30)
    sums = shares.groupby(["prototype", "from_round"])["share"].sum()
    assert sums.to_numpy() == pytest.approx(1)
    assert shares["from_round"].nunique() <= 30
    assert shares["plays"].sum() == 1000
    assert (shares["from_round"].min(), shares["to_round"].max()) == (1, 100)


def test_a_cell_of_a_clients_choices_says_for_how_many_rounds_it_stands(report_run):
    run = report_run(10, 100)

    def notes(most_bins):
        by = ["prototype", "client"]
        shares = frames.compute_arm_shares(
            run.participations, by=by, most_bins=most_bins
        )
        return build_client_choice_panel({"run": shares}, ["top-k"]).notes

    what = "run: a cell stands for {} rounds and shows what was played most in them."
    assert notes(30) == (what.format(4),)
    assert notes(50) == (what.format(2),)
    assert notes(100) == ()


def a_run_of(rows):
    columns = ["round", "client", "prototype", "arm", "k", "choice"]
    parts = pd.DataFrame(rows, columns=columns)
    compression = {"strategies": ["top-k", "dense"], "k_choices": [5, 50, 500, 5000]}
    return SimpleNamespace(participations=parts, scenario={"compression": compression})


def test_k_is_told_where_it_was_set_anew_for_each_play():
    rows = [(r, 0, "small", "top-k", 10 * r, "exploit") for r in range(1, 6)]
    rows += [
        (6, 0, "small", "top-k", 1000, "forced"),
        (6, 1, "large", "top-k", 7, "exploit"),
    ]
    varying = frames.find_varying_k(a_run_of(rows))
    assert varying["value"].tolist() == [10, 20, 30, 40, 50]
    table = build_strategies_table(a_run_of(rows))
    assert "K of top-k, small: 10 to 50, median 30" in printed(table)


@pytest.mark.parametrize(
    ("raw", "counted", "warned"),
    [
        # of 20 rewards a twentieth is one: that of 6.5
        ([k / 2 - 3.0 for k in range(20)], (20, 15, 6.0), "75 %"),
        ([0.1 * k for k in range(20)] + [None], (20, 9, 1.8), None),
        ([None, None], (0, 0, None), None),
        ([5.0], (1, 1, 5.0), "1 of 1"),
    ],
)
def test_clipped_rewards_are_counted_and_warned_of_above_60_percent(
    raw, counted, warned
):
    rewards = pd.DataFrame({"reward_raw": raw}, dtype=float)
    rewards["reward"] = rewards["reward_raw"].clip(-1, 1)
    found = count_clipped(pa.Table.from_pandas(rewards))
    assert (found["told"], found["clipped"]) == counted[:2]
    assert found["clip_of_a_twentieth"] == pytest.approx(counted[2])
    warnings = warn_of_clipping({"rewards": found})
    assert len(warnings) == bool(warned)
    for sentence in warnings:
        assert warned in sentence
        assert "would cut 5 %" in sentence
