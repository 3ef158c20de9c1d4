"""A client in flight: the plain record of what it has been asked, and has spent.

The base fact is a `Leg`: one step of the participation that is over, or one try of it.
Durations of phases, bytes, energy, blame and the client's track all are sums and
pictures of legs. What plays it is its `process`; the work ahead of it is its `Course`,
laid out once for all that are alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from simpy.events import Event, Process

from simfed.compress.choice import Choice
from simfed.fleet.contract import Contribution, Task
from simfed.ground.method import CLIENT, Node, Plan, Work
from simfed.ground.plain import Plain
from simfed.ground.seeding import Key
from simfed.net.topology import Direction
from simfed.policy import Pull
from simfed.record.schema import BARRIER, HANDLING, HOST, LANE
from simfed.tasks.tasks import make_codec_work

NOWHERE: tuple[tuple[int, float], ...] = ()


class BusySeconds(NamedTuple):
    """Processor seconds of a real client's process, from the task to its upload.

    A deployment's clients report them; a simulated flight has none.
    """

    training_s: float
    compression_s: float
    other_s: float


class Leg(NamedTuple):
    """A unit of work, a transmission or a pause after a lost one, as far as it came.

    Legs of a flight follow each other without a break, but for those of
    `Flight.tracks`.
    """

    phase: str
    """`download`, `upload`, or the kind of work; `host`: time of a real host that is no
    phase."""
    name: str
    """Label; of a transmission the phase, or what happened to it: `lost`, `doubled`,
    `timeout` (a pause)."""
    duration_s: float
    started_at_s: float = 0.0
    quantity: str = ""
    """The device profile's word for the work; empty of what is no simulated work."""
    moved_bytes: float = 0.0
    """Bytes of all copies."""
    copies: int = 0
    """The number of copies that travelled; 0: nothing did."""
    limited_s: tuple[tuple[int, float], ...] = NOWHERE
    """Links that limited the transmission (`OWN_CAP`: none did), each with for how many
    seconds; of one that was cut off, nothing is known."""
    frozen: tuple[tuple[float, float], ...] = ()
    """The freezes of the device at this work: (seconds since it began, seconds)."""
    hidden_s: float = 0.0
    """Seconds of an upload in which the client went on compressing it."""
    held_s: float = 0.0
    """Seconds for which an upload waited for what is compressed."""
    node: Node = CLIENT
    """The place where the work was done, or waited for its turn."""
    key: tuple[Key, ...] = ()
    """The name of a transmission among its client's, where latencies differ from one to
    the other."""

    @property
    def pause(self) -> bool:
        """True where its sender only waits before it sends again.

        Work and barriers have names of their own.
        """
        return self.name == "timeout" and not (self.quantity or self.phase == BARRIER)

    @property
    def direction(self) -> Direction:
        """`down` for a download, else `up`."""
        return "down" if self.phase == "download" else "up"

    @property
    def seen_as(self) -> str:
        """The phase as its client sees it: it waits while the server works."""
        return self.phase if self.node == CLIENT else BARRIER

    @property
    def exposed_s(self) -> float:
        """The seconds but for those in which the client does something else."""
        return self.duration_s - self.hidden_s

    def cut(self, spent_s: float) -> Leg:
        """Return the same work, given up after so long."""
        frozen = [(since_s, min(s, spent_s - since_s)) for since_s, s in self.frozen]
        before = tuple(piece for piece in frozen if piece[0] < spent_s)
        return self._replace(duration_s=spent_s, frozen=before)

    def pieces(self) -> Iterator[tuple[str, str, float]]:
        """Yield (kind, name, seconds) of its track: work apart from what held it up.

        They come in order and add up to its exposed seconds.
        """
        done_s = 0.0
        for since_s, length_s in self.frozen:
            yield self.phase, self.name, since_s - done_s
            yield "frozen", self.phase, length_s
            done_s = since_s + length_s
        if self.pause:
            yield self.name, self.phase, self.duration_s
        else:
            yield self.seen_as, self.name, self.exposed_s - done_s

    def plain(self) -> list[Plain]:
        """Return the leg as a journal keeps it."""
        return [*self]

    @classmethod
    def of_plain(cls, plain: Sequence[Plain]) -> Leg:
        """Return the leg that `plain` gave."""
        return cls._make(
            tuple(map(tuple, value)) if isinstance(value, list) else value
            for value in plain
        )


