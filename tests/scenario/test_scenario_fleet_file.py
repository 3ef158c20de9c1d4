"""Fleet files: scenarios without a learning part."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from worlds import FLEET, change

from simfed.ground import parse_yaml
from simfed.scenario import dump_scenario, load_fleet, validate_fleet

SCENARIOS = Path(__file__).resolve().parents[2] / "scenarios"


def made(**changes):
    return validate_fleet(change(FLEET, changes), source="f.yaml", folder=Path("at"))


DECLARED = """
computing: {kind: declared, seconds: {train: 0.1 * num_examples}}
metrics: {accuracy: top1}
server.computing: {kind: measured, speed: 2}
"""


@pytest.mark.parametrize(
    "fleet",
    [
        made(**yaml.safe_load(DECLARED)),
        load_fleet(SCENARIOS / "flower" / "phones.yaml"),
    ],
)
def test_resolved_fleet_loads_to_an_equal_one(fleet):
    plain = parse_yaml(dump_scenario(fleet), where="resolved")
    assert validate_fleet(plain, source="resolved", folder=Path()) == fleet


def test_fleet_may_name_its_app_by_its_folder_alone():
    app = made(app="mine").app
    assert (Path(app.folder), app.run_config) == (Path("at", "mine").resolve(), {})
    assert "app" not in parse_yaml(dump_scenario(made()), where="resolved")


def test_scenario_stands_for_its_fleet():
    changes = {"clients[*].link.up": "5 Mbps"}
    fleet = load_fleet(SCENARIOS / "quickstart.yaml", changes)
    assert fleet.client_count == 10
    assert {group.link.up for group in fleet.clients} == {5e6 / 8}


def test_keys_inside_what_is_written_short_can_be_changed(tmp_path):
    (tmp_path / "fleet.yaml").write_text(
        "{name: a, clients: [{device: x86-2core-vm}], computing: metered, app: mine}"
    )
    changes = yaml.safe_load("""
    app.run_config.times: 3
    clients[*].device.speed: 0.5
    computing.kind: measured
    computing.speed: 2
    """)
    fleet = load_fleet(tmp_path / "fleet.yaml", changes)
    app, [group], computing = fleet.app, fleet.clients, fleet.computing
    assert (Path(app.folder).name, app.run_config) == ("mine", {"times": 3})
    assert (group.device.profile, group.device.speed) == ("x86-2core-vm", 0.5)
    assert (computing.kind, computing.speed) == ("measured", 2)
