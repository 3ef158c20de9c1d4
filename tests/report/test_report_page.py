"""The HTML report without a browser: what is in the file. `tests/browser` opens it."""

import base64
import gzip
import hashlib
import html.parser
import json
import re

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest
from worlds import TINY

import simfed
from simfed.ground import format_duration
from simfed.report import (
    build_timeline,
    frames,
    gantt_data,
    list_events,
    page,
    reach,
    write_page,
)
from simfed.report.panels import MOST_POINTS, build_curves_panel, build_time_panel

EVIL = "<script>alert(1)</script>"


class Reader(html.parser.HTMLParser):
    """Every tag with its attributes, and the texts of scripts and tables."""

    within = ""

    def __init__(self, text):
        super().__init__()
        self.tags, self.scripts, self.tables, self.caption = [], {}, {}, ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.within = tag
        self.tags.append((tag, dict(attrs)))
        if tag == "tr":
            self.tables.setdefault(self.caption, []).append([])
        if tag in ("td", "th"):
            self.tables[self.caption][-1].append("")

    def handle_endtag(self, tag):
        self.within = ""

    def handle_data(self, data):
        if self.within == "script":
            self.scripts[self.tags[-1][1].get("id", "code")] = data
        elif self.within == "caption":
            self.caption = data
        elif self.within in ("td", "th"):
            self.tables[self.caption][-1][-1] += data


def inflated(reader, name):
    return gzip.decompress(base64.b64decode(reader.scripts[name])).decode()


def read_payload(text):
    return json.loads(inflated(Reader(text), "payload"))


def played(**changes):
    """A time-only run of a small world with some changes."""
    return simfed.run({**TINY, **changes}, time_only=True, progress=False)


@pytest.fixture(scope="module")
def text(report_run):
    return page.build_page([report_run()])


@pytest.fixture(scope="module")
def reader(text):
    return Reader(text)


@pytest.fixture(scope="module")
def payload(text):
    return read_payload(text)


@pytest.fixture(scope="module")
def compared(report_run):
    """Two runs, and the page of both."""
    runs = [report_run(), report_run(10, 20, 1)]
    return runs, page.build_page(runs)


def test_the_page_refers_to_nothing_outside_itself(text, reader):
    for _, attributes in reader.tags:
        for name in {"src", "href", "action", "data", "srcset"} & attributes.keys():
            assert re.match(r"#|data:,$", attributes[name])
    packed = r'<script type="application/octet-stream".*?</script>'
    visible = re.sub(packed, "", text, flags=re.S)
    assert not re.search(r"://|url\(|@import", visible)


def test_only_the_pages_own_scripts_may_run_and_nothing_may_be_loaded(reader):
    policy = next(a["content"] for t, a in reader.tags if a.get("http-equiv"))
    assert "default-src 'none'" in policy
    assert not re.search("connect-src|unsafe-eval", policy)
    scripts = policy.split("script-src ")[1].split(";")[0].split()
    for source in (reader.scripts["code"], inflated(reader, "library")):
        digest = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in scripts
    assert len(scripts) == 2


def test_every_chart_is_a_valid_plotly_figure(payload):
    keys = "learning time round-lengths strategy-shares strategy-clients rewards values"
    assert set(keys.split()) == set(payload["panels"])
    for spec in payload["panels"].values():
        for key, figure in spec["figures"]:
            assert len(key) == len(spec["by"])
            assert figure["data"]
            go.Figure(figure)


