"""Timelines: some rounds of a run and their bars, for picture, trace and page.

`build_timeline` reads the spans of the rounds that are asked for, gives each bar the
facts of its participation (arm, outcome, whether it set the round's length) and hands
them over as one frame. `gantt.py` prints that frame, `gantt_data.py` turns it into the
columns that a page carries. `trace.py` has every span, and takes from here only the
rule by which spans find their participation (`began_at_s`).

Begin reading at `Timeline`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from simfed.ground.errors import InputError
from simfed.record.schema import CLIENT_KINDS, LANE
from simfed.record.summary import find_first_starts
from simfed.report import frames

if TYPE_CHECKING:
    from simfed.record.read import Run

_ROUNDS = re.compile(r"^\s*(\d{0,18})\s*(:?)\s*(\d{0,18})\s*$")
_ACCESS = re.compile(r"client-(\d{1,18})/(?:up|down)")
_CLIENTS = re.compile(r"^(\d{1,18})(?:-(\d{1,18}))?$")


@dataclass(frozen=True)
class Timeline:
    """A part of a run: some rounds and clients, and what they did when.

    Made by `build_timeline` for one picture or page; drawn by `gantt_figure` and
    `build_gantt_data`. It decides nothing about looks: no colours, no units.
    """

    run: Run
    rounds: pd.DataFrame
    """The rows of `rounds.parquet` that are shown, in order."""
    clients: pd.DataFrame
    """`client, prototype` of the rows, grouped by prototype, ids in order: those asked
    for, or all that took part in the rounds."""
    bars: pd.DataFrame
    """`kind, round, client, started_at_s, finished_at_s, began_at_s, arm, outcome,
    critical, lost, look`; the server's bars have no client. `began_at_s`: its
    participation's start; `critical`: it belongs to the path that set its round's
    length; `lost`: work of a participation that was dropped or failed; `look`: its
    kind, or `server`."""

    @property
    def from_s(self) -> float:
        """The start of the first round, in simulated seconds."""
        return float(self.rounds["started_at_s"].min())

    @property
    def to_s(self) -> float:
        """The end of the last round, in simulated seconds."""
        return float(self.rounds["finished_at_s"].max())

    def links(self, most: int = 3) -> list[str]:
        """Return the names of the links worth showing, most important first.

        Links that held most of the rounds up come first, then links that several
        transfers shared, by bytes moved. Access links of clients that are not shown are
        left out; where nothing else is left, the shown clients' own stand for them.

        Args:
            most: how many names to return at most.
        """
        within = self.link_use()
        blamed = self.rounds["critical_link"].value_counts()
        shared = frames.find_shared_links(within)
        shown = set(self.clients["client"])
        names = [
            name
            for name in dict.fromkeys([*shared, *map(str, blamed.index)])
            if (client := _find_client(name)) is None or client in shown
        ]
        if not names and len(shown) < len(frames.list_clients(self.run)):
            moved = within.groupby("link")["bytes"].sum().sort_values(ascending=False)
            names = [
                name for name in map(str, moved.index) if _find_client(name) in shown
            ]
        return sorted(names, key=lambda name: -int(blamed.get(name, 0)))[:most]

    def latency_s(self) -> pd.Series:
        """Return the seconds of each download or upload before its first byte moved.

        A transfer's latency ends with the first use of the client's access link within
        it. It is 0 for all other bars, and where the access link has no rate and so no
        record.

        Returns:
            Seconds, in step with `bars`.
        """
        moves = self.bars[self.bars["kind"].isin(["download", "upload"])]
        way = moves["kind"].map({"download": "down", "upload": "up"})
        names = "client-" + moves["client"].astype(str) + "/" + way
        use = self.link_use()
        use = use[(use["bytes"] > 0) & use["link"].isin(set(names))]
        if not len(use):
            return pd.Series(0.0, self.bars.index)
        first = pd.DataFrame({"link": use["link"].astype(str), "at_s": use["from_s"]})
        wanted = pd.DataFrame(
            {"link": names.astype(str), "at_s": moves["started_at_s"]}
        ).reset_index()
        moves = pd.merge_asof(
            wanted.sort_values("at_s", kind="stable"),
            first.assign(first_s=first["at_s"]).sort_values("at_s", kind="stable"),
            on="at_s",
            by="link",
            direction="forward",
        ).set_index("index")
        end_s = self.bars.loc[moves.index, "finished_at_s"]
        waits_s = moves["first_s"] - moves["at_s"]
        waits_s = waits_s.where(moves["first_s"] < end_s, 0.0)
        return waits_s.reindex(self.bars.index).fillna(0.0)

    def absences(self) -> pd.DataFrame:
        """Return stretches in which nobody was there.

        Such a stretch goes from a round's start to the first participation, or to the
        round's end where nobody takes part; what the server does at first is no part of
        it.

        Returns:
            `round, started_at_s, finished_at_s`, a row per stretch, in order.
        """
        found = self.rounds[["round", "started_at_s", "finished_at_s"]].copy()
        starts, ends = found["started_at_s"].to_numpy(), found["finished_at_s"]
        first = find_first_starts(self.run.table("participations"), starts)
        until = np.where(first > -np.inf, np.minimum(first, ends), ends)
        # what two sums of the same seconds differ by is no stretch
        lasts = until - starts > 1e-6 * (ends - starts)
        found = found.assign(finished_at_s=until)[lasts]
        work = pd.concat([self.bars[self.bars["client"].isna()], self.edges()])
        until_s = work["round"].map(found.set_index("round")["finished_at_s"])
        early = work[work["started_at_s"] < until_s].groupby("round")["finished_at_s"]
        latest_s = found["round"].map(early.max())
        found["started_at_s"] = np.fmax(found["started_at_s"], latest_s)
        lasts = found["finished_at_s"] > found["started_at_s"]
        return found[lasts].reset_index(drop=True)

    def edges(self) -> pd.DataFrame:
        """Return the spans of edge servers in these rounds, in the order of nodes.

        Returns:
            `track, kind, name, round, started_at_s, finished_at_s, look`, a row per
            span; `look` is the kind of transfers and of waiting, else `server`. Empty
            where there are no edge servers.
        """
        spans = self.run.frame("spans", self.rounds["round"].tolist())
        names = frames.edge_servers(self.run)
        mine = spans[spans["track"].isin(names)]
        order = mine["track"].map({name: k for k, name in enumerate(names)})
        columns = ["track", "kind", "name", "round", "started_at_s", "finished_at_s"]
        mine = mine.iloc[np.argsort(order, kind="stable")][columns]
        known = mine["kind"].isin(["download", "upload", "waiting"])
        return mine.assign(look=mine["kind"].where(known, "server"))

    def link_use(self, name: str | None = None) -> pd.DataFrame:
        """Return the rows of `links.parquet` that touch the shown time.

        Args:
            name: of the one link that is asked about; None: all.
        """
        import pyarrow.compute as pc

        table = self.run.table("links")
        shown = pc.and_(
            pc.greater(table.column("to_s"), self.from_s),
            pc.less(table.column("from_s"), self.to_s),
        )
        if name is not None:
            shown = pc.and_(shown, pc.equal(table.column("link"), name))
        return table.filter(shown).to_pandas()


def _find_client(link: str) -> int | None:
    """Return the client whose access link this is; None for a link of the network."""
    match = _ACCESS.fullmatch(link)
    return int(match[1]) if match else None


def select_rounds(run: Run, rounds: tuple[int, int] | None) -> pd.DataFrame:
    """Return the rows of `rounds.parquet` from a first to a last round.

    Args:
        run: the finished run.
        rounds: first and last, both included; None: all.
    """
    return (
        run.rounds
        if rounds is None
        else run.rounds[run.rounds["round"].between(*rounds)]
    )


def build_timeline(
    run: Run,
    rounds: tuple[int, int] | None = None,
    clients: Sequence[int] | None = None,
) -> Timeline:
    """Return the bars of some rounds and clients of a run.

    Args:
        run: the finished run.
        rounds: first and last, both included; None: all.
        clients: ids of those that have bars; None: all that took part in the rounds.
    """
    return build_timeline_of_rounds(run, select_rounds(run, rounds), clients)


def build_timeline_of_rounds(
    run: Run, shown: pd.DataFrame, clients: Sequence[int] | None = None
) -> Timeline:
    """Return the bars of rounds that need not be consecutive.

    Args:
        run: the finished run.
        shown: rows of its `rounds.parquet`, in order.
        clients: as in `build_timeline`.
    """
    numbers = shown["round"].tolist()
    parts = run.frame("participations", numbers)
    rows = frames.list_clients(run)
    rows = rows[rows["client"].isin(parts["client"] if clients is None else clients)]
    rows = frames.order_prototypes(rows, run)
    # only what is drawn becomes a frame: a long run's spans are a hundred times their
    # Arrow columns
    bars = _build_bars(run.frame("spans", numbers), parts, shown, rows["client"])
    return Timeline(run, shown.reset_index(drop=True), rows, bars)


def began_at_s(spans: pd.DataFrame, participations: pd.DataFrame) -> pd.Series:
    """Return the start of the participation to which each span belongs.

    A client may take part several times in a round, one after another: a span belongs
    to the latest participation that had begun.

    Args:
        spans: rows of `spans.parquet`; those of no client may be among them.
        participations: rows of `participations.parquet`, of the same rounds at least.

    Returns:
        Simulated seconds, in step with `spans`; NaN for spans of no client.
    """
    key = ["round", "client"]
    of_clients = spans.loc[spans["client"].notna(), [*key, "started_at_s"]]
    of_clients = of_clients.astype(dict.fromkeys(key, "int64")).reset_index()
    starts = participations[[*key, "started_at_s"]].astype(dict.fromkeys(key, "int64"))
    starts = starts.assign(began_at_s=starts["started_at_s"])
    matched = pd.merge_asof(
        of_clients.sort_values("started_at_s", kind="stable"),
        starts.sort_values("started_at_s", kind="stable"),
        on="started_at_s",
        by=key,
    )
    return matched.set_index("index")["began_at_s"].reindex(spans.index)


def keep_last_per_start(participations: pd.DataFrame) -> pd.DataFrame:
    """Return participations without those that took no time and have no spans.

    The client's next one in the round began at the same instant, so that round, client
    and start tell the rest apart.
    """
    by_end = participations.sort_values("finished_at_s", kind="stable")
    keys = ["round", "client", "started_at_s"]
    return by_end.drop_duplicates(keys, keep="last").sort_index()


def _build_bars(
    spans: pd.DataFrame, parts: pd.DataFrame, rounds: pd.DataFrame, clients: pd.Series
) -> pd.DataFrame:
    """Return `Timeline.bars`.

    Args:
        spans: all spans of the rounds.
        parts: all participations of the rounds.
        rounds: rows of `rounds.parquet`.
        clients: ids of those that have bars.
    """
    on_server = (spans["track"] == "server").to_numpy()
    on_client = spans["client"].isin(clients).to_numpy(dtype=bool)
    on_client &= spans["track"].str.startswith("client ").to_numpy(dtype=bool)
    on_client &= ~spans["track"].str.contains(LANE, regex=False).to_numpy(dtype=bool)
    bars = spans.assign(client=spans["client"].mask(on_server))[on_client | on_server]
    facts = keep_last_per_start(parts)
    facts = facts[["round", "client", "started_at_s", "arm", "outcome"]]
    bars = bars[["kind", "round", "client", "started_at_s", "finished_at_s"]]
    bars = bars.assign(began_at_s=began_at_s(bars, facts)).astype({"round": "Int64"})
    facts = facts.rename(columns={"started_at_s": "began_at_s"})
    bars = bars.merge(
        facts.astype({"round": "Int64", "client": "Int64"}),
        on=["round", "client", "began_at_s"],
        how="left",
    )
    works = ~bars["kind"].isin(["waiting", "offline"])
    server = bars["client"].isna()
    culprit = bars["round"].map(rounds.set_index("round")["critical_client"])
    of_culprit = (bars["client"] == culprit).fillna(False).astype(bool)
    bars = bars.assign(
        critical=of_culprit & (bars["kind"] != "waiting") | server & culprit.notna(),
        lost=bars["outcome"].isin(["dropped", "failed"]) & works,
        look=bars["kind"].where(~server, "server"),
    )
    return bars.sort_values("started_at_s", kind="stable", ignore_index=True)


def list_kinds(bars: pd.DataFrame) -> list[str]:
    """Return the kinds of clients' bars in their order.

    A method's further kinds of work stand beside training.
    """
    kinds = set(bars.loc[bars["client"].notna(), "kind"])
    further = sorted(kinds.difference(CLIENT_KINDS))
    before, after = CLIENT_KINDS[:2], CLIENT_KINDS[2:]
    return [kind for kind in (*before, *further, *after) if kind in kinds]


def find_slowest_clients(timeline: Timeline, most: int) -> list[int]:
    """Return the clients that held up most rounds, then those busy longest.

    Args:
        timeline: the rounds that count; waiting does not count as being busy.
        most: how many ids to return at most.
    """
    bars = timeline.bars[timeline.bars["kind"] != "waiting"]
    busy_s = (
        (bars["finished_at_s"] - bars["started_at_s"]).groupby(bars["client"]).sum()
    )
    held_up = timeline.rounds["critical_client"].value_counts()
    rank = pd.DataFrame({"busy_s": busy_s, "held_up": held_up.reindex(busy_s.index)})
    rank = rank.fillna({"held_up": 0})
    ranked = rank.sort_values(["held_up", "busy_s"], ascending=False, kind="stable")
    return [int(client) for client in ranked.index[:most]]


def parse_rounds(text: str, last: int) -> tuple[int, int]:
    """Return first and last round from `3:7`, `3:`, `:7` or `5`; both count.

    Args:
        text: as written after `--rounds`.
        last: the run's last round, at which a range ends at the latest.

    Raises:
        InputError: for a text of another form, and for rounds that are not there.

    >>> parse_rounds("3:", 20), parse_rounds("5", 20)
    ((3, 20), (5, 5))
    """
    match = _ROUNDS.match(text)
    if match is None or not (match[1] or match[3] or match[2]):
        raise InputError("rounds such as 1:5, 3: or 7", where="--rounds", got=text)
    first = int(match[1] or 1)
    end = int(match[3] or last) if match[2] else first
    if not 1 <= first <= min(end, last):
        allowed = f"rounds from 1 to {last}, in order"
        raise InputError(allowed, where="--rounds", got=text)
    return first, min(end, last)


def parse_clients(text: str, clients: pd.DataFrame) -> list[int]:
    """Return client ids from `0,3,7-9` or names of prototypes, mixed as you like.

    Args:
        text: as written after `--clients`.
        clients: `client, prototype` of all that took part, see `frames.list_clients`.

    Returns:
        Ids in ascending order, each once.

    Raises:
        InputError: for a part that names nobody, and for a text without parts.

    >>> clients = {"client": [0, 1, 2], "prototype": ["small", "small", "large"]}
    >>> parse_clients("large, 0-1", pd.DataFrame(clients))
    [0, 1, 2]
    """
    every, chosen = set(clients["client"]), set()
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = _CLIENTS.match(part)
        if match:
            first, last = int(match[1]), int(match[2] or match[1])
            matching = {client for client in every if first <= client <= last}
        else:
            matching = set(clients.loc[clients["prototype"] == part, "client"])
        if not matching:
            ids = f"clients such as 0,3,7-9 (there are {min(every)} to {max(every)})"
            names = ", ".join(clients["prototype"].unique())
            allowed = f"{ids} or a prototype ({names})"
            raise InputError(allowed, where="--clients", got=part)
        chosen |= matching
    if not chosen:
        raise InputError("at least one client", where="--clients", got=text)
    return sorted(int(client) for client in chosen)
