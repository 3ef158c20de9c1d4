"""What is known of a device's speed: seconds per kind of work, model and size.

Kinds of work ("quantities"): one local training step on a batch, compression and decompression of
one gradient to K entries by a strategy, inference and one distillation step on a set of samples.
A `table` profile is exact at its measured rows; a `law` profile holds fitted laws. Where neither
knows a quantity, that is an error that names it: nothing ever takes zero seconds by accident.

What is ignored: everything that is not in the size (the values themselves, what ran before). Noise,
load, heat and clocks belong to the client's processor, `simfed.device.client`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from simfed.device.curve import Constant, Curve, Fitted
from simfed.errors import InputError, did_you_mean, listed

__all__ = ["ANY", "QUANTITIES", "ModelWork", "Profile"]

ANY = "any"
"""The key of what holds for every model (or strategy) that has no key of its own."""

FREE_STRATEGY = "dense"
"""Sends every entry as it is: there is nothing to compress, so it takes 0 s by definition."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """One kind of work and what its time depends on."""

    name: str
    size: str
    """Keyword of its size in `Profile.seconds`."""
    per_strategy: bool = False

    @property
    def variable(self) -> str:
        """The size's name in laws and files."""
        return "k" if self.size == "k" else "samples"


QUANTITIES: dict[str, Quantity] = {
    q.name: q
    for q in (
        Quantity("training", "batch"),
        Quantity("compression", "k", per_strategy=True),
        Quantity("decompression", "k", per_strategy=True),
        Quantity("inference", "samples"),
        Quantity("distillation", "samples"),
    )
}


@dataclass(frozen=True, slots=True)
class ModelWork:
    """What the laws for unmeasured models count: plain numbers about one model."""

    parameters: int
    forward_flops: float
    """Per sample."""
    train_flops: float
    """Per sample, forward and backward."""

    def size(self, quantity: str, x: float) -> dict[str, float]:
        """The features of one call of `quantity` at size `x`."""
        known: dict[str, float] = {"d": float(self.parameters)}
        if not QUANTITIES[quantity].per_strategy:
            per_sample = self.forward_flops if quantity == "inference" else self.train_flops
            known["flops"] = per_sample * x
        return known


