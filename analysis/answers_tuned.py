"""Codec and momentum, each at its own best learning rate: the tables of TUNED.md and
the first ones of ANSWERS.md.

    python analysis/answers_tuned.py choose        # rates: half an hour of one core
    python analysis/answers_tuned.py run           # what reports: an hour of one core
    python analysis/pages.py answers_tuned answers # pages, from the kept rows

`choose` plays scenarios/studies/answers-rates.yaml, and the perceptron of
answers-larger.yaml at the same rates, under seeds of their own and prints each arm's
best rate, which the studies that report have written in. `run` plays these under ten
other seeds, and a larger model by the clock alone. What is claimed of them was
registered on the page before any of their rows was there.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import yaml
from answers import compare_ways, name_of, times_of
from kept import ROOT, KeptStudy, Row, read, spent_to, write
from orders import holm
from pages import markdown, with_interval, write_page
from scipy import stats

from simfed.advise.clock import ABOVE
from simfed.ground.errors import RunFailed
from simfed.report.statistics import PairedTimes
from simfed.study import load_study

if TYPE_CHECKING:
    import pandas as pd

    from simfed.record.read import Run

HERE, STUDY_FILES = Path(__file__).resolve().parent, ROOT / "scenarios" / "studies"
PAGE = HERE / "TUNED.md"
ROWS, CLOCK_ROWS = HERE / "answers-tuned.parquet", HERE / "answers-clock.parquet"
RATES = HERE / "answers-rates.parquet"
MOMENTUM = ", momentum"
LENET, PERCEPTRON, RESNET = "LeNet-5", "perceptron", "ResNet-18"
GOALS = {LENET: 0.93, PERCEPTRON: 0.92}
"""The accuracy that is good enough, by model."""
ROUNDS = 60
PI, DGC = "Raspberry Pi 5", "dgc@1%"
WEIGHTS = {LENET: 61_706, PERCEPTRON: 199_210, RESNET: 11_173_962}
LINK_NAMES = ("fibre", "LTE-like", "DSL", "LTE-M")
LINKS, DEVICES = "clients[0].link", "clients[0].device.speed"
CHOOSING: dict[str, object] = {"seeds": [100, 101, 102], "rounds": 50}
TRIED = [0.05, 0.1, 0.2, 0.4]


# ---- rows ----------------------------------------------------------------------------


def shares_of(run: Run) -> list[float]:
    """Return each group's upload seconds over all other seconds of its rounds."""
    groups: Any = run.scenario["clients"]
    of_client = np.repeat(range(len(groups)), [group["count"] for group in groups])
    parts = run.participations
    rest = ["downlink_s", "training_s", "compression_s", "waiting_s"]
    spent = parts.groupby(of_client[parts["client"]])[["uplink_s", *rest]].sum()
    return list(spent["uplink_s"] / spent[rest].sum(axis=1))


def rows_of(run: Run, curve: pd.DataFrame, told: Mapping[str, str]) -> Row:
    """Return what was spent until the accuracy, a device's bytes up and down with it.

    What never got there has what was spent by the end, and is not `reached`.
    """
    parts = run.participations
    by_round = parts.groupby("round")[["uplink_bytes", "downlink_bytes"]].sum().cumsum()
    each = (by_round / parts["client"].nunique()).rename(
        columns={"uplink_bytes": "up_bytes", "downlink_bytes": "down_bytes"}
    )
    curve = curve.join(each, on="round")
    columns = ("round", "at_s", "up_bytes", "down_bytes")
    spent = spent_to(curve, GOALS[told["model"]], columns)
    shares = shares_of(run)
    both = {"first_share": shares[0], "last_share": shares[-1]}
    return {**told, **spent, **both}


def clock_rows_of(run: Run, curve: pd.DataFrame) -> Row:
    """Return what a round takes and moves, of a device: a mean over the rounds."""
    sums = run.participations[["uplink_bytes", "downlink_bytes"]].sum()
    up, down = sums / len(run.participations)
    share = shares_of(run)[0]
    round_s = run.summary["simulated_s"] / ROUNDS
    return {"round_s": round_s, "up_bytes": up, "down_bytes": down, "share": share}


