"""Profiles of devices: seconds per kind of work, model and size.

Kinds of work ("quantities"): one local training step on a batch, one that shortens the
gradient of each sample for privacy, compression and decompression of one gradient to K
entries by a strategy, inference and one distillation step on a set of samples, one step
of a method's auxiliary work (a generator, a discriminator) by the name of that work,
what the beginning of a participation's training takes beside its steps, the handling of
a participation's messages, the evaluation of a model on the test set, and a server's
wait for the losses that clients measure where policies learn. The last four are what
real hosts do beside the method: they take time only where they are known. A `table`
profile is exact at its measured rows; a `law` profile holds fitted laws; a `published`
one is made of what others measured and says how far to trust it. Where none knows a
quantity, that is an error that names it: nothing ever takes zero seconds by accident.

What is ignored: everything that is not in the size (the values themselves, what ran
before). Noise, load, heat and clocks belong to the client's processor,
`simfed.device.client`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import product

from simfed.compress.choice import Choice
from simfed.compress.codec import Chain, Codec, codec_from_spec
from simfed.device.curve import Constant, Curve, Fitted, Points
from simfed.device.noise import Measured
from simfed.ground.errors import InputError, check_known, did_you_mean, listed
from simfed.ground.memo import Memo
from simfed.ground.plain import Plain
from simfed.ground.seeding import Streams
from simfed.ground.vocabulary import ModelFacts

ANY = "any"
"""The key of what holds for every model (or strategy) that has no key of its own."""

Key = tuple[str, str, str]
"""(quantity, model, strategy); the strategy is empty for work without one."""

_Call = tuple[Key, Key, Curve, float, float]
"""Work, the key and the curve that it takes its time of, its size, and d (0: not
known)."""

_TRUST: Key = ("", "", "")
"""The key of the warning how far a published profile may be trusted, among those of
curves."""

_ANY_TRAINING: Key = ("training", ANY, "")

FREE_STRATEGY = "dense"
"""Sends every entry as it is: there is nothing to compress, so it takes 0 s by
definition."""


@dataclass(frozen=True, slots=True)
class WorkQuantity:
    """One kind of work and what its time depends on."""

    name: str
    size: str
    """Keyword of its size in `Profile.seconds`."""
    per_strategy: bool = False
    beside: bool = False
    """Work of a host beside the method's: it takes time only where it is known, and is
    not estimated for models that were not measured."""
    counts: str = "train_flops"
    """The number of `ModelWork` that its seconds follow where a model is not what was
    measured: other samples, other classes; empty: none."""

    @property
    def variable(self) -> str:
        """The size's name in laws and files."""
        return "k" if self.size == "k" else "samples"


QUANTITIES: dict[str, WorkQuantity] = {
    q.name: q
    for q in (
        WorkQuantity("training", "batch"),
        WorkQuantity("private", "batch"),
        WorkQuantity("compression", "k", per_strategy=True, counts="parameters"),
        WorkQuantity("decompression", "k", per_strategy=True, counts="parameters"),
        WorkQuantity("inference", "samples", counts="forward_flops"),
        WorkQuantity("distillation", "samples"),
        WorkQuantity("auxiliary", "samples"),
        WorkQuantity("starting", "samples", beside=True),
        WorkQuantity("handling", "samples", beside=True, counts="parameters"),
        WorkQuantity("evaluation", "samples", beside=True, counts="forward_flops"),
        WorkQuantity("losses", "samples", beside=True, counts=""),
    )
}
"""The kinds of work, by name."""


def find_quantity(name: str, where: str | None = None) -> WorkQuantity:
    """Return the kind of work of this name.

    Args:
        name: of `QUANTITIES`.
        where: names the place in errors.

    Raises:
        InputError: there is none.
    """
    check_known(name, QUANTITIES, "a kind of work:", where=where)
    return QUANTITIES[name]


