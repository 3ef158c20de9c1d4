"""Scenario files: what they may say, loading, overriding, errors that name the key."""

from simfed.scenario.load import dump_scenario, load_scenario, parse_assignment
from simfed.scenario.model import Scenario

__all__ = ["Scenario", "dump_scenario", "load_scenario", "parse_assignment"]
