"""The answers and the longest rounds on LTE links that somebody recorded: RECORDED.md.

    # of the traces: recorded_links.csv
    python analysis/recorded_links.py measure FOLDER
    # an hour on one core
    python analysis/recorded_links.py run FOLDER [--out studies] [--jobs 2]
    # the page, from what is kept
    python analysis/recorded_links.py write

FOLDER holds the traces of Mahimahi (`traces/` of its repository; they are not shipped),
which Winstein, Sivaraman and Balakrishnan recorded with their Saturator for "Stochastic
forecasts achieve high throughput and low delay over cellular networks" (NSDI 2013), and
one of 2016. `measure` keeps what their capacities are like. `run` plays
scenarios/studies/answers.yaml with these links in place of its five, and
scenarios/studies/tail.yaml as it is and with forty phones that have them; of the latter
it keeps a row per round in longest-rounds.parquet.

Quantiles are those of all rounds of an arm. Their intervals redraw seeds, and places in
the traces at which runs start, both with replacement, and keep a run's rounds together:
95 % of 1,000 draws. Ratios of two arms redraw both alike.
"""

from __future__ import annotations

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import answers
import numpy as np
import pandas as pd
import yaml
from kept import ROOT, KeptStudy, Row, play_all, read, write
from pages import markdown, write_page

from simfed.ground.arrays import Floats
from simfed.net.trace_files import read_mahimahi
from simfed.record.read import Run

HERE = Path(__file__).resolve().parent
PAGE = HERE / "RECORDED.md"
LONGEST = ROOT / "scenarios" / "studies" / "tail.yaml"
LINKS, TIMES, ROUNDS = (
    HERE / name
    for name in (
        "recorded_links.csv",
        "recorded-times.parquet",
        "longest-rounds.parquet",
    )
)
NETWORKS = {
    "AT&T, driving": "ATT-LTE-driving",
    "AT&T, driving, 2016": "ATT-LTE-driving-2016",
    "T-Mobile": "TMobile-LTE-short",
    "Verizon": "Verizon-LTE-short",
}
"""Those of which both ways were recorded whole."""
FLEETS = {
    "made up": (),
    "all": tuple(NETWORKS),
    "without the outage": tuple(name for name in NETWORKS if name != "AT&T, driving"),
}
"""Whose phones the longest rounds are of: those of the study, or ten on each network.
The uplink of one recording is silent for 78 s once."""
DEVICES = ("Redmi Note 8", "Raspberry Pi 5", "Tesla V100")
LATENCY = "30 ms"
"""Of the answers' LTE-like link: a recorded capacity does not tell it."""
MOVING = 24
"""Of the phones of the study, those from here on are on the move: two fifths of the
fleet."""
TAIL_SEEDS = range(20)
SHARES = (0.5, 0.95, 0.99)
DRAWS = 1000
REFERENCE = ("dense", "wait for all")


# ---- the traces ----------------------------------------------------------------------


def measure_links(folder: Path) -> pd.DataFrame:
    """Of each trace, over its whole seconds: what its capacity is like."""
    rows = []
    for network, name in NETWORKS.items():
        for way in ("up", "down"):
            trace = read_mahimahi(folder / f"{name}.{way}", bin_s=1.0)
            seconds = np.arange(int(trace.duration_s))
            piece = np.searchsorted(trace.starts_s, seconds, side="right") - 1
            mbps = 8e-6 * np.asarray(trace.rates_bytes_per_s)[piece]
            rows.append(
                {
                    "network": network,
                    "way": way,
                    "seconds": len(mbps),
                    "mean_mbps": mbps.mean(),
                    "median_mbps": np.median(mbps),
                    "cv": mbps.std() / mbps.mean(),
                    "correlation": np.corrcoef(mbps[:-1], mbps[1:])[0, 1],
                    "silent": np.mean(mbps == 0),
                }
            )
    return pd.DataFrame(rows).round(4)


def link_of(folder: Path, network: str) -> dict[str, Any]:
    """A scenario's link that goes on as the network was recorded, from a place of its
    own.
    """
    ways = {
        way: {
            "file": str(folder / f"{NETWORKS[network]}.{way}"),
            "format": "mahimahi",
            "end": "loop",
        }
        for way in ("up", "down")
    }
    return {**ways, "latency": LATENCY}


# ---- the runs ------------------------------------------------------------------------


