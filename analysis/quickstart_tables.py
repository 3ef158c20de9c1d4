"""What uploads and downloads of the quickstart weigh: the two tables of
docs/codecs-in-scenarios.md.

    python analysis/quickstart_tables.py    # plays both runs that learn, in two minutes

Bytes by codec are played by the clock alone, whenever the page is made. The quickstart
with whole models down and with changes of models (scenarios/changes.yaml) learns; of
each run one row is kept in quickstart_rows.csv.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pandas as pd
from pages import markdown, write_page

import simfed
from simfed.report.reach import find_first_amount

ROOT = Path(__file__).resolve().parents[1]
ROWS = Path(__file__).with_name("quickstart_rows.csv")
PAGE = ROOT / "docs" / "codecs-in-scenarios.md"
SCENARIOS = {"whole models": "quickstart", "changes": "changes"}
CODECS: dict[str, Any] = {
    "`dense`": "dense",
    "`qsgd: {levels: 16}`": {"qsgd": {"levels": 16}},
    "`powersgd: {rank: 2}`": {"powersgd": {"rank": 2}},
    "`ef-sign`": "ef-sign",
    "`top-k`, and `ef21` around it": "top-k",
    "`chain: [top-k, {qsgd: {levels: 4}}]`": {
        "chain": ["top-k", {"qsgd": {"levels": 4}}]
    },
}
ROUNDS = 60
_PHASES = ("downlink_s", "training_s", "uplink_s")
TARGETS = (0.85, 0.9)


def uploads_table() -> str:
    """Bytes of an upload and the time of sixty rounds, by codec: clock alone."""
    lines = [["strategy", "bytes per upload, LeNet5", "LeNet5-half", "simulated time"]]
    for name, codec in CODECS.items():
        changes: dict[str, Any] = {
            "rounds": ROUNDS,
            "compression.strategies": [codec],
            "compression.index_code": "fixed",
            "policy": {"kind": "uniform", "strategy": codec},
        }
        if codec != "dense":
            changes["clients[*].device.assume"] = {"compression": "0.3 ms"}
        scenario = simfed.load_scenario(ROOT / "scenarios" / "quickstart.yaml", changes)
        run = simfed.run(scenario, time_only=True, progress=False)
        sizes = run.participations.groupby("prototype")["uplink_bytes"].mean()
        large, small = sorted(sizes, reverse=True)
        end_s = run.rounds["finished_at_s"].iloc[-1]
        lines.append([name, f"{large:,.0f}", f"{small:,.0f}", f"{end_s:.2f} s"])
    return markdown(lines)


def play(scenario: str) -> dict[str, object]:
    """A row of one run."""
    with tempfile.TemporaryDirectory() as folder:
        path = ROOT / "scenarios" / f"{scenario}.yaml"
        run = simfed.run(
            simfed.load_scenario(path), Path(folder, "run"), progress=False
        )
        parts, rounds = run.participations, run.rounds
        curve = run.prototypes.dropna(subset=["test_accuracy"])
        curve = curve.groupby("round", as_index=False)["test_accuracy"].mean()
        curve = curve.rename(columns={"test_accuracy": "accuracy"})
        curve["at_s"] = curve["round"].map(rounds.set_index("round")["finished_at_s"])
        phases = parts[
            ["downlink_s", "training_s", "compression_s", "uplink_s", "waiting_s"]
        ]
        row: dict[str, object] = {"scenario": scenario, "rounds": len(rounds)}
        row |= {
            f"{way}link_bytes": int(parts[f"{way}link_bytes"].sum())
            for way in ("down", "up")
        }
        row |= {phase: round(float(phases[phase].sum()), 3) for phase in phases}
        row["end_s"] = round(float(rounds["finished_at_s"].iloc[-1]), 4)
        for target in TARGETS:
            at_s, reached = find_first_amount(curve, target, "at_s", float("nan"))
            row[f"at_s_{target:.2f}"] = round(at_s, 4) if reached else None
        row["accuracy"] = round(float(curve["accuracy"].iloc[-1]), 5)
        row["undone"] = int(rounds["rolled_back"].sum())
    return row


def changes_table(rows: pd.DataFrame) -> str:
    """Both runs side by side."""
    runs = [rows.set_index("scenario").loc[name] for name in SCENARIOS.values()]
    spent_s = [
        sum(run[phase] for phase in ("compression_s", "waiting_s", *_PHASES))
        for run in runs
    ]

    def seconds(phase: str) -> list[str]:
        return [
            f"{run[phase]:.1f} s ({run[phase] / whole_s:.0%})".replace("%", " %")
            for run, whole_s in zip(runs, spent_s, strict=True)
        ]

    lines = [["", *SCENARIOS]]
    lines.append(
        [
            "bytes down, all clients",
            *(f"{run['downlink_bytes'] / 1e6:.1f} MB" for run in runs),
        ]
    )
    lines.append(["bytes up", *(f"{run['uplink_bytes'] / 1e6:.1f} MB" for run in runs)])
    lines.append(["clients' time: download", *seconds("downlink_s")])
    lines.append(["local work, unpacking included", *seconds("training_s")])
    lines.append(["upload", *seconds("uplink_s")])
    lines.append(
        [
            f"simulated time, {runs[0]['rounds']:.0f} rounds",
            *(f"{run['end_s']:.1f} s" for run in runs),
        ]
    )
    for target in TARGETS:
        at_s = (run[f"at_s_{target:.2f}"] for run in runs)
        lines.append(
            [
                f"… to {target:.0%} mean accuracy".replace("%", " %"),
                *(f"{at:.1f} s" for at in at_s),
            ]
        )
    lines.append(
        [
            "mean accuracy at the end",
            *(f"{100 * run['accuracy']:.1f} %" for run in runs),
        ]
    )
    lines.append(
        ["rounds undone by the safeguard", *(f"{run['undone']:.0f}" for run in runs)]
    )
    return markdown(lines)


def page_parts() -> dict[str, str]:
    """What stands between the page's comments, by their names."""
    return {"uploads": uploads_table(), "changes": changes_table(pd.read_csv(ROWS))}


if __name__ == "__main__":
    pd.DataFrame([play(name) for name in SCENARIOS.values()]).to_csv(ROWS, index=False)
    write_page("quickstart_tables")
