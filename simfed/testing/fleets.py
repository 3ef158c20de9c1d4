"""The contract of client selections and of kinds of availability."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from simfed.fleet.availability import Presence, PresenceKind, WorkObserver
from simfed.fleet.selection import ClientSelection, Facts
from simfed.ground.seeding import Streams
from simfed.testing.common import no_global_randomness, require


def check_selection(cls: Callable[..., ClientSelection], **options: object) -> None:
    """Check a selection class, made as `cls(**options)`.

    - `choose` gives sorted, distinct int64 ids of those it was offered: as many as
      wanted, all of them where there are not more, or always all of them; where it says
      `varies`, as many as it draws;
    - it is a function of ids, count, facts, round and rng: no global randomness, no
      memory;
    - facts of clients that it was not offered make no difference, and no column is
      written to;
    - it copes with clients of which nothing is known yet, and with equal ones.

    Args:
        cls: the class, or a function that makes an object of it.
        options: keywords with which it is made.

    Raises:
        AssertionError: at the first clause that it breaks, in one sentence.
    """
    with no_global_randomness():
        for world in range(12):
            _check_choice(cls, options, Streams(world))


def _check_choice(
    cls: Callable[..., ClientSelection], options: Any, streams: Streams
) -> None:
    """Check the choices of one selection in a world of forty clients.

    Some seventy per cent of them are there.

    Args:
        cls: makes the selection.
        options: keywords of it.
        streams: of the world; its seed decides how much is known of clients.
    """
    clients, round = 40, 1 + 9 * (streams.seed % 3)
    facts = _draw_facts(clients, streams)
    before = [column.copy() for column in vars(facts).values()]
    offered = np.flatnonzero(streams("offered").random(clients) < 0.7)
    selection = cls(**options)
    others = _draw_facts(clients, Streams(1000 + streams.seed))
    strange = Facts(
        *(
            _replace_entries(a, b, offered)
            for a, b in zip(vars(others).values(), before, strict=True)
        )
    )
    for count in (1, 2, len(offered) // 2, len(offered) - 1, len(offered), clients):
        where = f"{count} of {len(offered)} clients, round {round}"

        def choose(
            part: ClientSelection, told: Facts, count: int = count
        ) -> np.ndarray[Any, np.dtype[np.int64]]:
            return part.choose(
                offered, count, told, round=round, rng=streams("selection", round)
            )

        chosen = choose(selection, facts)
        shaped = (
            isinstance(chosen, np.ndarray)
            and chosen.dtype == np.int64
            and chosen.ndim == 1
        )
        require(shaped, f"a flat int64 array of ids; {where}")
        require(bool((np.diff(chosen) > 0).all()), f"sorted, distinct ids; {where}")
        require(
            bool(np.isin(chosen, offered).all()),
            f"ids of those it was offered; {where}",
        )
        varies = getattr(selection, "varies", False)
        enough = varies or len(chosen) in (min(count, len(offered)), len(offered))
        require(enough, f"as many as wanted, or all, got {len(chosen)}; {where}")
        again = choose(cls(**options), facts)
        require(
            np.array_equal(again, chosen),
            f"the same choice from the same facts; {where}",
        )
        same = np.array_equal(choose(selection, strange), chosen)
        require(same, f"no look at clients that were not offered; {where}")
    untouched = all(
        np.array_equal(a, b, equal_nan=True)
        for a, b in zip(vars(facts).values(), before, strict=True)
    )
    require(untouched, "columns that are left alone")


def _draw_facts(clients: int, streams: Streams) -> Facts:
    """Return facts of which a third is unknown.

    In every third world nothing is known, in every other all are equal.

    Args:
        clients: how many.
        streams: of the world.
    """
    facts = Facts.unknown(streams("samples").integers(1, 100, clients))
    if streams.seed % 3 == 0:
        return facts
    seen = streams("seen").random(clients) < 2 / 3
    scale = 0.0 if streams.seed % 2 else 1.0
    facts.duration_s[seen] = 1.0 + scale * streams("duration").random(clients)[seen]
    facts.loss[seen] = 0.5 + scale * streams("loss").random(clients)[seen]
    facts.picked[seen] = 1 + (scale * streams("picked").integers(0, 30, clients)[seen])
    facts.last_round[seen] = 1
    return facts


def _replace_entries(column: Any, by: Any, where: Any) -> Any:
    """Return a copy of a column with the entries at some places taken from another."""
    column = column.copy()
    column[where] = by[where]
    return column


def check_availability(cls: Callable[..., PresenceKind], **options: object) -> None:
    """Check an availability class, made as `cls(**options)`.

    - `presence(clients, streams)` answers for its clients by their places: `mask`,
      `there`, `change_after` and `arrival_after` tell one truth, intervals half-open;
    - answers hang on the instant alone, in whatever order they are asked for, on the
      clients' ids, and on the streams: no global randomness;
    - where it is told what was worked (`worked`), the same work comes to the same
      answers.

    Args:
        cls: the class, or a function that makes an object of it.
        options: keywords with which it is made.

    Raises:
        AssertionError: at the first clause that it breaks, in one sentence.
    """
    clients = np.array([2, 3, 5, 900_000])

    def make(there: np.ndarray[Any, np.dtype[np.int64]] = clients) -> Presence:
        return cls(**options).presence(there, Streams(1))

    instants = [0.0, *Streams(2)("instants").uniform(0.0, 4 * 86_400.0, 24).tolist()]
    with no_global_randomness():
        one, other = make(), make()
        _check_answers(one, len(clients), instants)
        for at_s in sorted(instants, reverse=True):
            same = np.array_equal(other.mask(at_s), make().mask(at_s))
            require(
                same,
                f"the same answer in whatever order it is asked for; at {at_s!r} s",
            )
        if not isinstance(one, WorkObserver):
            alone = make(clients[2:])
            same = all(np.array_equal(one.mask(t)[2:], alone.mask(t)) for t in instants)
            require(
                same, "answers for a client that hang on no other client of its group"
            )
            return
        assert isinstance(other, WorkObserver)
        for nth, at_s in enumerate(sorted(instants)):
            done = nth % len(clients), at_s, 600.0, 5_000.0 * (nth % 3)
            one.worked(*done)
            other.worked(*done)
            later = [at_s + 3_600.0 * hours for hours in range(1, 30, 7)]
            _check_answers(one, len(clients), later)
            same = all(np.array_equal(one.mask(t), other.mask(t)) for t in later)
            require(same, f"the same answers after the same work; at {at_s!r} s")


def _check_answers(presence: Presence, count: int, instants: Sequence[float]) -> None:
    """Check that all that a presence says of some instants is one truth.

    Args:
        presence: of `count` clients.
        count: places from 0 on.
        instants: in seconds, in any order.
    """
    for at_s in instants:
        mask, where = presence.mask(at_s), f"at {at_s!r} s"
        shaped = (
            isinstance(mask, np.ndarray)
            and mask.shape == (count,)
            and mask.dtype == np.bool_
        )
        require(shaped, f"a mask with a bool for each of {count} clients; {where}")
        arrivals = []
        for place in range(count):
            there = presence.there(place, at_s)
            require(
                there == mask[place], f"`there` as in the mask; place {place}, {where}"
            )
            change_s = presence.change_after(place, at_s)
            require(
                change_s > at_s, f"a change later than asked; place {place}, {where}"
            )
            if change_s < math.inf:
                just_before_s = math.nextafter(change_s, -math.inf)
                changes = presence.there(place, change_s) != there
                changes &= presence.there(place, just_before_s) == there
                require(
                    changes,
                    f"a change at the instant that is named; place {place}, {where}",
                )
            if not there:
                arrivals.append(change_s)
        arrival_s = presence.arrival_after(at_s)
        later = at_s < arrival_s <= min(arrivals, default=math.inf)
        require(
            later,
            f"the next arrival, after the instant and not after a known one; {where}",
        )
