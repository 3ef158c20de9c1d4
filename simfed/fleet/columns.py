"""The fleet of a run: each client's quantities where a group gives a distribution.

Client i's draw for a field (`device.speed`, `link.up`, …) is the quantile of its law at
the i-th number of the uniform stream `Streams(seed)("fleet", field)`. So it is keyed by
seed, field and client id alone: more clients, another law for another group or another
order of questions change nobody else's draw, and a million draws are one NumPy call. A
client that moves to another group keeps its rank: the fast one of its old group is the
fast one of its new group.

Drawn columns are made when somebody asks; nothing is kept per client but its group, and
its speed and K where those are drawn.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from simfed.compress.choice import Choice
from simfed.compress.slices import sliced
from simfed.device.spec import AssumedTimes
from simfed.fleet.availability import Availability, Presence
from simfed.fleet.contract import Task
from simfed.fleet.presence import build_presence
from simfed.fleet.world import Group, WorldSpec
from simfed.ground.arrays import Floats, Ints
from simfed.ground.distributions import (
    Discrete,
    Law,
    draw_uniform,
    pick_positions,
)
from simfed.ground.errors import within
from simfed.ground.levels import Level, bound_entries
from simfed.ground.plain import Plain
from simfed.ground.seeding import Streams
from simfed.ground.tables import Columns, read_columns
from simfed.net.spec import LatencyTrace, LinkSpec, PerMessage, TraceSpec
from simfed.policy import Pull
from simfed.schema.distribution import (
    KEPT_ENTRIES,
    LATENCY,
    LOSS,
    RATE,
    SAMPLES,
    SPEED,
    STAY,
    WORK_TIME,
    DeviceTable,
    Distribution,
)
from simfed.schema.quantity import Quantity

SIZES = "dataset.partition.sizes"
"""Key of the one distribution that stands outside of groups."""

FIELDS: dict[str, Quantity] = {
    "device.speed": SPEED,
    "link.rate": RATE,
    "link.up": RATE,
    "link.down": RATE,
    "link.latency": LATENCY,
    "link.down_latency": LATENCY,
    "link.loss": LOSS,
    "availability.markov.on": STAY,
    "availability.markov.off": STAY,
    "k": KEPT_ENTRIES,
    **{f"device.assume.{work}": WORK_TIME for work in AssumedTimes.model_fields},
}
"""Key of a client group whose value may be drawn per client → what it may be."""


def _read_field(group: Group, field: str) -> Plain:
    """Return the group's value of a field.

    It is a number in base units, a distribution, a trace or None.
    """
    value: Plain = group
    for key in field.split("."):
        value = getattr(value, key, None)
    return value


@dataclass(frozen=True)
class FleetColumn:
    """The values of one field for the clients of one group."""

    group: int
    field: str
    how: str
    """`fixed`, `trace`, `per message`, the law's name, or `column NAME`."""
    values: Floats
    """Drawn: one per client, in the order of ids; fixed: one for all; empty for what
    varies during a run. `inf`: unlimited."""
    n: int
    """Clients of the group."""

    @property
    def where(self) -> str:
        """The place in the scenario: `clients[2].k`."""
        return f"clients[{self.group}].{self.field}"

    @property
    def drawn(self) -> bool:
        """True if every client of the group has a value of its own."""
        return self.how not in ("fixed", "trace", "per message")

    def summary(self) -> tuple[str, str, str]:
        """Return minimum, median and maximum, for people."""
        if not self.values.size:
            return "–", "–", "–"
        if np.isinf(self.values).any():
            return "unlimited", "unlimited", "unlimited"
        show = FIELDS[self.field].format
        v = self.values
        return show(float(v.min())), show(float(np.median(v))), show(float(v.max()))

    def __str__(self) -> str:
        least, median, most = self.summary()
        return f"{self.where}: n {self.n:,}, min {least}, median {median}, max {most}"