def study_of(file: str, axes: Mapping[str, str], told: Row, **more: Any) -> KeptStudy:
    """Return a study whose rows also say what is told of all of them."""
    make = partial(rows_of, told=told)
    return KeptStudy(STUDY_FILES / file, axes, make, told=lambda _: told, **more)


def arms_of(file: str) -> dict[str, dict[str, object]]:
    """Return the arms of a study: their changes by name."""
    study: Any = yaml.safe_load((STUDY_FILES / file).read_text(encoding="utf-8"))
    return dict(study["list"])


LENET_RATES = study_of(
    "answers-rates.yaml",
    {"arm": "policy", "momentum": "method", "rate": "training.learning_rate"},
    {"model": LENET},
)
PERCEPTRON_RATES = study_of(
    "answers-larger.yaml",
    {"arm": "list", "rate": "training.learning_rate"},
    {"model": PERCEPTRON},
    name="answers-larger-rates",
    changes={
        **CHOOSING,
        "grid": {"training.learning_rate": TRIED},
        "list": {
            arm: {k: v for k, v in changes.items() if k != "training.learning_rate"}
            for arm, changes in arms_of("answers-larger.yaml").items()
        },
    },
)
CELLS = {"fleet": LINKS, "device": DEVICES, "arm": "list"}
SHARED_LINE = "DSL, shared by ten"
SHARED: dict[str, object] = {
    f"grid.{LINKS}": {SHARED_LINE: {}},
    f"grid.{DEVICES}": {PI: 0.54},
    "network.topology": "tree",
    "network.tiers": [
        {"name": "line", "up": "1 Mbps", "down": "10 Mbps", "latency": "25 ms"}
    ],
}
BY_FACTS: dict[str, object] = {
    f"grid.{DEVICES}": {PI: 0.12, "Tesla V100": 100.0},
    "list": {
        arm: changes
        for arm, changes in arms_of("answers-tuned.yaml").items()
        if arm in ("dense", "dgc@1%") or (MOMENTUM in arm and "sign" not in arm)
    },
    "prototypes": {
        "resnet18": {
            "facts": {"parameters": WEIGHTS[RESNET], "flops_per_sample": 1_110_845_440}
        }
    },
    "clients[0].prototype": "resnet18",
}
STUDIES = [
    study_of("answers-tuned.yaml", CELLS, {"model": LENET}),
    study_of(
        "answers-tuned.yaml",
        CELLS,
        {"model": LENET},
        name="answers-shared",
        changes=SHARED,
    ),
    study_of(
        "answers-mixed.yaml",
        {"fleet": "clients", "arm": "list"},
        {"model": LENET, "device": ""},
    ),
    study_of(
        "answers-larger.yaml",
        {"fleet": LINKS, "arm": "list"},
        {"model": PERCEPTRON, "device": PI},
    ),
]
CLOCK = KeptStudy(
    STUDY_FILES / "answers-tuned.yaml",
    CELLS,
    clock_rows_of,
    name="answers-clock",
    changes=BY_FACTS,
    time_only=True,
)


def read_rows() -> pd.DataFrame:
    """Return the rows that report: those kept, and the larger model's by the clock.

    A round of the larger model takes its mean seconds; rounds are those of LeNet-5's
    curve under the same arm and seed.
    """
    import pandas as pd

    rows, clock = read(ROWS), read(CLOCK_ROWS)
    here = (rows["fleet"] == "fibre") & (rows["device"] == PI)
    curves = rows[here & (rows["model"] == LENET)]
    clock = clock.merge(curves[["arm", "seed", "round", "reached"]], on=["arm", "seed"])
    rounds = clock["round"]
    spent = {
        "model": RESNET,
        "at_s": rounds * clock["round_s"],
        "up_bytes": rounds * clock["up_bytes"],
        "down_bytes": rounds * clock["down_bytes"],
        "first_share": clock["share"],
        "last_share": clock["share"],
    }
    return pd.concat([rows, clock.assign(**spent)], ignore_index=True)


