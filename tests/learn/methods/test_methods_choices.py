"""Fields that travel by codecs of their own, and layers that do: in whole runs."""

import re
from dataclasses import replace

import pytest
from textbook import played, scenario

from simfed.compress.choice import Choice
from simfed.experiment.assembly import Parts
from simfed.experiment.checks import Checks
from simfed.experiment.running import run
from simfed.ground.method import Field
from simfed.learn.methods.scaffold import Scaffold
from simfed.policy import Policy, Pull
from simfed.scenario import Scenario
from simfed.verify.run import verify

APART = {"fields": {"update": "top-k@10%", "control": "qsgd(4)"}}
BY_LAYER = {"layers": {"*.weight": "random-k@20", "*.bias": "fp16"}}


class FlatControl(Scaffold):
    """A field that says no layers."""

    def plan(self, setting, who, round):
        plan = super().plan(setting, who, round)
        control = Field("control", who.parameters, compressed=True, feedback=False)
        return replace(plan, up={**plan.up, "control": control})


class EachField(Policy):
    """Picks a codec for each of two fields, another pair each time."""

    learns = False
    draws = False

    def __init__(self, arms: tuple[Choice, ...], reward_range=(-1.0, 1.0)):
        first, second = arms[:2]
        pairs = (first, second), (second, first)
        self.arms = tuple(Choice.per_field({"update": u, "control": c}) for u, c in pairs)
        self.plays = 0

    def pull(self, rng):
        self.plays += 1
        return Pull(self.arms[self.plays % 2], "fixed")

    def update(self, pull, reward):
        pass

    def void(self, pull):
        pass

    def values(self):
        return (0.0, 0.0)

    def state(self):
        return {"plays": self.plays}

    def restore(self, state):
        self.plays = state["plays"]


@pytest.fixture(autouse=True)
def registered(add_part):
    """For these tests alone: others play every policy that there is."""
    add_part("policy", "each-field", EachField)


def world(method, **changes):
    plain = {
        "name": "choices",
        "rounds": 4,
        "method": method,
        "dataset": {"name": "mnist-mini"},
        "prototypes": {"a": {"model": "logistic-regression"}},
        "clients": [
            {
                "count": 3,
                "prototype": "a",
                "link": {"up": "1 Mbps"},
                "device": {"assume": {"training": "2 ms", "compression": "3 ms"}},
            }
        ],
        "training": {"local_steps": 2},
        "compression": {"index_code": "fixed", "k": 30},
    }
    return Scenario.model_validate({**plain, **changes})


def test_each_field_travels_by_its_own_codec():
    workload, last = played(scenario("scaffold", arm=APART))
    task = workload.task(4, 0)
    update, control = task.plan.up["update"], task.plan.up["control"]
    tasks, d = workload.tasks, task.parameters
    expected = tasks.field_bytes(task, update, Choice("top-k", round(d / 10)))
    expected += tasks.field_bytes(task, control, Choice("qsgd(4)"))
    assert set(last.uplink_bytes.values()) == {expected}
    assert set(last.arms.values()) == {"fields(update=top-k@10%,control=qsgd(4))"}
    assert set(workload.state()[1]) >= {"residuals/0:update"}


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("scaffold", {"policy": {"kind": "uniform", "strategy": APART}}),
        (
            "scaffold",
            {
                "policy": {"kind": "each-field"},
                "compression": {"index_code": "fixed", "strategies": ["top-k@50", "qsgd"]},
            },
        ),
        ("fedavg", {"policy": {"kind": "uniform", "strategy": BY_LAYER}}),
        ("fedprox", {"policy": {"kind": "uniform", "strategy": BY_LAYER}}),
        (
            "fedprox",
            {
                "policy": {"kind": "ucb", "reward": {"clip": [-9, 9]}},
                "compression": {"index_code": "rice", "strategies": [BY_LAYER, "top-k@9"]},
            },
        ),
    ],
)
def test_runs_hold_and_are_the_same_without_learning_and_replayed(tmp_path, method, changes):
    made = world(method, **changes)
    full = run(made, out=tmp_path / "full", progress=False)
    assert verify(tmp_path / "full") == []
    if changes["policy"]["kind"] == "ucb":
        made = made.model_copy(
            update={"policy": made.policy.model_copy(update={"arms_from": str(tmp_path / "full")})}
        )
    timed = run(made, out=tmp_path / "timed", time_only=True, progress=False)
    columns = ["arm", "k", "uplink_bytes", "started_at_s", "finished_at_s", "compression_s"]
    assert timed.participations[columns].equals(full.participations[columns])


@pytest.mark.parametrize(
    ("method", "strategy", "sentence"),
    [
        (
            "scaffold",
            {"fields": {"contrl": "qsgd"}},
            r"got 'contrl', expected a compressed field of"
            r" the method: update or control \(did you mean 'control'\?\)",
        ),
        ("fedprox", {"layers": {"linear.wieght": "qsgd"}}, "did you mean 'linear.weight'"),
    ],
)
def test_names_that_do_not_exist_are_one_sentence(method, strategy, sentence):
    made = world(method, policy={"kind": "uniform", "strategy": strategy})
    [error] = {str(error) for error in Checks(Parts(made)).errors()}
    assert re.search(sentence, error)


def test_a_field_without_layers_has_no_codec_for_each(add_part):
    add_part("method", "flat", FlatControl)
    made = world("flat", policy={"kind": "uniform", "strategy": {"layers": {"*": "qsgd"}}})
    [error] = {str(error) for error in Checks(Parts(made)).errors()}
    assert "a field whose layers have names" in error
