import gzip
import itertools
import json

import numpy as np
import pytest

from simfed.report import list_events, write_trace

FIELDS = {
    "M": {"args"},
    "X": {"tid", "ts", "dur", "cat", "args"},
    "C": {"ts", "args"},
    "s": {"tid", "ts", "cat", "id"},
    "f": {"tid", "ts", "cat", "id", "bp"},
}
"""Phase of an event → its fields beside `ph`, `name` and `pid`."""


@pytest.fixture(scope="module")
def trace(report_run, tmp_path_factory):
    path = write_trace(report_run(), tmp_path_factory.mktemp("trace") / "run.json.gz")
    return json.loads(gzip.decompress(path.read_bytes()))


def of(trace, phase):
    return [event for event in trace["traceEvents"] if event["ph"] == phase]


def ns(microseconds):
    """Time stamps are whole nanoseconds."""
    whole = round(microseconds * 1000)
    assert microseconds == whole / 1000
    return whole


def test_events_have_the_fields_of_the_trace_event_format(trace):
    for event in trace["traceEvents"]:
        phase, args = event["ph"], event.get("args", {"": 0})
        of_thread = phase == "M" and event["name"].startswith("thread_")
        fields = FIELDS[phase] | ({"tid"} if of_thread else set())
        assert event.keys() == {"ph", "name", "pid"} | fields
        assert all(event[name] >= 0 for name in ("ts", "dur") if name in event)
        assert args or phase != "C"
        assert {type(value) for value in args.values()} <= {int, float, str, bool}
        assert event.get("bp", "e") == "e"


def test_slices_of_one_lane_never_overlap(trace):
    lanes = {}
    for slice_ in of(trace, "X"):
        lanes.setdefault((slice_["pid"], slice_["tid"]), []).append(slice_)
    assert len({tid for _, tid in lanes}) == len(lanes)
    for slices in lanes.values():
        slices.sort(key=lambda s: (s["ts"], s["dur"]))
        for before, after in itertools.pairwise(slices):
            assert ns(before["ts"]) + ns(before["dur"]) <= ns(after["ts"])


def test_slices_are_the_records_spans(trace, report_run):
    spans = report_run().spans.eval("length_s = finished_at_s - started_at_s")
    for kind in ("download", "training", "compression", "upload", "waiting"):
        recorded = spans.query("kind == @kind")["length_s"]
        slices = [ns(s["dur"]) for s in of(trace, "X") if s["name"] == kind]
        assert len(slices) == len(recorded)
        assert sum(slices) / 1e9 == pytest.approx(recorded.sum(), rel=1e-6)


def test_an_upload_says_its_bytes_arm_and_reward(trace, report_run):
    row = report_run().participations.query("round == 3 and client == 4").iloc[0]
    mine = [s for s in of(trace, "X") if s["name"] == "upload" and s["pid"] == 14]
    (told,) = (s["args"] for s in mine if s["args"]["round"] == 3)
    for name in ("uplink_bytes", "arm", "reward"):
        assert told[name] == row[name]


def test_an_arrow_leads_from_every_merged_upload_into_its_merge(trace, report_run):
    starts, ends = ({e["id"]: e for e in of(trace, phase)} for phase in "sf")
    assert starts.keys() == ends.keys()
    assert len(starts) == (report_run().participations["outcome"] == "aggregated").sum()

    def enclosing(e):
        slices = (s for s in of(trace, "X") if s["tid"] == e["tid"])
        return [s for s in slices if s["ts"] <= e["ts"] <= s["ts"] + s["dur"]]

    for number, start in starts.items():
        (upload,) = enclosing(start)
        assert upload["name"] == "upload"
        merged = {merge["args"]["round"] for merge in enclosing(ends[number])}
        assert upload["args"]["round"] in merged
        assert start["ts"] <= ends[number]["ts"]


def test_counters_show_transfers_and_shared_links(trace, report_run):
    values = {}
    for e in of(trace, "C"):
        values.setdefault(e["name"], []).append((e["ts"], *e["args"].values()))
    active = [value for _, value in values["active"]]
    assert max(active) <= 10
    assert active[-1] == 0
    shared = {f"edge-{i}/up {what}" for i in "01" for what in ("use", "active")}
    assert {*shared, "edge-1/up capacity"} <= values.keys()
    assert not any(name.startswith("client-") for name in values)
    at_us, used = np.transpose(values["edge-1/up use"])
    assert used.max() <= values["edge-1/up capacity"][0][1] * (1 + 1e-9)
    moved = report_run().links.query("link == 'edge-1/up'")["bytes"].sum()
    area = np.diff(at_us) @ used[:-1]  # Mbps × µs = bits
    assert area / 8 == pytest.approx(moved, rel=1e-6)


def test_a_part_of_a_run_holds_only_its_rounds(report_run):
    rounds = {
        e["args"]["round"] for e in list_events(report_run(), (4, 6)) if e["ph"] == "X"
    }
    assert rounds == {4, 5, 6}


def test_the_same_run_gives_the_same_bytes(report_run, tmp_path):
    paths = (write_trace(report_run(), tmp_path / f"{i}.json.gz") for i in "ab")
    assert len({path.read_bytes() for path in paths}) == 1
