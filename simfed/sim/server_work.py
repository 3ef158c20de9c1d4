"""The server's processor between the last upload and the next round.

One after another on one processor: rebuild each compressed field's dense vector, then
what the method says it works at a merge; then, where the server's device knows what
they take, the rest of what a host does at a merge (`handling`), the wait for clients
whose policy learns to measure their losses (`losses`), and the evaluation of each
prototype on the test set. Clients wait meanwhile. What is ignored: overlap with uploads
that are still under way, averaging (a pass over the weights), and the evaluation of
models of clients' own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simfed.device import Device
from simfed.ground.method import Work
from simfed.sim.flight import Flight


@dataclass(frozen=True, slots=True)
class PlayedWork:
    """One piece of server work that was played, as its span shows it.

    `kind` is that of the span, `client` whose upload it was about.
    """

    kind: str
    name: str
    client: int | None
    duration_s: float


def play_work(
    device: Device,
    flights: Sequence[Flight],
    work: Sequence[Work],
    start_at_s: float,
    round: int | str,
) -> list[PlayedWork]:
    """Return decompression of what arrived, then `work`, with their seconds.

    They follow each other. Each compressed field is decompressed by itself, under the
    name of the arm that was played. The processor's noise and load are applied to each
    kind of work as a whole and spread over its pieces in proportion.

    Args:
        device: the server's.
        flights: what arrived.
        work: of the method, and beside it; what the device does not charge is left out.
        start_at_s: the beginning of the first piece.
        round: key of the noise.
    """
    unpacking = [
        piece for f in flights for piece in f.make_codec_work("decompression", f.client)
    ]
    every = (*unpacking, *work)
    pieces = [piece for piece in every if device.charges(piece.quantity, piece.model)]
    nominal = [(piece, piece.times * device.work_s(piece)) for piece in pieces]
    done: list[PlayedWork] = []
    for kind in dict.fromkeys(piece.kind or piece.quantity for piece, _ in nominal):
        of_kind = [(p, s) for p, s in nominal if (p.kind or p.quantity) == kind]
        nominal_s = sum(seconds for _, seconds in of_kind)
        quantity = of_kind[0][0].quantity
        total_s = device.duration_s(nominal_s, start_at_s, round=round, phase=quantity)
        factor = total_s / nominal_s if nominal_s > 0 else 0.0
        done += [
            PlayedWork(kind, p.name or kind, p.client, s * factor) for p, s in of_kind
        ]
        start_at_s += total_s
    return done
