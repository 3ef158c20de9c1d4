"""An answer is what a run with the same settings is: instants, bars, bytes, joules,
curves.
"""

from pathlib import Path

import numpy as np
import pytest
from explored import answer, explore, read_curve
from worlds import TINY

import simfed
from simfed.explore import ExploredWorld
from simfed.explore.settings import apply_setting, complete_setting, list_knobs
from simfed.record import explain_rounds
from simfed.report import build_gantt_data, order_kinds

HOST = {"device": {"profile": "x86-2core-vm"}, "prototype": "a", "count": 3}
DRAWN = {"up": {"lognormal": {"median": "2 Mbps", "cv": 0.5}}, "down": "9 Mbps"}
STAR = {
    **TINY,
    "rounds": 5,
    "clients": [
        {**HOST, "link": {"up": "4 Mbps", "latency": "5 ms"}},
        {**HOST, "link": DRAWN, "failure": {"upload": 0.2}},
    ],
    "network": {"server": {"receive": "10 Mbps", "send": "20 Mbps"}},
    "compression": {"k": 500},
}
PER_MESSAGE = {"per_message": {"uniform": {"low": "5 ms", "high": "60 ms"}}}
TREE = {
    **STAR,
    "clients": [{**HOST, "count": 6, "link": {"up": "4 Mbps", "latency": PER_MESSAGE}}],
    "network": {
        "topology": "tree",
        "tiers": [{"name": "edge", "count": 2, "up": "5 Mbps"}],
        "model": "tcp",
        "server": {"receive": "10 Mbps"},
    },
    "participation": {"clients_per_round": 4},
}
CHOOSES = {
    **STAR,
    "rounds": 6,
    "clients": STAR["clients"][:1],
    "policy": {"kind": "exp3"},
    "evaluation": {"every": 1},
}


def draw_setting(world, rng):
    """Return a setting of some of the world's knobs."""
    knobs = list(list_knobs(world.scenario, policies=world.policies))
    some = rng.choice(len(knobs), size=rng.integers(1, len(knobs)), replace=False)
    setting = {}
    for knob in (knobs[i] for i in some):
        if knob.value is None:
            made = f"{rng.uniform(200, 4000):.4g} ms"
        elif knob.choices:
            made = str(rng.choice(knob.choices))
        elif knob.whole:
            made = int(rng.integers(knob.low, knob.high + 1))
        else:
            made = float(
                f"{knob.low * (knob.high / knob.low) ** rng.uniform(0.2, 0.8):.4g}"
            )
            made = f"{made} {knob.unit}".replace(" ×", "×") if knob.unit else made
        setting[knob.path] = made
    if "aggregation.deadline" in setting:
        setting["aggregation.mode"] = "deadline"
    elif setting.get("aggregation.mode") == "deadline":
        setting["aggregation.deadline"] = "700 ms"
    return setting


def test_a_law_per_message_has_a_slider_that_scales_it():
    path = "clients[0].link.latency.per_message"
    knobs = list_knobs(simfed.load_scenario(TREE))
    assert [knob.unit for knob in knobs if knob.path == path] == ["×"]
    turned = apply_setting(TREE, {path: "2×"}, Path("tree.yaml"))
    assert turned.clients[0].link.latency.per_message.uniform.high == "120.0 ms"


@pytest.mark.parametrize(
    ("mode", "high"),
    [
        ({"mode": "synchronous"}, [6]),
        ({"mode": "first", "over_selection": 0.3}, [5]),
        ({"mode": "buffered", "buffer": 2, "concurrency": 4}, []),
    ],
)
def test_clients_per_round_go_as_far_as_the_mode_lets_them(mode, high):
    scenario = {**STAR, "aggregation": mode, "participation": {"clients_per_round": 3}}
    if not high:
        del scenario["participation"]
    knobs = list_knobs(simfed.load_scenario(scenario))
    found = [k.high for k in knobs if k.path == "participation.clients_per_round"]
    assert found == high


