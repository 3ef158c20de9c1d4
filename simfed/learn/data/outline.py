"""Data of one's own: who owns which row, what is learned, and which rows are the test set.

A reader of a kind of files gives an `Outline`, all that sizes and partitions hang on, without
reading the samples; then the samples of the rows that are asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from simfed.ground.errors import InputError
from simfed.ground.seeding import Streams
from simfed.learn.facts import DatasetFacts

__all__ = ["TEST_SHARE", "Labels", "Outline", "Reader", "checked_targets", "labels_of"]

TEST_SHARE = 0.2
"""Of each owner's rows, where there are no test data."""

MOST_CLASSES = 100_000


@dataclass(frozen=True, eq=False)
class Outline:
    """What is learned from files, row by row, as they have it."""

    place: str
    """The file or folder, for errors."""
    input_shape: tuple[int, ...]
    targets: NDArray[Any]
    """(n,) texts or whole numbers, or numbers to be regressed on."""
    owners: NDArray[Any] | None = None
    """(n,) texts or numbers."""
    test_targets: NDArray[Any] | None = None
    test_owners: NDArray[Any] | None = None
    classes: tuple[str, ...] = ()
    """Names of the classes, whose numbers the targets then are; empty: the targets are names."""
    tokens: bool = False
    """Samples are whole numbers that stand for characters."""
    names: tuple[str, str] = ("target", "test target")
    """What the files call training and test targets, for errors."""


