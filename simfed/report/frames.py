"""Tidy data frames out of a run: what the tables, pictures and pages are drawn from.

Every function takes a run (`record.Run`, or anything with the same frames) or a frame
of its, and gives a small frame with one fact per row. Nothing here draws; nothing that
draws computes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from simfed.compress.choice import list_recorded_labels
from simfed.ground.arrays import Floats
from simfed.ground.units import format_energy
from simfed.record.schema import list_phases
from simfed.record.summary import rank_stragglers
from simfed.report.style import phase as look_of

if TYPE_CHECKING:
    from simfed.record.read import Run


MEAN = "mean of clients"
"""The `prototype` of rows that average the prototypes over the clients that hold
them."""


def order_prototypes(frame: pd.DataFrame, run: Run) -> pd.DataFrame:
    """Return the rows in the scenario's order of prototypes; otherwise as they were."""
    order = {prototype: i for i, prototype in enumerate(weigh_prototypes(run))}
    rank = frame["prototype"].map(order).astype(float).fillna(len(order))
    return frame.iloc[np.argsort(rank.to_numpy(), kind="stable")].reset_index(drop=True)


def find_run_name(run: Run) -> str:
    """Return a run's name on pages: its manifest's or scenario's, or "run"."""
    return str(run.manifest.get("name") or run.scenario.get("name") or "run")


def label_runs(runs: Sequence[Run]) -> list[str]:
    """Return a distinct label for each of several runs: its name.

    With the seed, folder or a number where names repeat.
    """
    choices = [
        [find_run_name(run) for run in runs],
        [f"{find_run_name(run)} (seed {run.manifest.get('seed')})" for run in runs],
        [run.path.name if run.path else find_run_name(run) for run in runs],
    ]
    numbered = [f"{name} ({i})" for i, name in enumerate(choices[0], start=1)]
    return next((texts for texts in choices if len(set(texts)) == len(texts)), numbered)


def edge_servers(run: Run) -> list[str]:
    """Return the edge servers that merged, in the order of the network's tier."""
    nodes = set(run.table("merges").column("node").to_pylist()) - {"server"}
    return sorted(nodes, key=lambda name: (len(name), name))


def list_clients(run: Run) -> pd.DataFrame:
    """Return `client, prototype` of every client that ever took part, by ids."""
    table = run.table("participations").select(["client", "prototype"])
    pairs = table.group_by(["client", "prototype"]).aggregate([]).to_pandas()
    pairs = pairs.drop_duplicates("client")
    return pairs.sort_values("client", ignore_index=True)


def describe_privacy(run: Run) -> tuple[str, str, str] | None:
    """Return (what its privacy came to, of whom, how it was counted) in words.

    None: it has none.
    """
    facts = run.manifest.get("privacy")
    if facts is None:
        return None
    spent = (
        f"ε = {run.summary.get('epsilon', float('nan')):.3g} at δ = {facts['delta']:g}"
    )
    counted = "amplified by sampling" if facts["amplified"] else "not amplified"
    return (
        spent,
        facts["adjacency"],
        (f"{counted}, noise {facts['noise']:.4g} × the clip"),
    )


def describe_energy(run: Run) -> tuple[str, str] | None:
    """Return the joules of all participations and how many of them have any, in words.

    None: nobody knows the devices' watts.
    """
    energy_j = run.participations["energy_j"].dropna()
    if not len(energy_j):
        return None
    known = f"{format_energy(energy_j.sum() / len(energy_j))} a participation"
    if len(energy_j) < len(run.participations):
        known += (
            f"; of {len(energy_j):,} of {len(run.participations):,} "
            f"participations alone"
        )
    return format_energy(energy_j.sum()), known


def weigh_prototypes(run: Run) -> dict[str, float]:
    """Return each prototype's share of the clients, as the scenario deals them out."""
    counts: dict[str, float] = {}
    for group in run.scenario.get("clients", []):
        counts[group["prototype"]] = counts.get(group["prototype"], 0) + group.get(
            "count", 1
        )
    total = sum(counts.values())
    return {prototype: count / total for prototype, count in counts.items()}


def curves(run: Run, label: str | None = None) -> pd.DataFrame:
    """Return learning as a function of rounds, simulated time and bytes.

    Columns: `run, prototype, round, at_s, uplink_bytes, total_bytes, accuracy, loss,
    kd_loss`. Instants are the rounds' ends, bytes are sums since the start, and the
    rows of prototype `MEAN` weigh the prototypes by their numbers of clients. Rounds
    without an evaluation have no accuracy and loss. Where models are measured by more,
    columns such as `auc` follow the first, by which they are judged; where the task has
    a measure of its own, the column `measure` stands in place of `accuracy`.
    """
    rounds = run.rounds
    spent = pd.DataFrame(
        {
            "round": rounds["round"],
            "at_s": rounds["finished_at_s"],
            "uplink_bytes": rounds["uplink_bytes"].cumsum(),
            "total_bytes": (rounds["uplink_bytes"] + rounds["downlink_bytes"]).cumsum(),
        }
    )
    keys = {one.column: one.key for one in run.measures}
    results = run.prototypes.rename(columns={**keys, "test_loss": "loss"})
    weights = weigh_prototypes(run)
    measures = [*keys.values(), "loss", "kd_loss"]
    weighted = results[measures].mul(
        results["prototype"].map(weights).astype(float), axis=0
    )
    # min_count: a mean over fewer than all prototypes would be of something else
    mean = weighted.groupby(results["round"]).sum(
        min_count=results["prototype"].nunique()
    )
    mean = mean.reset_index().assign(prototype=MEAN)
    parts = [results] if len(weights) == 1 else [results, mean]
    tidy = pd.concat(parts, ignore_index=True).merge(spent, on="round")
    tidy.insert(0, "run", find_run_name(run) if label is None else label)
    return tidy.reindex(
        columns=[
            "run",
            "prototype",
            "round",
            "at_s",
            "uplink_bytes",
            "total_bytes",
            *measures,
        ]
    )


