"""How much of an update travels, and the names of arms that say it.

A *level* is K as scenarios write it: a number of entries (`1000`), a share of all of them (`1%`),
or as many as hold a share of the update's energy (`energy:90%`), which is known once the update is.
An *arm* is what a policy chooses: a codec's label and, where the level belongs to the choice, the
level behind an `@`, as in `top-k@1000` or `random-k+qsgd(4)@1%`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

import numpy as np

from simfed.errors import InputError

__all__ = [
    "LEVELS",
    "Level",
    "all_pairs",
    "arm_of",
    "checked_level",
    "energy_level",
    "energy_of",
    "entries",
    "level_order",
    "split_arm",
]

Level = int | str
"""A number of entries, or as text a share of all of them or of the energy."""

LEVELS = "a whole number of at least 1, or a share of the parameters such as 1%"

_SHARE = r"(?:\d+\.?\d*|\.\d+)(?:e-?\d+)?\s*%"
_ENERGY = "energy:"
_ARM = re.compile(rf"(.+)@\s*(\d+|(?:{_ENERGY}\s*)?{_SHARE})\s*", re.DOTALL)


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


def arm_of(codec: str, level: Level | None) -> str:
    """The arm's name.

    >>> arm_of("top-k", 1000), arm_of("dense", None)
    ('top-k@1000', 'dense')
    """
    return codec if level is None else f"{codec}@{level}"


@lru_cache(maxsize=4096)
def split_arm(arm: str) -> tuple[str, Level | None]:
    """(codec's label, level) of an arm; no level where the choice is of the codec alone.

    >>> split_arm("top-k+qsgd(4)@1%"), split_arm("top-k@500"), split_arm("top-k")
    (('top-k+qsgd(4)', '1%'), ('top-k', 500), ('top-k', None))
    """
    found = _ARM.fullmatch(arm)
    if found is None:
        return arm, None
    codec, level = found.groups()
    return codec, int(level) if level.isdigit() else level


def all_pairs(arms: Iterable[str]) -> bool:
    """Whether there are levels, and every codec that has any comes with all of them.

    >>> all_pairs(["top-k@1", "top-k@2", "dense"]), all_pairs(["top-k@1", "random-k@2"])
    (True, False)
    """
    levels: dict[str, list[Level]] = {}
    for codec, level in map(split_arm, arms):
        levels.setdefault(codec, []).extend([] if level is None else [level])
    sets = [frozenset(of) for of in levels.values() if of]
    return bool(sets) and len(set(sets)) == 1
