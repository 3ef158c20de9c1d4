"""Numbers of files: their bounds, their unit, and the sentence about any other.

A `Quantity` stands in the annotation of a key. Its bounds are pydantic's own, so that
the JSON Schema has them. A value that is drawn per client is one of the same quantity,
whether by a law or from a column of a table.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationError
from pydantic_core import CoreSchema, core_schema

from simfed.ground.arrays import Bools, Floats
from simfed.ground.distributions import Law
from simfed.ground.errors import InputError
from simfed.ground.plain import Plain
from simfed.ground.units import Unit, read_number

MOST_COUNTED = 10**9
"""Keys and sums of what is counted must fit into 64 bits."""


@dataclass(frozen=True)
class Quantity:
    """The range of a key's numbers, in base units, and their written form.

    It stands in an annotation: `Annotated[float, Quantity(DURATION, gt=0)]` is a
    duration above 0 s. Pydantic then reads text with a unit, checks the bounds, writes
    it back in base units, and has the bounds in the JSON Schema; every refusal is the
    one sentence of `allowed`. Laws and columns of drawn values are held to the same
    bounds.
    """

    unit: Unit | None = None
    """None: a number without one."""
    gt: float | None = None
    ge: float | None = None
    lt: float | None = None
    le: float | None = None
    whole: bool = False
    said: str = ""
    """The words of errors in place of what the bounds say."""
    rounded: bool = False
    """Draws are rounded to the nearest whole number, at least 1."""

    @property
    def allowed(self) -> str:
        """The words of errors for what is expected.

        >>> Quantity(gt=0).allowed, Quantity(ge=0, lt=1).allowed
        ('a number above 0', 'a number from 0 to below 1')
        >>> Quantity(ge=1, whole=True).allowed
        'a whole number of at least 1'
        """
        if self.said:
            return self.said
        low = "" if self.gt is None else f"above {self.gt:g}"
        if self.unit:
            example = self.unit.example
            return f"{self.unit.noun} {low or 'with its unit'} such as {example}"
        noun = "a whole number" if self.whole else "a number"
        high = "" if self.lt is None else f"below {self.lt:g}"
        most = None if self.whole else self.le
        if self.ge is not None and (high or most is not None):
            return f"{noun} from {self.ge:g} to {high or f'{most:g}'}"
        low = low if self.ge is None else f"of at least {self.ge:g}"
        if most is not None:
            return f"{noun} {low}, at most {most:g}"
        return f"{noun} {' and '.join(filter(None, (low, high)))}".strip()

    @property
    def format(self) -> Callable[[float], str]:
        """Function from an amount to a table's text for people."""
        if self.rounded:
            return "{:,.0f}".format
        return self.unit.format if self.unit else "{:.4g}".format

    def parse(self, written: object) -> float:
        """Return what is written, in base units, whatever the bounds say.

        Args:
            written: text with a unit, or a number of a quantity without one.

        Raises:
            InputError: it is none of this quantity.

        >>> from simfed.ground.units import DURATION
        >>> Quantity(DURATION).parse("20 ms")
        0.02
        """
        if self.unit:
            return self.unit.parse(written)
        number = read_number(written)
        if math.isnan(number):
            raise InputError("a number without a unit", got=written)
        return number

    def read_unit(self, text: str | None) -> float:
        """Return what 1 in a table's column stands for, in base units.

        Args:
            text: the unit that the file names beside the column; None: it names none.

        Raises:
            InputError: a unit is missing, wrong or not wanted.
        """
        if self.unit is None:
            if text is None:
                return 1.0
            raise InputError("no unit: this is a plain number", where="unit", got=text)
        if text is None:
            raise InputError(
                f"one such as unit: {self.unit.example.split()[-1]}",
                problem="the key 'unit' is missing beside column",
            )
        try:
            return self.parse(f"1 {text}")
        except InputError:
            raise InputError(
                f"the unit of {self.allowed}", where="unit", got=text
            ) from None

    def holds(self, values: Floats) -> Bools:
        """Return which of `values` the key may have, as bools of the same shape."""
        least = values >= (self.ge or 0) if self.gt is None else values > self.gt
        most = math.inf if self.lt is None else self.lt
        return np.logical_and(least, values < most)

    def check_law(self, law: Law) -> None:
        """Raise `InputError` if the law may give a value that the key may not have.

        Args:
            law: in base units.
        """
        if law.low < 0 or (law.low == 0 and self.gt is not None and law.attains_low):
            raise InputError(
                f"only values that are {self.allowed}", got=f"down to {law.low:g}"
            )
        if self.lt is not None and law.high >= self.lt:
            hint = None if law.high < math.inf else "the key `high` bounds it"
            raise InputError(
                f"only values that are {self.allowed}",
                got=f"up to {law.high:g}",
                hint=hint,
            )

    # ---- in an annotation ------------------------------------------------------------

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        bounds: Any = {"gt": self.gt, "ge": self.ge, "lt": self.lt, "le": self.le}
        inner: CoreSchema = core_schema.float_schema(
            strict=True, allow_inf_nan=False, **bounds
        )
        if self.whole:
            inner = core_schema.int_schema(**bounds)
        written = None
        if self.unit is not None:
            base = self.unit.base
            # `+ 0.0` so that -0.0 is never written; repr of a float reads back to the
            # same float
            written = core_schema.plain_serializer_function_ser_schema(
                lambda x: f"{x + 0.0!r} {base}", return_schema=core_schema.str_schema()
            )
        return core_schema.no_info_wrap_validator_function(
            self._read, inner, serialization=written
        )

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Plain]:
        if self.unit is None:
            return dict(handler(schema))
        text = {"type": "string"}, {"type": "integer"}
        return {"anyOf": list(text), "examples": [self.unit.example]}

    def _read(self, value: Any, check: Callable[[Any], float]) -> float:
        """Return the amount of what is written.

        Args:
            value: as the file has it.
            check: pydantic's own check of bounds.

        Raises:
            InputError: in the words of the quantity.
        """
        # what is below 0 has the sentence of the bounds: a unit's `parse` knows no sign
        if self.whole and isinstance(value, (bool, str)):
            raise InputError(self.allowed, got=value)
        amount: Any = value
        if self.whole and isinstance(value, float) and value.is_integer():
            amount = int(value)  # pydantic's own of 1e300 is none
        if self.unit:
            negative = self.gt is not None and str(value).startswith("-")
            amount = -1.0 if negative else self.unit.parse(value)
        try:
            return check(amount)
        except ValidationError as error:
            allowed = self.allowed
            if self.whole and error.errors()[0]["type"] == "less_than_equal":
                allowed = f"a whole number of at most {self.le:,}"
            raise InputError(allowed, got=value) from None
