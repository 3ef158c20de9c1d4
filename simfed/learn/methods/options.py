"""Ranges of methods' options, each one sentence where it is left."""

from __future__ import annotations

import math

from simfed.ground.errors import InputError, check_known


def require_above_zero(**options: float | None) -> None:
    """Numbers above 0, or None.

    >>> require_above_zero(rate=0.0)
    Traceback (most recent call last):
    simfed.ground.errors.InputError: rate: got 0.0, expected a number above 0
    """
    for where, value in options.items():
        if value is not None and not 0 < value < math.inf:
            raise InputError("a number above 0", where=where, got=value)


def require_at_least(least: float, **options: float | None) -> None:
    """Numbers of at least `least`, or None."""
    for where, value in options.items():
        if value is not None and not least <= value < math.inf:
            raise InputError(f"a number of at least {least:g}", where=where, got=value)


def require_below_one(**options: float | None) -> None:
    """Numbers from 0 to below 1, or None."""
    for where, value in options.items():
        if value is not None and not 0 <= value < 1:
            raise InputError("a number from 0 to below 1", where=where, got=value)


def require_one_of(allowed: tuple[str, ...], **options: object) -> None:
    """Raises: `InputError` for an option that is not among `allowed`."""
    for where, value in options.items():
        check_known(value, allowed, where=where)
