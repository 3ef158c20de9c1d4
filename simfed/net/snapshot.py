"""A graph of the network's records as plain values that JSON carries exactly, and back.

Flows, links and what hangs on them refer to each other, so they become numbered rows; a reference
is the number of a row. Floats keep every bit (JSON writes the shortest digits that read back as the
same float; `Infinity` is spelled as Python's `json` does). What is read back is made of the classes
listed here alone: nothing in a state names code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from simfed.ground.errors import InputError, RunFailed
from simfed.ground.plain import Plain
from simfed.net.flows import Flow, Link, Tally
from simfed.net.following import Varying
from simfed.net.meter import MeteredStretch
from simfed.net.models import SlowStart

_KINDS: dict[str, type] = {
    cls.__name__: cls for cls in (Flow, Link, Tally, Varying, MeteredStretch, SlowStart)
}
_NAMES = {cls: name for name, cls in _KINDS.items()}
_LEFT_OUT = {"trace"}
"""Fields that belong to the topology, and are the same in every network over it."""

_FIELDS = {
    kind: sorted(field.name for field in fields(cls) if field.name not in _LEFT_OUT)
    for kind, cls in _KINDS.items()
}


def write_graph(roots: Mapping[str, object]) -> dict[str, Plain]:
    """`roots` and every record that they lead to.

    Raises: `RunFailed` for an object of another class, as a network model of one's own may hang on
    its flows.

    >>> flow = Flow(1, 60.0, (0,))
    >>> again = read_graph(write_graph({"first": flow, "all": [flow]}))
    >>> again["all"][0] is again["first"], again["first"].links
    (True, (0,))
    """
    numbers: dict[object, int] = {}
    waiting: list[object] = []
    rows: list[list[Plain]] = []

    def plain(value: object) -> Plain:
        if value is None or isinstance(value, (bool, str)):
            return value
        if isinstance(value, float):
            return float(value)
        if type(value) in _NAMES:
            if value not in numbers:
                numbers[value] = len(numbers)
                waiting.append(value)
            return ["record", numbers[value]]
        if isinstance(value, (list, tuple)):
            kind = "list" if isinstance(value, list) else "tuple"
            return [kind, *[plain(part) for part in value]]
        if isinstance(value, dict):
            return ["dict", *[[plain(key), plain(part)] for key, part in value.items()]]
        if hasattr(value, "__index__"):
            return int(value)
        kind = f"transfers under way with a {type(value).__name__}"
        models = "of the network's models it knows fluid and tcp"
        raise RunFailed(f"a checkpoint cannot keep {kind}: {models}")

    plain_roots = {name: plain(value) for name, value in roots.items()}
    while len(rows) < len(waiting):  # a row may bring further records
        record = waiting[len(rows)]
        kind = _NAMES[type(record)]
        rows.append([kind, *[plain(getattr(record, name)) for name in _FIELDS[kind]]])
    return {"fields": _FIELDS, "records": rows, "roots": plain_roots}


def read_graph(plain: Mapping[str, Plain]) -> dict[str, Plain]:
    """Inverse of `write_graph`. Fields that belong to the topology stay unset.

    Raises: `InputError` for what another version wrote.
    """
    if plain["fields"] != _FIELDS:
        allowed, problem = "a checkpoint of this version of simfed", "it is of another version"
        raise InputError(allowed, where="network", problem=problem)
    rows = plain["records"]
    records: list[object] = [object.__new__(_KINDS[row[0]]) for row in rows]

    def value_of(part: Plain) -> Any:
        if not isinstance(part, list):
            return part
        kind, *parts = part
        if kind == "record":
            return records[parts[0]]
        if kind == "dict":
            return {value_of(key): value_of(value) for key, value in parts}
        values = [value_of(x) for x in parts]
        return tuple(values) if kind == "tuple" else values

    for record, (kind, *values) in zip(records, rows, strict=True):
        for name, value in zip(_FIELDS[kind], values, strict=True):
            setattr(record, name, value_of(value))
    return {name: value_of(value) for name, value in plain["roots"].items()}
