"""Network models, which make a flow of a payload: `fluid` and `tcp`.

`fluid` is latency, then max-min sharing; `tcp` has start-up on top. A model turns
(size, path) into a `Flow` once, at the start of a transfer; the engine does the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from math import ceil, inf, log2, sqrt
from typing import TypeAlias

from simfed.ground.errors import InputError, check_known
from simfed.ground.plain import Plain
from simfed.net.flows import Flow
from simfed.net.topology import Path

_MATHIS = sqrt(1.5)
"""Mathis, Semke, Mahdavi, Ott 1997: rate = MSS/RTT · sqrt(3/2)/sqrt(p), every segment
acknowledged."""
_FIRST_SEGMENTS = 10
"""Segments of the first burst (RFC 6928)."""
_SEGMENT_BYTES = 1448.0
"""Payload of a full segment: Ethernet's 1500 less IP, TCP and the timestamp option."""


@dataclass(frozen=True)
class Fluid:
    """A flow waits its path's latency, then shares every link max-min fairly.

    There is no protocol at all: no headers, no start-up, no losses. A dedicated link
    takes latency + size/capacity seconds, to the last digit.
    """

    name = "fluid"

    def flow(
        self,
        id: int,
        size_bytes: float,
        path: Path,
        capacity: Callable[[int], float],
        weight: float,
        cap_bytes_per_s: float,
    ) -> Flow:
        """Return a flow of all bytes at once, after the latency.

        Args:
            id: of the flow, which breaks ties.
            size_bytes: the payload.
            path: its way.
            capacity: returns a link's present capacity, bytes/s; not asked here.
            weight: the share against others'.
            cap_bytes_per_s: a limit of its own; inf: none.
        """
        return Flow(id, size_bytes, path.links, path.latency_s, weight, cap_bytes_per_s)

    def payload_bytes(self, wire_bytes: float) -> float:
        """Return all of them: the model adds nothing to a payload."""
        return wire_bytes


@dataclass(slots=True, eq=False)
class SlowStart:
    """The bursts of one TCP flow: a window per round trip, twice as large each time.

    A burst leaves at whatever rate the links give. If its window lasts for a round
    trip, the sender has acknowledgements coming in before it runs out of window: the
    pipe is full, slow start has nothing left to do, and the rest follows without a
    pause.
    """

    window_bytes: float
    rtt_s: float
    began_s: float
    """The beginning of the present burst, in seconds since the flow's start."""

    def find_next_burst(self, flow: Flow) -> tuple[float, float]:
        """Return (seconds until the next burst, its bytes), for `Flow.program`."""
        took_s = flow.spent_s - self.began_s
        if took_s >= self.rtt_s:
            return 0.0, flow.unsent_bytes
        self.window_bytes *= 2
        self.began_s += self.rtt_s
        return self.rtt_s - took_s, min(self.window_bytes, flow.unsent_bytes)


