"""Logs of anybody's federated runs: who did what from when to when.

A CSV file with a line per client, round and phase: `round, client, phase, started_at_s,
finished_at_s`, and if known `bytes` and `joules`. Instants are seconds since any
instant, the same for all. A line without a client is the server's, or about all clients
together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from simfed.ground.csv_files import MOST_TABLE_BYTES
from simfed.ground.errors import InputError, InputErrors, did_you_mean, listed
from simfed.ground.inputs import read_text
from simfed.ground.tables import find_column, read_records

LOG_COLUMNS = ("round", "client", "phase", "started_at_s", "finished_at_s")
_MEASURES = ("bytes", "joules")

CLIENT_PHASES = (
    "download",
    "training",
    "compression",
    "upload",
    "participation",
    "waiting",
)
"""`participation`: all of a client's round, where its shares are not known. `waiting`:
for the others, where its joules are known."""

SERVER_PHASES = ("round", "participation", "server")
"""The phases of lines without a client: all of a round; from the first client's start
to the last one's end; the server's own work."""


class LogRow(NamedTuple):
    """One line of a log."""

    round: int
    client: str
    """Empty: the server."""
    phase: str
    started_at_s: float
    finished_at_s: float
    moved_bytes: float | None
    joules: float | None
    line: int
    """The number in the file; the header is line 1."""

    @property
    def duration_s(self) -> float:
        """The seconds from beginning to end."""
        return self.finished_at_s - self.started_at_s


def read_log(path: Path) -> list[LogRow]:
    """Return the lines of a log.

    Args:
        path: a CSV file with `LOG_COLUMNS`, and `bytes` and `joules` if known.

    Raises:
        InputErrors: a sentence per bad line.
        InputError: the file is no such log, or has no line.
    """
    names, records = read_records(read_text(path, MOST_TABLE_BYTES), str(path))
    for column in LOG_COLUMNS:
        find_column(column, names, str(path))
    rows: list[LogRow] = []
    errors: list[InputError] = []
    for line, values in records:
        try:
            rows.append(_read_row(values, line))
        except InputError as error:
            errors.append(error.within(f"{path}: line {line}"))
    if errors:
        raise InputErrors(errors)
    if not rows:
        raise InputError(
            "a line per client, round and phase", where=str(path), problem="empty"
        )
    return rows


def _read_row(values: Mapping[str, str], line: int) -> LogRow:
    phase, client = values["phase"].strip(), values["client"].strip()
    phases = CLIENT_PHASES if client else SERVER_PHASES
    if phase not in phases:
        allowed = listed(phases) + ("" if client else " where there is no client")
        raise InputError(
            allowed, where="phase", got=phase, hint=did_you_mean(phase, phases)
        )
    number = _read_number(values, "round", "a round: 1, 2, …", 1)
    if not number.is_integer():
        raise InputError("a round: 1, 2, …", where="round", got=values["round"])
    start_s, end_s = (_read_number(values, name, "seconds") for name in LOG_COLUMNS[3:])
    if end_s < start_s:
        allowed = f"an instant not before started_at_s, {start_s:g}"
        raise InputError(allowed, where="finished_at_s", got=end_s)
    measures = [_read_measure(values, name) for name in _MEASURES]
    return LogRow(
        int(number), client, phase, start_s, end_s, measures[0], measures[1], line
    )


def _read_number(
    values: Mapping[str, str], name: str, allowed: str, least: float = -math.inf
) -> float:
    try:
        number = float(values[name])
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or number < least:
        raise InputError(allowed, where=name, got=values[name])
    return number


def _read_measure(values: Mapping[str, str], name: str) -> float | None:
    if not values.get(name, "").strip():
        return None
    return _read_number(values, name, "a number from 0, or nothing", 0)
