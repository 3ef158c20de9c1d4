"""Five servers on a fleet that comes and goes: the figures and the tables of scenarios/README.md.

    python analysis/servers_figure.py [--out studies/servers] [--jobs 2] [--draw-only]

Runs the study scenarios/studies/servers.yaml (or goes on with it: what is done is not done again),
draws what the servers reach by when and for how many bytes, what they throw away and whom they
hear, and the same seconds of all of them as Gantt charts, and prints the tables.

Servers are compared over an equal simulated time, `UNTIL_S`, with as many clients in flight: what
was merged up to then counts, whatever a server's rounds are. What a client should need for one
participation (its speed and links as they were drawn, without noise) orders the clients; the slow
quarter are the fifteen that need longest. Intervals are Student's t over seeds (95 %).
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from methods_figure import over_seeds

from simfed.device import load_profile
from simfed.fleet.columns import Fleet
from simfed.ground.errors import RunFailed
from simfed.ground.seeding import Streams
from simfed.learn.catalogue import facts
from simfed.report.pictures import picture_style, save_picture
from simfed.report.statistics import median_time, paired_times
from simfed.report.style import PHASES, SERIES_COLOURS
from simfed.scenario.load import load_scenario
from simfed.study import StudyResult, load_study, run_study

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from simfed.record import Run
    from simfed.scenario import Scenario

    Floats = np.ndarray[Any, np.dtype[np.float64]]
    Ints = np.ndarray[Any, np.dtype[np.int64]]

ROOT = Path(__file__).resolve().parents[1]
STUDY = ROOT / "scenarios" / "studies" / "servers.yaml"
ARM = "list"
SERVERS = ("synchronous", "deadline", "over-selection", "buffered", "asynchronous")
COLOURS = dict(zip(SERVERS, SERIES_COLOURS, strict=False))
MARKERS = dict(zip(SERVERS, "osD^v", strict=True))
UNTIL_S = 100.0
WINDOW_S = (40.0, 50.0)
"""What the Gantt charts show, of the first seed."""
QUARTERS = ("slow", "second", "third", "fast")
_DRAWN = ("download", "training", "upload", "waiting", "offline")


# ---- numbers -------------------------------------------------------------------------------------


def needed_s(scenario: Scenario, seed: int) -> Floats:
    """Per client, what a participation takes without noise and on its own links."""
    fleet = Fleet(scenario.model_copy(update={"seed": seed}), Streams(seed))
    (group,) = scenario.clients
    model = scenario.prototypes[group.prototype].model
    model_bytes = 4.0 * facts(model, scenario.dataset).parameters
    training = scenario.training
    assert group.device.profile is not None
    step_s = load_profile(group.device.profile).seconds(
        "training", model=model, batch=training.batch_size
    )
    speed, up, down = (fleet.drawn(0, f) for f in ("device.speed", "link.up", "link.down"))
    assert speed is not None
    assert up is not None
    assert down is not None
    steps = training.local_steps or 1
    found: Floats = steps * step_s / speed + model_bytes / up + model_bytes / down
    return found


def gini(counts: Floats) -> float:
    """0: all have the same; towards 1: one has everything.

    >>> gini(np.array([2.0, 2.0])), gini(np.array([0.0, 0.0, 0.0, 4.0]))
    (0.0, 0.75)
    """
    ordered = np.sort(counts)
    n = len(ordered)
    ranks = np.arange(1, n + 1)
    return float((2 * ranks - n - 1) @ ordered / (n * ordered.sum()))


def measured(
    rounds: pd.DataFrame,
    participations: pd.DataFrame,
    clients: pd.DataFrame,
    slow_first: Ints,
    until_s: float = UNTIL_S,
) -> dict[str, float]:
    """What a run came to by an instant: of what was merged, or known to be lost, up to then.

    `slow_first`: the ids of all clients, those that need longest first. Raises: `RunFailed` for a
    run that is over before.
    """
    if rounds["finished_at_s"].iloc[-1] < until_s:
        raise RunFailed(
            f"a run of {rounds['finished_at_s'].iloc[-1]:g} s, which has to be compared at "
            f"{until_s:g} s: it needs more rounds"
        )
    last = int((rounds["finished_at_s"] <= until_s).sum())
    settled = participations[participations["merge"] <= last]
    bytes_of = settled["uplink_bytes"] + settled["downlink_bytes"]
    lost = settled["outcome"].isin(["dropped", "failed"])
    merged = settled.loc[~lost, "client"]
    counts = np.bincount(merged, minlength=len(slow_first))[slow_first].astype(float)
    quarters = np.array_split(np.arange(len(slow_first)), 4)
    tested = clients[clients["round"] <= last]
    tested = tested[tested["round"] == tested["round"].max()].set_index("client")
    own = tested["own_accuracy"].to_numpy()[slow_first]
    found = {
        "merges": last,
        "started": len(settled),
        "merged": len(merged),
        "moved_mb": bytes_of.sum() / 1e6,
        "wasted_mb": bytes_of[lost].sum() / 1e6,
        "wasted": bytes_of[lost].sum() / bytes_of.sum(),
        "gini": gini(counts),
        "unheard": float((counts == 0).sum()),
        "accuracy": float(tested["accuracy"].iloc[0]),
        "own": float(own.mean()),
        "own_worst": float(np.sort(own)[: -(-len(own) // 10)].mean()),
    }
    for name, places in zip(QUARTERS, quarters, strict=True):
        found[f"heard_{name}"] = counts[places].sum() / counts.sum()
        found[f"own_{name}"] = float(own[places].mean())
    return {name: float(value) for name, value in found.items()}


def of_study(study: StudyResult, scenario: Scenario) -> pd.DataFrame:
    """`measured` of every finished run, with `server` and `seed` before it."""
    import pandas as pd

    rows = []
    for entry, run in study.finished:
        slow_first = np.argsort(-needed_s(scenario, entry["seed"]), kind="stable")
        found = measured(run.rounds, run.participations, run.clients, slow_first)
        rows.append({"server": entry["point"][ARM], "seed": entry["seed"], **found})
    return pd.DataFrame(rows)


def line(curves: pd.DataFrame, cost: str, grid: Floats) -> tuple[Floats, Floats, Floats]:
    """Mean accuracy over seeds and its interval, where each seed's is that of its last evaluation
    at or below a cost; NaN before every seed has one."""
    several = []
    for _, one in curves.groupby("seed"):
        place = np.searchsorted(one[cost].to_numpy(), grid, side="right") - 1
        several.append(np.where(place >= 0, one["accuracy"].to_numpy()[place], np.nan))
    of_point = [over_seeds(list(column)) for column in zip(*several, strict=True)]
    known = ~np.isnan(several).any(0)
    columns = ([e.least for e in of_point], [e.low for e in of_point], [e.high for e in of_point])
    mean, low, high = (np.where(known, 100 * np.array(column), np.nan) for column in columns)
    return mean, low, high


# ---- pictures ------------------------------------------------------------------------------------


@picture_style()
def servers_figure(found: pd.DataFrame, curves: pd.DataFrame) -> Figure:
    """Accuracy by time and by bytes; bytes thrown away, whom the server hears, and how well the
    model serves whom. `curves`: `server, seed, at_s, moved_mb, accuracy`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.6, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    rows: list[Any] = [["time"] * 3 + ["bytes"] * 3, ["lost"] * 2 + ["heard"] * 2 + ["own"] * 2]
    mosaic = figure.subplot_mosaic(rows)
    there = [server for server in SERVERS if server in set(found["server"])]
    most_mb = found.groupby("server")["moved_mb"].mean().max()
    for key, cost, label, least, most in (
        ("time", "at_s", "simulated time (s)", 0, UNTIL_S),
        ("bytes", "moved_mb", "moved up and down (MB), in powers of ten", 5, most_mb),
    ):
        ax = mosaic[key]
        grid = np.linspace(least, most, 101)
        if least:
            grid = np.geomspace(least, most, 101)
            ax.set_xscale("log")
            ax.xaxis.set_major_formatter("{x:g}")
        for server in there:
            mine = curves[(curves["server"] == server) & (curves["at_s"] <= UNTIL_S)]
            end = mine.groupby("seed")[cost].max().min()
            mean, low, high = line(mine, cost, grid[grid <= end])
            look: Any = {"color": COLOURS[server], "lw": 1.1}
            at = grid[grid <= end]
            ax.plot(at, mean, marker=MARKERS[server], markevery=12, ms=3, label=server, **look)
            ax.fill_between(at, low, high, color=COLOURS[server], alpha=0.12, lw=0)
        ax.set_xlabel(label)
        ax.set_ylabel("accuracy (%)")
        ax.set_ylim(0, 100)
        ax.set_xlim(least, most)
    mosaic["time"].legend(loc="lower right", frameon=False)
    _draw_bars(mosaic["lost"], found, there)
    heard = "share of the merged uploads (%)"
    _draw_quarters(mosaic["heard"], found, there, "heard", heard, marks_fair=True)
    _draw_quarters(mosaic["own"], found, there, "own", "accuracy in own label mix (%)")
    for letter, ax in zip("abcde", mosaic.values(), strict=True):
        ax.set_title(letter, loc="left", fontweight="bold", fontsize=8)
        ax.grid(axis="y", color="0.92", lw=0.5)
        ax.set_axisbelow(True)
    return figure


