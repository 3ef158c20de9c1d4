"""From the instants of a participation, by two clocks, to the phases that a record has.

The time from a client's start to the arrival of its upload is laid out without gaps: download,
training, compression and upload as they were measured, and between them `host` time that is no
phase: the server serialising, the client waking up, reading, measuring losses, writing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from simfed.deploy.frames import Refused
from simfed.record.schema import HOST
from simfed.sim.flight import Unit

__all__ = ["Instants", "lay_out"]


class Instants(NamedTuple):
    """Of one participation, on the run's time line; seconds of what lies within."""

    started_s: float
    sent_s: float
    """The task's first byte left."""
    received_s: float
    """Its last byte was there."""
    begun_s: float
    """The client turned to it."""
    training_s: float
    compression_s: float
    packing_s: float
    sending_s: float
    """The upload's first byte left."""
    arrived_s: float
    """Its last byte was here."""
    landed_s: float
    """The server turned to it."""

    @classmethod
    def of(
        cls, times: Any, here_s: Callable[[float], float], *, started_s: float, sent_s: float,
        arrived_s: float, landed_s: float,
    ) -> Instants:  # fmt: skip
        """From what a client says of itself; `here_s` puts instants of its clock on the run's line.
        Raises: `Refused`."""
        said = {name: _number(times, name) for name in _SAID}
        return cls(
            started_s=started_s,
            sent_s=sent_s,
            received_s=here_s(said["received_s"]),
            begun_s=here_s(said["begun_s"]),
            training_s=max(said["training_s"], 0.0),
            compression_s=max(said["compression_s"], 0.0),
            packing_s=max(said["packing_s"], 0.0),
            sending_s=here_s(said["sending_s"]),
            arrived_s=arrived_s,
            landed_s=landed_s,
        )


_SAID = ("received_s", "begun_s", "training_s", "compression_s", "packing_s", "sending_s")


def lay_out(instants: Instants, arm: str) -> list[Unit]:
    """What the client went through, in order, from its start until it landed.

    Where the clocks' uncertainty would put an instant before an earlier one, it counts as that one.

    >>> of = Instants(0.0, 0.5, 1.5, 1.6, 2.0, 0.5, 0.1, 4.5, 6.0, 6.0)
    >>> [(u.kind, round(u.duration_s, 3)) for u in lay_out(of, "top-k") if u.duration_s > 0]
    [('host', 0.5), ('download', 1.0), ('host', 0.4), ('training', 2.0), ('compression', 0.5),
    ('host', 0.1), ('upload', 1.5)]
    """
    within_s = instants.training_s + instants.compression_s + instants.packing_s
    at_s = [instants.started_s]
    for instant_s in (
        instants.sent_s, instants.received_s, max(instants.begun_s, instants.sending_s - within_s),
        instants.sending_s, instants.arrived_s, instants.landed_s,
    ):  # fmt: skip
        at_s.append(min(max(instant_s, at_s[-1]), max(instants.landed_s, at_s[0])))
    sent, received, begun, sending, arrived, landed = at_s[1:]
    work_s = sending - begun
    shrink = min(1.0, work_s / within_s) if within_s > 0 else 0.0
    training_s, compression_s = instants.training_s * shrink, instants.compression_s * shrink
    return [
        Unit(HOST, "serialising", sent - at_s[0]),
        Unit("download", "download", received - sent),
        Unit(HOST, "reading", begun - received),
        Unit("training", "training", training_s),
        Unit("compression", arm, compression_s),
        Unit(HOST, "writing", max(work_s - training_s - compression_s, 0.0)),
        Unit("upload", "upload", arrived - sending),
        Unit(HOST, "waking up", landed - arrived),
    ]


def _number(times: Any, name: str) -> float:
    value = times.get(name) if isinstance(times, Mapping) else None
    if not isinstance(value, (int, float)) or not abs(value) < 1e12:
        raise Refused(f"an upload whose {name} is no number")
    return float(value)
