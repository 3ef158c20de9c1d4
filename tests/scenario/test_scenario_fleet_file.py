"""Fleet files: scenarios without a learning part."""

from __future__ import annotations

from pathlib import Path

import pytest

from simfed.errors import InputErrors
from simfed.reading import parse_yaml
from simfed.scenario.fleet_file import dump_fleet, fleet_of, load_fleet

ROOT = Path(__file__).resolve().parents[2]
SMALL = {"name": "small", "clients": [{"count": 3, "device": "x86-2core-vm"}]}


def made(**more):
    return fleet_of({**SMALL, **more}, source="fleet.yaml", folder=Path())


def test_a_resolved_fleet_loads_to_an_equal_one():
    fleet = made(
        computing={"kind": "declared", "seconds": {"train": "0.1 * num_examples"}},
        server={"computing": {"kind": "measured", "speed": 2}},
        metrics={"accuracy": "top1"},
    )
    plain = parse_yaml(dump_fleet(fleet), where="resolved")
    assert fleet_of(plain, source="resolved", folder=Path()) == fleet


def test_a_scenario_stands_for_its_fleet():
    fleet = load_fleet(ROOT / "scenarios" / "quickstart.yaml", {"clients[*].link.up": "5 Mbps"})
    assert fleet.client_count == 10
    assert {group.link.up for group in fleet.clients} == {5e6 / 8}
    assert fleet.world().client_count == 10


def test_the_example_is_a_fleet():
    assert load_fleet(ROOT / "scenarios" / "flower" / "phones.yaml").client_count == 50


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"rounds": 3}, "one of the keys"),
        ({"computing": "guessed"}, "computing.kind: metered, declared or measured, got 'guessed'"),
        ({"computing": "declared"}, "computing: the key 'seconds' beside kind declared"),
        (
            {"computing": {"kind": "declared", "seconds": "__import__('os')"}},
            "computing.seconds: a duration such as 20 ms, or arithmetic",
        ),
        ({"computing": {"speed": 2}}, "computing: a key of kind metered"),
        ({"server": {"computing": "metered"}}, "server.device: a device beside metered computing"),
        ({"clients": []}, "clients: at least one group of clients"),
        ({"faults": {"restarts": {"between": "1 h", "lasts": "1 s"}}}, "no restarts"),
        (
            {"clients": [{"device": "x86-2core-vm", "k": 10}]},
            "clients[0].k: no k: the app decides what it sends",
        ),
    ],
)
def test_what_is_wrong_is_said(wrong, sentence):
    with pytest.raises(InputErrors) as refused:
        made(**wrong)
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)
