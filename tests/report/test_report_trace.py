import gzip
import itertools
import json

import pytest

from simfed.report import list_events, write_trace

pytest_plugins = ["report_runs"]

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


def of(trace: dict, phase: str) -> list[dict]:
    return [event for event in trace["traceEvents"] if event["ph"] == phase]


def ns(microseconds: float) -> int:
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


@pytest.mark.parametrize(
    "kind", ["download", "training", "compression", "upload", "waiting"]
)
def test_slices_are_the_records_spans(trace, report_run, kind):
    spans = report_run().spans.query("kind == @kind")
    slices = [s for s in of(trace, "X") if s["name"] == kind]
    assert len(slices) == len(spans)
    seconds = sum(ns(s["dur"]) for s in slices) / 1e9
    assert seconds == pytest.approx(
        (spans["finished_at_s"] - spans["started_at_s"]).sum(), rel=1e-6
    )


def test_an_upload_says_its_bytes_arm_and_reward(trace, report_run):
    row = report_run().participations.query("round == 3 and client == 4").iloc[0]
    mine = [s for s in of(trace, "X") if s["name"] == "upload" and s["pid"] == 14]
    (told,) = (s["args"] for s in mine if s["args"]["round"] == 3)
    for name in ("uplink_bytes", "arm", "reward"):
        assert told[name] == row[name]


def test_an_arrow_leads_from_every_merged_upload_into_its_merge(trace, report_run):
    run = report_run()
    starts = {e["id"]: e for e in of(trace, "s")}
    ends = {e["id"]: e for e in of(trace, "f")}
    assert starts.keys() == ends.keys()
    assert len(starts) == (run.participations["outcome"] == "aggregated").sum()
    slices = {}
    for s in of(trace, "X"):
        slices.setdefault(s["tid"], []).append(s)

    def enclosing(e):
        return [s for s in slices[e["tid"]] if s["ts"] <= e["ts"] <= s["ts"] + s["dur"]]

    for number, start in starts.items():
        uploads, merges = enclosing(start), enclosing(ends[number])
        assert [s["name"] for s in uploads] == ["upload"]
        assert uploads[0]["args"]["round"] in [m["args"]["round"] for m in merges]
        assert start["ts"] <= ends[number]["ts"]


def test_counters_show_transfers_and_shared_links(trace, report_run):
    run = report_run()
    values = {}
    for e in of(trace, "C"):
        values.setdefault(e["name"], []).append((e["ts"], *e["args"].values()))
    active = [value for _, value in values["active"]]
    assert max(active) <= 10
    assert active[-1] == 0
    shared = {"edge-1 use", "edge-2 use", "edge-1 capacity", "edge-1 active"}
    assert shared <= values.keys()
    assert not any(name.startswith("client-") for name in values)
    capacity = values["edge-1 capacity"][0][1]
    assert max(value for _, value in values["edge-1 use"]) <= capacity * (1 + 1e-9)
    area = sum(
        (b[0] - a[0]) * a[1]
        for a, b in zip(values["edge-1 use"], values["edge-1 use"][1:], strict=False)
    )
    moved = run.links.query("link == 'edge-1'")["bytes"].sum()
    assert area / 8 == pytest.approx(moved, rel=1e-6)  # Mbps × µs = bits


def test_a_part_of_a_run_holds_only_its_rounds(report_run):
    rounds = {
        e["args"]["round"] for e in list_events(report_run(), (4, 6)) if e["ph"] == "X"
    }
    assert rounds == {4, 5, 6}


def test_the_same_run_gives_the_same_bytes(report_run, tmp_path):
    a, b = (
        write_trace(report_run(), tmp_path / name)
        for name in ("a.json.gz", "b.json.gz")
    )
    assert a.read_bytes() == b.read_bytes()
