"""Units of a method's own kind, in the Gantt chart, the trace and the page."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "sim"))

import sim_worlds as sim
from test_sim_methods import MadeUp, device

from simfed import register
from simfed.ground.registry import registry
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


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    register("method", "made-up", MadeUp, replace=True)
    group = {"count": 3, "prototype": "small", "device": "rtx3090-ryzen4800h"}
    plain = sim.scenario(rounds=2, clients=[group], method="made-up")
    star = Star(3, up_bytes_per_s=8e3, down_bytes_per_s=6e4)
    devices = [device(1.0 + client) for client in range(3)]
    path = tmp_path_factory.mktemp("work") / "run"
    yield sim.write(
        path,
        lambda recorder: sim.build(
            plain, star=star, devices=devices, recorder=recorder
        ),
        plain,
    )
    registry("method").remove("made-up")


def test_the_timeline_holds_them_beside_training(run):
    kinds = list_kinds(build_timeline(run).bars)
    assert kinds == ["training", *OWN, "compression", "upload", "waiting"]


def test_the_chart_has_a_legend_entry_and_a_colour_for_each(run):
    figure = gantt_figure(run)
    labels = [text.get_text() for row in figure.legends for text in row.get_texts()]
    assert labels[:4] == ["training", *(look.label for look in looks(OWN).values())]


def test_the_trace_shows_them_as_work_of_the_client(run):
    slices = [e for e in list_events(run) if e["ph"] == "X" and e["name"] in OWN]
    assert len(slices) == 2 * 3 * len(OWN)
    assert {e["tid"] % 10 for e in slices} == {1}


def test_the_page_draws_each_bar_by_its_own_kind(run):
    kinds = order_kinds([run])
    assert kinds[6:] == OWN
    data = build_gantt_data(run, "a", {}, kinds=kinds)
    drawn = [data["kinds"][kind] for kind in data["bars"]["kind"]]
    own = looks(OWN)
    for kind in OWN:
        bars = [bar for bar in drawn if bar["legend"] == own[kind].label]
        assert len(bars) == 2 * 3
        assert {bar["colour"] for bar in bars} == {own[kind].web}
