"""The keys `method` and `training`: what is understood, and what is warned of."""

from dataclasses import dataclass
from typing import Annotated

import pytest
import worlds
import yaml

from simfed import InputErrors
from simfed.experiment import Checks, Parts
from simfed.ground import Method
from simfed.ground.registry import registry
from simfed.scenario import Scenario, dump_scenario
from simfed.sim.modes import make_server_mode


@dataclass(frozen=True)
class Tuned(Method):
    """Has options."""

    mu: float = 0.01
    rule: str = "mean"
    bound: Annotated[int, "merges at most"] | None = None


@pytest.fixture(autouse=True)
def _registered(add_part):
    add_part("method", "tuned", Tuned)


def scenario(**changes):
    return worlds.world("tiny", changes)


def test_method_is_a_name_or_a_name_with_options():
    assert scenario(method="tuned").method.made == Tuned()
    made = scenario(method={"kind": "tuned", "mu": 0.5})
    assert made.method.made == Tuned(mu=0.5)
    written = {"kind": "tuned", "mu": 0.5, "rule": "mean", "bound": None}
    plain = made.model_dump(mode="json")
    assert plain["method"] == written
    assert Scenario.model_validate(plain) == made
    assert yaml.safe_load(dump_scenario(made))["method"] == written
    assert scenario().model_dump(mode="json")["method"] == {"kind": "fedavg"}


def test_option_that_may_be_null_keeps_its_explanation():
    field = scenario().method.list_options("tuned").fields["bound"]
    assert (field.description, field.default) == ("merges at most", None)
    with pytest.raises(InputErrors, match="got 'x', expected a whole number"):
        scenario(method={"kind": "tuned", "bound": "x"})


@pytest.mark.parametrize(
    ("method", "training", "steps", "epochs"),
    [
        ("fedkd", {}, 1, None),
        ("fedavg", {}, None, 1),
        ("tuned", {}, None, 1),
        ("fedkd", {"local_epochs": 2}, None, 2),
        ("fedavg", {"local_steps": 5}, 5, None),
        ("fedavg", {"momentum": 0.5}, None, 1),
        ("fedkd", {"local_steps": 2, "momentum": 0.5}, 2, None),
    ],
)
def test_local_work_is_counted_in_steps_or_in_epochs(method, training, steps, epochs):
    counted = scenario(method=method, training=training).training
    assert (counted.local_steps, counted.local_epochs) == (steps, epochs)


def test_section_equals_itself_read_again_after_its_part_was_replaced_for_a_while():
    before = scenario()
    rules = registry("rule")
    rules.add("mean", type("Mine", (rules.get("mean"),), {}), replace=True)
    scenario(aggregation={"rule": "mean"})
    rules.remove("mean")
    assert Scenario.model_validate(before.model_dump(mode="json")) == before


LATE = """
- [fedbuff, {mode: buffered, buffer: 2, concurrency: 1}, {kind: constant, bound: null}]
- - fedbuff
  - {mode: buffered, buffer: 2, concurrency: 1, staleness: {bound: 20}}
  - {kind: constant, bound: 20}
- - fedbuff
  - {mode: deadline, deadline: 1 s, late: merge}
  - {kind: constant, bound: null}
- [fedbuff, {mode: deadline, deadline: 1 s}, null]
- - {kind: fedasync, staleness: hinge}
  - {mode: asynchronous, concurrency: 1}
  - {kind: constant, bound: 16}
- - fedasync
  - {mode: deadline, deadline: 1 s, late: merge}
  - {kind: constant, bound: 16}
- [fedprox, {mode: asynchronous, concurrency: 1}, {kind: constant, bound: null}]
- - fedavg
  - {mode: asynchronous, concurrency: 1}
  - {kind: polynomial, exponent: 0.5, bound: null}
- - fedavg
  - {mode: buffered, buffer: 2, concurrency: 1}
  - {kind: polynomial, exponent: 0.5, bound: null}
"""


@pytest.mark.parametrize(("method", "written", "resolved"), yaml.safe_load(LATE))
def test_late_uploads_are_weighed_by_the_method_or_by_the_mode(
    method, written, resolved
):
    made = scenario(method=method, aggregation=written)
    assert made.model_dump(mode="json")["aggregation"].get("staleness") == resolved
    if resolved and resolved["kind"] == "constant":
        assert make_server_mode(made).weight(3) == 1.0


ALONE = """
- {method: fedavg}
- server: {device: {training: 1 ms, decompression: 1 ms}}
- faults: {restarts: {between: 6 s, lasts: 1 s}}
"""


@pytest.mark.parametrize("changes", yaml.safe_load(ALONE))
def test_each_upload_alone_may_be_weighed_where_others_are_merged_beside(changes):
    """Where shares add up to 1 of a single upload, a weight says nothing."""
    hinge = {"mode": "asynchronous", "concurrency": 1, "staleness": {"kind": "hinge"}}
    written = {"method": "fedprox", "aggregation": hinge, **changes}
    assert scenario(**written).aggregation.staleness.kind == "hinge"


BY_SAMPLES = {"participation": {"clients_per_round": 3, "selection": "by-samples"}}
MOMENTUM = {"training": {"local_steps": 2, "momentum": 0.5}}
MEDIAN = {"aggregation": {"rule": "geometric-median"}}
NO_BETA = {"kind": "fedopt", "optimizer": "adagrad"}
DGC = {"policy": {"kind": "uniform", "strategy": "dgc"}}
TWICE = "dgc(0.9) has a momentum of its own, 0.9, beside training.momentum 0.5"
BOTH = "training.momentum 0.5 at the clients, and method.beta1 0.9 at the"


@pytest.mark.parametrize(
    ("method", "changes", "names"),
    [
        ("fedavg", BY_SAMPLES, ["participation.selection by-samples", "fedavg"]),
        ("fedproto", BY_SAMPLES, ["participation.selection by-samples"]),
        ("fedbuff", BY_SAMPLES, []),
        ("fedavg", MEDIAN | BY_SAMPLES, []),
        ("fedopt", DGC, ["dgc", "method.beta1 0.9"]),
        ("fedavg", MOMENTUM | DGC, [TWICE]),
        ("fedopt", MOMENTUM, [BOTH]),
        (NO_BETA, MOMENTUM, []),
        ({"kind": "fedopt", "beta1": 0.0}, DGC, []),
        ("fedavg", DGC, []),
    ],
)
def test_two_keys_of_one_effect_are_told_in_a_warning(method, changes, names):
    more = {"clients[0].count": 4, "clients[0].link": {}, "method": method}
    plain = {"training": {"local_steps": 1}, **changes}
    told = Checks(Parts(worlds.world("tiny", more, **plain))).warnings()
    assert len(told) == bool(names)
    assert all(name in " ".join(told) for name in names)