# ---- rates ---------------------------------------------------------------------------


def choose_rates(rows: pd.DataFrame) -> dict[str, float]:
    """Return each arm's rate: that of the least mean log of rounds to the accuracy."""
    logs = np.log(rows["round"]) + np.where(rows["reached"], 0, 10)
    means = rows.assign(log=logs).groupby(["arm", "rate"], sort=False)["log"].mean()
    return {str(arm): float(means[arm].idxmin()) for arm in means.index.unique("arm")}


def play(studies: Sequence[KeptStudy], out: Path, jobs: int | None) -> pd.DataFrame:
    """Run what is missing of studies; return the rows of what did not diverge."""
    import pandas as pd

    for study in studies:
        with suppress(RunFailed):
            study.play(out, jobs)
    done = (study.collect(load_study(study.folder(out))) for study in studies)
    return pd.concat(done, ignore_index=True)


def play_rates(out: Path, jobs: int | None) -> pd.DataFrame:
    """Run what is missing of the studies that choose rates; return their rows."""
    rows = play([LENET_RATES, PERCEPTRON_RATES], out, jobs)
    rows["arm"] += np.where(rows.pop("momentum") == "server", MOMENTUM, "")
    return rows


# ---- claims --------------------------------------------------------------------------


class Claim(NamedTuple):
    """One arm against another in one cell, as registered."""

    cell: Cell
    first: str
    second: str
    paired: PairedTimes
    """How many times sooner the first was than the second."""
    p_value: float
    """Of Student's t over the logarithms of paired seconds; 1 where one of the two did
    not always get there."""


@dataclass(frozen=True)
class Cell:
    """A model on a fleet, with the rows of all arms there."""

    model: str
    fleet: str
    device: str
    rows: pd.DataFrame

    @property
    def shares(self) -> tuple[float, float]:
        """Dense upload seconds over the rest of a round, of first and last group."""
        dense = self.rows[self.rows["arm"] == "dense"]
        return float(dense["first_share"].mean()), float(dense["last_share"].mean())

    @cached_property
    def medians_s(self) -> pd.Series:
        """Each arm's median seconds to the accuracy, the least first.

        A run that diverged has no row, and is never there.
        """
        at_s = self.rows["at_s"].where(self.rows["reached"], np.inf)
        table = self.rows.assign(at_s=at_s).pivot(
            index="seed", columns="arm", values="at_s"
        )
        return table.fillna(np.inf).median().sort_values(kind="stable")

    @property
    def kind(self) -> str:
        """The group of cells for which the rule is judged."""
        if not self.device:
            return f"{self.model}, mixed fleets"
        shared = self.fleet == SHARED_LINE
        return f"{self.model}, {'a shared line' if shared else 'alike devices'}"

    @property
    def rule(self) -> str:
        """The arm that the rule of thumb names."""
        slow = [share > ABOVE for share in self.shares]
        if all(slow):
            return DGC
        return "8 bit" + MOMENTUM if not any(slow) else f"8 bit | {DGC}"

    def lag(self, arm: str) -> float:
        """Return median seconds of an arm over the least; infinite if it is late."""
        return float(self.medians_s[arm] / self.medians_s.iloc[0])


NEAR = 1.05
"""Times the least median seconds, within which an arm is as good as the best."""
PAIRS = (
    ("dense" + MOMENTUM, "dense"),
    ("8 bit" + MOMENTUM, "dense" + MOMENTUM),
    (DGC, "8 bit" + MOMENTUM),
    ("top-k@1%" + MOMENTUM, DGC),
)
"""What is compared in every cell."""