class Reader(Protocol):
    """Reads one kind of files."""

    def outline(self) -> Outline:
        """What is learned and whose it is."""
        ...

    def samples(self, test: bool) -> NDArray[Any]:
        """Samples of all rows, (n, *input_shape): uint8 images, float32 numbers or whole-number
        characters; of the files' own test data if `test`."""
        ...

    def scaling(self, rows: NDArray[Any]) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and sd per channel of training samples."""
        ...


@dataclass(frozen=True, eq=False)
class Labels:
    """All of a data set but its samples."""

    input_shape: tuple[int, ...]
    task: str
    classes: tuple[str, ...]
    """Their names; empty in a regression."""
    train_rows: NDArray[np.int64]
    """Where the training samples stand in the files."""
    test_rows: NDArray[np.int64] | None
    """The same of the test samples among the training rows; None: they are files of their own."""
    train_labels: NDArray[Any]
    test_labels: NDArray[Any]
    train_owners: NDArray[np.int64] | None = None
    """Per training sample, an index of `owners`."""
    test_owners: NDArray[np.int64] | None = None
    owners: tuple[str, ...] = ()
    tokens: bool = False

    @property
    def facts(self) -> DatasetFacts:
        """Shapes and counts."""
        return DatasetFacts(
            self.input_shape,
            len(self.classes) or 1,
            len(self.train_labels),
            len(self.test_labels),
            self.task,
            self.tokens,
            len(self.owners),
        )


def labels_of(outline: Outline, task: str) -> Labels:
    """Classes numbered, numbers standardised by the training rows, owners numbered, and a test set
    drawn where the files have none.

    The test set is the same for every seed: it belongs to the data. Raises: `InputError` that
    names the array or column and its row.
    """
    place, targets, tests = outline.place, outline.targets, outline.test_targets
    task = "next-token" if outline.tokens else task
    if task == "regression":
        names: tuple[str, ...] = ()
        targets = _numbers(targets, f"{place}: {outline.names[0]}")
        tests = None if tests is None else _numbers(tests, f"{place}: {outline.names[1]}")
    elif outline.classes:
        names = outline.classes
        targets = checked_targets(targets, len(names), f"{place}: {outline.names[0]}")
        if tests is not None:
            tests = checked_targets(tests, len(names), f"{place}: {outline.names[1]}")
    else:
        names, targets, tests = _numbered(targets, tests, place)
    if task == "classification" and len(names) < 2:
        raise InputError("at least 2 classes", where=place, got=len(names))
    owners, own, test_own = _owners(outline)
    rows = np.arange(len(targets))
    test_rows = None
    if tests is None:
        is_test = _drawn_test(len(targets), own)
        test_rows, rows = rows[is_test], rows[~is_test]
        tests, targets = targets[test_rows], targets[rows]
        if own is not None:
            test_own, own = own[test_rows], own[rows]
    if not len(rows) or not len(tests):
        raise InputError(
            "at least one training and one test row",
            where=place,
            got=f"{len(rows)} and {len(tests)}",
        )
    if task == "regression":
        mean, sd = float(targets.mean(dtype=np.float64)), float(targets.std(dtype=np.float64))
        targets, tests = ((part - mean) / (sd or 1.0) for part in (targets, tests))
    return Labels(
        outline.input_shape,
        task,
        names,
        rows,
        test_rows,
        targets,
        tests,
        own,
        test_own,
        owners,
        outline.tokens,
    )


def checked_targets(targets: NDArray[Any], classes: int, where: str) -> NDArray[np.int64]:
    """Whole numbers from 0 to classes − 1. Raises: `InputError` that names the first row of
    another one."""
    beyond = ((targets < 0) | (targets >= classes)).reshape(len(targets), -1)
    wrong = np.flatnonzero(beyond.any(axis=1))
    if wrong.size:
        row = int(wrong[0])
        raise InputError(
            f"a class from 0 to {classes - 1}",
            where=f"{where}, row {row + 1}",
            got=int(targets.reshape(len(targets), -1)[row][beyond[row]][0]),
        )
    return targets.astype(np.int64)


def _numbers(targets: NDArray[Any], where: str) -> NDArray[np.float32]:
    try:
        values = targets.astype(np.float32)
    except (TypeError, ValueError):
        raise InputError(
            "numbers in a regression",
            where=where,
            got=str(targets[0])[:40],
            hint="task: classification",
        ) from None
    wrong = np.flatnonzero(~np.isfinite(values).reshape(len(values), -1).all(axis=1))
    if wrong.size:
        raise InputError(
            "a finite number",
            where=f"{where}, row {int(wrong[0]) + 1}",
            got=str(targets[int(wrong[0])]),
        )
    return values


def _numbered(
    targets: NDArray[Any], tests: NDArray[Any] | None, place: str
) -> tuple[tuple[str, ...], NDArray[np.int64], NDArray[np.int64] | None]:
    """Names of the classes in order, and the targets as their numbers."""
    if np.issubdtype(targets.dtype, np.floating):
        wrong = np.flatnonzero(targets != np.floor(targets))
        if wrong.size:
            row = int(wrong[0])
            raise InputError(
                "whole numbers or texts as classes",
                where=f"{place}: row {row + 1}",
                got=float(targets[row]),
                hint="task: regression",
            )
        targets = targets.astype(np.int64)
        tests = None if tests is None else tests.astype(np.int64)
    everything = targets if tests is None else np.concatenate([targets, tests])
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


def _owners(
    outline: Outline,
) -> tuple[tuple[str, ...], NDArray[np.int64] | None, NDArray[np.int64] | None]:
    if outline.owners is None:
        return (), None, None
    for part, whose in (("owners", outline.owners), ("test owners", outline.test_owners)):
        if whose is not None and whose.dtype.kind == "f" and np.isnan(whose).any():
            row = int(np.flatnonzero(np.isnan(whose))[0])
            where = f"{outline.place}: {part}, row {row + 1}"
            raise InputError("an owner of every row", where=where, got="NaN")
    values, numbers = np.unique(outline.owners, return_inverse=True)
    names, test = tuple(map(str, values.tolist())), None
    if outline.test_owners is not None:
        test = np.searchsorted(values, outline.test_owners).clip(max=len(values) - 1)
        strange = np.flatnonzero(values[test] != outline.test_owners)
        if strange.size:
            row = int(strange[0])
            raise InputError(
                "owners that have training samples, too",
                where=f"{outline.place}: test owners, row {row + 1}",
                got=str(outline.test_owners[row]),
                problem="an owner without training samples",
            )
    return names, numbers.reshape(-1).astype(np.int64), test


def _drawn_test(rows: int, owners: NDArray[np.int64] | None) -> NDArray[np.bool_]:
    """A fifth of each owner's rows, rounded down; without owners of all rows."""
    order = Streams(0)("test rows").permutation(rows)
    chosen = np.zeros(rows, bool)
    if owners is None:
        chosen[order[: max(1, int(TEST_SHARE * rows))]] = True
        return chosen
    by_owner = order[np.argsort(owners[order], kind="stable")]
    counts = np.bincount(owners)
    place = np.arange(rows) - np.repeat(np.cumsum(counts) - counts, counts)
    chosen[by_owner[place < np.repeat((TEST_SHARE * counts).astype(np.int64), counts)]] = True
    if not chosen.any():  # nobody has five rows
        richest = int(np.argmax(counts))
        if counts[richest] > 1:
            chosen[np.flatnonzero(owners == richest)[-1]] = True
    return chosen
