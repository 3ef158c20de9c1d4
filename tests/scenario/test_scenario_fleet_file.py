"""Fleet files: scenarios without a learning part."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from simfed.ground.errors import InputError, InputErrors
from simfed.ground.reading import parse_yaml
from simfed.scenario.fleet_file import dump_fleet, load_fleet, validate_fleet

ROOT = Path(__file__).resolve().parents[2]
SMALL = {"name": "small", "clients": [{"count": 3, "device": "x86-2core-vm"}]}

GROUP = {"count": 3, "prototype": "a", "device": "x86-2core-vm"}


def made(**more):
    return validate_fleet({**SMALL, **more}, source="fleet.yaml", folder=Path())


def test_a_resolved_fleet_loads_to_an_equal_one():
    fleet = made(
        computing={"kind": "declared", "seconds": {"train": "0.1 * num_examples"}},
        server={"computing": {"kind": "measured", "speed": 2}},
        metrics={"accuracy": "top1"},
    )
    plain = parse_yaml(dump_fleet(fleet), where="resolved")
    assert validate_fleet(plain, source="resolved", folder=Path()) == fleet


def test_a_resolved_fleet_is_a_world_again():
    fleet = load_fleet(ROOT / "scenarios" / "flower" / "phones.yaml")
    plain = parse_yaml(dump_fleet(fleet), where="resolved")
    again = validate_fleet(plain, source="resolved", folder=Path())
    assert again.world() == fleet.world()


def test_a_fleet_may_name_its_app_by_its_folder_alone(tmp_path):
    fleet = validate_fleet({**SMALL, "app": "mine"}, source="fleet.yaml", folder=tmp_path)
    assert fleet.app.folder == str(tmp_path / "mine")
    assert fleet.app.run_config == {}
    assert "app" not in parse_yaml(dump_fleet(made()), where="resolved")


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
        ({"rounds": 3}, "there is no key"),
        (
            {"computing": "guessed"},
            "computing.kind: got 'guessed', expected metered, work, declared or measured",
        ),
        ({"computing": "declared"}, "computing: the key 'seconds' is missing beside kind declared"),
        (
            {"computing": {"kind": "declared", "seconds": "__import__('os')"}},
            "computing.seconds: got \"__import__('os')\", expected a duration such as "
            "20 ms, or arithmetic",
        ),
        (
            {"computing": {"kind": "declared", "seconds": {"train": -1}}},
            "computing.seconds.train: got -1, expected at least 0 seconds",
        ),
        (
            {"computing": {"kind": "declared", "seconds": math.nan}},
            "computing.seconds: got nan, expected a finite number",
        ),
        (
            {"computing": {"speed": 2}},
            ("computing: kind metered has no key 'speed' (speed belongs to kind measured)"),
        ),
        (
            {"server": {"computing": "metered"}},
            "server.device: expected a device beside metered computing",
        ),
        (
            {"app": {"folder": "x", "run_config": {"a": [1]}}},
            "app.run_config.a: got [1], expected a text, a number, true or false",
        ),
        ({"clients": []}, "clients: got [], expected at least one group of clients"),
        ({"faults": {"restarts": {"between": "1 h", "lasts": "1 s"}}}, "no restarts"),
        (
            {"clients": [{"device": "x86-2core-vm", "k": 10}]},
            "clients[0].k: no k in a fleet for an app, which decides what it sends",
        ),
    ],
)
def test_what_is_wrong_is_said(wrong, sentence):
    with pytest.raises(InputErrors) as refused:
        made(**wrong)
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("asked", "where"),
    [
        ({"privacy": {"level": "client", "clip": 1.0, "noise": 1.0, "delta": 1e-5}}, "privacy"),
        (
            {
                "network": {"topology": "tree", "tiers": [{"name": "edge", "count": 2}]},
                "aggregation": {"edge_servers": {"at": "edge"}},
            },
            "aggregation.edge_servers",
        ),
        ({"clients": [{**GROUP, "attack": "sign-flip"}]}, "clients[0].attack"),
        ({"clients": [{**GROUP, "overlap": {"chunks": 4}}]}, "clients[0].overlap"),
    ],
)
def test_what_a_scenario_asks_of_servers_and_clients_that_an_app_decides_is_refused(asked, where):
    dense = {"strategy": "dense", "kind": "uniform"}
    plain = {"name": "whole", "rounds": 1, "method": "fedavg", "dataset": {"name": "mnist-mini"}}
    plain |= {"prototypes": {"a": {"model": "lenet5-half"}}, "clients": [GROUP], "policy": dense}
    plain |= {"compression": {"strategies": ["dense"]}}
    assert validate_fleet(plain, source="whole.yaml", folder=Path()).client_count == 3
    with pytest.raises((InputError, InputErrors)) as refused:
        validate_fleet({**plain, **asked}, source="whole.yaml", folder=Path())
    assert f"whole.yaml: {where}: no " in str(refused.value)


def test_keys_inside_what_is_written_short_can_be_changed(tmp_path):
    (tmp_path / "fleet.yaml").write_text(
        "{name: a, clients: [{device: x86-2core-vm}], computing: metered, app: mine}"
    )
    changes = {
        "app.run_config.times": 3,
        "clients[*].device.speed": 0.5,
        "computing.kind": "measured",
        "computing.speed": 2,
    }
    fleet = load_fleet(tmp_path / "fleet.yaml", changes)
    assert (Path(fleet.app.folder).name, fleet.app.run_config) == ("mine", {"times": 3})
    assert (fleet.clients[0].device.profile, fleet.clients[0].device.speed) == ("x86-2core-vm", 0.5)
    assert (fleet.computing.kind, fleet.computing.speed) == ("measured", 2)
