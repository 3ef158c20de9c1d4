"""YAML that people write, and a sentence for each way in which it cannot be read."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import yaml

from simfed.ground.errors import InputError
from simfed.ground.plain import Plain


def parse_yaml(text: str, *, where: str) -> Plain:
    r"""Return the value of a YAML text.

    Unlike PyYAML, `1e5` is a number, a key that stands twice is an error, and keys may
    be called on, off, yes or no.

    Args:
        text: of one document.
        where: what errors call it. Nodes of a text from a `.yaml` file are kept under
            it for `find_nodes`.

    Raises:
        InputError: names the place and, where it is known, the line.

    >>> parse_yaml("{k: 1e3, 32: 5 ms}", where="a.yaml")
    {'k': 1000.0, 32: '5 ms'}
    >>> parse_yaml("{on: 2 h, off: no}", where="a.yaml")
    {'on': '2 h', 'off': False}
    >>> parse_yaml("k: 1\nk: 2", where="a.yaml")
    Traceback (most recent call last):
    simfed.ground.errors.InputError: a.yaml: line 2: not valid YAML: the key 'k' stands
    twice
    """
    separators = text.count("\n") + text.count(",")
    if separators > _MOST_SEPARATORS:
        allowed = f"at most {_MOST_SEPARATORS:,} lines and commas"
        raise InputError(allowed, where=where, got=f"{separators:,} of them")
    try:
        if _can_be_parsed_fast(text):
            try:
                return _construct(_FastLoader(text), text, where)
            except Exception as error:  # syntax, which the other one explains
                if isinstance(error, _RefusedValue) or len(text) > _MOST_EXPLAINED:
                    raise
        return _construct(_Loader(text), text, where)
    except yaml.reader.ReaderError as error:
        problem = f"a character that YAML does not allow, U+{int(error.character):04X}"
        where = f"{where}: line {text.count(chr(10), 0, error.position) + 1}"
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or "cannot be parsed"
        if mark:
            problem, mark = _explain_problem(problem, mark, text)
        where = f"{where}: line {mark.line + 1}" if mark else where
    except RecursionError:
        problem = "nested too deeply"
    except ValueError as error:  # a day or a number that looks like one and is none
        problem = str(error)
    except (
        AttributeError,
        LookupError,
        TypeError,
    ):  # PyYAML's, where a tag and its text disagree
        problem = "a value that is not what its tag says"
    raise InputError(where=where, problem=f"not valid YAML: {problem}")


_MOST_KEPT = 1_000_000
"""Characters of texts whose nodes are kept: these take some 60 times the space."""

_kept: dict[str, tuple[int, yaml.Node]] = {}
"""What was read last → its length and its nodes, which know their lines."""


def find_nodes(where: str) -> yaml.Node | None:
    """Return the root of a text's YAML nodes, which know their lines.

    Args:
        where: the name that `parse_yaml` read the text by.

    Returns:
        The root; None where it is not kept: too long, or read too long ago.
    """
    return _kept[where][1] if where in _kept else None


def _construct(loader: yaml.SafeLoader, text: str, where: str) -> Plain:
    """Return the value that a loader's text stands for, and keep its nodes."""
    _kept.pop(where, None)
    node = loader.get_single_node()
    if node is None:
        return None
    _check_nodes(node)
    if where.endswith((".yaml", ".yml")) and len(text) <= _MOST_KEPT:
        _kept[where] = len(text), node
        while sum(length for length, _ in _kept.values()) > _MOST_KEPT:
            del _kept[next(iter(_kept))]
    return loader.construct_document(node)


_DEEPEST = 500
"""Levels that LibYAML is trusted with: it goes as deep as a file does, until the stack
ends."""


def _can_be_parsed_fast(text: str) -> bool:
    """Return whether LibYAML reads a text as PyYAML does.

    It is several times as fast, but allows tabs and byte order marks in more places.
    """
    has_library: bool = yaml.__with_libyaml__
    return (
        has_library
        and not ("\t" in text or "\ufeff" in text)
        and _bound_levels(text) < _DEEPEST
    )


def _bound_levels(text: str) -> int:
    r"""Return a bound of the levels to which a YAML text is nested.

    >>> _bound_levels("a:\n  - {b: [1, 2]}\n  - {c: 3}")
    7
    """
    most = opened = 0
    for line in text.split("\n"):
        indentation = len(line) - len(line.lstrip(" ?:-"))
        begun = line.count("[") + line.count("{")
        most = max(most, indentation + 1 + opened + begun)
        # a bracket in quotes or in a comment closes nothing
        ended = 0 if re.search("[\"'#]", line) else line.count("]") + line.count("}")
        opened = max(opened + begun - ended, 0)
    return most


@dataclass(frozen=True)
class _Line:
    line: int


_GLUED = re.compile(r"\s*(?:- )?([\w-]+):([^\s:/].*)")
"""A key and a value without the space between them."""


