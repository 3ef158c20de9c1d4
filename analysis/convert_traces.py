"""From public records of when phones were there to `client, from_s, to_s`, for
`availability: {trace: …}`.

    python analysis/convert_traces.py fedscale client_behave_trace online.csv
        [--until "30 d"]
    python analysis/convert_traces.py flash state_traces.json online.csv

*FedScale* (`client_behave_trace`, a pickle): a mapping of client id to `active` and
`inactive`, lists of seconds at which the client comes and goes, and `finish_time`,
after which its record repeats. Each `active` holds until the next `inactive`. `--until`
unrolls the repetition; once through without it.

*FLASH* (`state_traces.json`): a mapping of device to `messages`, lines of `YYYY-MM-DD
hh:mm:ss`, a tab and an event. A device is there while it is on the charger, on Wi-Fi,
and its screen is off or locked; a state holds until the next event about it, unknown is
no. Second 0 is midnight before the earliest event of the file. Lines that are no event
are left out and counted.

Clients are numbered from 0 in the order of their ids in the source; those that are
never there have no row. No foreign file is run: JSON is data, and of a pickle only
builtin containers, texts and numbers are read: a file that names any class or function
is refused. The files themselves are not shipped.
"""

from __future__ import annotations

import argparse
import bisect
import csv
import io
import json
import pickle
import sys
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from simfed.fleet.availability import read_trace
from simfed.ground.errors import InputError
from simfed.ground.inputs import explain_unreadable, read_text
from simfed.ground.units import parse_duration

Span = tuple[float, float]

_ABOUT: dict[str, tuple[str, bool]] = {
    "battery_charged_on": ("charging", True),
    "battery_charged_off": ("charging", False),
    "wifi": ("wifi", True),
    **dict.fromkeys(("2G", "3G", "4G", "5G", "unknown", "Unknown"), ("wifi", False)),
    "screen_off": ("screen off", True),
    "screen_on": ("screen off", False),
    "screen_lock": ("locked", True),
    "screen_unlock": ("locked", False),
}


class _Plain(pickle.Unpickler):
    """Builtin containers, texts and numbers need no name from any module.

    Nothing else is read.
    """

    def find_class(self, module: str, name: str) -> Any:
        raise InputError(
            "a pickle of builtin containers and numbers alone", got=f"{module}.{name}"
        )

    def persistent_load(self, pid: Any) -> Any:
        raise InputError(
            "a pickle of builtin containers and numbers alone", got="a reference"
        )


def read_plain_pickle(path: Path) -> Any:
    """What a pickle holds, if that is builtin containers, texts and numbers.

    Raises: `InputError`.
    """
    try:
        return _Plain(io.BytesIO(path.read_bytes())).load()
    except InputError as error:
        raise error.within(str(path)) from None
    except OSError as error:
        raise InputError(
            "a readable file", where=str(path), got=explain_unreadable(error)
        ) from None
    except Exception as error:  # a broken pickle raises whatever it likes
        raise InputError(
            "a pickle", where=str(path), got=type(error).__name__
        ) from None


def fedscale(record: Any, until_s: float | None) -> list[list[Span]]:
    """The intervals of each client of FedScale's record, in the order of ids."""
    if not isinstance(record, Mapping) or not record:
        raise InputError(
            "a mapping of client ids to active and inactive", got=type(record)
        )
    return [_of_fedscale(id, record[id], until_s) for id in sorted(record)]


def _of_fedscale(id: Any, client: Any, until_s: float | None) -> list[Span]:
    try:
        comes = sorted(float(t) for t in client["active"])
        goes = sorted(float(t) for t in client["inactive"])
        turn_s = float(client["finish_time"])
    except (TypeError, KeyError, ValueError):
        allowed = "active, inactive (lists of seconds) and finish_time"
        raise InputError(allowed, where=f"client {id}", got=client) from None
    if turn_s <= 0:
        raise InputError("a finish_time above 0", where=f"client {id}", got=turn_s)
    once = []
    for come_s in comes:
        k = bisect.bisect_right(goes, come_s)
        once.append((come_s, min(goes[k] if k < len(goes) else turn_s, turn_s)))
    spans, start_s = [], 0.0
    while start_s < (turn_s if until_s is None else until_s):
        spans += [(start_s + a, start_s + b) for a, b in once]
        start_s += turn_s
    end_s = turn_s if until_s is None else until_s
    return joined((a, min(b, end_s)) for a, b in spans)


