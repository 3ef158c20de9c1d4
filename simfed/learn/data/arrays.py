"""Arrays in an npz file, read array by array; headers tell all that sizes hang on.

`Arrays` guards the file (its unpacked size, whole headers, no pickled objects);
`NpzReader` gives `x_train, y_train, …` their meaning as a data set.
"""

from __future__ import annotations

import tokenize
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import IO

import numpy as np
from typing_extensions import override

from simfed.ground.errors import InputError, listed
from simfed.ground.inputs import MOST_FILE_BYTES, open_file
from simfed.learn.data.outline import (
    MOST_CLASSES,
    Outline,
    Reader,
    check_finite,
    check_targets,
    describe_error,
    find_layout,
    put_channels_first,
)

_UNREADABLE = (
    zipfile.BadZipFile,
    EOFError,
    OSError,
    ValueError,
    NotImplementedError,
    SyntaxError,
    tokenize.TokenError,
)
"""Exceptions of zipfile and NumPy for files that are not whole, headers included."""


class Arrays:
    """The arrays of an npz file.

    Nothing is unpacked but what is asked for, and no more of it than the file's own
    list says; arrays of objects, which are code, are refused. All methods raise
    `InputError` for a file that is not whole.

    Attributes:
        path: The file.
        names: Names of its arrays, in the file's order, without `.npy`.
    """

    def __init__(self, path: str) -> None:
        """Read the list of arrays.

        Args:
            path: The file.

        Raises:
            InputError: It is no zip archive, or unpacks to more than `MOST_FILE_BYTES`.
        """
        self.path = path
        with self._open_archive() as archive:
            sizes = {info.filename: info.file_size for info in archive.infolist()}
        total = sum(sizes.values())
        if total > MOST_FILE_BYTES:
            raise InputError(
                f"an archive that unpacks to at most {MOST_FILE_BYTES:,} bytes",
                where=path,
                got=f"{total:,} bytes",
            )
        self.names = [
            name.removesuffix(".npy") for name in sizes if name.endswith(".npy")
        ]
        self._sizes = sizes

    def header(self, name: str) -> tuple[tuple[int, ...], np.dtype]:
        """Return shape and type of an array, of which no value is read.

        Raises:
            InputError: Objects or other types than numbers and texts, or fewer bytes
                than the header announces.
        """
        with self._open_archive() as archive, archive.open(f"{name}.npy") as file:
            return self._read_header(file, name)

    def read(self, name: str) -> np.ndarray:
        """Return an array as a whole, checked as `header` does."""
        with self._open_archive() as archive, archive.open(f"{name}.npy") as file:
            self._read_header(file, name)
            file.seek(0)
            return np.asarray(np.lib.format.read_array(file, allow_pickle=False))

    def _read_header(
        self, file: IO[bytes], name: str
    ) -> tuple[tuple[int, ...], np.dtype]:
        """Return shape and type of the open array `file`; see `header`."""
        where = f"{self.path}: {name}"
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0
        if version != (1, 0):
            read = np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
        if dtype.kind not in "biufUS":
            got = "objects" if dtype.hasobject else str(dtype)
            raise InputError("an array of numbers or texts", where=where, got=got)
        if min(shape, default=0) < 0:
            raise InputError("axes of at least 0", where=where, got=shape)
        size = int(np.prod(shape, dtype=object)) * dtype.itemsize
        if size > (left := self._sizes[f"{name}.npy"] - file.tell()):
            allowed = f"{size:,} bytes, as its header says"
            raise InputError(allowed, where=where, got=f"{left:,}")
        return shape, dtype

    @contextmanager
    def _open_archive(self) -> Iterator[zipfile.ZipFile]:
        """Open the archive; what zipfile and NumPy raise becomes an `InputError`."""
        try:
            with open_file(self.path) as file, zipfile.ZipFile(file) as archive:
                yield archive
        except InputError:
            raise
        except _UNREADABLE as error:
            # of a header, an object's address
            reason = describe_error(error).partition(": <")[0]
            raise InputError(
                "a whole npz file", where=self.path, problem=f"cannot be read: {reason}"
            ) from None


