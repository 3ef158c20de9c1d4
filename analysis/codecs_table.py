"""Every codec at 6 kB an upload: the table of scenarios/README.md.

    # some ten minutes on one core
    python analysis/codecs_table.py run [--out studies]
    # from the kept rows, in a second
    python analysis/codecs_table.py write

`run` plays scenarios/studies/codecs.yaml (what is done is not done again) and keeps one
row per run in codecs_rows.csv: when 85 % was first reached, else the end, and the mean
upload. Ratios are paired by seed (geometric mean, 95 %).
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from kept import ROOT, KeptStudy, Row, play_all, read, spent_to, study_parser, write
from pages import markdown, with_interval, write_page

from simfed.record.read import Run
from simfed.report.statistics import compare_times, estimate_median_time

ROWS, PAGE = (
    Path(__file__).with_name("codecs_rows.csv"),
    ROOT / "scenarios" / "README.md",
)
REFERENCE = "top-k"
TARGET = 0.85
OWN_SIZE = ("ef-sign", "terngrad", "fp16", "bf16", "dense")
"""Codecs whose size is not to be chosen."""


def row_of(run: Run, curve: pd.DataFrame) -> Row:
    """Return what is kept of a run."""
    spent = spent_to(curve, TARGET, ("round", "at_s"))
    return {
        "reached": spent["reached"],
        "round": int(spent["round"]),
        "at_s": round(spent["at_s"], 6),
        "upload_kb": round(run.participations["uplink_bytes"].mean() / 1e3, 3),
    }


FILE = ROOT / "scenarios" / "studies" / "codecs.yaml"
STUDIES = [KeptStudy(FILE, {"setting": "zip", "codec": "list"}, row_of)]


def table(rows: pd.DataFrame) -> str:
    """Bytes, rounds to 85 %, and how many times sooner than Top-K in each setting."""
    settings = list(dict.fromkeys(rows["setting"]))
    lines = [["codec", "kB", "rounds to 85 %", *settings]]
    arms = {
        place: arm.sort_values("seed")
        for place, arm in rows.groupby(["setting", "codec"])
    }
    for codec in dict.fromkeys(rows["codec"]):
        mine = arms[settings[0], codec]
        needed = estimate_median_time(mine["round"].tolist(), mine["reached"].tolist())
        text = f"{needed.least:g}" if needed.is_exact else f"> {needed.least:g}"
        if not mine["reached"].all():
            text += f" ({int(mine['reached'].sum())} of {len(mine)} seeds got there)"
        ratios = []
        for setting in settings:
            pair = arms[setting, codec], arms[setting, REFERENCE]
            columns = (
                arm[name].tolist() for arm in pair for name in ("at_s", "reached")
            )
            ratios.append(
                "1" if codec == REFERENCE else with_interval(compare_times(*columns))
            )
        lines.append([str(codec), f"{mine['upload_kb'].mean():.1f}", text, *ratios])
    return markdown(lines)


def page_parts() -> dict[str, str]:
    """What stands between the page's comments, by their names."""
    return {"codecs": table(read(ROWS))}


def main() -> None:
    arguments = study_parser(__doc__).parse_args()
    if arguments.do == "run":
        write(play_all(STUDIES, arguments.out, arguments.jobs), ROWS)
    write_page("codecs_table")


if __name__ == "__main__":
    main()
