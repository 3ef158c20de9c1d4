"""Mappings whose keys are the options of a registered part's constructor.

A constructor's keyword `warmup: Annotated[int, "warm-up plays per strategy"] = 5` is
the key `warmup`, a whole number, 5 if omitted, explained by that text. Ranges are the
constructor's own business: it raises an `InputError` whose `where` is the keyword. So a
part of one's own needs no words here.

`OfKind` is the base of such mappings (`policy`, `method`, `aggregation.rule`, …), and
`Options` what is read from a constructor, once for each part.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import is_dataclass
from functools import cached_property
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from pydantic import (
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    WrapValidator,
    model_validator,
)
from pydantic.errors import PydanticSchemaGenerationError
from pydantic.fields import FieldInfo
from pydantic_core import InitErrorDetails

from simfed.ground.errors import InputError, did_you_mean, listed
from simfed.ground.plain import Plain
from simfed.ground.registry import NameOf, Only, Part, registry
from simfed.schema.fields import Named, Number, Strategy, WholeNumber
from simfed.schema.section import Mark, Section, make_error_detail


class Options(NamedTuple):
    """The options of a registered part, as its constructor declares them."""

    fields: dict[str, FieldInfo]
    """The fields in the constructor's order, without what comes from the run."""
    adapters: dict[str, TypeAdapter[Any]]
    open_ended: bool
    """The constructor takes others as well, or does not tell which."""
    marks: tuple[tuple[str, Only], ...]


class OfKind(Section):
    """A mapping whose `kind` names a registered part.

    What else it may say are that part's options.

    A subclass says which registry (`registry_kind`) and which arguments of the
    constructor do not come from the file (`from_run`). Options are attributes of a
    section, as its own keys are, and stand in dumps with their defaults.
    """

    model_config = ConfigDict(extra="allow")

    registry_kind: ClassVar[str]
    from_run: ClassVar[frozenset[str]] = frozenset()
    names_first_option: ClassVar[bool] = False
    """True if `{NAME: 2}` is short for `{kind: NAME, first option: 2}`."""

    kind: str

    @property
    def options(self) -> dict[str, Plain]:
        """The arguments of this kind's constructor, defaults included."""
        return dict(self.model_extra or {})

    def names(self, registry_kind: str) -> tuple[str, ...]:
        """Return the parts of a registry that options name, in the order of options.

        Args:
            registry_kind: of the parts; options say it by `NameOf`.
        """
        fields = self.list_options(self.kind).fields.items()
        named = [
            getattr(self, key)
            for key, x in fields
            if NameOf(registry_kind) in x.metadata
        ]
        return tuple(name for name in named if name is not None)

    @cached_property
    def made(self) -> Part:
        """The part itself, constructed with its options and nothing else.

        It is made once per section.

        Raises:
            InputError: an option that the constructor refuses.
        """
        return registry(self.registry_kind).get(self.kind)(**self.options)

    def check_options(self) -> None:
        """Let the constructor judge its options, by making the part.

        Raises:
            InputError: one that it refuses.
        """
        self.made  # noqa: B018 - making it is the check

    @classmethod
    def list_options(cls, kind: str) -> Options:
        """Return the options of the part of that name.

        They are read once. While another part has the name, as in tests of one, it has
        its own.

        Raises:
            InputError: the name of an option that sections need themselves.
        """
        part = registry(cls.registry_kind).get(kind)
        # while another part has the name, it has its own options
        key = cls, kind, id(part)
        if key not in _READ:
            _READ[key] = part, _read_options(cls, kind, part)
        return _READ[key][1]

    @classmethod
    def expand(cls, value: Plain) -> Plain:
        """Return a name, or a mapping written short, as a mapping with `kind`.

        Where a class says so, `{NAME: 2}` is `{kind: NAME, first option: 2}` and
        `{NAME: {…}}` is `{kind: NAME, …}`; keys that all kinds share may stand beside.
        """
        value = super().expand(value)
        if (
            not cls.names_first_option
            or not isinstance(value, Mapping)
            or "kind" in value
        ):
            return value
        others = {key: value[key] for key in value if key not in cls.model_fields}
        if len(others) != 1:
            return value
        ((name, option),) = others.items()
        shared = {key: value[key] for key in value if key != name}
        if isinstance(option, Mapping) or name not in registry(cls.registry_kind):
            inner = option if isinstance(option, Mapping) else {}
            return {"kind": name, **inner, **shared}
        first = next(iter(cls.list_options(name).fields), "kind")
        return {"kind": name, first: option, **shared}

    @model_validator(mode="wrap")
    @classmethod
    def _read_its_options(
        cls, value: Any, handler: Callable[[Any], Any], info: ValidationInfo
    ) -> Any:
        """Return the section of a mapping, with each option read by its own type.

        Options that are omitted get their defaults and do not count as set. Errors of
        all options and keys are collected.

        Args:
            value: as written, maybe short.
            handler: pydantic's own validation, which takes options as further keys.
            info: its context goes on to the options.

        Raises:
            ValidationError: one detail for each error.
            InputError: the constructor refuses an option.
        """
        value = cls.expand(value)
        if not isinstance(value, Mapping):
            return handler(value)
        kind = value.get("kind", cls.model_fields["kind"].default)
        shared = {key: value[key] for key in value if key in cls.model_fields}
        if not isinstance(kind, str) or kind not in registry(cls.registry_kind):
            return handler(shared)  # which options it has is not known
        known = cls.list_options(kind)
        problems: list[InitErrorDetails] = []
        read: dict[str, Any] = {}
        omitted = set()
        marked = {key for key, _ in known.marks}
        for key, field in known.fields.items():
            taken_back = (
                value.get(key, ...) is None
                and key in marked
                and field.default is not None
            )
            if key in value and not taken_back:
                try:
                    adapter = known.adapters[key]
                    read[key] = adapter.validate_python(
                        value[key], context=info.context
                    )
                except ValidationError as error:
                    problems += _list_details(error, key)
                continue
            omitted.add(key)
            read[key] = field.default
            if field.is_required():
                missing = InputError(problem=f"this key is missing with kind {kind}")
                problems.append(make_error_detail(missing, (key,), value))
        unknown = {
            key: value[key] for key in value if key not in {**shared, **known.fields}
        }
        refused = (_refuse_key(cls, kind, key, unknown[key]) for key in unknown)
        first: list[InitErrorDetails] = []
        if known.open_ended:
            read |= unknown
        else:
            first = [*filter(None, refused)]
        try:
            section = handler(shared if problems else {**shared, **read})
        except ValidationError as error:
            problems = [*_list_details(error), *problems]
        problems = [*first, *problems]
        if not problems:
            section.model_fields_set.difference_update(omitted)
            problems = section.find_misuses()
        if problems:
            raise ValidationError.from_exception_data(cls.__name__, problems)
        section.check_options()
        return section

    def list_marks(self) -> Iterable[tuple[str, Mark]]:
        """Return the marks of the keys and of the options of its kind."""
        return (*super().list_marks(), *self.list_options(self.kind).marks)

    @model_validator(mode="after")
    def check_marks(self) -> OfKind:
        """Refuse keys and options without effect, and miss none that is needed."""
        return self  # once it is known which options are given


