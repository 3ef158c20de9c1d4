"""Whether what `simfed advise` says of drawn fleets is the best of a full study there.

    python analysis/advised_fleets.py       # an hour of one core, in studies/
    python analysis/pages.py advised_fleets # the table of docs/advise.md, of kept rows

Fleets are drawn by a fixed seed: nobody chose them, and `simfed advise` was written
before. Of each, advice is taken by the race and by the rule of thumb; then all
candidates, and what was advised, play under seeds that no advice saw.
"""

from __future__ import annotations

from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from kept import ROOT, provenance_of, spent_to
from pages import markdown, write_page

from simfed import load_scenario, run
from simfed.advise import advise, advise_by_clock
from simfed.advise.candidates import CompressionCandidate, list_candidates
from simfed.study import run_study

ROWS = Path(__file__).with_name("advised_fleets_rows.csv")
PAGE = ROOT / "docs" / "advise.md"
SEEDS = range(1001, 1006)
BUDGETS_S = {1: 600.0, 2: 600.0, 3: 1500.0}
"""Of each fleet's race; the third was played on a core that others used."""
SLACK = 1.5
"""Fixed codecs play until they have spent so many times what the advised candidate
needed in its race: one that is not at the goal by then is not the best."""
PROFILES = ("xeon-2core-vm", "x86-2core-vm")


def draw_fleet(number: int) -> dict[str, Any]:
    """Return the scenario of a fleet of so many groups; all else is drawn, or in turn.

    >>> draw_fleet(1) == draw_fleet(1) != draw_fleet(2)
    True
    """
    rng = np.random.default_rng([58, number])
    groups = []
    for _ in range(number):
        up_mbps = float(np.exp(rng.uniform(np.log(0.3), np.log(30))))
        groups.append(
            {
                "count": int(rng.integers(3, 6)),
                "prototype": "model",
                "device": {
                    "profile": str(rng.choice(PROFILES)),
                    "speed": round(float(np.exp(rng.uniform(np.log(0.1), 0))), 2),
                    "assume": {"compression": "1 ms"},
                },
                "link": {
                    "up": f"{up_mbps:.2f} Mbps",
                    "down": f"{up_mbps * rng.uniform(1, 8):.2f} Mbps",
                    "latency": f"{rng.uniform(5, 60):.0f} ms",
                },
            }
        )
    return {
        "name": f"fleet-{number}",
        "seed": 0,
        "method": "fedavg",
        "rounds": 120,
        "dataset": {
            "name": "mnist-mini",
            "partition": {"kind": "dirichlet", "alpha": 1.0 if number % 2 else 0.2},
        },
        "prototypes": {"model": {"model": "lenet5" if number % 2 else "lenet5-half"}},
        "clients": groups,
        "training": {"learning_rate": 0.1, "local_steps": 5},
        "compression": {"k": "1%"},
        "policy": {"kind": "uniform", "strategy": "dense"},
        "network": {"server": {"receive": "1 Gbps", "send": "1 Gbps"}},
        "evaluation": {"every": 2},
    }


def count_rounds(path: Path, candidate: CompressionCandidate, until_s: float) -> int:
    """Return the rounds that a candidate plays until these simulated seconds.

    They are counted by the clock alone; a policy that needs learning plays all.
    """
    made = candidate.apply(path)
    if not candidate.codecs:
        return made.rounds
    timed = run(made, source=path, time_only=True, progress=False)
    per_round_s = timed.summary["simulated_s"] / made.rounds
    every = made.evaluation.every
    return int(min(ceil(until_s / per_round_s / every) * every, made.rounds))


def play(number: int, out: Path) -> list[dict[str, object]]:
    """Return a fleet's rows: an arm under a seed, with its seconds to the goal."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"fleet-{number}.yaml"
    path.write_text(yaml.safe_dump(draw_fleet(number), sort_keys=False))
    found = advise(path, budget_s=BUDGETS_S[number], out=out / f"advice-{number}")
    by_rule = advise_by_clock(path).candidate
    assert found.result is not None
    (goal,) = found.result.thresholds
    candidates, _ = list_candidates(path, load_scenario(path))
    arms = {one.name: one for one in (*candidates, found.candidate, by_rule)}
    raced = found.result.targets("time", [goal]).set_index("arm")["median"]
    until_s = SLACK * float(raced[found.candidate.name])
    study = {
        "name": f"study-{number}",
        "base": str(path.resolve()),
        "seeds": [*SEEDS],
        "list": {
            name: {"rounds": count_rounds(path, one, until_s), **one.changes}
            for name, one in arms.items()
        },
        "compare": {"arms": "list", "thresholds": [goal]},
    }
    file = out / f"study-{number}.yaml"
    file.write_text(yaml.safe_dump(study, sort_keys=False))
    result = run_study(file, out / f"study-{number}", jobs=1)
    rows = []
    for entry, played in result.finished:
        arm, curve = entry["point"]["list"], result.curve_of(entry["address"])
        says = {"race": arm == found.candidate.name, "rule": arm == by_rule.name}
        row = {"fleet": number, "arm": arm, "seed": entry["seed"], "goal": goal, **says}
        row |= spent_to(curve, goal, ["round", "at_s"])
        rows.append(row | provenance_of(played, entry["address"]))
    return rows


def page_parts() -> dict[str, str]:
    """Return the table of what was advised beside the best, by its place."""
    return {"fleets": fleets_table(pd.read_csv(ROWS))}


def fleets_table(rows: pd.DataFrame) -> str:
    """Return a line for each fleet: the best arm of the study, and what was advised."""
    lines = [["fleet", "up, Mbps", "goal", "best of the study", "the race", "the rule"]]
    for number, of_fleet in rows.groupby("fleet"):
        never = of_fleet["at_s"].where(of_fleet["reached"], np.inf)
        medians_s = never.groupby(of_fleet["arm"]).median().sort_values()
        best_s = medians_s.iloc[0]
        advised = []
        for says in ("race", "rule"):
            arm = of_fleet["arm"][of_fleet[says]].iloc[0]
            ratio = medians_s[arm] / best_s
            text = f"{ratio:.2f} ×"
            if np.isinf(ratio):  # its runs end before
                spent_s = of_fleet["at_s"][of_fleet["arm"] == arm].median()
                text = f"> {spent_s / best_s:.2f} ×"
            advised.append(f"{arm}: {text}")
        up = " / ".join(
            f"{group['count']} × {group['link']['up'].removesuffix(' Mbps')}"
            for group in draw_fleet(int(str(number)))["clients"]
        )
        goal = f"{of_fleet['goal'].iloc[0]:.0%}".replace("%", " %")
        best = f"{medians_s.index[0]}: {best_s:.1f} s"
        lines.append([str(number), up, goal, best, *advised])
    return markdown([[cell.replace("|", "\\|") for cell in line] for line in lines])


if __name__ == "__main__":
    out = ROOT / "studies" / "advised"
    rows = [row for number in BUDGETS_S for row in play(number, out)]
    pd.DataFrame(rows).to_csv(ROWS, index=False)
    write_page("advised_fleets")
