"""From a YAML file (and overrides) to a validated `Scenario`, with every error of the file at
once."""

from __future__ import annotations

import functools
import itertools
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from simfed.ground.errors import MOST_ERRORS, InputError, InputErrors, did_you_mean, listed, within
from simfed.ground.inputs import check_file, read_text
from simfed.ground.plain import Plain
from simfed.ground.reading import parse_yaml
from simfed.ground.registry import import_file, is_consented
from simfed.scenario.aggregation import RuleChoice
from simfed.scenario.model import (
    AttackChoice,
    MethodChoice,
    Scenario,
    SelectionChoice,
    read_short_kind,
)
from simfed.scenario.options import OfKind, list_takers
from simfed.scenario.policy import PolicySpec
from simfed.schema.fields import rename_texts

M = TypeVar("M", bound=BaseModel)

Overrides: TypeAlias = Mapping[str, Plain] | Iterable[tuple[str, Plain]]
"""Key paths with their new values."""


def load_scenario(
    path: str | Path | Mapping[str, Plain],
    overrides: Overrides = (),
    *,
    allow_plugins: bool = False,
) -> Scenario:
    """Read, extend, override and validate a scenario file.

    Args:
        path: the YAML file, or what one says as a mapping. `extends: other.yaml` in it
            builds on another file: mappings are merged key by key, everything else is
            replaced.
        overrides: key path → value, as in `{"rounds": 20, "clients[*].link.up": "5 Mbps"}`.
        allow_plugins: run the Python files that `plugins` names; without it, a scenario that names
            one which nobody has asked for yet is refused.

    Raises:
        InputError: the file cannot be read or is not a mapping.
        InputErrors: one sentence for each thing that is wrong in it.
    """
    if isinstance(path, Mapping):
        source, folder = "scenario", Path()
        data = _extend_mapping(dict(path), source, folder)
    else:
        source, folder = str(path), Path(path).parent
        data = read_yaml(path)
    if is_study(data):
        hint = "simfed study run"
        raise InputError("a scenario", where=source, problem="this is a study", hint=hint)
    if is_fleet(data):
        problem, hint = "this is a fleet for an app", "simfed flower run APP_DIR --fleet FILE"
        raise InputError("a scenario", where=source, problem=problem, hint=hint)
    data = apply_overrides(data, overrides, Scenario)
    import_plugins(data, source=source, folder=folder, allow=allow_plugins)
    return validate_scenario(data, source=source, folder=folder)


_OF_LEARNING = ("dataset", "prototypes", "rounds", "method", "policy", "compression", "training")


def is_study(data: Mapping[str, Plain]) -> bool:
    """Return whether a file's keys are those of a study."""
    return "base" in data and "clients" not in data


def is_fleet(data: Mapping[str, Plain]) -> bool:
    """Whether a file's keys are those of a world for an app, and nothing of a scenario's learning
    part; see `simfed.scenario.fleet_file`."""
    return "clients" in data and not any(key in data for key in _OF_LEARNING)


def validate_scenario(
    data: Mapping[str, Plain],
    *,
    source: str,
    folder: Path,
    allow_plugins: bool = False,
) -> Scenario:
    """A scenario from a mapping; `folder` is where its relative paths start.

    `allow_plugins`: see `load_scenario`.
    """
    import_plugins(data, source=source, folder=folder, allow=allow_plugins)
    return validate_as(Scenario, data, source=source, folder=folder)


def import_plugins(data: Mapping[str, Plain], *, source: str, folder: Path, allow: bool) -> None:
    """Run the files that `plugins` of a scenario or study names, so that their parts are known.

    Files are data and plug-ins are code: nothing is run that nobody has asked for, by `allow`, by
    `--import` of the same file, or before in this process.

    Raises: `InputError` where consent is missing, and for a file that does not run; what is no list
    of files is left to validation.
    """
    named = data.get("plugins")
    where = f"{source}: plugins"
    for entry in named if isinstance(named, (list, tuple)) else [named]:
        plugin = entry if isinstance(entry, Mapping) else {"file": entry}
        name, origin = plugin.get("file"), plugin.get("origin")
        if not isinstance(name, str) or not name:
            continue
        file = folder / name
        if not allow and not is_consented(file):
            problem = f"{name} is code, and nobody has asked to run it"
            hint = f"--allow-plugins, or --import {file}; in Python allow_plugins=True"
            raise InputError(where=where, got=name, problem=problem, hint=hint)
        copied = origin if isinstance(origin, str) else None
        import_file(file, where=f"{where}: {name}", origin=copied)


