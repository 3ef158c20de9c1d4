"""The parts of a case, checked: its lists of mappings, and their keys as columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from math import isfinite

from simfed.ground.errors import InputError, did_you_mean, listed
from simfed.ground.units import read_number
from simfed.net.flows import LEAST_WEIGHT, MOST_WEIGHT


def read_mappings(
    case: Mapping[str, object], key: str, names: Set[str]
) -> Sequence[Mapping[str, object]]:
    """The list of mappings under a key of a case; `names`: the keys that mean something."""
    parts = case.get(key)
    if not isinstance(parts, Sequence) or isinstance(parts, str) or not parts:
        raise InputError("a list that is not empty", where=key, got=parts)
    for number, part in enumerate(parts):
        check_mapping(part, names, f"{key}[{number}]")
    return parts


def check_mapping(part: object, names: Set[str], where: str) -> Mapping[str, object]:
    """`part`, which is to be a mapping."""
    if not isinstance(part, Mapping):
        raise InputError("a mapping", where=where, got=shorten_value(part))
    if not part.keys() <= names:
        _check_spelling(part, names, where)
    return part


def _check_spelling(part: Mapping[str, object], names: Set[str], where: str) -> None:
    # Measurements come with keys of their own; only one that misses one of ours is wrong.
    missing = sorted(names - part.keys())
    for key in part:
        hint = did_you_mean(str(key), missing)
        if key not in names and hint:
            allowed = f"one of the keys {listed(sorted(names))}"
            raise InputError(allowed, where=where, got=key, hint=hint)


def is_positive(x: float) -> bool:
    """Whether it is above 0."""
    return x > 0


def read_numbers(
    parts: Sequence[Mapping[str, object]],
    name: str,
    key: str,
    default: float | None,
    allowed: str,
    within: Callable[[float], bool] = lambda x: x >= 0,
) -> list[float]:
    """One key of all links or flows; `default` stands for a missing one or null, unless it is
    None."""
    values = []
    for number, part in enumerate(parts):
        value = part.get(key)
        if value is None and default is not None:
            values.append(default)
            continue
        x = read_number(value)
        if not isfinite(x) or not within(x):
            got = value if key in part else "nothing"
            raise InputError(allowed, where=f"{name}[{number}].{key}", got=got)
        values.append(x)
    return values


def weights(flows: Sequence[Mapping[str, object]]) -> list[float]:
    """The weight of each flow; 1 where none is stated."""
    allowed = f"a number from {LEAST_WEIGHT:g} to {MOST_WEIGHT:g}"
    return read_numbers(
        flows, "flows", "weight", 1.0, allowed, lambda x: LEAST_WEIGHT <= x <= MOST_WEIGHT
    )


def shorten_value(value: object) -> object:
    """What an error shows of a value that may be long."""
    if isinstance(value, Mapping):
        return "a mapping"
    return "a list" if isinstance(value, list) else value
