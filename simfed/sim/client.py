"""The client's process: a story of yields.

Download, the plan's units of work in their order, compression, upload. What is modelled: the time
of each, on the client's own device and over the shared network, one after another. What is ignored:
overlap of phases within a client, reading of data, and the memory of the device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator
from typing import Any

import simpy

from simfed.device import QUANTITIES, Device, work_size
from simfed.errors import InputError, RunFailed
from simfed.levels import split_arm
from simfed.method import Work
from simfed.net import Network
from simfed.net.instants import at
from simfed.sim.flight import Flight, Unit

__all__ = ["CUT", "nominal_seconds", "participation"]

Story = Generator[simpy.Event, Any, None]

CUT = "cut"
"""Why a client is interrupted whom the server waits for no longer: it is dropped, but it is
there."""


def participation(
    env: simpy.Environment,
    flight: Flight,
    device: Device,
    network: Network,
    size_of: Callable[[Flight], float],
    landed: Callable[[Flight], None],
    *,
    fails: Callable[[Flight, str], bool] | None = None,
    numbers: Iterator[int],
) -> Story:
    """One client's part, from the server's first byte to its upload's last; from where `flight`
    stands.

    `size_of(flight)` gives the upload's bytes; it is asked when the upload starts. `landed(flight)`
    is called when it is over. `fails(flight, phase)` is asked at the end of each phase: then
    nothing of it arrives. `numbers` counts beginnings.
    Interrupted (`process.interrupt("dropped")`), it ends where it is: the interrupt's cause is its
    outcome, and what it has spent so far stays spent.
    """
    steps = flight.steps()
    try:
        while flight.step < len(steps) and not flight.lost:
            phase, work = steps[flight.step]
            if flight.phase_ends_at_s is None and flight.transfer is None:  # not resumed within it
                flight.phase = phase
                flight.phase_started_at_s = env.now
                flight.order = next(numbers)
                if work is not None:
                    duration_s = seconds_of(work, device, flight, env.now)
                    flight.begin_unit(Unit(phase, work.name or phase, duration_s, work.quantity))
                    flight.phase_ends_at_s = env.now + duration_s
                    yield env.timeout(duration_s)
                elif phase == "download":
                    flight.transfer = network.send(
                        flight.client, flight.task.downlink_bytes, "down"
                    )
                else:
                    flight.transfer = network.send(flight.client, size_of(flight), "up")
            elif flight.phase_ends_at_s is not None:
                yield at(env, flight.phase_ends_at_s)
            flight.phase_ends_at_s = None
            if flight.transfer is not None:
                arrived(flight, (yield flight.transfer.done))
            flight.step += 1
            if fails is not None and fails(flight, phase):
                flight.lose("failed")
    except simpy.Interrupt as cut:
        cut_short(env, flight, str(cut.cause))
    flight.phase = "over"
    flight.ended_at_s = env.now
    landed(flight)


def arrived(flight: Flight, duration_s: float) -> None:
    """The transfer under way is over: note how long it took and which links limited it."""
    transfer = flight.transfer
    assert transfer is not None
    if flight.phase == "download":
        flight.downlink_s, flight.downlink_bytes = duration_s, transfer.size_bytes
    else:
        flight.uplink_s, flight.uplink_bytes = duration_s, transfer.size_bytes
    flight.limited_s[flight.phase] = transfer.limited_s
    flight.transfer = None


def cut_short(env: simpy.Environment, flight: Flight, cause: str) -> None:
    """The client is gone in the middle of a phase: count what it spent and moved until now."""
    flight.lose("dropped" if cause == CUT else cause)
    flight.away = cause == "dropped"
    spent_s = env.now - flight.phase_started_at_s
    if flight.phase_ends_at_s is not None:
        flight.cut_unit(spent_s)
        flight.phase_ends_at_s = None
    elif flight.transfer is not None:
        moved_bytes = flight.transfer.cancel()
        if flight.phase == "download":
            flight.downlink_s, flight.downlink_bytes = spent_s, moved_bytes
        else:
            flight.uplink_s, flight.uplink_bytes = spent_s, moved_bytes
        flight.transfer = None


def seconds_of(work: Work, device: Device, flight: Flight, start_at_s: float) -> float:
    """Seconds of one unit of a client's work that starts now. Its noise is drawn by its quantity,
    and by how many of that quantity came before it."""
    try:
        nominal_s = work.times * nominal_seconds(work, device)
    except InputError:
        if work not in flight.task.unpacking:
            raise
        return 0.0  # a warning of the run says so
    nth = 0
    for unit in flight.units:
        nth += unit.quantity == work.quantity
    duration_s = device.duration_s(
        nominal_s, start_at_s, round=flight.task.key, phase=work.quantity, nth=nth
    )
    # SimPy accepts a NaN delay without a word and never gets past it
    if not 0 <= duration_s < math.inf:
        raise RunFailed(
            f"client {flight.client}, round {flight.task.round}: the device model gave "
            f"{duration_s!r} seconds for {flight.phase}"
        )
    return duration_s


def nominal_seconds(work: Work, device: Device) -> float:
    """Seconds of one of a unit's `times` on the measured device, before speed and noise."""
    strategy = split_arm(work.name)[0] if QUANTITIES[work.quantity].per_strategy else ""
    return device.nominal_s(work.quantity, model=work.model, strategy=strategy, **work_size(work))