def name_codec(text: str) -> str:
    """Return the name under which the times of a codec stand.

    It is its label, or names alone, which stand for the codec with any options.

    Raises: `InputError` for what is no codec.

    >>> name_codec("qsgd"), name_codec("top-k + qsgd(levels=4)")
    ('qsgd', 'top-k+qsgd(4)')
    """
    codec, bare = codec_from_spec(text), Choice(text).bare
    return bare if bare == text.replace(" ", "") else codec.label


@lru_cache
def _list_links(strategy: str) -> tuple[str, ...]:
    """Return the labels of a codec's links, where it is a chain of several.

    None of what is no codec.
    """
    codec = _parse_codec(strategy)
    if not isinstance(codec, Chain) or len(codec.links) < 2:
        return ()
    return tuple(codec_from_spec(link).label for link in Choice(codec).links)


@lru_cache
def is_value_codec(strategy: str) -> bool:
    """Return whether this is a value codec alone, whose time goes by d and not by K."""
    codec = _parse_codec(strategy)
    return isinstance(codec, Chain) and codec.keeps_all and codec.values is not None


def _parse_codec(strategy: str) -> Codec | None:
    try:
        return codec_from_spec(strategy)
    except InputError:
        return None


def is_free(quantity: str, strategy: str) -> bool:
    """Return whether this work takes 0 s by definition.

    Profile and scenario do not matter then.
    """
    return QUANTITIES[quantity].per_strategy and strategy == FREE_STRATEGY


@dataclass(frozen=True, slots=True)
class ModelWork:
    """Plain numbers about one model on samples of one shape.

    Laws for unmeasured models count them, and rows were measured on such.
    """

    parameters: int
    forward_flops: float
    """Per sample."""
    train_flops: float
    """Per sample, forward and backward."""
    input_shape: tuple[int, ...] = ()
    """The shape of one sample; empty: not known."""
    classes: int = 0
    """0: not known."""
    base: int = 0
    """Numbers that do not train, beside the parameters."""

    @classmethod
    def of(cls, facts: ModelFacts) -> ModelWork:
        """Return the numbers of a model with these facts."""
        flops = facts.forward_flops, facts.train_flops
        shape = tuple(facts.input_shape)
        return cls(facts.parameters, *flops, shape, facts.classes, facts.base)

    def __str__(self) -> str:
        shape = "×".join(map(str, self.input_shape))
        parts = [
            f"{shape} samples" if shape else f"{self.train_flops:.6g} FLOPs a sample"
        ]
        parts += [f"{self.classes} classes"] if self.classes > 1 else []
        parts += [f"d = {self.parameters:,}"] if self.parameters else []
        return ", ".join(parts)

    def size(self, quantity: str, x: float) -> dict[str, float]:
        """Return what a law may count in one call of `quantity` at size `x`.

        Bytes are those of the 32-bit weights, read once by inference; training and
        distillation read them twice and write a gradient of those that train.
        """
        if QUANTITIES[quantity].per_strategy:
            return {"d": float(self.parameters)}
        if quantity == "auxiliary":
            # its weights are small, and not counted
            return {"flops": self.train_flops * x}
        forward = QUANTITIES[quantity].counts == "forward_flops"
        per_sample = self.forward_flops if forward else self.train_flops
        return {
            "flops": per_sample * x,
            "bytes": 4.0
            * (
                self.parameters * (1 if forward else 3)
                + self.base * (1 if forward else 2)
            ),
        }


