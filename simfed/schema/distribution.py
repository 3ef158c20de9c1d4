"""Quantities of a client group that may be drawn per client: a value, or a distribution of values.

A distribution's parameters are written as the quantity itself is (`median: 10 Mbps` for a rate) and
kept as they were written; `Distribution.law` reads them as what they stand for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    SerializerFunctionWrapHandler,
    Tag,
    model_serializer,
    model_validator,
)

from simfed.ground import distributions as laws
from simfed.ground import units
from simfed.ground.arrays import Bools, Floats
from simfed.ground.distributions import Law
from simfed.ground.errors import InputError, listed
from simfed.ground.registry import Only
from simfed.schema.fields import (
    BelowOne,
    Duration,
    Entries,
    FoundFile,
    NonNegative,
    Positive,
    PositiveDuration,
)
from simfed.schema.section import Section


@dataclass(frozen=True)
class FieldQuantity:
    """What a field's values must be, and how they are written."""

    allowed: str
    """In an error: `a rate above 0 such as 20 Mbps`."""
    parse: Callable[[object], float]
    """A value as written → base units. Raises: `InputError`."""
    strict: bool = True
    """0 itself is no value."""
    below: float = math.inf
    """Values are below this."""
    whole: bool = False
    """Draws are rounded to the nearest whole number, at least 1."""
    format: Callable[[float], str] = "{:.4g}".format
    """For people."""
    has_unit: bool = False

    def unit(self, text: str | None) -> float:
        """What 1 in a table's column stands for, in base units.

        Raises: `InputError` where a unit is missing, wrong or not wanted.
        """
        if not self.has_unit:
            if text is not None:
                raise InputError("no unit: this is a plain number", where="unit", got=text)
            return 1.0
        if text is None:
            raise InputError(
                "one such as unit: Mbps", problem="the key 'unit' is missing beside column"
            )
        try:
            return self.parse(f"1 {text}")
        except InputError:
            raise InputError(f"the unit of {self.allowed}", where="unit", got=text) from None

    def holds(self, values: Floats) -> Bools:
        """Which of `values` the field may have."""
        least = values > 0 if self.strict else values >= 0
        return np.logical_and(least, values < self.below)

    def check(self, law: Law) -> None:
        """Raises: `InputError` if a value that the law may give is none of this quantity."""
        low_is_fine = law.low > 0 or (law.low == 0 and not (self.strict and law.attains_low))
        if not low_is_fine:
            raise InputError(f"only values that are {self.allowed}", got=f"down to {law.low:g}")
        if law.high >= self.below < math.inf:
            hint = None if law.high < math.inf else "the key `high` bounds it"
            raise InputError(
                f"only values that are {self.allowed}", got=f"up to {law.high:g}", hint=hint
            )


def _read_number(value: object) -> float:
    number = units.read_number(value)
    if math.isnan(number):
        raise InputError("a number without a unit", got=value)
    return number


QUANTITIES: dict[str, FieldQuantity] = {
    "number": FieldQuantity("a number above 0", _read_number),
    "loss": FieldQuantity("a number from 0 to below 1", _read_number, strict=False, below=1.0),
    "entries": FieldQuantity(
        "a number of entries, at least 1", _read_number, whole=True, format="{:,.0f}".format
    ),
    "rate": FieldQuantity(
        "a rate above 0 such as 20 Mbps",
        units.parse_rate,
        format=units.format_rate,
        has_unit=True,
    ),
    "stay": FieldQuantity(
        "a duration above 0 such as 2 h",
        units.parse_duration,
        format=units.format_duration,
        has_unit=True,
    ),
    "duration": FieldQuantity(
        "a duration with its unit such as 20 ms",
        units.parse_duration,
        strict=False,
        format=units.format_duration,
        has_unit=True,
    ),
}


