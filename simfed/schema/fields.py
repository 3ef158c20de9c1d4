"""Field types of scenario files: numbers, quantities with units, names from registries.

In a file a quantity is text with its unit; inside it is a float in base units. Dumping a scenario
writes it back in base units with their names (`6250000.0 B/s`), so a resolved scenario loads again
to the very same numbers.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Discriminator,
    Field,
    PlainSerializer,
    Tag,
    ValidationInfo,
)

from simfed.compress.choice import Choice
from simfed.ground import units
from simfed.ground.errors import InputError
from simfed.ground.levels import Level
from simfed.ground.plain import Plain
from simfed.ground.registry import registry


def check_number(allowed: str, check: Callable[[float], bool]) -> Callable[[Any], float]:
    """A validator of numbers that pass `check`; the sentence about others says `allowed`."""

    def validate(value: Any) -> float:
        number = units.read_number(value)
        if math.isnan(number) or not check(number):
            raise InputError(allowed, got=value)
        return number

    return validate


def _check_integer(allowed: str, check: Callable[[int], bool]) -> Callable[[Any], int]:
    def validate(value: Any) -> int:
        whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        if isinstance(value, bool) or not whole or not check(int(value)):
            raise InputError(allowed, got=value)
        return int(value)

    return validate


def _parse_quantity(parse: Callable[[object], float], above_zero: str = "") -> BeforeValidator:
    """Return a validator of text with a unit; `above_zero`: the sentence where 0 is refused."""

    def validate(value: Any) -> float:
        # what is below 0 has its sentence here: `parse` knows no sign
        negative = bool(above_zero) and str(value).startswith("-")
        amount = 0.0 if negative else parse(value)
        if above_zero and amount <= 0:
            raise InputError(above_zero, got=value)
        return amount

    return BeforeValidator(validate, json_schema_input_type=str | int)


def _serialize_in(unit: str) -> PlainSerializer:
    # `+ 0.0` so that -0.0 is never written; repr of a float reads back to the same float
    return PlainSerializer(lambda x: f"{x + 0.0!r} {unit}", return_type=str)


def _check_countable(n: int) -> int:
    if abs(n) > _MOST:
        raise InputError(f"a whole number of at most {_MOST:,}", got=n)
    return n


_MOST = 10**9
"""Keys and sums of what is counted must fit into 64 bits."""

Number = Annotated[float, BeforeValidator(check_number("a number", lambda x: True))]
Positive = Annotated[float, BeforeValidator(check_number("a number above 0", lambda x: x > 0))]
NonNegative = Annotated[
    float, BeforeValidator(check_number("a number of at least 0", lambda x: x >= 0))
]
Fraction = Annotated[
    float, BeforeValidator(check_number("a number from 0 to 1", lambda x: 0 <= x <= 1))
]
BelowOne = Annotated[
    float, BeforeValidator(check_number("a number from 0 to below 1", lambda x: 0 <= x < 1))
]
WithinOne = Annotated[
    float, BeforeValidator(check_number("a number above 0 and below 1", lambda x: 0 < x < 1))
]
Share = Annotated[
    float, BeforeValidator(check_number("a number above 0, at most 1", lambda x: 0 < x <= 1))
]
Seed = Annotated[
    int, BeforeValidator(_check_integer("a whole number of at least 0", lambda n: n >= 0))
]
Int = Annotated[Seed, AfterValidator(_check_countable)]
PositiveInt = Annotated[
    int,
    BeforeValidator(_check_integer("a whole number of at least 1", lambda n: n >= 1)),
    AfterValidator(_check_countable),
]


def _read_level(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    return Level.read(value).plain


def _tell_share(value: Any) -> str:
    return "share[]" if isinstance(value, str) else "count[]"


# The brackets keep a tag out of the key paths in error messages.
Entries = Annotated[
    Annotated[PositiveInt, Tag("count[]")]
    | Annotated[str, BeforeValidator(_read_level), Field(examples=["1%"]), Tag("share[]")],
    Discriminator(_tell_share),
]
"""How many entries of an update: a number, or a share of all of them."""

WholeNumber = Annotated[
    int,
    BeforeValidator(_check_integer("a whole number", lambda n: True)),
    AfterValidator(_check_countable),
]
Duration = Annotated[
    float, _parse_quantity(units.parse_duration), _serialize_in("s"), Field(examples=["20 ms"])
]
PositiveDuration = Annotated[
    float,
    _parse_quantity(units.parse_duration, "a duration above 0 such as 1 s"),
    _serialize_in("s"),
    Field(examples=["20 ms"]),
]
Rate = Annotated[
    float, _parse_quantity(units.parse_rate), _serialize_in("B/s"), Field(examples=["50 Mbps"])
]
PositiveRate = Annotated[
    float,
    _parse_quantity(units.parse_rate, "a rate above 0 such as 20 Mbps"),
    _serialize_in("B/s"),
    Field(examples=["50 Mbps"]),
]
Size = Annotated[
    float, _parse_quantity(units.parse_size), _serialize_in("B"), Field(examples=["10 MB"])
]
Frequency = Annotated[
    float, _parse_quantity(units.parse_frequency), _serialize_in("Hz"), Field(examples=["40 MHz"])
]


def _locate_file(value: Any, info: ValidationInfo) -> str:
    if not isinstance(value, str) or not value:
        raise InputError("the name of a file", got=value)
    folder = (info.context or {}).get("folder")
    return str(Path(folder) / value) if folder is not None else value


File = Annotated[str, BeforeValidator(_locate_file)]
"""A path that starts at the scenario's own folder."""

