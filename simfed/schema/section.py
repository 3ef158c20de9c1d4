"""The base of all mappings of a scenario file, and keys that count only sometimes.

A key that only some kinds use carries an `Only` in its annotation. That mark is all
there is: by it the key is refused elsewhere, with the kinds that use it; it is required
where it is `needed`; dumps leave it out where it says nothing; the reference and the
JSON Schema say it. So a key is used or refused, and a new one needs no check of its
own.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, ClassVar

from pydantic import (
    BaseModel,
    ConfigDict,
    GetJsonSchemaHandler,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, InitErrorDetails

from simfed.ground.errors import InputError, listed
from simfed.ground.plain import Plain
from simfed.ground.registry import Only, format_value, registry
from simfed.schema.places import Step, list_keys, list_sections


@dataclass(frozen=True)
class OnlyWith:
    """A mark of keys that count only with registered parts whose class says so.

    With methods it is the scenario's method that decides, else the `kind` beside the
    key.
    """

    part: str
    """The kind of part: `method`, `policy`."""
    attribute: str
    """The attribute of the part's class; where it is not there, it is taken for true.
    """
    value: bool = True
    nothing: object = None
    """The value that is allowed with every part, as it stands for none: 0 public
    images."""

    @property
    def from_the_top(self) -> bool:
        """True if the scenario as a whole decides."""
        return self.part == "method"

    def holds(self, section: Section) -> bool:
        """Return whether this key has an effect in a section.

        Args:
            section: that has the key; of a method's key, the scenario.
        """
        return self._is_one(self.kind(section))

    def kind(self, section: Section) -> str:
        """Return the name of the part that is chosen there.

        Args:
            section: as of `holds`.
        """
        return str(attrgetter("method.kind" if self.from_the_top else "kind")(section))

    def _is_one(self, kind: str) -> bool:
        """Return whether the class of a part says that the key counts with it."""
        return (
            bool(getattr(registry(self.part).get(kind), self.attribute, True))
            is self.value
        )

    def __str__(self) -> str:
        takers = []
        for name in registry(self.part).names():
            # a broken package is not what the user asked about
            with suppress(ImportError):
                if self._is_one(name):
                    takers.append(name)
        return f"{self.part} {listed(takers)}"


Mark = Only | OnlyWith


class Section(BaseModel):
    """A mapping in a scenario file: unknown keys are errors.

    Values never change after loading. The base of every section; a subclass declares
    keys with types, defaults and descriptions, and by class variables how a file may
    write it short (`short`, `short_option`), of which keys it gives one (`one_of`) and
    how dumps order and shorten it (`written_in`, `brief`).
    """

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=False)

    one_of: ClassVar[tuple[str, ...]] = ()
    """Keys of which a file gives one."""
    written_in: ClassVar[tuple[str, ...]] = ()
    """The keys in the order of dumps; empty: as they are declared."""
    brief: ClassVar[tuple[str, ...] | None] = ()
    """Keys that dumps leave out at their defaults; None: those whose default is null.
    """
    short: ClassVar[str] = ""
    """The key for which a text alone stands; empty: none."""

    short_option: ClassVar[tuple[str, str] | None] = None
    """`("damped", "factor")`: `{damped: 0.5}` is short for `{kind: damped, factor:
    0.5}`."""

    @classmethod
    def expand(cls, value: Plain) -> Plain:
        """Return the mapping that a short form stands for, and all else as it is.

        Short forms are those of `short` and `short_option`; validation, `--set` and the
        axes of a study read them by this.

        Args:
            value: as the file has it.
        """
        if cls.short and isinstance(value, str):
            return {cls.short: value}
        if (
            cls.short_option
            and isinstance(value, Mapping)
            and [*value] == [cls.short_option[0]]
        ):
            kind, option = cls.short_option
            return {"kind": kind, option: value[kind]}
        return value

    @model_validator(mode="before")
    @classmethod
    def _read_short_form(cls, value: Any) -> Any:
        """Drop nulls, and expand what is written short.

        Null stands for a key that is not given: so a file can take back what it
        extends.
        """
        value = cls.expand(value)
        if not isinstance(value, Mapping):
            return value
        nulls = [
            name
            for name, _ in list_marked_keys(cls)
            if value.get(name, ...) is None
            and cls.model_fields[name].default is not None
        ]
        return {key: value[key] for key in value if key not in nulls}

    @property
    def given(self) -> str:
        """The one of `one_of` that the file gives."""
        return next(name for name in self.one_of if getattr(self, name) is not None)

    def list_marks(self) -> Iterable[tuple[str, Mark]]:
        """Return (key, mark) of the keys that say something only sometimes."""
        return list_marked_keys(type(self))

    @model_validator(mode="after")
    def check_marks(self) -> Section:
        """Refuse keys without effect, and miss none that is needed.

        Raises:
            ValidationError: one detail for each of them.
        """
        problems = self.find_misuses()
        if problems:
            raise ValidationError.from_exception_data(type(self).__name__, problems)
        return self

    def find_misuses(self) -> list[InitErrorDetails]:
        """Return an error for each key that has no effect, or is missing.

        What counts are the keys beside it.
        """
        errors: list[InputError | None] = []
        given = [name for name in self.one_of if getattr(self, name) is not None]
        if self.one_of and len(given) != 1:
            stands = f"{' and '.join(given)} stand together"
            stands = stands if given else "none of them is there"
            errors.append(InputError(f"one of {listed(self.one_of)}", problem=stands))
        errors += [
            _find_misuse(self, name, only, self)
            for name, only in self.list_marks()
            if not only.from_the_top
        ]
        return [make_error_detail(error, (), None) for error in errors if error]

    @model_serializer(mode="wrap")
    def dump_used(self, dump: SerializerFunctionWrapHandler) -> dict[str, Plain]:
        """Return the section with the keys that count, in the order of files.

        Args:
            dump: pydantic's own dump, of all keys.
        """
        plain: dict[str, Any] = dump(self)
        for name, only in self.list_marks():
            if not only.from_the_top and name in plain and not only.holds(self):
                del plain[name]
        for name, field in type(self).model_fields.items():
            brief = field.default is None if self.brief is None else name in self.brief
            if brief and getattr(self, name) == field.default:
                plain.pop(name, None)
        return self.order(plain)

    def order(self, plain: dict[str, Plain]) -> dict[str, Plain]:
        """Return a dump with its keys as files write them."""
        written_in = self.written_in or tuple(plain)
        return {key: plain[key] for key in sorted(plain, key=written_in.index)}

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Plain]:
        schema: dict[str, Plain] = handler.resolve_ref_schema(handler(core_schema))
        for name, only in list_marked_keys(cls):
            describe_mark(schema, name, only, cls.model_fields)
        for key in list_keys(cls) if cls.written_in else ():
            schema["properties"][key] = schema["properties"].pop(key)
        return schema


def describe_mark(
    schema: dict[str, Plain], name: str, only: Mark, fields: Mapping[str, FieldInfo]
) -> None:
    """Say in the JSON Schema of a mapping beside what one of its keys may stand.

    Args:
        schema: of the mapping, changed in place.
        name: of the key.
        only: its mark.
        fields: of the mapping, for the other key's default.
    """
    node = schema["properties"][name]
    node["description"] = f"{node.get('description', '')} (only with {only})".strip()
    if isinstance(only, Only) and not only.from_the_top:
        other: dict[str, Any] = {"properties": {only.key: {"enum": [*only.values]}}}
        if not only.values:
            other = {"required": [only.key]}
        elif fields[only.key].default not in only.values:
            other["required"] = [only.key]
        beside = schema.setdefault("dependentSchemas", {})
        beside[name] = {"allOf": [beside[name], other]} if name in beside else other


@functools.cache
def list_marked_keys(mapping: type[BaseModel]) -> tuple[tuple[str, Mark], ...]:
    """Return the keys of a mapping that say something only sometimes."""
    return tuple(
        (name, mark)
        for name, field in mapping.model_fields.items()
        for mark in field.metadata
        if isinstance(mark, Mark)
    )


def find_misplaced(scenario: Section) -> list[InitErrorDetails]:
    """Return an error for each key that has no effect with method or network.

    Keys that depend on another one of their own section are checked by that section.

    Args:
        scenario: a whole one, as the mark's path starts at its top.
    """
    return [
        make_error_detail(error, where, None)
        for where, name, only, section in list_scenario_marks(scenario)
        if (error := _find_misuse(section, name, only, scenario))
    ]


def drop_unused(scenario: Section, plain: dict[str, Plain]) -> dict[str, Plain]:
    """Return `plain`, the scenario's dump, without the keys that have no effect.

    Args:
        scenario: that was dumped.
        plain: its dump, changed in place.
    """
    for where, name, only, _ in list_scenario_marks(scenario):
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


def make_error_detail(
    error: InputError, where: tuple[int | str, ...], value: object
) -> InitErrorDetails:
    """Return an error as pydantic collects it.

    Args:
        error: simfed's own.
        where: steps to the key.
        value: what stands there.
    """
    return InitErrorDetails(
        type="value_error", loc=where, input=value, ctx={"error": error}
    )


def _find_misuse(
    section: Section, name: str, only: Mark, decides: Section
) -> InputError | None:
    """Return the error for a key that has no effect where it stands, or is missing.

    Args:
        section: that has the key.
        name: of the key.
        only: its mark.
        decides: the section in which the mark's path starts.

    Returns:
        None: the key may stand, or be left out, as it does.
    """
    is_set = name in section.model_fields_set and getattr(section, name) is not None
    if only.holds(decides):
        if isinstance(only, Only) and only.needed and not is_set:
            beside = (
                f"{only.key} {format_value(only.chosen(decides))}"
                if only.values
                else only.key
            )
            return InputError(problem=f"the key {name!r} is missing beside {beside}")
        return None
    if not is_set:
        return None
    if isinstance(only, OnlyWith) and getattr(section, name) == only.nothing:
        return None
    return _make_refusal(name, only, decides, section)


def _make_refusal(
    name: str, only: Mark, decides: Section, section: Section
) -> InputError:
    """Return the error for a key that has no effect beside the others.

    It says which value the other key has, and with which this one would count.
    """
    belongs = f"{name} belongs to {only}"
    if isinstance(only, OnlyWith):
        problem = f"{only.part} {only.kind(decides)} does not use {name}"
        return InputError(problem=problem, hint=belongs)
    chosen = only.chosen(decides)
    if only.values == (None,):
        return InputError(problem=f"beside {only.key}, {name} says nothing")
    if not only.values or chosen is None:
        return InputError(
            problem=f"without {str(only).rpartition('.')[2]}, {name} says nothing"
        )
    keys = [
        key
        for key, mark in section.list_marks()
        if isinstance(mark, Only) and mark.key == only.key and chosen in mark.values
    ]
    problem = f"{only.key} {format_value(chosen)} has no key {name!r}"
    return InputError(listed(keys), got=name, problem=problem, hint=belongs)


def list_scenario_marks(
    scenario: Section,
) -> Iterator[tuple[tuple[Step, ...], str, Mark, Section]]:
    """Yield every marked key on which the scenario as a whole decides.

    Each comes with the steps to its section, its name, its mark and the section.
    """
    for where, section in list_sections(scenario):
        assert isinstance(section, Section)
        for name, only in section.list_marks():
            if only.from_the_top:
                yield where, name, only, section
