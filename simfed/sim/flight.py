"""A client in flight: the plain record of what it has been asked, is doing, and has spent.

The base fact is a `Leg`: one step of the participation that is over, or one try of it. Durations
of phases, bytes, energy, blame and the client's track all are sums and pictures of legs. What is
under way stands in `Flight.running`, so what a client in flight is doing can always be read off,
saved, and started again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from simfed.fleet.contract import Contribution, Task
from simfed.fleet.tasks import codec_work
from simfed.ground.method import Node, Plan, Work
from simfed.ground.steps import CLIENT, DOWNLOAD, UPLOAD, Do, Step
from simfed.net import Transfer
from simfed.net.topology import Direction
from simfed.policy import Pull
from simfed.record.schema import BARRIER, HANDLING, HOST

__all__ = ["Flight", "LaidSteps", "Leg", "Running"]

_NOWHERE: Mapping[str | None, float] = {}

LaidSteps = dict[tuple[object, ...], tuple[Plan | None, Sequence[Step]]]
"""What steps hang on → the plan itself, which keeps its id its own, and the steps."""

_NONE_LAID: tuple[Plan | None, Sequence[Step]] = (None, ())
_MOST_LAID = 256


class Leg(NamedTuple):
    """A unit of work, a transmission of a message, or the pause after one that was lost, as far as
    it came."""

    phase: str
    """`download`, `upload`, or the kind of work; `host`: time of a real host that is no phase."""
    name: str
    """Label; of a transmission the phase, or what happened to it: `lost`, `doubled`, `timeout` (a
    pause)."""
    duration_s: float
    started_at_s: float = 0.0
    quantity: str = ""
    """The device profile's word for the work; empty of what is no simulated work."""
    moved_bytes: float = 0.0
    """Of all copies."""
    copies: int = 0
    """How many travelled; 0: nothing did."""
    limited_s: Mapping[str | None, float] = _NOWHERE
    """Seconds for which each link was what limited the transmission; of one that was cut off,
    nothing is known."""
    frozen: tuple[tuple[float, float], ...] = ()
    """When the device stood still at this work: (seconds since it began, seconds)."""

    @property
    def pause(self) -> bool:
        """The sender waits before it sends again."""
        return self.name == "timeout"

    @property
    def direction(self) -> Direction:
        """Which way it travels."""
        return "down" if self.phase == "download" else "up"

    def cut(self, spent_s: float) -> Leg:
        """The same work, given up after so long."""
        frozen = [(since_s, min(s, spent_s - since_s)) for since_s, s in self.frozen]
        kept = tuple(piece for piece in frozen if piece[0] < spent_s)
        return self._replace(duration_s=spent_s, frozen=kept)

    def plain(self) -> list[Any]:
        """What a checkpoint keeps of it."""
        return [*self[:-2], [*self.limited_s.items()], self.frozen]

    @classmethod
    def of_plain(cls, plain: Sequence[Any]) -> Leg:
        """Inverse of `plain`."""
        limited_s, frozen = plain[-2:]
        pieces = tuple((since_s, length_s) for since_s, length_s in frozen)
        return cls._make([*plain[:-2], dict(limited_s), pieces])