def assert_same(told, run):
    """Hold an answer, to the bit, against a run of as many rounds as it has."""
    rounds = run.rounds.iloc[: len(told["ends_s"])]
    assert told["ends_s"] == rounds["finished_at_s"].tolist()
    assert told["bytes"][0] == sum(rounds["uplink_bytes"])
    assert told["bytes"][1] == sum(rounds["downlink_bytes"])
    if len(rounds) < len(run.rounds) or told["gantt"] is None:
        return
    drawn = build_gantt_data(
        run, run.scenario["name"], explain_rounds(run.table), 20_000, order_kinds([run])
    )
    for table in ("bars", "tracks", "rounds", "links"):
        assert told["gantt"][table] == drawn[table]
    for phase, column in (("upload", "uplink_s"), ("training", "training_s")):
        spent_s = pytest.approx(run.participations[column].sum(), rel=1e-12, abs=1e-9)
        assert told["phases_s"].get(phase, 0.0) == spent_s


def hold(scenario, folder, count, monkeypatch, draw_each):
    """Hold answers to random settings against runs: sums, and all rows that bars are
    made of.

    The bars themselves, which take most of the time, of each `draw_each`-th one.
    """
    world = explore(folder / "scenario.yaml", scenario)
    rng = np.random.default_rng(count)
    for i in range(count):
        setting = draw_setting(world, rng)
        run = simfed.run(world.apply(setting), time_only=True, progress=False)
        with monkeypatch.context() as patched:
            if i % draw_each:
                patched.setattr("simfed.explore.world._build_gantt", lambda *_: None)
            told = answer(world, setting)
        for table in ("rounds", "participations", "spans", "links"):
            assert told["glance"].table(table).equals(run.table(table))
        assert_same(told, run)


@pytest.mark.parametrize("scenario", [STAR, TREE], ids=["star", "tree"])
@pytest.mark.parametrize(
    ("count", "each"), [(8, 1), pytest.param(500, 10, marks=pytest.mark.long)]
)
def test_random_settings_equal_time_only_runs_to_the_bit(
    scenario, count, each, tmp_path, monkeypatch
):
    hold(scenario, tmp_path, count, monkeypatch, draw_each=each)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """The directory of a run whose policies learn."""
    path = tmp_path_factory.mktemp("explore") / "run"
    simfed.run(CHOOSES, path, progress=False, workers=1)
    return path


@pytest.mark.parametrize(
    ("setting", "is_known"),
    [
        ({}, True),
        ({"network.server.send": "10 Mbps"}, True),
        ({"aggregation.mode": "deadline", "aggregation.deadline": "9 s"}, True),
        ({"participation.clients_per_round": 2}, False),
        ({"aggregation.mode": "deadline", "aggregation.deadline": "20 ms"}, False),
    ],
)
def test_what_is_known_is_what_a_real_run_learns(recorded, setting, is_known):
    world = ExploredWorld(recorded)
    told, made = (
        answer(world, setting),
        apply_setting(world.base, setting, world.source),
    )
    run = simfed.run(made, progress=False, workers=1)
    assert_same(told, run)
    unknown = told["unknown"]
    assert (unknown is None) == is_known
    known = [point for point in read_curve(run) if is_known or point[0] < unknown]
    assert told["curve"].get("a", []) == known
    if not is_known:
        assert told["why"].startswith("client ")
        # the clock knows that round, and no later one
        assert len(told["ends_s"]) == unknown


def test_recorded_choices_equal_a_run_of_recorded_arms(recorded):
    setting = {"clients[0].link.up": "1 Mbps"}
    world = ExploredWorld(recorded)
    told = answer(world, setting, anew=False)
    arms = {**complete_setting(world.base, setting), "policy.arms_from": str(recorded)}
    made = apply_setting(world.base, arms, world.source)
    assert told["unknown"] is None
    assert_same(told, simfed.run(made, time_only=True, progress=False))
    assert told["curve"]["a"] == read_curve(simfed.load_run(recorded))
