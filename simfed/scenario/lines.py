"""Lines of keys in YAML files, looked for once an error names the key.

Validation knows key paths and no lines. `simfed.ground.reading` keeps the nodes of what
it parsed last, with their lines, and `add_line` walks the path of the error through
them. So reading a file costs nothing for errors that never come.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from simfed.ground.errors import InputError
from simfed.ground.reading import find_nodes


def add_line(error: InputError, *, overridden: bool = False) -> InputError:
    """Return the same error, with the line of the key that it names.

    For instance `a.yaml: line 3: rounds: …`; a key of a file that this one extends
    gives `a.yaml: base.yaml: line 3: rounds: …`. The error stays as it is where the key
    is in no file.

    Args:
        error: one whose `where` begins with the file, as `simfed.load_scenario` makes
        them.
        overridden: True if some keys came from the command line: an error about another
            value than the file has is one of those, and gets no line.
    """
    parts = (error.where or "").split(": ")
    for at in range(len(parts) - 1, -1, -1):
        file, path = Path(parts[at]), "".join(parts[at + 1 : at + 2])
        if file.suffix not in (".yaml", ".yml") or path.startswith("line "):
            continue
        place = _find_place(file, path, error, overridden)
        if place is None:
            return error
        where = ": ".join([*parts[: at + 1], place, *parts[at + 1 :]])
        return error.changed(where=where)
    return error


_MOST_EXTENDED = 10


def _find_place(
    file: Path, path: str, error: InputError, overridden: bool, above: int = 0
) -> str | None:
    """Return `line 3`, or `base.yaml: line 3` of a key in a file that this one extends.

    Args:
        file: that was read last under this name.
        path: of the key; empty: the file as a whole.
        error: it may name an unknown key by its `got`.
        overridden: as of `add_line`.
        above: how many files extend this one.

    Returns:
        None where the key has no line: it is in no file, or came from the command line.
    """
    root = find_nodes(str(file))
    place_of_key = _walk_path(root, path)
    if place_of_key is None:
        base = _walk_path(root, "extends")
        if (
            base is None
            or not isinstance(base[1], yaml.ScalarNode)
            or above >= _MOST_EXTENDED
        ):
            return None
        name = str(base[1].value)
        place = _find_place(file.parent / name, path, error, overridden, above + 1)
        return None if place is None else f"{name}: {place}"
    line, node, rest = place_of_key
    if isinstance(node, yaml.MappingNode) and isinstance(error.got, str):
        for key, _ in node.value:  # an unknown key is named by its value
            if key.value == error.got:
                return f"line {key.start_mark.line + 1}"
    if not path:  # the file as a whole
        return None
    if overridden and (rest or not _has_value(node, error.got)):
        return None
    return f"line {line}"


def _walk_path(root: yaml.Node | None, path: str) -> tuple[int, yaml.Node, str] | None:
    """Return the line of the innermost key there is, its value, and the rest.

    Args:
        root: the nodes of the file; None: they are not kept.
        path: of a key, such as `clients[0].link.up`.

    Returns:
        Line from 1 on, the node of the value, and what of the path is not there (empty:
        all
        of it is). None where its first key is not.
    """
    node, line, rest = root, None, path
    while rest and node is not None:
        step = None
        if isinstance(node, yaml.MappingNode):
            fitting = [
                (str(key.value), key, value)
                for key, value in node.value
                if _begins_with(rest, str(key.value))
            ]
            if fitting:  # a study's keys are paths themselves: the longest that fits
                name, key, inner = max(fitting, key=lambda one: len(one[0]))
                step = (len(name), key.start_mark.line, inner)
        elif isinstance(node, yaml.SequenceNode):
            index = re.match(r"\[(\d+)\]", rest)
            if index and int(index[1]) < len(node.value):
                inner = node.value[int(index[1])]
                step = (index.end(), inner.start_mark.line, inner)
        if step is None:
            break
        length, line, node = step
        rest = rest[length:].removeprefix(".")
    if node is None or (path and line is None):
        return None
    return (line or 0) + 1, node, rest


def _begins_with(path: str, key: str) -> bool:
    """Return whether a key path begins with this key, as a whole step."""
    return path.startswith(key) and path[len(key) : len(key) + 1] in ("", ".", "[")


def _has_value(node: yaml.Node, got: Any) -> bool:
    """Return whether the file's own value is the one that the error is about."""
    if not isinstance(node, yaml.ScalarNode):
        return True
    try:
        return bool(yaml.safe_load(yaml.serialize(node)) == got) or node.value == str(
            got
        )
    except (yaml.YAMLError, ValueError, AttributeError):
        return False
