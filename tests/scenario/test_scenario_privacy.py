"""The key `privacy`: what is read, and what is refused because no theorem stands behind
it.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from simfed.experiment import Checks, Parts
from simfed.scenario import dump_scenario, validate_scenario
from simfed.tasks.privacy import count_epoch_steps, is_amplified

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
    """(where, got) of every error of the parts that a scenario names."""
    errors = Checks(Parts(scenario(privacy, **changes))).errors()
    # one of them: there is no accountant, where none is
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


RICE = {"compression": {"index_code": "rice"}}
TIMED = (
    {"aggregation": {"mode": "deadline", "deadline": "1 s"}},
    {"participation": {"clients_per_round": 5, "selection": "fastest"}},
    {"faults": {"restarts": RESTARTS}},
)


def attacked(attack):
    group = plain()["clients"][0]
    return {"clients": [group, {**group, "count": 2, "attack": attack}]}


@pytest.mark.parametrize(
    ("privacy", "changes"),
    [
        *((CLIENT, {"method": m}) for m in ("fedavg", "fedprox", "fedopt", "fedbuff")),
        *(
            (SAMPLE, {"method": m})
            for m in ("fedavg", "fedbuff", "scaffold", "fedasync")
        ),
        *(
            (CLIENT, {"participation": {"clients_per_round": 5, "selection": one}})
            for one in ("uniform", "fastest", "all")
        ),
        *((SAMPLE, {"policy": {"kind": policy}}) for policy in ("balance", "bcrs")),
        *((SAMPLE, attacked(attack)) for attack in ("alie", "ipm", "sign-flip")),
        (CLIENT, attacked("sign-flip")),
        (SAMPLE, {"aggregation": {"rule": "geometric-median"}}),
        (CLIENT, RICE),
        *((CLIENT, changes) for changes in TIMED),
        *((SAMPLE, {**changes, **RICE}) for changes in TIMED),
        ({**CLIENT, "noise": 1e-3}, {}),
    ],
)
def test_what_a_theorem_covers_is_accepted(privacy, changes):
    assert refusals(privacy, **changes) == []


def test_amplified_is_poisson_synchronous_and_always_there():
    assert is_amplified(scenario())
    away = {
        **plain()["clients"][0],
        "availability": {"markov": {"on": "1 h", "off": "1 h"}},
    }
    for changes in (
        {"participation": {"clients_per_round": 5}},
        {"aggregation": {"mode": "deadline", "deadline": "1 s"}},
        {"clients": [away]},
        {"faults": {"restarts": RESTARTS}},
    ):
        parts = Parts(scenario(**changes))
        assert not is_amplified(parts.scenario)
        assert any("not amplified" in sentence for sentence in Checks(parts).warnings())
    assert not any(
        "amplified" in sentence for sentence in Checks(Parts(scenario())).warnings()
    )


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
