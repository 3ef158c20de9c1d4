"""Availability of clients: always, by a trace, by chance, by the time of day.

Or as a part of one's own says.

A *presence* answers for the clients of one group, by their places 0 … n − 1 in it;
`Availability` puts the groups of a fleet together and answers by client id. Every
answer is a function of the instant alone, and of what clients have worked where a
presence asks to be told (`WorkObserver`): asking in another order, twice, or after a
resumed run changes nothing. Intervals are half-open: a client that comes at 5 s and
goes at 8 s is there at 5 s and not at 8 s.

Cost: a question about everybody at an instant not before the last one costs a pass over
columns and the changes in between; an earlier instant is answered from the beginning
again. Nothing is stored per client but a few numbers, and no interval is made before
somebody asks.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from pydantic import Field

from simfed.ground.arrays import Bools, Floats, Ints
from simfed.ground.errors import InputError, within
from simfed.ground.seeding import Streams
from simfed.ground.tables import read_columns
from simfed.schema.fields import Fraction
from simfed.schema.section import Section

_DAY_S = 86_400.0
_TIME = re.compile(r"^([01]?\d|2[0-4]):([0-5]\d)$")


def parse_time_of_day_s(text: object) -> float:
    """Return seconds after midnight from `22:00`, up to `24:00`.

    >>> parse_time_of_day_s("06:30"), parse_time_of_day_s("24:00")
    (23400.0, 86400.0)
    """
    match = _TIME.match(text) if isinstance(text, str) else None
    seconds = 3600.0 * int(match[1]) + 60.0 * int(match[2]) if match else -1.0
    if not 0 <= seconds <= _DAY_S:
        raise InputError('a time of day in quotes such as "22:00"', got=text)
    return seconds


class Presence(Protocol):
    """Availability of the clients of one group."""

    def mask(self, at_s: float) -> Bools:
        """Return per client, in their order, whether it is there at an instant."""
        ...

    def there(self, place: int, at_s: float) -> bool:
        """Return whether the client at this place is there at an instant."""
        ...

    def change_after(self, place: int, at_s: float) -> float:
        """Return the first instant after `at_s` at which this client comes or goes.

        Inf: never again.
        """
        ...

    def arrival_after(self, at_s: float) -> float:
        """Return the first instant after `at_s` at which some client comes.

        Inf: nobody ever again.
        """
        ...


@runtime_checkable
class WorkObserver(Protocol):
    """A `Presence` that hangs on what its clients have worked, as with batteries."""

    def worked(
        self, place: int, ended_s: float, worked_s: float, energy_j: float | None
    ) -> None:
        """Take note that a participation of this client has ended at an instant.

        `worked_s`: seconds of it, from the server's first byte to its upload's last;
        `energy_j`: joules of them where its device's profile knows its power. Told when
        it ends, lost or not, before the server chooses anew.
        """
        ...


@runtime_checkable
class BatteryHolder(Protocol):
    """A `Presence` whose clients have batteries."""

    def battery(self, place: int, at_s: float) -> float:
        """Return how full the battery of the client at this place is, as a share."""
        ...


class PresenceKind(Protocol):
    """A part of the kind `availability`.

    `simfed.register("availability", NAME, part)` takes something that makes one of its
    options.
    """

    def presence(self, clients: Ints, streams: Streams) -> Presence:
        """Return the presence of one group: `clients` are its ids, ascending.

        Draws are keyed by these.
        """
        ...


class Always:
    """The presence of clients that are there at all times."""

    def __init__(self, count: int) -> None:
        self._count = count

    def mask(self, at_s: float) -> Bools:
        """Return True for each client."""
        return np.ones(self._count, dtype=bool)

    def there(self, place: int, at_s: float) -> bool:
        """Return True."""
        return True

    def change_after(self, place: int, at_s: float) -> float:
        """Return inf."""
        return math.inf

    def arrival_after(self, at_s: float) -> float:
        """Return inf."""
        return math.inf


class Daily:
    """The presence of clients from one time of day to another, in their time zones.

    Simulated time 0 is midnight at UTC.

    >>> night = Daily(22 * 3600, 6 * 3600, np.array([0.0, 8 * 3600]))
    >>> night.mask(0.0), night.change_after(1, 0.0) / 3600
    (array([ True, False]), 14.0)
    """

    def __init__(self, from_s: float, to_s: float, zones_s: Floats) -> None:
        """Fix the hours.

        Args:
            from_s: when clients come, seconds after their midnight.
            to_s: when they go; before `from_s`: on the next day.
            zones_s: seconds ahead of UTC, one per client.
        """
        self._length_s = (to_s - from_s) % _DAY_S
        self._first_s = (from_s - np.asarray(zones_s, dtype=np.float64)) % _DAY_S
        """The instant at which each client comes on day 0; on day k, k days later."""

    def _find_day(self, first_s: Any, at_s: float) -> Any:
        """Return the day on which a client last came.

        Compared as `_came_s` computes, so that nobody is still away at the instant at
        which it comes.
        """
        day = np.floor((at_s - first_s) / _DAY_S)
        day = np.where(self._came_s(first_s, day + 1) <= at_s, day + 1, day)
        return np.where(self._came_s(first_s, day) > at_s, day - 1, day)

    @staticmethod
    def _came_s(first_s: Any, day: Any) -> Any:
        return day * _DAY_S + first_s

    def mask(self, at_s: float) -> Bools:
        """Return per client whether it is there at an instant."""
        came_s = self._came_s(self._first_s, self._find_day(self._first_s, at_s))
        return np.asarray(at_s < came_s + self._length_s, dtype=bool)

    def there(self, place: int, at_s: float) -> bool:
        """Return whether a client is there at an instant."""
        first_s = self._first_s[place]
        return bool(
            at_s < self._came_s(first_s, self._find_day(first_s, at_s)) + self._length_s
        )

    def change_after(self, place: int, at_s: float) -> float:
        """Return the instant at which a client that is there goes."""
        first_s = self._first_s[place]
        day = self._find_day(first_s, at_s)
        went_s = float(self._came_s(first_s, day) + self._length_s)
        return went_s if at_s < went_s else float(self._came_s(first_s, day + 1))

    def arrival_after(self, at_s: float) -> float:
        """Return the next instant at which a client comes."""
        next_day = self._find_day(self._first_s, at_s) + 1
        return float(self._came_s(self._first_s, next_day).min())


class Markov:
    """The presence of clients that come and go at exponential times.

    Stationary from time 0 on: then a client is there with probability on/(on + off),
    and what is left of its first stay has the same exponential distribution as any
    other (the process has no memory). A client's stay number j hangs on the run's seed,
    the client's id and j alone.
    """

    def __init__(
        self,
        streams: Streams,
        clients: Ints,
        on_s: float | Floats,
        off_s: float | Floats,
    ) -> None:
        """Prepare stays, of which none is drawn before somebody asks.

        Args:
            streams: keyed generators.
            clients: ids, keys of the draws.
            on_s: mean stay: one number for all, or one per client; above 0.
            off_s: mean absence.
        """
        self._streams = streams
        self._clients = np.asarray(clients, dtype=np.int64)
        count = len(self._clients)
        means = [
            np.broadcast_to(np.asarray(x, dtype=np.float64), count)
            for x in (off_s, on_s)
        ]
        for name, mean in zip(("off", "on"), means, strict=True):
            if not ((mean > 0) & (mean < math.inf)).all():
                raise InputError(
                    "a mean stay above 0 s", where=name, got=f"{mean.min():g} s"
                )
        self._off_s, self._on_s = means
        self._everybody: _Stays | None = None

    def _first(self, places: Ints) -> _Stays:
        zero, one = (np.full(len(places), k, dtype=np.int64) for k in (0, 1))
        share = self._on_s[places] / (self._on_s[places] + self._off_s[places])
        on = self._draw(places, zero) < share
        return _Stays(0.0, on, one + 1, self._length_s(places, on, one))

    def _move(self, stays: _Stays, places: Ints, at_s: float) -> None:
        """Move on from the stays at an earlier instant to those at `at_s`."""
        due = np.flatnonzero(stays.until_s <= at_s)
        while due.size:
            on = stays.on[due] = ~stays.on[due]
            stays.until_s[due] += self._length_s(places[due], on, stays.drawn[due])
            stays.drawn[due] += 1
            due = due[stays.until_s[due] <= at_s]
        stays.at_s = at_s

    def _length_s(self, places: Ints, on: Bools, number: Ints) -> Floats:
        mean_s = np.where(on, self._on_s[places], self._off_s[places])
        length_s: Floats = -mean_s * np.log(self._draw(places, number))
        return length_s

    def _draw(self, places: Ints, number: Ints) -> Floats:
        return self._streams.uniform_at(
            "availability", client=self._clients[places], number=number
        )

    def _at(self, at_s: float) -> _Stays:
        places = np.arange(len(self._clients))
        if self._everybody is None or at_s < self._everybody.at_s:
            self._everybody = self._first(places)
        if at_s > self._everybody.at_s:
            self._move(self._everybody, places, at_s)
        return self._everybody

    def _of(self, place: int, at_s: float) -> tuple[bool, float]:
        """Return whether a client is there at an instant, and until when it holds."""
        everybody, places = self._everybody, np.array([place])
        if everybody is None or at_s < everybody.at_s:
            stay = self._first(places)
        elif everybody.until_s[place] > at_s:
            return bool(everybody.on[place]), float(everybody.until_s[place])
        else:
            stay = _Stays(
                everybody.at_s,
                everybody.on[places],
                everybody.drawn[places],
                everybody.until_s[places],
            )
        self._move(stay, places, at_s)
        return bool(stay.on[0]), float(stay.until_s[0])

    def mask(self, at_s: float) -> Bools:
        """Return per client whether it is there at an instant."""
        there: Bools = self._at(at_s).on.copy()
        return there

    def there(self, place: int, at_s: float) -> bool:
        """Return whether a client is there at an instant."""
        return self._of(place, at_s)[0]

    def change_after(self, place: int, at_s: float) -> float:
        """Return the instant at which a client that is there goes."""
        return self._of(place, at_s)[1]

    def arrival_after(self, at_s: float) -> float:
        """Return the next instant at which a client comes."""
        stays = self._at(at_s)
        first_s = float(np.min(stays.until_s, initial=math.inf, where=~stays.on))
        # who is there may go and be back before the first of the others
        back = np.flatnonzero(stays.on & (stays.until_s < first_s))
        if back.size:
            off = np.zeros(len(back), dtype=bool)
            back_s = stays.until_s[back] + self._length_s(back, off, stays.drawn[back])
            first_s = min(first_s, float(back_s.min()))
        return first_s


@dataclass
class _Stays:
    """The stay that each of some clients is in at an instant."""

    at_s: float
    on: Bools
    drawn: Ints
    """Numbers that each client has used up."""
    until_s: Floats


@dataclass(frozen=True)
class Intervals:
    """The stays of a recorded trace's devices: disjoint intervals, in order.

    None touch. `ids`: of the devices, ascending; `bounds`: device k's intervals are
    `[bounds[k], bounds[k + 1])`.
    """

    ids: Ints
    bounds: Ints
    from_s: Floats
    to_s: Floats

    @classmethod
    def of(cls, ids: Ints, from_s: Floats, to_s: Floats) -> Intervals:
        """Return the intervals in rows of any order; those that touch become one.

        Raises: `InputError` for a reversed or negative interval, and for two that
        overlap.
        """
        for row in np.flatnonzero(
            ~((from_s >= 0) & (from_s < to_s) & (to_s < math.inf))
        ):
            raise InputError(
                "an interval from an instant of at least 0 s to a later one",
                where=f"row {row + 1}",
                got=[float(from_s[row]), float(to_s[row])],
            )
        order = np.lexsort((from_s, ids))
        ids, from_s, to_s = ids[order], from_s[order], to_s[order]
        same = ids[1:] == ids[:-1]
        for k in np.flatnonzero(same & (from_s[1:] < to_s[:-1])):
            pair = [[float(from_s[i]), float(to_s[i])] for i in (k, k + 1)]
            raise InputError(
                f"intervals of client {ids[k]} that do not overlap", got=pair
            )
        touches = same & (from_s[1:] == to_s[:-1])
        begins, ends = np.r_[True, ~touches], np.r_[~touches, True]
        names, first = np.unique(ids[begins], return_index=True)
        bounds = np.r_[first, int(begins.sum())].astype(np.int64)
        return cls(names.astype(np.int64), bounds, from_s[begins], to_s[ends])


def read_trace(path: str) -> Intervals:
    """Return the intervals in a CSV or Parquet table.

    It has the columns `client, from_s, to_s`.

    Raises: `InputError` that names the file.
    """
    table = read_columns(path, ("client", "from_s", "to_s"))
    ids = table["client"]
    for row in np.flatnonzero((ids != np.floor(ids)) | (ids < 0) | (ids >= 2.0**63)):
        raise table.refuse("client", int(row), "a client's number, from 0 on")
    with within(path):
        return Intervals.of(ids.astype(np.int64), table["from_s"], table["to_s"])


class PresenceTrace:
    """The presence of clients in a device's recorded intervals, once or repeated.

    >>> begins, ends = np.array([1.0, 5.0]), np.array([3.0, 6.0])
    >>> record = Intervals.of(np.array([0, 0]), begins, ends)
    >>> once = PresenceTrace(record, np.array([0]))
    >>> daily = PresenceTrace(record, np.array([0]), period_s=10.0)
    >>> once.change_after(0, 5.0), once.change_after(0, 6.0), daily.change_after(0, 6.0)
    (6.0, inf, 11.0)
    """

    def __init__(
        self, intervals: Intervals, devices: Ints, period_s: float = math.inf
    ) -> None:
        """Give clients the intervals of devices.

        Args:
            intervals: the record.
            devices: for each client the index of its device in it; −1: never there.
            period_s: the record repeats after so long; inf: nobody is there after its
                last interval.

        Raises:
            InputError: a period that is shorter than the record.
        """
        self._devices = np.asarray(devices, dtype=np.int64)
        self._period_s = period_s
        if intervals.to_s.size and intervals.to_s.max() > period_s:
            allowed = f"a period of at least the trace's {intervals.to_s.max():g} s"
            raise InputError(allowed, where="period", got=f"{period_s:g} s")
        used = np.zeros(len(intervals.ids), dtype=bool)
        used[self._devices[self._devices >= 0]] = True
        device = np.repeat(np.arange(len(intervals.ids)), np.diff(intervals.bounds))
        self._changes: list[Floats | None] = [None] * len(intervals.ids)
        self._intervals = intervals
        keep = used[device]
        starts, device = intervals.from_s[keep], device[keep]
        ends = self._ends_s(intervals)[keep]
        self._starts_s = np.unique(starts[~self._goes_on(intervals, starts, device)])
        at_s, on = np.r_[starts, ends], np.repeat([True, False], len(starts))
        order = np.argsort(at_s, kind="stable")
        self._event_s, self._event_on = at_s[order], on[order]
        self._event_device = np.r_[device, device][order]
        # the last one: no device
        self._there = np.zeros(len(intervals.ids) + 1, dtype=bool)
        self._applied = 0

    def _ends_s(self, intervals: Intervals) -> Floats:
        """Return the ends within a turn, which the turn's own end cuts."""
        return np.where(intervals.to_s == self._period_s, math.inf, intervals.to_s)

    def _goes_on(self, intervals: Intervals, starts: Floats, device: Ints) -> Bools:
        """Return which intervals begin at 0 and go on from the end of the period.

        The same device is there then.
        """
        last_s = intervals.to_s[intervals.bounds[device + 1] - 1]
        return np.asarray((starts == 0) & (last_s == self._period_s), dtype=bool)

    def _find_turns_s(self, at_s: float) -> tuple[float, float]:
        """Return the beginnings of the present turn of the record and of the next."""
        if self._period_s == math.inf:
            return 0.0, math.inf
        turn = math.floor(at_s / self._period_s)
        if (turn + 1) * self._period_s <= at_s:  # where the quotient was rounded
            turn += 1
        elif turn * self._period_s > at_s:
            turn -= 1
        return turn * self._period_s, (turn + 1) * self._period_s

    @staticmethod
    def _count_past(times_s: Floats, turn_s: float, at_s: float) -> int:
        """Return how many of the ascending `times_s` are over.

        They are compared as instants are computed.
        """
        k = int(np.searchsorted(times_s, at_s - turn_s, side="right"))
        while k < len(times_s) and turn_s + times_s[k] <= at_s:
            k += 1
        while k > 0 and turn_s + times_s[k - 1] > at_s:
            k -= 1
        return k

    def mask(self, at_s: float) -> Bools:
        """Return per client whether it is there at an instant."""
        k = self._count_past(self._event_s, self._find_turns_s(at_s)[0], at_s)
        if k < self._applied:
            self._there[:] = False
            self._applied = 0
        # of several events of one device the last one counts
        due = slice(self._applied, k)
        self._there[self._event_device[due]] = self._event_on[due]
        self._applied = k
        there: Bools = self._there[self._devices]
        return there

    def _changes_of(self, place: int) -> Floats:
        """Return the instants in one turn at which a client's device comes and goes."""
        device = int(self._devices[place])
        if device < 0:
            return np.empty(0)
        changes = self._changes[device]
        if changes is None:
            a, b = self._intervals.bounds[device : device + 2]
            ends_s = self._ends_s(self._intervals)[a:b]
            pairs = np.column_stack([self._intervals.from_s[a:b], ends_s])
            changes = self._changes[device] = pairs.ravel()
        return changes

    def there(self, place: int, at_s: float) -> bool:
        """Return whether a client is there at an instant."""
        return (
            self._count_past(self._changes_of(place), self._find_turns_s(at_s)[0], at_s)
            % 2
            == 1
        )

    def change_after(self, place: int, at_s: float) -> float:
        """Return the instant at which a client that is there goes."""
        changes, (turn_s, next_s) = self._changes_of(place), self._find_turns_s(at_s)
        k = self._count_past(changes, turn_s, at_s)
        if not len(changes):
            return math.inf
        stays = math.isinf(changes[-1])  # until the end of the turn
        if k < len(changes) - stays:
            return float(turn_s + changes[k])
        if not stays:
            return float(next_s + changes[0])
        if changes[0] > 0:
            return next_s
        return float(next_s + changes[1])

    def arrival_after(self, at_s: float) -> float:
        """Return the next instant at which a client comes."""
        (turn_s, next_s), starts = self._find_turns_s(at_s), self._starts_s
        k = self._count_past(starts, turn_s, at_s)
        if k < len(starts):
            return float(turn_s + starts[k])
        again = len(starts) and self._period_s < math.inf
        return float(next_s + starts[0]) if again else math.inf


