"""Facts of a play for a page: sums over its rounds, and the tables of a few of them.

A page shows curves and totals of all rounds and the Gantt of some, so rows of the other
rounds are dropped once they are summed up.
"""

from __future__ import annotations

from collections import Counter
from typing import cast

from simfed.ground.plain import Plain
from simfed.record.recorder import Recorder
from simfed.record.schema import (
    CLIENT_KINDS,
    PHASES,
    TABLES,
    OwnColumns,
    Participation,
    PrototypeResult,
    Round,
)

_PHASE_PLACES = [Participation._fields.index(name) for name in PHASES]


Decision = tuple[int, int, str, int, str]
"""Round, client, arm, K and outcome of an upload."""


class Glance(Recorder):
    """A recorder that keeps sums per round, and rows of only some rounds.

    `ClockRun` makes it and lets the clock write into it; `describe` is what pages get,
    `table` what the Gantt is drawn from.
    """

    def __init__(
        self,
        shown: tuple[int, int] | None,
        measure: str,
        own: OwnColumns | None = None,
        newest: int = 1,
    ) -> None:
        """Begin to look on.

        Args:
            shown: first and last round whose rows are kept; None: so many of the
                `newest`.
            measure: the column of prototypes that is the curve.
            own: columns of this run's own.
            newest: how many rounds are kept.
        """
        super().__init__(own=own)
        self._shown, self._newest = shown, newest
        self.ends_s: list[float] = []
        """When each round ended, in simulated seconds."""
        self.bytes = [0.0, 0.0]
        """Sent by clients, and to them."""
        self.joules: float | None = None
        """None: nobody knows the devices' watts."""
        self.phases_s = dict.fromkeys(CLIENT_KINDS, 0.0)
        self.held_up: Counter[int] = Counter()
        """Client → rounds that waited for it."""
        self.curve: dict[str, list[tuple[int, float]]] = {}
        """Prototype → (round, value), where models were evaluated."""
        self.decisions: list[tuple[Decision, ...]] = []
        """Per round those of the uploads settled there."""
        columns = (*PrototypeResult._fields, *(own or {}).get("prototypes", ()))
        self._place = columns.index(measure)

    def settle(self) -> None:
        """Sum up the round that ended, and keep or drop its rows."""
        for row in self.rounds:
            ended = Round(*row[: len(Round._fields)])
            self.ends_s.append(ended.finished_at_s)
            self.bytes[0] += ended.uplink_bytes
            self.bytes[1] += ended.downlink_bytes
            if ended.critical_client is not None:
                self.held_up[ended.critical_client] += 1
        for part in self.participations:
            for kind, place in zip(CLIENT_KINDS, _PHASE_PLACES, strict=True):
                self.phases_s[kind] += cast("float", part[place])
            if part.energy_j is not None:
                self.joules = (self.joules or 0.0) + part.energy_j
        self.decisions.append(
            tuple(
                sorted(
                    (p.round, p.client, p.arm, p.k, p.outcome)
                    for p in self.participations
                )
            )
        )
        for row in self.prototypes:
            if row[self._place] is not None:
                points = self.curve.setdefault(str(row[1]), [])
                points.append((int(row[0]), float(row[self._place])))
        shown, done = self._shown, len(self.ends_s)
        for name in TABLES:
            if shown is None:
                if not getattr(self, name):
                    self._chunks[name].append(self.schema(name).empty_table())
                self._pack(name)
                del self._chunks[name][: -self._newest]
            elif shown[0] <= done <= shown[1]:
                self._pack(name)
            else:
                getattr(self, name).clear()

    def describe(self) -> dict[str, Plain]:
        """Return the sums as JSON has them."""
        return {
            "ends_s": list(self.ends_s),
            "bytes": list(self.bytes),
            "joules": self.joules,
            "phases_s": {kind: s for kind, s in self.phases_s.items() if s > 1e-9},
            "held_up": [list(pair) for pair in self.held_up.most_common(4)],
            "curve": {
                name: list(map(list, points)) for name, points in self.curve.items()
            },
        }