def _draw_bars(ax: Axes, found: pd.DataFrame, there: Sequence[str]) -> None:
    for place, server in enumerate(there):
        shares = (100 * found.loc[found["server"] == server, "wasted"]).tolist()
        of = over_seeds(shares)
        ax.bar(place, of.least, color=COLOURS[server], width=0.65, alpha=0.85)
        if of.coverage:
            ax.errorbar(
                place,
                of.least,
                [[of.least - of.low], [of.high - of.least]],
                color="0.2",
                lw=0.8,
                capsize=2,
            )
    ax.set_xticks(range(len(there)), there, rotation=25, ha="right")
    ax.set_ylim(bottom=0)
    ax.set_ylabel("bytes of lost participations (%)")


def _draw_quarters(
    ax: Axes,
    found: pd.DataFrame,
    there: Sequence[str],
    what: str,
    label: str,
    *,
    marks_fair: bool = False,
) -> None:
    for place, server in enumerate(there):
        mine = found[found["server"] == server]
        of = [over_seeds((100 * mine[f"{what}_{quarter}"]).tolist()) for quarter in QUARTERS]
        x = np.arange(4) + 0.07 * (place - (len(there) - 1) / 2)
        means = np.array([e.least for e in of])
        look: Any = {"color": COLOURS[server], "lw": 0.9}
        ax.plot(x, means, marker=MARKERS[server], ms=3, **look)
        if all(e.coverage for e in of):
            spread = [means - [e.low for e in of], [e.high for e in of] - means]
            ax.errorbar(x, means, spread, fmt="none", capsize=1.5, **look)
    if marks_fair:
        ax.axhline(25, color="0.45", ls=":", lw=1)
        ax.set_ylim(bottom=0)
    ax.set_xticks(range(4), ["slowest\nquarter", "second", "third", "fastest\nquarter"])
    ax.set_ylabel(label)