class LostUpload(NamedTuple):
    """The rest of a contribution of which nothing will be merged.

    It takes the place of what it was, so that its tensors can be let go of.
    """

    task: Task
    choice: Choice
    k: int

    def uplink_bytes(self) -> float:
        """Return 0; nobody asks for the size of what was not sent."""
        return 0.0

    @property
    def told(self) -> None:
        """None: it tells nothing."""


@dataclass(slots=True, eq=False)
class Flight:
    """One participation from its start to its merge.

    The server makes it, the world fills it in, and when it is over `end` sums it up.
    """

    task: Task
    client: int = field(init=False)
    """The task's; kept, as it is asked for a dozen times in each participation."""
    contribution: Contribution
    pull: Pull
    started_at_s: float
    shared_loss: Mapping[str, float] = field(default_factory=dict)
    """The loss of each prototype, as far as known, at the version that it trains on."""
    process: Process | None = None
    """The process that plays it; None: nobody does, or not any longer."""
    departure: Event | None = None
    """The instant at which its client leaves."""
    received: bool = False
    """True if all that travels down to it has arrived, as far as anybody knows; of a
    real client that was lost, nobody does."""
    chain: bool = True
    """True if it was receive, work, send, one after another, all on its client's own
    track."""
    merges: int = 0
    """The number of merges that its server had made when it began."""
    staleness: int = 0
    """The number of merges from then to the one that settled it."""
    outcome: str = "aggregated"
    lost: bool = field(init=False)
    """True if nothing of it will be merged."""
    away: bool = False
    """True if it left before it had ended, and is not there to wait."""
    over: bool = False
    """True if it has arrived or is lost."""
    arrived: bool = False
    """True if it came to its server whole, though that may have dropped it since."""
    ended_at_s: float = 0.0
    busy: BusySeconds | None = None
    """The processor seconds of a real client."""
    legs: list[Leg] = field(default_factory=list)
    """The legs in order. What follows is summed up from them when it is over."""
    downlink_s: float = 0.0
    training_s: float = 0.0
    """Seconds of all local work but compression."""
    compression_s: float = 0.0
    uplink_s: float = 0.0
    barrier_s: float = 0.0
    """Waiting for others before it had ended."""
    elapsed_s: float = 0.0
    """Seconds from its start to the arrival (or loss) of its upload, as a sum of
    durations."""
    downlink_bytes: float = 0.0
    uplink_bytes: float = 0.0
    told: int | None = None
    """`Contribution.told`, once its upload began."""

    def __post_init__(self) -> None:
        self.client = self.task.client
        self.lost = self.outcome in ("dropped", "failed")

    @property
    def tau_s(self) -> float:
        """τ of a reward: training + compression + upload, whatever else is charged."""
        return self.training_s + self.compression_s + self.uplink_s

    def lose(self, outcome: str) -> None:
        """Note that nothing of it will be merged: it was `dropped` or `failed`."""
        self.outcome, self.lost = outcome, True

    def forget_upload(self) -> None:
        """Keep no more of its contribution than tables say of a lost one."""
        upload = self.contribution
        self.contribution = LostUpload(self.task, upload.choice, upload.k)

    def end(self, at_s: float) -> None:
        """End it at an instant: sum up its legs, as seconds and bytes by phase.

        An upload counts without the seconds in which the client went on compressing it.
        """
        self.over, self.ended_at_s = True, at_s
        down_s = work_s = compression_s = up_s = host_s = barrier_s = down_bytes = (
            up_bytes
        ) = 0.0
        for leg in self.legs:
            phase, duration_s = leg.phase, leg.duration_s
            if phase == "download":
                down_s += duration_s
                down_bytes += leg.moved_bytes
            elif phase == "upload":
                up_s += duration_s - leg.hidden_s
                up_bytes += leg.moved_bytes
            elif phase == "compression":
                compression_s += duration_s
            elif phase == HOST:
                host_s += duration_s
            elif phase == BARRIER or leg.node != CLIENT:
                barrier_s += duration_s
            else:
                work_s += duration_s
        self.downlink_s, self.training_s = down_s, work_s
        self.compression_s, self.uplink_s = compression_s, up_s
        self.downlink_bytes, self.uplink_bytes = down_bytes, up_bytes
        self.barrier_s = barrier_s
        self.elapsed_s = down_s + work_s + compression_s + up_s + host_s + barrier_s

    def tracks(self) -> Iterator[tuple[str, Leg]]:
        """Yield legs that the client's own track hides, each with its own track.

        These are uploads that left while the client compressed, and work on the server.
        """
        for leg in self.legs:
            if leg.node != CLIENT and leg.quantity:
                yield f"{leg.node}{LANE}steps", leg
            elif leg.hidden_s:
                yield f"client {self.client}{LANE}link", leg

    def make_codec_work(
        self, quantity: str, client: int | None = None
    ) -> Iterator[Work]:
        """Yield the work on each compressed field, named as tables name the choice.

        Args:
            quantity: `compression` or `decompression`.
            client: whose it is, where a server works it.
        """
        task, choice, label = self.task, self.contribution.choice, self.pull.arm.label
        for of_plan in task.plan.up.values():
            if of_plan.compressed:
                size = min(self.contribution.k, of_plan.entries)
                yield make_codec_work(
                    quantity, task.who, of_plan, choice, size, label, client
                )

    def limited_s(self, phase: str) -> dict[int, float]:
        """Return for how many seconds each link limited the transfers of a phase.

        Links are numbers of the topology, `OWN_CAP`: none.
        """
        limited_s: dict[int, float] = {}
        for leg in self.legs:
            for link, seconds in leg.limited_s if leg.phase == phase else ():
                limited_s[link] = limited_s.get(link, 0.0) + seconds
        return limited_s

    def sent(self) -> list[Leg]:
        """Return transmissions that moved something, and pauses, in order."""
        return [
            leg
            for leg in self.legs
            if leg.moved_bytes > 0 or (leg.name == "timeout" and leg.pause)
        ]


