"""A reader of LEAF's JSON: `users`, and for each of them `x` and `y`.

Files lie below `train` and `test`, or, without test data, in the folder itself.

Source: S. Caldas et al., "LEAF: a benchmark for federated settings", 2018.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from simfed.ground.errors import InputError
from simfed.ground.inputs import (
    MOST_FILE_BYTES,
    check_file,
    make_missing_file_error,
    read_json,
)
from simfed.ground.plain import Plain
from simfed.learn.data.outline import Outline, Reader, describe_error, find_first_row

_IMAGES = {784: (1, 28, 28)}
"""Numbers of a sample that are the pixels of an image, white 1 (FEMNIST)."""


class LeafReader(Reader):
    """A reader of FEMNIST's images, other lists of numbers, and Shakespeare's texts.

    Images are numbers, white 1. Texts have equally many characters with the one that
    follows, which are learned at every place; a character's number is its place among
    all characters of the files, sorted. Files are read as a whole, at the first
    question.
    """

    def __init__(self, folder: str) -> None:
        """List the files.

        Args:
            folder: The folder of a data set, as LEAF's scripts leave it.

        Raises:
            InputError: There is no such folder, no JSON file, or too much of it.
        """
        self._place = folder
        root = Path(folder)
        if not root.is_dir():
            raise make_missing_file_error(folder)
        parts = [root / "train", root / "test"] if (root / "train").is_dir() else [root]
        self._files = [sorted(part.glob("*.json")) for part in parts]
        if not self._files[0]:
            raise InputError(
                "LEAF's JSON files, in `train` and `test`", where=folder, got="none"
            )
        size = sum(check_file(file) for files in self._files for file in files)
        if size > MOST_FILE_BYTES:
            raise InputError(
                f"files of at most {MOST_FILE_BYTES:,} bytes", where=folder, got=size
            )

    @cached_property
    def _read(self) -> list[tuple[list[Any], list[Any], list[str]]]:
        """Samples, targets and owners of the training set, then of the test set."""
        return [_read_rows(files) for files in self._files if files]

    @cached_property
    def _alphabet(self) -> dict[str, int]:
        """Characters of all texts and targets, in the order of their numbers."""
        characters: set[str] = set()
        for samples, targets, _ in self._read:
            for text in (*samples, *targets):
                characters |= set(text)
        return {character: i for i, character in enumerate(sorted(characters))}

    @property
    def _is_text(self) -> bool:
        return isinstance(self._read[0][0][0], str)

    @property
    def _shape(self) -> tuple[int, ...]:
        length = len(self._read[0][0][0])
        return (length,) if self._is_text else _IMAGES.get(length, (length,))

    @override
    def outline(self) -> Outline:
        targets = [
            self._list_next_characters(*read) if self._is_text else np.array(read[1])
            for read in self._read
        ]
        owners = [np.array(names) for *_, names in self._read]
        return Outline(
            self._place,
            self._shape,
            targets,
            owners,
            classes=tuple(self._alphabet) if self._is_text else (),
            tokens=self._is_text,
        )

    def _list_next_characters(
        self, samples: list[Any], targets: list[Any], owners: list[str]
    ) -> NDArray[np.int64]:
        """Return for each character of the samples the next one, (n, length).

        Args:
            samples: Texts of one length.
            targets: The character that follows each text.
            owners: A user per text, for errors.

        Raises:
            InputError: A text of another length, or more than one character follows.
        """
        length = len(samples[0])
        for i, (text, last) in enumerate(zip(samples, targets, strict=True)):
            if not isinstance(text, str) or len(text) != length or len(last) != 1:
                raise InputError(
                    f"texts of {length} characters, each with the one that follows",
                    where=f"{self._place}: user {owners[i]}, row {i + 1}",
                    got=f"{text!r:.30} and {last!r:.10}",
                )
        rows = [
            [self._alphabet[c] for c in t[1:] + y]
            for t, y in zip(samples, targets, strict=True)
        ]
        return np.array(rows, np.int64)

    @override
    def samples(self, test: bool) -> np.ndarray:
        values, _, owners = self._read[1 if test else 0]
        rows: list[Any] = []
        for i, value in enumerate(values):
            if (
                len(value) != len(values[0])
                or isinstance(value, str) is not self._is_text
            ):
                raise InputError(
                    f"samples of length {len(values[0])}, as the first has",
                    where=f"{self._place}: user {owners[i]}, row {i + 1}",
                    got=len(value),
                )
            rows.append([self._alphabet[c] for c in value] if self._is_text else value)
        if self._is_text:
            return np.array(rows, np.int16)
        try:
            samples = np.array(rows, np.float32).reshape(len(rows), *self._shape)
        except (TypeError, ValueError):
            raise InputError(
                "lists of numbers", where=f"{self._place}: x", got="others"
            ) from None
        if (bad := find_first_row(~np.isfinite(samples))) is not None:
            where = f"{self._place}: user {owners[bad]}, row {bad + 1}"
            raise InputError("finite numbers", got="NaN or infinity", where=where)
        return samples


def _check_rows(x: list[Any], y: list[Any], first: Any, where: str) -> None:
    """Refuse samples that are neither texts to go on with nor numbers.

    Some sets of LEAF have those (CelebA, Sent140, Reddit).

    Args:
        x: One user's samples.
        y: Their targets.
        first: The first sample of the set, whose length other lists must have.
        where: File and user, for errors.

    Raises:
        InputError: With the row, and what reads such data.
    """
    for row, (sample, target) in enumerate(zip(x, y, strict=True), 1):
        at = f"{where}, row {row}"
        if isinstance(sample, str) and isinstance(target, str):
            continue
        if isinstance(sample, str):
            raise InputError(
                "numbers, or texts with the character that follows",
                where=f"{at}: x",
                problem=f"{sample!r:.40} with the label {target!r:.10}: a name of a "
                f"file as in "
                "CelebA, or a sentence",
                hint="dataset: {folder: …} reads images in a folder per class, {table: "
                "…} columns "
                "of numbers",
            )
        if (
            not isinstance(sample, list)
            or not sample
            or isinstance(sample[0], (list, str, dict))
        ):
            raise InputError(
                "a list of numbers, or a text",
                where=f"{at}: x",
                problem="a list of texts or lists, as in Sent140 and Reddit"
                if isinstance(sample, list) and sample
                else "neither",
                hint="dataset: {table: …} reads columns of numbers",
            )
        if len(sample) != len(first):
            allowed = f"{len(first)} numbers, as the first row has"
            raise InputError(allowed, where=f"{at}: x", got=len(sample))
        if not isinstance(target, (int, float)):
            raise InputError("a number", where=f"{at}: y", got=f"{target!r:.40}")


_HOLDS = (
    "LEAF's JSON, as in {users: [NAME, …], user_data: {NAME: {x: [sample, …], y: "
    "[target, …]}}}"
)


def _take(plain: Plain, key: str, kind: type, where: str) -> Any:
    """Return the list or mapping under a key of a LEAF file.

    Args:
        plain: What the file holds at this place.
        key: The key that must be there.
        kind: `list` or `dict`.
        where: The place, for errors.

    Raises:
        InputError: There is no such key, or something else under it.
    """
    if isinstance(plain, dict) and isinstance(plain.get(key), kind):
        return plain[key]
    found = isinstance(plain, dict) and key in plain
    what = "no list" if kind is list else "no mapping"
    problem = f"{key} is {what}" if found else f"no key {key}"
    raise InputError(_HOLDS, where=where, problem=problem)


def _read_rows(files: list[Path]) -> tuple[list[Any], list[Any], list[str]]:
    """Return samples, targets and owners of some files, a row each."""
    samples: list[Any] = []
    targets: list[Any] = []
    owners: list[str] = []
    for file in files:
        try:
            plain = read_json(file, MOST_FILE_BYTES)
            users = _take(plain, "users", list, str(file))
            data = _take(plain, "user_data", dict, str(file))
            for user in users:
                of_user = _take(data, str(user), dict, f"{file}: user_data")
                where = f"{file}: user_data: {user}"
                x, y = (_take(of_user, key, list, where) for key in "xy")
                if not len(x) or len(x) != len(y):
                    raise InputError(
                        "samples, and as many targets",
                        where=f"{file}: user {user}",
                        got=f"{len(x)} of x, {len(y)} of y",
                    )
                _check_rows(x, y, (samples or x)[0], f"{file}: user {user}")
                samples += x
                targets += y
                owners += [str(user)] * len(x)
        except InputError:
            raise
        except (TypeError, ValueError) as error:
            problem = f"cannot be read: {describe_error(error)}"
            raise InputError(_HOLDS, where=str(file), problem=problem) from None
    if not samples:
        raise InputError("users with samples", where=str(files[0]), got="none")
    return samples, targets, owners
