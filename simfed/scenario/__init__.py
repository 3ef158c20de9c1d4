"""Scenario files: what they may say, loading, overriding, errors that name the key."""

from __future__ import annotations

from simfed.ground.lazy import load_names
from simfed.scenario.load import dump_scenario, load_scenario, parse_assignment
from simfed.scenario.model import Scenario

__all__ = ["Scenario", "dump_scenario", "load_scenario", "parse_assignment"]

_HOMES = {
    "APP": "fleet_file",
    "Computing": "fleet_file",
    "DatasetSpec": "dataset",
    "FleetFile": "fleet_file",
    "FleetGroup": "fleet_file",
    "PluginSpec": "plugins",
    "Training": "model",
    "add_line": "lines",
    "apply_overrides": "load",
    "build_scenario_schema": "reference",
    "load_fleet": "fleet_file",
    "split_key_path": "load",
    "validate_fleet": "fleet_file",
    "validate_scenario": "load",
}

__getattr__ = load_names(__name__, _HOMES)
