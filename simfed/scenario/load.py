"""Loads a YAML file, with overrides, as a validated `Scenario`.

Every error of the file is told at once. Until `validate_scenario` everything is a plain
mapping: `read_yaml` merges what a file extends, `apply_overrides` writes key paths into
a copy, and `dump_scenario` goes the way back, to YAML with every default in place.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import yaml
from pydantic import BaseModel

from simfed.fleet.world import WorldSpec
from simfed.ground.errors import InputError, did_you_mean, listed, within
from simfed.ground.inputs import check_file, read_text
from simfed.ground.plain import Plain
from simfed.ground.reading import parse_yaml
from simfed.ground.registry import import_file, is_consented
from simfed.scenario.model import Scenario
from simfed.schema.fields import rename_texts
from simfed.schema.options import OfKind
from simfed.schema.places import Step, enter, list_keys, read_place
from simfed.schema.section import Section
from simfed.schema.sentences import suggest_longer_path, validate_as

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
        overrides: key path → value, as in `{"rounds": 20, "clients[*].link.up": "5
            Mbps"}`.
        allow_plugins: run the Python files that `plugins` names; without it, a scenario
            that names one which nobody has asked for yet is refused.

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
        raise InputError(
            "a scenario", where=source, problem="this is a study", hint=hint
        )
    if is_fleet(data):
        problem = "this is a fleet for an app"
        hint = "simfed flower run APP_DIR --fleet FILE"
        raise InputError("a scenario", where=source, problem=problem, hint=hint)
    data = apply_overrides(data, overrides, Scenario)
    return validate_scenario(
        data, source=source, folder=folder, allow_plugins=allow_plugins
    )


_OF_LEARNING = (
    "dataset",
    "prototypes",
    "rounds",
    "method",
    "policy",
    "compression",
    "training",
)


def is_study(data: Mapping[str, Plain]) -> bool:
    """Return whether a file's keys are those of a study.

    `data` is the file's mapping, as it was written.
    """
    return "base" in data and "clients" not in data


def is_fleet(data: Mapping[str, Plain]) -> bool:
    """Return whether a file's keys are those of a world for an app.

    None are of a scenario's learning part; see `simfed.scenario.fleet_file`.
    """
    return "clients" in data and not any(key in data for key in _OF_LEARNING)


def validate_scenario(
    data: Mapping[str, Plain], *, source: str, folder: Path, allow_plugins: bool = False
) -> Scenario:
    """Return a scenario from a mapping.

    Args:
        data: plain values, as a file has them, nothing left to extend or override.
        source: how errors name it.
        folder: where its relative paths start.
        allow_plugins: as of `load_scenario`.

    Raises:
        InputError: a plug-in that nobody consented to, or that does not run.
        InputErrors: one sentence for each thing that is wrong.
    """
    import_plugins(data, source=source, folder=folder, allow=allow_plugins)
    return validate_as(Scenario, data, source=source, folder=folder)


def import_plugins(
    data: Mapping[str, Plain], *, source: str, folder: Path, allow: bool
) -> None:
    """Run the files that `plugins` of a scenario or study names.

    Their parts are known by name afterwards. Files are data and plug-ins are code:
    nothing is run that nobody has asked for, by `allow`, by `--import` of the same
    file, or before in this process. What is no list of files is left to validation.

    Args:
        data: the file's mapping.
        source: how errors name the file.
        folder: where relative paths start.
        allow: True is consent to all that it names.

    Raises:
        InputError: consent is missing, or a file does not run.
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
    world: WorldSpec,
    profile_names: Mapping[str, str] | None = None,
    file_names: Mapping[str, str] | None = None,
) -> str:
    """Return a resolved scenario, or an app's world, as YAML.

    Every default is spelled out; what it says loads to an equal scenario, on the same
    numbers.

    Args:
        world: a scenario or a fleet.
        profile_names: calibration profile → the name of its copy; None: as they are.
        file_names: path of any other file → that of its copy. Both are for a dump that
            stands beside copies of what it names, as in a run directory.
    """
    plain = rename_texts(world.model_dump(mode="json"), file_names or {})
    if plain.get("app", 0) is None:  # the command says it
        del plain["app"]
    for device in (
        plain["server"]["device"],
        *(group["device"] for group in plain["clients"]),
    ):
        if device is not None and device["profile"] is not None and profile_names:
            device["profile"] = profile_names[device["profile"]]
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=100)


