"""Fields of an upload: their layers, and codecs that ask for them."""

from dataclasses import replace

import pytest
from worlds import world

import simfed
from simfed.ground import Field, Size, Who
from simfed.learn import Scaffold


class FlatControl(Scaffold):
    """A field that says no layers."""

    def plan(self, setting, who, round):
        plan = super().plan(setting, who, round)
        control = Field("control", who.parameters, compressed=True, feedback=False)
        return replace(plan, up={**plan.up, "control": control})


def test_a_field_without_layers_has_no_codec_for_each(add_part):
    add_part("method", "flat", FlatControl)
    made = world(
        "tiny", {"method": "flat", "policy.strategy": {"layers": {"*": "qsgd"}}}
    )
    with pytest.raises(simfed.InputErrors, match="a field whose layers have names"):
        simfed.check(made)


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
