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

from simfed.device import Device
from simfed.fleet.faults import Faults
from simfed.ground.errors import InputError, RunFailed
from simfed.ground.method import Work
from simfed.net import Network, Transfer
from simfed.net.instants import at, cancel
from simfed.net.topology import Direction
from simfed.sim.flight import Flight, Leg, Unit

__all__ = ["CUT", "participation"]

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
    faults: Faults | None = None,
    numbers: Iterator[int],
) -> Story:
    """One client's part, from the server's first byte to its upload's last; from where `flight`
    stands.

    `size_of(flight)` gives the upload's bytes; it is asked when the upload starts. `landed(flight)`
    is called when it is over. `fails(flight, phase)` is asked at the end of each phase: then
    nothing of it arrives. `faults`: what freezes its device and becomes of its messages. `numbers`
    counts beginnings.
    Interrupted (`process.interrupt("dropped")`), it ends where it is: the interrupt's cause is its
    outcome, and what it has spent so far stays spent.
    """
    steps = flight.steps()
    pause: simpy.Event | None = None
    messages = None if faults is None else faults.messages
    if messages is not None and flight.legs is None:
        flight.legs = []
    try:
        while flight.step < len(steps) and not flight.lost:
            phase, work = steps[flight.step]
            if flight.phase_ends_at_s is None and flight.transfer is None:  # not resumed within it
                flight.phase = phase
                flight.phase_started_at_s = env.now
                flight.order = next(numbers)
                if work is not None:
                    duration_s = seconds_of(work, device, flight, env.now)
                    if faults is not None:
                        duration_s = stretched_by_freezes(flight, faults, env.now, duration_s)
                    flight.begin_unit(Unit(phase, work.name or phase, duration_s, work.quantity))
                    flight.phase_ends_at_s = env.now + duration_s
                    pause = env.timeout(duration_s)
                    yield pause
                elif faults is not None and messages is not None:
                    flight.transfer = transmit(flight, network, size_of, faults)
                elif phase == "download":
                    flight.transfer = network.send(
                        flight.client, flight.task.downlink_bytes, "down"
                    )
                else:
                    flight.transfer = network.send(flight.client, size_of(flight), "up")
            elif flight.phase_ends_at_s is not None:
                pause = at(env, flight.phase_ends_at_s)
                yield pause
                if work is None and faults is not None and messages is not None:
                    end_pause(flight, env.now, messages.timeout_s)
                    flight.order = next(numbers)
                    if tried(flight) < messages.tries:
                        flight.transfer = transmit(flight, network, size_of, faults)
                    else:
                        flight.lose("failed")
            flight.phase_ends_at_s = None
            if flight.transfer is not None:
                arrived(flight, (yield flight.transfer.done))
                if faults is not None and messages is not None and is_lost(flight, faults):
                    flight.phase_started_at_s = env.now
                    flight.phase_ends_at_s = env.now + messages.timeout_s
                    flight.order = next(numbers)
                    continue
            flight.step += 1
            if fails is not None and not flight.lost and fails(flight, phase):
                flight.lose("failed")
    except simpy.Interrupt as cut:
        cancel(env, pause)
        cut_short(env, flight, str(cut.cause))
    flight.phase = "over"
    flight.ended_at_s = env.now
    landed(flight)


def transmit(
    flight: Flight, network: Network, size_of: Callable[[Flight], float], faults: Faults
) -> Transfer:
    """Start the message of the flight's phase on its way, once more or for the first time."""
    way: Direction = "down" if flight.phase == "download" else "up"
    size_bytes = flight.task.downlink_bytes if way == "down" else size_of(flight)
    copies = faults.fate(flight.client, flight.task.key, flight.phase, tried(flight)).copies
    # copies that leave at once are equal flows over one path: one of their weight and bytes
    return network.send(flight.client, copies * size_bytes, way, weight=float(copies))


def arrived(flight: Flight, duration_s: float) -> None:
    """The transfer under way is over: note how long it took and which links limited it."""
    transfer = flight.transfer
    assert transfer is not None
    if flight.legs is not None:
        limited_s = transfer.limited_s
        for link, seconds in flight.limited_s.get(flight.phase, {}).items():
            limited_s[link] = limited_s.get(link, 0.0) + seconds
        flight.limited_s[flight.phase] = limited_s
        spend(flight, duration_s, transfer.size_bytes)
        return
    if flight.phase == "download":
        flight.downlink_s, flight.downlink_bytes = duration_s, transfer.size_bytes
    else:
        flight.uplink_s, flight.uplink_bytes = duration_s, transfer.size_bytes
    flight.limited_s[flight.phase] = transfer.limited_s
    flight.transfer = None


def spend(flight: Flight, duration_s: float, moved_bytes: float) -> None:
    """Count what a transfer, or a pause between two, took and moved; it is over."""
    if flight.phase == "download":
        flight.downlink_s += duration_s
        flight.downlink_bytes += moved_bytes
    else:
        flight.uplink_s += duration_s
        flight.uplink_bytes += moved_bytes
    if flight.legs is not None:
        copies = 0 if flight.transfer is None else round(flight.transfer.flow.weight)
        name = {0: "timeout", 1: flight.phase, 2: "doubled"}[copies]
        flight.legs.append(Leg(flight.phase, name, duration_s, moved_bytes, copies))
    flight.transfer = None


def tried(flight: Flight) -> int:
    """How many transmissions of the present phase's message are over."""
    return sum(not leg.pause for leg in flight.transmissions(flight.phase))


def is_lost(flight: Flight, faults: Faults) -> bool:
    """Whether the transmission that has just ended is of no use, which its leg then says."""
    assert flight.legs is not None
    if not faults.fate(flight.client, flight.task.key, flight.phase, tried(flight) - 1).lost:
        return False
    flight.legs[-1] = flight.legs[-1]._replace(name="lost")
    return True


def end_pause(flight: Flight, now_s: float, timeout_s: float) -> None:
    """The sender has waited long enough for an answer."""
    spend(flight, timeout_s, 0.0)
    flight.phase_started_at_s = now_s


def stretched_by_freezes(flight: Flight, faults: Faults, start_at_s: float, work_s: float) -> float:
    """Seconds of the unit of work that is about to begin, with the freezes of its device."""
    strikes = faults.freezes_of(flight.client)
    if strikes is None:
        return work_s
    whole_s, within = strikes.stretch(start_at_s, work_s)
    unit = len(flight.units)
    flight.frozen += tuple((unit, since_s, length_s) for since_s, length_s in within)
    return whole_s


def cut_short(env: simpy.Environment, flight: Flight, cause: str) -> None:
    """The client is gone in the middle of a phase: count what it spent and moved until now."""
    flight.lose("dropped" if cause == CUT else cause)
    flight.away = cause == "dropped"
    spent_s = env.now - flight.phase_started_at_s
    if flight.transfer is not None:
        spend(flight, spent_s, flight.transfer.cancel())
    elif flight.phase_ends_at_s is not None and flight.phase in ("download", "upload"):
        spend(flight, spent_s, 0.0)
    elif flight.phase_ends_at_s is not None:
        flight.cut_unit(spent_s)
    flight.phase_ends_at_s = None


def seconds_of(work: Work, device: Device, flight: Flight, start_at_s: float) -> float:
    """Seconds of one unit of a client's work that starts now. Its noise is drawn by its quantity,
    and by how many of that quantity came before it."""
    try:
        nominal_s = work.times * device.work_s(work)
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
