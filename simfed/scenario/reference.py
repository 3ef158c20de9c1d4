"""The JSON Schema of a scenario's keys, for editors."""

from __future__ import annotations

import inspect
from typing import Any

from pydantic import BaseModel

from simfed.ground.plain import Plain
from simfed.ground.registry import registry
from simfed.scenario.model import Scenario
from simfed.schema.options import OfKind, list_choices
from simfed.schema.section import Section, describe_mark


def build_scenario_schema() -> dict[str, Plain]:
    """Return the JSON Schema of a scenario file.

    Editors check a file against it, and `docs/scenario.md` is made of it. Kinds that
    are registered in this process are in it, with their options.
    """
    document = Scenario.model_json_schema()
    document["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    document["properties"]["extends"] = {
        "type": "string",
        "description": "another scenario file that this one builds on",
    }
    for choice in list_choices():
        if choice.__name__ in document["$defs"]:
            _add_kinds(document["$defs"], choice)
    _allow_texts(document, _list_short(Section))
    return document


def _list_short(section: type[BaseModel]) -> set[str]:
    """Return the names of the sections for which a text may stand."""
    below = (name for inner in section.__subclasses__() for name in _list_short(inner))
    return {*below, *([section.__name__] if getattr(section, "short", "") else [])}


def _allow_texts(node: Any, short: set[str]) -> None:
    """Let a text stand wherever one of these sections may, in place.

    Args:
        node: a schema, or a part of one.
        short: names of the sections that have a short form.
    """
    for inner in (
        node.values()
        if isinstance(node, dict)
        else node
        if isinstance(node, list)
        else ()
    ):
        _allow_texts(inner, short)
    if isinstance(node, dict) and str(node.get("$ref")).rpartition("/")[2] in short:
        node["anyOf"] = [{"$ref": node.pop("$ref")}, {"type": "string"}]


def _add_kinds(parts: dict[str, Any], declared: type[OfKind]) -> None:
    """Add the options of each kind: `if` it is named, `then` they stand there.

    They are beside the keys that all kinds share.

    Args:
        parts: the document's `$defs`, which are changed.
        declared: the mapping whose options hang on its kind.
    """
    shared = parts[declared.__name__]
    del shared["additionalProperties"]
    shared["unevaluatedProperties"] = False
    shared["allOf"] = []
    for kind in registry(declared.registry_kind).names():
        known = declared.list_options(kind)
        options: dict[str, Any] = {"type": "object", "properties": {}}
        for key, field in known.fields.items():
            schema = known.adapters[key].json_schema()
            parts |= schema.pop("$defs", {})
            said = {"default": field.default, "description": field.description}
            if field.is_required() or field.description is None:
                del said["default" if field.is_required() else "description"]
            options["properties"][key] = {**schema, **said}
        for key, only in known.marks:
            describe_mark(options, key, only, known.fields)
        about = (
            inspect.getdoc(registry(declared.registry_kind).get(kind)) or ""
        ).split("\n")[0]
        options["description"] = about
        options["required"] = [
            key for key, field in known.fields.items() if field.is_required()
        ]
        if known.open_ended:
            options["additionalProperties"] = True
        parts[f"{declared.__name__}.{kind}"] = options
        asked: dict[str, Any] = {"properties": {"kind": {"const": kind}}}
        if kind != shared["properties"]["kind"].get("default"):
            asked["required"] = ["kind"]
        shared["allOf"].append(
            {"if": asked, "then": {"$ref": f"#/$defs/{declared.__name__}.{kind}"}}
        )
