"""Samples of each label for clients whose sizes are given: a transport problem.

Given are the table that a Dirichlet split draws (clients × labels), each client's
number of samples and each label's stock. Among the tables with these row sums, of which
no column holds more than its stock, `fit_table` takes the one that is nearest to the
drawn one by the Kullback–Leibler divergence: each client keeps the drawn odds of its
labels, up to one factor per label that runs short. The factors are found by iterative
proportional fitting (Deming & Stephan 1940; I. Csiszár, Ann. Probab. 3, 1975), after
which cells are rounded to whole samples by a keyed systematic draw, and what a column
then holds beyond its stock moves to labels that have room, with the least change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from simfed.ground.arrays import Bools, Floats, Ints
from simfed.ground.errors import InputError

_LEAST_SHARE = 1e-6
"""A drawn share below is taken for this one: odds beyond it say nothing."""

_WHERE = "dataset.partition"


@dataclass(frozen=True, eq=False)
class Sizing:
    """The samples and labels that each client shall own, beside what a kind draws."""

    sizes: str | tuple[int, int] | Floats | None = None
    """`equal`, bounds between which sizes are drawn uniformly, a number for each
    client, or None: as the kind of partition has them."""
    least: int | None = None
    """No client owns fewer samples."""
    classes: int | None = None
    """Labels of each client; None: as many as there are."""

    @property
    def says(self) -> bool:
        """True if anything is said."""
        given = self.sizes, self.least, self.classes
        return any(value is not None for value in given)


UNSIZED = Sizing()


def deal_table(
    drawn: Floats,
    stocks: Ints,
    sizing: Sizing,
    names: Sequence[str],
    rng: np.random.Generator,
) -> Ints:
    """Return how many samples of each label (a column) each client (a row) owns.

    Args:
        drawn: (clients, labels) the samples that a Dirichlet split draws, in fractions.
        stocks: (labels,) samples that are there.
        sizing: what each client shall own.
        names: of the labels, for errors.
        rng: sizes, ties and rounding.

    Raises: `InputError` for what cannot be had, with what could.

    >>> drawn = np.array([[6.0, 1.0], [2.0, 7.0], [0.0, 0.0]])
    >>> rng, stocks = np.random.default_rng(0), np.array([8, 8])
    >>> sizing = Sizing(np.array([4.0, 6.0, 2.0]))
    >>> deal_table(drawn, stocks, sizing, "ab", rng).sum(axis=1)
    array([4, 6, 2])
    """
    sizes, least, classes = sizing.sizes, sizing.least or 1, sizing.classes
    holds = np.ones(drawn.shape, bool)
    if classes is not None:
        holds = choose_labels(drawn, stocks, classes, names, rng)
    held = np.where(holds.any(axis=0), stocks, 0)
    natural = np.maximum(drawn, _LEAST_SHARE * stocks) * holds
    natural *= held / np.maximum(natural.sum(axis=0), 1e-300)
    total = int(held.sum())
    most = None if classes is None else _find_most(holds, held, least, names)
    owned = size_clients(sizing, natural.sum(axis=1), total, rng)
    if classes is None or most is None:
        return fit_table(natural, owned, stocks, rng)
    if isinstance(sizes, str):
        owned = np.full(len(drawn), most)
    else:
        owned = fit_sizes(owned, holds, held, least if sizes is None else None, names)
    rest = held - holds.sum(axis=0)
    table = holds + fit_table(natural, owned - classes, rest, rng)
    for label in np.flatnonzero(held) if sizes is None else ():
        some = np.flatnonzero(holds[:, label])
        left, none = (
            int(stocks[label] - table[:, label].sum()),
            np.zeros(len(some), int),
        )
        table[some, label] += apportion(natural[some, label], left, none, none + left)
    return table


def apportion(weights: Floats, total: int, least: Ints, most: Ints) -> Ints:
    """Return whole numbers between two bounds that sum to `total`.

    They are in proportion to `weights` where the bounds let them; what rounding leaves
    goes to the largest remainders. The sums of the bounds must lie around `total`.

    >>> zero, ten = np.zeros(3, int), np.full(3, 10)
    >>> apportion(np.array([1.0, 1.0, 8.0]), 15, zero + 2, ten).tolist()
    [3, 2, 10]
    """
    weights = np.maximum(weights / weights.max(), 1e-12)
    low, high = 0.0, total / weights.min() + 1
    for _ in range(200):
        middle = (low + high) / 2
        short = np.clip(middle * weights, least, most).sum() < total
        low, high = (middle, high) if short else (low, middle)
    exact = np.clip(low * weights, least, most)
    whole = np.floor(exact).astype(np.int64)
    while (left := total - whole.sum()) > 0:
        open_ = np.where(whole < most, exact - whole, -np.inf)
        room = np.argsort(-open_, kind="stable")[: int((whole < most).sum())]
        whole[room[:left]] += 1
    return whole


def size_clients(
    sizing: Sizing, natural: Floats, total: int, rng: np.random.Generator
) -> Ints:
    """Return how many of `total` samples each client owns.

    Args:
        sizing: what each client shall own.
        natural: (clients,) the sizes that the kind of partition draws.
        total: samples to deal.
        rng: draws sizes between bounds.

    Raises: `InputError` for sizes that cannot be had, with those that could.
    """
    sizes, least, clients = sizing.sizes, sizing.least or 1, len(natural)
    if clients * least > total:
        allowed = f"at most {total // clients}, as {clients} clients share {total}"
        raise InputError(f"{allowed} samples", where=f"{_WHERE}.least", got=least)
    floor, where = np.full(clients, least), f"{_WHERE}.sizes"
    if sizes is None:
        return apportion(natural, total, floor, np.full(clients, total))
    if isinstance(sizes, str):
        return total // clients + (np.arange(clients) < total % clients)
    if isinstance(sizes, tuple):
        low, high = max(sizes[0], least), sizes[1]
        if low > high:
            allowed = f"[low, high] with at least {low} as its high"
            raise InputError(allowed, where=where, got=list(sizes))
        if clients * low > total:
            allowed = f"a low of at most {total // clients}, as {clients} clients share"
            raise InputError(f"{allowed} {total} samples", where=where, got=list(sizes))
        drawn = rng.integers(low, high, clients, endpoint=True)
        if drawn.sum() <= total:
            return drawn
        return apportion(
            (drawn - low).astype(np.float64) + 0.5, total, floor * 0 + low, drawn
        )
    if sizes.min() < least:
        client = int(sizes.argmin())
        allowed = f"sizes of at least {least}, as `least` says"
        where = f"{where}: client {client}"
        raise InputError(allowed, where=where, got=int(sizes[client]))
    if sizes.sum() > total:
        allowed = f"sizes that sum to at most {total} samples"
        hint = f"factor: {np.floor(1e4 * total / sizes.sum()) / 1e4:g} makes them fit"
        raise InputError(allowed, where=where, got=int(sizes.sum()), hint=hint)
    return sizes.astype(np.int64)


def choose_labels(
    drawn: Floats,
    stocks: Ints,
    classes: int,
    names: Sequence[str],
    rng: np.random.Generator,
) -> Bools:
    """Return which labels each client holds: exactly `classes` of them.

    A label goes to as many clients as its stock is large; of the tables that hold to
    this, one is taken that keeps clients at labels of which they drew most.

    Args:
        drawn: (clients, labels) the samples that a Dirichlet split draws.
        stocks: (labels,) samples that are there.
        classes: labels of each client.
        names: of the labels.
        rng: decides ties.

    Raises: `InputError` where there are too few labels, or samples of them.
    """
    clients, labels = drawn.shape
    most = np.minimum(stocks, clients)
    could = int(most.sum()) // clients
    if classes > could:
        problem = _tell_labels(np.flatnonzero(stocks < clients).tolist(), names)
        raise InputError(
            f"at most {could} of the {labels} labels",
            where=f"{_WHERE}.classes",
            got=classes,
            problem=problem if could < min(classes, labels) else "",
        )
    wanted = clients * classes
    holders = np.minimum(1, most)
    if wanted > labels:
        holders = apportion(stocks.astype(np.float64), wanted, holders, most)
    sums = np.maximum(drawn.sum(axis=1, keepdims=True), 1e-300)
    shares = drawn / sums + 1e-9 * rng.random(drawn.shape)
    chosen = np.zeros(drawn.shape, np.int64)
    np.put_along_axis(chosen, np.argsort(-shares, 1)[:, :classes], 1, 1)
    return _move_excess(chosen, shares, holders, np.ones_like(chosen)) > 0


def _find_most(holds: Bools, stocks: Ints, least: int, names: Sequence[str]) -> int:
    """Return the largest size that all clients can have who hold only some labels.

    Raises: `InputError` where it is below `least`.
    """
    classes = int(holds[0].sum())

    def scale(size: int) -> Ints:
        return np.full(len(holds), max(classes, size))

    most = _find_largest(scale, int(stocks.sum()) // len(holds), holds, stocks)
    if max(most, classes) < least:
        allowed, where = f"at most {max(most, classes)}", f"{_WHERE}.least"
        problem = _tell_labels(_find_shortage(scale(least), holds, stocks), names)
        raise InputError(allowed, where=where, got=least, problem=problem)
    return max(most, classes)


def fit_sizes(
    sizes: Ints, holds: Bools, stocks: Ints, least: int | None, names: Sequence[str]
) -> Ints:
    """Return sizes that clients can have who hold only some labels.

    Args:
        sizes: (clients,) what they should be.
        holds: (clients, labels) which labels each client holds.
        stocks: (labels,) samples that are there.
        least: down to which sizes give way where labels run out; None: they must hold.
        names: of the labels.

    Raises: `InputError` that names the labels that run out, and what could be had.
    """
    classes, where = int(holds[0].sum()), f"{_WHERE}.sizes"

    def scale(step: int) -> Ints:
        return np.maximum(sizes * step // 1000, max(classes, least or 0))

    if least is not None:
        return scale(_find_largest(scale, 1000, holds, stocks))
    if sizes.min() < classes:
        allowed = f"at least {classes} samples, one of each of a client's classes"
        raise InputError(allowed, where=where, got=int(sizes.min()))
    short = _find_shortage(sizes, holds, stocks)
    if short:
        factor = _find_largest(scale, 999, holds, stocks) / 1000
        allowed = f"at most {factor:g} times these sizes"
        raise InputError(allowed, where=where, problem=_tell_labels(short, names))
    return sizes


def _find_largest(
    scale: Callable[[int], Ints], high: int, holds: Bools, stocks: Ints
) -> int:
    """Return the largest number up to `high` whose sizes can be had; 0's can."""
    low = 0
    while low < high:
        middle = (low + high + 1) // 2
        if _find_shortage(scale(middle), holds, stocks):
            high = middle - 1
        else:
            low = middle
    return low


