"""The page of every key of a scenario, out of its JSON Schema.

python analysis/scenario_page.py > docs/scenario.md
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from simfed.scenario.reference import build_scenario_schema
from simfed.schema.quantity import MOST_COUNTED

_HEAD = """# Scenario reference

Every key of a scenario file. `simfed schema` prints the same as JSON Schema, which
editors check against while you type. `simfed validate FILE` says
what is wrong, `simfed validate FILE --resolved` spells all defaults out.

- **Units.** Durations are written `20 ms`, `1.5 s`, `2 min`; rates `50 Mbps`, \
`2 MB/s`; sizes
  `10 MB`, `5 KiB`; power `4 W`. A number without a unit is an error, except 0.
- **`extends: other.yaml`** at the top builds on another file: mappings are merged, \
lists and
  values replaced. `null` for a section of the other file drops it (`network: null`), \
so that its
  defaults hold.
- **Short forms.** `device: NAME` is `device: {profile: NAME}`; \
`device: {training: 12 ms,
  compression: 0.3 ms}` needs no profile; `k: 1%` is a share of each model's \
own parameters;
  `rollback: off` is `rollback: null`; `50 mbps` is 50 Mbps.
- Paths of files start at the scenario's own folder. Unknown keys are errors, \
with the nearest
  known one, and every error names the file's line.
- **`plugins: [parts.py]`** names files of code; nothing runs them but \
`--allow-plugins` or
  `--import`.
- On the command line, `--set "clients[*].link.up=2 Mbps"` changes a key; \
`[*]` means every item
  of a list, `[0]` the first."""

_UNITS = {"20 ms": " s", "20 Mbps": " B/s", "10 MB": " B"}
_KINDS = {
    "20 ms": "duration, such as `20 ms`",
    "20 Mbps": "rate, such as `20 Mbps`",
    "10 MB": "size, such as `10 MB`",
}
_BOUNDS = {
    "exclusiveMinimum": ">",
    "minimum": "≥",
    "exclusiveMaximum": "<",
    "maximum": "≤",
}


def format_page() -> str:
    """The reference in Markdown: a section per mapping, in the order in which they are
    first named.
    """
    document = build_scenario_schema()
    parts = document["$defs"]
    # key path, and kind where they differ → mapping
    sections: dict[str, str] = {"": "Scenario"}
    waiting = [("", document)]
    while waiting:
        path, mapping = waiting.pop(0)
        for key, node in mapping["properties"].items():
            for name, suffix in _list_mappings(node):
                if name not in sections.values():
                    place = f"{path}.{key}{suffix}".lstrip(".")
                    if place in sections:  # a key may be one of several mappings
                        place += "` with `kind"
                    sections[place] = name
                    waiting.append((place, parts[name]))
        for kind in mapping.get("allOf", ()):
            name = kind["then"]["$ref"].rpartition("/")[2]
            place = path.partition("`")[0]
            sections[
                f"{place}` of `kind: {kind['if']['properties']['kind']['const']}"
            ] = name
    anchors = {name: path for path, name in sections.items()}
    text = [_HEAD]
    for path, name in sections.items():
        mapping = document if not path else parts[name]
        title = f"`{path}`" if path else "The file"
        text.append(f"## {title}\n\n{_format_prose(mapping.get('description', ''))}")
        rows = [
            (
                f"| `{key}` | {_format_value(node, anchors)} | "
                f"{_format_default(key, node, mapping)} | "
                f"{node.get('description', '')} |"
            )
            for key, node in mapping["properties"].items()
        ]
        if rows:
            text.append(
                "\n".join(["| key | value | default | |", "|---|---|---|---|", *rows])
            )
    return "\n\n".join(text) + "\n"


def _format_prose(description: str) -> str:
    """A docstring as Markdown; lines of a paragraph are joined."""
    return "\n\n".join(" ".join(part.split()) for part in description.split("\n\n"))


def _list_mappings(
    node: Mapping[str, Any], suffix: str = ""
) -> Iterator[tuple[str, str]]:
    """(mapping, what is added to the key's path) of the mappings that a value may be or
    hold.
    """
    if "$ref" in node:
        yield node["$ref"].rpartition("/")[2], suffix
    for one in (*node.get("anyOf", ()), *node.get("oneOf", ())):
        yield from _list_mappings(one, suffix)
    if isinstance(node.get("items"), dict):
        yield from _list_mappings(node["items"], f"{suffix}[]")
    if isinstance(node.get("additionalProperties"), dict):
        yield from _list_mappings(node["additionalProperties"], f"{suffix}.NAME")


def _format_value(node: Mapping[str, Any], anchors: Mapping[str, str]) -> str:
    for example in node.get("examples", ()):
        return _KINDS.get(example, f"such as `{example}`")
    if "$ref" in node:
        path = anchors[node["$ref"].rpartition("/")[2]]
        return f"[`{path}`](#{_format_anchor(path)})"
    if "enum" in node:
        return ", ".join(f"`{name}`" for name in node["enum"])
    if "const" in node:
        return f"`{node['const']}`"
    choices = [*node.get("anyOf", ()), *node.get("oneOf", ())]
    if choices:
        texts = [
            _format_value(one, anchors) for one in choices if one.get("type") != "null"
        ]
        return " or ".join(dict.fromkeys(texts))
    if node.get("type") == "array":
        if "prefixItems" in node:
            return ", then ".join(
                _format_value(one, anchors) for one in node["prefixItems"]
            )
        return f"list of {_format_value(node['items'], anchors)}"
    if node.get("type") == "object":
        inner = node.get("additionalProperties")
        return (
            f"name: {_format_value(inner, anchors)}"
            if isinstance(inner, dict)
            else "mapping"
        )
    words = {"integer": "whole number", "boolean": "`true`, `false`", "string": "text"}
    bounds = [
        f"{sign} {node[key]:g}"
        for key, sign in _BOUNDS.items()
        if _is_told(node.get(key))
    ]
    return f"{words.get(str(node.get('type')), 'number')} {', '.join(bounds)}".strip()


def _is_told(bound: float | None) -> bool:
    """Return whether a bound says more than that numbers fit into 64 bits."""
    return bound is not None and abs(bound) < MOST_COUNTED


def _format_anchor(path: str) -> str:
    return "".join(
        c for c in path.lower().replace(" ", "-") if c.isalnum() or c in "-_"
    )


def _format_default(
    key: str, node: Mapping[str, Any], mapping: Mapping[str, Any]
) -> str:
    """The default of a key.

    What is a mapping of its own has its defaults in its section.
    """
    if key in mapping.get("required", ()):
        return "**required**"
    default = node.get("default")
    if default is None or default == [] or default == {}:
        return ""
    if isinstance(default, dict):
        return "as there"
    examples = [
        example
        for one in (node, *node.get("anyOf", ()))
        for example in one.get("examples", ())
    ]
    unit = next((_UNITS.get(example, "") for example in examples), "")
    if unit and isinstance(default, (int, float)):
        return f"`{default:,.15g}{unit}`"
    text = default if isinstance(default, str) else json.dumps(default)
    return f"`{text}`"


if __name__ == "__main__":
    print(format_page(), end="")