def test_every_section_has_its_heading_and_its_link(reader):
    ids = [attributes["id"] for _, attributes in reader.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    hrefs = [a["href"] for t, a in reader.tags if t == "a"]
    links = {href[1:] for href in hrefs if href.startswith("#")}
    assert links <= set(ids)
    assert set(page.SECTIONS) - {"app"} <= links  # which an app alone has
    for key in ("aria-labelledby", "aria-describedby"):
        for _, attributes in reader.tags:
            assert set((attributes.get(key) or "").split()) <= set(ids)


def test_the_gantt_holds_every_bar_with_its_facts(payload, report_run):
    run = report_run()
    (data,) = payload["timeline"]["runs"]
    bars, parts = data["bars"], data["parts"]
    assert len(bars["part"]) == (~run.spans["track"].str.startswith("link ")).sum()
    assert bars["part"].count(None) == (run.spans["track"] == "server").sum()
    by_part = run.participations.set_index(["round", "client"])
    for i in range(0, len(bars["part"]), 7):
        if (part := bars["part"][i]) is None:
            continue
        assert parts["track"][part] == bars["track"][i]
        client = data["tracks"][bars["track"][i]]["client"]
        recorded = by_part.loc[data["rounds"]["number"][bars["round"][i]], client]
        for fact in ("arm", "outcome"):
            assert parts[fact][part] == recorded[fact]


def test_more_bars_than_a_page_carries_are_sampled_by_rounds_the_longest_among_them(
    report_run,
):
    run = report_run(10, 100)
    sampled = gantt_data.choose_rounds(run, most_bars=1500)
    assert len(sampled) <= 30
    assert {1, run.rounds["duration_s"].idxmax() + 1, 100} <= set(sampled["round"])
    assert sampled["round"].is_monotonic_increasing
    data = gantt_data.build_gantt_data(run, "a", {}, most_bars=1500)
    assert len(data["bars"]["part"]) <= 1600
    assert data["all"]["rounds"] == 100


def test_a_round_of_more_clients_than_a_page_carries_is_sampled_by_clients(report_run):
    run = report_run(300, 3)
    data = gantt_data.build_gantt_data(run, "a", {}, most_bars=500)
    ids = {track["client"] for track in data["tracks"]} - {None}
    assert 90 <= len(ids) <= 110
    assert data["all"]["clients"] == 300
    assert set(data["rounds"]["number"]) == {1}
    assert run.rounds["critical_client"][0] in ids
    assert set(data["parts"]["track"]) == set(range(len(ids)))


def test_a_client_that_takes_part_several_times_in_a_round_keeps_its_bars_apart():
    """A buffered server asks a quick client again before it merges."""
    device = {"profile": "x86-2core-vm"}
    host = {"prototype": "a", "device": device, "link": {"up": "10 Mbps"}}
    slow = {**host, "count": 2, "device": {**device, "speed": 0.1}}
    run = played(
        clients=[{**host, "failure": {"upload": 0.5}}, slow],
        aggregation={"mode": "buffered", "buffer": 4, "concurrency": 3},
    )
    parts = run.participations
    several = parts[parts.duplicated(["round", "client"], keep=False)]
    assert several["outcome"].nunique() > 1
    key = ["round", "client", "started_at_s", "outcome"]
    bars = build_timeline(run).bars.query("kind == 'training'")
    assert sorted(bars[key].values.tolist()) == sorted(parts[key].values.tolist())
    data = gantt_data.build_gantt_data(run, "a", {})
    assert set(data["bars"]["part"]) - {None} == set(range(len(parts)))
    slices = [e for e in list_events(run) if e["ph"] == "X" and e["name"] == "upload"]
    sent = parts.loc[parts["uplink_s"] > 0, "outcome"]
    assert sorted(e["args"]["outcome"] for e in slices) == sorted(sent)


def test_sliced_link_use_conserves_bytes(report_run, monkeypatch):
    run = report_run()
    monkeypatch.setattr(gantt_data, "MOST_LINK_PIECES", 10)
    (link, _) = gantt_data.build_gantt_data(run, "a", {})["links"]
    assert link["sliced"]
    moved = np.dot(link["rate"], np.subtract(link["to_s"], link["from_s"])) / 8
    recorded = run.links.groupby("link")["bytes"].sum()[link["name"]]
    assert moved == pytest.approx(recorded, rel=1e-5)


def test_names_are_text_wherever_they_appear(report_run):
    run = report_run(4, 3, name=EVIL, prototypes=(f"{EVIL}p", "<b>bold</b>"))
    text = page.build_page([run, report_run(4, 3)])
    assert EVIL not in text
    assert "&lt;script&gt;alert(1)" in text
    # plotly reads tags in texts; what selectors choose by and the Gantt's data it never
    # sees
    panels = read_payload(text)["panels"].values()
    drawn = json.dumps([figure for panel in panels for _, figure in panel["figures"]])
    assert not re.search("<script>|<b>bold", drawn)
    assert "&lt;b&gt;bold" in drawn


def test_several_runs_are_overlaid_and_compared(compared):
    _, text = compared
    tables = Reader(text).tables
    names = [f"synthetic (seed {seed})" for seed in (0, 1)]
    results = {row[0]: row[1:] for row in tables["Results, side by side"]}
    assert results["result"] == names
    assert "rounds" not in results  # folded: it is the same in both
    assert ["rounds", "20"] in tables["The same in all"]
    assert len(results["final accuracy, small"]) == 2
    assert tables["Settings that differ"] == [["key", *names], ["seed", "0", "1"]]
    reached = tables["When each accuracy was reached"]
    assert [row[0] for row in reached[1:3]] == names
    ((_, figure), *_) = read_payload(text)["panels"]["learning"]["figures"]
    shown = {
        line["name"] for line in figure["data"] if line.get("visible", True) is True
    }
    assert shown == {f"{name}, {frames.MEAN}" for name in names}


def test_a_comparison_leads_with_the_time_to_target_and_points(compared):
    runs, text = compared
    tidy = pd.concat(frames.curves(run, i) for i, run in enumerate(runs))
    mean = tidy[tidy["prototype"] == frames.MEAN].dropna(subset=["accuracy"])
    last = mean.groupby("run")["accuracy"].last()
    (target, *_) = reach.find_hardest_targets(mean)
    first = reach.list_threshold_rows(mean, [target]).set_index("run")["at_s"]
    title, (head, *rows) = next(iter(Reader(text).tables.items()))
    assert title == "Time to target"
    assert head[:2] == ["run", f"time to {100 * target:g} %"]
    assert [row[1] for row in rows] == [format_duration(first[i]) for i in (0, 1)]
    assert f"{100 * (last[1] - last[0]):+.1f} points" in rows[1]


def test_a_time_only_run_has_a_page_without_learning(report_run):
    reader = Reader(page.build_page([report_run(6, 4, learns=False)]))
    links = {a.get("href") for t, a in reader.tags if t == "a"}
    assert {"#time", "#timeline"} <= links
    assert not {"#learning", "#rewards"} & links


def test_long_curves_are_thinned_and_the_page_says_so(report_run):
    tidy = frames.curves(report_run())
    long = tidy.loc[tidy.index.repeat(500)].reset_index(drop=True)
    panel = build_curves_panel(long, {"kd_loss": "loss"})
    for figure in panel.figures.values():
        kept = sum(len(trace.x) for trace in figure.data)
        assert 0.9 * MOST_POINTS < kept <= MOST_POINTS
    assert "evenly spaced" in panel.notes[0]


@pytest.mark.long
def test_a_hundred_clients_and_a_thousand_rounds_fit_6_mb(report_run, tmp_path):
    path = write_page([report_run(100, 1000)], tmp_path / "big.html")
    assert path.stat().st_size < 6e6

    def count(values):
        if "bdata" not in values:
            return np.size(values)
        return len(np.frombuffer(base64.b64decode(values["bdata"]), values["dtype"]))

    for panel in read_payload(path.read_text())["panels"].values():
        traces = panel["figures"][0][1]["data"]
        assert sum(count(trace.get("z", trace.get("x"))) for trace in traces) <= 5_000


def test_edge_servers_have_a_row_each():
    tree = {"topology": "tree", "tiers": [{"name": "edge", "count": 3, "up": "5 Mbps"}]}
    run = played(
        clients=[{**TINY["clients"][0], "count": 6}],
        network=tree,
        aggregation={"edge_servers": {"at": "edge", "merges": 2}},
    )
    data = gantt_data.build_gantt_data(run, "a", {})
    tracks, bars = data["tracks"], data["bars"]
    assert [track["name"] for track in tracks[-3:]] == ["edge-0", "edge-1", "edge-2"]
    assert data["edges"] == data["all"]["edges"] == 3
    numbers, kinds = data["rounds"]["number"], data["kinds"]
    drawn = [
        (tracks[t]["name"], kinds[k]["label"], numbers[n], length)
        for t, k, n, length in zip(
            bars["track"], bars["kind"], bars["round"], bars["length"], strict=True
        )
        if tracks[t]["group"] == "edge servers"
    ]
    recorded = [
        (
            at.track,
            at.name,
            at.round,
            float(f"{at.finished_at_s - at.started_at_s:.7g}"),
        )
        for at in build_timeline(run).edges().itertuples()
    ]
    assert sorted(drawn) == sorted(recorded)


def test_a_phase_that_one_run_has_stands_below_its_name():
    worked = dict.fromkeys(("download", "training", "compression", "upload"), 1.0)
    row = {"client": 0, "prototype": "p", "participations": 1, **worked}
    seconds = {"a": pd.DataFrame([row]), "b": pd.DataFrame([{**row, "start": 2.0}])}
    table = build_time_panel(seconds).table
    at = table.header.index("start of a process")
    assert [cells[at] for cells in table.rows] == ["", "2 s"]
