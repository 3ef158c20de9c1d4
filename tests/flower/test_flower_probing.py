"""Which plays are made of a made-up app, and what its numbers turn out to be.

Needs no Flower.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from simfed import RunFailed
from simfed.flower import COUNT, SIZE, HostSpent, Visible, WorkCount, fit_kinds
from simfed.flower.forge import PlayOutcome
from simfed.flower.probing import (
    MOST_REPEATS,
    NodeGroup,
    PlayLog,
    Spot,
    list_numbers,
    probe,
)
from simfed.flower.workfile import NOTHING
from simfed.ground import read_arithmetic

CONFIG = {
    "num-server-rounds": 9,
    "max-trees": 8,
    "params.max-depth": 4,
    "batch-size": 32,
    "random-seed": 7,
    "learning-rate": 0.3,
    "test-fraction": 0.2,
    "model": "small",
    "verbose": True,
}


ALIKE = (NodeGroup(1, {}),)


class App:
    """Plays without any process: each message takes what `cost` says of its settings
    and rows.
    """

    def __init__(self, cost, *, factors=lambda: 1.0, refuses=lambda settings: None):
        self.cost = cost
        self.factors = factors
        self.refuses = refuses
        self.jobs = []

    def play(self, job):
        self.jobs.append(job)
        settings, groups = {**CONFIG, **job["overrides"]}, job["groups"]
        if why := self.refuses(settings):
            return PlayOutcome([], why)
        factor, messages = self.factors(), []
        nodes = sum(group["count"] for group in groups)
        for turn in range(settings["num-server-rounds"]):
            for group in groups:
                own = group.get("node_config", {})
                total = own.get("rows", 8000 // nodes)
                rows = int(total * (1 - settings["test-fraction"]))
                visible = Visible("train", {}, {"num-examples": rows}, 0, 0, own)
                work_s = factor * self.cost(settings, rows)
                spent = HostSpent(WorkCount(), 0.0, work_s=work_s)
                messages += [(visible, spent, turn)] * group["count"]
        return PlayOutcome(messages, None)


def trees(settings, rows):
    """Seconds that grow with trees and depth, and shrink with the batch."""
    steps = math.ceil(rows / settings["batch-size"])
    cells = settings["max-trees"] * settings["params.max-depth"]
    return cells * (1e-6 * rows + 2e-5 * steps)


def probed(app, tmp_path, *, groups=ALIKE, overrides=None, nodes=4):
    plays = PlayLog(app, tmp_path, CONFIG, lambda line: None)
    numbers = list_numbers(CONFIG, groups)
    return plays, probe(plays, nodes, overrides or {}, groups, numbers)


def test_what_changes_seconds_is_a_size_whatever_its_name(tmp_path):
    plays, found = probed(App(trees), tmp_path)
    assert found == {
        "num-server-rounds": COUNT,
        "max-trees": SIZE,
        "params.max-depth": SIZE,
        "batch-size": SIZE,
        "random-seed": NOTHING,
        "learning-rate": NOTHING,
        "test-fraction": SIZE,
    }
    assert {spot.nodes for spot in plays.spots} == {4, 8, 16}
    assert {spot.settings["num-server-rounds"] for spot in plays.spots} == {2, 3}
    depths = {spot.settings.get("params.max-depth", 4) for spot in plays.spots}
    assert depths == {1, 4, 8}
    assert set(plays.repeats.values()) == {2}


def test_its_law_holds_at_sizes_that_were_not_played(tmp_path):
    plays, _ = probed(App(trees), tmp_path)
    (law,) = fit_kinds(plays.all_rows())
    # which moves the rows, and so sizes nothing itself
    assert "test_fraction" not in law.names
    price = read_arithmetic(law.seconds)
    for more, rows in (
        ({"max-trees": 12}, 900),
        ({"params.max-depth": 6, "batch-size": 48}, 700),
        ({"max-trees": 5, "params.max-depth": 3, "batch-size": 16}, 1500),
    ):
        settings = {**CONFIG, **more}
        charged_s = price({**settings, "num-examples": rows, "nodes": 5})
        assert charged_s == pytest.approx(trees(settings, rows), rel=0.05)


def test_local_rounds_are_a_size_and_get_the_apps_own_number(tmp_path, monkeypatch):
    monkeypatch.setitem(CONFIG, "local-rounds", 10)
    app = App(lambda settings, rows: 1e-5 * rows * settings["local-rounds"])
    plays, found = probed(app, tmp_path)
    assert found["local-rounds"] == SIZE
    assert {spot.settings["local-rounds"] for spot in plays.spots} == {2, 3, 10}
    assert fit_kinds(plays.all_rows())[0].names == {"num_examples", "local_rounds"}


def test_a_batch_that_tells_nothing_at_twice_is_tried_at_a_quarter(tmp_path):
    app = App(lambda settings, rows: 0.01 if settings["batch-size"] >= 32 else 0.02)
    _, found = probed(app, tmp_path)
    assert found["batch-size"] == SIZE
    assert found["max-trees"] == NOTHING


def test_a_play_is_made_again_while_its_two_least_times_differ(tmp_path):
    quiet, _ = probed(App(trees), tmp_path)
    assert max(quiet.repeats.values()) == 2
    rng = np.random.default_rng(0)
    busy, _ = probed(App(trees, factors=lambda: 1 + 9 * rng.random()), tmp_path)
    assert max(busy.repeats.values()) == MOST_REPEATS
    for number, times in busy.repeats.items():
        for row in busy.rows(number):
            assert (row.work_s, len(row.repeats)) == (min(row.repeats), times)


def test_a_value_that_the_app_refuses_is_tried_on_the_other_side(tmp_path):
    def refuses(settings):
        if settings["max-trees"] > 8 or settings["batch-size"] != 32:
            return "node 0 raised ValueError: out of range"
        return None

    plays, found = probed(App(trees, refuses=refuses), tmp_path)
    assert found["max-trees"] == SIZE
    assert found["batch-size"] == "unknown: node 0 raised ValueError: out of range"
    trees_played = {plays.spots[n].settings.get("max-trees", 8) for n in plays.repeats}
    assert trees_played == {4, 8}


def test_a_first_play_that_fails_ends_it_with_the_nodes_own_exception(tmp_path):
    app = App(trees, refuses=lambda settings: "node 1 raised KeyError: 'rows'")
    with pytest.raises(RunFailed, match="failed: node 1 raised KeyError: 'rows'"):
        probed(app, tmp_path)
    assert len(app.jobs) == 1


def test_unlike_nodes_keep_their_proportions_and_their_number_is_a_size(tmp_path):
    groups = (NodeGroup(1, {"rows": 100, "path": "a"}), NodeGroup(3, {"rows": 400}))
    app = App(lambda settings, rows: 1e-5 * rows)
    plays, found = probed(app, tmp_path, groups=groups)
    assert found["rows"] == SIZE
    assert app.jobs[0]["groups"] == [
        {"count": group.share, "node_config": group.node_config} for group in groups
    ]
    moved = {tuple(g["node_config"]["rows"] for g in job["groups"]) for job in app.jobs}
    assert moved == {(100, 400), (200, 800), (25, 100)}
    (law,) = fit_kinds(plays.all_rows())
    assert law.names <= {"rows", "num_examples"}


@pytest.mark.parametrize("nodes", [3, 5, 40])
def test_every_group_has_a_node_and_all_nodes_are_dealt(nodes):
    groups = (NodeGroup(1, {"a": 1}), NodeGroup(1, {"a": 2}), NodeGroup(500, {"a": 3}))
    dealt = Spot(nodes, {}, groups, "").deal()
    assert sum(group["count"] for group in dealt) == nodes
    assert [group["node_config"]["a"] for group in dealt] == [1, 2, 3]
    assert min(group["count"] for group in dealt) >= 1
