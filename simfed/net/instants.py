"""Instants of a SimPy environment that its own timeouts cannot name."""

from __future__ import annotations

import heapq
from typing import cast

import simpy
from simpy.events import NORMAL, Event, EventPriority

__all__ = ["AFTER_EVERYTHING_ELSE", "at", "end_of_instant"]

AFTER_EVERYTHING_ELSE = cast(EventPriority, 2)
"""SimPy orders events of one instant by priority: the network solves once, after all sends of
it."""

_AFTER_THE_NETWORK = cast(EventPriority, 3)


def end_of_instant(env: simpy.Environment) -> Event:
    """An event that comes now, after everything else that happens at this instant."""
    event = _decided(env)
    env.schedule(event, _AFTER_THE_NETWORK)
    return event


def at(env: simpy.Environment, at_s: float, priority: EventPriority = NORMAL) -> Event:
    """An event at exactly this instant: now + (at_s − now) may be another float than at_s."""
    event = _decided(env)
    heapq.heappush(env._queue, (max(at_s, env.now), priority, next(env._eid), event))
    return event


def _decided(env: simpy.Environment) -> Event:
    event = Event(env)
    event._ok, event._value = True, None
    return event