def dump_scenario(
    scenario: Scenario,
    profile_names: Mapping[str, str] | None = None,
    file_names: Mapping[str, str] | None = None,
) -> str:
    """The resolved scenario as YAML: every default spelled out; loads to an equal scenario.

    `profile_names` and `file_names` rename calibration profiles and other files that it names, for
    a copy that stands beside copies of them.
    """
    plain = rename_texts(scenario.model_dump(mode="json"), file_names or {})
    for device in (plain["server"]["device"], *(group["device"] for group in plain["clients"])):
        if device is not None and device["profile"] is not None and profile_names:
            device["profile"] = profile_names[device["profile"]]
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=100)


MOST_EXTENDED = 100
"""Files that one builds on, each on the next."""


def read_yaml(path: str | Path, *, _seen: tuple[Path, ...] = ()) -> dict[str, Plain]:
    """Return the mapping in a YAML file, with what it `extends` merged beneath it."""
    path = Path(path)
    real = Path(os.path.realpath(path))
    if real in _seen:
        raise InputError("another file", where=str(path), problem="it extends itself")
    if len(_seen) > MOST_EXTENDED:
        allowed = f"at most {MOST_EXTENDED} files that extend one another"
        raise InputError(allowed, where=str(_seen[0]), problem="too many")
    data = parse_yaml(read_text(path), where=str(path))
    if data is None:
        raise InputError(
            "a scenario", where=str(path), problem="the file is empty", hint="simfed new quickstart"
        )
    if not isinstance(data, dict):
        raise InputError("a mapping of keys to values", where=str(path), got=data)
    return _extend_mapping(data, str(path), path.parent, _seen=(*_seen, real))


def _extend_mapping(
    data: dict[str, Plain], source: str, folder: Path, *, _seen: tuple[Path, ...] = ()
) -> dict[str, Plain]:
    """Return a mapping with the file that it `extends` merged beneath it, without the sections
    that it drops by `null`."""
    base = data.pop("extends", None)
    if base is None:
        return data
    if not isinstance(base, str):
        raise InputError("the name of another file", where=f"{source}: extends", got=base)
    with within(f"{source}: extends"):
        check_file(folder / base)
    beneath = read_yaml(folder / base, _seen=_seen)
    dropped = {key for key, value in data.items() if value is None and key in beneath}
    merged = _merge_mappings(beneath, data)
    return {key: value for key, value in merged.items() if key not in dropped}


def validate_as(model: type[M], data: Plain, *, source: str, folder: Path) -> M:
    """`data` as a `model`; every error becomes a sentence that starts with `source: key.path`."""
    try:
        return model.model_validate(data, context={"folder": folder})
    except ValidationError as error:
        errors: dict[str, InputError] = {}
        details = error.errors(include_url=False)[::-1]
        while details and len(errors) < MOST_ERRORS:
            one = _make_error(model, dict(details.pop())).within(source)
            errors.setdefault(str(one), one)
        raise InputErrors([*errors.values()], more=len(details)) from None


# --- overrides ---------------------------------------------------------------------------------

_STEP = re.compile(r"([^.\[\]]+)|\[(\*|\d+)\]")
_AXIS = re.compile(r"(grid|zip\[\d+)\]?\.(.+)", re.DOTALL)


def parse_assignment(text: str) -> tuple[str, Plain]:
    """`key.path=value` as given to `--set`; the value is read as YAML.

    >>> parse_assignment("compression.k=500")
    ('compression.k', 500)
    """
    path, equals, value = text.partition("=")
    if not equals or not path.strip():
        raise InputError("key.path=value", where="--set", got=text)
    try:
        return path.strip(), parse_yaml(value, where=path)
    except InputError:
        raise InputError("a value in YAML", where=f"--set {path}", got=value) from None


