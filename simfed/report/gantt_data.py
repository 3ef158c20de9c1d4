"""The data of the page's Gantt: a run's bars as columns of numbers.

`gantt.js` draws bars, or a part of them, out of these; how much fits a page is decided
here. `build_gantt_data` gives one mapping of plain lists and numbers, as JSON has them:

- `tracks`: the rows from above (clients, the server, edge servers);
- `rounds`, `parts`: the shown rounds and the participations in them;
- `kinds`, `bars`: looks, and bars that refer to them;
- `links`: use and capacity of up to three links;
- `all`: how much the run has, beside what is shown.

Columns of one table are in step, and refer to rows of others by their places: a bar's
`part` is a place in `parts`, whose `track` is a place in `tracks`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from simfed.record.schema import CLIENT_KINDS
from simfed.report import frames
from simfed.report.style import PHASES, Phase, choose_arm_shapes, looks
from simfed.report.timeline import (
    Timeline,
    build_timeline_of_rounds,
    keep_last_per_start,
)

if TYPE_CHECKING:
    from simfed.record.read import Run

MOST_BARS = 120_000
"""Bars that a page carries, over all its runs: about 2 MB of it."""
MOST_LINK_PIECES = 12_000
"""Pieces of one link's use that a page carries exactly."""
MOST_EDGE_SERVERS = 60
"""The most edge servers on a page's Gantt."""
_BARS_EACH = 5
"""Bars of a participation, about."""
LINK_SLICES = 40
"""Equal slices per round in place of more pieces than that."""

Data = dict[str, Any]
"""A part of the page's payload."""


def build_gantt_data(
    run: Run,
    label: str,
    words: Mapping[int, str],
    most_bars: int = MOST_BARS,
    kinds: Sequence[str] = CLIENT_KINDS,
    all_arms: Sequence[str] = (),
    capacities: Mapping[str, frames.Steps] | None = None,
) -> Data:
    """Return what `gantt.js` draws a run's Gantt from.

    Instants of bars are seconds since their round's start, of which seven digits are
    kept.

    Args:
        run: the finished run, or one with the tables of some of its rounds.
        label: its name on the page.
        words: round → why it took as long as it did.
        most_bars: about how many bars fit; of more, some rounds and clients are shown.
        kinds: clients' kinds of bars of the page, see `order_kinds`.
        all_arms: the arms of the page, so that each has one mark for all runs; empty:
            the run's own.
        capacities: link → (instants, bytes/s from then on) of links whose capacity
            varies; see `gantt_figure`.
    """
    shown = choose_rounds(run, most_bars)
    parts = run.participations[run.participations["round"].isin(shown["round"])]
    clients = choose_clients(parts, shown, most_bars)
    timeline = build_timeline_of_rounds(run, shown, clients)
    parts = parts[parts["client"].isin(clients)]
    parts = parts.sort_values(["round", "client"], kind="stable", ignore_index=True)
    edges = timeline.edges()
    nodes = list(edges["track"].unique())
    tracks = _list_tracks(timeline, nodes[:MOST_EDGE_SERVERS])
    own = tracks["client"].dropna()
    place_of = pd.Series(own.index, index=own.astype("int64"))
    round_of = pd.Series(np.arange(len(shown)), index=shown["round"].to_numpy())
    arms = frames.list_arms(run)
    shapes = choose_arm_shapes(all_arms or arms)
    critical = place_of.reindex(shown["critical_client"])
    counts = zip(shown["round"], shown["participants"], strict=True)
    return {
        "label": label,
        "seconds": run.seconds,
        "all": {
            "rounds": len(run.rounds),
            "last": int(run.rounds["round"].max()),
            "sampled": len(shown) < len(run.rounds),
            "clients": len(frames.list_clients(run)),
            "edges": len(nodes),
        },
        "edges": min(len(nodes), MOST_EDGE_SERVERS),
        "tracks": tracks.astype(object).where(tracks.notna(), None).to_dict("records"),
        "symbols": {
            arm: [shapes[arm][1], "#" + 3 * f"{round(255 * shapes[arm][2]):02x}"]
            for arm in arms
        },
        "lost": _describe_look(PHASES["dropped"]),
        "rounds": {
            "number": shown["round"].to_list(),
            "start": shown["started_at_s"].to_list(),
            "length": _shorten(shown["finished_at_s"] - shown["started_at_s"]),
            "critical": [None if math.isnan(at) else int(at) for at in critical],
            "words": [
                words.get(n, f"round {n}" + ": nobody was there" * (not count))
                for n, count in counts
            ],
        },
        "parts": {
            "round": round_of.reindex(parts["round"]).to_list(),
            "track": place_of.reindex(parts["client"]).to_list(),
            **{name: parts[name].to_list() for name in ("arm", "outcome", "choice")},
            "up": _shorten(parts["uplink_bytes"]),
            "down": _shorten(parts["downlink_bytes"]),
            "reward": _shorten(parts["reward"]),
        },
        **_list_bars(timeline, edges, tracks, parts, round_of, kinds),
        "links": [
            _describe_link(timeline, name, (capacities or {}).get(name))
            for name in timeline.links()
        ],
    }