_FILE_MARK = get_args(File)[1]


# The resolved scenario stands in the run directory, elsewhere than the file it came from.
FoundFile = Annotated[File, AfterValidator(os.path.realpath)]


def list_files(
    part: object, annotation: object = None, metadata: Sequence[object] = ()
) -> Iterator[str]:
    """Every file that a part of a scenario names, found by the type of its key."""
    if isinstance(part, BaseModel):
        for name, field in type(part).model_fields.items():
            yield from list_files(getattr(part, name), field.annotation, tuple(field.metadata))
    elif isinstance(part, Mapping):
        for inner in part.values():
            yield from list_files(inner, annotation)
    elif isinstance(part, (tuple, list)):
        for inner in part:
            yield from list_files(inner, annotation)
    elif isinstance(part, str) and (_FILE_MARK in metadata or _is_file(annotation)):
        yield part


def rename_texts(plain: Plain, names: Mapping[str, str]) -> Plain:
    """Plain values in which every text that is a key of `names` stands under its other name."""
    if isinstance(plain, dict):
        return {key: rename_texts(inner, names) for key, inner in plain.items()}
    if isinstance(plain, list):
        return [rename_texts(inner, names) for inner in plain]
    return names.get(plain, plain) if isinstance(plain, str) else plain


def _is_file(annotation: object) -> bool:
    marks = getattr(annotation, "__metadata__", ())
    return _FILE_MARK in marks or any(map(_is_file, get_args(annotation)))


def Named(kind: str) -> Any:
    """The type of a name in the registry of `kind`; a wrong one gets a did-you-mean."""

    def validate(value: Any) -> str:
        if not isinstance(value, str) or value not in registry(kind):
            raise registry(kind).unknown(value)
        return value

    def list_names(schema: dict[str, Any]) -> None:
        schema["enum"] = registry(kind).names()

    return Annotated[str, BeforeValidator(validate), Field(json_schema_extra=list_names)]


def _read_label(value: Any) -> str:
    return Choice.read(value).label


def _list_codecs(schema: dict[str, Any]) -> None:
    """A registered name, a label with options or of a chain, or a mapping of one key."""
    del schema["anyOf"][0]
    schema["anyOf"][:0] = [
        {"enum": registry("codec").names()},
        {"type": "string", "pattern": "[(+@]"},
    ]
    schema["anyOf"][-1] |= {"minProperties": 1, "maxProperties": 1}


Strategy = Annotated[
    str,
    BeforeValidator(_read_label, json_schema_input_type=str | dict[str, Any]),
    Field(json_schema_extra=_list_codecs),
]
"""A codec as a name, a label, `{name: {option: value}}` or `{chain: [selection, values]}`, or one
for each of the layers;
inside and in dumps it is its label, of which the same codec is made again. Text may name a level
of its own behind an `@`: `top-k@500`."""
