"""The tables of a run directory: one frozen row type each, columns in file order.

Facts are flat and complete: one row per client and round, failures included. Instants
are simulated seconds since the run's start (`*_at_s`, `from_s`, `to_s`); durations
(`*_s`) are carried as durations, so they stay exact where a difference of two late
instants would not.

The annotations are the schema: `int` → int64, `float` → float64, `bool`, `str`; `|
None` → nullable; the text is the column's meaning, shown in `docs/run-directory.md` and
in reports.

>>> [column.name for column in columns("policies")]
['round', 'client', 'arm', 'value']
>>> columns("rounds")[9].nullable
True
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    NamedTuple,
    TypeAlias,
    get_args,
    get_type_hints,
)

from simfed.ground.uses import LinkUses
from simfed.ground.vocabulary import CHOICES, OUTCOMES, LinkUse

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "ADDED_COLUMNS",
    "BARRIER",
    "CHOICES",
    "CLIENT_KINDS",
    "EPSILON",
    "FORMAT",
    "HANDLING",
    "HELD_UP",
    "HOST",
    "LANE",
    "MESSAGE_NAMES",
    "OPTIONAL_TABLES",
    "OUTCOMES",
    "OWN_LOSSES",
    "PHASES",
    "START",
    "TABLES",
    "ClientResult",
    "Column",
    "LinkUse",
    "Merge",
    "OwnColumns",
    "Participation",
    "PolicyValue",
    "PrototypeResult",
    "Round",
    "Span",
    "Table",
    "arrow_schema",
    "columns",
    "declare",
    "describe_table",
    "forget",
    "list_phases",
    "measure_columns",
]

FORMAT = 2
"""Version of the run directory's layout, in `manifest.json`; no other is read."""

PHASES = (
    "downlink_s",
    "training_s",
    "compression_s",
    "uplink_s",
    "waiting_s",
    "offline_s",
)
"""The duration columns of a participation, whose sum is its whole span."""

CLIENT_KINDS = ("download", "training", "compression", "upload", "waiting", "offline")
"""`spans.kind` on a client's track, in the order of `PHASES`. Every other kind there is
a unit of the method's local work, which counts as `training_s`. On the server's track
kinds are those of its work (`decompression`, and whatever the method says), on a link's
the kind is `busy`."""


START = "start"
"""`spans.kind` on a client's track of a Flower app's run that charges what a node's
process takes until it works on a message. Its seconds are a further column of
`participations`, `start_s`."""

HANDLING = "handling"
"""`spans.kind` in a simulated run whose device profiles know what handling messages
takes. On a client's track it is local work."""

BARRIER = "barrier"
"""`spans.kind` on the track of a client that waits for others within its participation;
its seconds are part of `waiting_s`."""

LANE = " · "
"""Between whose a track is and what it shows beside that one's own: `client 3 · link`,
uploads in chunks; `server · steps`, work within participations."""

HELD_UP = ("frozen", "timeout")
"""`spans.kind` with `faults`, named after the phase that it is part of: the device
stood still, or waited before it sent again."""

HOST = "host"
"""`spans.kind` in a deployed run: time of a host that is no phase, such as serialising
and waking up. On a client's track it is part of no duration column."""

MESSAGE_NAMES = ("lost", "doubled")
"""`spans.name` of a download or upload with `faults`, where it was not an ordinary
one."""


class Round(NamedTuple):
    """One communication round, as the server saw it (`rounds.parquet`).

    It lasts from one merge to the next, whatever the server's mode.
    """

    round: Annotated[int, "1, 2, …"]
    started_at_s: Annotated[float, "the server starts to send"]
    finished_at_s: Annotated[float, "the merge is done, server work included"]
    participants: Annotated[
        int, "participations that belong to this round, whatever their outcome"
    ]
    late: Annotated[int, "of these, `late`"]
    dropped: Annotated[int, "of these, `dropped` or `failed`"]
    uplink_bytes: Annotated[float, "sent by clients, lost uploads included"]
    downlink_bytes: Annotated[float, "sent to clients, where the downlink is charged"]
    rolled_back: Annotated[bool, "the safeguard undid this round's merge"]
    critical_client: Annotated[
        int | None, "the client whose upload the round waited for longest"
    ]
    critical_phase: Annotated[
        str | None,
        "that client's longest phase; without one what was waited for: `server`, "
        "`deadline`, `restart`, or of the last edge server its own longest phase",
    ]
    critical_link: Annotated[
        str | None, "the link that bound that client's transfers longest"
    ]
    duration_s: Annotated[float, "the round's length, carried as a duration"]
    server_s: Annotated[float, "of this, server work after the last awaited upload"]
    saved_without_critical_s: Annotated[
        float | None, "how much shorter the round would be without the critical client"
    ]


