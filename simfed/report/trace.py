"""Traces of runs for Perfetto and chrome://tracing: gzipped JSON.

The format is Google's "Trace Event Format". Every client is a process with lanes
(threads) for its compute, downlink, uplink and idle time; slices of one lane never
overlap. The server has lanes for rounds, merges and work. Arrows lead from each upload
to the merge that used it. Counters show active transfers and the use of shared links.

Time stamps are whole nanoseconds, written as microseconds; rounding moves an instant by
at most half a nanosecond.
"""

from __future__ import annotations

import gzip
import itertools
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from simfed.ground.writing import replacing, writing
from simfed.record.schema import LANE
from simfed.record.summary import explain_rounds
from simfed.report import frames
from simfed.report.timeline import began_at_s, keep_last_per_start

if TYPE_CHECKING:
    from simfed.record.read import Run

Event = dict[str, Any]

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
    "waiting": (),
    "offline": ("outcome",),
}
"""The columns of its participation that a slice carries as arguments."""


def write_trace(
    run: Run, path: str | os.PathLike[str], *, rounds: tuple[int, int] | None = None
) -> Path:
    """Write the trace of some rounds as `*.json.gz`.

    `rounds`: first and last, both included; None: all.
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
    """Return the events of a trace, one at a time."""
    shown = (
        run.rounds
        if rounds is None
        else run.rounds[run.rounds["round"].between(*rounds)]
    )
    yield from _name_processes(run)
    if shown.empty:
        return
    merges = _find_merges(shown)
    yield from _list_server_events(run, shown, merges)
    yield from _list_client_events(run, shown, merges)
    yield from _list_edge_events(run, shown)
    yield from _list_network_events(run, shown)


def _collect_provenance(run: Run) -> dict[str, str]:
    return {
        "run": frames.find_run_name(run),
        "fingerprint": run.fingerprint,
        "seed": str(run.manifest.get("seed", "")),
        "simfed": str(run.manifest.get("versions", run.manifest).get("simfed", "")),
    }


def _round_to_ns(seconds: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.rint(np.asarray(seconds, dtype=float) * 1e9).astype(np.int64)


def _build_slice(
    name: str, pid: int, lane: int, start_ns: int, end_ns: int, args: Event
) -> Event:
    where = {"cat": "simfed", "pid": pid, "tid": _compute_tid(pid, lane)}
    when = {"ts": int(start_ns) / 1000, "dur": int(end_ns - start_ns) / 1000}
    return {"ph": "X", "name": name, **where, **when, "args": args}


def _build_counter(name: str, pid: int, at_ns: int, unit: str, value: float) -> Event:
    """Viewers show a counter as its name followed by the unit: `edge-2 use Mbps`."""
    return {
        "ph": "C",
        "name": name,
        "pid": pid,
        "ts": int(at_ns) / 1000,
        "args": {unit: value},
    }


def _compute_tid(pid: int, lane: int) -> int:
    """Return a thread id that no two processes share."""
    return 10 * pid + lane + 1


def _name_processes(run: Run) -> Iterator[Event]:
    processes = {
        _SERVER: ("server", _SERVER_LANES),
        _NETWORK: ("network", ()),
    }
    for client, prototype in frames.list_clients(run).itertuples(index=False):
        processes[_CLIENTS + client] = (f"client {client} ({prototype})", _CLIENT_LANES)
    for name, pid in _assign_edge_pids(run).items():
        processes[pid] = (name, _EDGE_LANES)
    for order, (pid, (name, lanes)) in enumerate(processes.items()):
        yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}
        yield {
            "ph": "M",
            "name": "process_sort_index",
            "pid": pid,
            "args": {"sort_index": order},
        }
        for lane, title in enumerate(lanes):
            thread = {"pid": pid, "tid": _compute_tid(pid, lane)}
            yield {"ph": "M", "name": "thread_name", **thread, "args": {"name": title}}
            yield {
                "ph": "M",
                "name": "thread_sort_index",
                **thread,
                "args": {"sort_index": lane},
            }


def _find_merges(rounds: pd.DataFrame) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return begin and end of each round's merge, in ns, shape (rounds, 2).

    A merge has at least 1 ns, and they follow one another.
    """
    begin, end = (
        _round_to_ns(rounds["finished_at_s"] - rounds["server_s"]),
        _round_to_ns(rounds["finished_at_s"]),
    )
    for i in range(len(begin)):
        if i:
            begin[i] = max(begin[i], end[i - 1])
        end[i] = max(end[i], begin[i] + 1)
    return np.stack([begin, end], axis=1)


