"""The answers on LTE links that somebody recorded: the rows and tables of RECORDED.md.

    python analysis/recorded_links.py measure FOLDER   # of the traces: recorded_links.csv
    python analysis/recorded_links.py run FOLDER [--out studies] [--jobs 2]    # an hour on one core
    python analysis/recorded_links.py write            # the page, from what is kept

FOLDER holds the traces of Mahimahi (`traces/` of its repository; they are not shipped), which
Winstein, Sivaraman and Balakrishnan recorded with their Saturator for "Stochastic forecasts achieve
high throughput and low delay over cellular networks" (NSDI 2013), and one of 2016. `measure` keeps
what their capacities are like. `run` plays scenarios/studies/answers.yaml with these links in place
of its five, and scenarios/studies/tail.yaml with forty phones that have them.
"""

from __future__ import annotations

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import answers
import numpy as np
import pandas as pd
import tail_figure
import yaml
from pages import markdown, write_page

from simfed.net.trace_files import read_mahimahi
from simfed.study import load_study, run_study

HERE = Path(__file__).resolve().parent
PAGE = HERE / "RECORDED.md"
LINKS, TIMES, ROUNDS = (
    HERE / name
    for name in ("recorded_links.csv", "recorded-times.parquet", "recorded-tail.parquet")
)
NETWORKS = {
    "AT&T, driving": "ATT-LTE-driving",
    "AT&T, driving, 2016": "ATT-LTE-driving-2016",
    "T-Mobile": "TMobile-LTE-short",
    "Verizon": "Verizon-LTE-short",
}
"""Those of which both ways were recorded whole."""
FLEETS = {
    "all": tuple(NETWORKS),
    "without the outage": tuple(name for name in NETWORKS if name != "AT&T, driving"),
}
"""Whose phones the longest rounds are of. The uplink of one recording is silent for 78 s once."""
DEVICES = ("Redmi Note 8", "Raspberry Pi 5", "Tesla V100")
LATENCY = "30 ms"
"""Of the answers' LTE-like link: a recorded capacity does not tell it."""
TAIL_SEEDS = range(20)


# ---- the traces ----------------------------------------------------------------------------------


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
    """A scenario's link that goes on as the network was recorded, from a place of its own."""
    ways = {
        way: {
            "file": str(folder / f"{NETWORKS[network]}.{way}"),
            "format": "mahimahi",
            "end": "loop",
        }
        for way in ("up", "down")
    }
    return {**ways, "latency": LATENCY}


# ---- the runs ------------------------------------------------------------------------------------


def play_answers(folder: Path, out: Path, jobs: int | None) -> pd.DataFrame:
    """The answers' rows, with each network as a link; without ASCEND."""
    grid = yaml.safe_load(answers.STUDY.read_text(encoding="utf-8"))["grid"]
    speeds, ways = grid[answers.DEVICE], grid["policy"]
    del ways["ascend"]
    links = {network: {"clients[0].link": link_of(folder, network)} for network in NETWORKS}
    fewer = {
        "grid": {"policy": ways, answers.DEVICE: {name: speeds[name] for name in DEVICES}},
        answers.LINK: links,
    }
    radios = dict.fromkeys(NETWORKS, answers.RADIOS["LTE-like"])
    return answers.play("recorded", out, jobs, fewer, radios)


def play_tail(folder: Path, out: Path, jobs: int | None) -> pd.DataFrame:
    """One row per round of ten phones on each network: of all networks, and without the one that
    falls silent for more than a minute."""
    base = yaml.safe_load((answers.STUDY.parents[1] / "tail.yaml").read_text(encoding="utf-8"))
    phone = base["clients"][0]
    frames = []
    for fleet, networks in FLEETS.items():
        clients = [{**phone, "count": 10, "link": link_of(folder, name)} for name in networks]
        changes = {"clients": clients, "seeds": [*TAIL_SEEDS], "zip": None}
        place = out / f"recorded-tail-{len(networks)}"
        run_study(tail_figure.STUDY, place, jobs=jobs, overrides=changes, time_only=True)
        frames += [
            pd.DataFrame(
                {
                    "fleet": fleet,
                    "codec": entry["point"]["policy"],
                    "server": entry["point"]["aggregation"],
                    "seed": np.int8(entry["seed"]),
                    "duration_ms": (1e3 * run.rounds["duration_s"]).round().astype(np.int32),
                }
            )
            for entry, run in load_study(place).finished
        ]
    names = ("fleet", "codec", "server")
    return pd.concat(frames, ignore_index=True).astype(dict.fromkeys(names, "category"))


# ---- the page ------------------------------------------------------------------------------------


def links_table(links: pd.DataFrame) -> str:
    """What the recorded capacities are like."""
    lines = [["network", "way", "seconds", "mean Mbps", "median", "cv", "correlation", "silent"]]
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


def tail_table(rounds: pd.DataFrame) -> str:
    """Every codec under every server: seconds of a round, with all networks and without one."""
    lines = [["uploads", "server", "p50 (s)", "p95 (s)", "p99 (s)", "p99 against the first row"]]
    lines[0] += ["without the outage: p99 (s)", "against the first row"]
    tails = [
        tail_figure.tails(
            rounds[rounds["fleet"] == fleet].assign(start=0, merged=1, moving=0, lost=0)
        )
        for fleet in FLEETS
    ]
    for one, other in zip(*tails, strict=True):
        first = (one.codec, one.server) == tail_figure.REFERENCE
        of_first = ("1" if first else t.over_reference[-1].written(".2f") for t in (one, other))
        lines.append(
            [
                one.codec,
                one.server,
                *(quantile.written(".2f") for quantile in one.quantiles_s),
                next(of_first),
                other.quantiles_s[-1].written(".2f"),
                next(of_first),
            ]
        )
    return markdown(lines)


def cells() -> list[answers.Answer]:
    """Every network's and device's answer to every accuracy."""
    return answers.answers(pd.read_parquet(TIMES))


def page_parts() -> dict[str, str]:
    """What stands between the page's comments, by their names."""
    parts = {"links": links_table(pd.read_csv(LINKS))}
    of_cells = cells()
    for target in answers.TARGETS:
        parts[f"at {target:.0%}"] = answers.short_table(of_cells, target, answers.use_in_words)
    parts["momentum"] = answers.short_table(of_cells, answers.TARGETS[-1], answers.rival_in_words)
    parts["tail"] = tail_table(pd.read_parquet(ROUNDS))
    return parts


def main(words: Sequence[str] | None = None) -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
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
        play_tail(folder, arguments.out, arguments.jobs).to_parquet(ROUNDS, index=False)
        play_answers(folder, arguments.out, arguments.jobs).to_parquet(TIMES, index=False)
    if arguments.do != "measure":
        write_page("recorded_links")


if __name__ == "__main__":
    main()
