"""A field's layers are asked for in one place, whatever a method calls its fields."""

from dataclasses import dataclass, replace

import pytest
import torch
from textbook import data_of, played, scenario

from simfed.compress.choice import Choice
from simfed.ground.method import Field, Size, Who
from simfed.ground.seeding import Streams
from simfed.learn.hosted import HostedWorkload
from simfed.learn.methods.fedprox import FedProx


@dataclass(frozen=True)
class Renamed(FedProx):
    """FedProx whose clients send `moved` in place of `update`."""

    def plan(self, setting, who, round):
        plan = super().plan(setting, who, round)
        up = {
            "moved" if name == "update" else name: field
            for name, field in plan.up.items()
        }
        return replace(plan, up=up)

    def trained(self, kit, who, round, down, own, after):
        values, own = super().trained(kit, who, round, down, own, after)
        return {
            "moved" if name == "update" else name: value
            for name, value in values.items()
        }, own

    def merge(self, kit, server, arrivals, round):
        again = [
            arrival._replace(
                values={
                    "update" if n == "moved" else n: v
                    for n, v in arrival.values.items()
                }
            )
            for arrival in arrivals
        ]
        return super().merge(kit, server, again, round)


@pytest.fixture(autouse=True)
def registered(add_part):
    """For these tests alone: others play every method that there is."""
    add_part("method", "renamed", Renamed)


def test_a_field_of_any_name_that_is_the_model_has_its_layers():
    runs = {}
    for method in ("renamed", "fedprox"):
        workload, last = played(scenario(method, arm="svd(2)"))
        runs[method] = workload.state()[1]["server/a/weights"], last.uplink_bytes
    weights, size = runs["renamed"]
    assert size == runs["fedprox"][1]
    torch.testing.assert_close(torch.tensor(weights), torch.tensor(runs["fedprox"][0]))


@pytest.mark.parametrize(
    ("field", "layers"),
    [
        (Field("update", 6), ((2, 2), (2,))),
        (Field("weights", 6), ((2, 2), (2,))),
        (Field("update", 4), None),
        (Field("control", 6), None),
        (Field("control", 6, layout=((3, 2),)), ((3, 2),)),
    ],
)
def test_layers_of_a_field(field, layers):
    size = Size("any", 6, 0, 2, 1, ((2, 2), (2,)))
    assert field.layout_of(Who(0, "a", size, 10)) == layers


def test_sizes_follow_the_layers_that_a_method_states():
    made = scenario("scaffold", arm="dense")
    workload = HostedWorkload(made, Streams(0), data=data_of(made))
    task = workload.task(1, 0)
    shaped = task.plan.up["control"]
    flat = shaped._replace(layout=None)
    sizes = [
        workload.tasks.field_bytes(task, each, Choice("terngrad"))
        for each in (flat, shaped)
    ]
    assert sizes[1] == sizes[0] + 4.0  # a scale for each of two layers
