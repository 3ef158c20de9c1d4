"""Traces of runs for Perfetto and chrome://tracing: gzipped JSON.

The format is Google's "Trace Event Format". Every client is a process with lanes
(threads) for its compute, downlink, uplink and idle time; slices of one lane never
overlap. The server has lanes for rounds, merges and work. Arrows lead from each upload
to the merge that used it. Counters show active transfers and the use of shared links.

Time stamps are whole nanoseconds, written as microseconds; rounding moves an instant by
at most half a nanosecond.

`list_events` is the order of a trace: names of processes, then the server's, clients',
edge servers' and the network's events. Slices that a span gives as it stands come from
`_list_slices`.
"""

from __future__ import annotations

import gzip
import itertools
import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from simfed.ground.writing import replacing, writing
from simfed.record.schema import LANE
from simfed.record.summary import explain_rounds
from simfed.report import frames
from simfed.report.timeline import began_at_s, keep_last_per_start, select_rounds

if TYPE_CHECKING:
    from simfed.record.read import Run

Event = dict[str, Any]
"""An entry of the trace, as JSON has it."""
Instants = np.ndarray[Any, np.dtype[np.int64]]
"""Whole nanoseconds."""

_SERVER, _NETWORK, _CLIENTS = 1, 2, 10
"""Process ids; client c is process _CLIENTS + c."""
_CLIENT_LANES = ("compute", "downlink", "uplink", "idle")
_SERVER_LANES = ("rounds", "merges", "work")
_EDGE_LANES = ("work", "downlink", "uplink", "clients")
_LANE = {"download": 1, "upload": 2, "waiting": 3, "offline": 3}
"""The lane of each kind; every other kind is work: lane 0."""
_FACTS = {
    "download": ("downlink_bytes", "model_version"),
    "training": ("local_loss",),
    "compression": ("arm", "k", "choice"),
    "upload": ("uplink_bytes", "arm", "outcome", "gain", "reward", "slack_s"),
    "offline": ("outcome",),
}
"""The columns of its participation that a slice carries as arguments."""


def write_trace(
    run: Run, path: str | os.PathLike[str], *, rounds: tuple[int, int] | None = None
) -> Path:
    """Write the trace of some rounds as `*.json.gz`, and return its path.

    The same run gives the same bytes.

    Args:
        run: the finished run.
        path: of the file; what lies there is replaced once the new one is whole.
        rounds: first and last, both included; None: all.
    """
    path = Path(path)
    # mtime 0: the same run gives the same bytes
    with (
        writing(path),
        replacing(path) as whole,
        whole.open("wb") as raw,
        gzip.GzipFile(
            fileobj=raw, mode="wb", mtime=0, filename="", compresslevel=6
        ) as file,
    ):
        file.write(b'{"displayTimeUnit":"ms","otherData":')
        file.write(_encode_json(_collect_provenance(run)))
        file.write(b',"traceEvents":[\n')
        lines = map(_encode_json, list_events(run, rounds))
        separator = b""
        # gzip is slow on small writes
        while block := list(itertools.islice(lines, 4096)):
            file.write(separator + b",\n".join(block))
            separator = b",\n"
        file.write(b"\n]}\n")
    return path


def list_events(run: Run, rounds: tuple[int, int] | None = None) -> Iterator[Event]:
    """Yield the events of a trace.

    Args:
        run: the finished run.
        rounds: first and last, both included; None: all.
    """
    shown = select_rounds(run, rounds)
    edge_pids = _assign_edge_pids(run)
    yield from _name_processes(run, edge_pids)
    if shown.empty:
        return
    numbers = shown["round"].tolist()
    spans, parts = (run.frame(name, numbers) for name in ("spans", "participations"))
    merges = _find_merges(shown)
    yield from _list_server_events(run, shown, spans, merges)
    yield from _list_client_events(spans, parts, merges)
    edges = spans[spans["track"].isin(edge_pids)]
    waits = edges["kind"] == "waiting"
    edges = edges.assign(
        pid=edges["track"].map(edge_pids),
        lane=edges["kind"].map(_LANE).fillna(0),
        title=edges["name"].where(waits, edges["kind"]),
        name=edges["name"].mask(waits),
    )
    yield from _list_slices(edges, "name", "round", "client")
    yield from _list_network_events(run, shown, spans)


