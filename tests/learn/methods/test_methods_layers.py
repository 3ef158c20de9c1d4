"""Layers that travel by codecs of their own: in whole runs."""

from dataclasses import replace

from simfed.experiment.assembly import Parts
from simfed.experiment.checks import Checks
from simfed.ground.method import Field
from simfed.learn.methods.scaffold import Scaffold
from simfed.scenario import Scenario


class FlatControl(Scaffold):
    """A field that says no layers."""

    def plan(self, setting, who, round):
        plan = super().plan(setting, who, round)
        control = Field("control", who.parameters, compressed=True, feedback=False)
        return replace(plan, up={**plan.up, "control": control})


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


def test_layers_that_do_not_exist_are_one_sentence():
    strategy = {"layers": {"linear.wieght": "qsgd"}}
    made = world("fedprox", policy={"kind": "uniform", "strategy": strategy})
    [error] = {str(error) for error in Checks(Parts(made)).errors()}
    assert "did you mean 'linear.weight'" in error


def test_a_field_without_layers_has_no_codec_for_each(add_part):
    add_part("method", "flat", FlatControl)
    made = world(
        "flat", policy={"kind": "uniform", "strategy": {"layers": {"*": "qsgd"}}}
    )
    [error] = {str(error) for error in Checks(Parts(made)).errors()}
    assert "a field whose layers have names" in error
