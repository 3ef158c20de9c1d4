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

pytest_plugins = ["report_runs"]

EVIL = "<script>alert(1)</script>"


class Reader(html.parser.HTMLParser):
    """Every tag with its attributes, and the texts of scripts and tables."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags, self.scripts, self.tables = [], {}, {}
        self.path, self.row, self.caption = [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "input", "br"):
            self.path.append((tag, dict(attrs)))
        if tag == "tr":
            self.row = []
        if tag in ("td", "th"):
            self.row.append("")

    def handle_endtag(self, tag):
        if tag == "tr":
            self.tables.setdefault(self.caption, []).append(self.row)
        while self.path and self.path.pop()[0] != tag:
            pass

    def handle_data(self, data):
        where = self.path[-1][0] if self.path else ""
        if where == "script":
            self.scripts[self.path[-1][1].get("id", "code")] = data
        elif where == "caption":
            self.caption = data
        elif where in ("td", "th"):
            self.row[-1] += data


def unpacked(value):
    """Return what the page carries with Plotly's encoded arrays decoded."""
    if isinstance(value, dict) and "bdata" in value:
        return np.frombuffer(base64.b64decode(value["bdata"]), value["dtype"])
    if isinstance(value, dict):
        return {name: unpacked(inner) for name, inner in value.items()}
    return [unpacked(inner) for inner in value] if isinstance(value, list) else value


def inflated(reader: Reader, name: str) -> str:
    return gzip.decompress(base64.b64decode(reader.scripts[name])).decode()


def chosen(payload, panel, *key):
    """Return name → trace of a panel's figure; the only one, if no key is said."""
    figures = {
        tuple(name): figure for name, figure in payload["panels"][panel]["figures"]
    }
    figure = figures[key] if key else next(iter(figures.values()))
    return {trace["name"]: trace for trace in figure["data"]}


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
def payload(reader):
    return unpacked(json.loads(inflated(reader, "payload")))


def test_the_page_refers_to_nothing_outside_itself(text, reader):
    loads = {"src", "href", "action", "data", "srcset"}
    for _, attributes in reader.tags:
        for name in loads & attributes.keys():
            assert re.match(r"#|data:,$", attributes[name])
    packed = r'<script type="application/octet-stream".*?</script>'
    visible = re.sub(packed, "", text, flags=re.S)
    assert "://" not in visible
    assert "url(" not in visible
    assert "@import" not in visible


def test_only_the_pages_own_scripts_may_run_and_nothing_may_be_loaded(reader):
    policy = next(a["content"] for t, a in reader.tags if a.get("http-equiv"))
    assert "default-src 'none'" in policy
    assert "connect-src" not in policy
    assert "unsafe-eval" not in policy
    scripts = policy.split("script-src ")[1].split(";")[0].split()
    for source in (reader.scripts["code"], inflated(reader, "library")):
        digest = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in scripts
    assert len(scripts) == 2


def test_one_run_is_a_file_below_3_mb(report_run, tmp_path):
    assert write_page([report_run()], tmp_path / "a.html").stat().st_size < 3e6


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
    links = [
        a["href"][1:] for t, a in reader.tags if t == "a" and a["href"].startswith("#")
    ]
    assert set(links) <= set(ids)
    assert set(page.SECTIONS) - {"app"} <= set(links)  # which an app alone has
    keys = ("aria-labelledby", "aria-describedby")
    referred = " ".join(a.get(key) or "" for _, a in reader.tags for key in keys)
    assert set(referred.split()) <= set(ids)


def test_the_gantt_holds_every_bar_with_its_facts(payload, report_run):
    run = report_run()
    (data,) = payload["timeline"]["runs"]
    bars, parts = data["bars"], data["parts"]
    assert len(bars["part"]) == (~run.spans["track"].str.startswith("link ")).sum()
    on_server = run.spans[run.spans["track"] == "server"]
    assert bars["part"].count(None) == len(on_server)
    by_part = run.participations.set_index(["round", "client"])
    for i in range(0, len(bars["part"]), 7):
        if (part := bars["part"][i]) is None:
            continue
        client = data["tracks"][parts["track"][part]]["client"]
        number = data["rounds"]["number"][bars["round"][i]]
        assert parts["track"][part] == bars["track"][i]
        assert parts["arm"][part] == by_part.loc[(number, client), "arm"]
        assert parts["outcome"][part] == by_part.loc[(number, client), "outcome"]


def test_more_bars_than_a_page_carries_are_sampled_by_rounds_the_longest_among_them(
    report_run,
):
    run = report_run(10, 100)
    sampled = gantt_data.choose_rounds(run, most_bars=1500)
    assert len(sampled) <= 30
    assert run.rounds["duration_s"].idxmax() + 1 in sampled["round"].to_numpy()
    assert {1, 100} <= set(sampled["round"])
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
    assert sorted(bars[key].itertuples(index=False)) == sorted(
        parts[key].itertuples(index=False)
    )
    data = gantt_data.build_gantt_data(run, "a", {})
    assert set(data["bars"]["part"]) - {None} == set(range(len(parts)))
    slices = [e for e in list_events(run) if e["ph"] == "X" and e["name"] == "upload"]
    sent = parts.loc[parts["uplink_s"] > 0, "outcome"]
    assert sorted(e["args"]["outcome"] for e in slices) == sorted(sent)


def test_sliced_link_use_conserves_bytes(report_run, monkeypatch):
    run = report_run()
    monkeypatch.setattr(gantt_data, "MOST_LINK_PIECES", 10)
    (first, _) = gantt_data.build_gantt_data(run, "a", {})["links"]
    assert first["sliced"]
    lasted_s = np.subtract(first["to_s"], first["from_s"])
    moved = np.dot(first["rate"], lasted_s) / 8
    recorded = run.links.loc[run.links["link"] == first["name"], "bytes"].sum()
    assert moved == pytest.approx(recorded, rel=1e-5)