class Fleet:
    """The clients' groups, and what was drawn for each client.

    Raises, from whatever looks at a column of a table: `InputError` for a table that
    cannot be read or has values that the field cannot take.
    """

    def __init__(self, world: WorldSpec, streams: Streams) -> None:
        self._world = world
        self._streams = streams
        self.group = world.group_of_client().astype(np.int32)
        """Client id → index of its group."""
        self._overlaps = [getattr(group, "overlap", None) for group in world.clients]

    def __len__(self) -> int:
        return len(self.group)

    def members(self, group: int) -> Ints:
        """Return the ids of a group's clients."""
        return np.flatnonzero(self.group == group)

    def first(self, group: int) -> int:
        """Return the lowest id of a group's clients."""
        return int(np.argmax(self.group == group))

    def drawn(self, group: int, field: str) -> Floats | None:
        """Return one value for each of the group's clients, in the order of their ids.

        None where the group gives no distribution of this field.
        """
        spec = _read_field(self._world.clients[group], field)
        if not isinstance(spec, Distribution):
            return None
        return self._draw(group, field, spec)

    def sizes(self, spec: Distribution) -> Floats:
        """Return the training samples that each client shall own."""
        values = np.empty(len(self))
        for group in range(len(self._world.clients)):
            values[self.members(group)] = self._draw(group, SIZES, spec)
        return values

    def speed(self, client: int) -> float:
        """Return the client's factor on its group's processor.

        1 where it is not drawn.
        """
        return 1.0 if self._speeds is None else float(self._speeds[client])

    def times(self, client: int) -> dict[str, float]:
        """Return kind of work → seconds, for what its group's device has drawn."""
        assumed = self._world.clients[self.group[client]].device.assume
        return {
            work: float(self._times[work][client])
            for work, spec in assumed or ()
            if isinstance(spec, Distribution)
        }

    def k(self, client: int, parameters: int, level: Level | None = None) -> int:
        """Return the entries that this client keeps of an update.

        They are its own K, or `level`, of `parameters` entries.
        """
        k = self._k_of_group[self.group[client]] if level is None else level
        if isinstance(k, Level):
            return k.k(parameters)
        assert self._ks is not None
        return bound_entries(int(self._ks[client]), parameters)

    def compression(self, task: Task, pull: Pull) -> Choice:
        """Return the choice of a client's pull with its level as a number of entries.

        Shares are of the longest compressed field of the plan.
        """
        client, plan = task.client, task.plan
        choice, longest = pull.arm, plan.longest
        level = choice.level if pull.k is None else Level.read(pull.k)
        group = self.group[client]
        overlap = self._overlaps[group]
        if overlap is not None and longest:
            choice = sliced(choice, overlap.chunks)
        return choice.at(self.k(client, longest, level))

    def range_of_k(
        self, group: int, parameters: int, level: Level | None = None
    ) -> tuple[int, int]:
        """Return the smallest and the largest K of a group's clients.

        They are at their own K or at `level`.
        """
        k = self._k_of_group[group] if level is None else level
        if isinstance(k, Distribution):
            ks = self._draw(group, "k", k)
            ends = bound_entries(float(ks.min()), parameters)
            return ends, bound_entries(float(ks.max()), parameters)
        return k.k(parameters), k.k(parameters)

    def links(self) -> list[LinkSpec]:
        """Return one link per group, with arrays in place of drawn quantities.

        Delays per message come with the law in place of a table's column.
        """
        links = []
        for i, group in enumerate(self._world.clients):
            drawn: dict[str, Any] = {
                field.removeprefix("link."): values
                for field in FIELDS
                if field.startswith("link.")
                and (values := self.drawn(i, field)) is not None
            }
            for key in ("latency", "down_latency"):
                spec = getattr(group.link, key)
                if isinstance(spec, PerMessage):
                    with within(f"clients[{i}].link.{key}.per_message"):
                        law = _find_law(spec.per_message, LATENCY)
                    drawn[key] = spec.model_copy(update={"per_message": law})
            links.append(group.link.model_copy(update=drawn))
        return links

    def columns(self, parameters: Mapping[str, int]) -> list[FleetColumn]:
        """Return one column for each field of each group, in the order of `FIELDS`.

        `parameters`: prototype → d, to which K is limited. A link without loss or
        without a latency of its own on the way down has no such column.
        """
        return [
            column
            for i, group in enumerate(self._world.clients)
            for field in FIELDS
            if (
                column := self._make_column(
                    i, field, parameters.get(group.prototype, 0)
                )
            )
            is not None
        ]

    def availability(self) -> Availability:
        """Return the presence and failures by `availability` and `failure`."""
        groups = self._world.clients
        there = [(self.members(i), self._make_presence(i)) for i in range(len(groups))]
        return Availability(there, [group.failure for group in groups])

    def presence(self) -> Availability | None:
        """Return `availability`; None: everybody is always there, and nothing fails."""
        made = self.availability()
        fails = any(any(dict(group.failure).values()) for group in self._world.clients)
        return made if fails or not made.always else None

    def shares_there(self, at_s: Floats) -> Floats | None:
        """Return per instant (a row) and group the share of clients that are there.

        None: all, always.
        """
        availability = self.availability()
        if availability.always:
            return None
        groups = len(self._world.clients)
        counts = np.bincount(self.group, minlength=groups)
        there = [
            np.bincount(self.group[availability.mask(t)], minlength=groups)
            for t in at_s
        ]
        return np.array(there) / counts

    # ---- inside ----------------------------------------------------------------------

    def _make_column(
        self, group: int, field: str, parameters: int
    ) -> FleetColumn | None:
        of_group = self._world.clients[group]
        compressed = field == "k" and self._k_of_group
        spec = self._k_of_group[group] if compressed else _read_field(of_group, field)
        if isinstance(spec, Distribution):
            values = self._draw(group, field, spec)
            if field == "k":
                values = np.minimum(values, parameters)
            how = spec.given if spec.column is None else f"column {spec.column}"
            return FleetColumn(group, field, how, values, of_group.count)
        if isinstance(spec, TraceSpec | LatencyTrace | PerMessage):
            how = "per message" if isinstance(spec, PerMessage) else "trace"
            return FleetColumn(group, field, how, np.empty(0), of_group.count)
        if isinstance(spec, Level):
            spec = spec.k(parameters)
        elif field.startswith("device.assume."):
            return None
        elif (
            spec is None
            and field in ("link.up", "link.down")
            and of_group.link.cell is None
        ):
            spec = np.inf
        elif spec is None or (field == "link.loss" and spec == 0):
            return None
        return FleetColumn(
            group, field, "fixed", np.array([float(spec)]), of_group.count
        )

    def _make_presence(self, group: int) -> Presence:
        spec, members = self._world.clients[group].availability, self.members(group)
        drawn = {
            key: self.drawn(group, f"availability.markov.{key}")
            for key in ("on", "off")
        }
        stays = {key: values for key, values in drawn.items() if values is not None}
        key = "availability.trace" if getattr(spec, "trace", None) else "availability"
        with within(f"clients[{group}].{key}"):
            return build_presence(spec, members, self._streams, len(self), stays)

    @cached_property
    def _speeds(self) -> Floats | None:
        return self._join_column("device.speed")

    @cached_property
    def _times(self) -> dict[str, Floats]:
        columns = {
            work: self._join_column(f"device.assume.{work}")
            for work in AssumedTimes.model_fields
        }
        return {work: column for work, column in columns.items() if column is not None}

    @cached_property
    def _ks(self) -> Floats | None:
        return self._join_column("k")

    @cached_property
    def _k_of_group(self) -> list[Level | Distribution]:
        written = map(self._world.k_of_group, self._world.clients)
        return [
            k if isinstance(k, Distribution) else Level.of(k)
            for k in written
            if k is not None
        ]

    def _join_column(self, field: str) -> Floats | None:
        """Return a column for all clients, 1 for those whose group does not draw it.

        None where no group does.
        """
        groups = range(len(self._world.clients))
        drawn = {i: v for i in groups if (v := self.drawn(i, field)) is not None}
        if not drawn:
            return None
        column = np.ones(len(self))
        for i, values in drawn.items():
            column[self.members(i)] = values
        return column

    def _draw(self, group: int, field: str, spec: Distribution) -> Floats:
        quantity = SAMPLES if field == SIZES else FIELDS[field]
        with within(field if field == SIZES else f"clients[{group}].{field}"):
            law = spec.law(quantity)
            if law is not None:
                values = law.quantile(self._draw_uniform(field)[self.members(group)])
                # rounding up to the open end of the law's support
                if quantity.lt is not None:
                    values = np.minimum(values, np.nextafter(quantity.lt, 0))
            else:
                values = self._draw_from_table(group, field, spec)
        return np.maximum(np.rint(values), 1.0) if quantity.rounded else values

    def _draw_from_table(self, group: int, field: str, spec: Distribution) -> Floats:
        members, source = self.members(group), self._world.clients[group].devices
        if spec.table is not None:
            column = _Column.read(spec, spec)
            uniform = self._draw_uniform(field)[members]
        else:
            assert source is not None  # a scenario without is not valid
            column = _Column.read(source, spec)
            if source.rows == "in-order":
                rows = np.arange(len(members)) % len(column.numbers)
                return column.at(rows, FIELDS.get(field, SAMPLES))
            uniform = self._draw_uniform("devices")[members]
        rows = pick_positions(uniform, len(column.numbers), column.weights)
        return column.at(rows, FIELDS.get(field, SAMPLES))

    def _draw_uniform(self, field: str) -> Floats:
        return draw_uniform(self._streams, field, len(self))


