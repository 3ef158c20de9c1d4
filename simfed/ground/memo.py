"""Memories of computed values, which may be forgotten."""

from __future__ import annotations

from typing import Final, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")

MOST: Final = 4096
"""Entries of a memo; clients and strategies of a fleet are alike in far fewer ways."""


class Memo(dict[Key, Value]):
    """A dictionary that forgets everything rather than hold more than `MOST` entries.

    For what can be worked out again, where keys may come without end: a policy that
    sets K as it likes has hardly any K twice.

    >>> memo = Memo()
    >>> for k in range(10 * MOST):
    ...     memo[k] = 2 * k
    >>> len(memo) <= MOST, memo[10 * MOST - 1]
    (True, 81918)
    """

    __slots__ = ()

    def __setitem__(self, key: Key, value: Value) -> None:
        if len(self) >= MOST:
            self.clear()
        super().__setitem__(key, value)