def _collect_provenance(run: Run) -> dict[str, str]:
    """Return where a trace comes from: run, fingerprint, seed, version."""
    return {
        "run": frames.find_run_name(run),
        "fingerprint": run.fingerprint,
        "seed": str(run.manifest.get("seed", "")),
        "simfed": str(run.manifest.get("versions", run.manifest).get("simfed", "")),
    }


def _round_to_ns(seconds: Any) -> Instants:
    """Return seconds as the nearest whole nanoseconds."""
    return np.rint(np.asarray(seconds, dtype=float) * 1e9).astype(np.int64)


def _read_ends(spans: pd.DataFrame) -> tuple[Instants, Instants]:
    """Return when spans or rounds begin and when they end, in nanoseconds."""
    return _round_to_ns(spans["started_at_s"]), _round_to_ns(spans["finished_at_s"])


def _build_slice(
    name: str, pid: int, lane: int, start_ns: int, end_ns: int, args: Event
) -> Event:
    """Return an interval of a lane; `args` are what its details show."""
    where = {"cat": "simfed", "pid": pid, "tid": _compute_tid(pid, lane)}
    when = {"ts": int(start_ns) / 1000, "dur": int(end_ns - start_ns) / 1000}
    return {"ph": "X", "name": name, **where, **when, "args": args}


def _build_counter(name: str, at_ns: int, unit: str, value: float) -> Event:
    """Return what a counter of the network says from an instant on.

    Viewers show a counter as its name followed by the unit: `edge-2 use Mbps`.
    """
    where = {"pid": _NETWORK, "ts": int(at_ns) / 1000}
    return {"ph": "C", "name": name, **where, "args": {unit: value}}


def _compute_tid(pid: int, lane: int) -> int:
    """Return a thread id that no two processes share."""
    return 10 * pid + lane + 1


def _name_processes(run: Run, edge_pids: Mapping[str, int]) -> Iterator[Event]:
    """Yield the names of processes and of their lanes, and their order on screen."""
    processes: dict[int, tuple[str, tuple[str, ...]]] = {
        _SERVER: ("server", _SERVER_LANES),
        _NETWORK: ("network", ()),
    }
    for client, prototype in frames.list_clients(run).itertuples(index=False):
        processes[_CLIENTS + client] = (f"client {client} ({prototype})", _CLIENT_LANES)
    for name, pid in edge_pids.items():
        processes[pid] = (name, _EDGE_LANES)
    for order, (pid, (name, lanes)) in enumerate(processes.items()):
        yield from _name_bearer("process", {"pid": pid}, name, order)
        for lane, title in enumerate(lanes):
            yield from _name_lane(pid, lane, title)


def _name_lane(pid: int, lane: int, title: str) -> Iterator[Event]:
    """Yield the name of a process's lane, and its place."""
    where = {"pid": pid, "tid": _compute_tid(pid, lane)}
    yield from _name_bearer("thread", where, title, lane)


def _name_bearer(kind: str, where: Event, name: str, order: int) -> Iterator[Event]:
    """Yield the name of a process or thread, and its place among its like."""
    yield {"ph": "M", "name": f"{kind}_name", **where, "args": {"name": name}}
    place = {"sort_index": order}
    yield {"ph": "M", "name": f"{kind}_sort_index", **where, "args": place}


def _find_merges(rounds: pd.DataFrame) -> Instants:
    """Return begin and end of each round's merge, in ns, shape (rounds, 2).

    A merge has at least 1 ns, and they follow one another.
    """
    begin = _round_to_ns(rounds["finished_at_s"] - rounds["server_s"])
    end = _round_to_ns(rounds["finished_at_s"])
    for i in range(len(begin)):
        if i:
            begin[i] = max(begin[i], end[i - 1])
        end[i] = max(end[i], begin[i] + 1)
    return np.stack([begin, end], axis=1)


