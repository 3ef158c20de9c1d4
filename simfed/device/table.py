"""Raw measurements in CSV: what a row means, and refusing rows that cannot be.

A table has one row per timed call. Columns: `quantity` (training, compression,
decompression, inference, distillation, auxiliary, starting, handling, evaluation or
losses), `model`, `strategy` (compression and decompression), the size under `k`,
`batch_size` or `samples` (1 where nothing has a size), and `seconds`. `dataset` (whose
samples the model took), `session` (one process that measured; of two files, sessions
are never the same), `preempted` (how often the operating system took the processor away
meanwhile), `steps` (how many training steps were made in a row, of which a row's
seconds are the mean) and what describes the machine are optional. Preempted calls are
left out wherever a size has other ones: they tell of the load, not of the device.
Without `quantity`, a table with strategy and k is one of compression times and a table
with batch_size is one of training times.
"""

from __future__ import annotations

import hashlib
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from simfed.compress.choice import Choice
from simfed.device.profile import QUANTITIES, Key, find_quantity, name_codec
from simfed.ground.errors import InputError, listed, within
from simfed.ground.inputs import MOST_TEXT_BYTES, decode_text, read_bytes
from simfed.ground.registry import registry
from simfed.ground.tables import find_separator_hint, read_records

WORK_COLUMNS = ("session", "quantity", "model", "dataset", "strategy")
SIZE_COLUMNS = ("k", "batch_size", "samples")
MACHINE_COLUMNS = (
    "machine",
    "cpu",
    "governor",
    "device",
    "threads",
    "python",
    "torch",
    "numpy",
    "simfed",
    "manner",
    "measured_at",
)

_DISAGREEMENT = 100.0


@dataclass(frozen=True, slots=True)
class Row:
    """One timed call: what was done, how large it was, how long it took, when."""

    key: Key
    size: float
    seconds: float
    session: str
    dataset: str
    line: int
    preempted: bool = False
    steps: float = 1.0
    """Training steps in a row, of which `seconds` is the mean."""
    starting_s: float = 0.0
    """Seconds that their beginning took besides, and that are not in `seconds`."""

    @property
    def whole_s(self) -> float:
        """Seconds of all its steps, the beginning included."""
        return self.steps * self.seconds + self.starting_s


@dataclass(frozen=True)
class MeasuredRows:
    """The rows of some files, and what the files say of the machine.

    `read_table` makes it; `simfed.calibrate` fits and checks profiles by it.
    """

    rows: tuple[Row, ...]
    files: tuple[tuple[str, str], ...]
    """(name, SHA-256) of each file."""
    machine: dict[str, list[str]] = field(default_factory=dict)
    """Distinct values of each descriptive column."""
    dropped: tuple[Row, ...] = ()
    """Preempted rows that are not among `rows`."""

    @property
    def keys(self) -> list[Key]:
        """The curves: models in the files' order, strategies in the registry's."""
        strategies = ["", *registry("codec").names()]
        models = list(dict.fromkeys(model for _, model, _ in self._by_key))

        def place(key: Key) -> tuple[int, int, list[int], str]:
            names = Choice.of(key[2]).names
            codecs = [strategies.index(name) for name in names if name in strategies]
            return list(QUANTITIES).index(key[0]), models.index(key[1]), codecs, key[2]

        return sorted(self._by_key, key=place)

    @property
    def sessions(self) -> int:
        """Number of processes that measured the same curve."""
        return max(len({row.session for row in rows}) for rows in self._by_key.values())

    def datasets(self) -> dict[str, str]:
        """Return the data set of each model for which the table names one.

        It says the shape of samples.
        """
        return {row.key[1]: row.dataset for row in self.rows if row.dataset}

    def rows_of(self, key: Key) -> list[Row]:
        """Return the rows of one curve."""
        return self._by_key.get(key, [])

    @cached_property
    def _by_key(self) -> dict[Key, list[Row]]:
        curves: dict[Key, list[Row]] = {}
        for row in self.rows:
            curves.setdefault(row.key, []).append(row)
        return curves


def read_table(paths: Iterable[str | Path]) -> MeasuredRows:
    """Return the measurements in some CSV files, checked.

    Args:
        paths: of the files; each holds other measurements.

    Raises:
        InputError: one sentence, with file and line, for missing columns, times that
            are no positive numbers, unknown strategies, sizes that are no sizes, rows
            that disagree 100-fold, a single row, and a table that is given twice.
    """
    rows: list[Row] = []
    files: list[tuple[str, str]] = []
    machine: dict[str, dict[str, None]] = defaultdict(dict)
    for path in map(Path, paths):
        content = read_bytes(path, MOST_TEXT_BYTES)
        columns, records = read_records(decode_text(content, path), str(path))
        _check_columns(columns, path)
        digest = hashlib.sha256(content).hexdigest()
        if any(digest == other for _, other in files):
            problem = "another table holds the same"
            raise InputError("each table once", where=str(path), problem=problem)
        files.append((path.name, digest))
        for line, record in records:
            # the number of the file, as tables of two folders may have one name
            rows.append(
                _read_row(record, f"{path}: line {line}", line, f"{len(files)}:")
            )
            if threads := record.get("threads"):
                allowed = "a whole number of at least 1"
                place = f"{path}: line {line}: threads"
                number = _parse_positive(threads, place, allowed, 1.0)
                if not number.is_integer():
                    raise InputError(allowed, where=place, got=threads)
                record["threads"] = str(int(number))
            for column in MACHINE_COLUMNS:
                if record.get(column):
                    machine[column][record[column]] = None
    if len(rows) < 2:
        where = files[0][0] if files else None
        raise InputError("at least two rows", where=where, got=len(rows))
    undisturbed, dropped = _split_preempted(rows)
    _check_agreement(undisturbed, " and ".join(name for name, _ in files))
    described = {column: list(values) for column, values in machine.items()}
    return MeasuredRows(tuple(undisturbed), tuple(files), described, tuple(dropped))