class PrototypeResult(NamedTuple):
    """One prototype's losses in one round (`prototypes.parquet`)."""

    round: Annotated[int, "1, 2, …"]
    prototype: Annotated[str, "its name in the scenario"]
    kd_loss: Annotated[float | None, "L_KD before the distillation step (fedkd)"]
    test_accuracy: Annotated[
        float | None, "0 to 1, of a regression R²; empty where not evaluated"
    ]
    test_loss: Annotated[
        float | None,
        (
            "mean cross-entropy, of a regression squared error; empty where not "
            "evaluated"
        ),
    ]


class ClientResult(NamedTuple):
    """One client's model on the test set (`clients.parquet`).

    It is its own where models are personal, else its prototype's. Written with
    `evaluation.clients`.
    """

    round: Annotated[int, "1, 2, …"]
    client: Annotated[int, "0, 1, …"]
    accuracy: Annotated[float, "0 to 1, of a regression R², on the test set"]
    loss: Annotated[
        float, "mean cross-entropy on the test set, of a regression squared error"
    ]
    own_accuracy: Annotated[
        float, "the same, classes weighted as in the client's own data"
    ]
    own_loss: Annotated[float, "the same, classes weighted as in the client's own data"]


class Participation(NamedTuple):
    """One client in one round (`participations.parquet`).

    Every start has a row, whatever became of it. A client that is started again in the
    same round has another one.
    """

    round: Annotated[int, "the round it was started for"]
    client: Annotated[int, "0, 1, …"]
    prototype: Annotated[str, "its name in the scenario"]
    model_version: Annotated[int, "accepted merges behind the weights it trained on"]
    arm: Annotated[
        str, "compression strategy; behind an @ its level, where that is chosen"
    ]
    k: Annotated[
        int,
        "of how many entries of its (longest) update the payload says anything: min(K, "
        "d) of codecs that select, what was sent of adacomp and in dgc's warm-up "
        "(min(K, d) where the upload never began); d of those that leave none out "
        "(dense, qsgd, fp16, ef-sign, powersgd, …); 0 where the method compresses "
        "nothing",
    ]
    choice: Annotated[str, "`warm-up`, `explore`, `exploit`, `fixed` or `forced`"]
    outcome: Annotated[str, "`aggregated`, `late`, `dropped` or `failed`"]
    started_at_s: Annotated[float, "the server starts to send to it"]
    finished_at_s: Annotated[float, "it is free for its next task: its waiting is over"]
    downlink_s: Annotated[float, "download of the model"]
    training_s: Annotated[
        float, "local work: steps, and whatever else the method's plan says"
    ]
    compression_s: Annotated[float, "selection and encoding"]
    uplink_s: Annotated[float, "upload, up to its arrival or its loss"]
    waiting_s: Annotated[float, "for the others and for server work"]
    offline_s: Annotated[float, "away while taking part"]
    uplink_bytes: Annotated[float, "bytes moved up, also of a lost upload"]
    downlink_bytes: Annotated[float, "bytes moved down"]
    energy_j: Annotated[
        float | None, "of the device, where its profile knows its power"
    ]
    local_loss: Annotated[float | None, "f_n after, the second term of the local gain"]
    gain: Annotated[
        float | None, "ρ·(KD loss before − after) + β·(f_n before − f_n after)"
    ]
    reward_raw: Annotated[
        float | None, "gain per second of training + compression + upload"
    ]
    reward: Annotated[float | None, "the same, clipped: what the policy was told"]
    slack_s: Annotated[
        float | None,
        "how much later its upload could have arrived without delaying the merge",
    ]
    staleness: Annotated[
        int,
        "merges, below edge servers of its own one, between its start and the one that "
        "settled it",
    ] = 0
    merge: Annotated[
        int, "the round at whose end it was merged, or known to be lost"
    ] = 0


