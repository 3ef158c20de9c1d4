"""The versions of Flower that this works with.

Importing it imports nothing of Flower, so that a command without the extra ends with a
sentence.
"""

from __future__ import annotations

from importlib import metadata

from simfed.ground.errors import InputError

LOWEST, HIGHEST = (1, 38), (1, 42)
"""The bounds of versions, both tested; before them the grid's messages stood elsewhere.
"""


def flower_version() -> str:
    """Return the version of Flower that is installed, as `1.41.0`.

    Only the first two numbers of it are compared.

    Raises:
        InputError: there is none, or one outside of `LOWEST` to `HIGHEST`.
    """
    allowed = f"flwr {_format_version(LOWEST)} to {_format_version(HIGHEST)}"
    hint = "pip install 'simfed[flower]'"
    try:
        version = metadata.version("flwr")
    except metadata.PackageNotFoundError:
        raise InputError(allowed, where="Flower", got="none", hint=hint) from None
    number = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if not LOWEST <= number <= HIGHEST:
        raise InputError(allowed, where="Flower", got=version, hint=hint)
    return version


def _format_version(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
