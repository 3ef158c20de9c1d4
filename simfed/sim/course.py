"""The course of a participation: its steps, laid out once for all that are alike.

A plan says a participation in short, or its messages, work and barriers; here handling, unpacking
and compression come between, and an upload that overlaps its compression, or the computing of its
gradient, becomes slices.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from simfed.ground.method import Plan, Work
from simfed.ground.steps import CLIENT, DOWNLOAD, UPLOAD, Do, Send, Step

_Numbers = tuple[int, ...]


class Course(NamedTuple):
    """Steps, and what comes after what. Shared: nothing is written into it."""

    steps: Sequence[Step]
    nths: _Numbers
    """For each step that is work, how many of its quantity stand before it: a key of its noise."""
    draws: frozenset[int]
    """The steps at whose end a failure is drawn: of all local work, and of a stream, the last."""
    follow: tuple[_Numbers, ...] | None = None
    """For each step those that come after it; None: each comes after the one before, and all work
    is the client's."""
    waits: _Numbers = ()
    """For each step how many it comes after."""


NO_COURSE = Course((), (), frozenset())


class Block(NamedTuple):
    """What one step of a plan becomes."""

    steps: Sequence[Step]
    after: Sequence[_Numbers]
    """For each the numbers, within the block, of those that it comes after."""

    @classmethod
    def chain(cls, steps: Sequence[Step]) -> Block:
        """Each step begins when the one before it has ended."""
        return cls(steps, [(number - 1,) if number else () for number in range(len(steps))])


class Slice(NamedTuple):
    """A piece of an upload, by what it is of the whole."""

    share: float
    """Of its bytes."""
    entries: int = 1
    """Of its coordinates, and so of its compression; in a unit that is the same for all slices."""
    flops: int = 0
    """Of the pass back through the model after which it is there; likewise."""


class Surroundings(NamedTuple):
    """What stands around a plan's messages and work."""

    arrival: Sequence[Step]
    """The download, handling, unpacking, and the work of a plan in its short form."""
    packing: Sequence[Do]
    """The compression of each field."""
    slices: Sequence[Slice]
    """Of the upload, one sent while the next is compressed; empty: it is none."""
    training: Do | None = None
    """The local step, where the first slices are sent before its end."""


def plan_course(plan: Plan, parts: Surroundings) -> Course:
    """The course of a plan."""
    packing = Block.chain(parts.packing)
    if plan.up and parts.slices:
        packing = slice_upload(parts.packing, parts.slices, parts.training)
    elif plan.up:
        packing = Block.chain([*parts.packing, UPLOAD])
    arrival = Block.chain(parts.arrival)
    if not plan.steps:
        return _join_blocks([arrival, packing], [(), (0,)])
    blocks = [
        arrival if step == DOWNLOAD else packing if step == UPLOAD else Block.chain([step])
        for step in plan.steps
    ]
    after = list(plan.after) or [(number - 1,) if number else () for number in range(len(blocks))]
    if DOWNLOAD not in plan.steps:
        blocks.append(arrival)
        after = [before or (len(blocks) - 1,) for before in after]
        after.append(())
        # its number is the last, its place the first
        blocks.insert(0, blocks.pop())
        after.insert(0, after.pop())
        after = [tuple((old + 1) % len(blocks) for old in before) for before in after]
    return _join_blocks(blocks, after)


def slice_upload(
    packing: Sequence[Do], slices: Sequence[Slice], training: Do | None = None
) -> Block:
    """Each slice is compressed after the one before, and sent while the next one is. With the
    `training` step, the first third of it comes before all slices, and of the rest, the pass back,
    each slice's part before its compression."""
    steps: list[Step] = []
    after: list[_Numbers] = []
    last: _Numbers = ()
    entries, flops = sum(one.entries for one in slices), sum(one.flops for one in slices)

    def work(step: Do, part: int, whole: int, goes_on: bool = False) -> None:
        nonlocal last
        times = step.work.times * part / whole
        of_part = step.work._replace(times=times, goes_on=goes_on)
        last, before = (len(steps),), last
        steps.append(step._replace(work=of_part))
        after.append(before)

    if training is not None:
        work(training, 1, 3)
    for piece in slices:
        if training is not None:
            work(training, 2 * piece.flops, 3 * flops, goes_on=True)
        for step in packing:
            work(step, piece.entries, entries)
        steps.append(UPLOAD._replace(stream="upload", share=piece.share))
        after.append(last)
    return Block(steps, after)


def _join_blocks(blocks: Sequence[Block], after: Sequence[_Numbers]) -> Course:
    """Blocks, each after all ends of those that it comes after."""
    steps: list[Step] = []
    firsts = []
    for block in blocks:
        firsts.append(len(steps))
        steps += block.steps
    ends: dict[int, set[int]] = {}

    def ends_of(number: int) -> set[int]:
        """The steps with which a block ends; of an empty one, those of the blocks before it."""
        if number not in ends:
            block, first = blocks[number], firsts[number]
            inner = {other for before in block.after for other in before}
            last = {first + k for k in range(len(block.steps)) if k not in inner}
            ends[number] = last or set().union(*(ends_of(other) for other in after[number]))
        return ends[number]

    before: list[_Numbers] = []
    for number, (block, first) in enumerate(zip(blocks, firsts, strict=True)):
        for inner in block.after:
            if inner:
                before.append(tuple(first + k for k in inner))
            else:
                before.append(tuple(sorted(set().union(*map(ends_of, after[number])))))
    in_a_row = [(number - 1,) if number else () for number in range(len(steps))]
    alone = all(step.node == CLIENT for step in steps if isinstance(step, Do))
    # a unit on a node that others use may have to wait for its turn
    return _make_course(steps, None if before == in_a_row and alone else before)


def _make_course(steps: Sequence[Step], after: Sequence[_Numbers] | None) -> Course:
    nths: list[int] = []
    counts: dict[tuple[str, str], int] = {}
    ends: dict[str, int] = {}
    draws = set()
    for number, step in enumerate(steps):
        nth = 0
        if isinstance(step, Do):
            key = step.node, step.work.quantity
            nth = counts.get(key, 0) - step.work.goes_on
            counts[key] = nth + 1
            if step.node == CLIENT:
                ends[""] = number
        elif isinstance(step, Send):
            if step.stream:
                ends[step.stream] = number
            else:
                draws.add(number)
        nths.append(nth)
    draws |= set(ends.values())
    if after is None:
        return Course(tuple(steps), tuple(nths), frozenset(draws))
    follow: list[list[int]] = [[] for _ in steps]
    for number, before in enumerate(after):
        for other in before:
            follow[other].append(number)
    waits = tuple(len(before) for before in after)
    return Course(tuple(steps), tuple(nths), frozenset(draws), tuple(map(tuple, follow)), waits)


def units(works: Iterable[Work], phase: str = "") -> list[Do]:
    """Units of the client's work, one after another."""
    return [Do(CLIENT, work, phase or work.kind or work.quantity) for work in works]