def _check_amount(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise InputError("a value of this quantity, with its unit", got=value)
    return value


Amount = Annotated[
    Any,
    BeforeValidator(_check_amount, json_schema_input_type=str | float),
    Field(examples=["10 Mbps"]),
]
_LOW = "no value is below: the law under that condition"
_HIGH = "no value is above: the law under that condition"


class _Brief(Section):
    """Dumped without the keys that are not given, so that a resolved scenario stays readable."""

    @model_serializer(mode="wrap")
    def dump_used(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {key: value for key, value in dump(self).items() if value is not None}


class LognormalSpec(_Brief):
    """Log-normal; `low` and `high` truncate it."""

    median: Amount | None = Field(default=None, description="half of the values are below")
    mean: Amount | None = Field(default=None, description="in place of the median")
    cv: Positive = Field(description="coefficient of variation: sd over mean")
    low: Amount | None = Field(default=None, description=_LOW)
    high: Amount | None = Field(default=None, description=_HIGH)

    @model_validator(mode="after")
    def _check_place(self) -> LognormalSpec:
        if (self.median is None) == (self.mean is None):
            raise InputError(
                "one of them", problem="none or both of median and mean stand beside cv"
            )
        return self


class UniformBetween(_Brief):
    """Every value from `low` to `high` alike."""

    low: Amount = Field(description="the smallest value")
    high: Amount = Field(description="the largest value")


class NormalSpec(_Brief):
    """Normal under the condition that the value is above `low`, or 0, and below `high`.

    `mean` and `sd` are those before this truncation.
    """

    mean: Amount = Field(description="before truncation")
    sd: Amount = Field(description="standard deviation, before truncation")
    low: Amount | None = Field(default=None, description=f"{_LOW}; 0 if omitted")
    high: Amount | None = Field(default=None, description=_HIGH)


class ChoiceSpec(_Brief):
    """One of a few values."""

    values: tuple[Amount, ...] = Field(description="what there is to choose from")
    weights: tuple[NonNegative, ...] | None = Field(
        default=None, description="probabilities, up to a factor; alike if omitted"
    )


class Distribution(_Brief):
    """A value drawn for every client, from the run's seed, in place of one value for the group.

    One of the laws `lognormal`, `uniform`, `normal`, `choice`, or a `column` of a CSV or
    Parquet `table`: each client gets the value of a row drawn at random, or, without `table`, of
    the row of the group's table `devices` that was drawn for it. See fleets.
    """

    lognormal: LognormalSpec | None = Field(default=None, description="median or mean, and cv")
    uniform: UniformBetween | None = Field(default=None, description="low and high")
    normal: NormalSpec | None = Field(default=None, description="mean and sd, truncated at 0")
    choice: ChoiceSpec | None = Field(default=None, description="values and their weights")
    column: str | None = Field(default=None, description="of `table`, or of the group's `devices`")
    table: Annotated[FoundFile | None, Only("column")] = Field(
        default=None, description="CSV with a header line, or Parquet"
    )
    unit: Annotated[str | None, Only("column")] = Field(
        default=None, description="of the column: Mbps, kB/s, ms, …"
    )
    weights: Annotated[str | None, Only("table")] = Field(
        default=None, description="a column of `table`: how likely a row is, up to a factor"
    )

    @model_validator(mode="after")
    def _check_kind(self) -> Distribution:
        kinds = [kind for kind in KINDS if getattr(self, kind) is not None]
        if len(kinds) != 1:
            raise InputError(f"one of {listed(KINDS)}", got=kinds)
        return self

    def law(self, quantity: FieldQuantity) -> Law | None:
        """The law in base units; None for a column.

        Raises: `InputError` for parameters that make no distribution of this quantity.
        """
        if self.column is not None:
            quantity.unit(self.unit)
            return None
        kind = next(kind for kind in KINDS if getattr(self, kind) is not None)
        try:
            law = _LAWS[kind](getattr(self, kind), quantity)
            quantity.check(law)
        except InputError as error:
            where = ".".join(filter(None, (kind, error.where)))
            raise error.changed(where=where) from None
        return law


KINDS = ("lognormal", "uniform", "normal", "choice", "column")


def _lognormal(part: LognormalSpec, quantity: FieldQuantity) -> Law:
    low, high = _read_bounds(part, quantity)
    if part.mean is not None:
        return laws.Lognormal.of_mean(_read_value(part, "mean", quantity), part.cv, low, high)
    return laws.Lognormal(_read_value(part, "median", quantity), part.cv, low, high)


def _uniform(part: UniformBetween, quantity: FieldQuantity) -> Law:
    return laws.UniformLaw(*_read_bounds(part, quantity))


def _normal(part: NormalSpec, quantity: FieldQuantity) -> Law:
    mean, sd = _read_value(part, "mean", quantity), _read_value(part, "sd", quantity)
    return laws.Normal(mean, sd, *_read_bounds(part, quantity))


def _choice(part: ChoiceSpec, quantity: FieldQuantity) -> Law:
    values = tuple(_parse_value(value, "values", quantity) for value in part.values)
    return laws.Discrete(values, part.weights or ())


_LAWS: dict[str, Callable[[Any, FieldQuantity], Law]] = {
    "lognormal": _lognormal,
    "uniform": _uniform,
    "normal": _normal,
    "choice": _choice,
}


def _read_bounds(part: Any, quantity: FieldQuantity) -> tuple[float, float]:
    low = 0.0 if part.low is None else _read_value(part, "low", quantity)
    return low, math.inf if part.high is None else _read_value(part, "high", quantity)


def _read_value(part: Any, key: str, quantity: FieldQuantity) -> float:
    return _parse_value(getattr(part, key), key, quantity)


def _parse_value(written: object, key: str, quantity: FieldQuantity) -> float:
    try:
        value = quantity.parse(written)
    except InputError as error:
        raise error.changed(where=key) from None
    if value < 0:
        raise InputError(quantity.allowed, where=key, got=written)
    return value


def drawn_as(quantity: str) -> AfterValidator:
    """Checks that a distribution is one of this quantity, see `QUANTITIES`."""

    def check(value: Any) -> Any:
        if isinstance(value, Distribution):
            value.law(QUANTITIES[quantity])
        return value

    return AfterValidator(check)


def _tell_distribution(value: Any) -> str:
    return "distribution[]" if isinstance(value, (dict, Distribution)) else "value[]"


T = TypeVar("T")
# The brackets keep a tag out of the key paths in error messages.
_Drawn = Annotated[
    Annotated[T, Tag("value[]")] | Annotated[Distribution, Tag("distribution[]")],
    Discriminator(_tell_distribution),
]
DrawnNumber = Annotated[_Drawn[Positive], drawn_as("number")]
DrawnLoss = Annotated[_Drawn[BelowOne], drawn_as("loss")]
DrawnDuration = Annotated[_Drawn[Duration], drawn_as("duration")]
DrawnStay = Annotated[_Drawn[PositiveDuration], drawn_as("stay")]
DrawnEntries = Annotated[_Drawn[Entries], drawn_as("entries")]


def list_distributions(part: Section, path: str = "") -> Iterator[tuple[str, Distribution]]:
    """Every distribution in a part of a scenario, with its key path."""
    for name in type(part).model_fields:
        value, where = getattr(part, name), f"{path}.{name}".lstrip(".")
        if isinstance(value, Distribution):
            yield where, value
        elif isinstance(value, Section):
            yield from list_distributions(value, where)


class Devices(Section):
    """A table of devices, one a row: every client of the group is one of them.

    All fields of the group with a `column` and no `table` of their own take it from the client's
    one row, so that what belongs together (a fast phone, its fast link) stays together.
    """

    table: FoundFile = Field(description="CSV with a header line, or Parquet")
    weights: Annotated[str | None, Only("rows", "drawn")] = Field(
        default=None, description="a column: how likely a row is, up to a factor; alike if omitted"
    )
    rows: Literal["drawn", "in-order"] = Field(
        default="drawn",
        description=(
            "drawn: a random row for each client; in-order: the first row for the "
            "group's first client, and so on from the top again"
        ),
    )
