"""The scatter of one call's time around its nominal time.

Two kinds. `lognormal` is a scenario's assumption: factors of mean 1 with a coefficient
of variation. `measured` is what a calibration found: factors around the *median* (a
profile's laws and rows are medians), log-normal in the body, and where the data show
it, now and then a straggler that takes longer by an exponentially distributed share;
their mean is above 1 and that is intended. Where no such law has the mean that was
measured (work under a quota of processor time either passes at once or waits for the
next period), the factors' own quantiles stand in its place.

Many steps scatter less, relative to their length, than few: a measured law may have a
part that is each step's own (`per_step`), and is divided by the root of their number,
beside the one that they share.

What is ignored: that slow calls come in bursts, as draws are independent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from simfed.ground.arrays import Floats
from simfed.ground.errors import InputError
from simfed.ground.plain import Plain
from simfed.ground.units import read_number

_MEAN_OFF = math.log(1.1)
_QUANTILES = 41


@dataclass(frozen=True, slots=True)
class LognormalNoise:
    """Factors of mean 1 and coefficient of variation `cv`."""

    cv: float

    def factor(self, rng: np.random.Generator, steps: float = 1.0) -> float:
        """Return a drawn factor of mean 1; `steps` changes nothing."""
        variance = math.log1p(self.cv**2)
        return math.exp(math.sqrt(variance) * rng.standard_normal() - variance / 2)


@dataclass(frozen=True, slots=True)
class Measured:
    """exp(σ·z), times 1 + `excess`·e with probability `probability`.

    Z normal, e exponential; σ² of n steps is `log_sd`² + `per_step`²/n.
    """

    log_sd: float
    probability: float = 0.0
    excess: float = 0.0
    """Mean of a straggler's extra time, as a share of its time."""
    quantiles: tuple[float, ...] = ()
    """Factors at evenly spaced probabilities from 0 to 1, straight between them, in
    place of all that."""
    per_step: float = 0.0

    def sd_of(self, steps: float = 1.0) -> float:
        """Return the deviation of the logarithm of so many steps' time.

        Stragglers are left out.

        >>> round(Measured(0.03, per_step=0.12).sd_of(9), 9)
        0.05
        """
        if not self.per_step:
            return self.log_sd
        return math.sqrt(self.log_sd**2 + self.per_step**2 / max(steps, 1.0))

    def factor(self, rng: np.random.Generator, steps: float = 1.0) -> float:
        """Return a drawn factor around the median.

        Args:
            rng: where it is drawn.
            steps: that follow each other; each's own scatter shrinks with their root.
        """
        if self.quantiles:
            last = len(self.quantiles) - 1
            return float(
                np.interp(rng.random() * last, np.arange(last + 1), self.quantiles)
            )
        normal = rng.standard_normal()
        straggles = rng.random() < self.probability
        extra = rng.standard_exponential()
        return math.exp(self.sd_of(steps) * normal) * (
            1 + (self.excess * extra if straggles else 0.0)
        )

    def mean(self, steps: float = 1.0) -> float:
        """Return the mean factor.

        >>> round(Measured(0.1, probability=0.01, excess=2.0).mean(), 4)
        1.0251
        >>> Measured(0.0, quantiles=(1.0, 1.0, 3.0)).mean()
        1.5
        """
        if self.quantiles:
            ends = (self.quantiles[0] + self.quantiles[-1]) / 2
            return (sum(self.quantiles) - ends) / (len(self.quantiles) - 1)
        return math.exp(self.sd_of(steps) ** 2 / 2) * (
            1 + self.probability * self.excess
        )

    @classmethod
    def read(cls, node: Plain, where: str) -> Measured:
        """Return the noise that a profile's mapping says.

        Args:
            node: `{log_sd: …, per_step: …, straggler: {probability: …, excess: …}}`, or
                `{quantiles: […]}`.
            where: names it in errors.

        Raises:
            InputError: another mapping, or numbers out of range.
        """
        if isinstance(node, Mapping) and "quantiles" in node:
            return cls(0.0, quantiles=_read_quantiles(node, where))
        straggler = node.get("straggler", {}) if isinstance(node, Mapping) else None
        if not isinstance(straggler, Mapping) or set(node) - {
            "log_sd",
            "per_step",
            "straggler",
        }:
            allowed = "log_sd and, if there are any, per_step and straggler"
            raise InputError(allowed, where=where, got=node)
        values = []
        for name, value, high in (
            ("log_sd", node.get("log_sd"), 5.0),
            ("per_step", node.get("per_step", 0.0), 5.0),
            ("straggler.probability", straggler.get("probability", 0.0), 0.5),
            ("straggler.excess", straggler.get("excess", 0.0), 1e6),
        ):
            if not 0 <= read_number(value) <= high:
                raise InputError(
                    f"a number from 0 to {high:g}", where=f"{where}.{name}", got=value
                )
            values.append(float(value))
        return cls(values[0], values[2], values[3], per_step=values[1])

    def written(self) -> dict[str, Plain]:
        """Return the mapping of a profile, rounded: the inverse of `read`.

        It has four digits.
        """
        if self.quantiles:
            return {"quantiles": [float(f"{factor:.4g}") for factor in self.quantiles]}
        node: dict[str, Plain] = {"log_sd": float(f"{self.log_sd:.4g}")}
        if self.per_step:
            node["per_step"] = float(f"{self.per_step:.4g}")
        if self.probability:
            straggler = {"probability": self.probability, "excess": self.excess}
            node["straggler"] = {
                name: float(f"{x:.3g}") for name, x in straggler.items()
            }
        return node


