"""The course of a participation: its steps, laid out once for all that are alike.

A plan says a participation in short, or its messages, work and barriers; here handling, unpacking
and compression come between.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from simfed.ground.method import Plan, Work
from simfed.ground.steps import CLIENT, DOWNLOAD, UPLOAD, Do, Send, Step


class Course(NamedTuple):
    """Steps, each begun when the one before has ended. Shared: nothing is written into it."""

    steps: Sequence[Step]
    nths: Sequence[int]
    """For each step that is work, how many of its quantity stand before it: a key of its noise."""
    draws: frozenset[int]
    """The steps at whose end a failure is drawn: each message, and of all local work the last."""
    chunks: int = 1
    """The upload's, each sent while the next is compressed."""
    packing: Sequence[Do] = ()
    """The compression that is part of an upload in several chunks; else it stands among
    `steps`."""


NO_COURSE = Course((), (), frozenset())


def plan_course(
    plan: Plan, arrival: Sequence[Step], packing: Sequence[Do], chunks: int = 1
) -> Course:
    """Return the course of a plan.

    arrival: the download, handling, unpacking, and the work of a plan in its short form.
    packing: the compression of each field.
    """
    beside: Sequence[Do] = ()
    if chunks > 1 and plan.up:
        beside, packing = packing, ()
    upload: list[Step] = [*packing, UPLOAD] if plan.up else [*packing]
    if not plan.steps:
        return _make_course([*arrival, *upload], chunks, beside)
    steps: list[Step] = [] if DOWNLOAD in plan.steps else [*arrival]
    for step in plan.steps:
        steps += arrival if step == DOWNLOAD else upload if step == UPLOAD else [step]
    return _make_course(steps, chunks, beside)


def _make_course(steps: Sequence[Step], chunks: int, beside: Sequence[Do]) -> Course:
    nths: list[int] = []
    counts: dict[tuple[str, str], int] = {}
    draws, last = set(), -1
    for number, step in enumerate(steps):
        nth = 0
        if isinstance(step, Do):
            key = step.node, step.work.quantity
            nth = counts.get(key, 0)
            counts[key] = nth + 1
            if step.node == CLIENT:
                last = number
        elif isinstance(step, Send):
            draws.add(number)
        nths.append(nth)
    draws.add(last)
    return Course(tuple(steps), tuple(nths), frozenset(draws), chunks, tuple(beside))


def units(works: Iterable[Work], phase: str = "") -> list[Do]:
    """Return units of the client's work, one after another."""
    return [Do(CLIENT, work, phase or work.kind or work.quantity) for work in works]
