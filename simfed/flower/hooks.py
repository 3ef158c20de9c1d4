"""What an app measures on its server, overheard: Flower's strategies take a function for it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from flwr.serverapp.strategy import Strategy

__all__ = ["evaluations_told"]


@contextmanager
def evaluations_told(tell: Callable[[dict[str, float]], None]) -> Iterator[None]:
    """Meanwhile `tell` gets the numbers that a strategy's `evaluate_fn` gives."""
    before = Strategy.start

    @functools.wraps(before)
    def start(self: Strategy, *arguments: Any, **named: Any) -> Any:
        given = named.get("evaluate_fn")
        if given is not None:
            named["evaluate_fn"] = _overheard(given, tell)
        elif len(arguments) > _PLACE and arguments[_PLACE] is not None:
            listed = list(arguments)
            listed[_PLACE] = _overheard(listed[_PLACE], tell)
            arguments = tuple(listed)
        return before(self, *arguments, **named)

    Strategy.start = start
    try:
        yield
    finally:
        Strategy.start = before


_PLACE = 6
"""Of `evaluate_fn` among the arguments of `Strategy.start`, itself left out."""


def _overheard(evaluate: Any, tell: Callable[[dict[str, float]], None]) -> Any:
    @functools.wraps(evaluate)
    def told(*arguments: Any, **named: Any) -> Any:
        found = evaluate(*arguments, **named)
        if found is not None:
            tell({k: float(v) for k, v in found.items() if isinstance(v, (int, float))})
        return found

    return told