def answers_studies(folder: Path) -> list[KeptStudy]:
    """Return the answers' studies, with each network as a link; without ASCEND."""
    grid = yaml.safe_load(answers.FILE.read_text(encoding="utf-8"))["grid"]
    speeds, ways = grid[answers.DEVICE], grid["policy"]
    del ways["ascend"]
    links = {
        network: {"clients[0].link": link_of(folder, network)} for network in NETWORKS
    }
    fewer = {
        "grid": {
            "policy": ways,
            answers.DEVICE: {name: speeds[name] for name in DEVICES},
        },
        "list": links,
    }
    return answers.studies_of("recorded", fewer)


def rounds_of(fleet: str) -> Callable[[Run, pd.DataFrame], list[Row]]:
    """Return what gives a row per round of a run of this fleet: how long it took, whose
    uploads it merged, how many were lost.
    """

    def rows(run: Run, curve: pd.DataFrame) -> list[Row]:
        parts = run.participations
        lost = parts["outcome"].isin(["dropped", "failed"])
        of_merge = parts.assign(
            merged=~lost, moving=~lost & (parts["client"] >= MOVING), lost=lost
        ).groupby("merge")[["merged", "moving", "lost"]]
        counts = (
            of_merge.sum()
            .reindex(run.rounds["round"], fill_value=0)
            .reset_index(drop=True)
        )
        duration_ms = (1e3 * run.rounds["duration_s"]).round().astype(int).to_numpy()
        made: list[Row] = counts.assign(fleet=fleet, duration_ms=duration_ms).to_dict(
            "records"
        )
        return made

    return rows


AXES = {"codec": "policy", "server": "aggregation"}
STUDIES = [
    KeptStudy(
        LONGEST,
        {**AXES, "start": "zip"},
        rounds_of("made up"),
        time_only=True,
        told=lambda scenario: {"fleet": "made up"},
    )
]


def tail_studies(folder: Path) -> list[KeptStudy]:
    """Return the studies of the longest rounds, one per fleet."""
    base = yaml.safe_load(
        (LONGEST.parents[1] / "tail.yaml").read_text(encoding="utf-8")
    )
    phone = base["clients"][0]
    studies = [*STUDIES]
    for fleet, networks in FLEETS.items():
        if networks:
            clients = [
                {**phone, "count": 10, "link": link_of(folder, name)}
                for name in networks
            ]
            changes = {"clients": clients, "seeds": [*TAIL_SEEDS], "zip": None}
            name = f"tail-{len(networks)}"
            studies.append(
                KeptStudy(LONGEST, AXES, rounds_of(fleet), name, changes, True)
            )
    return studies


# ---- the longest rounds --------------------------------------------------------------


