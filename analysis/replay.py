"""The one command that plays a printed number's run again, and what comes of it.

    python analysis/replay.py ANSWERS "device=Redmi Note 8,link=fibre,arm=dense" 0
    python analysis/replay.py codecs "setting=…,codec=top-k" 3 --print

PAGE is a page, or a table of one; CELL says columns of its kept rows. The command is
printed and run; then the row of that run stands beside the kept one, column by column
where they differ. What is printed of several seeds comes of one such run for each.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kept import PROVENANCE, ROOT, KeptStudy, Row, read, text_of

from simfed.study import load_study

if TYPE_CHECKING:
    import pandas as pd

    from simfed.study.plan import PlannedRun

PAGES = {
    "ANSWERS": "answers",
    "TUNED": "answers_tuned",
    "NOT-WAITING": "not_waiting",
    "BALANCE": "rivals_figure",
    "RECORDED": "recorded_links",
    "RESULTS": "paper_rows",
    "codecs": "codecs_table",
    "cell": "cell_figure",
    "top-k-map": "top_k_map",
}
"""Pages that quote studies, tables of scenarios/README.md, the tutorial's map → their
module."""


def rows_of(page: str) -> pd.DataFrame:
    """Return the kept rows of a page.

    Of RECORDED those whose links need no recording.
    """
    module = import_module(PAGES[page])
    return read(module.ROUNDS if page == "RECORDED" else module.ROWS)


def parse_cell(text: str, columns: Sequence[str]) -> dict[str, str]:
    """Return column → text of `COLUMN=TEXT,…`; a text may have commas.

    Raises: `SystemExit`.

    >>> parse_cell("arm=dense, server momentum,link=fibre", ["arm", "link"])
    {'arm': 'dense, server momentum', 'link': 'fibre'}
    """
    known = "|".join(map(re.escape, columns))
    before, *pairs = re.split(rf"(?:^|,)\s*({known})=", text)
    if before.strip() or not pairs:
        sys.exit(f"CELL: got {text!r}, expected COLUMN=TEXT,… of {', '.join(columns)}")
    return {a: b.strip() for a, b in zip(pairs[::2], pairs[1::2], strict=True)}


def find(page: str, cell: Mapping[str, str], seed: int) -> tuple[KeptStudy, PlannedRun]:
    """Return the run of a cell and its study.

    Raises: `SystemExit` for none, or several.
    """
    found = [
        (study, run)
        for study in import_module(PAGES[page]).STUDIES
        for run in study.planned(cell, seed)
    ]
    # of runs that several studies share, the first one's; of a study there is to be one
    runs = [run for study, run in found if study is found[0][0]]
    if len(runs) != 1:
        columns = dict.fromkeys(c for study, run in found for c in study.texts(run))
        asked = (
            f"columns that name one run ({', '.join(columns)})"
            if found
            else "a cell of the page"
        )
        sys.exit(f"CELL: got {len(runs)} runs with seed {seed}, expected {asked}")
    return found[0]


def differences(kept: pd.DataFrame, made: pd.DataFrame) -> list[str]:
    """Return a line for each column in which rows of a run differ from what is kept."""
    if len(kept) != len(made):
        return [f"{len(kept)} rows are kept and {len(made)} were made"]
    lines = []
    for column in (name for name in kept if name in made and name not in PROVENANCE):
        pairs = list(zip(kept[column], made[column], strict=True))
        apart = [(a, b) for a, b in pairs if not alike(a, b)]
        if apart:
            lines.append(f"{column}: kept {apart[0][0]}, played {apart[0][1]}")
    return lines


def alike(a: Any, b: Any) -> bool:
    """Return whether two values are the same, as far as rows keep digits."""
    if hasattr(a, "__len__") and not isinstance(a, str):
        return len(a) == len(b) and all(map(alike, a, b))
    try:
        x, y = float(a), float(b)
    except (TypeError, ValueError):
        return text_of(a) == text_of(b)
    return abs(x - y) <= 1e-6 * max(abs(x), abs(y)) + 1e-9 or (x != x and y != y)


def replay(
    page: str, cell: Mapping[str, str], seed: int, out: Path
) -> tuple[list[str], Row]:
    """Play a cell's run by its command.

    Return its differences from what is kept, and where the kept row comes from.

    Raises: `subprocess.CalledProcessError` where the command fails.
    """
    study, run = find(page, cell, seed)
    words = study.command(run, out)
    subprocess.run([sys.executable, "-m", *words, "--quiet"], cwd=ROOT, check=True)
    rows = rows_of(page)
    place = study.texts(run)
    mine = rows[rows["seed"] == seed]
    for column in (name for name in place if name in mine):
        mine = mine[[text_of(value) == place[column] for value in mine[column]]]
    made = study.collect(load_study(study.folder(out)))
    made = made[made["address"] == address_of(study, run, out)]
    first = mine.iloc[0].to_dict() if len(mine) else {}
    return differences(mine, made), {name: first.get(name) for name in PROVENANCE}


def address_of(study: KeptStudy, run: PlannedRun, out: Path) -> str:
    """Return the address of a run in its study's folder."""
    entries = load_study(study.folder(out)).plan["runs"]
    (mine,) = (
        e for e in entries if (e["point"], e["seed"]) == (dict(run.point), run.seed)
    )
    return str(mine["address"])


def main(words: Sequence[str] | None = None) -> None:
    parser = ArgumentParser(
        description=__doc__, formatter_class=RawDescriptionHelpFormatter
    )
    parser.add_argument("page", choices=PAGES, metavar="PAGE", help=", ".join(PAGES))
    parser.add_argument("cell", metavar="CELL", help="COLUMN=TEXT,… of the kept rows")
    parser.add_argument("seed", type=int, metavar="SEED")
    parser.add_argument(
        "--out", type=Path, default=Path("studies"), help="folder of studies"
    )
    parser.add_argument(
        "--print", action="store_true", help="print the command, and run nothing"
    )
    asked = parser.parse_args(words)
    cell = parse_cell(asked.cell, [str(name) for name in rows_of(asked.page)])
    study, run = find(asked.page, cell, asked.seed)
    print(shlex.join(study.command(run, asked.out)), flush=True)
    if asked.print:
        return
    lines, from_ = replay(asked.page, cell, asked.seed, asked.out)
    print("\n".join(lines) or "as kept")
    told = [f"{name} {value}" for name, value in from_.items() if text_of(value)]
    print(
        "; ".join(told) or "the kept row is from before rows said where they come from"
    )


if __name__ == "__main__":
    main()
