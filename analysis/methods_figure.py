"""What methods reach, and what it costs: the figure and the table of scenarios/README.md.

    python analysis/methods_figure.py [--out studies/methods] [--jobs 2] [--draw-only]
    python analysis/methods_figure.py --scored

Runs the study scenarios/studies/methods.yaml (or goes on with it: what is done is not done again),
draws accuracy against simulated time, bytes up, bytes down and device seconds, and prints the
table. With `--scored` it runs methods-scored.yaml instead and prints differences of pairs, seed by
seed.

Costs of an evaluated round are those of all participations that its model rests on: merged in this
round or before. What is still under way (fedbuff, fedasync) counts at its own merge. Device seconds
are a client's local work and compression; neither waiting, transfers nor the server's work are in
them. Intervals are Student's t over seeds (95 %); two seeds are too few to show one.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isnan, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simfed.report.pictures import empty_figure, picture_style, save_picture
from simfed.report.statistics import Estimate, mean_interval
from simfed.report.style import SERIES_COLOURS
from simfed.study import StudyResult, load_study, run_study

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parents[1]
STUDY = ROOT / "scenarios" / "studies" / "methods.yaml"
SCORED = STUDY.with_name("methods-scored.yaml")
PAIRS = (
    ("fedproto", "local-only"),
    ("fedproto, nearest mean", "local-only"),
    ("fedtgp", "local-only"),
    ("fedtgp, nearest mean", "local-only"),
    ("fedavg, clipped", "fedavg"),
    ("scaffold, clipped", "fedavg, clipped"),
)
"""Of `SCORED`: whose end is compared with whose."""
ARM = "list"
FAMILIES: Mapping[str, Sequence[str]] = {
    "averaging": ("fedavg", "fedprox", "fedopt", "scaffold", "fedbuff", "fedasync", "fedgen"),
    "distillation on a public set": ("fedkd", "feddf", "fedmd", "kt-pfl", "fedal"),
    "a model per client, no public set": ("fedproto", "fedtgp", "fedkd-mutual", "local-only"),
}
COSTS: Mapping[str, str] = {
    "at_s": "simulated time (s)",
    "up_mb": "sent by clients (MB)",
    "down_mb": "sent to clients (MB)",
    "device_s": "work of devices (s)",
}
"""Columns of `progress` and what they are called under an axis; MB are 10⁶ bytes of all clients."""
REFERENCE = "fedavg"
_FEWEST = 3
_MARKERS = "osD^vPX"


def progress(
    curve: pd.DataFrame, participations: pd.DataFrame, clients: pd.DataFrame | None = None
) -> pd.DataFrame:
    """One row per evaluated round of one run: `round, accuracy, own_accuracy` (empty where clients
    keep no models), and up to its merge `at_s, up_mb, down_mb, device_s`.

    `curve` has `round, at_s, accuracy`; the others are the run's tables.
    """
    spent = participations.assign(
        up_mb=participations["uplink_bytes"] / 1e6,
        down_mb=participations["downlink_bytes"] / 1e6,
        device_s=participations["training_s"] + participations["compression_s"],
    )
    of_round = spent.groupby("merge")[["up_mb", "down_mb", "device_s"]].sum().sort_index().cumsum()
    found = curve[["round", "at_s", "accuracy"]].reset_index(drop=True)
    # a round that merged nothing has cost what the last one before it had
    there = of_round.reindex(found["round"], method="ffill").fillna(0.0).reset_index(drop=True)
    found[there.columns] = there
    own = clients.groupby("round")["own_accuracy"].mean() if clients is not None else {}
    found["own_accuracy"] = found["round"].map(own).astype(float)
    return found


def progress_of(study: StudyResult) -> pd.DataFrame:
    """`progress` of every finished run, with `method` and `seed` before it, and `step`, which
    counts a run's evaluations. Seeds under which a method is not finished are left out."""
    import pandas as pd

    curves = dict(iter(study.curves.groupby("address")))
    rows = []
    for entry, run in study.finished:
        clients = run.clients if len(run.clients) else None
        one = progress(curves[entry["address"]], run.participations, clients)
        one.insert(0, "method", entry["point"][ARM])
        one.insert(1, "seed", entry["seed"])
        rows.append(one.assign(step=range(len(one))))
    together: pd.DataFrame = pd.concat(rows, ignore_index=True)
    planned = len({entry["point"][ARM] for entry in study.plan["runs"]})
    return together.groupby("seed").filter(lambda of_seed: of_seed["method"].nunique() == planned)


