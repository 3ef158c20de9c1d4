"""What goes with privacy is a closed list: every registered part is asked, every key is
looked at, and what declares nothing is refused.
"""

import re
from pathlib import Path
from typing import get_args

import pytest
import worlds

from simfed.ground import REGISTRIES
from simfed.ground.registry import registry
from simfed.tasks.covered import (
    ASKED,
    KEYS,
    Coverage,
    find_coverage,
    find_uncovered,
    list_uses,
)
from simfed.tasks.privacy import is_decided_by_time

PAGE = Path(__file__).parents[2] / "docs/privacy.md"
LEVELS = ("client", "sample")


PLAIN = {
    "clients[0].count": 40,
    "participation": {"clients_per_round": 30, "selection": "poisson"},
}


def scenario(changes=PLAIN):
    """Return one of forty clients with what is different in it."""
    return worlds.world("tiny", {**PLAIN, **changes})


def refused(made, level="client"):
    return [(error.where, error.got) for error in find_uncovered(made, level)]


def naming(kind, name):
    """Return what a scenario whose part of a kind is this one writes."""
    option = {"kind": name, **getattr(registry(kind).get(name), "example", {})}
    if name in ("uniform", "battery"):
        option |= {
            "policy": {"strategy": "top-k"},
            "availability": {"capacity_j": 1e4, "charge_w": 1.0, "work_w": 1.0},
        }.get(kind, {})
    return {
        "method": {"method": option},
        "policy": {"policy": option},
        "codec": {"policy.strategy": name},
        "selection": {"participation.selection": option},
        "availability": {"clients[0].availability": option},
        "rule": {"aggregation.rule": option, "policy.strategy": "dense"},
        "attack": {"clients[0].attack": option},
    }[kind]


def test_every_kind_of_part_is_asked_or_said_not_to_matter():
    assert set(REGISTRIES) == set(ASKED) | {"model", "dataset", "device"}


@pytest.mark.parametrize(
    ("kind", "name"),
    [(kind, name) for kind in ASKED for name in REGISTRIES[kind].names()],
)
def test_a_part_is_refused_where_it_does_not_declare_the_level(kind, name):
    made, declared = scenario(naming(kind, name)), find_coverage(kind, name)
    assert set(declared) <= set(get_args(Coverage))
    assert (kind, name) in [(use.kind, use.got) for use in list_uses(made)]
    for level in LEVELS:
        parts = [part for _, part in refused(made, level)]
        assert (name in parts) == (level not in declared)


@pytest.mark.parametrize("kind", ASKED)
def test_a_declaration_is_not_inherited(kind, add_part):
    name = "poisson" if kind == "selection" else registry(kind).names()[0]
    name = {"policy": "uniform", "method": "fedavg", "rule": "mean"}.get(kind, name)
    mine = type("Mine", (registry(kind).get(name),), {"name": name})
    assert find_coverage(kind, name)
    add_part(kind, name, mine)
    (error,) = find_uncovered(scenario(naming(kind, name)), "client")
    assert error.got == name
    assert "privacy = " in error.hint
    mine.privacy = ("client",)
    made = scenario(naming(kind, name))
    assert refused(made) == []
    assert name in [part for _, part in refused(made, "sample")]


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        (
            {"dataset": {"table": "mine.csv", "target": "y", "missing": "mean"}},
            "dataset.missing",
        ),
        ({"policy": {"arms_from": "runs/learned"}}, "policy.arms_from"),
        (
            {
                "network": {"topology": "tree", "tiers": [{"name": "e", "count": 1}]},
                "aggregation.edge_servers": {"at": "e", "merges": 2},
            },
            "aggregation.edge_servers",
        ),
    ],
)
def test_keys_that_nothing_covers(changes, where, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.csv").write_text("x,y\n1,a\n2,b\n", encoding="utf-8")
    assert where in [place for place, _ in refused(scenario(changes))]


STRIKES = {"between": "1 h", "lasts": "1 s"}


@pytest.mark.parametrize(
    ("changes", "key", "by_time"),
    [
        (
            {"aggregation": {"mode": "deadline", "deadline": "1 s"}},
            "aggregation.mode=deadline",
            True,
        ),
        (
            {"clients[0].availability.markov": {"on": "1 h", "off": "1 h"}},
            "clients.availability.markov",
            True,
        ),
        ({"faults.restarts": STRIKES}, "faults.restarts", True),
        ({"faults.stalls": STRIKES}, "faults.stalls", False),
        ({"training.momentum": 0.9}, "training.momentum", False),
    ],
)
def test_a_key_that_is_not_in_the_list_is_refused(changes, key, by_time, monkeypatch):
    """So is a server's mode, an availability or a fault that comes later."""
    made = scenario(changes)
    assert refused(made) == []
    assert is_decided_by_time(made) == by_time
    monkeypatch.delitem(KEYS, key)
    assert refused(made)


def test_every_key_of_the_list_is_one_of_scenarios():
    page = (PAGE.parent / "scenario.md").read_text(encoding="utf-8")
    written = set(re.findall(r"`([a-z_]+)`", page)) | {"from"}
    assert {key.partition("=")[0].split(".")[-1] for key in KEYS} <= written


def test_the_page_has_the_list():
    page = PAGE.read_text(encoding="utf-8")
    for kind in ASKED:
        row = re.findall(rf"^\| {kind} \|(.*)\|(.*)\|$", page, re.MULTILINE)[0]
        every = registry(kind).names()
        for level, cell in zip(LEVELS, row, strict=True):
            names = {name for name in every if level in find_coverage(kind, name)}
            written = every if cell == " all " else re.findall(r"`(.*?)`", cell)
            assert set(written) == names, (kind, level)
