"""The client's process: a story of yields.

Download the model, train, compress, upload. What is modelled: the time of each, on the client's own
device and over the shared network, one after another. What is ignored: overlap of phases within a
client, reading of data, and the memory of the device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from typing import Any

import simpy

from simfed.device import Device
from simfed.errors import RunFailed
from simfed.net import Network
from simfed.net.topology import Direction
from simfed.sim.flight import Flight

__all__ = ["participation"]

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
        begin(env, flight, "training")
        flight.training_s = training_s(device, flight, env.now)
        yield env.timeout(flight.training_s)
        begin(env, flight, "compression")
        flight.compression_s = compression_s(device, flight, env.now)
        yield env.timeout(flight.compression_s)
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
    if flight.phase == "training":
        flight.training_s = spent_s
    elif flight.phase == "compression":
        flight.compression_s = spent_s
    elif flight.transfer is not None:
        moved_bytes = flight.transfer.cancel()
        if flight.phase == "download":
            flight.downlink_s, flight.downlink_bytes = spent_s, moved_bytes
        else:
            flight.uplink_s, flight.uplink_bytes = spent_s, moved_bytes
        flight.transfer = None


def training_s(device: Device, flight: Flight, start_at_s: float) -> float:
    """Seconds of the local steps: each takes one step's time at the configured batch size."""
    task = flight.task
    step_s = device.nominal_s("training", model=task.model, batch=task.batch_size)
    return _finite(
        device.duration_s(task.local_steps * step_s, start_at_s, round=task.round, phase="training"),
        flight,
    )  # fmt: skip


def compression_s(device: Device, flight: Flight, start_at_s: float) -> float:
    """Seconds of selecting and encoding K entries by the arm played."""
    task, sent = flight.task, flight.contribution
    nominal_s = device.nominal_s("compression", model=task.model, strategy=sent.arm, k=sent.k)
    return _finite(
        device.duration_s(nominal_s, start_at_s, round=task.round, phase="compression"), flight
    )


def _finite(duration_s: float, flight: Flight) -> float:
    # SimPy accepts a NaN delay without a word and never gets past it
    if not 0 <= duration_s < math.inf:
        raise RunFailed(
            f"client {flight.client}, round {flight.task.round}: the device model gave "
            f"{duration_s!r} seconds for {flight.phase}"
        )
    return duration_s
