"""Laws of time: how long work of a given size takes on a measured device.

A linear law is a sum of non-negative terms, each a parameter (seconds per unit) times a
feature of the size. Sizes are numbers, or arrays of them, by name: `k` (entries kept),
`d` (entries of the gradient), `samples` (of a batch or a public set), `flops` (of the
whole call) and `bytes` (weights and gradients that the call touches at least once;
activations grow with the FLOPs and are left to them).

What is ignored: caches that fill up between two sizes, vector remainders, clock
changes. A law is a summary; the profile that holds it states how far it was off.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, TypeAlias

import numpy as np

Amount: TypeAlias = Any
"""A float, or a float array of one length for many points at once."""

Size = Mapping[str, Amount]
"""Amounts by name: k, d, samples, flops, bytes."""

Feature = Callable[[Size], Amount]


@dataclass(frozen=True, slots=True)
class CostLaw:
    """One shape of dependence on the size."""

    name: str
    formula: str
    """The law as people write it."""
    needs: tuple[str, ...]
    """The sizes it depends on."""
    parameters: tuple[str, ...]
    seconds: Callable[[Mapping[str, float], Size], Amount]
    """(parameters, size) → seconds."""
    features: tuple[Feature, ...] | None = None
    """The features that the parameters of a linear law multiply; None: the law is not
    linear."""


_FEATURES: dict[str, Feature] = {
    "k": itemgetter("k"),
    "d": itemgetter("d"),
    "samples": itemgetter("samples"),
    "flops": itemgetter("flops"),
    "k·log2(d)": lambda size: size["k"] * np.log2(size["d"]),
    "d·log2(k + 1)": lambda size: size["d"] * np.log2(size["k"] + 1),
}


def _build_linear_law(name: str, needs: tuple[str, ...], *terms: str) -> CostLaw:
    """Return the law a + b·term + …, of terms that `_FEATURES` knows."""
    parameters = tuple("abc"[: len(terms) + 1])
    features: tuple[Feature, ...] = (
        lambda size: 1.0,
        *[_FEATURES[term] for term in terms],
    )
    parts = ["a", *[f"{p}·{term}" for p, term in zip("bc", terms, strict=False)]]

    def seconds(values: Mapping[str, float], size: Size) -> Amount:
        return sum(
            values[p] * f(size) for p, f in zip(parameters, features, strict=True)
        )

    return CostLaw(name, " + ".join(parts), needs, parameters, seconds, features)


def _roofline(parameters: Mapping[str, float], size: Size) -> Amount:
    compute_s = parameters["per_flop"] * size["flops"]
    memory_s = parameters["per_byte"] * size["bytes"]
    return parameters["overhead"] + np.maximum(compute_s, memory_s)


LAWS: dict[str, CostLaw] = {
    law.name: law
    for law in (
        _build_linear_law("affine-k", ("k",), "k"),
        _build_linear_law("k-log-d", ("k", "d"), "k·log2(d)"),
        _build_linear_law("d-log-k", ("k", "d"), "d·log2(k + 1)"),
        _build_linear_law("affine-d-k", ("k", "d"), "k", "d"),
        _build_linear_law("affine-samples", ("samples",), "samples"),
        _build_linear_law("affine-flops", ("flops",), "flops"),
        CostLaw(
            "roofline",
            "overhead + max(per_flop·flops, per_byte·bytes)",
            ("flops", "bytes"),
            ("overhead", "per_flop", "per_byte"),
            _roofline,
        ),
    )
}
"""The laws by name."""

PER_MODEL = {
    "k": ("affine-k", "d-log-k"),
    "samples": ("affine-samples",),
}
"""Candidates for one model, by the variable of the work; the simplest first."""

ACROSS_MODELS = {
    "k": ("affine-d-k", "k-log-d", "d-log-k", "affine-k"),
    "samples": ("affine-flops", "roofline"),
}
"""Candidates for models that were not measured."""
