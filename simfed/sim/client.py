"""The client's process: a story of yields.

Download, the plan's units of work in their order, compression, upload. What is modelled: the time of
each, on the client's own device and over the shared network, one after another. What is ignored: overlap of phases within a
client, reading of data, and the memory of the device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator
from typing import Any

import simpy

from simfed.device import QUANTITIES, Device, work_size
from simfed.errors import RunFailed
from simfed.method import Work
from simfed.net import Network
from simfed.net.topology import Direction
from simfed.sim.flight import Flight, Unit

__all__ = ["nominal_seconds", "participation"]

Story = Generator[simpy.Event, Any, None]


def participation(
    env: simpy.Environment,
    flight: Flight,
    device: Device,
    network: Network,
    size_of: Callable[[Flight], float],
) -> Story:
    """One client's part in one round, from the server's first byte to its upload's last.

    `size_of(flight)` gives the upload's bytes; it is asked when the upload starts.
    Interrupted (`process.interrupt("dropped")`), it ends where it is: the interrupt's cause is its
    outcome, and what it has spent so far stays spent.
    """
    task = flight.task
    try:
        if task.downlink_bytes > 0:
            begin(env, flight, "download")
            yield from transfer(network, flight, task.downlink_bytes, "down")
        for work in (*task.plan.work, *compressions(flight)):
            kind = work.kind or work.quantity
            begin(env, flight, kind)
            duration_s = seconds_of(work, device, flight, env.now)
            flight.begin_unit(Unit(kind, work.name or kind, duration_s, work.quantity))
            yield env.timeout(duration_s)
        if task.plan.up:
            begin(env, flight, "upload")
            yield from transfer(network, flight, size_of(flight), "up")
    except simpy.Interrupt as cut:
        cut_short(env, flight, str(cut.cause))
    flight.phase = "over"


def transfer(network: Network, flight: Flight, size_bytes: float, direction: Direction) -> Story:
    """Send over the network, and note how long it took and which links limited it."""
    flight.transfer = network.send(flight.client, size_bytes, direction)
    duration_s = yield flight.transfer.done
    if direction == "down":
        flight.downlink_s, flight.downlink_bytes = duration_s, size_bytes
    else:
        flight.uplink_s, flight.uplink_bytes = duration_s, size_bytes
    flight.limited_s[flight.phase] = flight.transfer.limited_s
    flight.transfer = None


def begin(env: simpy.Environment, flight: Flight, phase: str) -> None:
    """The next phase starts now."""
    flight.phase = phase
    flight.phase_started_at_s = env.now


def cut_short(env: simpy.Environment, flight: Flight, outcome: str) -> None:
    """The client is gone in the middle of a phase: count what it spent and moved until now."""
    flight.outcome = outcome
    spent_s = env.now - flight.phase_started_at_s
    if flight.phase not in ("download", "upload"):
        flight.cut_unit(spent_s)
    elif flight.transfer is not None:
        moved_bytes = flight.transfer.cancel()
        if flight.phase == "download":
            flight.downlink_s, flight.downlink_bytes = spent_s, moved_bytes
        else:
            flight.uplink_s, flight.uplink_bytes = spent_s, moved_bytes
        flight.transfer = None


def compressions(flight: Flight) -> Iterator[Work]:
    """The units of selecting and encoding: one per compressed field, by the arm played."""
    task, sent = flight.task, flight.contribution
    for field in task.plan.up.values():
        if field.compressed:
            yield Work("compression", task.model, min(sent.k, field.entries), name=sent.arm)


def seconds_of(work: Work, device: Device, flight: Flight, start_at_s: float) -> float:
    """Seconds of one unit of a client's work that starts now. Its noise is drawn by its quantity,
    and by how many of that quantity came before it."""
    nominal_s = work.times * nominal_seconds(work, device, flight.contribution.arm)
    nth = sum(unit.quantity == work.quantity for unit in flight.units)
    duration_s = device.duration_s(
        nominal_s, start_at_s, round=flight.task.round, phase=work.quantity, nth=nth
    )
    # SimPy accepts a NaN delay without a word and never gets past it
    if not 0 <= duration_s < math.inf:
        raise RunFailed(
            f"client {flight.client}, round {flight.task.round}: the device model gave "
            f"{duration_s!r} seconds for {flight.phase}"
        )
    return duration_s


def nominal_seconds(work: Work, device: Device, arm: str) -> float:
    """Seconds of one of a unit's `times` on the measured device, before speed and noise."""
    strategy = arm if QUANTITIES[work.quantity].per_strategy else ""
    return device.nominal_s(work.quantity, model=work.model, strategy=strategy, **work_size(work))
