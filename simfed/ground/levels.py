"""How much of an update travels.

A *level* is K as scenarios write it: a number of entries (`1000`), a share of all of them (`1%`),
or as many as hold a share of the update's energy (`energy:90%`), which is known once the update is.
"""

from __future__ import annotations

import re

import numpy as np

from simfed.ground.errors import InputError

__all__ = [
    "LEVEL",
    "LEVELS",
    "Level",
    "checked_level",
    "energy_level",
    "energy_of",
    "entries",
    "level_order",
]

Level = int | str
"""A number of entries, or as text a share of all of them or of the energy."""

LEVELS = "a whole number of at least 1, or a share of the parameters such as 1%"

_SHARE = r"(?:\d+\.?\d*|\.\d+)(?:e-?\d+)?\s*%"
_ENERGY = "energy:"
LEVEL = rf"(\d+|(?:{_ENERGY}\s*)?{_SHARE})"
"""The pattern of a level's text."""


def entries(level: Level | float, parameters: int) -> int:
    """K of an update of so many entries: at least 1, at most all of them; 0 where there are none.

    A share is rounded to the nearest whole number.

    >>> [entries(k, 61_706) for k in (1000, "1%", "0.0001%", 100_000)]
    [1000, 617, 1, 61706]
    >>> entries(1000, 0)
    0
    """
    if isinstance(level, str):
        level = float(level.rstrip("% ")) / 100 * parameters
    return min(max(1, round(level)), parameters)


def checked_level(level: object) -> Level:
    """`level` as arms and files have it. Raises: `InputError` for what is none.

    >>> checked_level(500), checked_level(" 1 %"), checked_level("energy: 90%")
    (500, '1%', 'energy:90%')
    """
    if isinstance(level, str) and re.fullmatch(rf"\s*(?:{_ENERGY})?\s*{_SHARE}\s*", level):
        plain = level.replace(" ", "")
        share = plain.removeprefix(_ENERGY)
        if 0 < float(share[:-1]) <= 100:
            number = np.format_float_positional(float(share[:-1]), trim="-")
            return f"{plain.removesuffix(share)}{number}%"
        if plain != share:
            raise InputError("a share of the energy above 0%, at most 100%", got=level)
    elif isinstance(level, int) and not isinstance(level, bool) and level >= 1:
        return level
    raise InputError(LEVELS, got=level)


def energy_level(share: float) -> str:
    """The level that keeps a share of the energy, given as a number up to 1.

    >>> energy_level(0.9)
    'energy:90%'
    """
    return f"{_ENERGY}{100 * share:.12g}%"


def energy_of(level: Level | None) -> float | None:
    """The share of an update's energy that a level keeps; None where it is of another kind.

    >>> energy_of("energy:90%"), energy_of("90%")
    (0.9, None)
    """
    if not isinstance(level, str) or not level.startswith(_ENERGY):
        return None
    return float(level[len(_ENERGY) :].rstrip("% ")) / 100


def level_order(level: Level) -> tuple[int, float]:
    """Sorts levels: numbers, shares and energies, each by how much they keep.

    >>> sorted(["2%", 1000, "energy:50%", "10%", 50], key=level_order)
    [50, 1000, '2%', '10%', 'energy:50%']
    """
    if isinstance(level, int):
        return 0, level
    energy = energy_of(level)
    return (1, float(level.rstrip("% "))) if energy is None else (2, energy)
