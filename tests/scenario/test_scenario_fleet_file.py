"""Fleet files: scenarios without a learning part."""

from __future__ import annotations

from pathlib import Path

from simfed.ground import parse_yaml
from simfed.scenario import dump_scenario, load_fleet, validate_fleet

ROOT = Path(__file__).resolve().parents[2]
SMALL = {"name": "small", "clients": [{"count": 3, "device": "x86-2core-vm"}]}


def made(**more):
    return validate_fleet({**SMALL, **more}, source="fleet.yaml", folder=Path())


def test_a_resolved_fleet_loads_to_an_equal_one():
    mine = made(
        computing={"kind": "declared", "seconds": {"train": "0.1 * num_examples"}},
        server={"computing": {"kind": "measured", "speed": 2}},
        metrics={"accuracy": "top1"},
    )
    phones = load_fleet(ROOT / "scenarios" / "flower" / "phones.yaml")
    assert phones.client_count == 50
    for fleet in (mine, phones):
        plain = parse_yaml(dump_scenario(fleet), where="resolved")
        assert validate_fleet(plain, source="resolved", folder=Path()) == fleet


def test_a_fleet_may_name_its_app_by_its_folder_alone(tmp_path):
    fleet = validate_fleet(
        {**SMALL, "app": "mine"}, source="fleet.yaml", folder=tmp_path
    )
    assert fleet.app.folder == str(tmp_path / "mine")
    assert fleet.app.run_config == {}
    assert "app" not in parse_yaml(dump_scenario(made()), where="resolved")


def test_a_scenario_stands_for_its_fleet():
    fleet = load_fleet(
        ROOT / "scenarios" / "quickstart.yaml", {"clients[*].link.up": "5 Mbps"}
    )
    assert fleet.client_count == 10
    assert {group.link.up for group in fleet.clients} == {5e6 / 8}


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
    assert (fleet.clients[0].device.profile, fleet.clients[0].device.speed) == (
        "x86-2core-vm",
        0.5,
    )
    assert (fleet.computing.kind, fleet.computing.speed) == ("measured", 2)
