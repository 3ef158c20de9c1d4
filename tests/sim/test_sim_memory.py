"""Memory of a run hangs on who is in flight, not on how many rounds there have been."""

import gc
import tracemalloc

import pytest
import worlds

from simfed.ground import memo
from simfed.scenario import load_scenario
from simfed.sim import Simulation

ALWAYS = worlds.change(
    worlds.TINY,
    {
        "rounds": 60,
        "evaluation.every": 1000,
        "participation.clients_per_round": 10,
        "clients[0].count": 30,
        "clients[0].device": {"training": "2 s", "compression": "0.3 ms"},
    },
)

FILLED = {"participation.clients_per_round": None}
BY_CHANCE = {"clients[*].availability.markov": {"on": "9 h", "off": "1 h"}}
LEARNING = ("ascend", "exp3", "ucb")
"""Policies that need losses: full runs."""
RARE = {"between": "10 h", "lasts": "2 s"}
FEATURES = {
    "nothing else": {},
    "availability by chance": BY_CHANCE,
    "availability by chance, in flight": {
        **BY_CHANCE,
        **FILLED,
        "aggregation": {"mode": "buffered", "buffer": 10, "concurrency": 24},
    },
    "availability by day": {
        "clients[*].availability.daily": {
            "from": "00:00",
            "to": "23:00",
            "zones": [-1, 0, 1],
        }
    },
    "availability by a trace": {"clients[*].availability.trace": "online.csv"},
    "failures": {
        "clients[*].failure": {"download": 0.05, "training": 0.1, "upload": 0.1}
    },
    "deadlines far away": {"aggregation": {"mode": "deadline", "deadline": "10 h"}},
    "stalls": {"faults.stalls": RARE},
    "freezes": {"faults.freezes": RARE},
    "messages": {"faults.messages": {"lost": 0.05, "doubled": 0.05}},
    "restarts": {"faults.restarts": RARE},
    "traces of links": {
        "clients[*].link.up": {"file": "up.csv", "format": "csv", "end": "loop"}
    },
    "ascend": {"policy": {"kind": "ascend"}},
    "exp3": {"policy": {"kind": "exp3"}},
    "ucb": {"policy": {"kind": "ucb", "window": 20}},
    "fastest": {"participation.selection": "fastest"},
    "asynchronous": {
        **FILLED,
        "aggregation": {"mode": "asynchronous", "concurrency": 20},
    },
}
WARM_ROUNDS = 20
MOST_BYTES_PER_ROUND = 3_000
"""A participation that is never let go is 3,000 bytes, and a round has ten."""


class Probe:
    """Traced bytes and events on the clock at two borders of rounds.

    What is recorded is on disk at both.
    """

    def __init__(self, monkeypatch):
        self.bytes, self.events = {}, {}
        border = Simulation._border

        def probed(simulation, outcome):
            if simulation._round in (WARM_ROUNDS, ALWAYS["rounds"]):
                recorder = simulation._recorder
                most, recorder._rows_in_memory = recorder._rows_in_memory, 0
                recorder.settle()
                recorder._rows_in_memory = most
                gc.collect()
                self.bytes[simulation._round] = tracemalloc.get_traced_memory()[0]
                self.events[simulation._round] = len(simulation._env._queue)
            return border(simulation, outcome)

        monkeypatch.setattr(Simulation, "_border", probed)

    def bytes_per_round(self):
        rounds = ALWAYS["rounds"] - WARM_ROUNDS
        return (self.bytes[ALWAYS["rounds"]] - self.bytes[WARM_ROUNDS]) / rounds


@pytest.mark.long
@pytest.mark.parametrize("feature", FEATURES)
def test_a_round_leaves_nothing_behind_in_memory(tmp_path, monkeypatch, feature):
    lines = [f"{client},0,1000000" for client in range(30)]
    (tmp_path / "online.csv").write_text("client,from_s,to_s\n" + "\n".join(lines))
    (tmp_path / "up.csv").write_text("0,2\n20,0.5\n")
    monkeypatch.chdir(tmp_path)
    scenario, clock = load_scenario(ALWAYS, FEATURES[feature]), feature not in LEARNING
    # what a process loads once, the last round's evaluation too, is of no round
    first = load_scenario(ALWAYS, {**FEATURES[feature], "rounds": 2})
    worlds.play(first, tmp_path / "first", time_only=clock)
    probe = Probe(monkeypatch)
    tracemalloc.start()
    try:
        worlds.play(scenario, tmp_path / "run", time_only=clock)
    finally:
        tracemalloc.stop()
    assert probe.bytes_per_round() < MOST_BYTES_PER_ROUND
    assert probe.events[ALWAYS["rounds"]] < 64 + 3 * 30


@pytest.mark.parametrize(
    "feature",
    [
        "availability by chance",
        "availability by chance, in flight",
        "deadlines far away",
        "restarts",
    ],
)
def test_what_nobody_waits_for_any_longer_is_not_on_the_clock(monkeypatch, feature):
    probe = Probe(monkeypatch)
    scenario = load_scenario(ALWAYS, {**FEATURES[feature], "rounds": WARM_ROUNDS})
    worlds.play(scenario, time_only=True)
    assert probe.events[WARM_ROUNDS] < 64 + 2 * 30


def test_memos_stay_short_where_k_never_comes_twice(monkeypatch):
    """`balance` sets K as it likes; forgetting changes nothing."""
    keys = {
        "rounds": 60,
        "prototypes.a.model": "lenet5",
        "clients[0].count": 6,
        "clients[0].device": {
            "profile": "rtx3090-ryzen4800h",
            "noise": {"kind": "lognormal", "cv": 0.3},
        },
        "clients[0].link.up": "2 Mbps",
        "compression": {"index_code": "fixed", "strategies": ["top-k"]},
        "policy": {"kind": "balance"},
    }

    def play():
        run = worlds.play(worlds.world("tiny", keys), time_only=True)
        assert run.participations["k"].nunique() > 50
        return run.fingerprint

    whole = play()
    monkeypatch.setattr(memo, "MOST", 16)
    lengths, forget = [], memo.Memo.__setitem__

    def noted(self, key, value):
        forget(self, key, value)
        lengths.append(len(self))

    monkeypatch.setattr(memo.Memo, "__setitem__", noted)
    assert play() == whole
    assert len(lengths) > 100
    assert max(lengths) == 16


def test_a_run_that_is_over_is_let_go():
    """Even one in which something was cancelled: environment, model and all."""
    deadline = {"rounds": 3, "aggregation": {"mode": "deadline", "deadline": "9 s"}}
    before = {id(one) for one in find_simulations()}  # of other tests in this process
    worlds.play(load_scenario(ALWAYS, deadline))
    assert {id(one) for one in find_simulations()} <= before


def find_simulations():
    gc.collect()
    return [one for one in gc.get_objects() if type(one) is Simulation]