class Merge(NamedTuple):
    """One merge at one node, in runs with edge servers (`merges.parquet`)."""

    node: Annotated[str, "an edge server's node, or `server`"]
    merge: Annotated[int, "of this node: 1, 2, …"]
    round: Annotated[int, "the server's round for which the node was sent the model"]
    started_at_s: Annotated[float, "the node starts its participants"]
    finished_at_s: Annotated[float, "the merge is done, the node's work included"]
    participants: Annotated[
        int, "clients, or at the server edge servers, that had ended"
    ]
    uplink_bytes: Annotated[float, "that these sent the node, lost uploads included"]
    downlink_bytes: Annotated[float, "sent to them, where the downlink is charged"]


class ProcessorUse(NamedTuple):
    """A participation's use of a real client's processors (`processor.parquet`).

    Deployed runs have a row for each participation whose upload arrived.
    """

    merge: Annotated[int, "the round at whose end it was merged"]
    round: Annotated[int, "the round it was started for"]
    client: Annotated[int, "0, 1, …"]
    started_at_s: Annotated[float, "as in `participations.parquet`"]
    training_s: Annotated[float, "processor seconds of local work"]
    compression_s: Annotated[float, "of selection and encoding"]
    other_s: Annotated[
        float, "of all else from the task's arrival until its upload was sent"
    ]


class PolicyValue(NamedTuple):
    """A client's value of one arm before its pull (`policies.parquet`)."""

    round: Annotated[int, "1, 2, …"]
    client: Annotated[int, "0, 1, …"]
    arm: Annotated[
        str,
        "what is chosen; where strategy and level are chosen apart, one of either",
    ]
    value: Annotated[
        float | None, "utility or probability; empty before the first reward"
    ]


class Span(NamedTuple):
    """One interval on one track (`spans.parquet`); spans of a track never overlap.

    A client's own track has what is exposed of an upload in chunks, and a lane beside
    it all of it.
    """

    track: Annotated[
        str, "`client 3`, `server`, `link edge-2`, a lane: `client 3 · link`"
    ]
    kind: Annotated[str, "phase of a client, work of the server, `busy` on a link"]
    name: Annotated[str, "label: the arm on a compression, else the kind"]
    round: Annotated[int | None, "the round it belongs to"]
    client: Annotated[int | None, "empty on links and on work for nobody in particular"]
    started_at_s: Annotated[float, "instant"]
    finished_at_s: Annotated[float, "instant"]


@dataclass(frozen=True)
class Table:
    """The declaration of a table.

    Whatever writes, reads, checks or shows tables follows it. `declare` adds one; those
    of every run stand below.
    """

    row: type[Any]
    """A `NamedTuple` whose annotations are the columns."""
    optional: bool = True
    """A run has it only where it has rows of it, so that other runs keep their
    fingerprint."""
    order: tuple[str, ...] = ()
    """Columns of whole numbers, at most two, by which its rows ascend."""
    once: tuple[str, ...] = ()
    """Columns whose values stand together in one row alone."""
    make_rows: Callable[[], Any] = list
    """The constructor of the list in which rows are collected."""
    title: str = ""
    """The heading of its panel in reports; empty for tables that reports draw
    themselves."""


TABLES: dict[str, Table] = {}
"""File name without `.parquet` → what is declared of it."""

OPTIONAL_TABLES: set[str] = set()
"""Tables that a run has only if it has rows of them."""


def declare(name: str, table: Table) -> None:
    """Add a table to runs.

    `recorder.NAME.append(row)` records, `run.NAME` is its frame, `simfed verify` holds
    its columns, ranges and order against this and plays it again, `describe_table`
    documents it, and reports have a panel of it.

    Args:
        name: of its file, without `.parquet`.
        table: what is declared of it.

    Raises:
        ValueError: there is a table of this name.
    """
    if name in TABLES:
        raise ValueError(f"there is a table {name!r}")
    TABLES[name] = table
    if table.optional:
        OPTIONAL_TABLES.add(name)


def forget(name: str) -> None:
    """Take back a `declare`, as a test does at its end."""
    del TABLES[name]
    OPTIONAL_TABLES.discard(name)
    columns.cache_clear()
    arrow_schema.cache_clear()


for _name, _table in {
    "rounds": Table(Round, optional=False),
    "prototypes": Table(
        PrototypeResult,
        optional=False,
        order=("round",),
        once=("round", "prototype"),
    ),
    "participations": Table(
        Participation,
        optional=False,
        order=("merge", "client"),
    ),
    "policies": Table(PolicyValue, optional=False, order=("round",)),
    "links": Table(LinkUse, optional=False, make_rows=LinkUses),
    "spans": Table(Span, optional=False),
    "clients": Table(ClientResult, order=("round", "client"), once=("round", "client")),
    "merges": Table(Merge, title="Edge servers"),
    "processor": Table(ProcessorUse, order=("merge", "client")),
}.items():
    declare(_name, _table)