class NpzReader(Reader):
    """A reader of `x_train, y_train` and, where they are there, four arrays more.

    These are `x_test, y_test, owner_train, owner_test`. Samples are bytes (images,
    divided by 255 when used) or numbers; bytes of two axes are taken for grey images
    without one of channels. Targets and owners have one column.
    """

    def __init__(self, path: str, task: str, layout: str | None = None) -> None:
        """Open a file and check which arrays it has.

        Args:
            path: The npz file.
            task: `classification` or `regression`; in the former, whole numbers as
                targets are the numbers of classes.
            layout: The scenario's `dataset.layout`, of samples of three axes; see
                `find_layout`.

        Raises:
            InputError: `x_train` or `y_train` is missing, or one of `x_test` and
                `y_test`.
        """
        self.arrays = Arrays(path)
        self._task, self._asked = task, layout
        for name in ("x_train", "y_train"):
            if name not in self.arrays.names:
                raise InputError(
                    "the arrays x_train and y_train",
                    where=path,
                    problem=f"there is no {name}",
                    got=listed(self.arrays.names) or "no array",
                )
        has = [name in self.arrays.names for name in ("x_test", "y_test")]
        if any(has) and not all(has):
            problem = f"there is {'x' if has[0] else 'y'}_test alone"
            raise InputError(
                "both x_test and y_test, or none", where=path, problem=problem
            )
        self._has_test = all(has)
        self._layouts: dict[str, str] = {}
        """The layout of each set, known with its shape."""

    @cached_property
    def _shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of a sample of each set, channels first; lengths are checked here."""
        shapes = {}
        path = self.arrays.path
        for part in ("train", "test") if self._has_test else ("train",):
            shape, dtype = self.arrays.header(f"x_{part}")
            if dtype.kind not in "uif" or len(shape) < 2 or not shape[0]:
                raise InputError(
                    "numbers of shape (n, …), n at least 1",
                    where=f"{path}: x_{part}",
                    got=f"{dtype} of shape {shape}",
                )
            for name in (f"y_{part}", f"owner_{part}"):
                if name in self.arrays.names:
                    length = self.arrays.header(name)[0]
                    if length[:1] != shape[:1]:
                        raise InputError(
                            f"{shape[0]} rows, as x_{part} has",
                            where=f"{path}: {name}",
                            got=length[0] if length else "a single value",
                        )
            layout = self._layouts[part] = find_layout(
                shape[1:], self._asked, f"{path}: x_{part}"
            )
            # bytes of two axes are grey, and lack the axis of channels
            grey = len(shape) == 3 and dtype == np.uint8
            shapes[part] = *[1] * grey, *put_channels_first(shape[1:], layout)
        if self._has_test and shapes["test"] != shapes["train"]:
            raise InputError(
                f"samples of shape {shapes['train']}, as x_train has",
                where=f"{path}: x_test",
                got=shapes["test"],
            )
        return shapes

    @override
    def outline(self) -> Outline:
        shape = self._shapes["train"]
        parts = ("train", "test") if self._has_test else ("train",)
        names = self.arrays.names
        owned = [f"owner_{part}" for part in parts if "owner_train" in names]
        owners = [
            self._flatten_column(name, "owner") for name in owned if name in names
        ]
        targets = [self._flatten_column(f"y_{part}", "target") for part in parts]
        places = tuple(f"{self.arrays.path}: y_{part}" for part in parts)
        classes: tuple[str, ...] = ()
        if self._task == "classification" and targets[0].dtype.kind in "iub":
            targets = [
                check_targets(column, MOST_CLASSES, place)
                for column, place in zip(targets, places, strict=True)
            ]
            largest = max(column.max(initial=0) for column in targets)
            classes = tuple(map(str, range(int(largest) + 1)))
        return Outline(
            self.arrays.path,
            shape,
            targets,
            owners,
            classes,
            target_places=places,
            layout=self._layouts["train"],
        )

    def _flatten_column(self, name: str, thing: str) -> np.ndarray:
        """Return an array (n,) or (n, 1) as (n,).

        `thing` is what a row of it is, for errors.
        """
        values = self.arrays.read(name)
        columns = values.reshape(len(values), -1)
        if columns.shape[1] != 1:
            where = f"{self.arrays.path}: {name}"
            raise InputError(
                f"one {thing} per row", where=where, got=f"shape {values.shape}"
            )
        return columns[:, 0]

    @override
    def samples(self, test: bool) -> np.ndarray:
        part = "test" if test else "train"
        shape = self._shapes[part]
        values = self.arrays.read(f"x_{part}")
        if self._layouts[part] == "channels-last":
            values = np.ascontiguousarray(np.moveaxis(values, -1, 1))
        values = values.reshape(len(values), *shape)
        if values.dtype == np.uint8:
            return values
        numbers = values.astype(np.float32)
        check_finite(numbers, f"{self.arrays.path}: x_{part}")
        return numbers