@dataclass(eq=False)
class Profile:
    """One device's times. Make it with `load_profile`.

    >>> from simfed.device import load_profile
    >>> profile = load_profile("rtx3090-ryzen4800h")
    >>> profile.seconds("training", model="lenet5", batch=32)
    0.0045
    >>> profile.seconds("compression", model="lenet5", strategy="top-k", k=1000)
    6.1e-07
    >>> profile.seconds("inference", model="lenet5", samples=256)
    Traceback (most recent call last):
    simfed.errors.InputError: rtx3090-ryzen4800h: inference: ...
    """

    name: str
    kind: str
    curves: Mapping[tuple[str, str, str], Curve]
    """(quantity, model, strategy) → curve; the strategy is empty for work without one."""
    power_w: Mapping[str, float] = field(default_factory=dict)
    noise: Mapping[str, Any] = field(default_factory=dict)
    """Fitted noise per quantity."""
    provenance: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""
    """The file it was read from."""
    models: dict[str, ModelWork] = field(default_factory=dict)
    """What is known of the models in use: needed by laws that count parameters or FLOPs."""
    warnings: list[str] = field(default_factory=list)
    """What a run with this profile should say: one sentence per curve that was extrapolated or estimated."""
    _seconds: dict[tuple[tuple[str, str, str], float], float] = field(
        default_factory=dict, repr=False
    )
    _warned: set[tuple[str, str, str]] = field(default_factory=set, repr=False)

    def seconds(self, quantity: str, *, model: str, strategy: str = "", **size: float) -> float:
        """Nominal seconds of one call on the measured device.

        The size is `batch` for training, `k` for compression and decompression, `samples` for
        inference and distillation. Strategy `dense` takes 0 s.
        Raises: `InputError` naming what the profile lacks.
        """
        what = _known(quantity)
        if set(size) != {what.size}:
            raise TypeError(f"{quantity} takes {what.size}=…, got {sorted(size)}")
        x = float(size[what.size])
        if not x >= 1:
            raise InputError(f"a {what.size} of at least 1", where=quantity, got=size[what.size])
        if what.per_strategy and strategy == FREE_STRATEGY:
            return 0.0
        key = (quantity, model, strategy if what.per_strategy else "")
        known = self._seconds.get((key, x))
        if known is None:
            known = self._seconds[key, x] = self._evaluate(key, x)
        return known

    def has(self, quantity: str, *, model: str, strategy: str = "") -> bool:
        """Whether there is a curve for this work (an estimate for any model counts)."""
        return _known(quantity) is not None and (
            self._find((quantity, model, strategy)) is not None
            or (QUANTITIES[quantity].per_strategy and strategy == FREE_STRATEGY)
        )

    def _evaluate(self, key: tuple[str, str, str], x: float) -> float:
        found = self._find(key)
        if found is None:
            raise self._missing(key)
        of_model, curve = found
        quantity, model, _ = key
        size = {QUANTITIES[quantity].variable: x}
        if isinstance(curve, Fitted) and set(curve.law.needs) - set(size):
            work = self.models.get(model)
            if work is None:
                raise InputError(
                    f"the size of model {model}, which the law {curve.law.formula} counts",
                    where=f"{self.name}: {_spoken(key)}",
                )
            size.update(work.size(quantity, x))
        self._note(key, curve, size, estimated=of_model == ANY)
        return curve.at(size)

    def _find(self, key: tuple[str, str, str]) -> tuple[str, Curve] | None:
        quantity, model, strategy = key
        for of_model in (model, ANY):
            for of_strategy in (strategy, ANY) if strategy else ("",):
                curve = self.curves.get((quantity, of_model, of_strategy))
                if curve is not None:
                    return of_model, curve
        return None

    def _note(
        self, key: tuple[str, str, str], curve: Curve, size: Mapping[str, float], *, estimated: bool
    ) -> None:
        if key in self._warned:
            return
        text = None
        if estimated and not isinstance(curve, Constant):
            error = curve.facts.get("error_other_model") if isinstance(curve, Fitted) else None
            how = (
                f"estimated as {curve.law.formula}"
                if isinstance(curve, Fitted)
                else "taken from another model"
            )
            text = f"{_spoken(key)} was not measured; {how}" + (
                f", typical error {error:.0%}" if error is not None else ", error unknown"
            )
        else:
            outside = curve.outside(size)
            text = f"{_spoken(key)} was {outside}" if outside else None
        if text:
            self._warned.add(key)
            self.warnings.append(f"device profile {self.name}: {text}")

    def _missing(self, key: tuple[str, str, str]) -> InputError:
        quantity, model, strategy = key
        of_quantity = {(m, s) for q, m, s in self.curves if q == quantity}
        if not of_quantity:
            allowed, hint = "seconds for this work, which this profile lacks", None
            got = f"model {model}"
        elif not any(m == model for m, _ in of_quantity):
            models = sorted({m for m, _ in of_quantity})
            allowed, hint = (
                f"a model that was measured: {listed(models)}",
                did_you_mean(model, models),
            )
            got = model
        else:
            strategies = sorted({s for m, s in of_quantity if m == model})
            allowed, hint = (
                f"a strategy measured for {model}: {listed(strategies)}",
                did_you_mean(strategy, strategies),
            )
            got = strategy
        return InputError(
            allowed,
            where=f"{self.name}: {quantity}",
            got=got,
            hint=hint or f"measure it, or write `assume: {{{quantity}: 0 s}}` beside the profile",
        )


def _known(quantity: str) -> Quantity:
    if quantity not in QUANTITIES:
        raise InputError(
            f"a kind of work: {listed(QUANTITIES)}",
            got=quantity,
            hint=did_you_mean(quantity, QUANTITIES),
        )
    return QUANTITIES[quantity]


def _spoken(key: tuple[str, str, str]) -> str:
    quantity, model, strategy = key
    return f"{quantity} of {model}" + (f" by {strategy}" if strategy else "")
