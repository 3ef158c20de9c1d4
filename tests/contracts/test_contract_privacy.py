"""What goes with privacy is a closed list: every registered part is asked, every key is
looked at, and what declares nothing is refused.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from simfed.ground import REGISTRIES
from simfed.ground.registry import registry
from simfed.scenario import validate_scenario
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
NOT_ASKED = {"model", "dataset", "device"}
LEVELS = ("client", "sample")
GROUP = {"count": 40, "prototype": "a", "device": "x86-2core-vm"}


def scenario(**changes):
    plain = {
        "name": "private",
        "rounds": 2,
        "method": "fedavg",
        "dataset": {"name": "mnist-mini"},
        "prototypes": {"a": {"model": "lenet5-half"}},
        "clients": [GROUP],
        "policy": {"kind": "uniform", "strategy": "top-k"},
        "participation": {"clients_per_round": 30, "selection": "poisson"},
        **changes,
    }
    return validate_scenario(plain, source="test", folder=Path())


def refused(made, level="client"):
    return [(error.where, error.got) for error in find_uncovered(made, level)]


def naming(kind, name):
    """A scenario whose part of a kind is this one."""
    option = {"kind": name, **getattr(registry(kind).get(name), "example", {})}
    battery = {"capacity_j": 1e4, "charge_w": 1.0, "work_w": 1.0}
    return {
        "method": {"method": option},
        "policy": {
            "policy": option if name != "uniform" else {**option, "strategy": "top-k"}
        },
        "codec": {"policy": {"kind": "uniform", "strategy": name}},
        "selection": {"participation": {"clients_per_round": 30, "selection": option}},
        "availability": {
            "clients": [
                {**GROUP, "availability": {**option, **battery, "charges_from": "1:00"}}
            ]
        },
        "rule": {
            "aggregation": {"rule": option},
            "policy": {"kind": "uniform", "strategy": "dense"},
        },
        "attack": {"clients": [{**GROUP, "attack": option}]},
    }[kind]


def test_every_kind_of_part_is_asked_or_said_not_to_matter():
    assert set(REGISTRIES) == set(ASKED) | NOT_ASKED


@pytest.mark.parametrize("kind", ASKED)
def test_every_part_declares_words_that_there_are(kind):
    for name in registry(kind).names():
        assert set(find_coverage(kind, name)) <= set(get_args(Coverage)), name


@pytest.mark.parametrize(
    ("kind", "name"),
    [(kind, name) for kind in ASKED for name in REGISTRIES[kind].names()],
)
def test_a_part_is_refused_where_it_does_not_declare_the_level(kind, name):
    made = scenario(**naming(kind, name))
    assert (kind, name) in [(use.kind, use.got) for use in list_uses(made)]
    for level in LEVELS:
        assert (name in [part for _, part in refused(made, level)]) == (
            level not in find_coverage(kind, name)
        )


@pytest.mark.parametrize("kind", ASKED)
def test_a_declaration_is_not_inherited(kind, add_part):
    name = "poisson" if kind == "selection" else registry(kind).names()[0]
    name = {"policy": "uniform", "method": "fedavg", "rule": "mean"}.get(kind, name)
    mine = type("Mine", (registry(kind).get(name),), {"name": name})
    assert find_coverage(kind, name)
    add_part(kind, name, mine)
    (error,) = find_uncovered(scenario(**naming(kind, name)), "client")
    assert error.got == name
    assert "privacy = " in error.hint
    mine.privacy = ("client",)
    made = scenario(**naming(kind, name))
    assert refused(made) == []
    assert name in [part for _, part in refused(made, "sample")]


MARKOV = {"markov": {"on": "1 h", "off": "1 h"}}


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        (
            {"dataset": {"table": "mine.csv", "target": "y", "missing": "mean"}},
            "dataset.missing",
        ),
        ({"policy": {"arms_from": "runs/learned"}}, "policy.arms_from"),
    ],
)
def test_keys_that_nothing_covers(changes, where, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.csv").write_text("x,y\n1,a\n2,b\n", encoding="utf-8")
    assert where in [place for place, _ in refused(scenario(**changes))]


def test_edge_servers_are_not_covered():
    made = scenario()
    edges = {"at": "edge", "mode": "synchronous", "merges": 2}
    tiers = made.aggregation.model_validate(
        {"mode": "synchronous", "edge_servers": edges}
    )
    places = [
        place for place, _ in refused(made.model_copy(update={"aggregation": tiers}))
    ]
    assert places == ["aggregation.edge_servers"]


@pytest.mark.parametrize(
    ("changes", "keys"),
    [
        (
            {"aggregation": {"mode": "deadline", "deadline": "1 s"}},
            ["aggregation.mode=deadline"],
        ),
        (
            {"clients": [{**GROUP, "availability": MARKOV}]},
            ["clients.availability.markov"],
        ),
        (
            {"faults": {"restarts": {"between": "1 h", "lasts": "1 s"}}},
            ["faults.restarts"],
        ),
        ({"faults": {"stalls": {"between": "1 h", "lasts": "1 s"}}}, ["faults.stalls"]),
        ({"training": {"momentum": 0.9}}, ["training.momentum"]),
    ],
)
def test_a_key_that_is_not_in_the_list_is_refused(changes, keys, monkeypatch):
    """So is a server's mode, an availability or a fault that comes later."""
    made = scenario(**changes)
    assert refused(made) == []
    assert is_decided_by_time(made) == (
        keys[0].split(".")[1][:2] not in ("st", "mo") or "mode" in keys[0]
    )
    for key in keys:
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
        for level, cell in zip(LEVELS, row, strict=True):
            names = [
                n for n in registry(kind).names() if level in find_coverage(kind, n)
            ]
            written = (
                registry(kind).names()
                if cell == " all "
                else re.findall(r"`(.*?)`", cell)
            )
            assert sorted(written) == sorted(names), (kind, level)