@dataclass(frozen=True)
class Tcp:
    """TCP start-up on top of the fluid model.

    What is modelled: the three-way handshake (or a connection kept open), slow start
    from ten segments until a window lasts for a round trip at the rate
    that the shared links give, header bytes on the wire, store-and-forward of one
    segment per link, and a limit from random loss (Mathis) where the path has a loss
    rate. A flow that fills the receive window goes on at no more than a window per
    round trip (RFC 7323). What is ignored: queues and so drop-tail losses,
    retransmission timeouts, unfairness between different round-trip times, the slow
    growth of a window after its flow's share has grown, and that of the receive window
    itself (Linux begins at 64 kB and stays ahead of slow start). See `docs/network.md`
    for the errors to expect.
    """

    name = "tcp"

    handshake: bool = True
    """False: the connection is open already, with the window of a fresh one."""
    header_bytes: float = 54.0
    """Bytes of every segment beside its payload; 66 on Ethernet, 54 on a point-to-point
    link."""
    window_bytes: float | None = 3e6
    """Payload that may be on its way at once, the receive window. Half of Linux's
    `tcp_rmem` of 6 MB (32 MB in the newest kernels), the other half is for overhead.
    None: no limit."""

    def __post_init__(self) -> None:
        window = self.window_bytes
        if window is not None and not 0 < window < inf:
            raise InputError("a number above 0", where="window_bytes", got=window)
        if not 0 <= self.header_bytes < inf:
            raise InputError(
                "a number of at least 0", where="header_bytes", got=self.header_bytes
            )

    @property
    def expansion(self) -> float:
        """Bytes on the wire per byte of payload."""
        return (_SEGMENT_BYTES + self.header_bytes) / _SEGMENT_BYTES

    def flow(
        self,
        id: int,
        size_bytes: float,
        path: Path,
        capacity: Callable[[int], float],
        weight: float,
        cap_bytes_per_s: float,
    ) -> Flow:
        """Return the first burst, after handshake and latency.

        `SlowStart` sends the others.

        Args:
            id: of the flow, which breaks ties.
            size_bytes: the payload; headers are added.
            path: its way, with its round trip and its loss.
            capacity: returns a link's present capacity, bytes/s: what one segment
            takes.
            weight: the share against others'.
            cap_bytes_per_s: a limit of its own; inf: none.
        """
        segment = _SEGMENT_BYTES + self.header_bytes
        per_byte_s = [1 / capacity(link) for link in path.crossed if capacity(link) > 0]
        # One segment crosses link after link; the slowest link's turn is in the flow's
        # own rate.
        last_s = segment * (sum(per_byte_s) - max(per_byte_s, default=0.0))
        handshake_s = (
            path.rtt_s + 2 * self.header_bytes * sum(per_byte_s)
            if self.handshake
            else 0.0
        )
        if path.loss > 0 and path.rtt_s > 0:
            cap_bytes_per_s = min(
                cap_bytes_per_s, segment / path.rtt_s * _MATHIS / sqrt(path.loss)
            )
        wire_bytes = size_bytes * self.expansion
        begins_s = handshake_s + path.latency_s + last_s
        flow = Flow(id, wire_bytes, path.links, begins_s, weight, cap_bytes_per_s)
        most_bytes = inf if self.window_bytes is None else self.window_bytes
        most_bytes *= self.expansion
        window_bytes = min(_FIRST_SEGMENTS * segment, most_bytes)
        if wire_bytes > window_bytes:
            flow.remaining_bytes = window_bytes
            flow.unsent_bytes = wire_bytes - window_bytes
            rtt_s = path.rtt_s + segment * sum(per_byte_s)
            flow.program = SlowStart(window_bytes, rtt_s, begins_s).find_next_burst
            # Bursts below the receive window, and a last one that fits into it, leave
            # as fast as links allow. Beyond them a flow has to wait for that window:
            # its cap. (Bursts before take less than their round trip at it.)
            doublings = ceil(log2(most_bytes / window_bytes)) if most_bytes < inf else 0
            free_bytes = window_bytes * (2**doublings - 1) + most_bytes
            if wire_bytes > free_bytes and rtt_s > 0:
                flow.cap_bytes_per_s = min(cap_bytes_per_s, most_bytes / rtt_s)
        return flow

    def payload_bytes(self, wire_bytes: float) -> float:
        """Return the bytes without those of headers."""
        return wire_bytes / self.expansion


Model: TypeAlias = Fluid | Tcp
"""What makes a flow of a payload, and tells the payload inside some of its bytes."""
ModelSpec: TypeAlias = str | Mapping[str, Plain] | Model
"""A model's name, `{"kind": name, option: value}`, or a model."""


def make_model(model: ModelSpec, *, where: str | None = None) -> Model:
    """Return the model that is meant.

    Args:
        model: a name, `{"kind": name, option: value}`, or a model, which is returned.
        where: names the place in errors.

    Raises:
        InputError: a name or an option that there is not.

    >>> make_model({"kind": "tcp", "handshake": False}).handshake
    False
    """
    if not isinstance(model, (str, Mapping)):
        return model
    options = dict(model) if isinstance(model, Mapping) else {"kind": model}
    kind = options.pop("kind", "")
    kinds: dict[str, type[Fluid] | type[Tcp]] = {"fluid": Fluid, "tcp": Tcp}
    check_known(kind, kinds, "a network model:", where=where)
    names = [field.name for field in fields(kinds[kind])]
    for name in options:
        check_known(name, names, f"an option of model {kind}:", where=where)
    return kinds[kind](**options)
