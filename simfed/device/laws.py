"""Laws of time: how long work of a given size takes on a measured device.

A law is a sum of two to four non-negative terms, each a parameter times a *feature* of the size
(a power law and the roofline aside). Sizes are plain numbers by name: `k` (entries kept), `d`
(entries of the gradient), `samples` (of a batch or a public set), `flops` and `bytes` (work and
memory traffic of the whole call). Parameters are in seconds per unit of their feature.

What is ignored: caches that fill up between two sizes, vector remainders, clock changes. A law is
a fitted summary; the profile that holds it states how far it was off.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

__all__ = ["LAWS", "Law", "Size"]

Size = Mapping[str, float]
"""Numbers by name: k, d, samples, flops, bytes."""


@dataclass(frozen=True, slots=True)
class Law:
    """One shape of dependence on the size."""

    name: str
    formula: str
    """For people."""
    parameters: tuple[str, ...]
    needs: tuple[str, ...]
    """The sizes it depends on."""
    seconds: Callable[[Mapping[str, float], Size], float]
    """(parameters, size) → seconds."""


def _affine(feature: Callable[[Size], float]) -> Callable[[Mapping[str, float], Size], float]:
    return lambda p, size: p["a"] + p["b"] * feature(size)


def _roofline(p: Mapping[str, float], size: Size) -> float:
    return p["overhead"] + max(p["per_flop"] * size["flops"], p["per_byte"] * size["bytes"])


LAWS: dict[str, Law] = {
    law.name: law
    for law in (
        Law("affine-k", "a + b·k", ("a", "b"), ("k",), _affine(lambda s: s["k"])),
        Law("power-k", "a·k^p", ("a", "p"), ("k",), lambda p, s: p["a"] * s["k"] ** p["p"]),
        Law("k-log-d", "a + b·k·log2(d)", ("a", "b"), ("k", "d"),
            _affine(lambda s: s["k"] * math.log2(s["d"]))),
        Law("d-log-k", "a + b·d·log2(k + 1)", ("a", "b"), ("k", "d"),
            _affine(lambda s: s["d"] * math.log2(s["k"] + 1))),
        Law("affine-d-k", "a + b·k + c·d", ("a", "b", "c"), ("k", "d"),
            lambda p, s: p["a"] + p["b"] * s["k"] + p["c"] * s["d"]),
        Law("affine-samples", "a + b·samples", ("a", "b"), ("samples",),
            _affine(lambda s: s["samples"])),
        Law("power-samples", "a·samples^p", ("a", "p"), ("samples",),
            lambda p, s: p["a"] * s["samples"] ** p["p"]),
        Law("affine-flops", "a + b·flops", ("a", "b"), ("flops",), _affine(lambda s: s["flops"])),
        Law("roofline", "overhead + max(per_flop·flops, per_byte·bytes)",
            ("overhead", "per_flop", "per_byte"), ("flops", "bytes"), _roofline),
    )
}  # fmt: skip
"""Every law by name."""
