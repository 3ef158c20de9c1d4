"""What all mappings of a scenario file have in common, and keys that say something only sometimes.

A key that only some kinds use carries an `Only` in its annotation. That mark is all there is: by it
the key is refused elsewhere, with the kinds that use it; it is required where it is `needed`; dumps
leave it out where it says nothing; the reference and the JSON Schema say it. So a key is used or
refused, and a new one needs no check of its own.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pydantic import (
    BaseModel,
    ConfigDict,
    SerializerFunctionWrapHandler,
    ValidationError,
    ValidationInfo,
    model_serializer,
    model_validator,
)
from pydantic_core import InitErrorDetails

from simfed.ground.errors import InputError, listed
from simfed.ground.registry import Only, registry, written

__all__ = ["OnlyWith", "Section", "misplaced", "said", "without_unused"]


@dataclass(frozen=True)
class OnlyWith:
    """This key says something only with registered parts whose class says so.

    With methods it is the scenario's method that decides, else the `kind` beside the key.
    """

    part: str
    """What is registered: `method`, `policy`."""
    attribute: str
    """Of the part's class; where it is not there, it is taken for true."""
    value: bool = True
    nothing: Any = None
    """What may be written anywhere, as it says that there is none."""

    @property
    def from_the_top(self) -> bool:
        """Whether the scenario as a whole decides."""
        return self.part == "method"

    def holds(self, section: Any) -> bool:
        """Whether this key says something there."""
        return self._is_one(self.kind(section))

    def kind(self, section: Any) -> str:
        """Which part is chosen there."""
        return str((section.method if self.from_the_top else section).kind)

    def _is_one(self, kind: str) -> bool:
        return bool(getattr(registry(self.part).get(kind), self.attribute, True)) is self.value

    def __str__(self) -> str:
        takers = []
        for name in registry(self.part).names():
            with suppress(ImportError):  # a broken package is not what the user asked about
                if self._is_one(name):
                    takers.append(name)
        return f"{self.part} {listed(takers)}"


Mark = Only | OnlyWith


class Section(BaseModel):
    """A mapping in a scenario file: unknown keys are errors, values never change after loading.

    With `recorded` in the validation's context, keys that say nothing are passed over: earlier
    versions wrote them into the resolved scenarios of their runs.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=False)

    @model_validator(mode="before")
    @classmethod
    def _null_takes_back(cls, value: Any) -> Any:
        """Null stands for a key that is not given: so a file can take back what it extends."""
        if not isinstance(value, Mapping):
            return value
        taken = [
            name
            for name, _ in marked(cls)
            if name in value and value[name] is None and cls.model_fields[name].default is not None
        ]
        return {key: value[key] for key in value if key not in taken} if taken else value

    @model_validator(mode="after")
    def _only_what_is_used(self, info: ValidationInfo) -> Any:
        wrong = [
            said(error, (), None)
            for name, only in marked(type(self))
            if not only.from_the_top and (error := _wrong(self, name, only, self, info.context))
        ]
        if wrong:
            raise ValidationError.from_exception_data(type(self).__name__, wrong)
        return self

    @model_serializer(mode="wrap")
    def _used(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        plain: dict[str, Any] = dump(self)
        for name, only in marked(type(self)):
            if not only.from_the_top and name in plain and not only.holds(self):
                del plain[name]
        return plain

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: Any, handler: Any) -> dict[str, Any]:
        found: dict[str, Any] = handler.resolve_ref_schema(handler(core_schema))
        for name, only in marked(cls):
            node = found["properties"][name]
            node["description"] = f"{node.get('description', '')} (only with {only})".strip()
            if isinstance(only, Only) and not only.from_the_top:
                other: dict[str, Any] = {"properties": {only.key: {"enum": [*only.values]}}}
                if not only.values:
                    other = {"required": [only.key]}
                elif cls.model_fields[only.key].default not in only.values:
                    other["required"] = [only.key]
                found.setdefault("dependentSchemas", {})[name] = other
        return found


@functools.cache
def marked(mapping: type[BaseModel]) -> tuple[tuple[str, Mark], ...]:
    """The keys of a mapping that say something only sometimes."""
    return tuple(
        (name, mark)
        for name, field in mapping.model_fields.items()
        for mark in field.metadata
        if isinstance(mark, Mark)
    )


def misplaced(scenario: Section, context: Any) -> list[InitErrorDetails]:
    """An error for each key of a scenario that says nothing, as the scenario as a whole decides."""
    return [
        said(error, where, None)
        for where, name, only, section in _from_the_top(scenario)
        if (error := _wrong(section, name, only, scenario, context))
    ]


def without_unused(scenario: Section, plain: dict[str, Any]) -> dict[str, Any]:
    """A scenario's plain values without the keys that say nothing in it."""
    for where, name, only, _ in _from_the_top(scenario):
        if not only.holds(scenario):
            node: Any = plain
            for step in where:
                try:
                    node = node[step]
                except (LookupError, TypeError):  # left out of this dump, or null
                    break
            if isinstance(node, dict):
                node.pop(name, None)
    return plain


def said(error: InputError, where: tuple[int | str, ...], value: Any) -> InitErrorDetails:
    """An error as pydantic collects it."""
    return InitErrorDetails(
        type="value_error", loc=where, input=value, ctx={"error": ValueError(error)}
    )


def _wrong(
    section: Section, name: str, only: Mark, decides: Any, context: Any
) -> InputError | None:
    given = name in section.model_fields_set and getattr(section, name) is not None
    if only.holds(decides):
        if isinstance(only, Only) and only.needed and not given:
            beside = f"{only.key} {written(only.chosen(decides))}" if only.values else only.key
            return InputError(problem=f"the key {name!r} is missing beside {beside}")
        return None
    if not given or (context or {}).get("recorded"):
        return None
    if isinstance(only, OnlyWith) and getattr(section, name) == only.nothing:
        return None
    return _refusal(name, only, decides, type(section))


def _refusal(name: str, only: Mark, decides: Any, mapping: type[Section]) -> InputError:
    """What is said about a key where it says nothing."""
    belongs = f"{name} belongs to {only}"
    if isinstance(only, OnlyWith):
        problem = f"{only.part} {only.kind(decides)} does not use {name}"
        return InputError(problem=problem, hint=belongs)
    chosen = only.chosen(decides)
    if not only.values or chosen is None:
        return InputError(problem=f"without {str(only).rpartition('.')[2]}, {name} says nothing")
    own = [
        key
        for key, mark in marked(mapping)
        if isinstance(mark, Only) and mark.key == only.key and chosen in mark.values
    ]
    problem = f"{only.key} {written(chosen)} has no key {name!r}"
    return InputError(listed(own), got=name, problem=problem, hint=belongs)


def _from_the_top(
    part: Any, where: tuple[int | str, ...] = ()
) -> Iterator[tuple[tuple[int | str, ...], str, Mark, Section]]:
    """Every marked key of a scenario on which the scenario as a whole decides."""
    if isinstance(part, Section):
        for name, only in marked(type(part)):
            if only.from_the_top:
                yield where, name, only, part
        for name in type(part).model_fields:
            yield from _from_the_top(getattr(part, name), (*where, name))
    elif isinstance(part, Mapping):
        for name, inner in part.items():
            yield from _from_the_top(inner, (*where, name))
    elif isinstance(part, tuple):
        for at, inner in enumerate(part):
            yield from _from_the_top(inner, (*where, at))
