"""What docs/theory.md quotes: a row per client or seed, kept in theory_rows.csv."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from simfed.ground.arrays import Floats

ROOT = Path(__file__).resolve().parents[1]
ROWS = Path(__file__).with_name("theory_rows.csv")
PAGE = ROOT / "docs" / "theory.md"


@dataclass(frozen=True)
class Interval:
    """A mean over seeds with its 95 % confidence interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        """With as many places as the mean's second digit and the interval's first need.

        >>> print(Interval(0.00924, 0.0062, 0.01224), Interval(-0.512, -0.514, -0.51))
        0.0092 [0.0062, 0.0122] −0.512 [−0.514, −0.510]
        """
        half = (self.high - self.low) / 2
        of_mean = 1 - math.floor(math.log10(abs(self.mean))) if self.mean else 0
        of_half = -math.floor(math.log10(half)) if half else 0
        places = max(0, of_mean, of_half)
        mean, low, high = (f"{x:,.{places}f}" for x in (self.mean, self.low, self.high))
        return f"{mean} [{low}, {high}]".replace("-", "−")


def interval(values: Sequence[float] | Floats) -> Interval:
    """Student's interval of independent values."""
    values = np.asarray(values, float)
    half = (
        stats.t.ppf(0.975, len(values) - 1)
        * values.std(ddof=1)
        / math.sqrt(len(values))
    )
    return Interval(values.mean(), values.mean() - half, values.mean() + half)


def slope(total: Floats, x: Sequence[float] | Floats) -> Interval:
    """Of log `total` (seeds, sizes) over log `x`, fitted for each seed."""
    return interval([np.polyfit(np.log(x), np.log(row), 1)[0] for row in total])


def percent(values: Floats) -> str:
    """A mean share and its interval, within 0 and 100 %."""
    share = interval(100 * values)
    return f"{share.mean:.0f} % [{max(share.low, 0):.0f}, {min(share.high, 100):.0f}]"


class Rows:
    """Values by what they are (`fact`), of whom, after how many plays or steps: one per
    client.
    """

    def __init__(self, frame: pd.DataFrame | None = None) -> None:
        self._columns = ["fact", "who", "at", "client", "value"]
        empty = pd.DataFrame(columns=self._columns)
        self.frame = empty if frame is None else frame

    @classmethod
    def read(cls) -> Rows:
        return cls(pd.read_csv(ROWS) if ROWS.is_file() else None)

    def put(
        self, fact: str, who: str, at: int, values: Sequence[float] | Floats
    ) -> None:
        """In place of what was there."""
        old = self.frame
        old = old[(old["fact"] != fact) | (old["who"] != who) | (old["at"] != at)]
        rounded = [float(f"{value:.6g}") for value in values]
        new = pd.DataFrame({"fact": fact, "who": who, "at": at, "value": rounded})
        new.insert(3, "client", range(len(rounded)))
        self.frame = pd.concat([old, new], ignore_index=True) if len(old) else new

    def save(self) -> None:
        ordered = self.frame.sort_values(["fact", "who", "at", "client"], kind="stable")
        ordered.to_csv(ROWS, index=False)

    def values(self, fact: str, who: str, at: int) -> Floats:
        """Of every client, in their order."""
        rows = self.frame
        rows = rows[(rows["fact"] == fact) & (rows["who"] == who) & (rows["at"] == at)]
        values: Floats = rows.sort_values("client")["value"].to_numpy(float)
        return values

    def over(self, fact: str, who: str, places: Sequence[int]) -> Floats:
        """(clients, places)."""
        table: Floats = np.array([self.values(fact, who, at) for at in places]).T
        return table