def fit_table(
    weights: Floats, sizes: Ints, stocks: Ints, rng: np.random.Generator
) -> Ints:
    """Return the samples of each client (a row) and label, with exactly these sizes.

    Args:
        weights: (clients, labels) the table to which the result is near; cells of 0
            stay 0.
        sizes: (clients,) the sums of rows, which can be had.
        stocks: (labels,) the most that columns sum to.
        rng: rounds.
    """
    target = _fit_proportions(weights, sizes, stocks)
    key = np.where(target > 0, rng.random(target.shape), -1.0)
    order = np.argsort(key, axis=1)  # cells of nothing first: the sum ends in another
    reached = np.cumsum(np.take_along_axis(target, order, 1), axis=1)
    reached[:, -1] = sizes
    start = rng.random((len(sizes), 1)) * (1 - 1e-9)
    rounded = np.floor(np.minimum(reached, sizes[:, None]) + start).astype(np.int64)
    table = np.zeros_like(rounded)
    np.put_along_axis(table, order, np.diff(rounded, axis=1, prepend=0), 1)
    return _move_excess(table, target, stocks, (weights > 0) * int(sizes.max()))


def _fit_proportions(weights: Floats, sizes: Ints, stocks: Ints) -> Floats:
    """Return `weights` times a factor per row and one of at most 1 per column.

    Rows then sum to `sizes`, and columns to at most `stocks` where that converges.
    """
    columns = np.ones(len(stocks))
    for _ in range(500):
        rows = sizes / np.maximum(weights @ columns, 1e-300)
        loads = rows @ weights
        before, columns = columns, np.minimum(1, stocks / np.maximum(loads, 1e-300))
        if np.abs((columns - before) * loads).max() < 0.01:
            break
    table = weights * columns
    totals = table.sum(axis=1, keepdims=True)
    scaled: Floats = table * (sizes[:, None] / np.maximum(totals, 1e-300))
    return scaled


