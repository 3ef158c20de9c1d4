"""Hooks for what an app measures on its server."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from flwr.serverapp.strategy import Strategy

from simfed.flower.clocks import replaced

Evaluate = Callable[..., Mapping[str, object] | None]
RoundMetrics = tuple[int, str, dict[str, float]]
"""A strategy's own round, what it took its metrics from, and these."""

_KINDS = {
    "train_metrics_clientapp": "nodes' training",
    "evaluate_metrics_clientapp": "nodes' evaluation",
    "evaluate_metrics_serverapp": "the server's evaluation",
}
"""The page's words for what a strategy's result calls metrics."""


@contextmanager
def evaluations_told(
    tell: Callable[[dict[str, float]], None], keep: Callable[[list[RoundMetrics]], None]
) -> Iterator[None]:
    """Hear, in the block, what a strategy (`flwr.serverapp.strategy`) measures.

    Args:
        tell: gets the numbers of its `evaluate_fn` as they are found.
        keep: gets all metrics of its rounds when it has ended.
    """
    before = Strategy.start
    signature = inspect.signature(before)

    @functools.wraps(before)
    def start(*arguments: object, **named: object) -> object:
        call = signature.bind(*arguments, **named)
        evaluate = call.arguments.get("evaluate_fn")
        if evaluate is not None:
            call.arguments["evaluate_fn"] = _overhear_evaluation(evaluate, tell)
        result = before(*call.args, **call.kwargs)
        keep(_list_metrics(result))
        return result

    with replaced(Strategy, "start", start):
        yield


def _list_metrics(result: object) -> list[RoundMetrics]:
    """Return the finite numbers of a strategy's rounds, in their order."""
    return sorted(
        (number, kind, numbers)
        for name, kind in _KINDS.items()
        for number, metrics in getattr(result, name, {}).items()
        if (
            numbers := {
                name: value
                for name, value in _read_numbers(metrics).items()
                if math.isfinite(value)
            }
        )
    )


def _read_numbers(metrics: Mapping[str, object]) -> dict[str, float]:
    return {k: float(v) for k, v in metrics.items() if isinstance(v, (int, float))}


def _overhear_evaluation(
    evaluate: Evaluate, tell: Callable[[dict[str, float]], None]
) -> Evaluate:
    @functools.wraps(evaluate)
    def evaluate_and_tell(
        *arguments: object, **named: object
    ) -> Mapping[str, object] | None:
        metrics = evaluate(*arguments, **named)
        if metrics is not None:
            tell(_read_numbers(metrics))
        return metrics

    return evaluate_and_tell