@dataclass(eq=False)
class Profile:
    """One device's times. Make it with `load_profile`.

    Curves are found by (quantity, model, strategy), from the most specific name to
    `any`; what is extrapolated or estimated on the way adds a sentence to `warnings`.

    >>> from simfed.device import load_profile
    >>> profile = load_profile("rtx3090-ryzen4800h")
    >>> profile.seconds("training", model="lenet5", batch=32)
    0.0045
    >>> profile.seconds("compression", model="lenet5", strategy="top-k", k=1000)
    6.1e-07
    >>> profile.seconds("inference", model="lenet5", samples=256)
    Traceback (most recent call last):
    simfed.ground.errors.InputError: rtx3090-ryzen4800h: inference: ...
    """

    name: str
    kind: str
    curves: Mapping[Key, Curve]
    power_w: Mapping[str, float] = field(default_factory=dict)
    noise: Mapping[str, Measured] = field(default_factory=dict)
    """Measured scatter per quantity."""
    uncertainty: Mapping[str, float] = field(default_factory=dict)
    """Standard deviation of the logarithm of all measured rows of a quantity, as a
    whole."""
    provenance: Mapping[str, Plain] = field(default_factory=dict)
    source: str = ""
    """The file it was read from."""
    draws: Streams | None = None
    """The streams from which constants are drawn, see `drawn`; None: they are as
    measured."""
    measured_on: Mapping[str, ModelWork] = field(default_factory=dict)
    """The work that rows were measured on, by name of a model or of auxiliary work."""
    models: dict[str, ModelWork] = field(default_factory=dict)
    """The facts of models in use, by name: needed by laws that count parameters or
    FLOPs, and where a model is not what was measured."""
    warnings: list[str] = field(default_factory=list)
    """Sentences for a run with this profile, one per curve that was extrapolated or
    estimated."""
    _memo_s: Memo[tuple[Key, float, float], float] = field(
        default_factory=Memo, repr=False
    )
    _warned: set[Key] = field(default_factory=set, repr=False)

    def seconds(
        self,
        quantity: str,
        *,
        model: str,
        strategy: str = "",
        entries: float = 0,
        **size: float,
    ) -> float:
        """Return the nominal seconds of one call on the measured device.

        Strategy `dense` takes 0 s. A codec takes the times of its label, else those of
        its label without options, else, as a chain, those of its links one after the
        other; a value codec alone goes by d in place of K.

        Where `measured_on` says that a model's rows are of other samples, their seconds
        go with FLOPs (of handling, with d); those of a codec at another d go with the
        profile's law in d and K for any model, else as if d and K were larger by one
        factor.

        Args:
            quantity: a key of `QUANTITIES`.
            model: registry name; of auxiliary work its own name.
            strategy: of compression and decompression.
            entries: d, of what is compressed; 0: the model's.
            **size: `batch` for training, `k` for compression and decompression, else
                `samples`; at least 1.

        Raises:
            InputError: it names what the profile lacks.
            TypeError: another size than the quantity has.
        """
        key, x = self._read_call(quantity, model, strategy, size)
        if is_free(quantity, strategy):
            return 0.0
        seconds = self._memo_s.get((key, x, entries))
        if seconds is None:
            # a chain that was not measured takes the times of its links, one after the
            # other
            seconds = sum(
                self._follow_curve(*found)
                for found in self._find_curves(key, x, entries)
            )
            self._memo_s[key, x, entries] = seconds
        return seconds

    def tell_source(
        self,
        quantity: str,
        *,
        model: str,
        strategy: str = "",
        entries: float = 0,
        **size: float,
    ) -> str:
        """Return the source of the seconds of one call, in words.

        Arguments and errors as of `seconds`.
        """
        key, x = self._read_call(quantity, model, strategy, size)
        if is_free(quantity, strategy):
            return "nothing to do"
        found = self._find_curves(key, x, entries)
        return " and ".join(dict.fromkeys(self._tell_curve(*one) for one in found))

    def _read_call(
        self, quantity: str, model: str, strategy: str, size: Mapping[str, float]
    ) -> tuple[Key, float]:
        """Return the key of a call's work, and its size.

        Raises: `InputError`, `TypeError`.
        """
        what = find_quantity(quantity)
        if set(size) != {what.size}:
            raise TypeError(f"{quantity} takes {what.size}=…, got {sorted(size)}")
        x = float(size[what.size])
        if not x >= 1:
            raise InputError(
                f"a {what.size} of at least 1", where=quantity, got=size[what.size]
            )
        return (quantity, model, strategy if what.per_strategy else ""), x

    def drawn(self, streams: Streams) -> Profile:
        """Return this profile with constants drawn from its uncertainty.

        There is one draw per curve and run, shared by all clients of the profile: an
        error of calibration is an error for all of them. Times that a person wrote (`0
        s`) stay. A curve that does not state its uncertainty is an `InputError` when it
        is needed. Warnings stay shared.
        """
        return replace(self, draws=streams, _memo_s=Memo())

    def has(self, quantity: str, *, model: str) -> bool:
        """Return whether there is a curve for this work.

        An estimate for any model counts.
        """
        find_quantity(quantity)
        return self.find((quantity, model, "")) is not None

    def _find_curves(self, key: Key, x: float, entries: float) -> list[_Call]:
        """Return the calls whose seconds this work is the sum of.

        Raises: `InputError` where there is none.
        """
        quantity, model, strategy = key
        d = float(entries) or (
            self.models[model].parameters if model in self.models else 0
        )
        if d and strategy and is_value_codec(strategy):
            x = d
        entry = self.find(key)
        # what the curves of its links say is nearer
        if entry is None or entry[0][2] == ANY:
            links = [(quantity, model, link) for link in _list_links(strategy)]
            found = [
                (link, *curve, x, d)
                for link in links
                if (curve := self.find(link)) and curve[0][2] != ANY
            ]
            if links and len(found) == len(links):
                return found
        if entry is None:
            raise self._missing_curve(key)
        return [(key, *entry, x, d)]

    def _follow_curve(
        self, key: Key, own_key: Key, curve: Curve, x: float, d: float
    ) -> float:
        """Return the seconds of `key` at size `x`, by the curve of `own_key`."""
        ratio = self._compare(key[1], own_key, curve, d)
        drawn = curve if self.draws is None else self._draw_curve(own_key, curve)
        if ratio != 1:
            self._warn_of_shape(key, own_key[1], d)
            if key[2]:
                if isinstance(curve, Points) and (
                    far := curve.outside({"k": x}, "beside d")
                ):
                    self._note(key, f"{_name_work(key)} was {far}")
                return self._scale_codec(own_key, drawn, x, d, ratio)
        size = self.size_of(key, curve, x, d)
        self._warn(key, curve, size, estimated=own_key[1] == ANY)
        return drawn.at(size) * ratio

    def _tell_curve(
        self, key: Key, own_key: Key, curve: Curve, x: float, d: float
    ) -> str:
        """Return the source of the seconds of `key`, by the curve of `own_key`."""
        ratio = self._compare(key[1], own_key, curve, d)
        if ratio == 1:
            place = curve.tell(self.size_of(key, curve, x, d))
            return f"{place} for any model" if own_key[1] == ANY else place
        measured = self.measured_on[own_key[1]]
        return f"derived from {f'd = {measured.parameters:,}' if key[2] else measured}"

    def _compare(self, here_is: str, own_key: Key, curve: Curve, d: float) -> float:
        """Return how much larger a model's work is than that of the curve's rows.

        It is so in what its quantity counts; 1 where that is not known, or where the
        curve counts it itself.
        """
        quantity, model, strategy = own_key
        counts = QUANTITIES[quantity].counts
        known = model != ANY and here_is in self.models
        if isinstance(curve, Constant) or not counts or not known:
            return 1.0
        if isinstance(curve, Fitted) and {"d", "flops"} & set(curve.law.needs):
            return 1.0
        if is_value_codec(strategy):  # its rows are by d
            return 1.0
        if model not in self.measured_on:
            if self.models[here_is].input_shape:
                self._note(
                    ("", here_is, ""),
                    f"nobody says what {model} was measured on (key `measured_on`); "
                    f"its times are taken as they are, for {self.models[here_is]}",
                )
            return 1.0
        here = d if strategy else getattr(self.models[here_is], counts)
        there = getattr(self.measured_on[model], counts)
        return float(here / there) if here and there else 1.0

    def _scale_codec(
        self, own_key: Key, curve: Curve, x: float, d: float, ratio: float
    ) -> float:
        """Return a codec's seconds at K = x of `d` entries, by its nearest row.

        They are `ratio` times those that the curve was measured on: from the row on by
        the profile's law in d and K for any model; without one as if d and K were
        larger by one factor.
        """
        quantity, _, strategy = own_key
        law = self.curves.get((quantity, ANY, strategy))
        if isinstance(law, Fitted):
            k = (
                min(max(x, curve.sizes[0]), curve.sizes[-1])
                if isinstance(curve, Points)
                else x
            )
            measured_s = law.at({"k": k, "d": d / ratio})
            if measured_s > 0:
                return curve.at({"k": k}) * law.at({"k": x, "d": d}) / measured_s
        return curve.at({"k": max(1.0, x / ratio)}) * ratio

    def find(self, key: Key) -> tuple[Key, Curve] | None:
        """Return the curve that serves this work, under its own key."""
        quantity, model, strategy = key
        # of a model of which parts train, rows of the whole one, by FLOPs
        models = dict.fromkeys((model, model.partition("/")[0], ANY))
        for some_model, spelling in product(models, _list_spellings(strategy)):
            own_key = (quantity, some_model, spelling)
            if own_key in self.curves:
                return own_key, self.curves[own_key]
        # a step of a small network: as training, by its FLOPs
        if quantity == "auxiliary":
            law = self.curves.get(_ANY_TRAINING)
            return (_ANY_TRAINING, law) if isinstance(law, Fitted) else None
        return None

    def size_of(
        self, key: Key, curve: Curve, x: float, d: float = 0
    ) -> dict[str, float]:
        """Return all that a curve needs to know of the size of one call.

        `d`: see `seconds`.
        """
        quantity, model, _ = key
        size = {QUANTITIES[quantity].variable: x}
        if isinstance(curve, Fitted) and set(curve.law.needs) - set(size):
            work = self.models.get(model)
            if work is None:
                allowed = (
                    f"the size of model {model}, which the law "
                    f"{curve.law.formula} counts"
                )
                raise InputError(allowed, where=f"{self.name}: {_name_work(key)}")
            size.update({"bytes": 0.0} | work.size(quantity, x))
            size.update({"d": d} if d else {})
        return size

    def find_spread(self, key: Key, curve: Curve) -> float | None:
        """Return the standard deviation of log(new median / curve); None: not known."""
        if isinstance(curve, Fitted):
            return curve.spread
        return self.uncertainty.get(key[0]) if isinstance(curve, Points) else None

    def _draw_curve(self, key: Key, curve: Curve) -> Curve:
        """Return a curve times a factor drawn from its uncertainty."""
        if isinstance(curve, Constant):
            return curve
        assert self.draws is not None
        rng = self.draws("device-uncertainty", self.name, *key)
        spread = self.find_spread(key, curve)
        if spread is not None:
            return curve.scaled(math.exp(spread * rng.standard_normal()))
        raise InputError(
            "a profile that states its uncertainty",
            where=f"{self.name}: {_name_work(key)}",
            problem="no uncertainty is stated",
            hint="leave out `uncertainty: true`, or measure and fit the device",
        )

    def _warn_of_shape(self, key: Key, measured: str, d: float) -> None:
        """Warn once for a model of what was measured and what is here.

        And once for what else of it is compressed.
        """
        _, model, strategy = key
        there, here = self.measured_on[measured], self.models[model]
        if strategy and d != here.parameters:
            text = f"codecs of {model} were measured at d = {there.parameters:,}"
            here_is = f"at d = {d:,.0f} their seconds follow d and K"
            self._note(("", model, f"{d:g}"), f"{text}; {here_is}")
            return
        codecs = ", those of codecs d and K" if here.parameters else ""
        text = f"{measured} was measured on {there}; on {here} its seconds follow"
        self._note(("", model, ""), f"{text} FLOPs{codecs}")

    def _note(self, key: Key, text: str) -> None:
        """Add a warning, once for each key."""
        if key not in self._warned:
            self._warned.add(key)
            self.warnings.append(f"device profile {self.name}: {text}")

    def _warn(
        self, key: Key, curve: Curve, size: Mapping[str, float], *, estimated: bool
    ) -> None:
        """Warn once of a time that was not measured, and of a published profile.

        Args:
            key: the work.
            curve: which serves it.
            size: of the call.
            estimated: True if the curve is for any model.
        """
        if self.kind == "published":
            trust = (
                f"its times are made of published numbers, {self.provenance['trust']}"
            )
            self._note(_TRUST, f"nobody measured it with simfed; {trust}")
        if key in self._warned:
            return
        text = None
        if estimated and isinstance(curve, Fitted):
            error = curve.error.get("other_model")
            stated = (
                "error unknown"
                if error is None
                else f"typical error {math.expm1(error):.0%}"
            )
            text = (
                f"{_name_work(key)} was not measured; estimated as "
                f"{curve.law.formula}, {stated}"
            )
        elif estimated and isinstance(curve, Points):
            text = f"{_name_work(key)} was not measured; it takes the times of {ANY}"
        elif outside := curve.outside(size):
            text = f"{_name_work(key)} was {outside}"
        if text:
            self._note(key, text)

    def _missing_curve(self, key: Key) -> InputError:
        """Return the sentence for work that no curve of the profile says."""
        quantity, model, strategy = key
        hint: str | None = None
        if not self.curves:
            allowed = f"the time of {quantity}, which no profile says here"
            hint = f"write `{quantity}: 5 ms` in `device`, or name a profile"
            return InputError(allowed, got=f"model {model}", hint=hint)
        of_quantity = {(m, s) for q, m, s in self.curves if q == quantity}
        models = sorted({m for m, _ in of_quantity})
        measured = next((name for name in (model, ANY) if name in models), None)
        if quantity == "auxiliary":
            part, _, _ = model.partition("/")
            allowed, got = f"seconds for this step of {part}'s own", model
            hint = (
                f"write `auxiliary: {{{model}: …}}` in the profile, or "
                "`assume: {auxiliary: 0 s}` beside it"
            )
        elif not of_quantity:
            allowed = "seconds for this work, which this profile lacks"
            got = f"model {model}"
            if quantity == "private":  # 0 s would make privacy of samples cost no time
                hint = (
                    "measure it with `calibrate measure --only private,compression`, "
                    "or write `private: 2 ms` beside the profile: 2 to 13 times its "
                    "step of training"
                )
        elif measured is None:
            allowed, got = f"a model that was measured: {listed(models)}", model
            hint = did_you_mean(model, models)
        else:
            strategies = sorted({s for m, s in of_quantity if m == measured})
            got = strategy
            allowed = f"a strategy measured for {measured}: {listed(strategies)}"
            hint = did_you_mean(strategy, strategies)
            if _parse_codec(strategy) is not None:
                lacking = [
                    x
                    for x in _list_links(strategy)
                    if self.find((quantity, model, x)) is None
                ]
                hint = (
                    "measure it with `calibrate measure --strategies "
                    f'"{",".join(lacking or [strategy])}"`, '
                    f"or write `device: {{assume: {{{quantity}: 0.3 ms}}}}`"
                )
        hint = hint or (
            f"measure it, or write `assume: {{{quantity}: 0 s}}` beside the profile"
        )
        return InputError(allowed, where=f"{self.name}: {quantity}", got=got, hint=hint)


@lru_cache
def _list_spellings(strategy: str) -> tuple[str, ...]:
    """Return the names under which the times of a strategy may stand, best first."""
    if not strategy:
        return ("",)
    codec = _parse_codec(strategy)
    names = [strategy] if codec is None else [strategy, codec.label, Choice(codec).bare]
    return tuple(dict.fromkeys((*names, ANY)))


def _name_work(key: Key) -> str:
    """Return the work of a key, in words."""
    quantity, model, strategy = key
    return f"{quantity} of {model}" + (f" by {strategy}" if strategy else "")