MOST_EXTENDED = 100
"""Files that one builds on, each on the next."""


def read_yaml(path: str | Path, *, _seen: tuple[Path, ...] = ()) -> dict[str, Plain]:
    """Return the mapping in a YAML file, with what it `extends` merged beneath it.

    Args:
        path: the file.
        _seen: the files that extend it, outermost first.

    Raises:
        InputError: it cannot be read, has no mapping, extends itself or too many
        others.
    """
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
            "a scenario",
            where=str(path),
            problem="the file is empty",
            hint="simfed new quickstart",
        )
    if not isinstance(data, dict):
        raise InputError("a mapping of keys to values", where=str(path), got=data)
    return _extend_mapping(data, str(path), path.parent, _seen=(*_seen, real))


def _extend_mapping(
    data: dict[str, Plain], source: str, folder: Path, *, _seen: tuple[Path, ...] = ()
) -> dict[str, Plain]:
    """Return a mapping with the file that it `extends` merged beneath it.

    Mappings are merged key by key, everything else is replaced. A section that is null
    here is left out, so that it gets its defaults again.

    Args:
        data: the mapping; its key `extends` is taken out.
        source: how errors name it.
        folder: where the name of the other file starts.
        _seen: the files on the way here.
    """
    base = data.pop("extends", None)
    if base is None:
        return data
    with within(f"{source}: extends"):
        if not isinstance(base, str):
            raise InputError("the name of another file", got=base)
        check_file(folder / base)
    beneath = read_yaml(folder / base, _seen=_seen)
    dropped = {key for key, value in data.items() if value is None and key in beneath}
    merged = _merge_mappings(beneath, data)
    return {key: value for key, value in merged.items() if key not in dropped}


# --- overrides ------------------------------------------------------------------------

_STEP = re.compile(r"([^.\[\]]+)|\[(\*|\d+)\]")
_PATH = re.compile(rf"(?:{_STEP.pattern})(?:\.?(?:{_STEP.pattern}))*")
_AXIS = re.compile(r"(grid|zip\[\d+)\]?\.(.+)", re.DOTALL)


def parse_assignment(text: str) -> tuple[str, Plain]:
    """Return (key path, value) of an assignment as given to `--set`.

    The value is read as YAML.

    >>> parse_assignment("compression.k=500")
    ('compression.k', 500)

    Raises:
        InputError: there is no `=`, no path, or a value that is no YAML.
    """
    path, equals, value = text.partition("=")
    if not equals or not path.strip():
        raise InputError("key.path=value", where="--set", got=text)
    try:
        return path.strip(), parse_yaml(value, where=path)
    except InputError:
        raise InputError("a value in YAML", where=f"--set {path}", got=value) from None


def split_key_path(path: str) -> list[Step]:
    """Return the steps of a key path; indices become integers.

    Keys of a study's grid are key paths themselves and stay whole.

    >>> split_key_path("clients[*].link.up")
    ['clients', '*', 'link', 'up']
    >>> split_key_path("grid.policy.c")
    ['grid', 'policy.c']

    Raises:
        InputError: text that is no key path.
    """
    if axis := _AXIS.match(path):
        words = axis[1].split("[")
        return [*(int(word) if word.isdecimal() else word for word in words), axis[2]]
    if not _PATH.fullmatch(path):
        dotted = _PATH.fullmatch(path.removesuffix("."))
        wanted = (
            "that does not end in a dot" if dotted else "such as clients[*].link.up"
        )
        raise InputError(f"a key path {wanted}", where="override", got=path)
    return [
        key or (index if index == "*" else int(index))
        for key, index in _STEP.findall(path)
    ]