def _move_excess(table: Ints, target: Floats, stocks: Ints, most: Ints) -> Ints:
    """Return the table with no column above its stock; row sums stay.

    Samples move to the label that costs the least squared distance from `target`, one
    of each row at a time, through a third label where they must. No cell exceeds
    `most`. There has to be such a table.
    """
    table = table.copy()
    while ((over := table.sum(axis=0) - stocks) > 0).any():
        full, roomy = int(over.argmax()), np.flatnonzero(over < 0)
        gains = _compute_gain(table, target, most, full, roomy)
        best = gains.argmax(axis=1)
        moved = 0
        for row in np.argsort(-gains.max(axis=1), kind="stable")[: over[full]]:
            label = roomy[best[row]]
            if np.isinf(gains[row, best[row]]) or over[label] >= 0:
                continue
            table[row, [full, label]] += -1, 1
            over[label] += 1
            moved += 1
        if not moved:
            for giving, taking in _find_way(table, most, full, roomy):
                gain = _compute_gain(table, target, most, giving, np.array([taking]))
                table[int(gain.argmax()), [giving, taking]] += -1, 1
    return table


def _compute_gain(
    table: Ints, target: Floats, most: Ints, full: int, labels: Ints
) -> Floats:
    """Return per row and label how much nearer a sample of `full` brings the table.

    Minus infinity where a row has none, or no room.
    """
    beyond = table - target
    gains = beyond[:, [full]] - beyond[:, labels]
    can = (table[:, [full]] > 0) & (table[:, labels] < most[:, labels])
    return np.where(can, gains, -np.inf)


