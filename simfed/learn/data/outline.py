"""Data of one's own: owners of rows, the task, and the test set.

A reader of a kind of files gives an `Outline`, all that sizes and partitions hang on,
without reading the samples; `build_labels` makes `Labels` of it: classes and owners
numbered, targets standardised, a test set drawn. Then the reader gives the samples of
the rows that are asked for. Checks that name a row (`refuse_row`, `check_finite`) are
here, for all readers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from simfed.ground.errors import InputError
from simfed.ground.seeding import Streams
from simfed.learn.facts import DatasetFacts

TEST_SHARE = 0.2
"""The share of each owner's rows that are tests, where there are no test data."""

MOST_CLASSES = 100_000


@dataclass(frozen=True, eq=False)
class Outline:
    """The task and owners of files, row by row, as files have them."""

    place: str
    """The file or folder, for errors."""
    input_shape: tuple[int, ...]
    targets: Sequence[np.ndarray]
    """(n,) texts or whole numbers, or numbers to be regressed on: of the training rows,
    then of the test rows, where files have these."""
    owners: Sequence[np.ndarray] = ()
    """(n,) texts or numbers, of the same sets; empty: the files name none."""
    classes: tuple[str, ...] = ()
    """Names of the classes, whose numbers the targets then are; empty: the targets are
    names."""
    tokens: bool = False
    """Samples are whole numbers that stand for characters."""
    target_places: tuple[str, ...] = ()
    """File and array or column of training and test targets, for errors; empty:
    `place`'s."""
    layout: str = ""
    """The layout of images; see `find_layout`."""


def find_layout(shape: tuple[int, ...], asked: str | None, where: str) -> str:
    """Return where samples of this shape have their channels.

    Args:
        shape: Of one sample, as in the file.
        asked: The scenario's `dataset.layout`; None: it says nothing. An axis of length
            1 or 3 then is the channels, if only the first or only the last is one.
        where: File and array, for errors.

    Returns:
        `channels-first`, `channels-last`, or `either` where nothing tells; empty for
        samples that have not three axes.

    Raises:
        InputError: A layout is asked of samples that have not three axes.

    >>> find_layout((3, 32, 32), None, ""), find_layout((32, 32, 4), None, "")
    ('channels-first', 'either')
    """
    if len(shape) != 3:
        if asked:
            allowed = "samples of three axes beside dataset.layout"
            raise InputError(allowed, where=where, got=shape)
        return ""
    first, last = (shape[axis] in (1, 3) for axis in (0, 2))
    if asked or first == last:
        return asked or "either"
    return "channels-first" if first else "channels-last"


def put_channels_first(shape: tuple[int, ...], layout: str) -> tuple[int, ...]:
    """Return the shape of samples whose channels come first.

    >>> put_channels_first((32, 24, 3), "channels-last")
    (3, 32, 24)
    """
    return (shape[2], *shape[:2]) if layout == "channels-last" else shape


class Reader(Protocol):
    """Reads one kind of files.

    A base class, too: `compute_scaling` is that of any images and numbers.
    """

    def outline(self) -> Outline:
        """Return what is learned, and whose it is."""
        ...

    def samples(self, test: bool) -> np.ndarray:
        """Return samples of all rows, (n, *input_shape).

        They are uint8 images, float32 numbers or whole-number characters; of the files'
        own test data if `test`.
        """
        ...

    def compute_scaling(
        self, rows: np.ndarray
    ) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return mean and sd per channel of training samples.

        By default those of any images, and none of numbers, which are used as they are.
        """
        return ((0.5,), (0.25,)) if rows.dtype == np.uint8 else ((), ())


@dataclass(frozen=True, eq=False)
class Labels:
    """A data set without its samples.

    `build_labels` makes it; sizes, partitions and `simfed data show` need no more.
    """

    input_shape: tuple[int, ...]
    task: str
    classes: tuple[str, ...]
    """Their names; empty in a regression."""
    train_rows: NDArray[np.int64]
    """The rows of the training samples in the files."""
    test_rows: NDArray[np.int64] | None
    """The rows of the test samples in the files of training; None: they have files of
    their own."""
    train_labels: np.ndarray
    test_labels: np.ndarray
    train_owners: NDArray[np.int64] | None = None
    """Per training sample, an index of `owners`."""
    test_owners: NDArray[np.int64] | None = None
    owners: tuple[str, ...] = ()
    tokens: bool = False
    target_sd: float = 1.0
    """The number by which a regression's targets were divided."""
    layout: str = ""
    """The layout of images in the files; see `find_layout`."""

    @property
    def facts(self) -> DatasetFacts:
        """The input shape, classes and counts of samples, without the samples."""
        return DatasetFacts(
            self.input_shape,
            len(self.classes) or 1,
            len(self.train_labels),
            len(self.test_labels),
            self.task,
            self.tokens,
            len(self.owners),
            self.layout,
        )


