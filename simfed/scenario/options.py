"""Mappings whose keys are the options of a registered part, read from the part's constructor.

A constructor's keyword `warmup: Annotated[int, "warm-up plays per strategy"] = 5` is the key
`warmup`, a whole number, 5 if omitted, explained by that text. Ranges are the constructor's own
business: it raises an `InputError` whose `where` is the keyword. So a part of one's own needs no
words here.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import is_dataclass
from functools import cached_property
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from pydantic import (
    Field,
    TypeAdapter,
    ValidationError,
    WrapValidator,
    create_model,
    model_validator,
)
from pydantic.errors import PydanticSchemaGenerationError
from pydantic_core import InitErrorDetails

from simfed.ground.errors import InputError, did_you_mean, listed
from simfed.ground.plain import Plain
from simfed.ground.registry import NameOf, Only, Part, registry
from simfed.schema.fields import Named, Number, Strategy, WholeNumber
from simfed.schema.section import Section, make_error_detail

K = TypeVar("K", bound="OfKind")


class OfKind(Section):
    """A mapping whose `kind` names a registered part; what else it may say are that part's options.

    A subclass says which registry (`registry_kind`) and which arguments of the constructor do not
    come from the file (`from_run`). Validating makes an object of a subclass per kind, whose fields
    are the shared ones and the options, so that dumps, defaults and equality are as everywhere.
    Such a key is annotated `SerializeAsAny[…]`. Made by `model_validate`, not by calling the class.
    """

    registry_kind: ClassVar[str]
    from_run: ClassVar[frozenset[str]] = frozenset()
    part: ClassVar[Part | None] = None
    """The registered class or function of the kind; None in the class that a scenario names."""

    kind: str

    @property
    def options(self) -> dict[str, Plain]:
        """The arguments of this kind's constructor."""
        keys = type(self).own_keys()
        return {**{key: getattr(self, key) for key in keys}, **(self.model_extra or {})}

    def names(self, registry_kind: str) -> tuple[str, ...]:
        """The parts of that registry that options name."""
        fields = type(self).model_fields
        marked_keys = [
            key for key in type(self).own_keys() if NameOf(registry_kind) in fields[key].metadata
        ]
        return tuple(getattr(self, key) for key in marked_keys if getattr(self, key) is not None)

    @cached_property
    def made(self) -> Part:
        """The part itself, constructed with its options and nothing else; once per section.

        Raises: `InputError` for an option that the constructor refuses.
        """
        return registry(self.registry_kind).get(self.kind)(**self.options)

    def check_options(self) -> None:
        """Let the constructor judge its options. Raises: `InputError` for one that it refuses."""
        self.made  # noqa: B018 - making it is the check

    @classmethod
    def own_keys(cls) -> list[str]:
        """The options of this kind, in the constructor's order."""
        shared = _find_declared_class(cls).model_fields
        return [key for key in cls.model_fields if key not in shared]

    @classmethod
    def of(cls: type[K], kind: str) -> type[K]:
        """The mapping of one kind: `cls` with the options of the part of that name."""
        part = registry(cls.registry_kind).get(kind)
        key = (
            cls,
            kind,
            id(part),
        )  # a part whose name another one has for a while gets its class back
        if key not in _MADE:
            _MADE[key] = _make_model(cls, kind, part)
        return _MADE[key]  # type: ignore[return-value]

    @classmethod
    def read(cls, value: Mapping[str, Plain]) -> dict[str, Plain]:
        """`value` in today's words; subclasses translate older spellings."""
        return dict(value)

    @model_validator(mode="wrap")
    @classmethod
    def _of_its_kind(cls, value: Any, handler: Callable[[Any], Any], info: Any) -> Any:
        if cls.part is not None or not isinstance(value, Mapping):
            return handler(value)
        value = cls.read(value)
        kind = value.get("kind", cls.model_fields["kind"].default)
        if not isinstance(kind, str) or kind not in registry(cls.registry_kind):
            # which options it has is not known
            return handler({key: value[key] for key in value if key in cls.model_fields})
        model = cls.of(kind)
        problems = [
            problem
            for key in value
            if key not in model.model_fields
            and (problem := _refuse_key(model, kind, key, value[key]))
        ]
        open_ended = model.model_config.get("extra") == "allow"
        plain = {k: v for k, v in value.items() if k in model.model_fields or open_ended}
        try:
            section = model.model_validate(plain, context=info.context)
        except ValidationError as error:
            problems += [_make_detail(dict(one), kind) for one in error.errors(include_url=False)]
        if problems:
            raise ValidationError.from_exception_data(cls.__name__, problems)
        section.check_options()
        return section

    def __reduce__(self) -> tuple[Any, ...]:  # the class of a kind cannot be imported by its name
        return _find_declared_class(type(self)).model_validate, (self.model_dump(),)


_MADE: dict[tuple[type[OfKind], str, int], type[OfKind]] = {}
"""The class of each kind and part; it holds the part, so that no other one gets its id."""


def _find_declared_class(cls: type[OfKind]) -> type[OfKind]:
    """The class that a scenario names, of one that was made for a kind."""
    return next(base for base in cls.__mro__ if base.__dict__.get("part") is None)


