"""Tidy data frames out of a run, from which tables, pictures and pages are made.

Every function takes a run (`record.Run`, or anything with the same frames) or a frame
of its, and gives a small frame with one fact per row. Nothing here draws; nothing that
draws computes.

Begin reading at `curves`, the frame of what was learned, `sum_phase_seconds`, where
time went, and `compute_arm_shares`, what was chosen. `pandas` is imported here, so that
rooms which only run do not wait for it.
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
    """Return the rows in the scenario's order of prototypes; otherwise as they were.

    Prototypes that the scenario does not name come last.

    Args:
        frame: has a column `prototype`.
        run: whose scenario it is.
    """
    order = {prototype: i for i, prototype in enumerate(weigh_prototypes(run))}
    rank = frame["prototype"].map(order).astype(float).fillna(len(order))
    return frame.iloc[np.argsort(rank.to_numpy(), kind="stable")].reset_index(drop=True)


def find_run_name(run: Run) -> str:
    """Return a run's name on pages: its manifest's or scenario's, or "run"."""
    return str(run.manifest.get("name") or run.scenario.get("name") or "run")


def label_runs(runs: Sequence[Run]) -> list[str]:
    """Return a distinct label for each of several runs, in their order.

    The label is the run's name; where names repeat, the name with the seed, the folder
    or the name with a number, whichever first tells all of them apart.
    """
    choices = [
        [find_run_name(run) for run in runs],
        [f"{find_run_name(run)} (seed {run.manifest.get('seed')})" for run in runs],
        [run.path.name if run.path else find_run_name(run) for run in runs],
    ]
    numbered = [f"{name} ({i})" for i, name in enumerate(choices[0], start=1)]
    return next((texts for texts in choices if len(set(texts)) == len(texts)), numbered)


def edge_servers(run: Run) -> list[str]:
    """Return the names of the edge servers that merged, in the order of their tier."""
    nodes = set(run.table("merges").column("node").to_pylist()) - {"server"}
    return sorted(nodes, key=lambda name: (len(name), name))


def list_clients(run: Run) -> pd.DataFrame:
    """Return `client, prototype` of every client that ever took part, by ids."""
    table = run.table("participations").select(["client", "prototype"])
    pairs = table.group_by(["client", "prototype"]).aggregate([]).to_pandas()
    pairs = pairs.drop_duplicates("client")
    return pairs.sort_values("client", ignore_index=True)


def describe_privacy(run: Run) -> tuple[str, str, str] | None:
    """Return in words the privacy that a run spent.

    Returns:
        (ε at δ, what counts as neighbours, how it was counted); None: no privacy.
    """
    facts = run.manifest.get("privacy")
    if facts is None:
        return None
    epsilon = run.summary.get("epsilon", math.nan)
    counted = "amplified by sampling" if facts["amplified"] else "not amplified"
    counted += f", noise {facts['noise']:.4g} × the clip"
    return f"ε = {epsilon:.3g} at δ = {facts['delta']:g}", facts["adjacency"], counted


def describe_energy(run: Run) -> tuple[str, str] | None:
    """Return in words the energy that clients' devices took.

    Returns:
        (the sum, the mean of a participation and how many are known); None: nobody
        knows the devices' watts.
    """
    every = run.participations["energy_j"]
    energy_j = every.dropna()
    if not len(energy_j):
        return None
    known = f"{format_energy(energy_j.sum() / len(energy_j))} a participation"
    if len(energy_j) < len(every):
        known += f"; of {len(energy_j):,} of {len(every):,} participations alone"
    return format_energy(energy_j.sum()), known


def count_clients(run: Run) -> dict[str, int]:
    """Return each prototype's number of clients, in the scenario's order."""
    counts: dict[str, int] = {}
    for group in run.scenario.get("clients", []):
        prototype = group["prototype"]
        counts[prototype] = counts.get(prototype, 0) + group.get("count", 1)
    return counts


