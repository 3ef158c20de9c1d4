"""Codecs in scenario files: every way of writing one, and the sentence for each wrong
one.
"""

import pytest

from simfed import InputErrors
from simfed.scenario import Scenario, validate_scenario

PLAIN = {
    "name": "tiny",
    "rounds": 3,
    "dataset": {"name": "mnist-mini"},
    "prototypes": {"small": {"model": "lenet5-half"}},
    "clients": [{"count": 2, "prototype": "small", "device": "d"}],
}


def scenario(**changes):
    return validate_scenario({**PLAIN, **changes}, source="tiny.yaml", folder=".")


def test_a_policy_names_a_codec_in_the_same_words():
    made = scenario(policy={"kind": "uniform", "strategy": {"qsgd": {"levels": 8}}})
    assert made.policy.options == {"strategy": "qsgd(8)"}
    assert list(map(str, made.arms_of_group(made.clients[0]))) == ["qsgd(8)"]


def test_a_strategy_may_be_one_for_each_layer():
    layers = {"conv*": "top-k @ 1 %", "*": {"qsgd": {"levels": 4}}}
    made = scenario(compression={"strategies": [{"layers": layers}]})
    assert made.compression.strategies == ("layers(conv*=top-k@1%,*=qsgd(4))",)
    assert Scenario.model_validate(made.model_dump(mode="json")) == made


def test_a_codec_that_moves_the_weights_wants_a_method_that_does():
    detached = {"kind": "uniform", "strategy": {"detached-ef": {"inner": "top-k"}}}
    for method in ("fedkd", "fedavg"):
        made = scenario(method=method, policy=detached)
        assert made.policy.strategy == "detached-ef(top-k)"
    with pytest.raises(
        InputErrors,
        match=r"compression\.strategies: got "
        r"'detached-ef\(random-k\)', expected a "
        r"codec whose gradient",
    ):
        scenario(
            method="fedprox",
            compression={"strategies": ["detached-ef"]},
            policy={"kind": "ascend"},
        )
    with pytest.raises(InputErrors) as caught:
        scenario(method="fedprox", policy=detached)
    (error,) = str(caught.value).splitlines()
    assert error.startswith(
        "tiny.yaml: policy: got 'detached-ef(top-k)', expected a codec whose gradient "
        "is taken at the weights"
    )
    assert "fedkd and fedavg move them" in error
