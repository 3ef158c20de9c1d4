"""The timeline's data for the HTML report: every bar of a run as a few packed columns.

The page draws bars, bands or a part of them out of these; how much fits a page is decided here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from simfed.record.schema import CHOICES, CLIENT_KINDS, OUTCOMES
from simfed.report import frames
from simfed.report.panels import pack_numbers, plain
from simfed.report.style import choose_arm_shapes, looks
from simfed.report.timeline import Timeline, build_timeline_of_rounds, keep_last_per_start

if TYPE_CHECKING:
    from simfed.record.read import Run

MOST_BARS = 120_000
"""Bars that a page carries, over all its runs: about 2 MB of it."""
MOST_LINK_PIECES = 12_000
"""Pieces of one link's use that a page carries exactly."""
MOST_EDGE_SERVERS = 60
"""Of a page's timeline."""
_BARS_EACH = 5
"""Bars of a participation, about."""
LINK_SLICES = 40
"""Equal slices per round in place of more pieces than that."""

Data = dict[str, Any]


def build_timeline_data(
    run: Run,
    label: str,
    words: Mapping[int, str],
    most_bars: int = MOST_BARS,
    kinds: Sequence[str] = CLIENT_KINDS,
    all_arms: Sequence[str] = (),
    capacities: Mapping[str, frames.Steps] | None = None,
) -> Data:
    """What `timeline.js` draws a run's timeline from; columns are packed arrays, rows are in step.
    `kinds` and `all_arms`: those of the page, see `order_kinds`; the run's own arms where there are
    none.

    Instants of bars are seconds since their round's start: near it they keep their digits in four
    bytes.
    """
    shown = choose_rounds(run, most_bars)
    parts = run.participations[run.participations["round"].isin(shown["round"])]
    clients = choose_clients(parts, shown, most_bars)
    timeline = build_timeline_of_rounds(run, shown, clients)
    parts = parts[parts["client"].isin(clients)]
    row_of = pd.Series(timeline.clients.index, index=timeline.clients["client"])
    round_of = pd.Series(np.arange(len(shown)), index=shown["round"].to_numpy())
    arms = frames.list_arms(run)
    shapes = choose_arm_shapes(all_arms or arms)
    prototypes = list(dict.fromkeys(timeline.clients["prototype"]))
    parts = parts.assign(
        row=row_of.reindex(parts["client"]).to_numpy(),
        at=round_of.reindex(parts["round"]).to_numpy(),
    ).sort_values(["at", "row"], kind="stable", ignore_index=True)
    return {
        "label": plain(label),
        "seconds": run.seconds,
        "allRounds": len(run.rounds),
        "allClients": len(frames.list_clients(run)),
        "prototypes": [plain(name) for name in prototypes],
        "arms": [
            {"name": plain(arm), "symbol": shapes[arm][1], "fill": _format_grey(shapes[arm][2])}
            for arm in arms
        ],
        "clients": {
            "id": pack_numbers(timeline.clients["client"], "u4"),
            "prototype": pack_numbers(timeline.clients["prototype"].map(prototypes.index), "u1"),
        },
        "rounds": {
            "number": pack_numbers(shown["round"], "u4"),
            "start": pack_numbers(shown["started_at_s"], "f8"),
            "length": pack_numbers(shown["finished_at_s"] - shown["started_at_s"], "f8"),
            "critical": pack_numbers(
                row_of.reindex(shown["critical_client"].fillna(-1)).fillna(-1), "i4"
            ),
            "words": [plain(words.get(number, f"round {number}")) for number in shown["round"]],
        },
        "parts": {
            "round": pack_numbers(parts["at"], "u2"),
            "row": pack_numbers(parts["row"], "u4"),
            "arm": pack_numbers(parts["arm"].map({arm: i for i, arm in enumerate(arms)}), "u1"),
            "outcome": pack_numbers(parts["outcome"].map(OUTCOMES.index), "u1"),
            "choice": pack_numbers(parts["choice"].map(CHOICES.index), "u1"),
            "up": pack_numbers(parts["uplink_bytes"]),
            "down": pack_numbers(parts["downlink_bytes"]),
            "reward": pack_numbers(parts["reward"].astype(float)),
        },
        **_pack_bars(timeline, parts, round_of, kinds),
        "edges": _pack_edges(timeline, round_of, kinds),
        "links": [
            _pack_link(timeline, name, (capacities or {}).get(name)) for name in timeline.links()
        ],
    }


