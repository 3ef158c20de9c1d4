import pandas as pd
import pytest
from worlds import TINY

import simfed
from simfed.report import build_gantt_data, build_timeline, gantt_figure
from simfed.report.timeline import parse_clients, parse_rounds


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2:4", (2, 4)),
        (":3", (1, 3)),
        ("18:", (18, 20)),
        (":", (1, 20)),
        ("19:99", (19, 20)),
    ],
)
def test_rounds_are_a_range_with_both_ends(text, expected):
    assert parse_rounds(text, 20) == expected


CLIENTS = pd.DataFrame({"client": range(6), "prototype": ["small", "large"] * 3})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("small", [0, 2, 4]),
        ("large, 0", [0, 1, 3, 5]),
        ("4-99", [4, 5]),
        ("5-9999999999", [5]),
    ],
)
def test_clients_are_ids_ranges_and_prototypes(text, expected):
    assert parse_clients(text, CLIENTS) == expected


def test_a_timeline_holds_exactly_its_rounds_and_clients(report_run):
    run = report_run()
    bars = build_timeline(run, (3, 5), [1, 4]).bars
    assert set(bars["round"]) == {3, 4, 5}
    assert set(bars["client"].dropna()) == {1, 4}
    asked = "3 <= round <= 5 and (client in [1, 4] or track == 'server')"
    assert len(bars) == len(run.spans.query(asked))


def test_the_critical_bars_reach_from_the_rounds_start_to_its_end(report_run):
    timeline = build_timeline(report_run())
    for row in timeline.rounds.itertuples():
        bars = timeline.bars.query("round == @row.round and critical")
        start_s, end_s = bars["started_at_s"], bars["finished_at_s"]
        assert set(bars["client"].dropna()) == {row.critical_client}
        assert start_s.min() == row.started_at_s
        assert end_s.max() == pytest.approx(row.finished_at_s)
        assert sum(end_s - start_s) == pytest.approx(row.duration_s, rel=1e-9)


def test_a_stretch_without_anybody_is_hatched_and_said():
    device = {"training": "30 s", "compression": "0 s"}
    stays = {"markov": {"on": "20 s", "off": "10 min"}}
    group = {**TINY["clients"][0], "device": device, "availability": stays}
    world = {**TINY, "rounds": 1, "clients": [{**group, "link": {"up": "1 Mbps"}}]}
    run = simfed.run(world, time_only=True, progress=False)
    first_s = run.participations["started_at_s"].min()
    assert first_s > 90
    assert build_timeline(run).absences().values.tolist() == [[1, 0.0, first_s]]
    figure = gantt_figure(run)
    (span,) = (p for p in figure.axes[0].patches if p.get_gid() == "absent")
    assert (span.get_x(), span.get_width()) == (0.0, first_s)
    assert span.get_hatch()
    texts = [text for legend in figure.legends for text in legend.get_texts()]
    assert "nobody was there" in {text.get_text() for text in texts}
    data = build_gantt_data(run, "a", {})
    kind = [look["label"] for look in data["kinds"]].index("nobody was there")
    assert data["kinds"][kind]["hatched"]
    at = data["bars"]["kind"].index(kind)
    assert data["bars"]["length"][at] == pytest.approx(first_s)
    assert data["tracks"][data["bars"]["track"][at]]["name"] == "server"
