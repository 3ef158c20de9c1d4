"""Field types of scenario files: numbers, quantities with units, names from registries.

In a file a quantity is text with its unit; inside it is a float in base units. Dumping
a scenario writes it back in base units with their names (`6250000.0 B/s`), so a
resolved scenario loads again to the very same numbers.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    Tag,
    ValidationInfo,
)
from pydantic_core import CoreSchema, core_schema

from simfed.compress.choice import Choice
from simfed.ground.errors import InputError
from simfed.ground.levels import Level
from simfed.ground.plain import Plain
from simfed.ground.registry import registry
from simfed.ground.units import DURATION, FREQUENCY, RATE, SIZE
from simfed.schema.places import list_sections, read_place
from simfed.schema.quantity import MOST_COUNTED, Quantity

Number = Annotated[float, Quantity()]
Positive = Annotated[float, Quantity(gt=0)]
NonNegative = Annotated[float, Quantity(ge=0)]
Fraction = Annotated[float, Quantity(ge=0, le=1)]
BelowOne = Annotated[float, Quantity(ge=0, lt=1)]
WithinOne = Annotated[float, Quantity(gt=0, lt=1)]
Share = Annotated[float, Quantity(gt=0, le=1)]
Seed = Annotated[int, Quantity(ge=0, whole=True)]
Int = Annotated[int, Quantity(ge=0, le=MOST_COUNTED, whole=True)]
PositiveInt = Annotated[int, Quantity(ge=1, le=MOST_COUNTED, whole=True)]
WholeNumber = Annotated[
    int, Quantity(ge=-MOST_COUNTED, le=MOST_COUNTED, whole=True, said="a whole number")
]
Duration = Annotated[float, Quantity(DURATION)]
PositiveDuration = Annotated[float, Quantity(DURATION, gt=0)]
Rate = Annotated[float, Quantity(RATE)]
PositiveRate = Annotated[float, Quantity(RATE, gt=0)]
Size = Annotated[float, Quantity(SIZE)]
PositiveSize = Annotated[float, Quantity(SIZE, gt=0)]
Frequency = Annotated[float, Quantity(FREQUENCY)]


def _read_level(value: Any) -> Any:
    """Return a share of entries as it is written back; a number as it is.

    Raises:
        InputError: text that is no share.
    """
    return Level.read(value).plain if isinstance(value, str) else value


def _tell_share(value: Any) -> str:
    """Return the tag of a level: a share is text, a count is a number."""
    return "share[]" if isinstance(value, str) else "count[]"


# The brackets keep a tag out of the key paths in error messages.
Entries = Annotated[
    Annotated[PositiveInt, Tag("count[]")]
    | Annotated[
        str, BeforeValidator(_read_level), Field(examples=["1%"]), Tag("share[]")
    ],
    Discriminator(_tell_share),
]
"""A number of entries of an update, or a share of all of them."""


def _locate_file(value: Any, info: ValidationInfo) -> str:
    """Return the path of a file that a scenario names, seen from here.

    Raises:
        InputError: no text, or an empty one.
    """
    if not isinstance(value, str) or not value:
        raise InputError("the name of a file", got=value)
    folder = (info.context or {}).get("folder")
    return str(Path(folder) / value) if folder is not None else value


File = Annotated[str, BeforeValidator(_locate_file)]
"""A path that starts at the scenario's own folder."""

_FILE_MARK = get_args(File)[1]


# The resolved scenario stands in the run directory, elsewhere than the file it came
# from.
FoundFile = Annotated[File, AfterValidator(os.path.realpath)]


def list_files(part: BaseModel) -> Iterator[str]:
    """Yield every file that a part of a scenario names, found by its key's type.

    A run keeps copies of them. Data sets are not among them.

    Args:
        part: a scenario, or a section of one.
    """
    for _, section in list_sections(part):
        for name, field in type(section).model_fields.items():
            value = getattr(section, name)
            marks = (*field.metadata, *read_place(field.annotation).marks)
            if _FILE_MARK in marks:
                yield from (value,) if isinstance(value, str) else value or ()


def rename_texts(plain: Plain, names: Mapping[str, str]) -> Plain:
    """Return plain values with texts that are keys of `names` renamed.

    >>> rename_texts({"up": ["a.csv", 3]}, {"a.csv": "network/a.csv"})
    {'up': ['network/a.csv', 3]}
    """
    if isinstance(plain, dict):
        return {key: rename_texts(inner, names) for key, inner in plain.items()}
    if isinstance(plain, list):
        return [rename_texts(inner, names) for inner in plain]
    return names.get(plain, plain) if isinstance(plain, str) else plain


@dataclass(frozen=True)
class Named:
    """An annotation of a text that is a name in the registry of `kind`.

    A wrong one gets a hint; the JSON Schema lists all.
    """

    kind: str

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_before_validator_function(
            self._check, handler(source)
        )

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Plain]:
        return {**handler(schema), "enum": registry(self.kind).names()}

    def _check(self, value: object) -> object:
        """Return a name of the registry.

        Raises:
            InputError: nobody registered it, with a did-you-mean.
        """
        if value not in registry(self.kind):
            raise registry(self.kind).unknown(value)
        return value


def _read_label(value: Any) -> str:
    """Return the label of the codec that a scenario writes in one way or another."""
    return Choice.read(value).label


def _list_codecs(schema: dict[str, Any]) -> None:
    """Describe a codec in the JSON Schema, in place.

    It is a name, a label or a mapping of one key.
    """
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
"""A codec as a name, a label, `{name: {option: value}}` or `{chain: [selection,
values]}`, or one for each of the layers; inside and in dumps it is its label, of which
the same codec is made again. Text may name a level of its own behind an `@`:
`top-k@500`."""
