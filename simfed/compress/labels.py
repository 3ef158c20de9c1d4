"""Codecs as short text: `top-k+qsgd(4)`, `svd(energy=0.95)`, `ef21(random-k)`.

Pure text, no parts.

A link is a name and its options: the constructor's first option stands bare, the others
as `name=value`, left out where they have their default. `+` joins the links of a chain.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from simfed.ground.errors import InputError
from simfed.ground.plain import Plain

Link = tuple[str, dict[str | None, Plain]]
"""Name and options; the key None is the constructor's first option."""

_LINK = re.compile(r"([^()+,=\s]+)(?:\((.*)\))?", re.DOTALL)
_WORDS = {"true": True, "false": False, "null": None}


def format_link(name: str, options: Mapping[str | None, Plain]) -> str:
    """Return one link as text.

    >>> format_link("qsgd", {None: 16, "bucket": 64})
    'qsgd(16,bucket=64)'
    """
    shown = [
        _format_value(v) if key is None else f"{key}={_format_value(v)}"
        for key, v in options.items()
    ]
    return f"{name}({','.join(shown)})" if shown else name


def read_label(text: str) -> list[Link]:
    """Return the links of a label.

    >>> read_label("top-k+qsgd(4,bucket=64)")
    [('top-k', {}), ('qsgd', {None: 4, 'bucket': 64})]

    Raises: `InputError` for text that is none.
    """
    return [_read_link(part.strip(), text) for part in split(text, "+")]


def find_names(text: str) -> list[str]:
    """Return the words of a label that may be names of parts: names and option values.

    >>> find_names("ef21(random-k+fp16)")
    ['ef21', 'random-k', 'fp16']
    """
    return re.findall(r"[^()+,=@\s]+", text)


def _read_link(part: str, text: str) -> Link:
    match = _LINK.fullmatch(part)
    if match is None:
        raise InputError("a codec such as top-k, qsgd(16) or top-k+qsgd(4)", got=text)
    name, inside = match.groups()
    options: dict[str | None, Plain] = {}
    for place, item in enumerate(split(inside, ",") if inside else []):
        key, equals, value = _split_option(item.strip())
        if place and not equals:
            raise InputError(
                "option=value after the first option", where=part, got=item
            )
        options[key if equals else None] = _read_value(value)
    return name, options


def _split_option(item: str) -> tuple[str, str, str]:
    """Return the parts of `key=value`, unless its `=` stands inside parentheses."""
    key, equals, value = item.partition("=")
    return (
        (key.strip(), equals, value.strip())
        if equals and "(" not in key
        else ("", "", item)
    )


def split(text: str, separator: str) -> list[str]:
    """Split `text` at the separators that stand outside parentheses.

    >>> split("dense,qsgd(4,bucket=64)", ",")
    ['dense', 'qsgd(4,bucket=64)']
    """
    parts, depth = [""], 0
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        if letter == separator and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def _read_value(text: str) -> Plain:
    if not text:
        text = "null"
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return _WORDS.get(text, text)


def _format_value(value: Plain) -> str:
    words = {word: text for text, word in _WORDS.items()}
    return words[value] if value is None or isinstance(value, bool) else str(value)