def split_key_path(path: str) -> list[str | int]:
    """`clients[*].link.up` → `["clients", "*", "link", "up"]`; indices become integers. Keys of a
    study's grid are key paths themselves: `grid.policy.c` → `["grid", "policy.c"]`."""
    steps: list[str | int] = []
    at = 0
    if axis := _AXIS.match(path):
        steps = [word if not word.isdecimal() else int(word) for word in axis[1].split("[")]
        return [*steps, axis[2]]
    while at < len(path):
        match = _STEP.match(path, at)
        if match is None:
            raise InputError("a key path such as clients[*].link.up", where="override", got=path)
        key, index = match.groups()
        steps.append(key if key is not None else ("*" if index == "*" else int(index)))
        at = match.end()
        if at < len(path) and path[at] == ".":
            at += 1
            if at == len(path):
                raise InputError(
                    "a key path that does not end in a dot", where="override", got=path
                )
    if not steps:
        raise InputError("a key path such as clients[*].link.up", where="override", got=path)
    return steps


def apply_overrides(
    data: Mapping[str, Plain], overrides: Overrides, model: type[BaseModel] | None = None
) -> dict[str, Plain]:
    """A copy of `data` with each (key path, value) set; missing mappings on the way are made.

    With `model`, a path that the model does not know is an error with a did-you-mean.
    """
    result: dict[str, Plain] = _copy_value(data)
    for path, value in overrides.items() if isinstance(overrides, Mapping) else overrides:
        steps = split_key_path(path)
        if model is not None:
            _check_path(model, steps, path)
        _set_value(result, steps, value, path)
    return result


def _set_value(node: Any, steps: list[str | int], value: Any, path: str) -> None:
    step, rest = steps[0], steps[1:]
    where = f"override {path}"
    if isinstance(node, list):
        if step != "*" and not isinstance(step, int):
            raise InputError("an index such as [0] or [*] here", where=where, got=step)
        if isinstance(step, int) and step >= len(node):
            raise InputError(f"an index below {len(node)}", where=where, got=step)
        for i in range(len(node)) if step == "*" else [int(step)]:
            if rest:
                node[i] = _expand_short_form(node[i], rest)
                _set_value(node[i], rest, value, path)
            else:
                node[i] = _copy_value(value)
        return
    if not isinstance(node, dict) or not isinstance(step, str):
        raise InputError("a key path that exists", where=where, got=step)
    if step == "*":
        if not node:
            raise InputError(
                "at least one key", where=where, problem="there is nothing for * to stand for"
            )
        targets = list(node)
    else:
        targets = [step]
    for key in targets:
        if rest:
            node[key] = _expand_short_form(node.get(key), rest, key)
            _set_value(node[key], rest, value, path)
        else:
            node[key] = _copy_value(value)


_SHORT_FOR = {"device": "profile", "app": "folder"}
"""Key → the key inside it that a text alone stands for; of all others `kind`."""


_SHORT_MAPPINGS: dict[str, Callable[[Any], Any]] = {
    "rule": RuleChoice.read,
    "attack": AttackChoice.read,
    "residuals": read_short_kind,
    "reference": read_short_kind,
}
"""Key → what validation reads `{NAME: value}` with, a kind and its first option."""


def _expand_short_form(node: Any, rest: list[str | int], key: str | int = "") -> Any:
    """Return `node` ready to be entered: nothing, and what is written short, as a mapping."""
    if not isinstance(rest[0], str):
        return node
    if node is None:
        return {}
    if isinstance(node, str):
        return {_SHORT_FOR.get(str(key), "kind"): node}
    if isinstance(node, dict) and key in _SHORT_MAPPINGS and rest[0] not in ("kind", *node):
        expanded = _SHORT_MAPPINGS[str(key)](node)
        return expanded if expanded.get("kind") in node else node
    return node


def _check_path(model: type[BaseModel], steps: list[str | int], path: str) -> None:
    here: Any = model
    for step in steps:
        inner = _find_model(here)
        if inner is None and isinstance(step, str) and step != "*" and _is_list(here):
            allowed = "an index such as [0] or [*] here"
            hint = _suggest_longer_path(model, steps)
            raise InputError(allowed, where=f"override {path}", got=step, hint=hint)
        if inner is not None:
            if issubclass(inner, OfKind) and isinstance(step, str):
                return  # its keys hang on its kind, which may be set as well
            if isinstance(step, str) and step != "*" and step not in inner.model_fields:
                allowed = listed(inner.model_fields)
                where = f"override {path}"
                problem = f"there is no key {step!r} here"
                hint = _suggest_longer_path(model, steps) or did_you_mean(step, inner.model_fields)
                raise InputError(allowed, where=where, got=step, problem=problem, hint=hint)
            if not isinstance(step, str):
                raise InputError("a key, not an index, here", where=f"override {path}", got=step)
            here = inner.model_fields[step].annotation if step in inner.model_fields else None
        else:
            here = _find_element(here)
        if here is None:
            return


