"""The first tables of ANSWERS.md: what to use, of the rows behind TUNED.md.

python analysis/pages.py answers_first
"""

from __future__ import annotations

from collections.abc import Sequence

import answers
from answers import compare_ways, name_of, times_of
from answers_tuned import LENET, Cell, cells_of, read_rows, seconds
from pages import markdown, with_interval

PAGE = answers.PAGE


def use_in_words(cell: Cell) -> str:
    """Return the soonest arm of a cell, its seconds, dense's, and their ratio."""
    medians_s = cell.medians_s
    best = str(medians_s.index[0])
    took = f"{seconds(medians_s[best])} s for {seconds(medians_s['dense'])} s"
    sooner = with_interval(compare_ways(times_of(cell.rows), best, "dense"))
    return f"{name_of(best)}<br>{took}<br>{sooner}×"


def alike_table(cells: Sequence[Cell]) -> str:
    """Return a line per link and a column per device, of LeNet-5 on alike devices."""
    cells = [cell for cell in cells if cell.model == LENET and cell.device]
    devices = list(dict.fromkeys(cell.device for cell in cells))
    lines = [["link", *devices]]
    for link in dict.fromkeys(cell.fleet for cell in cells):
        here = {cell.device: cell for cell in cells if cell.fleet == link}
        told = (use_in_words(here[one]) if one in here else "" for one in devices)
        lines.append([link, *told])
    return markdown(lines)


def mixed_table(cells: Sequence[Cell]) -> str:
    """Return a line per mixed fleet: the three soonest arms, and dense."""
    lines = [["fleet", "soonest", "second", "third", "dense"]]
    for cell in cells:
        if cell.device:
            continue
        medians_s = cell.medians_s
        told = [f"{name_of(str(a))}: {seconds(s)} s" for a, s in medians_s[:3].items()]
        lines.append([cell.fleet, *told, f"{seconds(medians_s['dense'])} s"])
    return markdown(lines)


def page_parts() -> dict[str, str]:
    """Return what stands between the page's comments, by their names."""
    cells = list(cells_of(read_rows()))
    return {"alike": alike_table(cells), "mixed": mixed_table(cells)}