def over_seeds(values: Sequence[float]) -> Estimate:
    """Mean and 95 % interval; no interval of fewer than three seeds (two span 13 standard
    errors)."""
    found = mean_interval(values)
    return found if len(values) >= _FEWEST else replace(found, low=nan, high=nan, coverage=0.0)


def line(rows: pd.DataFrame, cost: str) -> pd.DataFrame:
    """A method's line: by evaluation, the mean cost and accuracy over its seeds and the interval of
    the latter (95 %, Student's t, within 0 and 1): `cost, accuracy, low, high`."""
    import pandas as pd

    found = []
    for _, of_step in rows.groupby("step"):
        accuracy = over_seeds(of_step["accuracy"].tolist())
        low, high = (min(max(end, 0.0), 1.0) for end in (accuracy.low, accuracy.high))
        found.append((of_step[cost].mean(), accuracy.least, low, high))
    drawn: pd.DataFrame = pd.DataFrame(found, columns=["cost", "accuracy", "low", "high"])
    return drawn


@picture_style()
def methods_figure(rows: pd.DataFrame) -> Figure:
    """A row of panels per family, a column per cost."""
    figure = empty_figure(figsize=(8.2, 6.4), layout="constrained")
    figure.get_layout_engine().set(rect=(0, 0, 0.87, 1))  # type: ignore[union-attr, call-arg]
    axes = figure.subplots(len(FAMILIES), len(COSTS), sharex="col", sharey=True)
    of_method = dict(iter(rows.groupby("method")))
    for (family, methods), across in zip(FAMILIES.items(), axes, strict=True):
        there = [method for method in methods if method in of_method]
        looks = {m: (SERIES_COLOURS[i], _MARKERS[i]) for i, m in enumerate(there)}
        for cost, ax in zip(COSTS, across, strict=True):
            if REFERENCE in of_method and REFERENCE not in there:
                drawn = line(of_method[REFERENCE], cost)
                ax.plot(
                    drawn["cost"], 100 * drawn["accuracy"], ":", color="0.45", lw=1, label=REFERENCE
                )
            for method, look in looks.items():
                _draw(ax, line(of_method[method], cost), method, *look)
            ax.set_xscale("log")
            ax.xaxis.set_major_formatter("{x:g}")
            ax.xaxis.set_minor_formatter("")
            ax.grid(color="0.92", lw=0.5)
            ax.set_axisbelow(True)
        across[0].set_ylim(0, 100)
        across[0].set_ylabel(f"{family}\naccuracy (%)")
        handles = across[0].get_legend_handles_labels()
        legend = across[-1].legend(
            *handles, loc="center left", bbox_to_anchor=(1.03, 0.5), frameon=False
        )
        legend.set_in_layout(False)
    for label, ax in zip(COSTS.values(), axes[-1], strict=True):
        ax.set_xlabel(label)
    return figure


def _draw(ax: Axes, drawn: pd.DataFrame, name: str, colour: str, marker: str) -> None:
    paid = drawn[drawn["cost"] > 0]
    last = drawn.iloc[-1]
    end, low, high = (100 * last[key] for key in ("accuracy", "low", "high"))
    if paid.empty:  # never sent anything: no place on an axis in powers of ten
        ax.axhline(end, color=colour, lw=1, ls="--", label=name)
        ax.text(
            0.02,
            end + 7,
            f"{name}: 0 MB",
            color=colour,
            fontsize=5.5,
            va="bottom",
            transform=ax.get_yaxis_transform(),
        )
        return
    look: Any = {"color": colour, "lw": 1}
    ax.plot(paid["cost"], 100 * paid["accuracy"], marker=marker, ms=2.6, label=name, **look)
    if not isnan(low):
        ax.errorbar(last["cost"], end, [[end - low], [high - end]], capsize=1.5, **look)