# ---- courses -------------------------------------------------------------------------

_MOST_LAID = 256


class WorkUnit(NamedTuple):
    """One unit of a client's work. Shared: nothing is written into it."""

    work: Work
    phase: str
    nth: int
    """The number of units of its quantity before it: a key of its noise."""


class Course(NamedTuple):
    """The work of a participation."""

    arrival: Sequence[WorkUnit]
    """Handling of its messages, and unpacking of what came."""
    work: Sequence[WorkUnit]
    """The units, as the plan has them."""
    packing: Sequence[WorkUnit]
    """Compression of each field of its upload."""
    chunks: int
    """The number of chunks of the upload, each sent while the next is compressed."""


class CourseCache:
    """Courses that were laid out, up to `_MOST_LAID`; then it begins anew.

    Participations of one plan, prototype, choice and arm have the same.
    """

    def __init__(self) -> None:
        self._laid: dict[tuple[object, ...], tuple[Plan, Course]] = {}

    def of(self, flight: Flight, handled: bool) -> Course:
        """Return the course of a participation.

        Args:
            flight: whose it is.
            handled: True if its device's profile knows what it takes to handle
            messages.
        """
        task, choice = flight.task, flight.contribution.choice
        if task.unpacking:
            return _lay_out(flight, handled)
        alike = (
            id(task.plan),
            task.who.prototype,
            handled,
            choice.strategy,
            flight.contribution.k,
            flight.pull.arm.label,
        )
        laid = self._laid.get(alike)
        if laid is None or laid[0] is not task.plan:  # which keeps its id its own
            if len(self._laid) >= _MOST_LAID:  # a method may make a plan for each round
                self._laid.clear()
            laid = self._laid[alike] = task.plan, _lay_out(flight, handled)
        return laid[1]


def _lay_out(flight: Flight, handled: bool) -> Course:
    """Return a course made for this flight, each unit numbered among its quantity's."""
    task, counts = flight.task, dict[str, int]()

    def number(works: Iterable[Work], phase: str = "") -> tuple[WorkUnit, ...]:
        units = []
        for work in works:
            nth = counts.get(work.quantity, 0)
            counts[work.quantity] = nth + 1
            units.append(WorkUnit(work, phase or work.kind or work.quantity, nth))
        return tuple(units)

    handling = number([Work("handling", task.model, 1)] if handled else (), HANDLING)
    arrival = handling + number(task.unpacking)
    work = number(task.plan.work)
    packing = number(flight.make_codec_work("compression"), "compression")
    chunks = flight.contribution.choice.codec.chunks if packing else 1
    return Course(arrival, work, packing, chunks)
