"""The key `privacy`: what is read, and what a theorem stands behind."""

from __future__ import annotations

import importlib.util

import pytest
import worlds

from simfed.experiment import Checks, Parts
from simfed.scenario import dump_scenario
from simfed.tasks.privacy import count_epoch_steps, is_amplified

CLIENT = {"level": "client", "clip": 1.0, "noise": 1.1}
SAMPLE = {**CLIENT, "level": "sample"}
ADAPTIVE = {**CLIENT, "clip": {"quantile": 0.5}, "noise": 0.3}
DEVICE = {"training": "1 ms", "private": "2 ms", "compression": "1 ms"}
GROUP = {"count": 20, "prototype": "a", "device": DEVICE}


def parts(privacy=CLIENT, **changes):
    plain = {
        "clients": [GROUP],
        "participation": {"clients_per_round": 5, "selection": "poisson"},
        "privacy": privacy,
    }
    return Parts(worlds.world("tiny", {**plain, **changes}))


def test_adaptive_clip_begins_and_follows_as_in_its_source():
    """Andrew et al. 2021, section 3: C⁰ = 0.1, η = 0.2."""
    clip = parts(ADAPTIVE).scenario.privacy.clip
    assert (clip.start, clip.rate, clip.count_noise) == (0.1, 0.2, None)


def test_privacy_is_written_only_where_it_is():
    assert "privacy" not in dump_scenario(parts(None).scenario)
    assert "quantile: 0.5" in dump_scenario(parts(ADAPTIVE).scenario)


RICE = {"compression": {"index_code": "rice"}}
DEADLINE = {"aggregation": {"mode": "deadline", "deadline": "1 s"}}
RESTARTS = {"faults": {"restarts": {"between": "1 h", "lasts": "1 s"}}}


def selected(kind):
    return {"participation": {"clients_per_round": 5, "selection": kind}}


TIMED = (DEADLINE, selected("fastest"), RESTARTS)


ATTACKED = {"clients": [GROUP, {**GROUP, "count": 2, "attack": "alie"}]}


@pytest.mark.parametrize(
    ("privacy", "changes"),
    [
        (CLIENT, {"method": "fedbuff"}),
        (SAMPLE, {"method": "scaffold"}),
        (SAMPLE, ATTACKED),
        (SAMPLE, {"aggregation": {"rule": "geometric-median"}}),
        (CLIENT, RICE),
        *((CLIENT, changes) for changes in TIMED),
        *((SAMPLE, {**changes, **RICE}) for changes in TIMED),
        ({**CLIENT, "noise": 1e-3}, {}),
    ],
)
def test_what_a_theorem_covers_is_accepted(privacy, changes):
    errors = Checks(parts(privacy, **changes)).errors()
    # one of them: there is no accountant, where none is
    assert [error for error in errors if error.where != "privacy"] == []


MARKOV = {"markov": {"on": "1 h", "off": "1 h"}}


@pytest.mark.parametrize(
    ("changes", "amplified"),
    [
        ({}, True),
        (selected("uniform"), False),
        (DEADLINE, False),
        ({"clients": [{**GROUP, "availability": MARKOV}]}, False),
        (RESTARTS, False),
    ],
)
def test_amplified_is_poisson_synchronous_and_always_there(changes, amplified):
    made = parts(**changes)
    assert is_amplified(made.scenario) == amplified
    said = "not amplified" in " ".join(Checks(made).warnings())
    assert said != amplified


def test_large_delta_is_said():
    assert "delta 0.05" in " ".join(Checks(parts({**CLIENT, "delta": 0.05})).warnings())


def test_without_the_accountant_one_sentence_names_the_extra(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    (error,) = Checks(parts()).errors()
    assert (error.where, error.hint) == ("privacy", 'pip install "simfed[privacy]"')


def test_parts_of_an_epoch():
    assert [count_epoch_steps(n, 32) for n in (1, 32, 33, 600)] == [1, 1, 2, 19]