def flash(record: Any) -> tuple[list[list[Span]], int]:
    """Intervals of each device of FLASH's record, and how many lines are no event."""
    if not isinstance(record, Mapping) or not record:
        raise InputError("a mapping of devices to messages", got=type(record))
    events, bad = [], 0
    for id in sorted(record, key=lambda id: (len(id), id)):
        text = record[id].get("messages") if isinstance(record[id], Mapping) else None
        if not isinstance(text, str):
            raise InputError("messages", where=f"device {id}", got=record[id])
        mine = []
        for line in filter(None, (line.strip() for line in text.split("\n"))):
            when, _, what = line.partition("\t")
            try:
                mine.append(
                    (
                        datetime.strptime(when.strip(), ("%Y-%m-%d %H:%M:%S")),
                        what.strip(),
                    )
                )
            except ValueError:
                bad += 1
        events.append(sorted(mine, key=lambda event: event[0]))
    first = min((spans[0][0] for spans in events if spans), default=None)
    if first is None:
        raise InputError("at least one event", got="none")
    midnight = first.replace(hour=0, minute=0, second=0)
    return [_of_flash(spans, midnight) for spans in events], bad


def _of_flash(events: Iterable[tuple[datetime, str]], midnight: datetime) -> list[Span]:
    state = dict.fromkeys(("charging", "wifi", "screen off", "locked"), False)
    spans: list[Span] = []
    since_s: float | None = None
    now_s = 0.0
    for when, what in events:
        now_s = (when - midnight) / timedelta(seconds=1)
        if what in _ABOUT:
            about, holds = _ABOUT[what]
            state[about] = holds
        there = (
            state["charging"]
            and state["wifi"]
            and (state[("screen off")] or state["locked"])
        )
        if there and since_s is None:
            since_s = now_s
        elif not there and since_s is not None:
            spans.append((since_s, now_s))
            since_s = None
    if since_s is not None:  # nothing is known after the last event
        spans.append((since_s, now_s))
    return joined(spans)


def joined(spans: Iterable[Span]) -> list[Span]:
    """Disjoint intervals in order; empty ones are left out.

    >>> joined([(5, 9), (0, 2), (1, 3), (3, 4), (7, 7)])
    [(0, 4), (5, 9)]
    """
    disjoint: list[Span] = []
    for start_s, end_s in sorted(spans):
        if end_s <= start_s:
            continue
        if disjoint and start_s <= disjoint[-1][1]:
            disjoint[-1] = (disjoint[-1][0], max(disjoint[-1][1], end_s))
        else:
            disjoint.append((start_s, end_s))
    return disjoint


def write(clients: list[list[Span]], path: Path) -> None:
    """The table, read back as a scenario will read it."""
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(("client", "from_s", "to_s"))
        for client, spans in enumerate(clients):
            table.writerows((client, start_s, end_s) for start_s, end_s in spans)
    read_trace(str(path))


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("source", choices=("fedscale", "flash"))
    parser.add_argument("file", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument(
        "--until", help="fedscale: repeat each record until then, such as '30 d'"
    )
    options = parser.parse_args(arguments)
    try:
        until_s = (
            None
            if options.until is None
            else parse_duration(options.until, where="--until")
        )
        if options.source == "fedscale":
            clients, bad = fedscale(read_plain_pickle(options.file), until_s), 0
        else:
            try:
                record = json.loads(read_text(options.file))
            except ValueError as error:
                raise InputError(
                    "JSON", where=str(options.file), got=str(error)
                ) from None
            clients, bad = flash(record)
        write(clients, options.out)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    there_s = sum(end_s - start_s for spans in clients for start_s, end_s in spans)
    longest_s = max((spans[-1][1] for spans in clients if spans), default=0.0)
    print(
        f"{options.out}: {len(clients):,} clients, {sum(map(len, clients)):,} "
        f"intervals, there {there_s / max(longest_s * len(clients), 1e-9):.0%} of "
        f"{longest_s / 3600:.0f} h" + (f"; {bad:,} lines were no event" if bad else "")
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