class Failure(Section):
    """The probability that a participation fails at the end of each phase."""

    download: Fraction = Field(default=0.0, description="of those that began it")
    training: Fraction = Field(default=0.0, description="of those that began it")
    upload: Fraction = Field(default=0.0, description="of those that began it")


class Availability:
    """The presence of a fleet's clients, group by group, and their failures.

    >>> fleet = Availability([(np.array([0, 2]), Always(2)),
    ...                       (np.array([1]), Daily(0.0, 6 * 3600.0, np.array([0.0])))])
    >>> fleet.mask(7 * 3600.0), fleet.change_after(1, 7 * 3600.0) / 3600
    (array([ True, False,  True]), 24.0)
    """

    def __init__(
        self, groups: Sequence[tuple[Ints, Presence]], failures: Sequence[Failure] = ()
    ) -> None:
        """Join groups.

        Args:
            groups: the ids of each group's clients, ascending, and their presence.
            failures: of each group, where any are to fail.
        """
        self._groups, self._failures = list(groups), failures
        count = sum(len(ids) for ids, _ in groups)
        self.always = all(isinstance(presence, Always) for _, presence in groups)
        """Nobody ever comes or goes."""
        self.follows_work = any(
            isinstance(presence, WorkObserver) for _, presence in groups
        )
        """Somebody's presence hangs on what was worked."""
        self._group = np.empty(count, dtype=np.int32)
        self._place = np.empty(count, dtype=np.int32)
        for number, (ids, _) in enumerate(groups):
            self._group[ids] = number
            self._place[ids] = np.arange(len(ids), dtype=np.int32)

    def mask(self, at_s: float) -> Bools:
        """Return for every client id whether it is there."""
        present = np.ones(len(self._group), dtype=bool)
        for ids, presence in self._groups if not self.always else ():
            present[ids] = presence.mask(at_s)
        return present

    def available(self, at_s: float) -> Ints:
        """Return the ids of the clients that are there, ascending."""
        return np.flatnonzero(self.mask(at_s))

    def there(self, client: int, at_s: float) -> bool:
        """Return whether this client is there at an instant."""
        presence, place = self._of(client)
        return presence.there(place, at_s)

    def change_after(self, client: int, at_s: float) -> float:
        """Return the first instant after `at_s` at which this client comes or goes.

        Inf: never again.
        """
        presence, place = self._of(client)
        return presence.change_after(place, at_s)

    def arrival_after(self, at_s: float) -> float:
        """Return the first instant after `at_s` at which some client comes.

        Inf: nobody ever again.
        """
        return min(
            (presence.arrival_after(at_s) for _, presence in self._groups),
            default=math.inf,
        )

    def battery(self, client: int, at_s: float) -> float:
        """Return how full a client's battery is, as a share; 1 where it has none."""
        presence, place = self._of(client)
        if not isinstance(presence, BatteryHolder):
            return 1.0
        return presence.battery(place, at_s)

    def failure(self, client: int, phase: str) -> float:
        """Return the probability that a phase of this client fails.

        Phases are `download`, `training`, `upload`.
        """
        if not self._failures:
            return 0.0
        return float(getattr(self._failures[int(self._group[client])], phase, 0.0))

    def worked(
        self, client: int, ended_s: float, worked_s: float, energy_j: float | None
    ) -> None:
        """Tell a client's presence what it has worked, see `WorkObserver`."""
        presence, place = self._of(client)
        if isinstance(presence, WorkObserver):
            presence.worked(place, ended_s, worked_s, energy_j)

    def _of(self, client: int) -> tuple[Presence, int]:
        return self._groups[int(self._group[client])][1], int(self._place[client])
