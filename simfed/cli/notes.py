"""Warnings as a command shows them: of one profile in one line."""

from __future__ import annotations

import re
from collections.abc import Sequence

_OF_PROFILE = re.compile(r"device profile ([^:]+): (.*)", re.DOTALL)


def shorten_warnings(warnings: Sequence[str], details: str) -> list[str]:
    """Return the warnings, several of one profile as one line.

    Args:
        warnings: sentences.
        details: where all of them stand, for the end of such a line.

    >>> what = "device profile pi: training of m{} was not measured"
    >>> noted = [what.format(i) for i in range(3)]
    >>> shorten_warnings([*noted, "a link is slow"], "run/manifest.json")
    ['device profile pi: 3 of its times are not what was measured, first: training of m0
    was not measured; details: run/manifest.json', 'a link is slow']
    """
    of_profile: dict[str, list[str]] = {}
    for warning in warnings:
        if match := _OF_PROFILE.fullmatch(warning):
            of_profile.setdefault(match[1], []).append(match[2])
    lines: dict[str, None] = {}
    for warning in warnings:
        match = _OF_PROFILE.fullmatch(warning)
        noted = of_profile[match[1]] if match else []
        if match and len(noted) > 1:
            warning = (
                f"device profile {match[1]}: {len(noted)} of its times are not what "
                f"was measured, first: {noted[0]}; details: {details}"
            )
        lines[warning] = None
    return list(lines)