def _list_server_events(
    run: Run, rounds: pd.DataFrame, merges: np.ndarray[Any, Any]
) -> Iterator[Event]:
    words = explain_rounds(run.table, set(rounds["round"].tolist()))
    starts, ends = (
        _round_to_ns(rounds["started_at_s"]),
        _round_to_ns(rounds["finished_at_s"]),
    )
    facts = rounds.drop(columns=["started_at_s", "finished_at_s"])
    for i, row in enumerate(facts.to_dict("records")):
        name, args = f"round {row['round']}", _build_args(row)
        if row["round"] in words:
            args["because"] = words[row["round"]]
        yield _build_slice(name, _SERVER, 0, starts[i], ends[i], args)
        merge = "merge, rolled back" if row["rolled_back"] else "merge"
        yield _build_slice(
            merge, _SERVER, 1, merges[i, 0], merges[i, 1], {"round": row["round"]}
        )
    spans = run.spans[
        (run.spans["track"] == "server") & run.spans["round"].isin(rounds["round"])
    ]
    starts, ends = (
        _round_to_ns(spans["started_at_s"]),
        _round_to_ns(spans["finished_at_s"]),
    )
    columns = spans[["kind", "round", "client"]].to_dict("records")
    for row, start, end in zip(columns, starts, ends, strict=True):
        yield _build_slice(
            str(row.pop("kind")), _SERVER, 2, start, end, _build_args(row)
        )


def _list_client_events(
    run: Run, rounds: pd.DataFrame, merges: np.ndarray[Any, Any]
) -> Iterator[Event]:
    every = run.spans[run.spans["round"].isin(rounds["round"])]
    aside = every["track"].str.contains(LANE, regex=False)
    yield from _list_side_events(every[aside])
    spans = every[every["track"].str.startswith("client ") & ~aside]
    facts = _collect_facts(run, rounds)
    began = began_at_s(spans, run.participations)
    starts, ends = (
        _round_to_ns(spans["started_at_s"]),
        _round_to_ns(spans["finished_at_s"]),
    )
    # 1 µs: the last upload ends when the merge begins, up to rounding
    merge_of = np.searchsorted(merges[:, 0], ends - 1000)
    flow = 0
    keys = zip(
        spans["kind"],
        spans["round"],
        spans["client"],
        began,
        starts,
        ends,
        merge_of,
        strict=True,
    )
    for kind, number, client, began_s, start, end, merge in keys:
        pid, lane = _CLIENTS + int(client), _LANE.get(kind, 0)
        row = facts.get((int(number), int(client), began_s), {})
        args = {"round": int(number)} | {
            name: row[name] for name in _FACTS.get(kind, ()) if name in row
        }
        yield _build_slice(kind, pid, lane, start, end, args)
        merged = row.get("outcome") in ("aggregated", "late") and merge < len(merges)
        if kind == "upload" and merged and end > start:
            flow += 1
            into = int(merges[merge, 0])
            arrow = {"name": "upload", "cat": "merge", "id": flow}
            leaves = max(int(start), min(int(end) - 1, into))
            yield {
                "ph": "s",
                **arrow,
                "pid": pid,
                "tid": _compute_tid(pid, lane),
                "ts": leaves / 1000,
            }
            arrives = {
                "pid": _SERVER,
                "tid": _compute_tid(_SERVER, 1),
                "ts": into / 1000,
            }
            yield {"ph": "f", "bp": "e", **arrow, **arrives}


def _list_side_events(spans: pd.DataFrame) -> Iterator[Event]:
    """Yield events beside clients' own lanes.

    They are uploads in chunks, and the server's work within participations.
    """
    named = set()
    starts, ends = (
        _round_to_ns(spans["started_at_s"]),
        _round_to_ns(spans["finished_at_s"]),
    )
    rows = zip(
        spans["track"],
        spans["kind"],
        spans["client"],
        spans["round"],
        starts,
        ends,
        strict=True,
    )
    for track, kind, client, number, start, end in rows:
        title = track.split(LANE)[1]
        pid, lane = _SERVER, len(_SERVER_LANES)
        if title == "link":
            pid, lane = _CLIENTS + int(client), len(_CLIENT_LANES)
        if (pid, lane) not in named:
            named.add((pid, lane))
            thread = {"pid": pid, "tid": _compute_tid(pid, lane)}
            yield {"ph": "M", "name": "thread_name", **thread, "args": {"name": title}}
            yield {
                "ph": "M",
                "name": "thread_sort_index",
                **thread,
                "args": {"sort_index": lane},
            }
        args = {"round": int(number), "client": int(client)}
        yield _build_slice(str(kind), pid, lane, start, end, args)


