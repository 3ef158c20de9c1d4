"""Scenario files: what they may say, loading, overriding, errors that name the key.

A file becomes a `Scenario` in four steps, each in a module of its own:

1. `load` reads the YAML text, merges what it `extends` beneath it, and writes overrides
   (`--set`) over it: plain mappings until then.
2. `model` says which keys there are, with their defaults; `dataset`, `prototype`,
   `policy`, `privacy`, `aggregation` and `plugins` are its larger sections. Sections of
   the network, of devices and of the fleet stand in the rooms that are built from them.
3. Validation collects every error at once (`simfed.schema.sentences`), and `lines`
   finds the line of the key that each one names.
4. What `Scenario` returns is frozen and complete: no other room has a default of its
   own.

`fleet_file` reads the same world for an app that brings its own learning, `study` the
axes of many runs, and `reference` describes all keys as a JSON Schema. Nothing here
imports PyTorch or SimPy, opens data or starts a run.
"""

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
