"""Scenario files: what they may say, loading, overriding, and errors that name the key."""

from simfed.scenario.model import Scenario

__all__ = ["Scenario"]
