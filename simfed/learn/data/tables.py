"""Reads rows of a CSV, Parquet or Arrow table as samples.

Numbers are standardised, texts are categories. The `open_…` functions give a
`DiskTable` of any kind of file; a `TableReader` makes samples of one, or of two, for
training and for tests. pyarrow is imported when a table is opened.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from simfed.ground.errors import InputError, listed
from simfed.ground.inputs import MOST_FILE_BYTES, check_file, open_file
from simfed.ground.tables import (
    check_unpacked,
    count_unpacked_bytes,
    find_column,
    find_separator_hint,
    open_parquet,
)
from simfed.learn.data.outline import (
    Outline,
    Reader,
    check_finite,
    describe_error,
    find_layout,
    put_channels_first,
    refuse_row,
)

if TYPE_CHECKING:
    import pyarrow as pa

MOST_VALUES = 1_000
"""Different texts of a column that become an input each."""


class DiskTable(NamedTuple):
    """A table in one or several files.

    CSV is in memory, Arrow mapped into it; of Parquet only asked columns are read.
    """

    place: str
    schema: pa.Schema
    rows: int
    read: Callable[[Sequence[str]], pa.Table]
    """Return these columns of all rows."""


@contextmanager
def _refuse_damage(path: str, kind: str) -> Iterator[None]:
    """Turn what pyarrow raises in the block into an `InputError`.

    Args:
        path: The file, for errors.
        kind: What was expected to be there.
    """
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = describe_error(error)
        if "UTF8" in reason or "utf-8" in reason.lower():
            reason = f"text that is not UTF-8 ({reason})"
        hint = find_separator_hint([reason]) if "Expected 1 columns" in reason else None
        problem = f"cannot be read: {reason}"
        raise InputError(kind, where=path, problem=problem, hint=hint) from None


def _hold_table(place: str, table: pa.Table) -> DiskTable:
    """Return a table that is in memory, or mapped into it."""
    return DiskTable(
        place, table.schema, table.num_rows, lambda names: table.select(list(names))
    )


def open_parquet_files(paths: Sequence[str]) -> DiskTable:
    """Return Parquet files as one table, whose columns are read when asked for.

    Args:
        paths: Files of the same columns, in the order of rows.

    Raises:
        InputError: One cannot be read, columns differ, or they unpack to too much.
    """
    import pyarrow as pa

    rows = size = 0
    for path in paths:
        with open_parquet(path) as file:
            schema = file.schema_arrow
            rows += int(file.metadata.num_rows)
            size += count_unpacked_bytes(file)
    check_unpacked(size, MOST_FILE_BYTES, paths[0])

    def read(columns: Sequence[str]) -> pa.Table:
        pieces = []
        for path in paths:
            with open_parquet(path) as file:
                pieces.append(file.read(columns=list(columns)))
        with _refuse_damage(paths[0], "Parquet files of the same columns"):
            return pa.concat_tables(pieces)

    return DiskTable(paths[0], schema, rows, read)


def open_arrow_files(place: str, files: Sequence[Path]) -> DiskTable:
    """Return Arrow streams as one table, mapped into memory.

    Hugging Face's library saves them.

    Args:
        place: The folder, for errors.
        files: Streams or files of the same columns, in the order of rows.
    """
    import pyarrow as pa

    tables = []
    for file in files:
        check_file(file)
        with _refuse_damage(str(file), "an Arrow stream"):
            source = pa.memory_map(str(file))
            try:
                tables.append(pa.ipc.open_stream(source).read_all())
            except pa.ArrowInvalid:
                tables.append(pa.ipc.open_file(source).read_all())
    return _hold_table(place, pa.concat_tables(tables))


def open_table(path: str, train: DiskTable | None = None) -> DiskTable:
    """Return a CSV file with a header line or a Parquet file, told apart by its name.

    Args:
        path: `.csv`, `.parquet` or `.pq`.
        train: The table of training rows, where this one has test rows. A CSV's types
            are guessed of its rows; columns that are texts in `train` are texts here,
            even if all look like numbers.

    Raises:
        InputError: Another ending, or a file that cannot be read.
    """
    import pyarrow as pa
    from pyarrow import csv

    check_file(path)
    if Path(path).suffix.lower() in (".parquet", ".pq"):
        return open_parquet_files([path])
    if Path(path).suffix.lower() != ".csv":
        raise InputError(
            "a table, .csv or .parquet", where=path, got=Path(path).suffix or path
        )
    schema = train.schema if train is not None else ()
    texts = [field.name for field in schema if _classify_type(field.type) == "text"]
    options = csv.ConvertOptions(
        strings_can_be_null=True, column_types=dict.fromkeys(texts, pa.string())
    )
    with (
        _refuse_damage(path, "a table in CSV with a header line"),
        open_file(path) as file,
    ):
        return _hold_table(path, csv.read_csv(file, convert_options=options))


class TableReader(Reader):
    """A reader of columns: of numbers, of texts, or one of lists or pictures.

    Columns of numbers become one input each, standardised by the training rows; columns
    of texts one input per value (1 where the row has it). A column of equally long
    lists keeps their shape, one of pictures becomes bytes; such a column stands alone.
    """

    def __init__(
        self,
        train: DiskTable,
        test: DiskTable | None = None,
        *,
        target: str,
        owner: str | None = None,
        features: Sequence[str] | None = None,
        missing: str = "refuse",
        layout: str | None = None,
    ) -> None:
        """Check that the columns can be learned from.

        Args:
            train: The training rows, and where there is no `test` the test rows, too.
            test: Test rows, with the same kinds of columns.
            target: The column that is learned.
            owner: The column that says whose a row is; None: nobody's.
            features: The columns to learn from; None: all others.
            missing: `refuse` a row without a value, or put the `mean` or `median` of
                the column there (of texts the most frequent, the first in the alphabet
                at a tie).
            layout: The scenario's `dataset.layout`, of lists of three axes.

        Raises:
            InputError: A column is missing or of another kind, or there is no row.
        """
        self._tables = [table for table in (train, test) if table is not None]
        self._target, self._owner = target, owner
        self._missing, self._asked = missing, layout
        names = list(train.schema.names)
        named = [target, owner] if owner else [target]
        for table in self._tables:
            for name in (*named, *(features or names)):
                find_column(name, table.schema.names, table.place)
        self._features = features or [name for name in names if name not in named]
        if not self._features or not train.rows:
            raise InputError(
                "a table with rows, and columns beside target and owner",
                where=train.place,
                got=f"{train.rows} rows, columns {listed(names)}",
            )
        kinds = {
            name: _classify_type(train.schema.field(name).type)
            for name in self._features
        }
        for name, kind in kinds.items():
            if kind == "other":
                _refuse_other_text(train, name)
                raise InputError(
                    "numbers, texts, lists of numbers or pictures",
                    where=f"{train.place}: column {name}",
                    got=str(train.schema.field(name).type),
                    hint="leave it out: features",
                )
        for name in (*kinds, *named):
            for table in self._tables[1:]:
                _refuse_other_kind(train, table, name)
        self._kinds = kinds
        self._single = next(
            (n for n, kind in kinds.items() if kind in ("list", "picture")), None
        )
        if self._single and len(kinds) > 1:
            raise InputError(
                "one column of lists or pictures, alone",
                where=train.place,
                got=listed(kinds),
                hint=f"features: [{self._single}]",
            )
        if layout and (self._single is None or kinds[self._single] != "list"):
            problem = "columns of numbers have none"
            if self._single:
                problem = "pictures say it themselves"
            allowed = "null, but with a column of lists"
            raise InputError(allowed, where="dataset.layout", problem=problem)

    @override
    def outline(self) -> Outline:
        train = self._tables[0]
        targets = [self._read_plain(table, self._target) for table in self._tables]
        owners = [
            self._read_plain(table, self._owner)
            for table in self._tables
            if self._owner
        ]
        return Outline(
            train.place,
            self._shape(),
            targets,
            owners,
            self._read_class_names(),
            target_places=tuple(
                f"{table.place}: column {self._target}" for table in self._tables
            ),
            layout=self._layout,
        )

    def list_inputs(self) -> list[str]:
        """Return the columns that are learned from, with what may surprise.

        That is how many texts one has, and whether it has another value in every row,
        as an id does, which teaches nothing.
        """
        said = []
        for name in self._features:
            text = self._kinds[name] == "text"
            notes = [f"{len(self._values[name])} texts"] if text else []
            if self._tells_rows_apart(name):
                notes.append("another in every row")
            said.append(f"{name} ({', '.join(notes)})" if notes else name)
        return said

    def _tells_rows_apart(self, name: str) -> bool:
        """Return whether a column has another value in every row: an id.

        It has texts or whole numbers.
        """
        import pyarrow.types as types

        train = self._tables[0]
        whole = types.is_integer(train.schema.field(name).type)
        if self._kinds[name] != "text" and not whole:
            return False
        return len(train.read([name])[name].unique()) == train.rows > 1

    def _read_class_names(self) -> tuple[str, ...]:
        """Return names of the target's numbers from Hugging Face's metadata."""
        import json

        plain = (self._tables[0].schema.metadata or {}).get(b"huggingface")
        if not plain:
            return ()
        try:
            features = json.loads(plain)["info"]["features"]
            names = features[self._target].get("names")
        except (KeyError, TypeError, ValueError, AttributeError):
            return ()
        return tuple(map(str, names)) if names else ()

    @cached_property
    def _row_shape(self) -> tuple[int, ...]:
        """Return the shape of the first row's list or picture in the table."""
        first = self._tables[0].read([str(self._single)])[str(self._single)][:1]
        return tuple(self._stack_lists(first, self._tables[0].place).shape[1:])

    @cached_property
    def _layout(self) -> str:
        """The place of channels in lists of three axes, as `find_layout` says it.

        Empty for pictures, which say it themselves, and for single numbers.
        """
        if self._single is None or self._kinds[self._single] == "picture":
            return ""
        where = f"{self._tables[0].place}: column {self._single}"
        return find_layout(self._row_shape, self._asked, where)

    def _shape(self) -> tuple[int, ...]:
        """Return the shape of a sample, channels first."""
        if self._single is not None:
            shape = put_channels_first(self._row_shape, self._layout)
            return (1, *shape) if len(shape) == 2 else shape
        return (sum(map(self._count_inputs, self._features)),)

    def _count_inputs(self, name: str) -> int:
        """Return how many inputs a column becomes."""
        return len(self._values[name]) if self._kinds[name] == "text" else 1

    @cached_property
    def _values(self) -> dict[str, list[str]]:
        """Column of texts → its values in the alphabet's order."""
        values_of: dict[str, list[str]] = {}
        for name, kind in self._kinds.items():
            if kind != "text":
                continue
            values: set[str] = set()
            for table in self._tables:
                column = _cast_to_texts(table.read([name])[name])
                values |= set(column.unique().to_pylist()) - {None}
            if len(values) > MOST_VALUES:
                raise InputError(
                    f"at most {MOST_VALUES:,} different texts",
                    where=f"{self._tables[0].place}: column {name}",
                    got=len(values),
                    hint="leave the column out: features",
                )
            values_of[name] = sorted(values)
        return values_of

    def _read_plain(self, table: DiskTable, name: str | None) -> np.ndarray:
        """Return targets or owners of all rows, (n,): numbers or texts.

        Raises:
            InputError: Names a row without a value, or a column of another kind.
        """
        assert name is not None
        column = table.read([name])[name]
        if _classify_type(column.type) == "text":
            column = _cast_to_texts(column)
        _refuse_other_text(table, name)
        nulls, where = column.is_null(nan_is_null=True), f"{table.place}: column {name}"
        refuse_row(
            np.asarray(nulls, bool), where, "a value in every row", got="nothing"
        )
        if _classify_type(column.type) not in ("number", "text"):
            raise InputError("numbers or texts", where=where, got=str(column.type))
        values: np.ndarray = column.to_numpy()
        if values.dtype == bool:
            return values.astype(np.int64)
        return values.astype(np.str_) if values.dtype == object else values

    @override
    def samples(self, test: bool) -> np.ndarray:
        return self._samples[1 if test else 0]

    @cached_property
    def _samples(self) -> list[np.ndarray]:
        """Samples of training and test rows, as `samples` gives them."""
        read = [table.read(self._features) for table in self._tables]
        if self._single is not None:
            stacks = [
                self._stack_lists(rows[self._single], table.place)
                for rows, table in zip(read, self._tables, strict=True)
            ]
            if self._layout == "channels-last":
                moved = (np.moveaxis(stack, -1, 1) for stack in stacks)
                stacks = [*map(np.ascontiguousarray, moved)]
            return [stack[:, None] if stack.ndim == 3 else stack for stack in stacks]
        width = self._shape()[0]
        samples = [np.zeros((table.rows, width), np.float32) for table in self._tables]
        at = 0
        for name in self._features:
            fill: float | None = None
            for rows, table, into in zip(read, self._tables, samples, strict=True):
                column = rows[name]
                where = f"{table.place}: column {name}"
                if self._kinds[name] == "text":
                    codes, fill = self._encode_texts(column, name, where, fill)
                    into[np.arange(len(codes)), at + codes] = 1
                else:
                    into[:, at], fill = self._fill_gaps(column, where, fill)
            at += self._count_inputs(name)
        return samples

    def _encode_texts(
        self, column: pa.ChunkedArray, name: str, where: str, fill: float | None
    ) -> tuple[NDArray[np.int64], float | None]:
        """Return the place of each text among the column's values, and the fill.

        Args:
            column: The texts of all rows.
            name: The column.
            where: File and column, for errors.
            fill: The place that takes missing ones, known from training rows; None: not
                yet.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        column, values = _cast_to_texts(column), self._values[name]
        places = pc.index_in(column, value_set=pa.array(values, pa.string()))
        codes = np.asarray(pc.fill_null(places, -1)).astype(np.int64)
        fill = self._fill_missing(
            codes,
            codes < 0,
            where,
            "a text",
            fill,
            lambda there: int(np.argmax(np.bincount(there))),
        )
        return codes, fill

    def _fill_gaps(
        self, column: pa.ChunkedArray, where: str, fill: float | None
    ) -> tuple[NDArray[np.float64], float | None]:
        """Return a column of numbers without gaps, float64, and what fills them."""
        import pyarrow as pa

        values = np.array(column.cast(pa.float64(), safe=False).to_numpy(), np.float64)
        refuse_row(np.isinf(values), where, "a finite number", got=values)
        choose = np.median if self._missing == "median" else np.mean
        fill = self._fill_missing(
            values, np.isnan(values), where, "a number", fill, choose
        )
        return values, fill

    def _fill_missing(
        self,
        values: np.ndarray,
        missing: NDArray[np.bool_],
        where: str,
        allowed: str,
        fill: float | None,
        choose: Callable[[np.ndarray], float],
    ) -> float | None:
        """Put `fill`, or what is chosen of other rows, where a value is missing.

        Args:
            values: (n,), changed in place.
            missing: (n,) where there is none.
            where: File and column, for errors.
            allowed: What a row must have, for errors.
            fill: From training rows; None: these are the training rows.
            choose: Values of the other rows → the fill.

        Returns:
            The fill, for the test rows; None where missing values are refused.

        Raises:
            InputError: Names the first row without a value, or no row has one.
        """
        if self._missing == "refuse":
            hint = "missing: median puts one there"
            refuse_row(missing, where, allowed, got="nothing", hint=hint)
            return None
        if fill is None:
            if missing.all():
                allowed, hint = "a value in some training row", "leave it out: features"
                raise InputError(allowed, where=where, got="none", hint=hint)
            fill = choose(values[~missing])
        values[missing] = fill
        return fill

    def _stack_lists(self, column: pa.ChunkedArray, place: str) -> np.ndarray:
        """Return lists of one shape, or pictures of one size, as one array (n, …).

        Args:
            column: The rows of the column that stands alone.
            place: The file, for errors.

        Raises:
            InputError: Names the first row of another shape, or that is not finite.
        """
        where = f"{place}: column {self._single}"
        assert self._single is not None
        if self._kinds[self._single] == "picture":
            return np.stack(list(_read_pictures(column, where)))
        rows: list[NDArray[np.float32]] = []
        for number, value in enumerate(column.to_pylist(), 1):
            with suppress(TypeError, ValueError):
                rows.append(np.asarray(value, np.float32))
            if len(rows) < number or rows[-1].shape != rows[0].shape:
                allowed, at = "lists of numbers, all of one shape", f"row {number}"
                raise InputError(allowed, where=f"{where}, {at}", got="another one")
        stacked = np.stack(rows)
        check_finite(stacked, where)
        return stacked

    @override
    def compute_scaling(
        self, rows: np.ndarray
    ) -> tuple[tuple[float, ...], tuple[float, ...]]:
        if self._single is not None:
            return super().compute_scaling(rows)
        mean = rows.mean(axis=0, dtype=np.float64)
        sd = rows.std(axis=0, dtype=np.float64)
        at = 0
        for name in self._features:
            width = self._count_inputs(name)
            if self._kinds[name] == "text":
                mean[at : at + width], sd[at : at + width] = 0, 1
            at += width
        return tuple(mean.tolist()), tuple(np.where(sd > 0, sd, 1).tolist())


def _refuse_other_text(table: DiskTable, name: str) -> None:
    """Raises an `InputError` for the first row of a column of bytes not in UTF-8."""
    import pyarrow.types as types

    if types.is_binary(table.schema.field(name).type):
        for row, value in enumerate(table.read([name])[name].to_pylist()):
            try:
                (value or b"").decode()
            except UnicodeDecodeError:
                raise InputError(
                    "text in UTF-8",
                    where=f"{table.place}: column {name}, row {row + 1}",
                    got=value[:40],
                ) from None


def _refuse_other_kind(train: DiskTable, test: DiskTable, name: str) -> None:
    """Refuse a column of another kind in the test table than in the training table.

    Where texts stand in place of numbers, the row of the first is named. A column
    without a value fits any kind.

    Args:
        train: The table of training rows.
        test: The table of test rows.
        name: The column, which both have.

    Raises:
        InputError: The kinds differ.
    """
    import pyarrow.types as types

    there = test.schema.field(name).type
    wanted, kind = map(_classify_type, (train.schema.field(name).type, there))
    if wanted in (kind, "other") or types.is_null(there):
        return
    _refuse_other_text(test, name)
    where, got = f"{test.place}: column {name}", str(there)
    if (wanted, kind) == ("number", "text"):
        for row, value in enumerate(test.read([name])[name].to_pylist()):
            if value is not None and not _is_number(value):
                where, got = f"{where}, row {row + 1}", value[:40]
                break
    raise InputError(f"{wanted}s, as {train.place} has", where=where, got=got)


def _is_number(text: str) -> bool:
    """Return whether a text is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def _classify_type(kind: pa.DataType) -> str:
    """Return a column's kind: `number`, `text`, `list`, `picture` or `other`.

    Lists may hold lists of numbers; a picture is the struct of bytes and path that
    Hugging Face's library writes.
    """
    import pyarrow as pa
    import pyarrow.types as types

    if (
        types.is_integer(kind)
        or types.is_floating(kind)
        or types.is_boolean(kind)
        or types.is_decimal(kind)
        or types.is_null(kind)  # a column without a single value
    ):
        return "number"
    if types.is_dictionary(kind):
        return _classify_type(kind.value_type)
    if types.is_string(kind) or types.is_large_string(kind):
        return "text"
    if (
        types.is_list(kind)
        or types.is_fixed_size_list(kind)
        or types.is_large_list(kind)
    ):
        holds = _classify_type(kind.value_type)
        return "list" if holds in ("number", "list") else "other"
    if isinstance(kind, pa.ExtensionType):
        return _classify_type(kind.storage_type)
    if types.is_struct(kind) and {part.name for part in kind} == {"bytes", "path"}:
        return "picture"
    return "other"


def _cast_to_texts(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column of dictionary-coded or large texts as plain ones."""
    import pyarrow as pa

    return column if column.type == pa.string() else column.cast(pa.string())


def _read_pictures(column: pa.ChunkedArray, where: str) -> Iterator[NDArray[np.uint8]]:
    """Yield the pictures of a column, (channels, height, width), all of one size."""
    from simfed.learn.data.pictures import read_picture

    shape = None
    for row, value in enumerate(column.to_pylist()):
        content = (value or {}).get("bytes")
        if content is None:
            raise InputError(
                "a picture in the file", where=f"{where}, row {row + 1}", got="none"
            )
        picture = read_picture(io.BytesIO(content), f"{where}, row {row + 1}")
        if shape not in (None, picture.shape):
            raise InputError(
                f"pictures of one size, {shape}",
                where=f"{where}, row {row + 1}",
                got=picture.shape,
            )
        shape = picture.shape
        yield picture