def _assign_edge_pids(run: Run) -> dict[str, int]:
    """Return the process of each edge server, after those of the clients."""
    first = _CLIENTS + 1 + max(map(int, frames.list_clients(run)["client"]), default=0)
    return {name: first + k for k, name in enumerate(frames.edge_servers(run))}


def _list_edge_events(run: Run, rounds: pd.DataFrame) -> Iterator[Event]:
    pids = _assign_edge_pids(run)
    spans = run.spans[
        run.spans["track"].isin(pids) & run.spans["round"].isin(rounds["round"])
    ]
    starts, ends = (
        _round_to_ns(spans["started_at_s"]),
        _round_to_ns(spans["finished_at_s"]),
    )
    columns = spans[["track", "kind", "name", "round", "client"]].to_dict("records")
    for row, start, end in zip(columns, starts, ends, strict=True):
        kind, pid = str(row.pop("kind")), pids[row.pop("track")]
        name = str(row.pop("name")) if kind == "waiting" else kind
        yield _build_slice(name, pid, _LANE.get(kind, 0), start, end, _build_args(row))


def _collect_facts(
    run: Run, rounds: pd.DataFrame
) -> dict[tuple[int, int, float], Event]:
    """Return (round, client, start) → what its slices may say; empty cells left out."""
    names = sorted({name for columns in _FACTS.values() for name in columns})
    rows = keep_last_per_start(
        run.participations[run.participations["round"].isin(rounds["round"])]
    )
    keys = zip(
        *(rows[name].tolist() for name in ("round", "client", "started_at_s")),
        strict=True,
    )
    return dict(
        zip(keys, map(_build_args, rows[names].to_dict("records")), strict=True)
    )


def _list_network_events(run: Run, rounds: pd.DataFrame) -> Iterator[Event]:
    """Yield active transfers, and the use of links that several transfers share.

    A link that carries one transfer at a time says nothing that its slices do not; it
    gets a counter only where there is no shared link at all.
    """
    from_s, to_s = rounds["started_at_s"].min(), rounds["finished_at_s"].max()
    spans = run.spans[
        run.spans["kind"].isin(["download", "upload"]) & run.spans["client"].notna()
    ]
    spans = spans[spans["round"].isin(rounds["round"])]
    at_ns = np.concatenate(
        [_round_to_ns(spans["started_at_s"]), _round_to_ns(spans["finished_at_s"])]
    )
    change = np.repeat([1, -1], len(spans))
    instants, inverse = np.unique(at_ns, return_inverse=True)
    active = np.cumsum(np.bincount(inverse, weights=change, minlength=len(instants)))
    for instant, count in zip(instants, active, strict=True):
        yield _build_counter("active", _NETWORK, instant, "transfers", int(count))
    use = run.links[(run.links["to_s"] > from_s) & (run.links["from_s"] < to_s)]
    shared = frames.find_shared_links(use)
    for link, rows in (use[use["link"].isin(shared)] if shared else use).groupby(
        "link"
    ):
        yield from _list_link_events(str(link), rows.sort_values("from_s"))


def _list_link_events(link: str, rows: pd.DataFrame) -> Iterator[Event]:
    starts, ends = _round_to_ns(rows["from_s"]), _round_to_ns(rows["to_s"])
    mbps = 8e-6 * frames.compute_bytes_per_s(rows)
    capacity = 8e-6 * rows["capacity_bytes_per_s"].to_numpy()
    for i, flows in enumerate(rows["flows"].tolist()):
        yield _build_counter(f"{link} use", _NETWORK, starts[i], "Mbps", float(mbps[i]))
        yield _build_counter(f"{link} active", _NETWORK, starts[i], "transfers", flows)
        if math.isfinite(capacity[i]) and (i == 0 or capacity[i] != capacity[i - 1]):
            yield _build_counter(
                f"{link} capacity", _NETWORK, starts[i], "Mbps", float(capacity[i])
            )
        if i + 1 == len(rows) or ends[i] < starts[i + 1]:
            yield _build_counter(f"{link} use", _NETWORK, ends[i], "Mbps", 0.0)
            yield _build_counter(f"{link} active", _NETWORK, ends[i], "transfers", 0)


def _build_args(row: Event) -> Event:
    args = {}
    for name, value in row.items():
        if pd.isna(value):
            continue
        plain = value.item() if isinstance(value, np.generic) else value
        args[str(name)] = (
            str(plain) if isinstance(plain, float) and math.isinf(plain) else plain
        )
    return args


def _encode_json(value: object) -> bytes:
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()
