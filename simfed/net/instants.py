"""Instants of a SimPy environment that its own timeouts cannot name.

An event of SimPy is put on the clock by a delay, which is rounded as it is added to
now; it cannot be taken off again, and happens only when the clock comes to it. Here are
events at a given instant (`at`), at the end of the present one (`end_of_instant`), in
the middle of what happens (`ring`), and their release (`cancel`). They reach into
SimPy's own queue, here and nowhere else.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any, cast

import simpy
from simpy.events import NORMAL, Event, EventPriority

__all__ = [
    "AFTER_EVERYTHING_ELSE",
    "Call",
    "Environment",
    "at",
    "cancel",
    "end_of_instant",
    "ring",
]

Call = Callable[[Event], Any]

AFTER_EVERYTHING_ELSE = cast(EventPriority, 2)
"""SimPy orders events of one instant by priority: the network solves once, after all
sends of it."""

_AFTER_THE_NETWORK = cast(EventPriority, 3)

_FEW = 64
"""So many cancelled events may stay on a clock that has fewer than as many others."""


class Environment(simpy.Environment):
    """SimPy's environment with `now` as an attribute.

    It is asked for a dozen times per participation, where SimPy's property is a call.
    Every clock of simfed is one.
    """

    __slots__ = ("_now",)


Environment.now = vars(Environment)["_now"]  # type: ignore[method-assign]


def end_of_instant(env: simpy.Environment, call: Call | None = None) -> Event:
    """Return an event that comes now, after everything else of this instant.

    Args:
        env: the clock.
        call: called with the event when it comes; None: a process waits for it instead.
    """
    event = _make_done_event(env, call)
    env.schedule(event, _AFTER_THE_NETWORK)
    return event


def at(
    env: simpy.Environment,
    at_s: float,
    priority: EventPriority = NORMAL,
    call: Call | None = None,
) -> Event:
    """Return an event at exactly this instant.

    `env.timeout(at_s - now)` may come at another float than `at_s`: the sum now + (at_s
    − now) is rounded.

    Args:
        env: the clock.
        at_s: seconds on its clock; one that is over counts as now.
        priority: the place among the events of one instant, lower ones first.
        call: called with the event when it comes; None: a process waits for it instead.

    >>> env = Environment()
    >>> _ = at(env, 0.1 + 0.2, call=lambda _: print(env.now))
    >>> env.run()
    0.30000000000000004
    """
    event = _make_done_event(env, call)
    heapq.heappush(env._queue, (max(at_s, env.now), priority, next(env._eid), event))
    return event


def ring(event: Event, value: Any = None) -> None:
    """Have an event happen in the middle of what happens now.

    Who waits for it goes on at once, without a turn on the clock.

    Args:
        event: not on the clock, and not happened yet.
        value: what whoever waits for it gets.
    """
    callbacks, event.callbacks = event.callbacks, cast(Any, None)
    event._ok, event._value = True, value
    for call in callbacks:
        call(event)


def cancel(env: simpy.Environment, event: Event | None) -> None:
    """Release an event, which may have been or be yet to come; nobody waits for it.

    SimPy leaves it on its clock until its instant, with all that waited for it: what a
    client that is there for two hours would have done at the end of them, for each of
    its participations of ten seconds. Here those who waited are let go at once and the
    event when half of the clock's are cancelled, so what comes keeps its order and a
    cancellation costs O(log n).

    Args:
        env: the clock on which it stands.
        event: the event; of one that is over, and of None, nothing is done.
    """
    if event is None or event.callbacks is None:
        return
    event.callbacks.clear()
    # the environment's own: kept by it as a weak key elsewhere, they would keep it for
    # ever
    cancelled: set[Event] = vars(env).setdefault("_cancelled", set())
    cancelled.add(event)
    if len(cancelled) > max(_FEW, len(env._queue) / 2):
        env._queue[:] = [entry for entry in env._queue if entry[3] not in cancelled]
        heapq.heapify(env._queue)
        cancelled.clear()


def _make_done_event(env: simpy.Environment, call: Call | None) -> Event:
    """Return an event that needs nobody to succeed it, not on its clock yet."""
    event = Event(env)
    event._ok, event._value = True, None
    if call is not None:
        event.callbacks = [call]
    return event