def _make_model(base: type[OfKind], kind: str, part: Any) -> type[OfKind]:
    fields: dict[str, Any] = {}
    open_ended = False
    signature: list[inspect.Parameter] = []
    hints: dict[str, Any] = {}
    try:
        signature += inspect.signature(part).parameters.values()
        # of a dataclass the class itself: options that it inherits are annotated in their own
        # module
        of_class = inspect.isclass(part) and not is_dataclass(part)
        hints = get_type_hints(part.__init__ if of_class else part, include_extras=True)
    except (TypeError, ValueError, NameError):
        open_ended = True  # nothing is known before it is called
    for one in signature:
        if one.kind is inspect.Parameter.VAR_KEYWORD:
            open_ended = True
        elif one.name not in base.from_run and one.kind not in _POSITIONAL:
            if one.name in base.model_fields or one.name.startswith("_") or hasattr(base, one.name):
                options = f"the options of {base.registry_kind} {kind}"
                raise InputError(f"other names for {options}: this one is taken", got=one.name)
            hint = _move_none_inside(hints.get(one.name, Any))
            annotation, field = _make_field(hint, one.default)
            marks = [m for m in getattr(hint, "__metadata__", ()) if isinstance(m, Only)]
            fields[one.name] = (Annotated[annotation, marks[0]] if marks else annotation), field
    model = create_model(
        f"{base.__name__}.{kind}", __base__=base, __doc__=inspect.getdoc(part), **fields
    )
    model.part = part
    if open_ended:
        model.model_config["extra"] = "allow"
        model.model_rebuild(force=True)
    return model


_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL)


def _move_none_inside(annotation: Any) -> Any:
    """`Annotated[…] | None` with the None inside, where the explanation is found.

    Python 3.10 adds the None to whatever has None for its default.
    """
    parts = get_args(annotation)
    if len(parts) == 2 and type(None) in parts:
        inner = parts[parts[0] is type(None)]
        if hasattr(inner, "__metadata__"):
            items = (inner.__origin__ | None, *inner.__metadata__)
            return operator.getitem(Annotated, items)
    return annotation


def _make_field(annotation: Any, default: Any) -> tuple[Any, Any]:
    """An option as pydantic has it: its type, and default and explanation."""
    text = next((m for m in getattr(annotation, "__metadata__", ()) if isinstance(m, str)), None)
    kind = _make_readable(annotation)
    try:
        TypeAdapter(kind)
    except PydanticSchemaGenerationError:
        kind = Any  # a class of the part's own; its constructor has to judge
    if default is inspect.Parameter.empty:
        return kind, Field(description=text)
    return kind, Field(default=default, description=text)


def _make_readable(annotation: Any) -> Any:
    """The annotation with numbers and names that files are checked against."""
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
        kind = Strategy if name.kind == "codec" else Named(name.kind)
        return Annotated[kind, name]
    if origin in (Union, UnionType):
        together: Any = Union[tuple(map(_make_readable, inner))]  # noqa: UP007
        return Annotated[
            together, WrapValidator(_replace_errors(listed(map(_describe_annotation, inner))))
        ]
    if origin in (tuple, list):
        return origin[tuple(x if x is Ellipsis else _make_readable(x) for x in inner)]
    return annotation


def _replace_errors(allowed: str) -> Callable[[Any, Callable[[Any], Any]], Any]:
    """One error for a value of several possible types, where pydantic has one for each."""

    def validate(value: Any, handler: Callable[[Any], Any]) -> Any:
        try:
            return handler(value)
        except ValidationError:
            raise InputError(allowed, got=value) from None

    return validate


def _describe_annotation(annotation: Any) -> str:
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


def _refuse_key(model: type[OfKind], kind: str, key: str, value: Any) -> InitErrorDetails | None:
    """The error for a key that a kind does not have."""
    if model.model_config.get("extra") == "allow":
        return None
    what = model.registry_kind
    takers = list_takers(_find_declared_class(model), key)
    if takers and value is None:
        return None  # null is no value: older resolved scenarios name every kind's options
    keys = [key for key in model.model_fields if key != "kind"]
    hint = f"{key} is an option of {listed(takers)}" if takers else did_you_mean(key, keys)
    problem = f"{what} {kind} has no key {key!r}"
    return make_error_detail(
        InputError(listed(keys), got=key, problem=problem, hint=hint), (), value
    )


def list_takers(model: type[OfKind], key: str) -> list[str]:
    """The kinds that have this option."""
    takers = []
    for name in registry(model.registry_kind).names():
        with suppress(ImportError):  # a package that is broken is not what the user asked about
            if key in model.of(name).own_keys():
                takers.append(name)
    return takers


def _make_detail(error: dict[str, Any], kind: str) -> InitErrorDetails:
    if error["type"] == "missing" and len(error["loc"]) == 1:
        missing = InputError(problem=f"this key is missing with kind {kind}")
        return make_error_detail(missing, error["loc"], error["input"])
    return InitErrorDetails(
        type=error["type"], loc=error["loc"], input=error["input"], ctx=error.get("ctx", {})
    )
