"""The keys `method` and `training`: what is understood, and the one sentence for what
is not.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest

from simfed import InputError, InputErrors, register
from simfed.experiment import Checks, Parts
from simfed.ground import Method
from simfed.ground.registry import registry
from simfed.scenario import Scenario, dump_scenario, validate_scenario
from simfed.sim.modes import make_server_mode


@dataclass(frozen=True)
class Tuned(Method):
    """Has options."""

    mu: float = 0.01
    rule: str = "mean"

    def __post_init__(self):
        if self.mu < 0:
            raise InputError("at least 0", where="mu", got=self.mu)


@pytest.fixture(autouse=True)
def _registered():
    register("method", "tuned", Tuned, replace=True)
    yield
    registry("method").remove("tuned")


def scenario(**changes):
    plain = {
        "name": "n",
        "rounds": 1,
        "dataset": {"name": "mnist-mini"},
        "prototypes": {"p": {"model": "lenet5-half"}},
        "clients": [{"prototype": "p", "device": "d"}],
        **changes,
    }
    return validate_scenario(plain, source="s.yaml", folder=Path("."))


def test_a_method_is_a_name_or_a_name_with_options():
    assert scenario(method="tuned").method.made == Tuned()
    named = scenario(method={"kind": "tuned", "mu": 0.5}).method
    assert (named.kind, named.made) == ("tuned", Tuned(mu=0.5))
    assert scenario().method.kind == "fedkd"


def test_an_option_that_may_be_null_keeps_its_explanation():
    @dataclass(frozen=True)
    class Bounded(Method):
        bound: Annotated[int, "merges at most"] | None = None

    register("method", "bounded", Bounded)
    try:
        field = scenario().method.list_options("bounded").fields["bound"]
        assert (field.description, field.default) == ("merges at most", None)
        with pytest.raises(InputErrors, match="got 'x', expected a whole number"):
            scenario(method={"kind": "bounded", "bound": "x"})
    finally:
        registry("method").remove("bounded")


def test_options_are_written_out_and_read_again():
    import yaml

    made = scenario(method={"kind": "tuned", "mu": 0.5})
    plain = made.model_dump(mode="json")
    assert plain["method"] == {"kind": "tuned", "mu": 0.5, "rule": "mean"}
    assert scenario().model_dump(mode="json")["method"] == {"kind": "fedkd"}
    again = Scenario.model_validate(plain)
    assert again.method.made == made.method.made
    assert again.model_dump(mode="json") == plain
    assert yaml.safe_load(dump_scenario(made, {}, None))["method"] == plain["method"]


@pytest.mark.parametrize(
    ("method", "training", "steps", "epochs"),
    [
        ("fedkd", {}, 1, None),
        ("fedavg", {}, None, 1),
        ("tuned", {}, None, 1),
        ("fedkd", {"local_epochs": 2}, None, 2),
        ("fedavg", {"local_steps": 5}, 5, None),
    ],
)
def test_local_work_is_counted_in_steps_or_in_epochs(method, training, steps, epochs):
    counted = scenario(method=method, training=training).training
    assert (counted.local_steps, counted.local_epochs) == (steps, epochs)


def test_a_section_equals_itself_read_again_after_its_part_was_replaced_for_a_while():
    before = scenario()
    rules = registry("rule")
    rules.add("mean", type("Mine", (rules.get("mean"),), {}), replace=True)
    scenario(aggregation={"rule": "mean"})
    rules.remove("mean")
    assert Scenario.model_validate(before.model_dump(mode="json")) == before


IN_FLIGHT = {"mode": "buffered", "buffer": 2, "concurrency": 1}
BOUNDED = {"kind": "constant", "bound": 20}
ALONE = {"mode": "asynchronous", "concurrency": 1}
LATE = {"mode": "deadline", "deadline": "1 s", "late": "merge"}


@pytest.mark.parametrize(
    ("method", "written", "resolved"),
    [
        ("fedbuff", IN_FLIGHT, {"kind": "constant", "bound": None}),
        ("fedbuff", {**IN_FLIGHT, "staleness": {"bound": 20}}, BOUNDED),
        ("fedbuff", LATE, {"kind": "constant", "bound": None}),
        ("fedbuff", {"mode": "deadline", "deadline": "1 s"}, None),
        (
            {"kind": "fedasync", "staleness": "hinge"},
            ALONE,
            {"kind": "constant", "bound": 16},
        ),
        ("fedasync", LATE, {"kind": "constant", "bound": 16}),
        ("fedprox", ALONE, {"kind": "constant", "bound": None}),
        ("fedavg", ALONE, {"kind": "polynomial", "exponent": 0.5, "bound": None}),
        ("fedavg", IN_FLIGHT, {"kind": "polynomial", "exponent": 0.5, "bound": None}),
    ],
)
def test_late_uploads_are_weighed_by_the_method_or_by_the_mode(
    method, written, resolved
):
    made = scenario(method=method, aggregation=written)
    assert made.model_dump(mode="json")["aggregation"].get("staleness") == resolved
    if resolved and resolved["kind"] == "constant":
        assert make_server_mode(made).weight(3) == 1.0


def test_a_weight_of_each_upload_alone_is_refused_where_shares_add_up_to_1():
    written = {**ALONE, "staleness": {"kind": "hinge"}}
    said = (
        "aggregation.staleness.kind: .*each upload counts in full.* constant with "
        "method fedprox"
    )
    with pytest.raises(InputErrors, match=said):
        scenario(method="fedprox", aggregation=written)
    busy = {"device": {"training": "1 ms", "decompression": "1 ms"}}
    for changes in (
        {"server": busy},
        {"faults": {"restarts": {"between": "6 s", "lasts": "1 s"}}},
    ):
        made = scenario(method="fedprox", aggregation=written, **changes)
        assert made.aggregation.staleness.kind == "hinge"
    assert (
        scenario(method="fedavg", aggregation=written).aggregation.staleness.kind
        == "hinge"
    )


def warned(training=None, **changes):
    device = {"training": "1 ms", "compression": "1 ms"}
    clients = [{"count": 4, "prototype": "p", "device": device, "link": {}}]
    made = scenario(clients=clients, training=training or {"local_steps": 1}, **changes)
    return Checks(Parts(made)).warnings()


BY_SAMPLES = {"participation": {"clients_per_round": 3, "selection": "by-samples"}}
MOMENTUM = {"local_steps": 2, "momentum": 0.5}
NO_BETA = {"kind": "fedopt", "optimizer": "adagrad"}
DGC = {"policy": {"kind": "uniform", "strategy": "dgc"}}


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        (
            {"method": "fedavg", **BY_SAMPLES},
            ["participation.selection by-samples", "fedavg"],
        ),
        ({"method": "fedproto", **BY_SAMPLES}, ["participation.selection by-samples"]),
        ({"method": "fedbuff", **BY_SAMPLES}, []),
        (
            {
                "method": "fedavg",
                "aggregation": {"rule": "geometric-median"},
                **BY_SAMPLES,
            },
            [],
        ),
        ({"method": "fedopt", **DGC}, ["dgc", "method.beta1 0.9"]),
        (
            {"method": "fedavg", "training": MOMENTUM, **DGC},
            ["dgc(0.9) has a momentum of its own, 0.9, beside training.momentum 0.5"],
        ),
        (
            {"method": "fedopt", "training": MOMENTUM},
            ["training.momentum 0.5 at the clients, and method.beta1 0.9 at the"],
        ),
        ({"method": NO_BETA, "training": MOMENTUM}, []),
        ({"method": {"kind": "fedopt", "beta1": 0.0}, **DGC}, []),
        ({"method": "fedavg", **DGC}, []),
    ],
)
def test_two_keys_of_one_effect_are_told_in_a_warning(changes, names):
    told = warned(**changes)
    assert len(told) == bool(names)
    assert all(name in " ".join(told) for name in names)


def test_momentum_of_a_single_local_step_is_refused():
    sentence = (
        r"training\.momentum: got 0.5, expected 0 with local_steps 1, as "
        r"momentum begins"
    )
    for training in ({"momentum": 0.5}, {"momentum": 0.5, "local_steps": 1}):
        with pytest.raises(InputErrors, match=sentence):
            scenario(training=training)
    scenario(training={"momentum": 0.5, "local_steps": 2})
    scenario(method="fedavg", training={"momentum": 0.5})  # an epoch


@pytest.mark.parametrize(
    ("method", "field", "codec"),
    [
        ("scaffold", "control", "dgc"),
        ("scaffold", "control", "ef21"),
        ({"kind": "fedmd", "compress_logits": True}, "logits", "adacomp"),
    ],
)
def test_a_field_without_residuals_takes_no_codec_that_keeps_an_error(
    method, field, codec
):
    """What is left out of Δc_i is in the next one by itself.

    Other logits are of other samples.
    """
    policy = {"kind": "uniform", "strategy": codec}
    public = (
        {"dataset": {"name": "mnist-mini", "public": 8}} if field == "logits" else {}
    )
    device = {"training": "1 ms", "compression": "1 ms"}
    clients = [{"count": 2, "prototype": "p", "device": device}]
    made = scenario(method=method, policy=policy, clients=clients, **public)
    [error] = Checks(Parts(made)).errors()
    assert f"expected a codec that keeps no error of its own for {field}" in str(error)