class Interval(NamedTuple):
    """A number and the 95 % interval around it."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


class Tail(NamedTuple):
    """The seconds of a round of one codec under one server."""

    quantiles_s: tuple[Interval, ...]
    """p50, p95 and p99."""
    over_reference: tuple[Interval, ...]
    """How many times those of dense uploads and waiting for all these are."""


def cells_of(rows: pd.DataFrame) -> Floats:
    """Return durations in seconds by seed, start and round."""
    ordered = rows.sort_values(["seed", "start"], kind="stable")
    seeds, starts = rows["seed"].nunique(), max(1, rows["start"].nunique())
    durations: Floats = (
        ordered["duration_ms"].to_numpy(float).reshape(seeds, starts, -1) / 1e3
    )
    return durations


def redrawn(cells: Floats, draws: int = DRAWS) -> Floats:
    """Return quantiles (draw, share) with seeds and starts redrawn.

    The same for all arms.
    """
    rng = np.random.default_rng(0)
    seeds, starts, _ = cells.shape
    rounds = np.empty((draws, cells.size))
    for draw in rounds:
        i, j = rng.integers(seeds, size=seeds), rng.integers(starts, size=starts)
        draw[:] = cells[np.ix_(i, j)].ravel()
    quantiles: Floats = np.quantile(rounds, SHARES, axis=1, overwrite_input=True).T
    return quantiles


def tails(rows: pd.DataFrame) -> dict[tuple[str, str], Tail]:
    """Return codec and server → its tail, of one fleet, in the order of the study."""
    cells = {
        (str(codec), str(server)): cells_of(arm)
        for (codec, server), arm in rows.groupby(
            ["codec", "server"], sort=False, observed=True
        )
    }
    values = {name: np.quantile(of_arm, SHARES) for name, of_arm in cells.items()}
    draws = {name: redrawn(of_arm) for name, of_arm in cells.items()}
    return {
        name: Tail(
            _intervals(values[name], draws[name]),
            _intervals(
                values[name] / values[REFERENCE], draws[name] / draws[REFERENCE]
            ),
        )
        for name in cells
    }


def _intervals(values: Floats, draws: Floats) -> tuple[Interval, ...]:
    ends = np.quantile(draws, (0.025, 0.975), axis=0).T
    return tuple(
        Interval(float(value), *map(float, end))
        for value, end in zip(values, ends, strict=True)
    )


def shares_of(rows: pd.DataFrame) -> pd.DataFrame:
    """Return by server, in percent: participations thrown away, and merged uploads that
    are of those on the move, who are 40 % of the study's phones.
    """
    made_up = rows[rows["fleet"] == "made up"]
    sums = made_up.groupby("server", observed=True)[["merged", "moving", "lost"]].sum()
    lost = sums["lost"] / (sums["merged"] + sums["lost"])
    return 100 * pd.DataFrame({"lost": lost, "moving": sums["moving"] / sums["merged"]})


# ---- the page ------------------------------------------------------------------------


def links_table(links: pd.DataFrame) -> str:
    """What the recorded capacities are like."""
    lines = [
        [
            "network",
            "way",
            "seconds",
            "mean Mbps",
            "median",
            "cv",
            "correlation",
            "silent",
        ]
    ]
    for row in links.to_dict("records"):
        lines.append(
            [
                str(row["network"]),
                str(row["way"]),
                f"{row['seconds']:,}",
                f"{row['mean_mbps']:.1f}",
                f"{row['median_mbps']:.1f}",
                f"{row['cv']:.2f}",
                f"{row['correlation']:.2f}",
                f"{100 * row['silent']:.0f} %",
            ]
        )
    return markdown(lines)


def tail_table(of_fleets: Mapping[str, Mapping[tuple[str, str], Tail]]) -> str:
    """Return every codec under every server: seconds of a round by fleet."""
    lines = [
        ["uploads", "server", "made up: p50 (s)", "p99 (s)", "against the first row"]
    ]
    lines[0] += ["recorded: p50 (s)", "p95 (s)", "p99 (s)", "against the first row"]
    lines[0] += ["without the outage: p99 (s)", "against the first row"]
    for arm in of_fleets["all"]:
        made_up, whole, without = (of_fleets[fleet][arm] for fleet in FLEETS)
        p50, p99 = made_up.quantiles_s[::2]
        line = [*map(str, (p50, p99, made_up.over_reference[-1], *whole.quantiles_s))]
        line += map(str, (whole.over_reference[-1], without.quantiles_s[-1]))
        line.append(str(without.over_reference[-1]))
        if arm == REFERENCE:
            line[2] = line[6] = line[8] = "1"
        lines.append([*arm, *line])
    return markdown(lines)


def longest_rounds() -> dict[str, dict[tuple[str, str], Tail]]:
    """Return each fleet's tails."""
    rows = read(ROUNDS)
    return {fleet: tails(rows[rows["fleet"] == fleet]) for fleet in FLEETS}


def cells() -> list[answers.Answer]:
    """Every network's and device's answer to every accuracy."""
    return answers.answers(read(TIMES))


def page_parts() -> dict[str, str]:
    """What stands between the page's comments, by their names."""
    parts = {"links": links_table(read(LINKS))}
    of_cells = cells()
    for target in answers.TARGETS:
        parts[f"at {target:.0%}"] = answers.short_table(
            of_cells, target, answers.use_in_words
        )
    parts["momentum"] = answers.short_table(
        of_cells, answers.TARGETS[-1], answers.rival_in_words
    )
    parts["tail"] = tail_table(longest_rounds())
    return parts


def main(words: Sequence[str] | None = None) -> None:
    parser = ArgumentParser(
        description=__doc__, formatter_class=RawDescriptionHelpFormatter
    )
    parser.add_argument("do", choices=("measure", "run", "write"))
    parser.add_argument("folder", type=Path, nargs="?", help="of the traces")
    parser.add_argument("--out", type=Path, default=Path("studies"))
    parser.add_argument("--jobs", type=int)
    arguments = parser.parse_args(words)
    if arguments.do != "write" and arguments.folder is None:
        parser.error(f"{arguments.do}: the folder of the traces is missing")
    if arguments.do == "measure":
        measure_links(arguments.folder).to_csv(LINKS, index=False)
    if arguments.do == "run":
        folder = cast(Path, arguments.folder).resolve()
        for studies, kept in (
            (tail_studies(folder), ROUNDS),
            (answers_studies(folder), TIMES),
        ):
            write(play_all(studies, arguments.out, arguments.jobs), kept)
    if arguments.do != "measure":
        write_page("recorded_links")


if __name__ == "__main__":
    main()
