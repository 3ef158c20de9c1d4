"""Checks of the options that codecs are made with: one sentence each."""

from __future__ import annotations

import math

from simfed.ground.errors import InputError
from simfed.ground.plain import Plain


def check_whole(option: str, value: object, least: int, most: int) -> None:
    """Raise `InputError` unless `value` is a whole number in these bounds."""
    if (
        isinstance(value, bool)
        or not isinstance(value, int)
        or not least <= value <= most
    ):
        raise InputError(
            f"a whole number from {least} to {most}", where=option, got=value
        )


def check_number(option: str, value: Plain, *, above: float) -> None:
    """Raise `InputError` unless `value` is a finite number above a bound."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not above < value < math.inf:
        raise InputError(f"a number above {above}", where=option, got=value)
