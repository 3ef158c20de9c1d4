"""Summaries of runs: the numbers of `summary.json`, and each round's straggler.

Pure functions of the tables; they work on any run directory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from simfed.ground.measure import ACCURACY, Measure
from simfed.ground.plain import Plain
from simfed.record.schema import EPSILON, OUTCOMES, START, list_phases

if TYPE_CHECKING:
    import pyarrow as pa

    from simfed.record.read import Run

THRESHOLDS = (
    0.3,
    0.4,
    0.5,
    0.6,
    0.7,
    0.8,
    0.85,
    0.9,
    0.92,
    0.94,
    0.95,
    0.96,
    0.97,
    0.98,
    0.99,
)
"""Accuracies whose first time is in the summary; null where a run never gets there. Of
another measure it is the round numbers between the worst and the best value."""

Table = Callable[[str], "pa.Table"]
Columns = dict[str, np.ndarray]


def summarise(
    table: Table, clients_of_prototype: Mapping[str, int], measure: Measure = ACCURACY
) -> dict[str, Plain]:
    """Return the content of `summary.json`.

    Args:
        table: returns the table of a name.
        clients_of_prototype: prototype → how many clients have it. They weigh the mean
            measure, which is that over all clients, whether or not they took part.
        measure: the measure of thresholds, of the best and of the final value.

    Returns:
        JSON-able: seconds, bytes, joules where they are known, counts, and the first
        time
        at each threshold (None: it was not reached).
    """
    rounds = _read_columns(table("rounds"))
    parts = table("participations")  # may be long: summed by column, never row by row
    energy_j = parts.column("energy_j").drop_null().to_numpy()
    prototypes = _read_columns(table("prototypes"))
    measured = _build_curves(prototypes, measure.column, rounds, clients_of_prototype)
    loss = _build_curves(prototypes, "test_loss", rounds, clients_of_prototype)
    outcomes = _count_by_prototype(parts, "outcome")
    return {
        "rounds": len(rounds["round"]),
        "simulated_s": float(rounds["finished_at_s"][-1])
        if len(rounds["round"])
        else 0.0,
        "uplink_bytes": float(rounds["uplink_bytes"].sum()),
        "downlink_bytes": float(rounds["downlink_bytes"].sum()),
        "wasted_bytes": _sum_wasted_bytes(parts),
        measure.key: {
            name: _summarise_measure(points, measure)
            for name, points in measured.items()
        },
        "test_loss": {name: points[-1][2] for name, points in loss.items() if points},
        "rollbacks": int(rounds["rolled_back"].sum()),
        "outcomes": {
            name: sum(counts.get(name, 0) for counts in outcomes.values())
            for name in OUTCOMES
        },
        "strategies": _count_by_prototype(parts, "arm"),
        "choices": _count_by_prototype(parts, "choice"),
        "rewards": count_clipped(parts),
        "phases_s": {
            name: float(parts.column(name).to_numpy().sum())
            for name in list_phases(parts.column_names)
        },
        **_leave_out_starts(parts, rounds),
        "server_s": float(rounds["server_s"].sum()),
        "energy_j": float(energy_j.sum()) if len(energy_j) else None,
        **(
            {"epsilon": float(rounds[EPSILON][-1])}
            if len(rounds.get(EPSILON, ()))
            else {}
        ),
        "stragglers": rank_stragglers(table),
    }


def _leave_out_starts(parts: pa.Table, rounds: Columns) -> dict[str, Plain]:
    """Return how long the run would be if no node's process had to start.

    Each round is shorter by what its last upload would have come earlier. Nothing is
    returned where starts are not charged. Ignored is what transfers at other instants
    would do to each other.
    """
    if f"{START}_s" not in parts.column_names or not len(rounds["round"]):
        return {}
    columns = _read_columns(parts)
    came = ~np.isin(columns["outcome"], ("dropped", "failed"))
    until_upload = [*list_phases(columns)][:-2]
    arrived_s = columns["started_at_s"] + sum(columns[name] for name in until_upload)
    place = columns["merge"][came] - 1
    last_s, without_s = np.full((2, len(rounds["round"])), -np.inf)
    np.maximum.at(last_s, place, arrived_s[came])
    np.maximum.at(without_s, place, (arrived_s - columns[f"{START}_s"])[came])
    some = last_s > -np.inf
    saved_s = float((last_s[some] - without_s[some]).sum())
    return {"without_starts_s": float(rounds["finished_at_s"][-1]) - saved_s}


def rank_stragglers(table: Table, *, rows: int = 20) -> list[dict[str, Plain]]:
    """Return the clients that held up most rounds, most first, and by what.

    Args:
        table: returns the table of a name.
        rows: the most clients.

    Returns:
        For each client: `client`; `rounds` that it held up; `phases`, each longest
        phase →
        in how many of these; `links`, each link that bound it → in how many; `saved_s`,
        the
        seconds that rounds would be shorter by, summed, each without this client alone
        (None where no round tells).
    """
    rounds = _read_columns(table("rounds"))
    has_one = ~_find_missing(rounds["critical_client"])
    clients = rounds["critical_client"][has_one].astype(np.int64)
    worst = sorted(
        zip(*np.unique(clients, return_counts=True), strict=True),
        key=lambda c: (-c[1], c[0]),
    )
    stragglers = []
    for client, count in worst[:rows]:
        mine = has_one.copy()
        mine[has_one] = clients == client
        saved_s = rounds["saved_without_critical_s"][mine]
        saved_s = saved_s[~_find_missing(saved_s)].astype(float)
        stragglers.append(
            {
                "client": int(client),
                "rounds": int(count),
                "phases": _count_values(rounds["critical_phase"][mine]),
                "links": _count_values(rounds["critical_link"][mine]),
                "saved_s": float(saved_s.sum()) if len(saved_s) else None,
            }
        )
    return stragglers


def explain_rounds(table: Table, rounds: set[int] | None = None) -> dict[int, str]:
    """Return what set each round's length, in words: round → sentence.

    `round 7: client 3, 62 % upload, shared link edge-2`: the share is that of the phase
    in the round's length; a link is named where the phase is a transfer, `shared` where
    several transfers were on it at once during the round. Where it took longer until
    anybody was there, that comes first. Rounds without a critical client have no
    sentence.

    Args:
        table: returns the table of a name.
        rounds: only these; None for all.
    """
    facts = _read_columns(table("rounds"))
    seconds = _sum_phase_seconds(table)
    shared = _find_shared_intervals(table)
    began_at_s = find_first_starts(table("participations"), facts["started_at_s"])
    sentences = {}
    for i, number in enumerate(facts["round"]):
        client, phase = facts["critical_client"][i], facts["critical_phase"][i]
        if client is None or (rounds is not None and number not in rounds):
            continue
        length_s = facts["duration_s"][i]
        by_kind = {"server": facts["server_s"][i], **seconds.get((number, client), {})}
        spent_s = by_kind.get(phase, 0.0)
        share = spent_s / length_s if length_s > 0 else 0.0
        text = f"round {number}: client {client}, {100 * share:.0f} % {phase}"
        idle_s = began_at_s[i] - facts["started_at_s"][i]
        if idle_s > spent_s:
            idle = f"nobody was there for {100 * idle_s / length_s:.0f} %"
            text = (
                f"round {number}: {idle}, then client {client}, {100 * share:.0f} "
                f"% {phase}"
            )
        link = facts["critical_link"][i]
        if link is not None:
            starts, ends = shared.get(link, (np.empty(0), np.empty(0)))
            next_one = np.searchsorted(ends, facts["started_at_s"][i], side="right")
            is_shared = (
                next_one < len(starts) and starts[next_one] < facts["finished_at_s"][i]
            )
            noun = "" if link.startswith("airtime of ") else "link "
            text += f", {'shared ' if is_shared else ''}{noun}{link}"
        sentences[int(number)] = text
    return sentences


def find_first_starts(participations: pa.Table, rounds_at_s: np.ndarray) -> np.ndarray:
    """Return the first start, for each round, of a participation that had not ended.

    Args:
        participations: the table.
        rounds_at_s: the instants at which rounds start, shape (rounds,).

    Returns:
        Instants of the same shape; -inf where there is none.
    """
    starts, ends = (
        _read_values(participations.column(name)).astype(float)
        for name in ("started_at_s", "finished_at_s")
    )
    order = np.argsort(ends)
    first = np.minimum.accumulate(starts[order][::-1])[::-1]
    return np.append(first, -np.inf)[
        np.searchsorted(ends[order], rounds_at_s, side="right")
    ]


def _read_columns(table: pa.Table) -> Columns:
    """Return the columns of a table as arrays; see `_read_values`."""
    return {name: _read_values(table.column(name)) for name in table.column_names}


def _read_values(column: pa.ChunkedArray) -> np.ndarray:
    """Return a column as an array, of objects with None where a value is missing."""
    return (
        np.array(column.to_pylist(), dtype=object)
        if column.null_count
        else column.to_numpy()
    )


def _find_missing(values: np.ndarray) -> np.ndarray:
    """Return where values are None, as an array of booleans."""
    return np.array([value is None for value in values], dtype=bool)


Curve = list[tuple[int, float, float]]
"""(round, instant, value) wherever it was evaluated."""


def _build_curves(
    prototypes: Columns, column: str, rounds: Columns, clients: Mapping[str, int]
) -> dict[str, Curve]:
    """Return a curve per prototype, and one of their mean over clients, `mean`."""
    at_s = dict(
        zip(rounds["round"].tolist(), rounds["finished_at_s"].tolist(), strict=True)
    )
    values: dict[int, dict[str, float]] = {}
    for number, name, value in zip(
        prototypes["round"], prototypes["prototype"], prototypes[column], strict=True
    ):
        if value is not None:
            values.setdefault(int(number), {})[str(name)] = float(value)
    curves: dict[str, Curve] = {"mean": [], **{p: [] for p in clients}}
    for number, by_prototype in values.items():
        for name, value in by_prototype.items():
            curves[name].append((number, at_s[number], value))
        mean = average_over_clients(by_prototype, clients)
        if mean is not None:
            curves["mean"].append((number, at_s[number], mean))
    return curves


def _summarise_measure(points: Curve, measure: Measure) -> dict[str, Plain]:
    """Return a curve's final and best value, and when it first reached each step."""
    best = max(
        points, key=lambda point: measure.compute_advantage(point[2]), default=None
    )
    steps = measure.steps((value for _, _, value in points), THRESHOLDS)
    times_s: dict[str, float | None] = {}
    for step in steps:
        reached = (at_s for _, at_s, v in points if measure.is_reached(v, step))
        times_s[f"{step:g}"] = next(reached, None)
    return {
        "final": points[-1][2] if points else None,
        "best": best[2] if best else None,
        "best_round": best[0] if best else None,
        "time_to_s": times_s,
    }


