"""Laws of time: how long work of a given size takes on a measured device.

A linear law is a sum of non-negative terms, each a parameter (seconds per unit) times a feature of
the size. Sizes are numbers, or arrays of them, by name: `k` (entries kept), `d` (entries of the
gradient), `samples` (of a batch or a public set), `flops` (of the whole call) and `bytes` (weights
and gradients that the call touches at least once; activations grow with the FLOPs and are left to
them).

What is ignored: caches that fill up between two sizes, vector remainders, clock changes. A law is
a summary; the profile that holds it states how far it was off.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["ACROSS_MODELS", "LAWS", "PER_MODEL", "Law", "Size"]

Size = Mapping[str, Any]
"""Numbers (or arrays of one length) by name: k, d, samples, flops, bytes."""

Feature = Callable[[Size], Any]


@dataclass(frozen=True, slots=True)
class Law:
    """One shape of dependence on the size."""

    name: str
    formula: str
    """For people."""
    needs: tuple[str, ...]
    """The sizes it depends on."""
    parameters: tuple[str, ...]
    seconds: Callable[[Mapping[str, float], Size], Any]
    """(parameters, size) → seconds."""
    features: tuple[Feature, ...] | None = None
    """Of a linear law: what each parameter is multiplied by."""

    @property
    def coordinates(self) -> tuple[str, ...]:
        """Names of the numbers in which log-time is nearest to linear, so that they have the
        standard errors: the parameters, but of a power law log(a) in place of a."""
        return self.parameters if "p" not in self.parameters else ("log_a", "p")

    def located(self, parameters: Mapping[str, float]) -> list[float]:
        """The coordinates of parameters."""
        values = [parameters[name] for name in self.parameters]
        return values if "p" not in self.parameters else [math.log(values[0]), values[1]]

    def parameters_at(self, coordinates: Sequence[float]) -> dict[str, float]:
        """Inverse of `located`; what a normal draw has put below 0 becomes 0."""
        values = [float(x) for x in coordinates]
        if "p" in self.parameters:
            return {"a": math.exp(values[0]), "p": max(0.0, values[1])}
        return {name: max(0.0, x) for name, x in zip(self.parameters, values, strict=True)}


def _linear(name: str, formula: str, needs: tuple[str, ...], **features: Feature) -> Law:
    def seconds(parameters: Mapping[str, float], size: Size) -> Any:
        return sum(parameters[p] * feature(size) for p, feature in features.items())

    return Law(name, formula, needs, tuple(features), seconds, tuple(features.values()))


def _power(variable: str) -> Law:
    return Law(
        f"power-{variable}", f"a·{variable}^p", (variable,), ("a", "p"),
        lambda parameters, size: parameters["a"] * size[variable] ** parameters["p"],
    )  # fmt: skip


def _roofline(parameters: Mapping[str, float], size: Size) -> Any:
    compute_s = parameters["per_flop"] * size["flops"]
    memory_s = parameters["per_byte"] * size["bytes"]
    return parameters["overhead"] + np.maximum(compute_s, memory_s)


def _one(size: Size) -> float:
    return 1.0


LAWS: dict[str, Law] = {
    law.name: law
    for law in (
        _linear("affine-k", "a + b·k", ("k",), a=_one, b=lambda s: s["k"]),
        _power("k"),
        _linear(
            "k-log-d", "a + b·k·log2(d)", ("k", "d"), a=_one, b=lambda s: s["k"] * np.log2(s["d"])
        ),
        _linear(
            "d-log-k",
            "a + b·d·log2(k + 1)",
            ("k", "d"),
            a=_one,
            b=lambda s: s["d"] * np.log2(s["k"] + 1),
        ),
        _linear(
            "affine-d-k",
            "a + b·k + c·d",
            ("k", "d"),
            a=_one,
            b=lambda s: s["k"],
            c=lambda s: s["d"],
        ),
        _linear("affine-samples", "a + b·samples", ("samples",), a=_one, b=lambda s: s["samples"]),
        _power("samples"),
        _linear("affine-flops", "a + b·flops", ("flops",), a=_one, b=lambda s: s["flops"]),
        Law(
            "roofline",
            "overhead + max(per_flop·flops, per_byte·bytes)",
            ("flops", "bytes"),
            ("overhead", "per_flop", "per_byte"),
            _roofline,
        ),
    )
}
"""Every law by name."""

PER_MODEL = {
    "k": ("affine-k", "power-k", "d-log-k"),
    "samples": ("affine-samples", "power-samples"),
}
"""Candidates for one model, by the variable of the work; the simplest first."""

ACROSS_MODELS = {
    "k": ("affine-d-k", "k-log-d", "d-log-k", "affine-k"),
    "samples": ("affine-flops", "roofline"),
}
"""Candidates for models that were not measured."""
