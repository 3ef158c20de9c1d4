"""Timelines: some rounds of a run and their bars, for picture, trace and page."""

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
    """A part of a run: some rounds and clients."""

    run: Run
    rounds: pd.DataFrame
    """The rows of `rounds.parquet` that are shown, in order."""
    clients: pd.DataFrame
    """`client, prototype` of the rows, grouped by prototype, ids in order: those asked
    for, or all that took part in the rounds."""
    bars: pd.DataFrame
    """`kind, round, client, started_at_s, finished_at_s, began_at_s, arm, outcome,
    critical`; the server's bars have no client. `began_at_s`: its participation's
    start; `critical`: it belongs to the path that set its round's length."""

    @property
    def from_s(self) -> float:
        """The start of the first round."""
        return float(self.rounds["started_at_s"].min())

    @property
    def to_s(self) -> float:
        """The end of the last round."""
        return float(self.rounds["finished_at_s"].max())

    def links(self, most: int = 3) -> list[str]:
        """Return the links worth showing.

        These are the ones that held most of the rounds up, then shared ones by bytes
        moved. Access links of clients that are not shown are left out; where nothing
        else is left, the shown clients' own stand for them.
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
                str(name) for name in moved.index if _find_client(str(name)) in shown
            ]
        return sorted(names, key=lambda name: -int(blamed.get(name, 0)))[:most]

    def latency_s(self) -> pd.Series:
        """Return the seconds of each download or upload before its first byte moved.

        In step with `bars`: up to the first use of the client's access link within it.
        0 for all other bars, and where the access link has no rate and so no record.
        """
        moves = self.bars[self.bars["kind"].isin(["download", "upload"])]
        way = moves["kind"].map({"download": "down", "upload": "up"})
        names = "client-" + moves["client"].astype(str) + "/" + way
        wanted = pd.DataFrame(
            {"link": names, "at_s": moves["started_at_s"]}
        ).reset_index()
        use = self.link_use()
        use = use[(use["bytes"] > 0) & use["link"].isin(set(names))]
        if not len(use):
            return pd.Series(0.0, self.bars.index)
        first = pd.DataFrame({"link": use["link"].astype(str), "at_s": use["from_s"]})
        first["first_s"] = first["at_s"]
        moves = pd.merge_asof(
            wanted.astype({"link": str}).sort_values("at_s", kind="stable"),
            first.sort_values("at_s", kind="stable"),
            on="at_s",
            by="link",
            direction="forward",
        ).set_index("index")
        end_s = self.bars.loc[moves.index, "finished_at_s"]
        waits_s = (moves["first_s"] - moves["at_s"]).where(
            moves["first_s"] < end_s, 0.0
        )
        return waits_s.reindex(self.bars.index).fillna(0.0)

    def absences(self) -> pd.DataFrame:
        """Return stretches in which nobody was there.

        Columns: `round, started_at_s, finished_at_s`.

        Such a stretch goes from a round's start to the first participation, or to the
        round's end where nobody takes part; what the server does at first is no part of
        it.
        """
        found = self.rounds[["round", "started_at_s", "finished_at_s"]].copy()
        starts, ends = (
            found[name].to_numpy() for name in ("started_at_s", "finished_at_s")
        )
        first = find_first_starts(self.run.table("participations"), starts)
        found["finished_at_s"] = np.where(
            first > -np.inf, np.minimum(first, ends), ends
        )
        # what two sums of the same seconds differ by is no stretch
        least_s = 1e-6 * (ends - starts)
        found = found[found["finished_at_s"] - starts > least_s]
        if len(found):
            work = pd.concat([self.bars[self.bars["client"].isna()], self.edges()])
            until = work.groupby("round")[["started_at_s", "finished_at_s"]]
            for number, spans in until:
                at = found.index[found["round"] == number]
                before = spans[
                    spans["started_at_s"] < found.loc[at, "finished_at_s"].max()
                ]
                latest = before["finished_at_s"].max()
                found.loc[at, "started_at_s"] = found.loc[at, "started_at_s"].clip(
                    lower=latest
                )
        lasts = found["finished_at_s"] > found["started_at_s"]
        return found[lasts].reset_index(drop=True)

    def edges(self) -> pd.DataFrame:
        """Return the spans of edge servers in these rounds, in the order of nodes.

        `track, kind, name, round, started_at_s, finished_at_s`; empty where there are
        none.
        """
        spans = self.run.frame("spans", self.rounds["round"].tolist())
        names = frames.edge_servers(self.run)
        mine = spans[spans["track"].isin(names)]
        order = mine["track"].map({name: k for k, name in enumerate(names)})
        columns = ["track", "kind", "name", "round", "started_at_s", "finished_at_s"]
        return mine.iloc[np.argsort(order, kind="stable")][columns]

    def link_use(self, name: str | None = None) -> pd.DataFrame:
        """Return the rows of `links.parquet` (of a link) that touch the shown time."""
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


def build_timeline(
    run: Run,
    rounds: tuple[int, int] | None = None,
    clients: Sequence[int] | None = None,
) -> Timeline:
    """Return the bars of some rounds (first and last, both included) and clients.

    None: all of them.
    """
    shown = run.rounds
    if rounds is not None:
        shown = shown[shown["round"].between(*rounds)]
    return build_timeline_of_rounds(run, shown, clients)


def build_timeline_of_rounds(
    run: Run, shown: pd.DataFrame, clients: Sequence[int] | None = None
) -> Timeline:
    """Return the bars of the rounds in some rows of `rounds.parquet`.

    They need not be consecutive.
    """
    rows = frames.list_clients(run)
    took_part = run.frame("participations", shown["round"].tolist())["client"].unique()
    rows = rows[rows["client"].isin(took_part if clients is None else list(clients))]
    rows = frames.order_prototypes(rows, run)
    return Timeline(
        run, shown.reset_index(drop=True), rows, _build_bars(run, shown, rows)
    )


def began_at_s(spans: pd.DataFrame, participations: pd.DataFrame) -> pd.Series:
    """Return the start of the participation to which each span belongs.

    In step with `spans`; NaN for spans of no client. A client may take part several
    times in a round, one after another: a span belongs to the latest that had begun.
    """
    key = ["round", "client"]
    of_clients = spans.loc[spans["client"].notna(), [*key, "started_at_s"]]
    of_clients = of_clients.astype(dict.fromkeys(key, "int64")).reset_index()
    starts = participations[[*key, "started_at_s"]].astype(dict.fromkeys(key, "int64"))
    matched = pd.merge_asof(
        of_clients.sort_values("started_at_s", kind="stable"),
        starts.assign(began_at_s=starts["started_at_s"]).sort_values(
            "started_at_s", kind="stable"
        ),
        on="started_at_s",
        by=key,
    )
    return matched.set_index("index")["began_at_s"].reindex(spans.index)


def keep_last_per_start(participations: pd.DataFrame) -> pd.DataFrame:
    """Return participations without those that took no time and have no spans.

    The client's next one in the round began at the same instant.
    """
    by_end = participations.sort_values("finished_at_s", kind="stable")
    return by_end.drop_duplicates(
        ["round", "client", "started_at_s"], keep="last"
    ).sort_index()


def _build_bars(run: Run, rounds: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    # only what is drawn becomes a frame: a long run's spans are a hundred times their
    # Arrow columns
    spans = run.frame("spans", rounds["round"].tolist())
    on_server = (spans["track"] == "server").to_numpy()
    on_client = spans["client"].isin(rows["client"]).to_numpy(dtype=bool)
    on_client &= spans["track"].str.startswith("client ").to_numpy(dtype=bool)
    on_client &= ~spans["track"].str.contains(LANE, regex=False).to_numpy(dtype=bool)
    bars = spans.loc[
        on_client | on_server,
        ["track", "kind", "round", "client", "started_at_s", "finished_at_s"],
    ]
    facts = run.frame("participations", rounds["round"].tolist())
    bars.loc[bars["track"] == "server", "client"] = None
    facts = keep_last_per_start(facts)[
        ["round", "client", "started_at_s", "arm", "outcome"]
    ]
    bars = bars.assign(began_at_s=began_at_s(bars, facts)).astype({"round": "Int64"})
    bars = bars.merge(
        facts.rename(columns={"started_at_s": "began_at_s"}).astype(
            {"round": "Int64", "client": "Int64"}
        ),
        on=["round", "client", "began_at_s"],
        how="left",
    )
    server = (bars["track"] == "server").to_numpy()
    culprit = rounds.set_index("round")["critical_client"].reindex(bars["round"])
    blamed = culprit.reset_index(drop=True)
    of_culprit = (bars["client"] == blamed).fillna(False).to_numpy(dtype=bool)
    bars["critical"] = (of_culprit & (bars["kind"] != "waiting").to_numpy()) | (
        server & blamed.notna().to_numpy()
    )
    return bars.drop(columns="track").sort_values(
        "started_at_s", kind="stable", ignore_index=True
    )


def list_kinds(bars: pd.DataFrame) -> list[str]:
    """Return the kinds of clients' bars in their order.

    A method's further kinds of work stand beside training.
    """
    kinds = set(bars.loc[bars["client"].notna(), "kind"])
    further = sorted(kinds.difference(CLIENT_KINDS))
    before, after = CLIENT_KINDS[:2], CLIENT_KINDS[2:]
    return [kind for kind in (*before, *further, *after) if kind in kinds]


def find_slowest_clients(timeline: Timeline, most: int) -> list[int]:
    """Return the clients that held up most rounds, then those busy longest."""
    bars = timeline.bars[
        timeline.bars["client"].notna() & (timeline.bars["kind"] != "waiting")
    ]
    busy_s = (
        (bars["finished_at_s"] - bars["started_at_s"]).groupby(bars["client"]).sum()
    )
    rank = pd.DataFrame({"busy_s": busy_s})
    rank["held_up"] = (
        timeline.rounds["critical_client"].value_counts().reindex(rank.index)
    )
    rank["held_up"] = rank["held_up"].fillna(0).astype(float)
    ranked = rank.sort_values(["held_up", "busy_s"], ascending=False, kind="stable")
    return [int(client) for client in ranked.index[:most]]


def parse_rounds(text: str, last: int) -> tuple[int, int]:
    """Return first and last round from `3:7`, `3:`, `:7` or `5`; both count.

    >>> parse_rounds("3:", 20), parse_rounds("5", 20)
    ((3, 20), (5, 5))
    """
    match = _ROUNDS.match(text)
    if match is None or not (match[1] or match[3] or match[2]):
        raise InputError("rounds such as 1:5, 3: or 7", where="--rounds", got=text)
    first = int(match[1] or 1)
    end = int(match[3] or last) if match[2] else first
    if not 1 <= first <= min(end, last):
        raise InputError(
            f"rounds from 1 to {last}, in order", where="--rounds", got=text
        )
    return first, min(end, last)


def parse_clients(text: str, clients: pd.DataFrame) -> list[int]:
    """Return client ids from `0,3,7-9` or names of prototypes, mixed as you like.

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
            raise InputError(
                f"{ids} or a prototype ({names})", where="--clients", got=part
            )
        chosen |= matching
    if not chosen:
        raise InputError("at least one client", where="--clients", got=text)
    return sorted(int(client) for client in chosen)