ADDED_COLUMNS: dict[str, tuple[str, ...]] = {
    "participations": ("staleness", "merge"),
    "links": ("airtime_s",),
}
"""Columns that say nothing where the server waits for everybody (nobody is stale, and
each is merged in its own round) and nobody is in a radio cell: there the fingerprint
leaves them out."""

OWN_LOSSES = "prototypes"
"""The table to which a method's own losses are further columns."""

OwnColumns: TypeAlias = Mapping[str, tuple[str, ...]]
"""Table → further columns that a run has, float64 and nullable."""


def list_phases(names: Iterable[str]) -> dict[str, str]:
    """Return the duration columns of participations → the `kind` of their spans.

    Their sum is a participation's whole span.

    Args:
        names: those of all columns of the table; with `start_s` among them it is a
        phase.

    >>> list(list_phases(["start_s"]))[:3]
    ['downlink_s', 'start_s', 'training_s']
    """
    phases = list(zip(PHASES, CLIENT_KINDS, strict=True))
    if f"{START}_s" in names:
        phases.insert(1, (f"{START}_s", START))
    return dict(phases)


def measure_columns(keys: Sequence[str]) -> OwnColumns:
    """Return the own columns of a run whose models are measured by more than accuracy.

    Args:
        keys: of the measures, see `list_measure_keys`; empty where it is accuracy
        alone.

    >>> measure_columns(["measure"])
    {'prototypes': ('test_measure',), 'clients': ('measure', 'own_measure')}
    >>> measure_columns(["auc"])
    {'prototypes': ('test_auc',), 'clients': ('auc',)}
    """
    if not keys:
        return {}
    own = ("own_measure",) if "measure" in keys else ()
    tests = tuple(f"test_{key}" for key in keys)
    return {OWN_LOSSES: tests, "clients": (*keys, *own)}


EPSILON = "epsilon"
"""A further column of `rounds` in runs with privacy: ε at the scenario's δ after the
round, of whoever has spent most; with privacy of samples also of `clients`: that of the
client's samples."""


class Column(NamedTuple):
    """One column of a table, as `columns` reads it from the row type's annotations."""

    name: str
    dtype: str
    """`int64`, `float64`, `bool` or `str`."""
    nullable: bool
    meaning: str


_DTYPES = {int: "int64", float: "float64", bool: "bool", str: "str"}


@functools.cache
def columns(table: str) -> tuple[Column, ...]:
    """Return the columns of a table, in file order, without a run's own.

    Raises:
        KeyError: there is no such table.
    """
    columns = []
    for name, hint in get_type_hints(TABLES[table].row, include_extras=True).items():
        kind, meaning = get_args(hint)
        alternatives = [
            part for part in get_args(kind) or (kind,) if part is not type(None)
        ]
        nullable = len(get_args(kind)) > 1
        columns.append(Column(name, _DTYPES[alternatives[0]], nullable, meaning))
    return tuple(columns)


@functools.cache
def arrow_schema(table: str, own: tuple[str, ...] = ()) -> pa.Schema:
    """Return the Arrow schema of a table.

    Args:
        table: its name.
        own: further columns of the run at hand, float64; see `OWN_LOSSES` and
        `EPSILON`.
    """
    import pyarrow as pa

    types = {
        "int64": pa.int64(),
        "float64": pa.float64(),
        "bool": pa.bool_(),
        "str": pa.string(),
    }
    return pa.schema(
        [
            *(
                pa.field(column.name, types[column.dtype], nullable=column.nullable)
                for column in columns(table)
            ),
            *(pa.field(name, pa.float64()) for name in own),
        ]
    )


def describe_table(table: str) -> str:
    """Return a table's columns in Markdown, as the page of the run directory has them.

    >>> print(describe_table("policies").splitlines()[2])
    | `round` | int64 | 1, 2, … |
    """
    rows = [
        f"| `{c.name}` | {c.dtype}{', may be empty' if c.nullable else ''} | "
        f"{c.meaning} |"
        for c in columns(table)
    ]
    return "\n".join(["| column | type | meaning |", "|---|---|---|", *rows])
