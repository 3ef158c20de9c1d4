"""Every key of a scenario, as JSON Schema for editors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from simfed.ground.plain import Plain
from simfed.ground.registry import registry
from simfed.scenario.model import Scenario
from simfed.scenario.options import OfKind


def build_scenario_schema() -> dict[str, Plain]:
    """The JSON Schema of a scenario file."""
    document = Scenario.model_json_schema()
    document["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    document["properties"]["extends"] = {
        "type": "string",
        "description": "another scenario file that this one builds on",
    }
    for declared in _find_choices(OfKind):
        if declared.__name__ in document["$defs"]:
            _add_kinds(document["$defs"], declared)
    return document


def _find_choices(base: type[OfKind]) -> Iterator[type[OfKind]]:
    for declared in base.__subclasses__():
        if declared.part is None:
            yield declared
            yield from _find_choices(declared)


def _add_kinds(parts: dict[str, Any], declared: type[OfKind]) -> None:
    """Beside the keys that all kinds share, those of each: `if` it is named, `then` its options."""
    shared = parts[declared.__name__]
    del shared["additionalProperties"]
    shared["unevaluatedProperties"] = False
    shared["allOf"] = []
    for kind in registry(declared.registry_kind).names():
        model = declared.of(kind)
        schema = model.model_json_schema()
        parts |= {name: part for name, part in schema.get("$defs", {}).items() if name not in parts}
        options = {key: schema["properties"][key] for key in model.own_keys()}
        parts[f"{declared.__name__}.{kind}"] = {
            "type": "object",
            "description": (schema.get("description") or "").split("\n")[0],
            "properties": options,
            "required": [key for key in schema.get("required", ()) if key in options],
            "dependentSchemas": schema.get("dependentSchemas", {}),
            **({"additionalProperties": True} if schema.get("additionalProperties") else {}),
        }
        asked: dict[str, Any] = {"properties": {"kind": {"const": kind}}}
        if kind != shared["properties"]["kind"].get("default"):
            asked["required"] = ["kind"]
        shared["allOf"].append(
            {"if": asked, "then": {"$ref": f"#/$defs/{declared.__name__}.{kind}"}}
        )