_READ: dict[tuple[type[OfKind], str, int], tuple[Part, Options]] = {}
"""The options of each kind and part; it holds the part, so that no other one gets its
id."""


def _read_options(choice: type[OfKind], kind: str, part: Part) -> Options:
    """Return the options of a part, read from the signature of its constructor.

    Args:
        choice: the mapping; arguments in its `from_run` are no options.
        kind: the part's name, for errors.
        part: a class or a function. Of one without a signature any option may be right.

    Raises:
        InputError: an option with a name that the mapping needs itself.
    """
    fields: dict[str, FieldInfo] = {}
    adapters: dict[str, TypeAdapter[Any]] = {}
    marks: list[tuple[str, Only]] = []
    signature: list[inspect.Parameter] = []
    hints: dict[str, Any] = {}
    open_ended = False
    try:
        signature += inspect.signature(part).parameters.values()
        # of a dataclass the class itself: options that it inherits are annotated in
        # their own module
        of_class = inspect.isclass(part) and not is_dataclass(part)
        hints = get_type_hints(part.__init__ if of_class else part, include_extras=True)
    except (TypeError, ValueError, NameError):
        open_ended = True  # nothing is known before it is called
    for one in signature:
        name = one.name
        if one.kind is inspect.Parameter.VAR_KEYWORD:
            open_ended = True
        elif name not in choice.from_run and one.kind not in _POSITIONAL:
            taken = name in choice.model_fields or hasattr(choice, name)
            if taken or name.startswith("_"):
                options = f"the options of {choice.registry_kind} {kind}"
                allowed = f"other names for {options}: this one is taken"
                raise InputError(allowed, got=name)
            hint = _move_none_inside(hints.get(name, Any))
            metadata = getattr(hint, "__metadata__", ())
            marks += [(name, mark) for mark in metadata if isinstance(mark, Only)]
            fields[name], adapters[name] = _make_field(hint, one.default)
    return Options(fields, adapters, open_ended, tuple(marks))


_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL)


def _move_none_inside(annotation: Any) -> Any:
    """Return `Annotated[…] | None` with the None inside, beside the explanation.

    Python 3.10 adds the None to whatever has None for its default.
    """
    parts = get_args(annotation)
    if len(parts) == 2 and type(None) in parts:
        inner = parts[parts[0] is type(None)]
        if hasattr(inner, "__metadata__"):
            items = (inner.__origin__ | None, *inner.__metadata__)
            return operator.getitem(Annotated, items)
    return annotation