def _read_quantiles(node: Mapping[str, Plain], where: str) -> tuple[float, ...]:
    """Return the quantiles of a profile's mapping, as `Measured.read` does."""
    values, where = node["quantiles"], f"{where}.quantiles"
    allowed = "at least two numbers above 0, ascending, and nothing beside"
    if len(node) != 1 or not isinstance(values, list) or len(values) < 2:
        raise InputError(allowed, where=where, got=node)
    for value in values:
        if not 0 < read_number(value) < math.inf:
            raise InputError(allowed, where=where, got=value)
    if values != sorted(values):
        raise InputError(allowed, where=where, got=values)
    return tuple(float(value) for value in values)


def fit_noise(factors: Floats, steps: Floats | None = None) -> Measured:
    """Return the law of measured factors. Needs scipy.

    Where the mean of the fitted law is further than 10 % from theirs, their own
    quantiles are returned.

    Args:
        factors: at least 20 times, each over the median of its size.
        steps: how many steps each was of; where that differs, it tells what is each
            step's own. None: one.
    """
    law = _fit_law(factors)
    if abs(math.log(law.mean() / float(np.mean(factors)))) <= _MEAN_OFF:
        if steps is None or np.ptp(steps) == 0:
            return law
        shared, per_step = _split_scatter(np.log(factors), steps)
        return replace(law, log_sd=shared, per_step=per_step)
    return take_quantiles(factors)


def take_quantiles(factors: Floats) -> Measured:
    """Return the law that draws from these factors, straight between their quantiles.

    >>> take_quantiles(np.array([0.5, 1.5])).mean()
    1.0
    """
    at = np.linspace(0, 1, _QUANTILES)
    return Measured(0.0, quantiles=tuple(np.quantile(factors, at).tolist()))


def _split_scatter(log: Floats, steps: Floats) -> tuple[float, float]:
    """Return the deviations shared by all steps, and each step's own.

    They are least squares on variances by number of steps, from medians of absolute
    deviations, which no straggler moves.
    """
    from scipy import optimize

    counts = np.unique(steps)
    spread = np.array(
        [1.4826 * np.median(np.abs(log[steps == count])) for count in counts]
    )
    weight = np.sqrt([np.sum(steps == count) for count in counts])
    design = np.column_stack([np.ones(len(counts)), 1 / counts])
    variances, _ = optimize.nnls(design * weight[:, None], spread**2 * weight)
    shared, per_step = np.sqrt(variances)
    return max(float(shared), 1e-6), float(per_step)


def _fit_law(factors: Floats) -> Measured:
    """Return the law of maximum likelihood.

    A straggler tail is kept where Akaike's criterion asks for its two parameters by a
    wide margin (10) and at least 3 calls are more likely stragglers than not. A
    straggler's own log-normal scatter is neglected beside its excess.
    """
    from scipy import optimize

    log = np.log(factors)
    plain_sd = max(float(np.sqrt(np.mean(log**2))), 1e-6)
    body_sd = max(1.4826 * float(np.median(np.abs(log))), 1e-6)

    def compute_densities(v: Floats) -> tuple[Floats, Floats]:
        sd, probability, excess = np.exp(v[0]), 0.5 / (1 + np.exp(-v[1])), np.exp(v[2])
        body = (
            (1 - probability)
            * np.exp(-0.5 * (log / sd) ** 2)
            / (sd * math.sqrt(2 * math.pi))
        )
        extra = np.expm1(np.clip(log, 0.0, 30.0))
        tail = probability * np.where(
            log > 0, np.exp(-extra / excess) / excess * (1 + extra), 0.0
        )
        return body, tail

    def loss(v: Floats) -> float:
        body, tail = compute_densities(v)
        return -float(np.sum(np.log(np.maximum(body + tail, 1e-300))))

    plain_loss = len(log) * (math.log(plain_sd * math.sqrt(2 * math.pi)) + 0.5)
    beyond = np.expm1(log[log > 3 * body_sd])
    if len(beyond) < 3:
        return Measured(plain_sd)
    share = min(0.4, len(beyond) / len(log))
    start = [
        math.log(body_sd),
        math.log(share / (0.5 - share)),
        math.log(float(beyond.mean())),
    ]
    options = {"maxiter": 2000, "fatol": 1e-6}
    best = optimize.minimize(loss, start, method="Nelder-Mead", options=options).x
    body, tail = compute_densities(best)
    if plain_loss - loss(best) < 2 + 10 or np.sum(tail > body) < 3:
        return Measured(plain_sd)
    sd, excess = np.exp(best[0]), np.exp(best[2])
    return Measured(float(sd), float(0.5 / (1 + np.exp(-best[1]))), float(excess))