def build_labels(outline: Outline, task: str) -> Labels:
    """Return classes and owners numbered, targets standardised, a test set drawn.

    Targets of a regression are standardised by the training rows. Without test data in
    the files a fifth of each owner's rows becomes the test set, the same for every
    seed: it belongs to the data. A class that only test rows have counts like any
    other.

    Args:
        outline: What a reader found.
        task: `classification` or `regression`; texts are `next-token` in any case.

    Raises:
        InputError: Names the array or column, and the row.
    """
    place, (targets, *more) = outline.place, outline.targets
    tests = more[0] if more else None
    task = "next-token" if outline.tokens else task
    where, where_test, *_ = (
        *outline.target_places,
        f"{place}: target",
        (f"{place}: test target"),
    )
    if task == "regression":
        names: tuple[str, ...] = ()
        targets = _convert_numbers(targets, where)
        tests = None if tests is None else _convert_numbers(tests, where_test)
    elif outline.classes:
        names = outline.classes
        targets = check_targets(targets, len(names), where)
        tests = None if tests is None else check_targets(tests, len(names), where_test)
    else:
        names, targets, tests = _number_classes(
            targets, tests, place, where, where_test
        )
    if task == "classification" and len(names) < 2:
        raise InputError("at least 2 classes", where=place, got=len(names))
    owners, owner_of, test_own = _number_owners(outline)
    rows = np.arange(len(targets))
    test_rows = None
    if tests is None:
        is_test = _draw_test_rows(len(targets), owner_of)
        test_rows, rows = rows[is_test], rows[~is_test]
        tests, targets = targets[test_rows], targets[rows]
        if owner_of is not None:
            test_own, owner_of = owner_of[test_rows], owner_of[rows]
    if not len(rows) or not len(tests):
        raise InputError(
            "at least one training and one test row",
            where=place,
            got=f"{len(rows)} and {len(tests)}",
        )
    sd = 1.0
    if task == "regression":
        mean, sd = (
            float(targets.mean(dtype=np.float64)),
            float(targets.std(dtype=np.float64)),
        )
        sd = sd or 1.0
        targets, tests = ((part - mean) / sd for part in (targets, tests))
    return Labels(
        outline.input_shape,
        task,
        names,
        rows,
        test_rows,
        targets,
        tests,
        owner_of,
        test_own,
        owners,
        outline.tokens,
        sd,
        outline.layout,
    )


def check_targets(targets: np.ndarray, classes: int, where: str) -> NDArray[np.int64]:
    """Return targets as whole numbers from 0 to classes − 1.

    Args:
        targets: (n,) numbers; floats must be whole.
        classes: The number of classes.
        where: File and array or column, for errors.

    Raises:
        InputError: Names the first row of another value.
    """
    allowed = f"a class from 0 to {classes - 1}"
    targets = _convert_floats(targets, where)
    if targets.dtype.kind not in "iub":
        got = "texts" if targets.dtype.kind in "US" else str(targets.dtype)
        raise InputError(allowed, where=where, got=got)
    refuse_row((targets < 0) | (targets >= classes), where, allowed, got=targets)
    return targets.astype(np.int64)


def _convert_numbers(targets: np.ndarray, where: str) -> NDArray[np.float32]:
    """Return targets of a regression as float32.

    Raises:
        InputError: Texts, or a row that is not finite.
    """
    try:
        values = targets.astype(np.float32)
    except (TypeError, ValueError):
        raise InputError(
            "numbers in a regression",
            where=where,
            got=str(targets[0])[:40],
            hint="task: classification",
        ) from None
    refuse_row(~np.isfinite(values), where, "a finite number", got=targets)
    return values


def check_finite(rows: np.ndarray, where: str) -> None:
    """Raises: `InputError` that names the first row with a non-finite number."""
    refuse_row(~np.isfinite(rows), where, "finite numbers", got="NaN or infinity")


def refuse_row(
    wrong: np.ndarray, where: str, allowed: str, *, got: np.ndarray | str, **more: str
) -> None:
    """Raises: `InputError` for the first row of `wrong` with a true value.

    Args:
        wrong: (n, …) bool.
        where: File and array or column; the row, counted from 1, is added.
        allowed: What a row must be.
        got: What every such row has, or (n,) the rows themselves.
        more: What else the error says, such as `hint`.
    """
    if (row := find_first_row(wrong)) is not None:
        has = got if isinstance(got, str) else got[row].tolist()
        raise InputError(allowed, where=f"{where}, row {row + 1}", got=has, **more)


