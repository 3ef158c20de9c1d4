"""Names that others give, in text that people read."""

from __future__ import annotations

import re

_STEERING = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters but for tabs and line ends
    # invisible, or turning the direction
    "\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff"
)
_STEERS = re.compile(f"[{_STEERING}]")
STEERING = "".join(char for char in map(chr, range(0x10000)) if _STEERS.match(char))
"""The characters that `escape_steering` spells out."""


def quote_formula(cell: object) -> object:
    """Return a cell of a table with an apostrophe before what may be a formula.

    Spreadsheets would take such a text for one.

    >>> quote_formula("=1+1"), quote_formula("top-k"), quote_formula(-1.5)
    ("'=1+1", 'top-k', -1.5)
    """
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell


_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def escape_steering(text: str) -> str:
    r"""Return a text with characters that steer a terminal, or are not seen, spelt out.

    >>> print(escape_steering("a\x1b[2Jb\u202e"))
    a\x1b[2Jb\u202e
    """
    return _STEERS.sub(lambda match: match[0].encode("unicode_escape").decode(), text)