def _suggest_longer_path(model: type[BaseModel], steps: Sequence[str | int]) -> str | None:
    """The hint for a key path that lacks its beginning, or `[*]` in the middle.

    >>> _suggest_longer_path(Scenario, ["link", "up"])
    'did you mean clients[*].link.up?'
    """
    asked = [step for step in steps if isinstance(step, str) and step != "*"]
    near = _find_shortest_ends(model, asked)
    return f"did you mean {listed(map(_format_path, near[:3]))}?" if near else None


def _suggest_place(model: type[BaseModel], loc: Sequence[str | int], key: str) -> str | None:
    """The hint for a key that stands at the wrong place: where it belongs, nearest to `loc` first.

    >>> _suggest_place(Scenario, ["clients", 0], "latency")
    'it belongs to clients[*].link.latency'
    """
    here = ["*" if isinstance(step, int) else step for step in loc]

    def count_shared(path: tuple[str, ...]) -> int:
        """How many steps a path has in common with where the key stands."""
        pairs = zip(path, here, strict=False)
        return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))

    ends = [path for path in _list_paths(model) if path[-1] == key and list(path[:-1]) != here]
    nearest = max(map(count_shared, ends), default=0)
    near = [path for path in ends if count_shared(path) == nearest]
    if not nearest:
        near = _find_shortest_ends(model, [key])
    return f"it belongs to {listed(map(_format_path, near[:3]))}" if near else None


def _find_shortest_ends(model: type[BaseModel], asked: Sequence[str]) -> list[tuple[str, ...]]:
    """The shortest of the key paths that end in these keys."""
    lengths: dict[tuple[str, ...], int] = {}
    for path in _list_paths(model):
        names = [step for step in path if step != "*"]
        if asked and names[-len(asked) :] == list(asked):
            lengths[path] = len(names)
    return [path for path, length in lengths.items() if length == min(lengths.values())]


def _format_path(path: Sequence[str]) -> str:
    return ".".join(path).replace(".*", "[*]")


def _suggest_kind(key: str) -> str | None:
    """The hint for a key that is an option of some method, policy or selection."""
    for choice in (MethodChoice, PolicySpec, SelectionChoice):
        takers = list_takers(choice, key)
        if takers:
            return f"{key} is an option of {choice.registry_kind} {listed(takers[:3])}"
    return None


@functools.cache
def _list_paths(model: type[BaseModel]) -> tuple[tuple[str, ...], ...]:
    """All key paths of a mapping, the shortest first; `*` stands for whatever a list holds."""
    paths: list[tuple[str, ...]] = []

    def walk(annotation: Any, path: tuple[str, ...], above: tuple[Any, ...]) -> None:
        inner = _find_model(annotation)
        if inner is not None and inner not in above:
            for name, field in inner.model_fields.items():
                paths.append((*path, name))
                walk(field.annotation, (*path, name), (*above, inner))
        elif inner is None and (element := _find_element(annotation)) is not None:
            walk(element, (*path, "*"), above)

    walk(model, (), ())
    return tuple(sorted(paths, key=len))


# --- sentences ---------------------------------------------------------------------------------