def describe_forgotten_links(world: WorldSpec) -> list[str]:
    """Return a sentence for each group that says nothing of its link.

    Not even that it has none.
    """
    return [
        f"clients[{i}].link is omitted: its {group.count:,} clients send and receive "
        "over links of their own without limit or delay (`link: {}` says that this is "
        "meant)"
        for i, group in enumerate(world.clients)
        if "link" not in group.model_fields_set
    ]


@dataclass(frozen=True, eq=False)
class _Column:
    """A column of a table of which rows are drawn."""

    spec: Distribution
    cells: Columns
    weights: Floats | None

    @classmethod
    def read(cls, source: Distribution | DeviceTable, spec: Distribution) -> _Column:
        """Return the column that `spec` names of the table and rows of `source`.

        Raises: `InputError` for weights that are none.
        """
        assert source.table is not None
        assert spec.column is not None
        names = dict.fromkeys(filter(None, (spec.column, source.weights)))
        cells = read_columns(source.table, [*names], source.where)
        weights = None if source.weights is None else cells[source.weights]
        if weights is not None and source.weights is not None:
            bad = weights < 0 if weights.any() else weights == 0
            if bad.any():
                allowed = "weights of at least 0, one of them above 0"
                raise cells.refuse(source.weights, int(bad.argmax()), allowed)
        return cls(spec, cells, weights)

    @property
    def numbers(self) -> Floats:
        """The column as it is written."""
        return self.cells[str(self.spec.column)]

    def at(self, rows: Ints, quantity: Quantity) -> Floats:
        """Return the values of rows in base units.

        Raises: `InputError` for one that the quantity cannot have.
        """
        values = self.spec.convert(self.numbers[rows], quantity)
        if (bad := ~quantity.holds(values)).any():
            worst = int(bad.argmax())
            allowed = f"a column of which every value is {quantity.allowed}"
            row, name = int(rows[worst]), str(self.spec.column)
            becomes = values[worst] / quantity.read_unit(self.spec.unit)
            changed = becomes != self.numbers[row]
            hint = f"it becomes {becomes:g}" if changed else ""
            raise self.cells.refuse(name, row, allowed, hint)
        return values


def _find_law(spec: Distribution, quantity: Quantity) -> Law:
    """Return the law that is written, or that of the rows of a column of a table.

    Raises: `InputError`.
    """
    law = spec.law(quantity)
    if law is not None:
        return law
    column = _Column.read(spec, spec)
    values = column.at(np.arange(len(column.numbers)), quantity)
    return Discrete(
        tuple(values), () if column.weights is None else tuple(column.weights)
    )