@dataclass(slots=True, eq=False)
class Running:
    """A step that is under way."""

    started_at_s: float
    order: int
    """Counts the beginnings of steps of all clients: at one instant, earlier ones come first."""
    ends_at_s: float | None = None
    """When the work or the pause will be done; None: it is a transfer."""
    work: Leg | None = None
    """What its work will have been."""
    transfer: Transfer | None = None
    """The network's handle."""
    timer: Any = None
    """The clock's."""

    def plain(self) -> list[Any]:
        """What a checkpoint keeps of it."""
        work = None if self.work is None else self.work.plain()
        return [self.started_at_s, self.order, self.ends_at_s, work, self.transfer is not None]


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
    places: Mapping[Node, str] = field(default_factory=dict)
    """What `client` and `server` of its steps are called in the network, where they are not the
    task's client and the server: an edge server's participation, or one in its name."""
    steps: Sequence[Step] = ()
    """What it goes through, one after another."""
    done: int = 0
    """How many of `steps` are."""
    running: Running | None = None
    """What it is doing."""
    departs_at_s: float | None = None
    """When its client goes away, as was known at its start; None: never."""
    departure: Any = None
    """The clock's handle of that instant."""
    order: int = 0
    """That of its latest step."""
    merges: int = 0
    """How many its server had made when it began."""
    staleness: int = 0
    """How many more until the one that settled it."""
    outcome: str = "aggregated"
    lost: bool = field(init=False)
    """Nothing of it will be merged."""
    away: bool = False
    """It left before it had ended, and is not there to wait."""
    over: bool = False
    """It has arrived or is lost."""
    ended_at_s: float = 0.0
    legs: list[Leg] = field(default_factory=list)
    """What it went through, in order. What follows is summed up from them when it is over."""
    downlink_s: float = 0.0
    training_s: float = 0.0
    """Of all local work but compression."""
    compression_s: float = 0.0
    uplink_s: float = 0.0
    barrier_s: float = 0.0
    """Waiting for others before it had ended."""
    elapsed_s: float = 0.0
    """From its start to the arrival (or loss) of its upload, as a sum of durations."""
    downlink_bytes: float = 0.0
    uplink_bytes: float = 0.0

    def __post_init__(self) -> None:
        self.client = self.task.client
        self.lost = self.outcome in ("dropped", "failed")

    @property
    def tau_s(self) -> float:
        """τ of the reward: training + compression + upload, whatever else is charged."""
        return self.training_s + self.compression_s + self.uplink_s

    def lose(self, outcome: str) -> None:
        """`dropped` or `failed`: nothing of it will be merged."""
        self.outcome, self.lost = outcome, True

    def end(self, at_s: float) -> None:
        """It is over now: sum up its legs."""
        self.over, self.ended_at_s = True, at_s
        down_s = work_s = compression_s = up_s = host_s = barrier_s = down_bytes = up_bytes = 0.0
        for leg in self.legs:
            phase, duration_s = leg.phase, leg.duration_s
            if phase == "download":
                down_s += duration_s
                down_bytes += leg.moved_bytes
            elif phase == "upload":
                up_s += duration_s
                up_bytes += leg.moved_bytes
            elif phase == "compression":
                compression_s += duration_s
            elif phase == HOST:
                host_s += duration_s
            elif phase == BARRIER:
                barrier_s += duration_s
            else:
                work_s += duration_s
        self.downlink_s, self.training_s = down_s, work_s
        self.compression_s, self.uplink_s = compression_s, up_s
        self.downlink_bytes, self.uplink_bytes = down_bytes, up_bytes
        self.barrier_s = barrier_s
        self.elapsed_s = down_s + work_s + compression_s + up_s + host_s + barrier_s

    @property
    def received(self) -> bool:
        """Whether all that travels down to it has arrived, as far as anybody knows; asked when it
        is over. Of a real client that was lost, nobody knows."""
        if DOWNLOAD in self.steps:
            return self.steps.index(DOWNLOAD) < self.done
        return self.done > 0 or bool(self.steps)

    def lay_steps(self, handled: bool, laid: LaidSteps) -> None:
        """Lay out its steps; `handled`: its device's profile knows what it takes to handle its
        messages; `laid`: those of participations before it, as most are alike."""
        task, choice = self.task, self.contribution.choice
        if task.unpacking or choice.fields:
            self.steps = self._laid_out(handled)
            return
        alike = (
            id(task.plan),
            task.who.prototype,
            task.downlink_bytes > 0,
            handled,
            choice.strategy,
            self.contribution.k,
            self.pull.arm.label,
        )
        plan, steps = laid.get(alike, _NONE_LAID)
        if plan is not task.plan:
            steps = self._laid_out(handled)
            if len(laid) >= _MOST_LAID:  # a method may make a plan for each round
                laid.clear()
            laid[alike] = task.plan, steps
        self.steps = steps

    def _laid_out(self, handled: bool) -> Sequence[Step]:
        task, plan = self.task, self.task.plan
        steps: list[Step] = [DOWNLOAD] if task.downlink_bytes > 0 else []
        if handled:
            steps.append(Do(CLIENT, Work("handling", task.model, 1), HANDLING))
        for work in task.unpacking if plan.steps else task.work:
            steps.append(Do(CLIENT, work, work.kind or work.quantity))
        packing: list[Step] = [
            Do(CLIENT, work, "compression") for work in self.codec_work("compression")
        ]
        if plan.up:
            packing.append(UPLOAD)
        if not plan.steps:
            return steps + packing
        parts: dict[Step, list[Step]] = {DOWNLOAD: steps, UPLOAD: packing}
        own = [part for step in plan.steps for part in parts.get(step, [step])]
        return own if DOWNLOAD in plan.steps else steps + own

    def codec_work(self, quantity: str, client: int | None = None) -> Iterator[Work]:
        """The work on each compressed field of its upload, named as the tables name the choice."""
        task, choice, label = self.task, self.contribution.choice, self.pull.arm.label
        for name, of_plan in task.plan.up.items():
            if of_plan.compressed:
                of_field = choice.of_field(name)
                k = of_field.entries(of_plan.entries) if choice.fields else self.contribution.k
                size = min(k, of_plan.entries)
                yield codec_work(quantity, task.who, of_plan, of_field, size, label, client)

    def limited_s(self, phase: str) -> Mapping[str | None, float]:
        """Seconds for which each link was what limited the transfer of this phase."""
        limited_s: Mapping[str | None, float] = _NOWHERE
        for leg in self.legs:
            if leg.phase == phase and leg.limited_s:
                before_s, limited_s = limited_s, leg.limited_s
                if before_s:
                    both_s = dict(limited_s)
                    for link, seconds in before_s.items():
                        both_s[link] = both_s.get(link, 0.0) + seconds
                    limited_s = both_s
        return limited_s

    def sent(self) -> list[Leg]:
        """Every transmission of its messages that moved something, and every pause, in order."""
        return [leg for leg in self.legs if leg.moved_bytes > 0 or leg.pause]

    def pieces(self) -> Iterator[tuple[str, str, float]]:
        """(kind, name, seconds) of its track, in order: each transmission and pause, and work apart
        from what held it up."""
        for phase, name, duration_s, *_, frozen in self.legs:
            done_s = 0.0
            for since_s, length_s in frozen:
                yield phase, name, since_s - done_s
                yield "frozen", phase, length_s
                done_s = since_s + length_s
            if name == "timeout":
                yield name, phase, duration_s
            else:
                yield phase, name, duration_s - done_s

    def plain(self) -> dict[str, Any]:
        """What a checkpoint keeps of it, beside its task, its contribution and its transfer."""
        return {
            **{name: getattr(self, name) for name in _PLAIN},
            "task": self.task.name,
            "pull": self.pull.plain(),
            "places": dict(self.places),
            "shared_loss": dict(self.shared_loss),
            "legs": [leg.plain() for leg in self.legs],
            "running": None if self.running is None else self.running.plain(),
        }

    @classmethod
    def of_plain(cls, plain: Mapping[str, Any], task: Task, contribution: Contribution) -> Flight:
        """Inverse of `plain`; a timer or a transfer is the world's to give back."""
        flight = cls(
            task,
            contribution,
            Pull.of_plain(plain["pull"]),
            shared_loss=plain["shared_loss"],
            places=plain["places"],
            legs=[Leg.of_plain(leg) for leg in plain["legs"]],
            **{name: plain[name] for name in _PLAIN},
        )
        if plain["running"] is not None:
            started_at_s, order, ends_at_s, work, _ = plain["running"]
            leg = None if work is None else Leg.of_plain(work)
            flight.running = Running(started_at_s, order, ends_at_s, leg)
        if flight.over:
            flight.end(flight.ended_at_s)
        return flight


_PLAIN = (
    "started_at_s",
    "departs_at_s",
    "done",
    "order",
    "merges",
    "outcome",
    "away",
    "over",
    "ended_at_s",
)
