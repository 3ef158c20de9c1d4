"""What is known of a device's speed: seconds per kind of work, model and size.

Kinds of work ("quantities"): one local training step on a batch, compression and decompression of
one gradient to K entries by a strategy, inference and one distillation step on a set of samples,
one step of a method's auxiliary work (a generator, a discriminator) by the name of that work, the
handling of a participation's messages, the evaluation of a model on the test set, and a server's
wait for the losses that clients measure where policies learn. The last three are what real hosts do
beside the method: they take time only where they are known. A
`table` profile is exact at its measured rows; a `law` profile holds fitted laws; a `published` one
is made of what others measured and says how far to trust it. Where none knows a quantity, that is
an error that names it: nothing ever takes zero seconds by accident.

What is ignored: everything that is not in the size (the values themselves, what ran before). Noise,
load, heat and clocks belong to the client's processor, `simfed.device.client`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from simfed.compress.codec import Chain, codec_from_spec
from simfed.device.curve import Constant, Curve, Fitted, Points
from simfed.device.noise import Measured
from simfed.errors import InputError, did_you_mean, listed
from simfed.labels import read_label
from simfed.method import Work
from simfed.seeding import Streams

__all__ = [
    "ANY",
    "QUANTITIES",
    "Key",
    "ModelWork",
    "Profile",
    "codec_key",
    "is_free",
    "work_size",
]

ANY = "any"
"""The key of what holds for every model (or strategy) that has no key of its own."""

Key = tuple[str, str, str]
"""(quantity, model, strategy); the strategy is empty for work without one."""

_TRUST: Key = ("", "", "")
"""Of the warning how far a published profile may be trusted, among those given."""

_ANY_TRAINING: Key = ("training", ANY, "")

FREE_STRATEGY = "dense"
"""Sends every entry as it is: there is nothing to compress, so it takes 0 s by definition."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """One kind of work and what its time depends on."""

    name: str
    size: str
    """Keyword of its size in `Profile.seconds`."""
    per_strategy: bool = False
    beside: bool = False
    """Work of a host beside the method's: it takes time only where it is known, and is not
    estimated for models that were not measured."""

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
        Quantity("auxiliary", "samples"),
        Quantity("handling", "samples", beside=True),
        Quantity("evaluation", "samples", beside=True),
        Quantity("losses", "samples", beside=True),
    )
}
"""Every kind of work, by name."""


def work_size(work: Work) -> dict[str, Any]:
    """The size of a unit of work as `Profile.seconds` wants it: by its quantity's keyword."""
    return {QUANTITIES[work.quantity].size: work.size}


def codec_key(text: str) -> str:
    """The name under which the times of a codec stand: its label, or names alone, which stand for
    the codec with any options. Raises: `InputError` for what is no codec.

    >>> codec_key("qsgd"), codec_key("top-k + qsgd(levels=4)")
    ('qsgd', 'top-k+qsgd(4)')
    """
    codec, bare = codec_from_spec(text), _bare(text)
    return bare if bare == text.replace(" ", "") else codec.label


@lru_cache
def _bare(label: str) -> str:
    """A label without options."""
    return "+".join(name for name, _ in read_label(label))


@lru_cache
def _links(strategy: str) -> tuple[str, ...]:
    """The labels of a codec's links, where it is a chain of several; none of what is no codec."""
    codec = _codec(strategy)
    if not isinstance(codec, Chain) or len(codec.links) < 2:
        return ()
    return tuple(codec_from_spec(link).label for link in codec.label.split("+"))


@lru_cache
def _writes_all(strategy: str) -> bool:
    """Whether the codec is a value codec alone, which goes by d and not by K."""
    codec = _codec(strategy)
    return isinstance(codec, Chain) and codec.keeps_all and codec.values is not None


def _codec(strategy: str) -> Any:
    try:
        return codec_from_spec(strategy)
    except InputError:
        return None


def is_free(quantity: str, strategy: str) -> bool:
    """Whether this work takes 0 s by definition, whatever a profile or a scenario says."""
    return QUANTITIES[quantity].per_strategy and strategy == FREE_STRATEGY