def compute_medians(rows: Sequence[Row]) -> list[tuple[float, str, float, int]]:
    """Return (size, session, median seconds, rows) of one curve's rows.

    They are by size, then session.
    """
    groups: dict[tuple[float, str], list[float]] = defaultdict(list)
    for row in rows:
        groups[row.size, row.session].append(row.seconds)
    return [
        (x, s, statistics.median(t), len(t)) for (x, s), t in sorted(groups.items())
    ]


def _split_preempted(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Return the rows to use, and the preempted ones that are left out.

    Those are left out of every size and session that has others.
    """
    has_others = {(r.key, r.size, r.session) for r in rows if not r.preempted}
    parts: tuple[list[Row], list[Row]] = [], []
    for row in rows:
        parts[row.preempted and (row.key, row.size, row.session) in has_others].append(
            row
        )
    return parts


def _check_columns(columns: Sequence[str], path: Path) -> None:
    """Refuse a table without a column that is needed."""
    missing = [c for c in ("model", "seconds") if c not in columns]
    if not any(c in columns for c in SIZE_COLUMNS):
        missing.append(listed(SIZE_COLUMNS))
    telling = ({"quantity"}, {"strategy", "k"}, {"batch_size"})
    if not any(names <= set(columns) for names in telling):
        missing.append("quantity")
    if missing:
        allowed = f"a CSV table with the column {' and '.join(missing)}"
        hint = find_separator_hint(columns)
        raise InputError(allowed, where=str(path), got=list(columns), hint=hint)


def _read_row(record: dict[str, str], where: str, line: int, file: str) -> Row:
    """Return a record of a table as a row.

    Args:
        record: column → text.
        where: file and line, for errors.
        line: the line's number.
        file: the number of its file, before the session's name.
    """
    text = {name: value.strip() for name, value in record.items()}
    quantity = text.get("quantity") or (
        "compression" if text.get("strategy") else "training"
    )
    what = find_quantity(quantity, where=f"{where}: quantity")
    if not text["model"]:
        raise InputError("the name of a model", where=f"{where}: model", got="")
    strategy = text.get("strategy", "") if what.per_strategy else ""
    if what.per_strategy:
        with within(f"{where}: strategy"):
            strategy = name_codec(strategy)
    columns = ("k",) if what.variable == "k" else ("batch_size", "samples")
    size = next((text[c] for c in columns if text.get(c)), "")
    a_time = "a time above 0 in seconds, without its unit"
    return Row(
        key=(quantity, text["model"], strategy),
        size=_parse_positive(
            size, f"{where}: {listed(columns)}", f"a {what.size} of at least 1", 1.0
        ),
        seconds=_parse_positive(text["seconds"], f"{where}: seconds", a_time, 0.0),
        session=file + text.get("session", ""),
        dataset=text.get("dataset", ""),
        line=line,
        preempted=text.get("preempted", "0") not in ("", "0"),
        steps=_parse_positive(
            text.get("steps") or "1",
            f"{where}: steps",
            "a number of steps of at least 1",
            1.0,
        ),
    )


def _parse_positive(text: str, where: str, allowed: str, least: float) -> float:
    """Return a finite number above 0 and at least `least`; `allowed` says which."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (least <= number < math.inf and number > 0):
        raise InputError(allowed, where=where, got=text)
    return number


def _check_agreement(rows: Sequence[Row], where: str) -> None:
    """Refuse times that differ 100-fold at one size, or more than sizes explain.

    Neighbouring sizes may not differ 100-fold more than their sizes: that is another
    unit or another machine, unless most of at least three rows agree.
    """
    curves: dict[Key, dict[float, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        curves[row.key][row.size].append(row)
    for key, sizes in curves.items():
        name = " ".join(part for part in key if part)
        before: tuple[float, float] | None = None
        for size, same in sorted(sizes.items()):
            same = sorted(same, key=lambda row: row.seconds)
            middle = statistics.median(row.seconds for row in same)
            most = _DISAGREEMENT
            wild = [
                row for row in same if not 1 < most * row.seconds / middle < most**2
            ]
            low, high = same[0], same[-1]
            if high.seconds >= most * low.seconds and 3 * max(1, len(wild)) > len(same):
                times = [f"{row.seconds:g} s in line {row.line}" for row in (low, high)]
                allowed = f"{name} at {size:g}: times of one unit and one machine"
                raise InputError(allowed, where=where, got=" and ".join(times))
            if before is not None:
                steps, ratio = size / before[0], middle / before[1]
                if not 1 / most < ratio < most * steps:
                    got = (
                        f"{before[1]:g} s at {before[0]:g} and {middle:g} s at {size:g}"
                    )
                    allowed = f"{name}: times of one unit and one machine"
                    raise InputError(allowed, where=where, got=got)
            before = (size, middle)
