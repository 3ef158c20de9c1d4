"""A key is used or refused: no scenario says something that nobody looks at."""

from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from simfed import InputErrors
from simfed.ground import Only
from simfed.ground.registry import registry
from simfed.net.spec import NetworkSpec
from simfed.scenario import (
    FleetFile,
    FleetGroup,
    Scenario,
    apply_overrides,
    build_scenario_schema,
    dump_scenario,
    validate_scenario,
)
from simfed.scenario.policy import PolicySpec
from simfed.schema.section import (
    OnlyWith,
    Section,
    list_marked_keys,
    list_scenario_marks,
)

STAR = """
name: used
rounds: 3
dataset: {name: mnist-mini}
prototypes: {one: {model: lenet5-half}}
clients: [{count: 4, prototype: one, device: d, link: {up: 5 Mbps}}]
"""
WORLDS = {
    "star": {},
    "tree": {
        "network": {"topology": "tree", "tiers": [{"name": "edge"}]},
        "clients[0].link.at": "edge",
    },
    "graph": {
        "network": {"topology": "graph", "edges": [{"between": ["a", "server"]}]},
        "clients[0].link.at": "a",
    },
    "whole models": {"method": "fedavg"},
    "mixed as they come": {"method": "fedasync"},
    "in flight": {"aggregation": {"mode": "asynchronous", "concurrency": 2}},
    "not charged": {"charge.downlink": False},
    "tcp": {"network.model": "tcp"},
    "tree of tcp": {
        "network": {"topology": "tree", "model": "tcp", "tiers": [{"name": "edge"}]}
    },
    "graph of tcp": {
        "network": {
            "topology": "graph",
            "model": "tcp",
            "edges": [{"between": ["a", "server"]}],
        }
    },
    "distils": {"safeguard.rollback": {}},
    "cell": {"network.cells": {"home": {"wifi": {"standard": "n"}}}},
    "cell at a node": {
        "network": {
            "topology": "tree",
            "tiers": [{"name": "edge"}],
            "cells": {"home": {"wifi": {"standard": "n"}, "at": "edge"}},
        }
    },
}


def load(overrides=None):
    data = apply_overrides(yaml.safe_load(STAR), (overrides or {}).items(), Scenario)
    return validate_scenario(data, source="used.yaml", folder=Path())


def sections(section=Section):
    """Every mapping that a scenario, or a fleet, may hold."""
    for inner in section.__subclasses__():
        if not inner.__name__.startswith("_"):  # what several have in common
            yield inner
        yield from sections(inner)


SCHEMA = build_scenario_schema()
DEFINITIONS = {**FleetFile.model_json_schema()["$defs"], **SCHEMA["$defs"]}
MARKS = [
    (mapping, name, only)
    for mapping in sections()
    for name, only in list_marked_keys(mapping)
]


OTHERS = {"rule": "median"}
"""Values in place of samples that say what holds anyway."""


def sample(node):
    """Some value that a key may have, by its JSON Schema."""
    if "$ref" in node:
        part = DEFINITIONS[node["$ref"].rpartition("/")[2]]
        keys = part.get("required", [*part["properties"]][:1])
        return {key: sample(part["properties"][key]) for key in keys}
    for key in ("examples", "enum"):
        if key in node:
            return node[key][-1]
    if "const" in node:
        return node["const"]
    for one in (*node.get("anyOf", ()), *node.get("oneOf", ())):
        if one.get("type") != "null":
            return sample(one)
    if node.get("type") == "array":
        items = node.get("prefixItems") or [node["items"]]
        return [sample(one) for one in items]
    return {"integer": 2, "number": 0.5, "boolean": True, "string": "x", "object": {}}[
        node["type"]
    ]


def label(mark):
    mapping, name, only = mark
    return f"{mapping.__name__}.{name} {type(only).__name__}"


def needed_keys(mapping):
    nodes = DEFINITIONS[mapping.__name__]
    return {key: sample(nodes["properties"][key]) for key in nodes.get("required", ())}