def _list_slices(spans: pd.DataFrame, *facts: str) -> Iterator[Event]:
    """Yield a slice for each span.

    Args:
        spans: rows of `spans.parquet` with the further columns `pid`, `lane` and
            `title`.
        facts: the columns that become arguments.
    """
    places = spans[["title", "pid", "lane"]].itertuples(index=False)
    rows = spans[list(facts)].to_dict("records")
    for (title, pid, lane), row, start, end in zip(
        places, rows, *_read_ends(spans), strict=True
    ):
        yield _build_slice(str(title), pid, int(lane), start, end, _build_args(row))


def _list_server_events(
    run: Run, rounds: pd.DataFrame, spans: pd.DataFrame, merges: Instants
) -> Iterator[Event]:
    """Yield the server's rounds, with why each took so long, its merges and its work.

    Args:
        run: for the words.
        rounds: the shown rows of `rounds.parquet`.
        spans: of these rounds.
        merges: see `_find_merges`.
    """
    words = explain_rounds(run.table, set(rounds["round"].tolist()))
    facts = rounds.drop(columns=["started_at_s", "finished_at_s"]).to_dict("records")
    for row, start, end, (begun, merged) in zip(
        facts, *_read_ends(rounds), merges.tolist(), strict=True
    ):
        number, args = row["round"], _build_args(row)
        if number in words:
            args["because"] = words[number]
        yield _build_slice(f"round {number}", _SERVER, 0, start, end, args)
        name = "merge, rolled back" if row["rolled_back"] else "merge"
        yield _build_slice(name, _SERVER, 1, begun, merged, {"round": number})
    work = spans[spans["track"] == "server"]
    work = work.assign(title=work["kind"], pid=_SERVER, lane=2)
    yield from _list_slices(work, "round", "client")


def _list_client_events(
    every: pd.DataFrame, parts: pd.DataFrame, merges: Instants
) -> Iterator[Event]:
    """Yield clients' slices, and an arrow from each merged upload to its merge.

    Args:
        every: all spans of the shown rounds.
        parts: the participations in these rounds.
        merges: see `_find_merges`.
    """
    aside = every["track"].str.contains(LANE, regex=False)
    yield from _list_side_events(every[aside])
    spans = every[every["track"].str.startswith("client ") & ~aside]
    facts = _collect_facts(parts)
    starts, ends = _read_ends(spans)
    # 1 µs: the last upload ends when the merge begins, up to rounding
    merge_of = np.searchsorted(merges[:, 0], ends - 1000)
    began = began_at_s(spans, parts)
    keys = (spans["kind"], spans["round"], spans["client"], began)
    flows = itertools.count(1)
    for kind, number, client, began_s, start, end, merge in zip(
        *keys, starts, ends, merge_of, strict=True
    ):
        pid, lane = _CLIENTS + int(client), _LANE.get(kind, 0)
        row = facts.get((int(number), int(client), began_s), {})
        told = {name: row[name] for name in _FACTS.get(kind, ()) if name in row}
        yield _build_slice(kind, pid, lane, start, end, {"round": int(number), **told})
        merged = row.get("outcome") in ("aggregated", "late") and merge < len(merges)
        if kind == "upload" and merged and end > start:
            into = int(merges[merge, 0])
            leaves = max(int(start), min(int(end) - 1, into))
            arrow = {"name": "upload", "cat": "merge", "id": next(flows)}
            tail = {"pid": pid, "tid": _compute_tid(pid, lane), "ts": leaves / 1000}
            head = {"pid": _SERVER, "tid": _compute_tid(_SERVER, 1), "ts": into / 1000}
            yield {"ph": "s", **arrow, **tail}
            yield {"ph": "f", "bp": "e", **arrow, **head}


def _list_side_events(spans: pd.DataFrame) -> Iterator[Event]:
    """Yield events beside clients' own lanes, and the names of the lanes they need.

    They are uploads in chunks, on a lane of the client's, and the server's work within
    participations, on one of the server's.
    """
    title = spans["track"].str.split(LANE).str[1]
    on_link = title == "link"
    pid = (_CLIENTS + spans["client"].astype("int64")).where(on_link, _SERVER)
    lane = on_link.map({True: len(_CLIENT_LANES), False: len(_SERVER_LANES)})
    for place in dict.fromkeys(zip(pid, lane, title, strict=True)):
        yield from _name_lane(*place)
    spans = spans.assign(title=spans["kind"], pid=pid, lane=lane)
    yield from _list_slices(spans, "round", "client")


