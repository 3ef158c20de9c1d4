"""How one call's time scatters around its nominal time.

Two kinds. `lognormal` is a scenario's assumption: factors of mean 1 with a coefficient of
variation. `measured` is what a calibration found: factors around the *median* (a profile's laws and
rows are medians), log-normal in the body, and where the data show it, now and then a straggler that
takes longer by an exponentially distributed share; their mean is above 1 and that is intended.

What is ignored: that slow calls come in bursts. Draws are independent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from simfed.errors import InputError

__all__ = ["Lognormal", "Measured", "fit_noise"]


@dataclass(frozen=True, slots=True)
class Lognormal:
    """Factors of mean 1 and coefficient of variation `cv`."""

    cv: float

    def factor(self, rng: np.random.Generator) -> float:
        variance = math.log1p(self.cv**2)
        return math.exp(math.sqrt(variance) * rng.standard_normal() - variance / 2)


@dataclass(frozen=True, slots=True)
class Measured:
    """exp(`log_sd`·z), times 1 + `excess`·e with probability `probability`; z normal, e
    exponential."""

    log_sd: float
    probability: float = 0.0
    excess: float = 0.0
    """Mean of a straggler's extra time, as a share of its time."""

    def factor(self, rng: np.random.Generator) -> float:
        normal, uniform, extra = rng.standard_normal(), rng.random(), rng.standard_exponential()
        straggles = uniform < self.probability
        return math.exp(self.log_sd * normal) * (1 + (self.excess * extra if straggles else 0.0))

    @property
    def mean(self) -> float:
        """The mean factor.

        >>> round(Measured(0.1, probability=0.01, excess=2.0).mean, 4)
        1.0251
        """
        return math.exp(self.log_sd**2 / 2) * (1 + self.probability * self.excess)

    @classmethod
    def read(cls, node: Any, where: str) -> Measured:
        """From a profile's `{log_sd: …, straggler: {probability: …, excess: …}}`."""
        straggler = node.get("straggler", {}) if isinstance(node, Mapping) else None
        if not isinstance(straggler, Mapping) or set(node) - {"log_sd", "straggler"}:
            raise InputError("log_sd and, if there are any, straggler", where=where, got=node)
        values = []
        for name, value, high in (
            ("log_sd", node.get("log_sd"), 5.0),
            ("straggler.probability", straggler.get("probability", 0.0), 0.5),
            ("straggler.excess", straggler.get("excess", 0.0), 1e6),
        ):
            if (
                isinstance(value, bool)
                or not isinstance(value, (int, float))
                or not 0 <= value <= high
            ):
                raise InputError(f"a number from 0 to {high:g}", where=f"{where}.{name}", got=value)
            values.append(float(value))
        return cls(*values)

    def written(self) -> dict[str, Any]:
        """Inverse of `read`."""
        found: dict[str, Any] = {"log_sd": float(f"{self.log_sd:.4g}")}
        if self.probability:
            found["straggler"] = {
                "probability": float(f"{self.probability:.3g}"),
                "excess": float(f"{self.excess:.3g}"),
            }
        return found


def fit_noise(factors: np.ndarray[Any, np.dtype[np.float64]]) -> Measured:
    """Maximum likelihood of `factors` (time over the median of its size, at least 20 of them).

    A straggler tail is kept where Akaike's criterion asks for its two parameters by a wide margin
    (10) and at least 3 calls are more likely stragglers than not. A straggler's own log-normal
    scatter is neglected beside its excess. Needs scipy.
    """
    from scipy import optimize

    log = np.log(factors)
    plain_sd = max(float(np.sqrt(np.mean(log**2))), 1e-6)
    body_sd = max(1.4826 * float(np.median(np.abs(log))), 1e-6)

    def densities(v: Any) -> tuple[Any, Any]:
        sd, probability, excess = np.exp(v[0]), 0.5 / (1 + np.exp(-v[1])), np.exp(v[2])
        body = (1 - probability) * np.exp(-0.5 * (log / sd) ** 2) / (sd * math.sqrt(2 * math.pi))
        extra = np.expm1(np.clip(log, 0.0, 30.0))
        tail = probability * np.where(log > 0, np.exp(-extra / excess) / excess * (1 + extra), 0.0)
        return body, tail

    def loss(v: Any) -> float:
        body, tail = densities(v)
        return -float(np.sum(np.log(np.maximum(body + tail, 1e-300))))

    plain_loss = len(log) * (math.log(plain_sd * math.sqrt(2 * math.pi)) + 0.5)
    beyond = np.expm1(log[log > 3 * body_sd])
    if len(beyond) < 3:
        return Measured(plain_sd)
    share = min(0.4, len(beyond) / len(log))
    start = [math.log(body_sd), math.log(share / (0.5 - share)), math.log(float(beyond.mean()))]
    found = optimize.minimize(
        loss, start, method="Nelder-Mead", options={"maxiter": 2000, "fatol": 1e-6}
    ).x
    body, tail = densities(found)
    if plain_loss - loss(found) < 2 + 10 or np.sum(tail > body) < 3:
        return Measured(plain_sd)
    return Measured(
        float(np.exp(found[0])), float(0.5 / (1 + np.exp(-found[1]))), float(np.exp(found[2]))
    )