def describe_error(error: Exception) -> str:
    r"""Return the first line of what an error says, or the name of its kind.

    >>> describe_error(OSError()), describe_error(ValueError("no\nnumber"))
    ('OSError', 'no')
    """
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]


def find_first_row(wrong: NDArray[np.bool_]) -> int | None:
    """Return the first row with a true value; None: there is none.

    >>> find_first_row(np.array([[False, False], [False, True]]))
    1
    """
    rows = np.flatnonzero(wrong.any(axis=tuple(range(1, wrong.ndim))))
    return int(rows[0]) if rows.size else None


def _number_classes(
    targets: np.ndarray,
    tests: np.ndarray | None,
    place: str,
    where: str,
    where_test: str,
) -> tuple[tuple[str, ...], NDArray[np.int64], NDArray[np.int64] | None]:
    """Return names of the classes in order, and the targets as their numbers.

    Classes are the different values of training and test rows together.

    Args:
        targets: (n,) texts or whole numbers.
        tests: (m,) those of test rows, or None.
        place: The file, for errors.
        where: File and array or column of the training targets.
        where_test: The same of the test targets.

    Raises:
        InputError: Texts in one set and numbers in the other, or nearly as many values
            as rows, which are no classes.
    """
    everything = targets = _convert_floats(targets, where)
    if tests is not None:
        tests = _convert_floats(tests, where_test)
        are_texts = [part.dtype.kind in "US" for part in (targets, tests)]
        if len(tests) and are_texts[0] is not are_texts[1]:
            allowed = (
                f"{'texts' if are_texts[0] else 'numbers'} as classes, as {where} has"
            )
            raise InputError(
                allowed, where=f"{where_test}, row 1", got=str(tests[0])[:40]
            )
        everything = np.concatenate([targets, tests])
    values, numbers = np.unique(everything, return_inverse=True)
    if len(values) > min(MOST_CLASSES, max(2, len(targets) // 2)):
        raise InputError(
            f"classes, each with some of the {len(targets)} rows",
            where=place,
            got=f"{len(values)} different targets",
            hint="task: regression, or another target",
        )
    numbers = numbers.reshape(-1).astype(np.int64)
    test = None if tests is None else numbers[len(targets) :]
    return tuple(map(str, values.tolist())), numbers[: len(targets)], test


def _convert_floats(targets: np.ndarray, where: str) -> np.ndarray:
    """Return whole numbers in place of floats; anything else as it is.

    Raises: `InputError` that names the first row of a float that is not whole.
    """
    if targets.dtype.kind != "f":
        return targets
    # NaN, infinity and what is too large differ below
    with np.errstate(invalid="ignore"):
        whole = targets.astype(np.int64)
    allowed, hint = "whole numbers or texts as classes", "task: regression"
    refuse_row(whole != targets, where, allowed, got=targets, hint=hint)
    return whole


def _number_owners(
    outline: Outline,
) -> tuple[tuple[str, ...], NDArray[np.int64] | None, NDArray[np.int64] | None]:
    """Return names of the owners, and the index of each training and test row's owner.

    Names are those of training rows; an owner of test rows alone is an error.
    """
    if not outline.owners:
        return (), None, None
    for part, whose in zip(("owners", "test owners"), outline.owners, strict=False):
        if whose.dtype.kind == "f":
            where = f"{outline.place}: {part}"
            refuse_row(np.isnan(whose), where, "an owner of every row", got="NaN")
    values, numbers = np.unique(outline.owners[0], return_inverse=True)
    test = None
    for whose in outline.owners[1:]:
        test = np.searchsorted(values, whose).clip(max=len(values) - 1)
        refuse_row(
            values[test] != whose,
            f"{outline.place}: test owners",
            "owners that have training samples, too",
            got=whose,
            problem="an owner without training samples",
        )
    names = tuple(map(str, values.tolist()))
    return names, numbers.reshape(-1).astype(np.int64), test


def _draw_test_rows(rows: int, owners: NDArray[np.int64] | None) -> NDArray[np.bool_]:
    """Return a fifth of each owner's rows, rounded down; without owners of all rows."""
    order = Streams(0)("test rows").permutation(rows)
    chosen = np.zeros(rows, bool)
    if owners is None:
        chosen[order[: max(1, int(TEST_SHARE * rows))]] = True
        return chosen
    by_owner = order[np.argsort(owners[order], kind="stable")]
    counts = np.bincount(owners)
    place = np.arange(rows) - np.repeat(np.cumsum(counts) - counts, counts)
    chosen[
        by_owner[place < np.repeat((TEST_SHARE * counts).astype(np.int64), counts)]
    ] = True
    if not chosen.any():  # nobody has five rows
        richest = int(np.argmax(counts))
        if counts[richest] > 1:
            chosen[np.flatnonzero(owners == richest)[-1]] = True
    return chosen
