"""A client in flight: the plain record of what it has been asked, is doing, and has spent.

A client's process (`simfed.sim.client`) only waits and writes here, so what a client in flight is
doing can always be read off, saved, and started again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from simfed.fleet.tasks import codec_work
from simfed.ground.contract import Contribution, Task
from simfed.ground.method import Work
from simfed.net import Transfer
from simfed.net.topology import Direction
from simfed.policy import Pull
from simfed.record.schema import HANDLING, HOST

__all__ = ["Flight", "Leg", "Unit"]


class Unit(NamedTuple):
    """One unit of a client's work that has begun."""

    kind: str
    name: str
    duration_s: float
    quantity: str = ""
    """The device profile's word for it."""


class Leg(NamedTuple):
    """One transmission of a message, or the pause after one that was lost."""

    phase: str
    """`download` or `upload`."""
    name: str
    """The phase, or what happened: `lost`, `doubled`, `timeout` (a pause)."""
    duration_s: float
    size_bytes: float
    """Of all copies, as far as they came; a pause has none."""
    copies: int

    @property
    def pause(self) -> bool:
        """Nothing travels."""
        return not self.copies

    @property
    def direction(self) -> Direction:
        """Which way it travels."""
        return "down" if self.phase == "download" else "up"


@dataclass(slots=True, eq=False)
class Flight:
    """One participation from its start to its merge."""

    task: Task
    client: int = field(init=False)
    """The task's; kept, as it is asked for a dozen times in each participation."""
    contribution: Contribution
    pull: Pull
    started_at_s: float
    shared_loss: Mapping[str, float] = field(default_factory=dict)
    """Of each prototype, as far as known, at the version that it trains on."""
    handled: bool = False
    """Its device's profile knows what it takes to handle its messages."""
    step: int = 0
    """How many of `steps` are done."""
    phase: str = "download"
    """What it is doing: `download`, the kind of a unit of work, `upload`, then `over`."""
    phase_started_at_s: float = 0.0
    phase_ends_at_s: float | None = None
    """When the unit of work under way will be done; None: it does not compute."""
    order: int = 0
    """Counts the beginnings of phases of all clients: at one instant, earlier ones come first."""
    outcome: str = "aggregated"
    lost: bool = field(init=False)
    """Nothing of it will be merged."""
    away: bool = False
    """It left before it had ended, and is not there to wait."""
    ended_at_s: float = 0.0
    downlink_s: float = 0.0
    units: list[Unit] = field(default_factory=list)
    """The work that it has begun, in order."""
    training_s: float = 0.0
    """Of all local work but compression."""
    compression_s: float = 0.0
    uplink_s: float = 0.0
    downlink_bytes: float = 0.0
    uplink_bytes: float = 0.0
    limited_s: dict[str, dict[str | None, float]] = field(default_factory=dict)
    """For `download` and `upload`: seconds for which each link was what limited the transfer."""
    transfer: Transfer | None = None
    """The network's handle of the transfer under way."""
    legs: list[Leg] | None = None
    """Of its messages, in order; None where none can be lost or doubled."""
    frozen: tuple[tuple[int, float, float], ...] = ()
    """When its device stood still: (index in `units`, seconds since that began, seconds)."""
    measured: tuple[Unit, ...] | None = None
    """Where the world is real: all that it went through, in order, with time of the hosts that is
    no phase (kind `host`) in between."""

    def __post_init__(self) -> None:
        self.client = self.task.client
        self.lost = self.outcome in ("dropped", "failed")

    @property
    def over(self) -> bool:
        """It has arrived or is lost."""
        return self.phase == "over"

    @property
    def elapsed_s(self) -> float:
        """From its start to the arrival (or loss) of its upload, as a sum of durations."""
        phases_s = self.downlink_s + self.training_s + self.compression_s + self.uplink_s
        if self.measured is None:
            return phases_s
        return phases_s + sum(unit.duration_s for unit in self.measured if unit.kind == HOST)

    @property
    def tau_s(self) -> float:
        """τ of the reward: training + compression + upload, whatever else is charged."""
        return self.training_s + self.compression_s + self.uplink_s

    def lose(self, outcome: str) -> None:
        """`dropped` or `failed`: nothing of it will be merged."""
        self.outcome, self.lost = outcome, True

    @property
    def received(self) -> bool:
        """Whether all that travels down to it has arrived, as far as anybody knows; asked when it
        is over."""
        if self.measured is not None:  # of a real client that was lost, nobody knows
            return not self.lost
        if self.task.downlink_bytes <= 0:
            return True
        # who has begun to work has it, however that work ended; a failure at the download's own end
        # comes before any work
        return bool(self.units) or self.step > 1 or (self.step == 1 and self.outcome != "failed")

    def steps(self) -> tuple[tuple[str, Work | None], ...]:
        """(phase, its work; None for a transfer), in the order in which the client goes through
        them."""
        plan = self.task.plan
        found: list[tuple[str, Work | None]] = []
        if self.task.downlink_bytes > 0:
            found.append(("download", None))
        if self.handled:
            found.append((HANDLING, Work("handling", self.task.model, 1)))
        for work in self.task.work:
            found.append((work.kind or work.quantity, work))
        for work in self.codec_work("compression"):
            found.append(("compression", work))
        if plan.up:
            found.append(("upload", None))
        return tuple(found)

    def codec_work(self, quantity: str, client: int | None = None) -> Iterator[Work]:
        """The work on each compressed field of its upload, named as the tables name the choice."""
        task, choice, label = self.task, self.contribution.choice, self.pull.arm.label
        for name, of_plan in task.plan.up.items():
            if of_plan.compressed:
                of_field = choice.of_field(name)
                k = of_field.level if choice.fields else self.contribution.k
                assert isinstance(k, int)
                size = min(k, of_plan.entries)
                yield codec_work(quantity, task.who, of_plan, of_field, size, label, client)

    def begin_unit(self, unit: Unit) -> None:
        """Count a unit of work as a whole; `cut_unit` takes back what is not done of it."""
        self.units.append(unit)
        if unit.kind == "compression":
            self.compression_s += unit.duration_s
        else:
            self.training_s += unit.duration_s

    def cut_unit(self, spent_s: float) -> None:
        """The last unit ended early."""
        self.units[-1] = self.units[-1]._replace(duration_s=spent_s)
        last = len(self.units) - 1
        self.frozen = tuple(
            (unit, since_s, min(length_s, spent_s - since_s) if unit == last else length_s)
            for unit, since_s, length_s in self.frozen
            if unit < last or since_s < spent_s
        )
        compression = [u.duration_s for u in self.units if u.kind == "compression"]
        self.compression_s = sum(compression)
        self.training_s = sum(u.duration_s for u in self.units if u.kind != "compression")

    def phases(self) -> Sequence[Unit]:
        """What the client goes through, in order: download, units of work, upload."""
        if self.measured is not None:
            return self.measured
        return [
            Unit("download", "download", self.downlink_s),
            *self.units,
            Unit("upload", "upload", self.uplink_s),
        ]

    def sent(self) -> list[Leg]:
        """Every transmission of its messages that moved something, and every pause, in order."""
        if self.legs is not None:
            return self.legs
        down = Leg("download", "download", self.downlink_s, self.downlink_bytes, 1)
        up = Leg("upload", "upload", self.uplink_s, self.uplink_bytes, 1)
        return [leg for leg in (down, up) if leg.size_bytes > 0]

    def transmissions(self, phase: str) -> list[Leg]:
        """Of the message of this phase, with the pauses between them."""
        return [leg for leg in self.legs or () if leg.phase == phase]

    def pieces(self) -> Sequence[Unit]:
        """`phases` as its track shows them: each transmission and pause, and work apart from what
        held it up."""
        return list(self._pieces()) if self.legs or self.frozen else self.phases()

    def _pieces(self) -> Iterator[Unit]:
        yield from self._pieces_of("download", self.downlink_s)
        for number, unit in enumerate(self.units):
            done_s = 0.0
            for of, since_s, length_s in self.frozen:
                if of == number:
                    yield unit._replace(duration_s=since_s - done_s)
                    yield Unit("frozen", unit.kind, length_s)
                    done_s = since_s + length_s
            yield unit._replace(duration_s=unit.duration_s - done_s)
        yield from self._pieces_of("upload", self.uplink_s)

    def _pieces_of(self, phase: str, whole_s: float) -> Iterator[Unit]:
        legs = self.transmissions(phase)
        if not legs:
            yield Unit(phase, phase, whole_s)
        for leg in legs:
            kind, name = ("timeout", phase) if leg.pause else (phase, leg.name)
            yield Unit(kind, name, leg.duration_s)

    @property
    def idle_s(self) -> dict[str, float]:
        """Seconds of `download`, `upload` and quantities of work in which its device did nothing:
        it stood still, or waited before it sent again."""
        found: dict[str, float] = {}
        for leg in self.legs or ():
            if leg.pause:
                found[leg.phase] = found.get(leg.phase, 0.0) + leg.duration_s
        for number, _, length_s in self.frozen:
            quantity = self.units[number].quantity
            found[quantity] = found.get(quantity, 0.0) + length_s
        return found

    def plain(self) -> dict[str, Any]:
        """What a checkpoint keeps of it, beside its task, its contribution and its transfer."""
        kept = {name: getattr(self, name) for name in _PLAIN}
        return {
            **kept,
            "task": self.task.name,
            "pull": self.pull.plain(),
            "shared_loss": dict(self.shared_loss),
            "units": [list(unit) for unit in self.units],
            "limited_s": {
                phase: [[link, seconds] for link, seconds in of.items()]
                for phase, of in self.limited_s.items()
            },
            "in_transfer": self.transfer is not None,
            "legs": None if self.legs is None else [list(leg) for leg in self.legs],
            "frozen": [list(piece) for piece in self.frozen],
            "measured": None if self.measured is None else [list(unit) for unit in self.measured],
        }

    @classmethod
    def of_plain(cls, plain: Mapping[str, Any], task: Task, contribution: Contribution) -> Flight:
        """Inverse of `plain`; its transfer is the network's to give back."""
        return cls(
            task,
            contribution,
            Pull.of_plain(plain["pull"]),
            units=[Unit(*unit) for unit in plain["units"]],
            limited_s={phase: dict(of) for phase, of in plain["limited_s"].items()},
            shared_loss=plain["shared_loss"],
            legs=None if plain["legs"] is None else [Leg(*leg) for leg in plain["legs"]],
            frozen=tuple((unit, since_s, length_s) for unit, since_s, length_s in plain["frozen"]),
            measured=_units(plain.get("measured")),
            **{name: plain[name] for name in _PLAIN},
        )


def _units(plain: list[list[Any]] | None) -> tuple[Unit, ...] | None:
    return None if plain is None else tuple(Unit(*unit) for unit in plain)


_PLAIN = (
    "started_at_s", "step", "phase", "phase_started_at_s", "phase_ends_at_s", "order", "outcome",
    "away", "ended_at_s", "downlink_s", "training_s", "compression_s", "uplink_s",
    "downlink_bytes", "uplink_bytes",
)  # fmt: skip
