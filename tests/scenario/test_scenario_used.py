"""A key is used or refused: no scenario says something that nobody looks at."""

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
    load_scenario,
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
WORLDS = """
star: {}
tree:
  network: {topology: tree, tiers: [{name: edge}]}
  clients[0].link.at: edge
graph:
  network: {topology: graph, edges: [{between: [a, server]}]}
  clients[0].link.at: a
whole models: {method: fedavg}
mixed as they come: {method: fedasync}
in flight: {aggregation: {mode: asynchronous, concurrency: 2}}
not charged: {charge.downlink: false}
tcp: {network.model: tcp}
tree of tcp: {network: {topology: tree, model: tcp, tiers: [{name: edge}]}}
graph of tcp:
  network: {topology: graph, model: tcp, edges: [{between: [a, server]}]}
distils: {safeguard.rollback: {}}
cell: {network.cells: {home: {wifi: {standard: n}}}}
cell at a node:
  network:
    topology: tree
    tiers: [{name: edge}]
    cells: {home: {wifi: {standard: n}, at: edge}}
"""
SPELLED_OUT = """
exact arms: {policy: {kind: uniform, strategy: top-k}}
other steps:
  policy: {kind: ascend, ema: 1/n, initial: ema-from-zero, count_forced: true}
a group's own: {"clients[0].policy": {kind: ucb, window: 9}}
no profile:
  clients[0].device: {training: 50 ms, compression: 10 ms}
  clients[0].link.up: 0.1 Mbps
codecs:
  compression:
    strategies: [{layers: {"conv*": top-k@1%, "*": {qsgd: {levels: 4}}}}, top-k]
    k_choices: [5, 1%]
"""
WORLDS, SPELLED_OUT = yaml.safe_load(WORLDS), yaml.safe_load(SPELLED_OUT)


def load(overrides):
    return load_scenario(yaml.safe_load(STAR), overrides)


def sections(section=Section):
    """Every mapping that a scenario, or a fleet, may hold."""
    for inner in section.__subclasses__():
        if not inner.__name__.startswith("_"):  # what several have in common
            yield inner
        yield from sections(inner)


SCHEMA = build_scenario_schema()
DEFINITIONS = {
    **FleetFile.model_json_schema()["$defs"],
    **SCHEMA["$defs"],
    "Scenario": SCHEMA,
}
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


def list_strange(only, other):
    """Values of another key beside which a key says nothing, and what is then said."""
    if only.values == (None,):
        return [sample(other)], f"beside {only.key}, {{}} says nothing"
    if not only.values:
        return [None], f"without {only.key}, {{}} says nothing"
    kinds = [True, False] if other.get("type") == "boolean" else other.get("enum", ())
    strange = [kind for kind in kinds if kind not in only.values]
    # what a format is asked for is in the next test
    assert strange or only.key == "format"
    return strange, f"{{}} belongs to {only.key}"


@pytest.mark.parametrize(
    "mark",
    [m for m in MARKS if isinstance(m[2], Only) and not m[2].from_the_top],
    ids=label,
)
def test_key_of_another_kind_is_refused_with_the_kind_that_uses_it(mark):
    mapping, name, only = mark
    node = DEFINITIONS[mapping.__name__]
    keys = node["properties"]
    value = {key: sample(keys[key]) for key in (*node.get("required", ()), name)}
    if only.values == (None,):
        value |= {"file": "x", "format": "csv"}
    strange, said = list_strange(only, keys[only.key])
    for kind in strange:
        written = {**value, only.key: kind}
        with pytest.raises(ValidationError) as caught:
            mapping.model_validate(
                {key: each for key, each in written.items() if each is not None}
            )
        assert said.format(name) in str(caught.value)


def test_kinds_of_policies_that_do_not_learn_have_no_reward():
    policies = registry("policy")
    for kind in policies.names():
        options = {"strategy": "top-k"} if kind == "uniform" else {}
        said = ""
        try:
            PolicySpec.model_validate({"kind": kind, "reward": {}, **options})
        except ValidationError as error:
            said = str(error)
        learns = getattr(policies.get(kind), "learns", True)
        assert ("does not use reward" in said) is not learns


def test_what_the_scenario_as_a_whole_decides_is_refused_or_used_everywhere():
    refused, used = set(), set()
    for overrides in WORLDS.values():
        scenario = load(overrides)
        for where, name, only, section in list_scenario_marks(scenario):
            names = [c.__name__ for c in type(section).__mro__]
            mark = next(m for m in names if m in DEFINITIONS), name
            if only.holds(scenario):
                used.add(mark)
                continue
            refused.add(mark)
            path = "".join(
                f"[{step}]" if isinstance(step, int) else f".{step}" for step in where
            )
            node = DEFINITIONS[mark[0]]["properties"][name]
            value = OTHERS.get(name) or sample(node)
            said = rf"\({name} belongs to |says nothing"
            with pytest.raises(InputErrors, match=said):
                load({**overrides, f"{path}.{name}".lstrip("."): value})
    # a group of apps refuses what a scenario's method decides
    assert refused == used
    assert used == {
        (mapping.__name__, name)
        for mapping, name, only in MARKS
        if only.from_the_top and mapping is not FleetGroup
    }


SPELLED_OUT |= WORLDS | {
    kind: {"policy": {"kind": kind}} for kind in registry("policy").names()[1:]
}


@pytest.mark.parametrize("overrides", SPELLED_OUT.values(), ids=SPELLED_OUT)
def test_resolved_scenario_loads_to_the_same_without_what_says_nothing(overrides):
    scenario = load(overrides)
    written = dump_scenario(scenario)
    again = load_scenario(yaml.safe_load(written))
    assert again == scenario
    assert dump_scenario(again) == written


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
    with pytest.raises(InputErrors, match="method fedavg does not use public"):
        load({"method": "fedavg", "dataset.public": 1})


TYPED = """
- [{}, true]
- [{training.schedule: {kind: step, every: 9}}, true]
- [{training.schedule: {every: 50}}, false]
- [{dataset.partition: {kind: iid, alpha: 1}}, false]
- [{aggregation: {deadline: 5 s}}, false]
- [{network.tiers: [{name: edge}]}, false]
"""


@pytest.mark.parametrize(("keys", "right"), yaml.safe_load(TYPED))
def test_editors_refuse_the_same(keys, right):
    from jsonschema import Draft202012Validator

    written = apply_overrides(yaml.safe_load(STAR), keys.items(), Scenario)
    assert Draft202012Validator(SCHEMA).is_valid(written) == right


def test_every_mark_is_one_of_the_two():
    assert NetworkSpec in {mapping for mapping, _, _ in MARKS}
    assert {type(only) for _, _, only in MARKS} == {Only, OnlyWith}