def table(rows: pd.DataFrame) -> str:
    """What every method came to at its end, in Markdown: means over seeds with 95 % intervals."""
    heads = ["method", "accuracy", "own mix", "simulated s", "MB up", "MB down", "device s"]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    last = rows.groupby(["method", "seed"], sort=False).tail(1)
    of_method = dict(iter(last.groupby("method")))
    for method in (m for methods in FAMILIES.values() for m in methods if m in of_method):
        ends = of_method[method]
        cells = [_percent(ends["accuracy"].tolist())]
        own = ends["own_accuracy"].dropna().tolist()
        cells += [_percent(own) if own else "–"]
        cells += [_number(over_seeds(ends[cost].tolist())) for cost in COSTS]
        lines.append(f"| {method} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def differences(rows: pd.DataFrame, pairs: Sequence[tuple[str, str]] = PAIRS) -> str:
    """Ends of pairs of methods and their differences in Markdown, seed by seed: percentage points
    on the common test set, and in the clients' own label mix."""
    last = rows.groupby(["method", "seed"], sort=False).tail(1).set_index(["method", "seed"])
    lines = ["| | accuracy | less that of | common test set | own mix |", "|---|---|---|---|---|"]
    for one, other in pairs:
        a, b = last.loc[one], last.loc[other]
        cells = [
            _points((a[name] - b[name]).dropna().tolist()) for name in ("accuracy", "own_accuracy")
        ]
        ends = _percent(a["accuracy"].tolist())
        lines.append(f"| {one} | {ends} | {other} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _points(gaps: Sequence[float]) -> str:
    if not gaps:
        return "–"
    found = over_seeds([100 * gap for gap in gaps])
    if found.coverage == 0:
        return f"{found.least:+.1f}"
    return f"{found.least:+.1f} [{found.low:+.1f}, {found.high:+.1f}]"


def _percent(shares: Sequence[float]) -> str:
    found = over_seeds([100 * share for share in shares])
    if found.coverage == 0:
        return f"{found.least:.1f}"
    return f"{found.least:.1f} [{max(0.0, found.low):.1f}, {min(100.0, found.high):.1f}]"


def _number(found: Estimate) -> str:
    """Three significant digits, and half the interval's width in as many places.

    >>> _number(Estimate(12.345, 12.345, 12.1, 12.59, 0.95)), _number(Estimate(0, 0, 0, 0, 0.95))
    ('12.3 ± 0.2', '0')
    """
    if found.least == 0:
        return "0"
    places = 0 if found.least >= 100 else 1 if found.least >= 10 else 2 if found.least >= 1 else 3
    text = f"{found.least:.{places}f}"
    half = (found.high - found.low) / 2
    return f"{text} ± {half:.{places}f}" if half >= 0.5 * 10**-places else text


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("studies/methods"))
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--figure", type=Path, default=ROOT / "docs" / "images" / "methods.png")
    parser.add_argument("--draw-only", action="store_true", help="what is there so far")
    parser.add_argument("--scored", action="store_true", help="the study of how one scores, alone")
    arguments: Any = parser.parse_args()
    if arguments.scored:
        out = arguments.out.with_name(SCORED.stem)
        run_study(SCORED, out, jobs=arguments.jobs)
        print(differences(progress_of(load_study(out))))
        return
    if not arguments.draw_only:
        run_study(STUDY, arguments.out, jobs=arguments.jobs)
    rows = progress_of(load_study(arguments.out))
    arguments.figure.parent.mkdir(parents=True, exist_ok=True)
    save_picture(methods_figure(rows), arguments.figure, dpi=180)
    print(table(rows))


if __name__ == "__main__":
    main()
