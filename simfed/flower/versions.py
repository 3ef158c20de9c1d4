"""Which Flower this works with."""

from __future__ import annotations

from importlib import metadata

from simfed.errors import InputError

__all__ = ["HIGHEST", "LOWEST", "flower_version"]

LOWEST, HIGHEST = (1, 38), (1, 42)
"""Both are tested; before them the grid's messages stood elsewhere."""


def flower_version() -> str:
    """The version of Flower that is installed.

    Raises: `InputError` where there is none, or one outside of `LOWEST` to `HIGHEST`.
    """
    wanted = f"flwr {_shown(LOWEST)} to {_shown(HIGHEST)}"
    hint = "pip install 'simfed[flower]'"
    try:
        found = metadata.version("flwr")
    except metadata.PackageNotFoundError:
        raise InputError(wanted, where="Flower", got="none", hint=hint) from None
    parts = found.split(".")
    number = tuple(int(part) for part in parts[:2] if part.isdecimal())
    if not LOWEST <= number <= HIGHEST:
        raise InputError(wanted, where="Flower", got=found, hint=hint)
    return found


def _shown(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
