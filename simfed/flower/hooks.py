"""What an app measures on its server."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from flwr.serverapp.strategy import Strategy

from simfed.flower.clocks import replaced

Evaluate = Callable[..., Mapping[str, object] | None]


@contextmanager
def evaluations_told(tell: Callable[[dict[str, float]], None]) -> Iterator[None]:
    """Meanwhile `tell` gets the numbers that a strategy's `evaluate_fn` gives."""
    before = Strategy.start
    signature = inspect.signature(before)

    @functools.wraps(before)
    def start(*arguments: object, **named: object) -> object:
        call = signature.bind(*arguments, **named)
        evaluate = call.arguments.get("evaluate_fn")
        if evaluate is not None:
            call.arguments["evaluate_fn"] = _overhear_evaluation(evaluate, tell)
        return before(*call.args, **call.kwargs)

    with replaced(Strategy, "start", start):
        yield


def _overhear_evaluation(evaluate: Evaluate, tell: Callable[[dict[str, float]], None]) -> Evaluate:
    @functools.wraps(evaluate)
    def evaluate_and_tell(*arguments: object, **named: object) -> Mapping[str, object] | None:
        metrics = evaluate(*arguments, **named)
        if metrics is not None:
            tell({k: float(v) for k, v in metrics.items() if isinstance(v, (int, float))})
        return metrics

    return evaluate_and_tell
