"""Measured phases of a participation, from instants by two clocks.

The time from a client's start to the arrival of its upload is laid out without gaps:
download, training, compression and upload as they were measured, and between them
`host` time that is no phase: the server serialising, the client waking up, reading,
measuring losses, writing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from simfed.deploy.messages import Refused, read_number
from simfed.record.schema import HOST
from simfed.sim.flight import BusySeconds, Leg

_INSTANTS = ("received_s", "begun_s", "sending_s")
_DURATIONS = ("training_s", "compression_s", "packing_s")
_CLOCKS_APART_S = 60.0
"""Seconds by which a client's durations may be longer than the server's of the whole
participation."""
_MOST_PROCESSORS = 1024


class Instants(NamedTuple):
    """The instants of one participation on the run's time line, and durations in s.

    `lay_out_legs` makes phases of it. Instants of the client's clock may be off by what
    the exchanges of clocks leave unsure.
    """

    started_s: float
    sent_s: float
    """The task's first byte left."""
    received_s: float
    """The instant at which its last byte was there."""
    begun_s: float
    """The client turned to it."""
    training_s: float
    compression_s: float
    packing_s: float
    sending_s: float
    """The upload's first byte left."""
    arrived_s: float
    """The instant at which its last byte was here."""
    landed_s: float
    """The server turned to it."""

    @classmethod
    def of(
        cls, times: object, here_s: Callable[[float], float], **server_s: float
    ) -> Instants:
        """Return the instants from a client's own times.

        Args:
            times: the client's, as they came: instants of its clock, durations in s.
            here_s: puts an instant of its clock on the run's line.
            server_s: the server's instants, which are on that line already.

        Raises:
            Refused: a number is missing, or cannot be.
        """
        instants_s = {name: here_s(read_number(times, name)) for name in _INSTANTS}
        longest_s = server_s["landed_s"] - server_s["started_s"] + _CLOCKS_APART_S
        durations_s = {
            name: _read_duration(times, name, longest_s) for name in _DURATIONS
        }
        return cls(**server_s, **instants_s, **durations_s)


def _read_duration(times: object, name: str, longest_s: float) -> float:
    duration_s = read_number(times, name)
    if not 0 <= duration_s <= longest_s:
        raise Refused(
            f"a message whose {name} is {duration_s:.4g}, not 0 to {longest_s:.4g}"
        )
    return duration_s


def read_busy(times: object, longest_s: float) -> BusySeconds:
    """Return the processor seconds of a client's participation.

    Args:
        times: the client's own, as they came.
        longest_s: of the whole participation, by the server's clock.

    Raises:
        Refused: a number is missing, or more than a thousand processors would work.
    """
    names = "training_busy_s", "compression_busy_s", "busy_s"
    most_s = (longest_s + _CLOCKS_APART_S) * _MOST_PROCESSORS
    training_s, compression_s, whole_s = (
        _read_duration(times, name, most_s) for name in names
    )
    return BusySeconds(
        training_s, compression_s, max(whole_s - training_s - compression_s, 0.0)
    )


def lay_out_legs(
    instants: Instants, arm: str, down_bytes: float, up_bytes: float
) -> list[Leg]:
    """Return the legs of a participation in order, from its start until it landed.

    Where the clocks' uncertainty would have a task come before it was sent, or an
    upload before it left, all of the client's instants move by as little as mends it,
    so that what the client measured keeps its length; what cannot be mended so (a
    client's times that are longer than the server's) is cut.

    Args:
        instants: of the participation.
        arm: the strategy, which names the leg of compression.
        down_bytes: of the task.
        up_bytes: of the upload.

    >>> times_s = 0.0, 0.5, 1.5, 1.6, 2.0, 0.5, 0.1, 4.5, 6.0, 6.0
    >>> legs = lay_out_legs(Instants(*times_s), "top-k", 8.0, 2.0)
    >>> [(leg.phase, round(leg.duration_s, 3)) for leg in legs if leg.duration_s > 0]
    [('host', 0.5), ('download', 1.0), ('host', 0.4), ('training', 2.0),
    ('compression', 0.5), ('host', 0.1), ('upload', 1.5)]
    """
    within_s = instants.training_s + instants.compression_s + instants.packing_s
    early_s = max(instants.sent_s - instants.received_s, 0.0)
    shift_s = min(early_s, instants.arrived_s - instants.sending_s)
    sending_s = instants.sending_s + shift_s
    borders_s = (
        instants.sent_s,
        instants.received_s + shift_s,
        max(instants.begun_s + shift_s, sending_s - within_s),
        sending_s,
        instants.arrived_s,
        instants.landed_s,
    )
    at_s = [instants.started_s]
    for border_s in borders_s:
        at_s.append(min(max(border_s, at_s[-1]), max(instants.landed_s, at_s[0])))
    sent, received, begun, sending, arrived, landed = at_s[1:]
    work_s = sending - begun
    shrink = min(1.0, work_s / within_s) if within_s > 0 else 0.0
    training_s, compression_s = (
        instants.training_s * shrink,
        instants.compression_s * shrink,
    )
    return [
        Leg(HOST, "serialising", sent - at_s[0]),
        Leg("download", "download", received - sent, moved_bytes=down_bytes),
        Leg(HOST, "reading", begun - received),
        Leg("training", "training", training_s),
        Leg("compression", arm, compression_s),
        Leg(HOST, "writing", max(work_s - training_s - compression_s, 0.0)),
        Leg("upload", "upload", arrived - sending, moved_bytes=up_bytes),
        Leg(HOST, "waking up", landed - arrived),
    ]