def _explain_problem(problem: str, mark: Any, text: str) -> tuple[str, Any]:
    """Return the parser's complaint in a scenario's words, and the mark of its line."""
    lines = text.splitlines()
    here = lines[mark.line] if mark.line < len(lines) else ""
    if (
        "could not find expected ':'" in problem
        or "mapping values are not allowed" in problem
    ):
        for number in (mark.line, mark.line - 1):
            inside = 0 <= number < len(lines)
            if inside and (glued := _GLUED.fullmatch(lines[number])):
                key, value = glued.groups()
                problem = f"a space follows a colon: '{key}: {value.strip()}'"
                return problem, _Line(number)
        if "could not" in problem:
            problem = "a line that is neither 'key: value' nor '- item'"
            return problem, _Line(max(mark.line - 1, 0))
        if ":" in here[: mark.column]:
            problem = "a second ': ' in one line; text with a colon belongs in quotes"
            return problem, mark
        return _INDENTED, mark
    if "'\\t'" in problem or "\t" in here[: len(here) - len(here.lstrip())]:
        return "a tab, where YAML indents with spaces alone", mark
    if "expected <block end>" in problem or "did not find expected key" in problem:
        return _INDENTED, mark
    if "unexpected end of stream" in problem:
        return "a quote that is never closed", mark
    if "expected ',' or" in problem:
        closing = "}" if "'}'" in problem else "]"
        return f"a comma, or the closing {closing}, is missing before this", mark
    if "cannot start any token" in problem or "undefined alias" in problem:
        sign = here[mark.column : mark.column + 1]
        return f"text that begins with {sign} belongs in quotes", mark
    return problem, mark


_INDENTED = (
    "a line indented otherwise than its neighbours; keys of one mapping begin "
    "in one column"
)


class _RefusedValue(yaml.MarkedYAMLError):
    """A value that is YAML, and nothing that a scenario can mean."""


class _Loader(yaml.SafeLoader):
    """PyYAML's own keeps the last of two equal keys, and takes 1e5 for text."""


_FastLoader: Any = type(
    "_FastLoader", (getattr(yaml, "CSafeLoader", yaml.SafeLoader),), {}
)
"""The same by LibYAML, where PyYAML was built with it."""


_PLAIN = "tag:yaml.org,2002:"
_KNOWN = {
    f"{_PLAIN}{kind}"
    for kind in ("str", "int", "float", "bool", "null", "seq", "map", "merge")
}
_MOST_SEPARATORS = 250_000
"""The most lines and commas of a file: each ends a value, which takes some 30 µs to
read."""
_MOST_EXPLAINED = 1_000_000
"""Characters of a text whose syntax is explained, at thirty times the time."""
_MOST_VALUES = 1_000_000
"""Keys and values of a file, each alias counted as what it stands for."""
_MOST_DIGITS = 1_000
"""The most digits that a number may be written with."""


def _check_nodes(root: yaml.Node) -> None:
    """Refuse a text before values are made of it.

    Raises: `yaml.MarkedYAMLError` for a value that no scenario can mean, or aliases
    that multiply to too many.
    """
    sizes: dict[int, int] = {}

    def size_of(node: yaml.Node) -> int:
        """Return how many values a node stands for; every node is looked at once."""
        if id(node) in sizes:
            return sizes[id(node)]
        sizes[id(node)] = 1  # one that contains itself is found by PyYAML
        problem = _find_problem(node)
        if problem is None and not isinstance(node, yaml.ScalarNode):
            inner = node.value
            if isinstance(node, yaml.MappingNode):
                inner = [part for pair in inner for part in pair]
            sizes[id(node)] = 1 + sum(map(size_of, inner))
            if sizes[id(node)] > _MOST_VALUES:
                problem = f"aliases that multiply to more than {_MOST_VALUES:,} values"
        if problem:
            raise _RefusedValue(problem=problem, problem_mark=node.start_mark)
        return sizes[id(node)]

    size_of(root)


def _find_problem(node: yaml.Node) -> str | None:
    kind = node.tag.removeprefix(_PLAIN)
    if node.tag not in _KNOWN:
        if kind == "timestamp":
            return (
                f"{node.value} is a point in time, which no key takes; "
                f"'{node.value}' is text"
            )
        return f"{kind} is no kind of value here"
    if not isinstance(node, yaml.ScalarNode):
        return None
    text = node.value
    if kind == "str" and re.search("[\0\ud800-\udfff]", text):
        return "text with a null byte or half a character"
    steers = re.search("[\x01-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]", text)
    if kind == "str" and steers:
        return f"text with the control character U+{ord(steers[0]):04X}"
    if kind not in ("int", "float"):
        return None
    if len(text) > _MOST_DIGITS:
        most = f"where {_MOST_DIGITS:,} are allowed"
        return f"a number of {len(text):,} characters, {most}"
    if ":" in text:
        return f"{text} is a number to the base 60 in YAML 1.1; '{text}' is text"
    if kind == "int" and re.match(r"[-+]?0[0-7_]+$", text):
        return (
            f"{text} is an octal number in YAML 1.1; write it without the 0, or "
            f"'{text}' as text"
        )
    return None


def _construct_mapping(
    loader: yaml.SafeLoader, node: yaml.MappingNode
) -> dict[Any, Any]:
    seen: set[Any] = set()
    for key_node, _ in node.value:
        if key_node.tag == f"{_PLAIN}merge":
            continue  # what it brings stands beneath the keys written here
        word = key_node.value
        if key_node.tag == f"{_PLAIN}bool" and word.lower() not in ("true", "false"):
            key_node.tag = f"{_PLAIN}str"  # `on: 2 h` means a key of this name
        key = loader.construct_object(key_node, deep=True)
        problem = None
        if not isinstance(key, (str, int, float, bool)):
            problem = "a key must be text"
        elif key in seen:
            problem = f"the key {key!r} stands twice"
        if problem:
            raise _RefusedValue(problem=problem, problem_mark=key_node.start_mark)
        seen.add(key)
    loader.flatten_mapping(node)
    return loader.construct_mapping(node, deep=True)


for _loader in (_Loader, _FastLoader):
    _loader.add_constructor(
        yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _construct_mapping
    )
    _loader.add_implicit_resolver(
        "tag:yaml.org,2002:float",
        re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"),
        list("-+.0123456789"),
    )
