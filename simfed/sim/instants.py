"""Instants of a SimPy environment that its own timeouts cannot name."""

from __future__ import annotations

import heapq
from typing import cast

import simpy
from simpy.events import NORMAL, Event, EventPriority

__all__ = ["at", "end_of_instant"]

_AFTER_THE_NETWORK = cast(EventPriority, 3)
"""The network solves with priority 2, after everything else that happens at its instant."""


def end_of_instant(env: simpy.Environment) -> Event:
    """An event that comes now, after everything else that happens at this instant."""
    event = _decided(env)
    env.schedule(event, _AFTER_THE_NETWORK)
    return event


def at(env: simpy.Environment, at_s: float) -> Event:
    """An event at exactly this instant: now + (at_s − now) may be another float than at_s."""
    event = _decided(env)
    heapq.heappush(env._queue, (max(at_s, env.now), NORMAL, next(env._eid), event))
    return event


def _decided(env: simpy.Environment) -> Event:
    event = Event(env)
    event._ok, event._value = True, None
    return event
