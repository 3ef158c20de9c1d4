"""Rows of other people's numbers beside simfed's, and the page that is made of them.

A source is a folder: README.md, scenario.yaml, a script with `compare_rows(data)`, and
the rows.csv that the script leaves behind. `docs/validation.md` is written from all
rows.csv alone.
"""

from __future__ import annotations

import csv
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import simfed
from simfed.ground.plain import Plain

HERE = Path(__file__).resolve().parent
PAGE = HERE.parents[1] / "docs" / "validation.md"

FITTED = "fitted"
HELD_OUT = "held out"
STATED = "stated"
"""All inputs are the source's own; nothing is fitted."""
REPEATED = ", repeated"
"""After `held out`: another run of the same configuration was fitted."""


@dataclass(frozen=True)
class Row:
    """One published number and simfed's."""

    quantity: str
    unit: str
    published: float
    simfed: float
    use: str
    """`fitted`: simfed's inputs were taken from this number; `held out`: from others of
    the same source; `stated`: from what the source says of its inputs."""
    low: float | None = None
    """Of the interval of simfed's number, at 95 % unless the note says otherwise; None:
    exact."""
    high: float | None = None
    note: str = ""

    @property
    def error(self) -> float:
        """Simulated over published, less 1."""
        return self.simfed / self.published - 1

    @property
    def configuration(self) -> str:
        """The quantity without the number of its run."""
        what, _, run = self.quantity.rpartition(", ")
        return what if run.startswith("exp_") else self.quantity

    def use_told(self, rows: Sequence[Row]) -> str:
        """Return its use, and whether another run of its configuration was fitted."""
        fitted = {row.configuration for row in rows if row.use == FITTED}
        again = self.use == HELD_OUT and self.configuration in fitted
        return self.use + REPEATED if again else self.use

    @property
    def covered(self) -> bool | None:
        """Whether the published number lies in the interval; None without one."""
        if self.low is None or self.high is None:
            return None
        return self.low <= self.published <= self.high


def play(source: str, changes: Mapping[str, Plain]) -> simfed.RunResult:
    """The source's scenario, changed, without learning."""
    scenario = simfed.load_scenario(HERE / source / "scenario.yaml", dict(changes))
    return simfed.run(scenario, time_only=True, progress=False)


def write_rows(source: str, rows: Iterable[Row]) -> Path:
    """The rows of a source as CSV, with their errors; numbers with seven digits."""
    path = HERE / source / "rows.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*(field.name for field in fields(Row)), "error"])
        for row in rows:
            writer.writerow(map(_written, (*asdict(row).values(), round(row.error, 5))))
    return path


def read_rows(source: str) -> list[Row]:
    with (HERE / source / "rows.csv").open(newline="", encoding="utf-8") as file:
        return [_row(line) for line in csv.DictReader(file)]


def median_error(rows: Iterable[Row]) -> float:
    """The median of absolute errors."""
    return statistics.median(abs(row.error) for row in rows)


def _row(line: Mapping[str, str]) -> Row:
    low, high = (float(line[name]) if line[name] else None for name in ("low", "high"))
    numbers = float(line["published"]), float(line["simfed"])
    return Row(
        line["quantity"], line["unit"], *numbers, line["use"], low, high, line["note"]
    )


def _written(value: str | float | None) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else f"{value:.7g}"