def _make_field(annotation: Any, default: Any) -> tuple[FieldInfo, TypeAdapter[Any]]:
    """Return an option as pydantic has it, and what reads its values.

    Args:
        annotation: of the keyword; texts in it explain the option.
        default: of the keyword; `Parameter.empty`: it is required.
    """
    text = next(
        (m for m in getattr(annotation, "__metadata__", ()) if isinstance(m, str)), None
    )
    kind = _make_readable(annotation)
    try:
        adapter = TypeAdapter(kind)
    except PydanticSchemaGenerationError:
        kind = Any  # a class of the part's own; its constructor has to judge
        adapter = TypeAdapter(kind)
    field = Field(description=text)
    if default is not inspect.Parameter.empty:
        field = Field(default=default, description=text)
    return FieldInfo.from_annotated_attribute(kind, field), adapter


def _make_readable(annotation: Any) -> Any:
    """Return the annotation with numbers and names that files are checked against."""
    if annotation is float:
        return Number
    if annotation is int:
        return WholeNumber
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        name = next((m for m in inner[1:] if isinstance(m, NameOf)), None)
        if name is None:
            return _make_readable(inner[0])
        # what travels may have options and be a chain
        if name.kind == "codec":
            return Annotated[Strategy, name]
        return Annotated[str, Named(name.kind), name]
    if origin in (Union, UnionType):
        together: Any = Union[tuple(map(_make_readable, inner))]  # noqa: UP007
        return Annotated[
            together,
            WrapValidator(_replace_errors(listed(map(_describe_annotation, inner)))),
        ]
    if origin in (tuple, list):
        return origin[tuple(x if x is Ellipsis else _make_readable(x) for x in inner)]
    return annotation


def _replace_errors(allowed: str) -> Callable[[Any, Callable[[Any], Any]], Any]:
    """Return a validator with one error for a value of several possible types.

    pydantic has one for each.

    Args:
        allowed: what the error says of all of them.
    """

    def validate(value: Any, handler: Callable[[Any], Any]) -> Any:
        try:
            return handler(value)
        except ValidationError:
            raise InputError(allowed, got=value) from None

    return validate


def _describe_annotation(annotation: Any) -> str:
    """Return the words of errors for one type of an option's values."""
    if get_origin(annotation) is Literal:
        return listed(map(str, get_args(annotation)))
    return _WORDS.get(annotation, "a list")


_WORDS = {
    float: "a number",
    int: "a whole number",
    bool: "true or false",
    str: "text",
    NoneType: "null",
}


def _refuse_key(
    choice: type[OfKind], kind: str, key: str, value: Any
) -> InitErrorDetails | None:
    """Return the error for a key that a kind does not have.

    None where it is an option of another kind and null: so a file takes back an option
    of what it extends.

    Args:
        choice: the mapping.
        kind: as it is chosen.
        key: the unknown one.
        value: as written.
    """
    takers = list_takers(choice, key)
    if takers and value is None:
        # null is no value: so a file takes back an option of what it extends
        return None
    options = choice.list_options(kind)
    keys = [key for key in (*choice.model_fields, *options.fields) if key != "kind"]
    hint = did_you_mean(key, keys)
    if takers:
        hint = f"{key} is an option of {listed(takers)}"
    problem = f"{choice.registry_kind} {kind} has no key {key!r}"
    error = InputError(listed(keys), got=key, problem=problem, hint=hint)
    return make_error_detail(error, (), value)


def list_takers(choice: type[OfKind], key: str) -> list[str]:
    """Return the kinds that have this option, in the order of the registry.

    A package that cannot be imported has none: it is not what the user asked about.
    """
    takers = []
    for name in registry(choice.registry_kind).names():
        # a package that is broken is not what the user asked about
        with suppress(ImportError):
            if key in choice.list_options(name).fields:
                takers.append(name)
    return takers


def list_choices(base: type[OfKind] = OfKind) -> Iterator[type[OfKind]]:
    """Yield every mapping of a file whose options hang on its kind.

    Args:
        base: whose subclasses are looked for.
    """
    for choice in base.__subclasses__():
        yield choice
        yield from list_choices(choice)


def _list_details(error: ValidationError, *where: str) -> list[InitErrorDetails]:
    """Return errors as pydantic collects them, those of a key with its name."""
    return [
        InitErrorDetails(
            type=one["type"],
            loc=(*where, *one["loc"]),
            input=one["input"],
            ctx=one.get("ctx", {}),
        )
        for one in error.errors(include_url=False)
    ]
