"""`balance` beside its rivals, by time and by bytes: the rows, figure and tables of BALANCE.md.

    python analysis/rivals_figure.py run [--out studies]   # some ten minutes on one core
    python analysis/rivals_figure.py write                 # from the kept rows, in seconds

`run` plays scenarios/studies/rivals.yaml seed by seed (what is done is not done again), and keeps
one row per run in rivals.parquet: time, and bytes sent by all clients, when 85 % was first reached,
else by the end. `write` decides by the rules that stand in the study's file, and makes the page's
tables and figure from these rows alone.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd

from simfed.study import StudyResult, load_study, run_study
from simfed.study.reach import first_amount

HERE = Path(__file__).resolve().parent
STUDY = HERE.parent / "scenarios" / "studies" / "rivals.yaml"
ROWS = HERE / "rivals.parquet"
SEEDS = range(8)
TARGET = 0.85


def rows_of(study: StudyResult) -> pd.DataFrame:
    """One row per finished run: what was spent when 85 % was first reached, else by the end."""
    rows = []
    for entry, run in study.finished:
        sent = run.rounds.set_index("round")["uplink_bytes"].cumsum().rename("sent_bytes")
        curve = study.curve_of(entry["address"]).join(sent, on="round")
        row = {"setting": entry["point"]["zip"], "arm": entry["point"]["list"]}
        row["seed"] = entry["seed"]
        for column in ("at_s", "sent_bytes"):
            end = float(curve[column].iloc[-1])
            row[column], row["reached"] = first_amount(curve, TARGET, column, end)
        row["final_accuracy"] = float(curve["accuracy"].iloc[-1])
        rows.append(row)
    return pd.DataFrame(rows)


def play(out: Path) -> None:
    """Run what is missing, and keep the rows after every seed."""
    frames = []
    for seed in SEEDS:
        folder = out / f"rivals-{seed}"
        run_study(STUDY, folder, jobs=1, overrides={"seeds": [seed]})
        frames.append(rows_of(load_study(folder)))
        pd.concat(frames, ignore_index=True).to_parquet(ROWS, index=False)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("do", choices=("run", "write"))
    parser.add_argument("--out", type=Path, default=Path("studies"))
    arguments = parser.parse_args()
    if arguments.do == "run":
        play(arguments.out)


if __name__ == "__main__":
    main()
