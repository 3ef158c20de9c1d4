import pandas as pd
import pytest
from worlds import TINY

import simfed
from simfed import InputError
from simfed.report import build_gantt_data, build_timeline, gantt_figure
from simfed.report.timeline import parse_clients, parse_rounds

pytest_plugins = ["report_runs"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2:4", (2, 4)),
        ("7", (7, 7)),
        (":3", (1, 3)),
        ("18:", (18, 20)),
        (":", (1, 20)),
        ("19:99", (19, 20)),
    ],
)
def test_rounds_are_a_range_with_both_ends(text, expected):
    assert parse_rounds(text, 20) == expected


@pytest.mark.parametrize(
    "text",
    ["", "0", "0:3", "5:2", "21", "21:30", "a", "1-3", "-1:3", "1.5", "9" * 5000],
)
def test_rounds_that_are_not_there_are_an_input_error(text):
    with pytest.raises(InputError, match="--rounds"):
        parse_rounds(text, 20)


CLIENTS = pd.DataFrame({"client": range(6), "prototype": ["small", "large"] * 3})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0,3", [0, 3]),
        ("2-4", [2, 3, 4]),
        ("small", [0, 2, 4]),
        ("large, 0", [0, 1, 3, 5]),
        ("4-99", [4, 5]),
        ("5-9999999999", [5]),
    ],
)
def test_clients_are_ids_ranges_and_prototypes(text, expected):
    assert parse_clients(text, CLIENTS) == expected


@pytest.mark.parametrize("text", ["", "6", "medium", "1,,x", "-1", "3-2", "9" * 5000])
def test_clients_that_are_not_there_are_an_input_error(text):
    with pytest.raises(InputError, match="--clients"):
        parse_clients(text, CLIENTS)


def test_a_timeline_holds_exactly_its_rounds_and_clients(report_run):
    run = report_run()
    timeline = build_timeline(run, (3, 5), [1, 4])
    assert set(timeline.bars["round"]) == {3, 4, 5}
    assert set(timeline.bars["client"].dropna()) == {1, 4}
    spans = run.spans
    expected = spans["round"].between(3, 5) & (
        spans["client"].isin([1, 4]) | (spans["track"] == "server")
    )
    assert len(timeline.bars) == expected.sum()


def test_the_critical_bars_reach_from_the_rounds_start_to_its_end(report_run):
    timeline = build_timeline(report_run())
    for row in timeline.rounds.itertuples():
        bars = timeline.bars[
            (timeline.bars["round"] == row.round) & timeline.bars["critical"]
        ]
        assert set(bars["client"].dropna()) == {row.critical_client}
        assert bars["started_at_s"].min() == row.started_at_s
        assert bars["finished_at_s"].max() == pytest.approx(row.finished_at_s)
        length_s = (bars["finished_at_s"] - bars["started_at_s"]).sum()
        assert length_s == pytest.approx(row.duration_s, rel=1e-9)


def test_a_stretch_without_anybody_is_hatched_and_said():
    device = {"training": "30 s", "compression": "0 s"}
    stays = {"availability": {"markov": {"on": "20 s", "off": "10 min"}}}
    group = {**TINY["clients"][0], "device": device, "link": {"up": "1 Mbps"}, **stays}
    world = {**TINY, "rounds": 1, "clients": [group]}
    run = simfed.run(world, time_only=True, progress=False)
    first_s = run.participations["started_at_s"].min()
    assert first_s > 90
    absences = build_timeline(run).absences()
    assert absences.to_numpy().tolist() == [[1, 0.0, first_s]]
    figure = gantt_figure(run)
    spans = [patch for patch in figure.axes[0].patches if patch.get_gid() == "absent"]
    assert [(span.get_x(), span.get_width()) for span in spans] == [(0.0, first_s)]
    assert all(span.get_hatch() for span in spans)
    labels = [
        text.get_text() for legend in figure.legends for text in legend.get_texts()
    ]
    assert "nobody was there" in labels
    data = build_gantt_data(run, "a", {})
    (kind,) = (
        i for i, look in enumerate(data["kinds"]) if look["label"] == "nobody was there"
    )
    assert data["kinds"][kind]["hatched"]
    at = data["bars"]["kind"].index(kind)
    assert data["bars"]["length"][at] == pytest.approx(first_s)
    assert data["tracks"][data["bars"]["track"][at]]["name"] == "server"