def test_names_are_text_wherever_they_appear(report_run):
    run = report_run(4, 3, name=EVIL, prototypes=(f"{EVIL}p", "<b>bold</b>"))
    text = page.build_page([run, report_run(4, 3)])
    assert EVIL not in text
    assert "&lt;script&gt;alert(1)" in text
    payload = json.loads(inflated(Reader(text), "payload"))
    # plotly reads tags in texts; what selectors choose by and the Gantt's data it never
    # sees
    drawn = [
        figure for spec in payload["panels"].values() for _, figure in spec["figures"]
    ]
    assert "<script>" not in json.dumps(drawn)
    assert "<b>bold" not in json.dumps(drawn)
    assert "&lt;b&gt;bold" in json.dumps(drawn)


def test_several_runs_are_overlaid_and_compared(report_run):
    runs = [report_run(), report_run(10, 20, 1)]
    reader = Reader(page.build_page(runs))
    results = {row[0]: row[1:] for row in reader.tables["Results, side by side"]}
    assert results["result"] == ["synthetic (seed 0)", "synthetic (seed 1)"]
    assert "rounds" not in results  # folded: it is the same in both
    assert ["rounds", "20"] in reader.tables["The same in all"]
    assert len(results["final accuracy, small"]) == 2
    settings = {row[0]: row[1:] for row in reader.tables["Settings that differ"]}
    assert settings == {"key": results["result"], "seed": ["0", "1"]}
    reached = reader.tables["When each accuracy was reached"]
    assert [row[0] for row in reached[1:3]] == results["result"]
    payload = unpacked(json.loads(inflated(reader, "payload")))
    lines = chosen(payload, "learning")
    shown = {name for name, line in lines.items() if line.get("visible", True) is True}
    assert shown == {f"synthetic (seed {seed}), {frames.MEAN}" for seed in (0, 1)}


def test_a_comparison_leads_with_the_time_to_target_and_points(report_run):
    runs = {"a": report_run(), "b": report_run(10, 20, 1)}
    tidy = pd.concat([frames.curves(run, label) for label, run in runs.items()])
    mean = tidy[tidy["prototype"] == frames.MEAN].dropna(subset=["accuracy"])
    last = mean.groupby("run")["accuracy"].last()
    (target, *_) = reach.find_hardest_targets(mean)
    first = reach.list_threshold_rows(mean, [target]).set_index("run")["at_s"]
    table = next(iter(Reader(page.build_page(list(runs.values()))).tables.items()))
    assert table[0] == "Time to target"
    head, *rows = table[1]
    assert head[:2] == ["run", f"time to {100 * target:g} %"]
    assert [row[1] for row in rows] == [format_duration(first[name]) for name in "ab"]
    assert f"{100 * (last['b'] - last['a']):+.1f} points" in rows[1]


def test_a_time_only_run_has_a_page_without_learning(report_run):
    reader = Reader(page.build_page([report_run(6, 4, learns=False)]))
    links = [a.get("href") for t, a in reader.tags if t == "a"]
    assert "#time" in links
    assert "#timeline" in links
    assert "#learning" not in links
    assert "#rewards" not in links


def test_long_curves_are_thinned_and_the_page_says_so(report_run):
    tidy = frames.curves(report_run())
    long = tidy.loc[tidy.index.repeat(500)].reset_index(drop=True)
    panel = build_curves_panel(long, {"kd_loss": "loss"})
    for figure in panel.figures.values():
        assert (
            0.9 * MOST_POINTS
            < sum(len(trace.x) for trace in figure.data)
            <= MOST_POINTS
        )
    assert "evenly spaced" in panel.notes[0]


@pytest.mark.long
def test_a_hundred_clients_and_a_thousand_rounds_fit_6_mb(report_folder, tmp_path):
    from simfed.record import open_run

    runs = [open_run(report_folder(100, 1000))]
    path = write_page(runs, tmp_path / "big.html")
    assert path.stat().st_size < 6e6
    payload = unpacked(json.loads(inflated(Reader(path.read_text()), "payload")))
    for spec in payload["panels"].values():
        marks = 0
        for trace in spec["figures"][0][1]["data"]:
            marks += sum(map(len, trace["z"])) if "z" in trace else len(trace["x"])
        assert marks <= 5_000


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
    assert (data["edges"], data["all"]["edges"]) == (3, 3)
    places = zip(*(bars[k] for k in ("track", "kind", "round", "length")), strict=True)
    drawn = [
        (tracks[t]["name"], data["kinds"][k]["label"], data["rounds"]["number"][n], s)
        for t, k, n, s in places
        if tracks[t]["group"] == "edge servers"
    ]
    spans = build_timeline(run).edges()
    lengths = spans["finished_at_s"] - spans["started_at_s"]
    lengths = [float(f"{length:.7g}") for length in lengths]
    recorded = zip(spans["track"], spans["name"], spans["round"], lengths, strict=True)
    assert sorted(drawn) == sorted(recorded)


def test_a_phase_that_one_run_has_stands_below_its_name():
    worked = dict.fromkeys(("download", "training", "compression", "upload"), 1.0)
    row = {"client": 0, "prototype": "p", "participations": 1, **worked}
    seconds = {"a": pd.DataFrame([row]), "b": pd.DataFrame([{**row, "start": 2.0}])}
    table = build_time_panel(seconds).table
    at = table.header.index("start of a process")
    assert [cells[at] for cells in table.rows] == ["", "2 s"]
