"""What the API reference reads: docstrings as Markdown, and names that load when they
are used.
"""

from __future__ import annotations

import ast
import re
from typing import Any

import griffe


class Docstrings(griffe.Extension):
    """Applied to every object that the API reference reads."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        modules = [pkg]
        for module in modules:
            modules += [m for m in module.modules.values() if not m.is_alias]
            for name, home in _homes(module):
                module.set_member(
                    name, griffe.Alias(name, f"{home}.{name}", parent=module)
                )


def _homes(module: griffe.Module) -> list[tuple[str, str]]:
    """Names that a module gets from elsewhere when they are first asked for, with their
    homes.
    """
    table = module.members.get("_HOMES")
    if not isinstance(table, griffe.Attribute) or table.value is None:
        return []
    homes = ast.literal_eval(str(table.value))
    if any(isinstance(names, tuple) for names in homes.values()):
        return []  # by module; these have their imports written for type checkers
    inside = f"{module.path}."
    return [
        (name, home if home.startswith("simfed.") else inside + home)
        for name, home in homes.items()
    ]


_ROW = r"(?!>>>)\S[^\n]*? {2,}\S[^\n]*\n"
_TABLE = re.compile(rf"(?<=\n\n)(?:{_ROW}(?:\S[^\n]*\n)??){{3,}}(?=\n)")
"""Words on the left, what they mean on the right: a paragraph of three such lines or
more."""


def _listed(table: re.Match[str]) -> str:
    """A list of words and meanings."""
    lines: list[str] = []
    for line in table[0].splitlines():
        word, gap, meaning = line.partition("  ")
        if gap:
            lines.append(f"- **{word}**: {meaning.strip()}")
        else:
            lines[-1] += f" {line}"
    return "\n".join(lines) + "\n"


def as_markdown(text: str) -> str:
    """A docstring with its doctests fenced, which Markdown would read as quotations.

    >>> print(as_markdown("Adds.\\n\\n>>> 1 + 1\\n2"))
    Adds.
    <BLANKLINE>
    ```pycon
    >>> 1 + 1
    2
    ```
    """
    lines: list[str] = []
    inside = False
    for line in _TABLE.sub(_listed, text).splitlines():
        starts = line.lstrip().startswith(">>>")
        if starts and not inside:
            if lines and lines[-1]:
                lines.append("")
            lines.append("```pycon")
            inside = True
        elif inside and not line.strip():
            lines.append("```")
            inside = False
        lines.append(line.strip() if inside and starts else line)
    return "\n".join([*lines, "```"] if inside else lines)