def cells_of(rows: pd.DataFrame) -> Iterator[Cell]:
    """Yield each cell, in the order of the studies."""
    for key, cell in rows.groupby(["model", "fleet", "device"], sort=False):
        model, fleet, device = map(str, key)
        yield Cell(model, fleet, device, cell)


def list_claims(cells: Sequence[Cell]) -> list[Claim]:
    """Return every registered comparison."""
    found = []
    for cell in cells:
        times = times_of(cell.rows)
        at_s = cell.rows.pivot(index="seed", columns="arm", values="at_s")
        always = cell.rows.groupby("arm")["reached"].all()
        for first, second in PAIRS:
            paired = compare_ways(times, first, second)
            p_value = 1.0
            if always[first] and always[second]:
                logs = np.log(at_s[[first, second]])
                p_value = float(stats.ttest_rel(logs[first], logs[second]).pvalue)
            found.append(Claim(cell, first, second, paired, p_value))
    return found


# ---- the page ------------------------------------------------------------------------


def arms_table(rows: pd.DataFrame) -> str:
    """Return a line per model and arm: its rate, its rounds, a device's bytes."""
    rates = read(RATES)
    lines = [["arm", "model", "rate", "seeds", "rounds", "MB up", "both ways"]]
    for model in GOALS:
        chosen = choose_rates(rates[rates["model"] == model])
        here = rows["model"] == model
        first = rows[here & (rows["fleet"] == "fibre") & (rows["device"] == PI)]
        for arm, of_arm in first.groupby("arm", sort=False):
            there = of_arm[of_arm["reached"]]
            count = str(len(there))
            told = [name_of(str(arm)), model, f"{chosen[str(arm)]:g}", count]
            if len(there):
                up, down = there["up_bytes"], there["down_bytes"]
                megabytes = (float(x.median()) / 1e6 for x in (up, up + down))
                told.append(f"{there['round'].median():.0f}")
                told += [f"{value:.2g}" for value in megabytes]
            lines.append([*told, *[""] * (len(lines[0]) - len(told))])
    return markdown(lines)


SHOWN = ("dense", *(f"{arm}{MOMENTUM}" for arm in ("8 bit", "top-k@10%")), DGC)
"""Arms whose seconds stand in the table of cells."""


def seconds(value: float) -> str:
    """Return seconds in three digits; a dash for never.

    >>> seconds(12.345), seconds(1234.0), seconds(float("inf"))
    ('12.3', '1,230', '–')
    """
    if np.isinf(value):
        return "–"
    digits = 2 - int(np.floor(np.log10(value)))
    return f"{round(value, digits):,.{max(digits, 0)}f}"


def cells_table(cells: Sequence[Cell]) -> str:
    """Return a line per cell: median seconds of arms, the soonest, the rule's arm."""
    head = ["model", "fleet", "device", "uploads / rest", *map(name_of, SHOWN)]
    lines = [[*head, "soonest", "the rule's arm"]]
    for cell in cells:
        medians_s = cell.medians_s
        best = str(medians_s.index[0])
        share = " / ".join(f"{one:.2g}" for one in dict.fromkeys(cell.shares))
        if cell.device:  # groups that are alike differ by noise
            share = f"{np.mean(cell.shares):.2g}"
        lines.append(
            [
                cell.model,
                cell.fleet,
                cell.device,
                share,
                *(seconds(medians_s[arm]) for arm in SHOWN),
                name_of(best),
                in_times(cell.lag(cell.rule)),
            ]
        )
    return markdown(lines)


def in_times(lag: float) -> str:
    """Return how many times the best's an arm's seconds are, in bold if not near.

    >>> in_times(1.05), in_times(1.0512), in_times(float("inf"))
    ('1.050 ×', '**1.051 ×**', '**never there**')
    """
    text = "never there" if np.isinf(lag) else f"{lag:.3f} ×"
    return text if lag <= NEAR else f"**{text}**"