@dataclass(frozen=True, slots=True)
class ModelWork:
    """What the laws for unmeasured models count: plain numbers about one model."""

    parameters: int
    forward_flops: float
    """Per sample."""
    train_flops: float
    """Per sample, forward and backward."""

    def size(self, quantity: str, x: float) -> dict[str, float]:
        """What a law may count in one call of `quantity` at size `x`.

        Bytes are those of the 32-bit weights, read once by inference; training and distillation
        read them twice and write a gradient.
        """
        if QUANTITIES[quantity].per_strategy:
            return {"d": float(self.parameters)}
        if quantity == "auxiliary":
            return {"flops": self.train_flops * x}  # its weights are small, and not counted
        forward = quantity == "inference"
        per_sample = self.forward_flops if forward else self.train_flops
        return {"flops": per_sample * x, "bytes": 4.0 * self.parameters * (1 if forward else 3)}


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
    curves: Mapping[Key, Curve]
    power_w: Mapping[str, float] = field(default_factory=dict)
    noise: Mapping[str, Measured] = field(default_factory=dict)
    """Measured scatter per quantity."""
    uncertainty: Mapping[str, float] = field(default_factory=dict)
    """Standard deviation of the logarithm of all measured rows of a quantity, as a whole."""
    provenance: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""
    """The file it was read from."""
    draws: Streams | None = None
    """Where the constants are drawn from, see `drawn`; None: they are as measured."""
    models: dict[str, ModelWork] = field(default_factory=dict)
    """By name, what is known of the models in use: needed by laws that count parameters or
    FLOPs."""
    warnings: list[str] = field(default_factory=list)
    """What a run with this profile should say: one sentence per curve that was extrapolated or
    estimated."""
    _seconds: dict[tuple[Key, float], float] = field(default_factory=dict, repr=False)
    _warned: set[Key] = field(default_factory=set, repr=False)

    def seconds(self, quantity: str, *, model: str, strategy: str = "", **size: float) -> float:
        """Nominal seconds of one call on the measured device.

        The size is `batch` for training, `k` for compression and decompression, `samples` for
        inference, distillation and auxiliary work, whose `model` is the name of the work. Strategy
        `dense` takes 0 s. A codec takes the times of its label, else those of its label without
        options, else, as a chain, those of its links one after the other; a value codec alone goes
        by the d entries of the model in place of K.
        Raises: `InputError` naming what the profile lacks.
        """
        what = _known(quantity)
        if set(size) != {what.size}:
            raise TypeError(f"{quantity} takes {what.size}=…, got {sorted(size)}")
        x = float(size[what.size])
        if not x >= 1:
            raise InputError(f"a {what.size} of at least 1", where=quantity, got=size[what.size])
        if is_free(quantity, strategy):
            return 0.0
        key = (quantity, model, strategy if what.per_strategy else "")
        known = self._seconds.get((key, x))
        if known is None:
            known = self._seconds[key, x] = self._evaluate(key, x)
        return known

    def drawn(self, streams: Streams) -> Profile:
        """This profile with its constants drawn from what calibration does not know.

        One draw per curve and run, shared by all clients of the profile: an error of calibration
        is an error for all of them. Times that a person wrote (`0 s`) stay. A curve that does not
        state its uncertainty is an `InputError` when it is needed. Warnings stay shared.
        """
        return replace(self, draws=streams, _seconds={})

    def has(self, quantity: str, *, model: str, strategy: str = "") -> bool:
        """Whether there is a curve for this work (an estimate for any model counts)."""
        _known(quantity)
        return is_free(quantity, strategy) or self.find((quantity, model, strategy)) is not None

    def _evaluate(self, key: Key, x: float) -> float:
        if key[2] and _writes_all(key[2]) and key[1] in self.models:
            x = float(self.models[key[1]].parameters)
        found = self.find(key)
        if found is None or found[0][2] == ANY:  # what is known of its links says more
            links = [(key[0], key[1], link) for link in _links(key[2])]
            known = [of for link in links if (of := self.find(link)) and of[0][2] != ANY]
            if links and len(known) == len(links):
                pairs = zip(links, known, strict=True)
                return sum(self._by_curve(link, of, x) for link, of in pairs)
        if found is None:
            raise self._missing(key)
        return self._by_curve(key, found, x)

    def _by_curve(self, key: Key, found: tuple[Key, Curve], x: float) -> float:
        of, curve = found
        size = self.size_of(key, curve, x)
        self._note(key, curve, size, estimated=of[1] == ANY)
        return (curve if self.draws is None else self._drawn(of, curve)).at(size)

    def find(self, key: Key) -> tuple[Key, Curve] | None:
        """The curve that serves this work, under its own key."""
        quantity, model, strategy = key
        for of_model in (model, ANY):
            for of_strategy in _spellings(strategy):
                of = (quantity, of_model, of_strategy)
                if of in self.curves:
                    return of, self.curves[of]
        if quantity == "auxiliary":  # a step of a small network: as training, by its FLOPs
            law = self.curves.get(_ANY_TRAINING)
            return (_ANY_TRAINING, law) if isinstance(law, Fitted) else None
        return None

    def size_of(self, key: Key, curve: Curve, x: float) -> dict[str, float]:
        """All that a curve needs to know of the size of one call."""
        quantity, model, _ = key
        size = {QUANTITIES[quantity].variable: x}
        if isinstance(curve, Fitted) and set(curve.law.needs) - set(size):
            work = self.models.get(model)
            if work is None:
                raise InputError(
                    f"the size of model {model}, which the law {curve.law.formula} counts",
                    where=f"{self.name}: {_spoken(key)}",
                )
            size.update({"bytes": 0.0} | work.size(quantity, x))
        return size

    def _drawn(self, key: Key, curve: Curve) -> Curve:
        if isinstance(curve, Constant):
            return curve
        assert self.draws is not None
        rng = self.draws("device-uncertainty", self.name, *key)
        if isinstance(curve, Fitted) and curve.spread is not None:
            return curve.drawn(rng)
        if isinstance(curve, Points) and key[0] in self.uncertainty:
            return curve.scaled(math.exp(self.uncertainty[key[0]] * rng.standard_normal()))
        raise InputError(
            "a profile that states its uncertainty", where=f"{self.name}: {_spoken(key)}",
            hint="leave out `uncertainty: true`, or measure and fit the device",
        )  # fmt: skip

    def _note(self, key: Key, curve: Curve, size: Mapping[str, float], *, estimated: bool) -> None:
        if self.kind == "published" and _TRUST not in self._warned:
            self._warned.add(_TRUST)
            self.warnings.append(
                f"device profile {self.name}: nobody measured it with simfed; its times are made "
                f"of published numbers, {self.provenance['trust']}"
            )
        if key in self._warned:
            return
        text = None
        if estimated and isinstance(curve, Fitted):
            error = curve.error.get("other_model")
            stated = "error unknown" if error is None else f"typical error {math.expm1(error):.0%}"
            text = f"{_spoken(key)} was not measured; estimated as {curve.law.formula}, {stated}"
        elif estimated and isinstance(curve, Points):
            text = f"{_spoken(key)} was not measured; it takes the times of {ANY}"
        elif outside := curve.outside(size):
            text = f"{_spoken(key)} was {outside}"
        if text:
            self._warned.add(key)
            self.warnings.append(f"device profile {self.name}: {text}")

    def _missing(self, key: Key) -> InputError:
        quantity, model, strategy = key
        if not self.curves:
            return InputError(
                f"the time of {quantity}, which no profile says here",
                got=f"model {model}",
                hint=f"write `{quantity}: 5 ms` in `device`, or name a profile",
            )
        of_quantity = {(m, s) for q, m, s in self.curves if q == quantity}
        models = sorted({m for m, _ in of_quantity})
        hint: str | None
        measured = next((of for of in (model, ANY) if of in models), None)
        if quantity == "auxiliary":
            method, _, _ = model.partition("/")
            allowed, got = f"seconds for this step of method {method}'s own", model
            hint = (
                "measure it with `calibrate measure --only auxiliary`, write `auxiliary: "
                f"{{{model}: …}}` in the profile, or `assume: {{auxiliary: 0 s}}` beside it"
            )
        elif not of_quantity:
            allowed, hint = "seconds for this work, which this profile lacks", None
            got = f"model {model}"
        elif measured is None:
            allowed, hint = (
                f"a model that was measured: {listed(models)}",
                did_you_mean(model, models),
            )
            got = model
        else:
            strategies = sorted({s for m, s in of_quantity if m == measured})
            allowed = f"a strategy measured for {measured}: {listed(strategies)}"
            hint = did_you_mean(strategy, strategies)
            if _codec(strategy) is not None:
                lacking = [x for x in _links(strategy) if self.find((quantity, model, x)) is None]
                hint = (
                    "measure it with `calibrate measure --strategies "
                    f'"{",".join(lacking or [strategy])}"`, '
                    f"or write `device: {{assume: {{{quantity}: 0.3 ms}}}}`"
                )
            got = strategy
        return InputError(
            allowed,
            where=f"{self.name}: {quantity}",
            got=got,
            hint=hint or f"measure it, or write `assume: {{{quantity}: 0 s}}` beside the profile",
        )


@lru_cache
def _spellings(strategy: str) -> tuple[str, ...]:
    """The names under which the times of a strategy may stand, the best first."""
    if not strategy:
        return ("",)
    codec = _codec(strategy)
    names = [strategy] if codec is None else [strategy, codec.label, _bare(codec.label)]
    return tuple(dict.fromkeys((*names, ANY)))


def _known(quantity: str) -> Quantity:
    if quantity not in QUANTITIES:
        raise InputError(
            f"a kind of work: {listed(QUANTITIES)}",
            got=quantity,
            hint=did_you_mean(quantity, QUANTITIES),
        )
    return QUANTITIES[quantity]


def _spoken(key: Key) -> str:
    quantity, model, strategy = key
    return f"{quantity} of {model}" + (f" by {strategy}" if strategy else "")
