"""The tables of docs/validation.md, from the rows of all sources."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from ledger import (
    FITTED,
    HELD_OUT,
    PAGE,
    REPEATED,
    STATED,
    Row,
    median_error,
    read_rows,
)
from orders import Orders, compare_orders
from pages import markdown

_SHOWN_ROWS = 10


class Source(NamedTuple):
    title: str
    """Of its section on the page, which says where it is from and where simfed
    fails."""
    script: str


SOURCES = {
    "grid5000": Source("Jetson boards at Grid'5000", "grid5000_runs"),
    "openfl": Source("OpenFL over a throttled line", "openfl_bandwidth"),
    "mcmahan": Source("McMahan's rounds", "mcmahan_rounds"),
    "staleness": Source("Staleness of asynchronous SGD", "staleness_theory"),
}


def page_parts() -> dict[str, str]:
    """What stands between the page's comments, by their names: the tables of all kept
    rows.
    """
    by_source = {
        name: read_rows(name) for name in SOURCES if _rows_file(name).is_file()
    }
    head = ["source", "numbers", "use", "median error", "largest", "in their interval"]
    lines = [line for name, rows in by_source.items() for line in _summary(name, rows)]
    sections = {name: _section(name, rows) for name, rows in by_source.items()}
    return {
        "answer": _answer(by_source),
        "summary": markdown([head, *lines]),
        **sections,
    }


def _answer(by_source: dict[str, list[Row]]) -> str:
    """Return the first lines of the page: each source by itself."""
    judged = sum(row.use != FITTED for rows in by_source.values() for row in rows)
    lines = [
        f"{judged} numbers of {len(by_source)} sources (measured, simulated by others, "
        "or proved) were predicted without having been fitted. Of those that others "
        "measured and that were held out, by source:"
    ]
    for name, rows in by_source.items():
        if held_out := [row for row in rows if row.use == HELD_OUT]:
            line = f"- **{SOURCES[name].title}**: {_met(held_out)}"
            new = [row for row in held_out if not row.use_told(rows).endswith(REPEATED)]
            if fewer := [row for row in new if row.quantity.startswith("makespan")]:
                line += (
                    f". Of {len(held_out) - len(new)} another run of the same "
                    f"configuration was fitted; the {len(fewer)} makespans of "
                    f"configurations of which none was: {_met(fewer)}"
                )
            lines.append(line + ".")
    return "\n\n".join(
        [lines[0], "\n".join(lines[1:]), ("Where simfed fails stands under each.")]
    )


def _met(rows: Sequence[Row]) -> str:
    near = sum(abs(row.error) <= 0.05 for row in rows)
    largest = max(abs(row.error) for row in rows)
    middle = median_error(rows)
    return (
        f"{near} of {len(rows)} within 5 % (median {100 * middle:.1f} %, largest error "
        f"{100 * largest:.0f} %)"
    )


def _rows_file(name: str) -> Path:
    return PAGE.parents[1] / "analysis" / "others" / name / "rows.csv"


def _summary(name: str, rows: Sequence[Row]) -> Iterable[tuple[str, ...]]:
    """A line per unit and use."""
    anchor = SOURCES[name].title.lower().replace("'", "").replace(" ", "-")
    for use in (HELD_OUT, HELD_OUT + REPEATED, STATED, FITTED):
        for unit in dict.fromkeys(row.unit for row in rows):
            chosen = [
                row for row in rows if row.use_told(rows) == use and row.unit == unit
            ]
            if not chosen:
                continue
            covered = [row.covered for row in chosen if row.covered is not None]
            yield (
                f"[{SOURCES[name].title}](#{anchor})",
                f"{len(chosen)} ({unit})",
                use,
                f"{100 * median_error(chosen):.2g} %",
                f"{100 * max((row.error for row in chosen), key=abs):+.2g} %",
                f"{sum(covered)} of {len(covered)}" if covered else "–",
            )


def _section(name: str, rows: Sequence[Row]) -> str:
    shown = rows if len(rows) <= _SHOWN_ROWS else _spread(rows, _SHOWN_ROWS)
    lines = list(_orders(rows)) if name == "grid5000" else []
    header = ("quantity", "published", "simfed", "error", "use", "interval")
    notes = any(row.note for row in rows)
    cells = [
        (
            row.quantity,
            _number(row.published, row.unit),
            _number(row.simfed, row.unit),
            f"{100 * row.error:+.2f} %",
            row.use,
            "–"
            if row.low is None or row.high is None
            else f"{row.low:.4g} … {row.high:.4g}",
            *((row.note,) if notes else ()),
        )
        for row in shown
    ]
    if len(shown) < len(rows):
        lines.append(
            f"{len(shown)} of the {len(rows)} rows, evenly picked; all are in "
            f"[rows.csv](../analysis/others/{name}/rows.csv)."
        )
    return "\n\n".join(
        [*lines, markdown([(*header, *(("note",) if notes else ())), *cells])]
    )


def _orders(rows: Sequence[Row]) -> Iterable[str]:
    """Orders of configurations by their held-out makespans: all, and those of equal
    epochs.
    """
    simulated: dict[str, list[float]] = {}
    real: dict[str, list[float]] = {}
    for row in rows:
        what, _, configuration = row.quantity.rpartition(", ")[0].partition(", ")
        if what == "makespan" and row.use == HELD_OUT:
            simulated[configuration] = [row.simfed]
            real.setdefault(configuration, []).append(row.published)
    orders = compare_orders(simulated, real)
    yield (
        f"**Orders** of mean makespans, strategies by epochs. {_told(orders)} Epochs "
        "make most of that order; strategies of equal epochs are within 2 % of one "
        "another, and reality separates few of them."
    )
    for epochs in (1, 3, 5):
        chosen = {
            name: values
            for name, values in real.items()
            if name.endswith(f"E = {epochs}")
        }
        yield f"- E = {epochs} alone: {_told(compare_orders(simulated, chosen))}"


def _told(orders: Orders) -> str:
    return "; ".join(orders.sentences()) + "."


def _spread(rows: Sequence[Row], count: int) -> list[Row]:
    return [rows[round(i * (len(rows) - 1) / (count - 1))] for i in range(count)]


def _number(value: float, unit: str) -> str:
    unit = unit.partition(",")[0]
    if unit == "J":
        return f"{value / 1e3:,.1f} kJ"
    digits = f"{value:,.2f}" if unit in ("s", "%") else f"{value:,.4g}"
    return f"{digits} {unit}"