def rules_table(cells: Sequence[Cell]) -> str:
    """Return a line per kind of cells: in how many a choice is near the best."""
    rules: dict[str, Callable[[Cell], str]] = {
        "the rule": lambda cell: cell.rule,
        "8 bit, momentum": lambda cell: "8 bit" + MOMENTUM,
        "Top-K 10 %, momentum": lambda cell: "top-k@10%" + MOMENTUM,
        "DGC 1 %": lambda cell: DGC,
    }
    lines = [["", "cells", *rules]]
    for kind in [*dict.fromkeys(cell.kind for cell in cells), "all"]:
        mine = [cell for cell in cells if kind in (cell.kind, "all")]
        told = []
        for choose in rules.values():
            lags = [cell.lag(choose(cell)) for cell in mine]
            near = sum(lag <= NEAR for lag in lags)
            told.append(f"{near}; {in_times(max(lags))}")
        lines.append([kind, str(len(mine)), *told])
    return markdown(lines)


def claims_table(cells: Sequence[Cell]) -> str:
    """Return a line per registered pair: in how many cells Holm's procedure decides."""
    claims = list_claims(cells)
    decided = holm([claim.p_value for claim in claims])
    lines = [["compared", "sooner", "later", "not told apart", "least", "most"]]
    for first, second in PAIRS:
        mine = [
            (claim.paired.ratio.least, told)
            for claim, told in zip(claims, decided, strict=True)
            if (claim.first, claim.second) == (first, second)
        ]
        ratios = [ratio for ratio, _ in mine]
        sooner = sum(told and ratio > 1 for ratio, told in mine)
        later = sum(told and ratio < 1 for ratio, told in mine)
        counts = map(str, (sooner, later, len(mine) - sooner - later))
        ends = (f"{end(ratios):.2f} ×" for end in (min, max))
        lines.append([f"{name_of(first)} than {name_of(second)}", *counts, *ends])
    return markdown(lines)


def sizes_table(cells: Sequence[Cell]) -> str:
    """Return a line per model and link, on one device: the soonest, beside dense."""
    lines = [["model", "weights", *LINK_NAMES]]
    on_pi = {(c.model, c.fleet): c for c in cells if c.device == PI}
    for model, weights in WEIGHTS.items():
        told = []
        for link in LINK_NAMES:
            cell = on_pi[model, link]
            best = str(cell.medians_s.index[0])
            sooner = compare_ways(times_of(cell.rows), best, "dense")
            told.append(
                f"{name_of(best)}: {seconds(cell.medians_s.iloc[0])} s,"
                f" {with_interval(sooner)} ×"
            )
        lines.append([model, f"{weights:,}", *told])
    return markdown(lines)


def page_parts() -> dict[str, str]:
    """Return what stands between the page's comments, by their names."""
    rows = read_rows()
    cells = list(cells_of(rows))
    tables = {
        "cells": cells_table,
        "claims": claims_table,
        "rules": rules_table,
        "sizes": sizes_table,
    }
    made = {name: table(cells) for name, table in tables.items()}
    return {"arms": arms_table(rows), **made}


def main() -> None:
    parser = ArgumentParser(
        description=__doc__, formatter_class=RawDescriptionHelpFormatter
    )
    parser.add_argument("do", choices=("choose", "run", "write"))
    parser.add_argument("--out", type=Path, default=Path("studies"))
    parser.add_argument("--jobs", type=int)
    arguments = parser.parse_args()
    if arguments.do == "choose":
        write(play_rates(arguments.out, arguments.jobs), RATES)
        for model, rows in read(RATES).groupby("model", sort=False):
            for arm, rate in choose_rates(rows).items():
                sys.stdout.write(f"{model}, {arm}: {rate:g}\n")
        return
    if arguments.do == "run":
        write(play(STUDIES, arguments.out, arguments.jobs), ROWS)
        write(CLOCK.play(arguments.out, arguments.jobs), CLOCK_ROWS)
    write_page("answers_tuned")


if __name__ == "__main__":
    main()