def _assign_edge_pids(run: Run) -> dict[str, int]:
    """Return the process of each edge server, after those of the clients."""
    first = _CLIENTS + 1 + max(map(int, frames.list_clients(run)["client"]), default=0)
    return {name: first + k for k, name in enumerate(frames.edge_servers(run))}


def _collect_facts(parts: pd.DataFrame) -> dict[tuple[int, int, float], Event]:
    """Return (round, client, start) → what its slices may say; empty cells left out."""
    names = sorted(set(itertools.chain.from_iterable(_FACTS.values())))
    rows = keep_last_per_start(parts)
    keys = (rows[name].tolist() for name in ("round", "client", "started_at_s"))
    facts = map(_build_args, rows[names].to_dict("records"))
    return dict(zip(zip(*keys, strict=True), facts, strict=True))


def _list_network_events(
    run: Run, rounds: pd.DataFrame, spans: pd.DataFrame
) -> Iterator[Event]:
    """Yield active transfers, and the use of links that several transfers share.

    A link that carries one transfer at a time says nothing that its slices do not; it
    gets a counter only where there is no shared link at all.

    Args:
        run: where the use of links is recorded.
        rounds: the shown rows of `rounds.parquet`.
        spans: of these rounds.
    """
    from_s, to_s = rounds["started_at_s"].min(), rounds["finished_at_s"].max()
    moves = spans["kind"].isin(["download", "upload"]) & spans["client"].notna()
    at_ns = np.concatenate(_read_ends(spans[moves]))
    change = np.repeat([1, -1], moves.sum())
    instants, inverse = np.unique(at_ns, return_inverse=True)
    active = np.cumsum(np.bincount(inverse, weights=change, minlength=len(instants)))
    for instant, count in zip(instants, active, strict=True):
        yield _build_counter("active", instant, "transfers", int(count))
    use = run.links[(run.links["to_s"] > from_s) & (run.links["from_s"] < to_s)]
    if shared := frames.find_shared_links(use):
        use = use[use["link"].isin(shared)]
    for link, rows in use.groupby("link"):
        yield from _list_link_events(str(link), rows.sort_values("from_s"))


def _list_link_events(link: str, rows: pd.DataFrame) -> Iterator[Event]:
    """Yield a link's use, active transfers and capacity, where they change.

    Args:
        link: its name.
        rows: those of `links.parquet` about it, in order of time.
    """
    starts, ends = _round_to_ns(rows["from_s"]), _round_to_ns(rows["to_s"])
    mbps = 8e-6 * frames.compute_bytes_per_s(rows)
    capacity = 8e-6 * rows["capacity_bytes_per_s"].to_numpy()

    def tell_use(at_ns: int, use: float, flows: int) -> Iterator[Event]:
        yield _build_counter(f"{link} use", at_ns, "Mbps", use)
        yield _build_counter(f"{link} active", at_ns, "transfers", flows)

    for i, flows in enumerate(rows["flows"].tolist()):
        yield from tell_use(starts[i], float(mbps[i]), flows)
        most = float(capacity[i])
        if math.isfinite(most) and (i == 0 or most != capacity[i - 1]):
            yield _build_counter(f"{link} capacity", starts[i], "Mbps", most)
        if i + 1 == len(rows) or ends[i] < starts[i + 1]:
            yield from tell_use(ends[i], 0.0, 0)


def _build_args(row: Mapping[Any, Any]) -> Event:
    """Return the cells of a row that hold something, as JSON has them."""
    args: Event = {}
    for name, value in row.items():
        if pd.isna(value):
            continue
        plain = value.item() if isinstance(value, np.generic) else value
        endless = isinstance(plain, float) and math.isinf(plain)
        args[str(name)] = str(plain) if endless else plain
    return args


def _encode_json(value: object) -> bytes:
    """Return JSON without spaces; numbers that it does not have are an error."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()
