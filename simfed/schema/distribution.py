"""Quantities of a client group that may be drawn per client.

Such a quantity is a value, or a distribution of values.

A distribution's parameters are written as the quantity itself is (`median: 10 Mbps` for
a rate) and kept as they were written; `Distribution.law` reads them as what they stand
for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag

from simfed.ground import distributions as laws
from simfed.ground.arrays import Floats
from simfed.ground.distributions import Law
from simfed.ground.errors import InputError
from simfed.ground.plain import Plain
from simfed.ground.registry import Only
from simfed.ground.tables import Condition
from simfed.ground.units import DURATION
from simfed.schema.fields import (
    BelowOne,
    Duration,
    Entries,
    FoundFile,
    NonNegative,
    Number,
    Positive,
    PositiveDuration,
    PositiveInt,
    PositiveRate,
)
from simfed.schema.places import format_way, list_sections
from simfed.schema.quantity import Quantity
from simfed.schema.section import Section


def _find_quantity(kind: Any) -> Quantity:
    """Return the quantity that the type of a key is annotated with.

    So a drawn value is held to the very bounds of a fixed one.
    """
    return next(mark for mark in kind.__metadata__ if isinstance(mark, Quantity))


SPEED = _find_quantity(Positive)
LOSS = _find_quantity(BelowOne)
LATENCY = _find_quantity(Duration)
STAY = _find_quantity(PositiveDuration)
RATE = _find_quantity(PositiveRate)
EPOCHS = Quantity(gt=0, rounded=True, said="a number of epochs, at least 1")
KEPT_ENTRIES = Quantity(gt=0, rounded=True, said="a number of entries, at least 1")
SAMPLES = Quantity(gt=0, rounded=True, said="a number of samples, at least 1")


@dataclass(frozen=True)
class WorkTime(Quantity):
    """Seconds of work, whose column may be of samples or epochs: `unit: ms/sample`."""

    def read_unit(self, text: str | None) -> float:
        """Return what 1 in a column stands for, in seconds; see `Quantity.read_unit`.

        Args:
            text: a unit of time, maybe per step, sample or epoch (`ms/sample`); what it
                is per is told by `Distribution.per`.

        Raises:
            InputError: per anything else, or no unit of time.
        """
        unit, slash, per = (text or "").partition("/")
        if slash and per not in ("step", "sample", "epoch"):
            allowed = "a unit such as ms/step, ms/sample or s/epoch"
            raise InputError(allowed, where="unit", got=text)
        return super().read_unit(unit if slash else text)


WORK_TIME = WorkTime(DURATION)


def _check_condition(value: Any) -> Any:
    """Return the condition on a column's cells.

    Raises:
        InputError: no text, number or list of them, or a bound that is no number.
    """
    among = value if isinstance(value, (list, tuple)) else [value]
    for one in among:
        if isinstance(one, bool) or not isinstance(one, (str, int, float)):
            allowed = "a text, a number, a list of them, or a bound such as '>= 5'"
            raise InputError(allowed, got=one)
    Condition(value).read_bound()
    return value


CellCondition = Annotated[
    str | int | float | tuple[str | int | float, ...], BeforeValidator(_check_condition)
]
_WHERE = (
    "conditions on columns of any kind, all of which a row meets: a text or number, a "
    "list of them, '>= 5' or '<= 5'"
)


def _check_amount(value: Any) -> Any:
    """Return an amount as written; which quantity it is of is not known here.

    Raises:
        InputError: it is neither text nor a number.
    """
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
    """A section whose dump has only the keys that are given.

    So a resolved scenario stays readable.
    """

    brief = None


class LognormalSpec(_Brief):
    """Log-normal; `low` and `high` truncate it."""

    one_of = "median", "mean"

    median: Amount | None = Field(
        default=None, description="half of the values are below"
    )
    mean: Amount | None = Field(default=None, description="in place of the median")
    cv: Positive = Field(description="coefficient of variation: sd over mean")
    low: Amount | None = Field(default=None, description=_LOW)
    high: Amount | None = Field(default=None, description=_HIGH)

    def law(self, quantity: Quantity) -> Law:
        """Return the law in base units.

        Args:
            quantity: that is drawn, whose unit the parameters are in.

        Raises:
            InputError: a parameter that is none of this quantity.
        """
        bounds = _read_bounds(self, quantity)
        if self.mean is not None:
            mean = _read_value(self, "mean", quantity)
            return laws.Lognormal.of_mean(mean, self.cv, *bounds)
        return laws.Lognormal(_read_value(self, "median", quantity), self.cv, *bounds)


class UniformBetween(_Brief):
    """The uniform law from `low` to `high`."""

    low: Amount = Field(description="the smallest value")
    high: Amount = Field(description="the largest value")

    def law(self, quantity: Quantity) -> Law:
        """Return the law in base units of `quantity`."""
        return laws.UniformLaw(*_read_bounds(self, quantity))


class NormalSpec(_Brief):
    """Normal under the condition that the value is above `low`, or 0, and below `high`.

    `mean` and `sd` are those before this truncation.
    """

    mean: Amount = Field(description="before truncation")
    sd: Amount = Field(description="standard deviation, before truncation")
    low: Amount | None = Field(default=None, description=f"{_LOW}; 0 if omitted")
    high: Amount | None = Field(default=None, description=_HIGH)

    def law(self, quantity: Quantity) -> Law:
        """Return the law in base units of `quantity`."""
        mean, sd = (_read_value(self, key, quantity) for key in ("mean", "sd"))
        return laws.Normal(mean, sd, *_read_bounds(self, quantity))


class ChoiceSpec(_Brief):
    """One of a few values."""

    values: tuple[Amount, ...] = Field(description="what there is to choose from")
    weights: tuple[NonNegative, ...] | None = Field(
        default=None, description="probabilities, up to a factor; alike if omitted"
    )

    def law(self, quantity: Quantity) -> Law:
        """Return the law in base units of `quantity`."""
        values = tuple(_parse_value(value, "values", quantity) for value in self.values)
        return laws.Discrete(values, self.weights or ())


class Distribution(_Brief):
    """A value drawn for every client, in place of one value for the group.

    It is drawn from the run's seed.

    One of the laws `lognormal`, `uniform`, `normal`, `choice`, or a `column` of a CSV
    or Parquet `table`: each client gets the value of a row drawn at random, or, without
    `table`, of the row of the group's table `devices` that was drawn for it. See
    fleets.
    """

    one_of = "lognormal", "uniform", "normal", "choice", "column"

    lognormal: LognormalSpec | None = Field(
        default=None, description="median or mean, and cv"
    )
    uniform: UniformBetween | None = Field(default=None, description="low and high")
    normal: NormalSpec | None = Field(
        default=None, description="mean and sd, truncated at 0"
    )
    choice: ChoiceSpec | None = Field(
        default=None, description="values and their weights"
    )
    column: str | None = Field(
        default=None, description="of `table`, or of the group's `devices`"
    )
    table: Annotated[FoundFile | None, Only("column")] = Field(
        default=None, description="CSV with a header line, or Parquet"
    )
    unit: Annotated[str | None, Only("column")] = Field(
        default=None, description="of the column: Mbps, kB/s, ms, …"
    )
    weights: Annotated[str | None, Only("table")] = Field(
        default=None,
        description="a column of `table`: how likely a row is, up to a factor",
    )
    where: Annotated[dict[str, CellCondition] | None, Only("table")] = Field(
        default=None, description=_WHERE
    )
    factor: Annotated[Positive | None, Only("column")] = Field(
        default=None, description="by which the column's numbers are multiplied"
    )
    inverse: Annotated[bool | None, Only("column")] = Field(
        default=None,
        description="true: the value is `factor`, or 1, divided by the column's number",
    )
    offset: Annotated[Number | None, Only("column")] = Field(
        default=None, description="added then, in the column's unit"
    )

    @property
    def per(self) -> str:
        """What its seconds of work are of: a step, a sample or an epoch."""
        return (self.unit or "").partition("/")[2] or "step"

    def convert(self, numbers: Floats, quantity: Quantity) -> Floats:
        """Return numbers of the column as values in base units.

        Args:
            numbers: of the column, shape (rows,).
            quantity: that they are of.

        Returns:
            (`factor`·number, or `factor`/number with `inverse`, + `offset`) × the unit.
        """
        factor = 1.0 if self.factor is None else self.factor
        with np.errstate(divide="ignore"):
            scaled = factor / numbers if self.inverse else factor * numbers
        return (scaled + (self.offset or 0.0)) * quantity.read_unit(self.unit)

    def law(self, quantity: Quantity) -> Law | None:
        """Return the law in base units; None for a column, which is not opened here.

        Args:
            quantity: that is drawn.

        Raises:
            InputError: parameters that make no distribution of this quantity.
        """
        if self.column is not None:
            quantity.read_unit(self.unit)
            return None
        kind = self.given
        try:
            law: Law = getattr(self, kind).law(quantity)
            quantity.check_law(law)
        except InputError as error:
            where = ".".join(filter(None, (kind, error.where)))
            raise error.changed(where=where) from None
        return law


def _read_bounds(part: Any, quantity: Quantity) -> tuple[float, float]:
    """Return (low, high) of a law in base units: 0 and infinite where not given."""
    low = 0.0 if part.low is None else _read_value(part, "low", quantity)
    return low, math.inf if part.high is None else _read_value(part, "high", quantity)


def _read_value(part: Any, key: str, quantity: Quantity) -> float:
    """Return the parameter under a key of a law, in base units."""
    return _parse_value(getattr(part, key), key, quantity)


def _parse_value(written: object, key: str, quantity: Quantity) -> float:
    """Return a parameter of a law in base units.

    Args:
        written: as the file has it.
        key: under which it stands, for errors.
        quantity: that is drawn.

    Raises:
        InputError: another quantity, or below 0.
    """
    try:
        value = quantity.parse(written)
    except InputError as error:
        raise error.changed(where=key) from None
    if value < 0:
        raise InputError(quantity.allowed, where=key, got=written)
    return value


def check_quantity(quantity: Quantity) -> AfterValidator:
    """Return a check that a distribution is one of this quantity.

    It stands in the annotation of a key whose values may be drawn; a value that is no
    distribution passes.
    """

    def check(value: Plain) -> Plain:
        if isinstance(value, Distribution):
            value.law(quantity)
        return value

    return AfterValidator(check)


def _tell_distribution(value: Any) -> str:
    """Return the tag of what may be drawn: a value, or a distribution."""
    return "distribution[]" if isinstance(value, (dict, Distribution)) else "value[]"


T = TypeVar("T")
# The brackets keep a tag out of the key paths in error messages.
_Drawn = Annotated[
    Annotated[T, Tag("value[]")] | Annotated[Distribution, Tag("distribution[]")],
    Discriminator(_tell_distribution),
]
DrawnNumber = Annotated[_Drawn[Positive], check_quantity(SPEED)]
DrawnLoss = Annotated[_Drawn[BelowOne], check_quantity(LOSS)]
DrawnDuration = Annotated[_Drawn[Duration], check_quantity(LATENCY)]
DrawnStay = Annotated[_Drawn[PositiveDuration], check_quantity(STAY)]
DrawnWork = Annotated[_Drawn[Duration], check_quantity(WORK_TIME)]
DrawnEntries = Annotated[_Drawn[Entries], check_quantity(KEPT_ENTRIES)]
DrawnEpochs = Annotated[_Drawn[PositiveInt], check_quantity(EPOCHS)]


def list_distributions(part: Section) -> Iterator[tuple[str, Distribution]]:
    """Yield (key path, distribution) of every one in a part of a scenario.

    Args:
        part: a section, or a mapping or tuple of them.
    """
    for where, section in list_sections(part):
        if isinstance(section, Distribution):
            yield format_way(where), section


class DeviceTable(Section):
    """A table of devices, one a row: every client of the group is one of them.

    All fields of the group with a `column` and no `table` of their own take it from the
    client's one row, so that what belongs together (a fast phone, its fast link) stays
    together.
    """

    brief = ("where",)

    table: FoundFile = Field(description="CSV with a header line, or Parquet")
    weights: Annotated[str | None, Only("rows", "drawn")] = Field(
        default=None,
        description="a column: how likely a row is, up to a factor; alike if omitted",
    )
    where: dict[str, CellCondition] | None = Field(default=None, description=_WHERE)
    rows: Literal["drawn", "in-order"] = Field(
        default="drawn",
        description=(
            "drawn: a random row for each client; in-order: the first row for the "
            "group's first client, and so on from the top again"
        ),
    )