def _find_way(table: Ints, most: Ints, full: int, roomy: Ints) -> list[tuple[int, int]]:
    """Return the shortest chain of moves from a label to one that has room."""
    from scipy.sparse import csgraph, csr_array

    can = (table > 0).T.astype(np.float64) @ (table < most) > 0
    order, before = csgraph.breadth_first_order(csr_array(can), full)
    label = int(next(label for label in order if label in roomy))
    way = []
    while label != full:
        way.append((int(before[label]), label))
        label = int(before[label])
    return way[::-1]


def _find_shortage(sizes: Ints, holds: Bools, stocks: Ints) -> list[int]:
    """Return the labels that run out where clients own at least one of each they hold.

    They are a minimum cut; none where the sizes can be had.
    """
    from scipy.sparse import coo_array, csgraph

    clients, labels = holds.shape
    rows, columns = np.nonzero(holds)
    end = clients + labels + 1
    demand = sizes - holds.sum(axis=1)
    tails = [np.zeros(clients, int), rows + 1, np.arange(labels) + clients + 1]
    heads = [np.arange(clients) + 1, columns + clients + 1, np.full(labels, end)]
    most = [demand, demand[rows], stocks - holds.sum(axis=0)]
    ends = np.concatenate(tails), np.concatenate(heads)
    graph = coo_array((np.concatenate(most).astype(np.int32), ends), (end + 1, end + 1))
    result = csgraph.maximum_flow(graph.tocsr(), 0, end)
    if result.flow_value == demand.sum():
        return []
    left = graph.tocsr() - result.flow
    left.eliminate_zeros()
    reached = csgraph.breadth_first_order(left, 0, return_predecessors=False)
    return sorted(int(node) - clients - 1 for node in reached if node > clients)


def _tell_labels(labels: Sequence[int], names: Sequence[str]) -> str:
    shown = [names[label] for label in labels[:10]] + ["…"] * (len(labels) > 10)
    return f"samples of label {', '.join(shown)} run out"
