"""Text that people write in files, and a sentence for each way in which it cannot be read."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from simfed.errors import InputError

__all__ = ["named_in_errors", "parse_yaml", "read_text", "why_unreadable"]


def read_text(path: str | os.PathLike[str]) -> str:
    """The text of a UTF-8 file, without a byte order mark.

    Raises: `InputError` that names the file.
    """
    with named_in_errors(path):
        return Path(path).read_text(encoding="utf-8-sig")


@contextmanager
def named_in_errors(path: str | os.PathLike[str]) -> Iterator[None]:
    """What goes wrong with the file inside, as an `InputError` that names it."""
    try:
        yield
    except FileNotFoundError:
        raise InputError("a file that exists", where=str(path)) from None
    except IsADirectoryError:
        raise InputError("a file, not a folder", where=str(path)) from None
    except (OSError, UnicodeDecodeError) as error:
        reason = why_unreadable(error)
        raise InputError("a readable text file", where=str(path), got=reason) from None


def why_unreadable(error: Exception) -> str:
    """What the operating system says, or that it is no text."""
    return getattr(error, "strerror", None) or "not UTF-8 text"


def parse_yaml(text: str, *, where: str) -> Any:
    """What YAML says, as people write it: `1e5` is a number, a key that stands twice is an error, and
    keys may be called on, off, yes or no.

    Raises: `InputError` that names the place and, where it is known, the line.

    >>> parse_yaml("{k: 1e3, 32: 5 ms}", where="a.yaml")
    {'k': 1000.0, 32: '5 ms'}
    >>> parse_yaml("{on: 2 h, off: no}", where="a.yaml")
    {'on': '2 h', 'off': False}
    >>> parse_yaml("k: 1\\nk: 2", where="a.yaml")
    Traceback (most recent call last):
    simfed.errors.InputError: a.yaml: line 2: valid YAML (the key 'k' stands twice)
    """
    try:
        return yaml.load(text, _Loader)  # a SafeLoader
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or "cannot be parsed"
        where = f"{where}: line {mark.line + 1}" if mark else where
    except RecursionError:
        problem = "nested too deeply"
    except ValueError as error:  # a day or a number that looks like one and is none
        problem = str(error)
    except (AttributeError, LookupError, TypeError):  # PyYAML's, where a tag and its text disagree
        problem = "a value that is not what its tag says"
    raise InputError(f"valid YAML ({problem})", where=where)


class _Loader(yaml.SafeLoader):
    """PyYAML's own keeps the last of two equal keys, and takes 1e5 for text."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"),
    list("-+.0123456789"),
)


def _unique_keys(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[Any] = set()
    for key_node, _ in node.value:
        if key_node.tag == "tag:yaml.org,2002:merge":
            continue  # what it brings stands beneath the keys written here
        if key_node.tag.endswith(":bool") and key_node.value.lower() not in ("true", "false"):
            key_node.tag = "tag:yaml.org,2002:str"  # `on: 2 h` means a key of this name
        key = loader.construct_object(key_node, deep=True)
        problem = None
        if not isinstance(key, (str, int, float, bool)):
            problem = "a key must be text"
        elif key in seen:
            problem = f"the key {key!r} stands twice"
        if problem:
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=key_node.start_mark)
        seen.add(key)
    loader.flatten_mapping(node)
    return loader.construct_mapping(node, deep=True)


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _unique_keys)