def apply_overrides(
    data: Mapping[str, Plain], overrides: Overrides, model: type[BaseModel]
) -> dict[str, Plain]:
    """Return a copy of `data` with each (key path, value) set.

    Missing mappings on the way are made. What is written short is expanded where a path
    goes on within it.

    Args:
        data: the file's mapping, which is not changed.
        overrides: key path → value, or pairs of them; later ones win.
        model: the section that `data` will be validated as.

    Raises:
        InputError: a path that `model` does not know, with a did-you-mean, or an index
            that is not there.
    """
    result: dict[str, Plain] = _copy_value(data)
    for path, value in (
        overrides.items() if isinstance(overrides, Mapping) else overrides
    ):
        steps = split_key_path(path)
        _check_path(model, steps, path)
        _set_value(result, model, steps, value, path)
    return result


def _set_value(node: Any, place: Any, steps: list[Step], value: Any, path: str) -> None:
    """Set a value below `node`, in place.

    Args:
        node: the mapping or list that the next step enters.
        place: the annotation of what may stand there, by which short forms are read.
        steps: the rest of the path, at least one; `*` stands for every key or index.
        value: what to set; each place gets a copy.
        path: the whole path, for errors.

    Raises:
        InputError: a step that does not fit what is there.
    """
    step, rest = steps[0], steps[1:]
    where = f"override {path}"
    keys: Iterable[Any]
    if isinstance(node, list):
        if step != "*" and not isinstance(step, int):
            raise InputError("an index such as [0] or [*] here", where=where, got=step)
        if isinstance(step, int) and step >= len(node):
            raise InputError(f"an index below {len(node)}", where=where, got=step)
        keys = range(len(node)) if step == "*" else [step]
    elif not isinstance(node, dict) or not isinstance(step, str):
        raise InputError("a key path that exists", where=where, got=step)
    elif step == "*" and not node:
        problem = "there is nothing for * to stand for"
        raise InputError("at least one key", where=where, problem=problem)
    else:
        keys = list(node) if step == "*" else [step]
    for key in keys:
        if not rest:
            node[key] = _copy_value(value)
            continue
        inner = enter(place, key)
        written = node[key] if isinstance(node, list) else node.get(key)
        node[key] = _expand_short_form(written, inner, rest[0])
        _set_value(node[key], inner, rest, value, path)


def _expand_short_form(node: Any, place: Any, step: Step) -> Any:
    """Return `node` ready to be entered by a key.

    Nothing, and what is written short, become a mapping.
    """
    if not isinstance(step, str):
        return node
    if node is None:
        return {}
    section = read_place(place).section
    if section is None or not issubclass(section, Section):
        return node
    expanded = section.expand(node)
    if isinstance(node, dict) and (
        step in ("kind", *node) or expanded.get("kind") not in node
    ):
        return node  # not short, or about to be written over
    return expanded


def _check_path(model: type[BaseModel], steps: Sequence[Step], path: str) -> None:
    """Raise `InputError` unless a section knows all keys of a path.

    Keys below a mapping whose options hang on its kind are left to validation: the kind
    may be set as well.
    """
    here: Any = model
    where = f"override {path}"
    for step in steps:
        place = read_place(here)
        section = place.section
        if section is None and isinstance(step, str) and step != "*" and place.is_list:
            hint = suggest_longer_path(model, steps)
            raise InputError(
                "an index such as [0] or [*] here", where=where, got=step, hint=hint
            )
        if section is not None:
            if issubclass(section, OfKind) and isinstance(step, str):
                return  # its keys hang on its kind, which may be set as well
            if not isinstance(step, str):
                raise InputError("a key, not an index, here", where=where, got=step)
            if step != "*" and step not in section.model_fields:
                keys = list_keys(section)
                raise InputError(
                    listed(keys),
                    where=where,
                    got=step,
                    problem=f"there is no key {step!r} here",
                    hint=suggest_longer_path(model, steps) or did_you_mean(step, keys),
                )
        here = enter(here, step)
        if here is None:
            return


# --- plain mappings -------------------------------------------------------------------


def _merge_mappings(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Return two mappings as one: merged where both have one, else `above` wins."""
    result = dict(below)
    for key, value in above.items():
        old = result.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            value = _merge_mappings(old, value)
        result[key] = value
    return result


def _copy_value(value: Any) -> Any:
    """Return plain values as new mappings and lists, tuples as lists."""
    if isinstance(value, Mapping):
        return {key: _copy_value(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_copy_value(inner) for inner in value]
    return value