def weigh_prototypes(run: Run) -> dict[str, float]:
    """Return each prototype's share of the clients, as the scenario deals them out."""
    counts = count_clients(run)
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

    Args:
        run: the finished run.
        label: what stands in the column `run`; None: the run's name.
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
    tidy["run"] = find_run_name(run) if label is None else label
    amounts = ["round", "at_s", "uplink_bytes", "total_bytes"]
    return tidy.reindex(columns=["run", "prototype", *amounts, *measures])


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
    return pd.concat(parts) if parts else tidy


def sum_phase_seconds(participations: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Return the seconds in each phase, one row per group, in the groups' order.

    Args:
        participations: rows of `participations.parquet`.
        by: the columns that make a group, such as `client`.

    Returns:
        `*by, participations, download, training, …`: how many participations a group
        has, and a column of seconds for each kind of phase.
    """
    phases = list_phases(participations.columns)
    groups = participations.groupby(list(by), sort=True)
    sums = groups[list(phases)].sum().rename(columns=phases)
    sums.insert(0, "participations", groups.size())
    return sums.reset_index()


def compute_phase_shares(run: Run) -> pd.Series:
    """Return the share of the clients' time that each phase took, by its kind.

    Shares add up to 1; they are 0 where nothing took any time.
    """
    phases = list_phases(run.participations.columns)
    seconds = run.participations[list(phases)].sum().rename(phases)
    return seconds / (seconds.sum() or 1.0)


def list_stragglers(run: Run) -> pd.DataFrame:
    """Return the clients that rounds waited for, those of most rounds first.

    Returns:
        `client, prototype, rounds, share, phase, phase_rounds, link, saved_s`: `share`
        is of all rounds; `phase` and `link` are those that the client was blamed for
        most often; `saved_s` is how much shorter its rounds would have been without it,
        each by itself; missing where no round tells.
    """
    prototypes = dict(list_clients(run).itertuples(index=False, name=None))
    rows = []
    for straggler in rank_stragglers(run.table, rows=len(prototypes)):
        client, rounds = straggler["client"], straggler["rounds"]
        phase, phase_rounds = next(iter(straggler["phases"].items()), (None, 0))
        link = next(iter(straggler["links"]), None)
        told = (client, prototypes.get(client, ""), rounds, rounds / len(run.rounds))
        rows.append((*told, phase, phase_rounds, link, straggler["saved_s"]))
    columns = ["client", "prototype", "rounds", "share", "phase", "phase_rounds"]
    return pd.DataFrame(rows, columns=[*columns, "link", "saved_s"])


def label_phase(phase: str | None) -> str:
    """Return a phase's name for people; empty for none.

    >>> label_phase("server")
    'server work'
    """
    return look_of(phase).label if phase else ""


def find_shared_links(links: pd.DataFrame) -> list[str]:
    """Return the links that ever carried several transfers at once, most bytes first.

    Args:
        links: rows of `links.parquet`.
    """
    several = links.loc[links["flows"] > 1, "link"].unique()
    moved = links[links["link"].isin(several)].groupby("link")["bytes"].sum()
    return [*map(str, moved.sort_values(ascending=False, kind="stable").index)]


def summarise_links(run: Run) -> pd.DataFrame:
    """Return each link's use, those that held most rounds up first.

    Returns:
        `link, held_up, bytes, busy_s, busy_share, use_when_busy, most_flows, full_s`:
        `held_up` is the number of rounds whose critical client it bound; `busy_share`
        is of the whole run; `use_when_busy` is bytes over what the link could have
        carried while it was busy; `full_s` is how long it ran at (99.9 % of) its
        capacity.
    """
    links = run.links
    lasted_s = links["to_s"] - links["from_s"]
    possible = links["capacity_bytes_per_s"] * lasted_s
    busy = links["bytes"] > 0
    facts = links.assign(
        busy_s=lasted_s.where(busy, 0.0),
        possible=possible.where(busy, 0.0),
        full_s=lasted_s.where(busy & (links["bytes"] >= 0.999 * possible), 0.0),
    )
    links = facts.groupby("link", sort=False)
    table = links[["bytes", "busy_s", "possible", "full_s"]].sum()
    total_s = run.rounds["finished_at_s"].max() if len(run.rounds) else math.nan
    table = table.assign(
        held_up=run.rounds["critical_link"].value_counts(),
        busy_share=table["busy_s"] / total_s,
        use_when_busy=table["bytes"] / table["possible"].where(table["possible"] > 0),
        most_flows=links["flows"].max(),
    ).reset_index()
    table["held_up"] = table["held_up"].fillna(0).astype(int)
    columns = ["link", "held_up", "bytes", "busy_s", "busy_share", "use_when_busy"]
    return table[[*columns, "most_flows", "full_s"]].sort_values(
        ["held_up", "bytes"], ascending=False, kind="stable", ignore_index=True
    )


Steps = tuple[Sequence[float], Sequence[float]]
"""(instants, what holds from each of them on)."""


def compute_capacity_steps(
    use: pd.DataFrame, from_s: float, to_s: float, varies: Steps | None = None
) -> tuple[Floats, Floats]:
    """Return the line of a link's capacity, as points with a step at each change.

    Args:
        use: the link's rows of `links.parquet`, in order of time.
        from_s: where the line begins.
        to_s: where it ends.
        varies: where the capacity changes, if that is known. None: what `use` says.
            Where the capacity is the same before and after an idle time (and at either
            end) the line goes through it; where it is not, the line has a gap (NaN), as
            nobody recorded when it stepped.

    Returns:
        (instants in s, bytes/s), both of the same length.
    """
    if varies is not None:
        at_s, rates = (np.asarray(values, dtype=float) for values in varies)
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
    """Return the mean rate in each row of links' use; 0 where it took no time.

    Args:
        use: rows of `links.parquet`.
    """
    lasted_s = (use["to_s"] - use["from_s"]).to_numpy()
    moved = use["bytes"].to_numpy()
    rates: Floats = np.divide(
        moved, lasted_s, out=np.zeros(len(use)), where=lasted_s > 0
    )
    return rates


def split_rounds(last_round: int, most: int) -> pd.IntervalIndex:
    """Return at most `most` equal bins of whole rounds that cover 1 … `last_round`.

    >>> list(split_rounds(5, 2))
    [Interval(0, 3, closed='right'), Interval(3, 6, closed='right')]
    """
    width = max(1, math.ceil(last_round / most))
    edges = np.arange(0, last_round + width, width)
    return pd.IntervalIndex.from_breaks(edges, closed="right")


def compute_arm_shares(
    participations: pd.DataFrame,
    by: Sequence[str] = ("prototype",),
    most_bins: int = 60,
) -> pd.DataFrame:
    """Return how often each arm was chosen over time.

    Args:
        participations: rows of `participations.parquet`.
        by: the columns that make a group, such as `prototype`.
        most_bins: how many equal bins there may be, into which rounds are put.

    Returns:
        `*by, from_round, to_round, arm, plays, share`; shares of one group and bin add
        up to 1.
    """
    columns = [*by, "from_round", "to_round", "arm", "plays", "share"]
    if participations.empty:
        return pd.DataFrame(columns=columns)
    bins = split_rounds(int(participations["round"].max()), most_bins)
    part = bins.get_indexer(pd.Index(participations["round"]))
    groups = participations.assign(bin=part).groupby([*by, "bin", "arm"])
    plays = groups.size().rename("plays").reset_index()
    total = plays.groupby([*by, "bin"])["plays"].transform("sum")
    plays["share"] = plays["plays"] / total
    plays["from_round"] = bins.left.to_numpy()[plays["bin"]].astype(int) + 1
    plays["to_round"] = bins.right.to_numpy()[plays["bin"]].astype(int)
    return plays.reindex(columns=columns)


def find_varying_k(run: Run) -> pd.DataFrame:
    """Return the participations of arms whose K differs within a prototype.

    The server's forced rounds are left out.

    Returns:
        `round, client, prototype, arm, value`, with K as value.
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
