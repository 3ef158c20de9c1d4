"""Courses: the work of a participation, laid out once for all that are alike."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from simfed.ground.method import Plan, Work
from simfed.record.schema import HANDLING
from simfed.sim.flight import Flight

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
    """Those that were laid out."""

    def __init__(self) -> None:
        self._laid: dict[tuple[object, ...], tuple[Plan, Course]] = {}

    def of(self, flight: Flight, handled: bool) -> Course:
        """Return the course of a participation.

        `handled`: its device's profile knows what it takes to handle its messages.
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
    packing = number(flight.codec_work("compression"), "compression")
    chunks = flight.contribution.choice.codec.chunks if packing else 1
    return Course(arrival, work, packing, chunks)