def _count_by_prototype(parts: pa.Table, column: str) -> dict[str, dict[str, int]]:
    """Return how often each value of a column occurs, most often first.

    It is a table of values per prototype.
    """
    counts: dict[str, dict[str, int]] = {}
    rows = (
        parts.group_by(["prototype", column])
        .aggregate([("client", "count")])
        .to_pylist()
    )
    for row in sorted(
        rows, key=lambda row: (row["prototype"], -row["client_count"], row[column])
    ):
        counts.setdefault(row["prototype"], {})[row[column]] = row["client_count"]
    return counts


def _sum_wasted_bytes(parts: pa.Table) -> dict[str, float]:
    """Return the bytes of lost participations: `uplink` and `downlink`.

    Lost are those that were dropped or failed, of which nothing was merged.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    lost = parts.filter(
        pc.is_in(parts.column("outcome"), pa.array(["dropped", "failed"]))
    )
    ways = ("uplink", "downlink")
    return {way: float(lost.column(f"{way}_bytes").to_numpy().sum()) for way in ways}


_MOST_CLIPPED = 0.6
"""The share of clipped rewards beyond which policies hardly tell one arm from another.
The reference method has 35 to 48 %."""


def count_clipped(parts: pa.Table) -> dict[str, Plain]:
    """Return how many rewards policies were told, and how many the clip had cut.

    `clip_of_a_twentieth` is the c of the clip [−c, c] that would have cut a twentieth,
    None where nothing was told or c is not finite.
    """
    raw, told = (parts.column(name).to_numpy() for name in ("reward_raw", "reward"))
    raw, told = raw[~np.isnan(told)], told[~np.isnan(told)]
    least = (
        float(np.quantile(np.abs(raw), 0.95, method="inverted_cdf"))
        if len(raw)
        else np.inf
    )
    return {
        "told": len(told),
        "clipped": int((raw != told).sum()),
        "clip_of_a_twentieth": least if np.isfinite(least) else None,
    }


def describe_clipping(summary: Mapping[str, Any]) -> str | None:
    """Return how many rewards were clipped, in words.

    None where policies were told none. `summary` is the content of `summary.json`.
    """
    rewards = summary["rewards"]
    told, clipped, least = (
        rewards[key] for key in ("told", "clipped", "clip_of_a_twentieth")
    )
    if not told:
        return None
    share = f"{clipped:,} of {told:,} clipped ({100 * clipped / told:.0f} %)"
    return share if least is None else f"{share}; ±{least:.3g} would cut 5 %"


def warn_of_clipping(summary: Mapping[str, Any]) -> list[str]:
    """Return a sentence, or none, on clipped rewards that say little more than a sign.

    Args:
        summary: the content of `summary.json`.
    """
    rewards = summary["rewards"]
    if rewards["clipped"] <= _MOST_CLIPPED * rewards["told"]:
        return []
    return [
        f"policy.reward.clip: of the rewards {describe_clipping(summary)}; policies "
        "learn from little more than their signs"
    ]


def _count_values(values: np.ndarray) -> dict[str, int]:
    """Return how often each value occurs, most often first; None is left out."""
    present = [value for value in values.tolist() if value is not None]
    names, counts = np.unique(np.array(present, dtype=str), return_counts=True)
    by_count = sorted(
        zip(names.tolist(), counts.tolist(), strict=True),
        key=lambda nc: (-nc[1], nc[0]),
    )
    return dict(by_count)


def _sum_phase_seconds(table: Table) -> dict[tuple[int, int], dict[str, float]]:
    """Return seconds of spans by kind, for each (round, critical client)."""
    import pyarrow as pa
    import pyarrow.compute as pc

    spans = table("spans")
    spans = spans.filter(pc.starts_with(spans.column("track"), "client "))
    lasted_s = pc.subtract(spans.column("finished_at_s"), spans.column("started_at_s"))
    spans = spans.select(["round", "client", "kind"]).append_column("seconds", lasted_s)
    critical = table("rounds").select(["round", "critical_client"]).drop_null()
    keys = [(name, pa.int64()) for name in ("round", "client")]
    critical = critical.rename_columns(["round", "client"]).cast(pa.schema(keys))
    rows = spans.join(critical, ["round", "client"], join_type="inner")
    sums = rows.group_by(["round", "client", "kind"]).aggregate([("seconds", "sum")])
    seconds: dict[tuple[int, int], dict[str, float]] = {}
    for row in sums.to_pylist():
        seconds.setdefault((row["round"], row["client"]), {})[row["kind"]] = row[
            "seconds_sum"
        ]
    return seconds


def _find_shared_intervals(table: Table) -> dict[str, tuple[Any, Any]]:
    """Return per link the (starts, ends) of intervals with several transfers.

    They are ascending.
    """
    import pyarrow.compute as pc

    links = table("links")
    several = links.filter(pc.greater(links.column("flows"), 1))
    names = several.column("link").to_numpy()
    starts, ends = (
        several.column("from_s").to_numpy(),
        several.column("to_s").to_numpy(),
    )
    return {
        str(name): (starts[names == name], ends[names == name])
        for name in np.unique(names)
    }


def count_classes(runs: Iterable[Run]) -> int:
    """Return how many classes guessing chooses from, the fewest of these runs.

    It is 0 where no run's manifest says how many classes its data have.
    """
    classes = [run.manifest.get("classes") for run in runs]
    return min((n for n in classes if isinstance(n, int) and n > 1), default=0)


def average_over_clients(
    values: Mapping[str, float], clients: Mapping[str, int]
) -> float | None:
    """Return the mean of a value per prototype over all clients.

    None where a prototype has no value.

    >>> average_over_clients({"small": 0.25, "large": 0.75}, {"small": 1, "large": 1})
    0.5
    >>> average_over_clients({"small": 0.5}, {"small": 2, "large": 1}) is None
    True
    """
    if set(values) != set(clients):
        return None
    return sum(clients[name] * values[name] for name in clients) / sum(clients.values())