def _make_error(model: type[BaseModel], detail: dict[str, Any]) -> InputError:
    """One of pydantic's error records as simfed says it."""
    loc = tuple(detail["loc"])
    kind = detail["type"]
    cause = detail.get("ctx", {}).get("error")
    if isinstance(cause, InputError):
        where = ".".join(filter(None, (_format_location(model, loc), cause.where)))
        hint = _suggest_quotes(cause.got) or cause.hint
        return cause.changed(where=where or None, hint=hint)
    where = _format_location(model, loc)
    if kind == "extra_forbidden":
        keys, key = _list_keys(model, loc[:-1]), str(loc[-1])
        outer, dot, inner_key = key.partition(".")
        nested = f"write {outer}: {{{inner_key}: …}}" if dot and outer in keys else None
        glued, colon, rest = key.partition(":")
        if colon and glued in keys:
            nested = f"a space follows a colon: {glued}: {rest}"
        return InputError(
            listed(keys),
            where=_format_location(model, loc[:-1]) or None,
            got=loc[-1],
            problem=f"there is no key {key!r} here",
            hint=nested
            or _suggest_place(model, loc[:-1], key)
            or did_you_mean(key, keys)
            or _suggest_kind(key),
        )
    if kind == "missing" and isinstance(loc[-1], int):  # of a list of so many
        where, kind = _format_location(model, loc[:-1]), "too_short"
    if kind == "missing":
        return InputError(where=where, problem="this key is missing")
    allowed = {
        "string_type": "text",
        "invalid_key": "keys that are text",
        "bool_type": "true or false",
        "bool_parsing": "true or false",
        "dict_type": "a mapping of keys to values",
        "model_type": "a mapping of keys to values",
        "tuple_type": "a list",
        "list_type": "a list",
        "too_short": "a longer list",
        "too_long": "a shorter list",
    }.get(kind)
    if kind in ("literal_error", "union_tag_invalid"):
        expected = str(detail["ctx"].get("expected") or detail["ctx"].get("expected_tags"))
        choices = re.findall(r"'([^']*)'", expected)
        got = detail["input"]
        return InputError(
            listed(choices), where=where, got=got, hint=did_you_mean(str(got), choices)
        )
    got = detail["input"]
    return InputError(
        allowed or detail["msg"].lower(), where=where, got=got, hint=_suggest_quotes(got)
    )


def _suggest_quotes(value: object) -> str | None:
    """The hint where YAML may have read another thing than was written."""
    if isinstance(value, bool):
        return "YAML reads on, yes, off and no as true and false; in quotes they are text"
    return None


def _format_location(model: type[BaseModel], loc: tuple[int | str, ...]) -> str:
    text = ""
    for step in loc:
        if isinstance(step, int):
            text += f"[{step}]"
        elif not step.startswith("function-") and "[" not in step:
            text += f".{step}" if text else step
    return text


def _list_keys(model: type[BaseModel], loc: tuple[int | str, ...]) -> list[str]:
    here: Any = model
    for step in loc:
        if isinstance(step, str) and step.endswith("[]"):
            here = _find_tagged(here, step) or here
            continue
        inner = _find_model(here)
        if inner is None:
            here = _find_element(here)
        elif step in inner.model_fields:
            here = inner.model_fields[str(step)].annotation
    inner = _find_model(here)
    return list(inner.model_fields) if inner is not None else []


def _find_tagged(annotation: Any, tag: str) -> Any:
    """The member of a union that has this tag, or None."""
    if any(getattr(mark, "tag", None) == tag for mark in getattr(annotation, "__metadata__", ())):
        return annotation
    members = (_find_tagged(inner, tag) for inner in get_args(annotation))
    return next((inner for inner in members if inner is not None), None)


def _find_model(annotation: Any) -> type[BaseModel] | None:
    """The model inside an annotation such as `Rollback | None`."""
    origin = get_origin(annotation)
    if origin in (tuple, list, dict):
        return None
    # Python 3.10 takes `tuple[int]` for a type, too
    if origin is None and isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    models = [m for m in map(_find_model, get_args(annotation)) if m is not None]
    return models[0] if len(models) == 1 else None


def _is_list(annotation: Any) -> bool:
    origin = get_origin(annotation)
    if origin is dict:
        return False
    return origin in (tuple, list) or any(map(_is_list, get_args(annotation)))


def _find_element(annotation: Any) -> Any:
    if get_origin(annotation) in (tuple, list):
        return get_args(annotation)[0]
    if get_origin(annotation) is dict:
        return get_args(annotation)[1]
    for inner in get_args(annotation):
        if get_origin(inner) in (tuple, list, dict):
            return _find_element(inner)
    return None


# --- plain mappings ----------------------------------------------------------------------------


def _merge_mappings(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    result = dict(below)
    for key, value in above.items():
        old = result.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            value = _merge_mappings(old, value)
        result[key] = value
    return result


def _copy_value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copy_value(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_copy_value(inner) for inner in value]
    return value