def _shorten(values: Iterable[float]) -> list[float | None]:
    """Return numbers of seven digits, and None for those that JSON does not have."""
    return [float(f"{x:.7g}") if math.isfinite(x) else None for x in map(float, values)]


def _list_tracks(timeline: Timeline, nodes: Sequence[str]) -> pd.DataFrame:
    """Return name, group, client of rows from above: clients, server, edge servers."""
    clients = timeline.clients.rename(columns={"prototype": "group"})
    rows = [clients.assign(name=clients["client"].astype(str))]
    for group, names in (("server", ["server"]), ("edge servers", nodes)):
        rows.append(pd.DataFrame({"name": names, "group": group, "client": None}))
    columns = ["name", "group", "client"]
    return pd.concat([row.astype(object)[columns] for row in rows], ignore_index=True)


def order_kinds(runs: Iterable[Run]) -> list[str]:
    """Return the kinds of clients' bars of a page, methods' own kinds last."""
    tracks = [run.spans[run.spans["track"].str.startswith("client ")] for run in runs]
    further = {kind for spans in tracks for kind in spans["kind"]}
    return [*CLIENT_KINDS, *sorted(further.difference(CLIENT_KINDS))]


def choose_rounds(run: Run, most_bars: int) -> pd.DataFrame:
    """Return the rounds whose bars fit: rows of `rounds.parquet`, in order.

    These are all of them, or first, last, longest and some evenly between.

    Args:
        run: the run, with spans.
        most_bars: how many bars there may be, were all rounds alike.
    """
    rounds = run.rounds
    per_round = len(run.spans[run.spans["client"].notna()]) / max(1, len(rounds))
    room = max(1, int(most_bars / max(1.0, per_round)))
    if len(rounds) <= room:
        return rounds.reset_index(drop=True)
    by_length = np.argsort(-rounds["duration_s"].to_numpy(), kind="stable")
    longest = by_length[: room // 10]
    even = np.linspace(0, len(rounds) - 1, max(1, room - len(longest)))
    places = np.union1d(longest, even.round().astype(int))
    return rounds.iloc[places].reset_index(drop=True)


def choose_clients(
    parts: pd.DataFrame, rounds: pd.DataFrame, most_bars: int
) -> list[int]:
    """Return the ids of the clients whose bars fit, ascending.

    These are all of them, or those that held a round up and some evenly between.

    Args:
        parts: participations in the shown rounds.
        rounds: the shown rounds.
        most_bars: about how many bars there may be.
    """
    clients = np.unique(parts["client"].to_numpy())
    bars_each = _BARS_EACH * len(parts) / max(1, len(clients))
    room = int(most_bars / max(1.0, bars_each))
    # rounds were chosen to fit: this is about a vast one
    if len(clients) <= 1.2 * room:
        return [int(client) for client in clients]
    even = clients[np.linspace(0, len(clients) - 1, max(1, room)).round().astype(int)]
    critical = rounds["critical_client"].dropna().astype(int)
    return [int(client) for client in np.union1d(even, critical)]


def _list_bars(
    timeline: Timeline,
    edges: pd.DataFrame,
    tracks: pd.DataFrame,
    parts: pd.DataFrame,
    round_of: pd.Series,
    kinds: Sequence[str],
) -> Data:
    """Return the table of bars, in the order of their starts, and of their kinds.

    Args:
        timeline: the clients' bars and the server's, and when nobody was there.
        edges: `Timeline.edges`; those of servers without a track are left out.
        tracks: the rows of the chart, see `_list_tracks`.
        parts: participations, by whose places bars refer to them.
        round_of: round → its place among the shown ones.
        kinds: those of the page, see `order_kinds`.
    """
    own = timeline.bars["client"].notna()
    clients = timeline.bars["client"].astype("Int64").astype(str)
    bars = timeline.bars.assign(
        latency_s=timeline.latency_s(),
        track=clients.where(own, "server"),
        name=timeline.bars["kind"].where(~own),
    )
    beside: Data = {"latency_s": 0.0, "lost": False}
    edges = edges[edges["track"].isin(tracks["name"])].assign(**beside)
    nobody = timeline.absences().assign(track="server", look="absent", **beside)
    both = pd.concat([bars, edges, nobody] if len(nobody) else [bars, edges])
    both = both.sort_values("started_at_s", kind="stable", ignore_index=True)
    # an edge server may be called as a client's number is
    keys = zip(tracks["client"].notna(), tracks["name"], strict=True)
    place = dict(zip(keys, tracks.index, strict=True))
    sought = zip(both["client"].notna(), both["track"], strict=True)
    known = looks([*kinds, *both["look"], "server"])
    words = both["name"].astype(object).where(both["name"].notna(), None)
    named = list(zip(both["look"], words, strict=True))
    listed = sorted(dict.fromkeys(named), key=lambda pair: list(known).index(pair[0]))
    code = {pair: i for i, pair in enumerate(listed)}
    at = round_of.reindex(both["round"]).to_numpy()
    starts_s = timeline.rounds["started_at_s"].to_numpy()[at]
    return {
        "kinds": [
            {**_describe_look(known[look]), **({"label": word} if word else {})}
            for look, word in listed
        ],
        "bars": {
            "track": [place[key] for key in sought],
            "round": at.tolist(),
            "kind": [code[pair] for pair in named],
            "part": _find_parts(both, parts),
            "start": _shorten(both["started_at_s"] - starts_s),
            "length": _shorten(both["finished_at_s"] - both["started_at_s"]),
            "latency": _shorten(both["latency_s"]),
            "lost": both["lost"].astype(int).to_list(),
        },
    }


def _find_parts(bars: pd.DataFrame, parts: pd.DataFrame) -> list[int | None]:
    """Return the place of each bar's participation; None for servers' bars."""
    parts = keep_last_per_start(parts)
    keys = zip(parts["round"], parts["client"], parts["started_at_s"], strict=True)
    place = dict(zip(keys, parts.index, strict=True))
    sought = zip(bars["round"], bars["client"], bars["began_at_s"], strict=True)
    return [None if pd.isna(key[1]) else place[key] for key in sought]


def _describe_look(look: Phase) -> Data:
    """Return how `gantt.js` draws a kind of bar.

    A bar's own name may take the place of `label`; `legend` is the kind's.
    """
    return {
        "label": look.label,
        "legend": look.label,
        "colour": look.web,
        "pattern": look.pattern,
        "hatched": bool(look.pattern),
        "thin": look.name == "waiting",
    }


def _describe_link(timeline: Timeline, name: str, varies: frames.Steps | None) -> Data:
    """Return a link's use in pieces, bits per second, and its capacity as it steps.

    Args:
        timeline: the shown rounds; use outside of them is left out.
        name: the link's.
        varies: how its capacity steps, see `frames.compute_capacity_steps`; a capacity
            of too many steps is left out.
    """
    use = timeline.run.links[timeline.run.links["link"] == name].sort_values("from_s")
    starts = timeline.rounds["started_at_s"].to_numpy()
    ends = timeline.rounds["finished_at_s"].to_numpy()
    position = np.searchsorted(starts, use["from_s"], side="right") - 1
    pieces = use[(position >= 0) & (use["from_s"].to_numpy() < ends[position])]
    sliced = len(pieces) > MOST_LINK_PIECES
    if sliced:
        pieces = _slice_use(use, starts, ends)
    from_s, to_s = timeline.from_s, timeline.to_s
    at_s, capacity = frames.compute_capacity_steps(use, from_s, to_s, varies)
    if len(at_s) > 2 * MOST_LINK_PIECES:
        at_s, capacity = np.empty(0), np.empty(0)
    return {
        "name": name,
        "sliced": sliced,
        "from_s": pieces["from_s"].to_list(),
        "to_s": pieces["to_s"].to_list(),
        "rate": _shorten(8 * frames.compute_bytes_per_s(pieces)),
        "capacity": _shorten(8 * pieces["capacity_bytes_per_s"]),
        "step_at_s": [None if math.isnan(x) else float(x) for x in at_s],
        "step": _shorten(8 * capacity),
    }


def _slice_use(use: pd.DataFrame, starts: Any, ends: Any) -> pd.DataFrame:
    """Return the use of a link in equal slices of each round, its bytes conserved.

    Args:
        use: rows of one link, in order of time, that do not overlap; the bytes of each
            are spread evenly over it.
        starts: of the rounds, in seconds, shape (rounds,).
        ends: of the rounds.
    """
    share = np.linspace(0, 1, LINK_SLICES + 1)
    edges = starts[:, None] + (ends - starts)[:, None] * share
    after = np.cumsum(use["bytes"].to_numpy())
    reached = np.interp(
        edges.ravel(),
        use[["from_s", "to_s"]].to_numpy().ravel(),
        np.stack([after - use["bytes"], after], axis=1).ravel(),
        left=0.0,
    )
    at = np.searchsorted(use["from_s"], edges[:, :-1].ravel(), side="right")
    capacity = use["capacity_bytes_per_s"].to_numpy()[np.maximum(at - 1, 0)]
    return pd.DataFrame(
        {
            "from_s": edges[:, :-1].ravel(),
            "to_s": edges[:, 1:].ravel(),
            "bytes": np.diff(reached.reshape(edges.shape)).ravel(),
            "capacity_bytes_per_s": capacity,
        }
    )
