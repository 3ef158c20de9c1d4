"""The key `privacy`: what is read, and what is refused because no theorem stands behind it."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path

import pytest

from simfed.experiment.assembly import Parts
from simfed.experiment.checks import Checks
from simfed.fleet.privacy import count_epoch_steps, is_amplified
from simfed.ground.errors import InputErrors
from simfed.scenario import dump_scenario
from simfed.scenario.load import validate_scenario

CLIENT = {"level": "client", "clip": 1.0, "noise": 1.1}
SAMPLE = {"level": "sample", "clip": 1.0, "noise": 1.1}
RESTARTS = {"between": "1 h", "lasts": "1 s"}
DEVICE = {"training": "1 ms", "private": "2 ms", "compression": "1 ms"}


def plain(privacy=CLIENT, **changes):
    return {
        "name": "private",
        "rounds": 5,
        "method": "fedavg",
        "dataset": {"name": "mnist-mini"},
        "prototypes": {"a": {"model": "lenet5-half"}},
        "clients": [{"count": 20, "prototype": "a", "device": DEVICE}],
        "policy": {"kind": "uniform", "strategy": "top-k"},
        "participation": {"clients_per_round": 5, "selection": "poisson"},
        "privacy": privacy,
        **changes,
    }


def scenario(privacy=CLIENT, **changes):
    return validate_scenario(plain(privacy, **changes), source="test", folder=Path())


def refusals(privacy=CLIENT, **changes):
    """(where, got) of every error, of the file and of the parts that it names."""
    try:
        made = scenario(privacy, **changes)
    except InputErrors as found:
        return [
            (error.where.partition(": ")[2] or error.where, error.got) for error in found.errors
        ]
    errors = Checks(Parts(made)).errors()  # one of them: there is no accountant, where none is
    return [(error.where, error.got) for error in errors if error.where != "privacy"]


def test_an_adaptive_clip_begins_and_follows_as_in_its_source():
    """Andrew et al. 2021, section 3: C⁰ = 0.1, η = 0.2."""
    clip = scenario({**CLIENT, "clip": {"quantile": 0.5}, "noise": 0.3}).privacy.clip
    assert (clip.start, clip.rate, clip.count_noise) == (0.1, 0.2, None)


def test_it_is_written_only_where_it_is():
    assert "privacy" not in dump_scenario(scenario(None))
    again = dump_scenario(scenario({**CLIENT, "clip": {"quantile": 0.5}, "noise": 0.3}))
    assert "quantile: 0.5" in again
    assert "privacy" in again


@pytest.mark.parametrize(
    ("privacy", "where"),
    [
        ({"level": "client", "clip": 1.0}, "privacy"),
        ({**CLIENT, "target": {"epsilon": 8}}, "privacy"),
        ({"level": "client", "clip": 1, "target": {"epsilon": 8}, "delta": 1e-6}, "privacy.delta"),
        ({**CLIENT, "clip": {"quantile": 0.5, "count_noise": 1e-9}}, "privacy.clip.count_noise"),
        ({**SAMPLE, "clip": {"quantile": 0.5}}, "privacy.clip"),
        ({**CLIENT, "clip": {"quantile": 0.5}}, "privacy.noise"),  # twice a twentieth of 5
    ],
)
def test_slips_of_its_own(privacy, where):
    assert [place for place, _ in refusals(privacy)] == [where]


@pytest.mark.parametrize(
    ("key", "values", "allowed"),
    [
        ("noise", (0, 1e-300, 9e-4, 1.1e4, 1e300, math.inf), "a number from 0.001 to 10000"),
        ("delta", (0, 1.0, 2, -1), "a number above 0 and below 1"),
    ],
)
def test_numbers_with_which_no_epsilon_is_counted(key, values, allowed):
    for value in values:
        with pytest.raises(InputErrors) as raised:
            scenario({**CLIENT, key: value})
        (error,) = raised.value.errors
        assert error.where.endswith(f"privacy.{key}")
        assert error.allowed == allowed
    assert scenario({**CLIENT, "noise": 1e-3}).privacy.noise == 1e-3


@pytest.mark.parametrize("privacy", [CLIENT, SAMPLE])
@pytest.mark.parametrize("method", ["fedkd", "feddf", "fedproto", "fedmd", "local-only"])
def test_methods_that_send_more_than_clipped_changes(method, privacy):
    assert ("method", method) in refusals(privacy, method=method)


def test_methods_of_either_level():
    for method in ("fedavg", "fedprox", "fedopt", "fedbuff"):
        assert refusals(method=method) == refusals(SAMPLE, method=method) == []
    for method in ("scaffold", "fedasync"):
        assert refusals(method=method) == [("method", method)]
        assert refusals(SAMPLE, method=method) == []


def test_what_leaves_a_client_outside_the_clip():
    learns = {"kind": "ascend", "warmup": 1}
    assert refusals(policy=learns) == [("policy", "ascend")]
    recorded = {"arms_from": "runs/learned"}
    assert refusals(policy=recorded)[0][0] == "policy.arms_from"
    asked = {"clients_per_round": 5}
    for selection in ("oort", "by-samples"):
        got = refusals(participation={**asked, "selection": selection})
        assert got == [("participation.selection", selection)]
    for selection in ("uniform", "fastest", "all"):
        assert refusals(participation={**asked, "selection": selection}) == []
    statistics = {"prototypes": {"a": {"model": "resnet18"}}}
    for privacy in (CLIENT, SAMPLE):
        assert refusals(privacy, **statistics) == [("prototypes.a.model", "resnet18")]


@pytest.mark.parametrize("policy", ["balance", "bcrs"])
def test_policies_that_are_told_how_long_others_were_waited_for(policy):
    """Where a sample is private, what clients send is made of noisy steps, whatever its K."""
    assert refusals(policy={"kind": policy}) == [("policy", policy)]
    assert refusals(SAMPLE, policy={"kind": policy}) == []


@pytest.mark.parametrize("attack", ["alie", "ipm", "sign-flip"])
def test_attackers_that_send_the_data_of_each_other(attack):
    clients = [*plain()["clients"], {**plain()["clients"][0], "count": 2, "attack": attack}]
    alone = attack == "sign-flip"
    assert refusals(clients=clients) == ([] if alone else [("clients[1].attack", attack)])
    assert refusals(SAMPLE, clients=clients) == []


def test_rules_that_look_into_the_sum():
    assert refusals(aggregation={"rule": "geometric-median"}) == [
        ("aggregation.rule", "geometric-median")
    ]
    assert refusals(SAMPLE, aggregation={"rule": "geometric-median"}) == []


def test_sizes_that_hang_on_data_where_time_decides_who_is_merged():
    rice = {"compression": {"index_code": "rice"}}
    assert refusals(**rice) == []
    for changes in (
        {"aggregation": {"mode": "deadline", "deadline": "1 s"}},
        {"participation": {"clients_per_round": 5, "selection": "fastest"}},
        {"faults": {"restarts": RESTARTS}},
    ):
        assert [where for where, _ in refusals(**changes, **rice)] == ["compression"]
        assert refusals(**changes) == []


def test_amplified_is_poisson_synchronous_and_always_there():
    assert is_amplified(scenario())
    away = {**plain()["clients"][0], "availability": {"markov": {"on": "1 h", "off": "1 h"}}}
    for changes in (
        {"participation": {"clients_per_round": 5}},
        {"aggregation": {"mode": "deadline", "deadline": "1 s"}},
        {"clients": [away]},
        {"faults": {"restarts": RESTARTS}},
    ):
        parts = Parts(scenario(**changes))
        assert not is_amplified(parts.scenario)
        assert any("not amplified" in sentence for sentence in Checks(parts).warnings())
    assert not any("amplified" in sentence for sentence in Checks(Parts(scenario())).warnings())


def test_a_profile_without_private_steps_is_to_be_measured_not_made_free():
    device = {"profile": "x86-2core-vm"}
    clients = [{**plain()["clients"][0], "device": device}]
    errors = Checks(Parts(scenario(SAMPLE, clients=clients))).errors()
    (error,) = [e for e in errors if e.where.endswith("x86-2core-vm: private")]
    assert "calibrate measure --only private" in error.hint
    assert "0 s" not in error.hint
    clients[0]["device"] = {**device, "private": "2 ms"}
    assert refusals(SAMPLE, clients=clients) == []


def test_a_large_delta_is_said():
    warnings = Checks(Parts(scenario({**CLIENT, "delta": 0.05}))).warnings()
    assert any("delta 0.05" in sentence for sentence in warnings)


def test_without_the_accountant_one_sentence_names_the_extra(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    (error,) = Checks(Parts(scenario())).errors()
    assert error.where == "privacy"
    assert error.hint == 'pip install "simfed[privacy]"'


def test_parts_of_an_epoch():
    assert [count_epoch_steps(n, 32) for n in (1, 32, 33, 600)] == [1, 1, 2, 19]