def choose_headline(tidy: pd.DataFrame) -> str:
    """Return the prototype of `curves` that speaks for the whole run.

    It is `MEAN`, or the only one there is.
    """
    names = tidy["prototype"].unique()
    return MEAN if MEAN in names else str(names[0])


def select_headlines(tidy: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of `curves` of several runs that speak for each of them.

    See `choose_headline`.
    """
    parts = [
        group[group["prototype"] == choose_headline(group)]
        for _, group in tidy.groupby("run", sort=False)
    ]
    mean: pd.DataFrame = pd.concat(parts) if parts else tidy
    return mean


def sum_phase_seconds(participations: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Return the seconds in each phase, one row per group.

    Columns: `*by, participations, download, training, …`.
    """
    phases = list_phases(participations.columns)
    sums = participations.groupby(list(by), sort=True)[list(phases)].sum()
    sums = sums.rename(columns=phases)
    sums.insert(0, "participations", participations.groupby(list(by), sort=True).size())
    return sums.reset_index()


def list_stragglers(run: Run) -> pd.DataFrame:
    """Return the stragglers: how often each was it, and for what.

    `client, prototype, rounds, share, phase, phase_rounds, link, saved_s`, most rounds
    first: `phase` and `link` are those it was blamed for most often, `saved_s` is how
    much shorter its rounds would have been without it, each by itself; missing where no
    round tells.
    """
    prototypes: dict[int, str] = dict(
        list_clients(run).itertuples(index=False, name=None)
    )
    rows = []
    for straggler in rank_stragglers(run.table, rows=len(prototypes)):
        phase, phase_rounds = next(iter(straggler["phases"].items()), (None, 0))
        rows.append(
            {
                "client": straggler["client"],
                "prototype": prototypes.get(straggler["client"], ""),
                "rounds": straggler["rounds"],
                "share": straggler["rounds"] / len(run.rounds),
                "phase": phase,
                "phase_rounds": phase_rounds,
                "link": next(iter(straggler["links"]), None),
                "saved_s": straggler["saved_s"],
            }
        )
    columns = [
        "client",
        "prototype",
        "rounds",
        "share",
        "phase",
        "phase_rounds",
        "link",
        "saved_s",
    ]
    return pd.DataFrame(rows, columns=columns)


def label_phase(phase: str | None) -> str:
    """Return a phase for people; empty for none.

    >>> label_phase("server")
    'server work'
    """
    return look_of(phase).label if phase else ""


def find_shared_links(links: pd.DataFrame) -> list[str]:
    """Return the links that ever carried several transfers at once, by bytes."""
    several = links.loc[links["flows"] > 1, "link"].unique()
    moved = links[links["link"].isin(several)].groupby("link")["bytes"].sum()
    return [
        str(link) for link in moved.sort_values(ascending=False, kind="stable").index
    ]


def summarise_links(run: Run) -> pd.DataFrame:
    """Return each link's use, those that held most rounds up first.

    `link, held_up, bytes, busy_s, busy_share, use_when_busy, most_flows, full_s`:
    `held_up` is the number of rounds whose critical client it bound; `busy_share` is of
    the whole run; `use_when_busy` is bytes over what the link could have carried while
    it was busy; `full_s` is how long it ran at (99.9 % of) its capacity.
    """
    links = run.links
    lasted_s = links["to_s"] - links["from_s"]
    possible = links["capacity_bytes_per_s"] * lasted_s
    busy = links["bytes"] > 0
    facts = pd.DataFrame(
        {
            "link": links["link"],
            "bytes": links["bytes"],
            "busy_s": lasted_s.where(busy, 0.0),
            "possible": possible.where(busy, 0.0),
            "most_flows": links["flows"],
            "full_s": lasted_s.where(busy & (links["bytes"] >= 0.999 * possible), 0.0),
        }
    )
    table = facts.groupby("link", sort=False).agg(
        {
            "bytes": "sum",
            "busy_s": "sum",
            "possible": "sum",
            "most_flows": "max",
            "full_s": "sum",
        }
    )
    total_s = run.rounds["finished_at_s"].max() if len(run.rounds) else math.nan
    table.insert(2, "busy_share", table["busy_s"] / total_s)
    table["possible"] = table["bytes"] / table["possible"].where(table["possible"] > 0)
    table = table.rename(columns={"possible": "use_when_busy"}).reset_index()
    held = run.rounds["critical_link"].value_counts()
    table.insert(1, "held_up", table["link"].map(held).fillna(0).astype(int))
    return table.sort_values(
        ["held_up", "bytes"], ascending=False, kind="stable", ignore_index=True
    )


Steps = tuple[Sequence[float], Sequence[float]]
"""(instants, what holds from each of them on)."""


def compute_capacity_steps(
    use: pd.DataFrame, from_s: float, to_s: float, varies: Steps | None = None
) -> tuple[Floats, Floats]:
    """Points (s, bytes/s) of the line of a link's capacity from `from_s` to `to_s`.

    `varies`: where it changes, if that is known. Else what `use`, the link's rows,
    says: where the capacity is the same before and after an idle time (and at either
    end) it is drawn through it, and where it is not, the line has a gap (NaN), as
    nobody recorded when it stepped.
    """
    if varies is not None:
        at_s, rates = (
            np.asarray(varies[0], dtype=float),
            np.asarray(varies[1], dtype=float),
        )
        first = max(0, int(np.searchsorted(at_s, from_s, side="right")) - 1)
        last = max(first + 1, int(np.searchsorted(at_s, to_s)))
        starts = np.maximum(at_s[first:last], from_s)
        ends = np.append(starts[1:], to_s)
        return np.stack([starts, ends], axis=1).ravel(), np.repeat(rates[first:last], 2)
    if use.empty:
        return np.empty(0), np.empty(0)
    starts, ends = use["from_s"].to_numpy().copy(), use["to_s"].to_numpy().copy()
    rates = use["capacity_bytes_per_s"].to_numpy()
    if (rates == rates[0]).all():
        return np.array([from_s, to_s]), np.repeat(rates[:1], 2)
    idle = starts[1:] > ends[:-1]
    level = idle & (rates[1:] == rates[:-1])
    ends[:-1][level] = starts[1:][level]
    after = np.flatnonzero(idle & ~level)
    x = np.insert(np.stack([starts, ends], axis=1).ravel(), 2 * (after + 1), np.nan)
    y = np.insert(np.repeat(rates, 2), 2 * (after + 1), np.nan)
    return x, y


def compute_bytes_per_s(use: pd.DataFrame) -> Floats:
    """Return the mean rate in each row of a link's use; 0 where it took no time."""
    lasted_s = (use["to_s"] - use["from_s"]).to_numpy()
    moved = use["bytes"].to_numpy()
    rates: Floats = np.divide(
        moved, lasted_s, out=np.zeros(len(use)), where=lasted_s > 0
    )
    return rates


def split_rounds(last_round: int, most: int) -> pd.IntervalIndex:
    """Return at most `most` equal bins of whole rounds that cover 1 … `last_round`."""
    width = max(1, math.ceil(last_round / most))
    edges = np.arange(0, last_round + width, width)
    return pd.IntervalIndex.from_breaks(edges, closed="right")


def compute_arm_shares(
    participations: pd.DataFrame,
    by: Sequence[str] = ("prototype",),
    most_bins: int = 60,
) -> pd.DataFrame:
    """Return how often each arm was chosen over time.

    Columns: `*by, from_round, to_round, arm, plays, share`. Rounds are put into at most
    `most_bins` equal bins; shares of one group and bin add up to 1.
    """
    columns = [*by, "from_round", "to_round", "arm", "plays", "share"]
    if participations.empty:
        return pd.DataFrame(columns=columns)
    bins = split_rounds(int(participations["round"].max()), most_bins)
    part = bins.get_indexer(pd.Index(participations["round"]))
    plays = (
        participations.groupby([*by, part, "arm"]).size().rename("plays").reset_index()
    )
    plays = plays.rename(columns={f"level_{len(by)}": "bin"})
    total = plays.groupby([*by, "bin"])["plays"].transform("sum")
    plays["share"] = plays["plays"] / total
    plays["from_round"] = bins.left.to_numpy()[plays["bin"]].astype(int) + 1
    plays["to_round"] = bins.right.to_numpy()[plays["bin"]].astype(int)
    return plays.reindex(columns=columns)


def find_varying_k(run: Run) -> pd.DataFrame:
    """Return the participations of arms whose K differs within a prototype.

    `round, client, prototype, arm, value` with K as value. The server's forced rounds
    are left out.
    """
    parts = run.participations[run.participations["choice"] != "forced"]
    counts = parts.groupby(["prototype", "arm"])["k"].transform("nunique")
    columns = ["round", "client", "prototype", "arm", "k"]
    return parts.loc[counts > 1, columns].rename(columns={"k": "value"})


def list_arms(run: Run) -> list[str]:
    """Return the arms of a run in the scenario's order.

    Arms that only the record knows come last.
    """
    listed = list_recorded_labels(run.scenario)
    played = set(run.participations["arm"].unique())
    return [arm for arm in listed if arm in played] + sorted(played - set(listed))