@pytest.mark.parametrize(
    "mark",
    [m for m in MARKS if isinstance(m[2], Only) and not m[2].from_the_top],
    ids=label,
)
def test_a_key_of_another_kind_is_refused_with_the_kind_that_uses_it(mark):
    mapping, name, only = mark
    node = DEFINITIONS[mapping.__name__]["properties"][name]
    other = DEFINITIONS[mapping.__name__]["properties"][only.key]
    kinds = other.get("enum") or (
        [True, False] if other.get("type") == "boolean" else []
    )
    strange = (
        [kind for kind in kinds if kind not in only.values] if only.values else [None]
    )
    without = only.values == (None,)
    if without:
        strange = [sample(other)]
    assert strange or only.key == "format"  # which is asked for in the next test
    for kind in strange:
        value = {**needed_keys(mapping), only.key: kind, name: sample(node)}
        if without:
            value |= {"file": "x", "format": "csv"}
        with pytest.raises(ValidationError) as caught:
            mapping.model_validate(
                {key: each for key, each in value.items() if each is not None}
            )
        said = (
            f"beside {only.key}, {name} says nothing"
            if without
            else f"{name} belongs to {only.key}"
            if only.values
            else f"without {only.key}, {name} says nothing"
        )
        assert said in str(caught.value)


def test_kinds_of_policies_that_do_not_learn_have_no_reward():
    for kind in registry("policy").names():
        options = {"uniform": {"strategy": "top-k"}}.get(kind, {})
        said = str(complaint(PolicySpec, {"kind": kind, "reward": {}, **options}))
        learns = getattr(registry("policy").get(kind), "learns", True)
        assert ("does not use reward" in said) is not learns


def complaint(mapping, value):
    try:
        mapping.model_validate(value)
    except ValidationError as error:
        return error
    return None


def test_what_the_scenario_as_a_whole_decides_is_refused_or_used_everywhere():
    refused, used = set(), set()
    for overrides in WORLDS.values():
        scenario = load(overrides)
        for where, name, only, section in list_scenario_marks(scenario):
            mapping = next(
                c
                for c in type(section).__mro__
                if c.__name__ in DEFINITIONS or c is Scenario
            )
            node = (SCHEMA if mapping is Scenario else DEFINITIONS[mapping.__name__])[
                "properties"
            ][name]
            path = "".join(
                f"[{step}]" if isinstance(step, int) else f".{step}" for step in where
            )
            mark = mapping.__name__, name
            changed = {
                **overrides,
                f"{path}.{name}".lstrip("."): OTHERS.get(name) or sample(node),
            }
            if only.holds(scenario):
                used.add(mark)
                continue
            refused.add(mark)
            with pytest.raises(InputErrors) as caught:
                load(changed)
            assert f"({name} belongs to " in str(caught.value) or "says nothing" in str(
                caught.value
            )
    of_apps = {FleetGroup}  # which refuses what a scenario's method decides
    marks = [mark for mark in MARKS if mark[0] not in of_apps]
    every = {(m.__name__, name) for m, name, only in marks if only.from_the_top}
    assert refused == every == used


def test_what_says_nothing_does_not_stand_in_the_resolved_scenario():
    for overrides in WORLDS.values():
        scenario = load(overrides)
        written = yaml.safe_load(dump_scenario(scenario))
        again = validate_scenario(written, source="resolved.yaml", folder=Path())
        assert again == scenario
        assert dump_scenario(again) == dump_scenario(scenario)


def test_null_takes_back_what_an_extended_file_says():
    base = {
        "method": "fedavg",
        "distillation.steps": 3,
        "dataset.partition": {"kind": "iid", "alpha": 0.3},
    }
    with pytest.raises(InputErrors):
        load(base)
    again = load({**base, "distillation": None, "dataset.partition.alpha": None})
    assert again == load({"method": "fedavg", "dataset.partition.kind": "iid"})


def test_no_public_images_may_be_said_where_there_is_no_use_for_any():
    assert load({"method": "fedavg", "dataset.public": 0}).public_samples == 0
    with pytest.raises(
        InputErrors,
        match=(
            r"used\.yaml: dataset: method fedavg does not use public \(public "
            "belongs to method fedkd, feddf, fedmd, kt-pfl"
        ),
    ):
        load({"method": "fedavg", "dataset.public": 1})


def test_editors_refuse_the_same(tmp_path):
    from jsonschema import Draft202012Validator

    check = Draft202012Validator(SCHEMA)
    right = yaml.safe_load(STAR)
    assert check.is_valid(right)
    for wrong in (
        {"training.schedule": {"every": 50}},
        {"dataset.partition": {"kind": "iid", "alpha": 1}},
        {"aggregation": {"deadline": "5 s"}},
        {"network.tiers": [{"name": "edge"}]},
    ):
        assert not check.is_valid(apply_overrides(right, wrong.items(), Scenario)), (
            wrong
        )
    assert check.is_valid(
        apply_overrides(
            right, [("training.schedule", {"kind": "step", "every": 9})], Scenario
        )
    )


def test_every_mark_is_one_of_the_two():
    assert NetworkSpec in {mapping for mapping, _, _ in MARKS}
    assert {type(only) for _, _, only in MARKS} == {Only, OnlyWith}
