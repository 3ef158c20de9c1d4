"""Sentences of errors: from a file's mapping to a section, naming each wrong key.

Pydantic collects what is wrong; `validate_as` says it as simfed does, one `InputError`
per key with its path, what is allowed and, where it can be guessed, what was meant: a
key of another section, a key of another kind, a misspelt name.
"""

from __future__ import annotations

import itertools
import operator
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from simfed.ground.errors import (
    MOST_ERRORS,
    InputError,
    InputErrors,
    did_you_mean,
    listed,
)
from simfed.ground.plain import Plain
from simfed.schema.options import list_choices, list_takers
from simfed.schema.places import Step, find_place, format_way, list_keys, list_paths

M = TypeVar("M", bound=BaseModel)


def validate_as(model: type[M], data: Plain, *, source: str, folder: Path) -> M:
    """Return `data` as a `model`, or say all that is wrong with it.

    Args:
        model: the section of the whole file.
        data: a plain mapping.
        source: the file, with which every sentence starts.
        folder: where its relative paths start.

    Raises:
        InputErrors: a sentence that starts with `source: key.path` for every error.
    """
    try:
        return model.model_validate(data, context={"folder": folder})
    except ValidationError as error:
        errors: dict[str, InputError] = {}
        found = error.errors(include_url=False)[::-1]
        missing = {one["loc"] for one in found if one["type"] == "missing"}
        details = [one for one in found if not _follows(dict(one), missing)]
        while details and len(errors) < MOST_ERRORS:
            one = _make_error(model, dict(details.pop())).within(source)
            errors.setdefault(str(one), one)
        raise InputErrors([*errors.values()], more=len(details)) from None


def _follows(detail: dict[str, Any], missing: set[tuple[Step, ...]]) -> bool:
    """Return whether another error of pydantic's says what this one does, and more.

    Of a list of so many every place that is missing comes: the last says how many. A
    list of whose items some are refused is called too short.

    Args:
        detail: the error.
        missing: the places of all keys and items that are missing.
    """
    *above, last = detail["loc"] or ("",)
    if detail["type"] == "too_short":
        return bool(len(detail["input"]) >= detail["ctx"]["min_length"])
    if detail["type"] != "missing" or not isinstance(last, int):
        return False
    return (*above, last + 1) in missing


_ALLOWED = {
    "string_type": "text",
    "invalid_key": "keys that are text",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "dict_type": "a mapping of keys to values",
    "model_type": "a mapping of keys to values",
    "tuple_type": "a list",
    "list_type": "a list",
    "too_short": "a list of at least {min_length}",
    "too_long": "a list of at most {max_length}",
}
"""Pydantic's type of an error → what is allowed there; of numbers see `Quantity`."""


def _make_error(model: type[BaseModel], detail: dict[str, Any]) -> InputError:
    """Return one of pydantic's error records as simfed says it.

    Args:
        model: the section of the whole file, by whose keys hints are found.
        detail: the record.
    """
    loc, kind = tuple(detail["loc"]), detail["type"]
    where, got = format_way(loc), detail.get("input")
    cause = detail.get("ctx", {}).get("error")
    if isinstance(cause, InputError):
        place = ".".join(filter(None, (where, cause.where)))
        return cause.changed(
            where=place or None, hint=_suggest_quotes(cause.got) or cause.hint
        )
    if kind == "extra_forbidden":
        return _refuse_key(model, loc[:-1], str(loc[-1]))
    if kind == "missing" and isinstance(loc[-1], int):
        allowed = f"a list of {loc[-1] + 1}"
        return InputError(allowed, where=format_way(loc[:-1]), got=got)
    if kind == "missing":
        return InputError(where=where, problem="this key is missing")
    if kind in ("literal_error", "union_tag_invalid"):
        expected = str(
            detail["ctx"].get("expected") or detail["ctx"].get("expected_tags")
        )
        choices = re.findall(r"'([^']*)'", expected)
        hint = did_you_mean(str(got), choices)
        return InputError(listed(choices), where=where, got=got, hint=hint)
    allowed = _ALLOWED.get(kind, detail["msg"].lower())
    allowed = allowed.format(**detail["ctx"]) if kind.startswith("too_") else allowed
    return InputError(allowed, where=where, got=got, hint=_suggest_quotes(got))


def _suggest_quotes(value: object) -> str | None:
    """Return the hint where YAML may have read another thing than was written."""
    hint = "YAML reads on, yes, off and no as true and false; in quotes they are text"
    return hint if isinstance(value, bool) else None


def _refuse_key(model: type[BaseModel], above: Sequence[Step], key: str) -> InputError:
    """Return the error for a key that a section does not have.

    Args:
        model: the section of the whole file.
        above: steps to the section.
        key: the unknown one.
    """
    section = find_place(model, above).section
    keys = [] if section is None else list_keys(section)
    outer, dot, inner_key = key.partition(".")
    hint = f"write {outer}: {{{inner_key}: …}}" if dot and outer in keys else None
    glued, colon, rest = key.partition(":")
    if colon and glued in keys:
        hint = f"a space follows a colon: {glued}: {rest}"
    return InputError(
        listed(keys),
        where=format_way(above) or None,
        got=key,
        problem=f"there is no key {key!r} here",
        hint=hint
        or _suggest_place(model, above, key)
        or did_you_mean(key, keys)
        or _suggest_kind(key),
    )


def suggest_longer_path(model: type[BaseModel], steps: Sequence[Step]) -> str | None:
    """Return the hint for a key path that lacks its beginning, or `[*]`.

    It is `did you mean clients[*].link.up?` for `link.up`.

    Args:
        model: the section of the whole file.
        steps: of the path as it was written.

    Returns:
        None: no path of the file ends so.
    """
    asked = [step for step in steps if isinstance(step, str) and step != "*"]
    near = _find_shortest_ends(model, asked)
    return f"did you mean {listed(map(format_way, near[:3]))}?" if near else None


def _suggest_place(
    model: type[BaseModel], above: Sequence[Step], key: str
) -> str | None:
    """Return the hint where a misplaced key belongs, what is nearest first.

    Args:
        model: the section of the whole file.
        above: steps to where the key stands.
        key: the misplaced one.
    """
    here = ["*" if isinstance(step, int) else step for step in above]
    paths = [path for path in list_paths(model) if path[-1] == key]
    shared = {
        path: sum(itertools.takewhile(bool, map(operator.eq, path, here)))
        for path in paths
    }
    ends = [path for path in paths if list(path[:-1]) != here]
    nearest = max((shared[path] for path in ends), default=0)
    near = [path for path in ends if shared[path] == nearest]
    if not nearest:
        near = _find_shortest_ends(model, [key])
    return f"it belongs to {listed(map(format_way, near[:3]))}" if near else None


def _find_shortest_ends(
    model: type[BaseModel], asked: Sequence[str]
) -> list[tuple[str, ...]]:
    """Return the shortest of the key paths that end in these keys."""
    lengths: dict[tuple[str, ...], int] = {}
    for path in list_paths(model):
        names = [step for step in path if step != "*"]
        if asked and names[-len(asked) :] == list(asked):
            lengths[path] = len(names)
    return [path for path, length in lengths.items() if length == min(lengths.values())]


def _suggest_kind(key: str) -> str | None:
    """Return the hint for a key that is an option of some registered part."""
    for choice in list_choices():
        if takers := list_takers(choice, key):
            return f"{key} is an option of {choice.registry_kind} {listed(takers[:3])}"
    return None