@picture_style()
def gantt_figure(
    runs: Mapping[str, Run], slow_first: Ints, away: Sequence[Sequence[tuple[float, float]]]
) -> Figure:
    """The same seconds under every server: a row per client, those that need longest on top.

    `away[client]`: when it was not there. Ticks above a panel are merges.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    figure = Figure(figsize=(7.6, 4.8), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(runs), sharey=True, sharex=True)
    begin, end = WINDOW_S
    row = {int(client): place for place, client in enumerate(slow_first)}
    for (server, run), ax in zip(runs.items(), axes, strict=True):
        for client, absences in enumerate(away):
            bars = [(a, b - a) for a, b in absences if b > begin and a < end]
            ax.broken_barh(bars, (row[client] - 0.5, 1), facecolor="0.93", lw=0)
        _draw_spans(ax, run, row)
        merges = run.rounds["finished_at_s"]
        inside = merges[(merges >= begin) & (merges <= end)]
        ax.vlines(inside, -2.4, -0.9, color="black", lw=0.5, clip_on=False)
        ax.set_xticks(np.linspace(begin, end, 3))
        ax.set_title(f"{server}\n{len(inside)} merges", fontsize=7, pad=13)
        ax.xaxis.set_major_formatter("{x:g}")
        ax.set_xlim(begin, end)
        ax.set_ylim(len(row) - 0.5, -0.5)
        ax.tick_params(axis="y", length=0)
    axes[0].set_yticks([4, len(row) - 5], ["slow", "fast"], rotation=90, va="center")
    axes[0].set_ylabel(f"{len(row)} clients", labelpad=-4)
    axes[len(axes) // 2].set_xlabel("simulated time (s)")
    looks = [PHASES[name] for name in _DRAWN[:4]]
    handles = [Patch(facecolor=of.colour, label=of.label) for of in looks]
    handles.append(Patch(facecolor="none", edgecolor=_LOST.colour, label="nothing of it is merged"))
    handles.append(Patch(facecolor="0.93", label="away"))
    figure.legend(handles=handles, loc="outside lower center", ncols=6, frameon=False)
    return figure


_LOST = PHASES["dropped"]


def _draw_spans(ax: Axes, run: Run, row: Mapping[int, int]) -> None:
    begin, end = WINDOW_S
    spans = run.spans
    spans = spans[
        spans["kind"].isin(_DRAWN)
        & (spans["finished_at_s"] > begin)
        & (spans["started_at_s"] < end)
    ]
    spans = spans[spans["track"].str.startswith("client ")]
    for (client, kind), of in spans.groupby(["client", "kind"]):
        if kind == "offline":
            continue  # the row is grey anyway
        bars = list(zip(of["started_at_s"], of["finished_at_s"] - of["started_at_s"], strict=True))
        half = 0.16 if kind == "waiting" else 0.42
        place = (row[int(client)] - half, 2 * half)
        ax.broken_barh(bars, place, facecolor=PHASES[str(kind)].colour, lw=0)
    parts = run.participations
    lost = parts[parts["outcome"].isin(["dropped", "failed"])]
    for one in lost.itertuples():
        spent_s = one.downlink_s + one.training_s + one.compression_s + one.uplink_s
        if one.started_at_s < end and one.started_at_s + spent_s > begin:
            place = (row[int(one.client)] - 0.42, 0.84)
            bar = [(one.started_at_s, spent_s)]
            ax.broken_barh(bar, place, facecolor="none", edgecolor=_LOST.colour, lw=0.7)


def absences(scenario: Scenario, seed: int) -> list[list[tuple[float, float]]]:
    """Per client, when it was away up to the end of the window."""
    there = Fleet(scenario.model_copy(update={"seed": seed}), Streams(seed)).availability()
    found = []
    for client in range(scenario.client_count):
        at_s, mine = 0.0, []
        while at_s < WINDOW_S[1]:
            until_s = min(there.change_after(client, at_s), WINDOW_S[1])
            if not there.there(client, at_s):
                mine.append((at_s, until_s))
            at_s = until_s
        found.append(mine)
    return found


# ---- tables --------------------------------------------------------------------------------------


def tables(found: pd.DataFrame, times: pd.DataFrame) -> str:
    """Two tables in Markdown: how soon and for what; whom it hears and serves. Means over seeds
    with 95 % intervals; `times`: `server, seed, threshold, at_s, reached`."""
    there = [server for server in SERVERS if server in set(found["server"])]
    levels = sorted(set(times["threshold"]))
    heads = ["server", f"accuracy at {UNTIL_S:g} s"]
    heads += [f"{100 * level:g} % after, sooner than synchronous" for level in levels]
    heads += ["uploads merged", "MB moved", "of these lost"]
    first = [heads]
    second = [["server", "Gini", "slow quarter's share", "never heard", "own mix: mean",
               "worst tenth", "slow quarter", "fast quarter"]]  # fmt: skip
    for server in there:
        mine = found[found["server"] == server]
        percent = {name: _percent(mine[name].tolist()) for name in mine if name not in _NO_SHARES}
        first.append(
            [server, percent["accuracy"], *(_soon(times, server, level) for level in levels),
             _plain(mine["merged"]), _plain(mine["moved_mb"]), percent["wasted"]]
        )  # fmt: skip
        second.append(
            [server, f"{mine['gini'].mean():.2f}", percent["heard_slow"],
             f"{mine['unheard'].mean():.1f} of 60", percent["own"], percent["own_worst"],
             percent["own_slow"], percent["own_fast"]]
        )  # fmt: skip
    return "\n\n".join(markdown(table) for table in (first, second))


_NO_SHARES = ("server", "seed")


def _percent(shares: Sequence[float]) -> str:
    found = over_seeds([100 * share for share in shares])
    half = f" ± {(found.high - found.low) / 2:.1f}" if found.coverage else ""
    return f"{found.least:.1f}{half} %"


def _plain(values: pd.Series[float]) -> str:
    return f"{values.mean():,.0f}"


def _soon(times: pd.DataFrame, server: str, level: float) -> str:
    of_level = times[times["threshold"] == level].sort_values("seed")
    mine, base = (of_level[of_level["server"] == name] for name in (server, SERVERS[0]))
    typical = median_time(mine["at_s"].tolist(), mine["reached"].tolist())
    text = f"{typical.least:.0f} s" if typical.is_exact else f"over {typical.least:.0f} s"
    both = sorted(set(mine["seed"]) & set(base["seed"]))
    if server == SERVERS[0] or len(both) < 2:
        return text
    a, b = (of[of["seed"].isin(both)] for of in (mine, base))
    ratio = paired_times(
        a["at_s"].tolist(), a["reached"].tolist(), b["at_s"].tolist(), b["reached"].tolist()
    ).ratio
    interval = f" [{ratio.low:.1f}, {ratio.high:.1f}]" if ratio.coverage else ""
    return f"{text}, {ratio.least:.1f} ×{interval}"


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """A table; the first row is its head."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("studies/servers"))
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--figures", type=Path, default=ROOT / "docs" / "images")
    parser.add_argument("--draw-only", action="store_true", help="what is there so far")
    arguments: Any = parser.parse_args()
    if not arguments.draw_only:
        run_study(STUDY, arguments.out, jobs=arguments.jobs)
    study = load_study(arguments.out)
    scenario = load_scenario(ROOT / "scenarios" / "servers.yaml")
    found = of_study(study, scenario)
    named = {ARM: "server"}
    curves = study.curves.rename(columns=named)
    curves = curves.assign(moved_mb=curves["total_bytes"] / 1e6)
    arguments.figures.mkdir(parents=True, exist_ok=True)
    save_picture(servers_figure(found, curves), arguments.figures / "servers.png", dpi=180)
    seed = min(found["seed"])
    runs = {entry["point"][ARM]: run for entry, run in study.finished if entry["seed"] == seed}
    runs = {server: runs[server] for server in SERVERS if server in runs}
    slow_first = np.argsort(-needed_s(scenario, seed), kind="stable")
    gantt = gantt_figure(runs, slow_first, absences(scenario, seed))
    save_picture(gantt, arguments.figures / "servers-gantt.png", dpi=180)
    print(tables(found, study.times.rename(columns=named)))


if __name__ == "__main__":
    main()
