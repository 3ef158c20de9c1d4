"""Units of a method's own kind, in the Gantt chart, the trace and the page."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "sim"))

import sim_worlds as sim
from test_sim_methods import MadeUp, device

from simfed.net import Star
from simfed.report import (
    build_gantt_data,
    build_timeline,
    gantt_figure,
    list_events,
    looks,
    order_kinds,
)
from simfed.report.timeline import list_kinds

OWN = ["auxiliary", "digest", "logits"]


def test_work_of_a_methods_own_kind_is_in_timeline_chart_trace_and_page(
    tmp_path, add_part
):
    add_part("method", "made-up", MadeUp)
    group = {"count": 3, "prototype": "small", "device": "rtx3090-ryzen4800h"}
    plain = sim.scenario(rounds=2, clients=[group], method="made-up")
    star = Star(3, up_bytes_per_s=8e3, down_bytes_per_s=6e4)
    devices = [device(1.0 + client) for client in range(3)]
    run = sim.write(
        tmp_path / "run",
        lambda recorder: sim.build(
            plain, star=star, devices=devices, recorder=recorder
        ),
        plain,
    )
    kinds = list_kinds(build_timeline(run).bars)
    assert kinds == ["training", *OWN, "compression", "upload", "waiting"]
    own = looks(OWN)
    legends = gantt_figure(run).legends
    labels = [text.get_text() for row in legends for text in row.get_texts()]
    assert labels[:4] == ["training", *(look.label for look in own.values())]
    slices = [e for e in list_events(run) if e["ph"] == "X" and e["name"] in OWN]
    assert len(slices) == 2 * 3 * len(OWN)
    assert {e["tid"] % 10 for e in slices} == {1}
    kinds = order_kinds([run])
    assert kinds[6:] == OWN
    data = build_gantt_data(run, "a", {}, kinds=kinds)
    drawn = [data["kinds"][kind] for kind in data["bars"]["kind"]]
    for kind in OWN:
        bars = [bar for bar in drawn if bar["legend"] == own[kind].label]
        assert len(bars) == 2 * 3
        assert {bar["colour"] for bar in bars} == {own[kind].web}