def _format_grey(white: float) -> str:
    return "#" + 3 * f"{round(255 * white):02x}"


def order_kinds(runs: Iterable[Run]) -> list[str]:
    """Codes of the kinds of bars of a page: places in this list, methods' own kinds last."""
    tracks = [run.spans[run.spans["track"].str.startswith("client ")] for run in runs]
    further = {kind for spans in tracks for kind in spans["kind"]}.difference(CLIENT_KINDS)
    return [*CLIENT_KINDS, "server", "dropped", *sorted(further)]


def build_legend(kinds: Sequence[str]) -> Data:
    """The phases' looks and the words behind the codes; the same for every run of a page."""
    return {
        "kinds": [
            {
                "name": plain(look.name),
                "label": plain(look.label),
                "colour": look.web,
                "pattern": look.pattern,
            }
            for look in looks(kinds).values()
        ],
        "outcomes": list(OUTCOMES),
        "choices": list(CHOICES),
    }


def choose_rounds(run: Run, most_bars: int) -> pd.DataFrame:
    """The rounds whose bars fit: all of them, or first, last, longest and some evenly between."""
    rounds = run.rounds
    per_round = len(run.spans[run.spans["client"].notna()]) / max(1, len(rounds))
    room = max(1, int(most_bars / max(1.0, per_round)))
    if len(rounds) <= room:
        return rounds.reset_index(drop=True)
    longest = np.argsort(-rounds["duration_s"].to_numpy(), kind="stable")[: room // 10]
    even = np.linspace(0, len(rounds) - 1, max(1, room - len(longest))).round().astype(int)
    return rounds.iloc[np.union1d(longest, even)].reset_index(drop=True)


def choose_clients(parts: pd.DataFrame, rounds: pd.DataFrame, most_bars: int) -> list[int]:
    """The clients whose bars fit: all of them, or those that held a round up and some evenly
    between."""
    clients = np.unique(parts["client"].to_numpy())
    bars_each = _BARS_EACH * len(parts) / max(1, len(clients))
    room = int(most_bars / max(1.0, bars_each))
    if len(clients) <= 1.2 * room:  # rounds were chosen to fit: this is about a single vast one
        return [int(client) for client in clients]
    even = clients[np.linspace(0, len(clients) - 1, max(1, room)).round().astype(int)]
    return [int(c) for c in np.union1d(even, rounds["critical_client"].dropna().astype(int))]


def _pack_bars(
    timeline: Timeline, parts: pd.DataFrame, round_of: pd.Series, on_page: Sequence[str]
) -> Data:
    bars = timeline.bars
    at = round_of.reindex(bars["round"]).to_numpy()
    starts = timeline.rounds["started_at_s"].to_numpy()[at]
    start = bars["started_at_s"].to_numpy() - starts
    length = (bars["finished_at_s"] - bars["started_at_s"]).to_numpy()
    server = bars["client"].isna().to_numpy()
    parts = keep_last_per_start(parts)
    part_of = pd.Series(
        parts.index, index=pd.MultiIndex.from_frame(parts[["round", "client", "started_at_s"]])
    )
    keys = pd.MultiIndex.from_frame(
        bars.loc[~server, ["round", "client", "began_at_s"]].astype({"round": int, "client": int})
    )
    kinds = bars["kind"].map({kind: i for i, kind in enumerate(on_page)})
    names = list(dict.fromkeys(bars.loc[server, "kind"]))
    return {
        "bars": {
            "part": pack_numbers(part_of.reindex(keys).to_numpy(), "u4"),
            "kind": pack_numbers(kinds[~server], "u1"),
            "start": pack_numbers(start[~server]),
            "length": pack_numbers(length[~server]),
            "latency": pack_numbers(timeline.latency_s()[~server]),
        },
        "server": {
            "names": [plain(name) for name in names],
            "round": pack_numbers(at[server], "u2"),
            "name": pack_numbers(bars.loc[server, "kind"].map(names.index), "u1"),
            "start": pack_numbers(start[server]),
            "length": pack_numbers(length[server]),
        },
    }


def _pack_edges(timeline: Timeline, round_of: pd.Series, on_page: Sequence[str]) -> Data:
    """What edge servers did: transfers, waiting for their clients, work of their own."""
    spans = timeline.edges()
    names = list(dict.fromkeys(spans["track"]))
    spans = spans[spans["track"].isin(names[:MOST_EDGE_SERVERS])]
    at = round_of.reindex(spans["round"]).to_numpy()
    shown = spans["kind"].where(spans["kind"].isin(["download", "upload", "waiting"]), "server")
    words = list(dict.fromkeys(spans["name"]))
    return {
        "count": len(names),
        "names": [plain(name) for name in names[:MOST_EDGE_SERVERS]],
        "words": [plain(word) for word in words],
        "node": pack_numbers(spans["track"].map(names.index), "u1"),
        "round": pack_numbers(at, "u2"),
        "kind": pack_numbers(shown.map(list(on_page).index), "u1"),
        "word": pack_numbers(spans["name"].map(words.index), "u2"),
        "start": pack_numbers(
            spans["started_at_s"].to_numpy() - timeline.rounds["started_at_s"].to_numpy()[at]
        ),
        "length": pack_numbers(spans["finished_at_s"] - spans["started_at_s"]),
    }


def _pack_link(timeline: Timeline, name: str, varies: frames.Steps | None = None) -> Data:
    use = timeline.run.links[timeline.run.links["link"] == name].sort_values("from_s")
    rounds = timeline.rounds
    starts, ends = rounds["started_at_s"].to_numpy(), rounds["finished_at_s"].to_numpy()
    position = np.searchsorted(starts, use["from_s"].to_numpy(), side="right") - 1
    inside = (position >= 0) & (use["from_s"].to_numpy() < ends[position])
    pieces = use[inside]
    sliced = len(pieces) > MOST_LINK_PIECES
    if sliced:
        pieces = _slice_use(use, starts, ends)
    at_s, capacity = frames.compute_capacity_steps(use, timeline.from_s, timeline.to_s, varies)
    if len(at_s) > 2 * MOST_LINK_PIECES:
        at_s, capacity = np.empty(0), np.empty(0)
    return {
        "name": plain(name),
        "stepAt": pack_numbers(at_s, "f8"),
        "stepBitsPerS": pack_numbers(8 * capacity),
        "sliced": sliced,
        "from": pack_numbers(pieces["from_s"], "f8"),
        "to": pack_numbers(pieces["to_s"], "f8"),
        "bitsPerS": pack_numbers(8 * frames.compute_bytes_per_s(pieces)),
        "capacityBitsPerS": pack_numbers(8 * pieces["capacity_bytes_per_s"]),
    }


def _slice_use(use: pd.DataFrame, starts: Any, ends: Any) -> pd.DataFrame:
    """The use of a link in equal slices of each round; bytes are conserved."""
    share = np.linspace(0, 1, LINK_SLICES + 1)
    edges = starts[:, None] + (ends - starts)[:, None] * share
    moved = np.diff(
        frames.accumulate_amounts(use, use["bytes"].to_numpy(), edges.ravel()).reshape(edges.shape)
    )
    at = np.searchsorted(use["from_s"].to_numpy(), edges[:, :-1].ravel(), side="right") - 1
    capacity = use["capacity_bytes_per_s"].to_numpy()[np.maximum(at, 0)]
    return pd.DataFrame(
        {
            "from_s": edges[:, :-1].ravel(),
            "to_s": edges[:, 1:].ravel(),
            "bytes": moved.ravel(),
            "capacity_bytes_per_s": capacity,
        }
    )
