"""Places of a file: the values that annotations allow there, and all sections.

Errors, overrides and hints go from the top of a file to a key by steps. What may stand
under a step is read from the annotations of the sections, so there is no second
description of a file.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, get_args, get_origin

from pydantic import BaseModel

Step: TypeAlias = int | str


class Place(NamedTuple):
    """The values that an annotation allows."""

    section: type[BaseModel] | None = None
    """The one section that may stand here; None: there is none, or there are
    several."""
    inner: object = None
    """The annotation of what is in a list or a mapping."""
    is_list: bool = False
    marks: tuple[object, ...] = ()
    """The marks in the annotation, whichever of the values they are about."""


def read_place(annotation: object) -> Place:
    """Return what an annotation allows.

    >>> read_place(tuple[int, ...] | None)
    Place(section=None, inner=<class 'int'>, is_list=True, marks=())
    """
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin in (tuple, list, dict):
        return Place(inner=inner[origin is dict], is_list=origin is not dict)
    # Python 3.10 takes `tuple[int]` for a type, too
    if (
        origin is None
        and isinstance(annotation, type)
        and issubclass(annotation, BaseModel)
    ):
        return Place(annotation)
    below = [read_place(one) for one in inner]
    sections = [place.section for place in below if place.section is not None]
    lists = next((place for place in below if place.inner is not None), Place())
    return Place(
        sections[0] if len(sections) == 1 else None,
        lists.inner,
        lists.is_list,
        (
            *getattr(annotation, "__metadata__", ()),
            *(m for place in below for m in place.marks),
        ),
    )


def enter(annotation: object, step: Step) -> object:
    """Return the annotation of what stands under a key or an index.

    Args:
        annotation: of the mapping or list.
        step: a key, an index, `*` for any, or a tag of a member of a union such as
            `trace[]`, as pydantic names it.

    Returns:
        None: nothing is known.
    """
    if isinstance(step, str) and not is_key(step):
        return _find_tagged(annotation, step) or annotation
    place = read_place(annotation)
    if place.section is None:
        return place.inner
    field = place.section.model_fields.get(str(step))
    return None if field is None else field.annotation


def is_key(step: str) -> bool:
    """Return whether a step of pydantic's is a key of the file.

    Its own validators are steps, too, and so are tags.

    >>> is_key("up"), is_key("trace[]"), is_key("function-before[check]")
    (True, False, False)
    """
    return not step.startswith("function-") and "[" not in step


def _find_tagged(annotation: object, tag: str) -> object:
    """Return the member of a union that has this tag, or None."""
    if any(
        getattr(mark, "tag", None) == tag
        for mark in getattr(annotation, "__metadata__", ())
    ):
        return annotation
    members = (_find_tagged(inner, tag) for inner in get_args(annotation))
    return next((inner for inner in members if inner is not None), None)


def find_place(model: type[BaseModel], steps: Sequence[Step]) -> Place:
    """Return what may stand at the end of a way from the top of a file.

    Args:
        model: the section of the whole file.
        steps: keys, indices and pydantic's own.
    """
    here: object = model
    for step in steps:
        here = enter(here, step)
    return read_place(here)


def list_keys(section: type[BaseModel]) -> list[str]:
    """Return the keys of a section in the order in which files write them."""
    return [*(getattr(section, "written_in", ()) or section.model_fields)]


@functools.cache
def list_paths(model: type[BaseModel]) -> tuple[tuple[str, ...], ...]:
    """Return all key paths of a mapping, the shortest first.

    A section inside itself is entered once.

    Args:
        model: the section; `*` stands for whatever its lists and mappings hold.
    """
    paths: list[tuple[str, ...]] = []

    def walk(
        annotation: object, path: tuple[str, ...], above: tuple[object, ...]
    ) -> None:
        place = read_place(annotation)
        if place.section is not None and place.section not in above:
            for name in list_keys(place.section):
                paths.append((*path, name))
                walk(enter(place.section, name), (*path, name), (*above, place.section))
        elif place.section is None and place.inner is not None:
            walk(place.inner, (*path, "*"), above)

    walk(model, (), ())
    return tuple(sorted(paths, key=len))


def list_sections(
    part: object, where: tuple[Step, ...] = ()
) -> Iterator[tuple[tuple[Step, ...], BaseModel]]:
    """Yield every section in a part of a file, itself included, with its way there.

    Args:
        part: a section, or a mapping or tuple of them; anything else has none.
        where: the steps to it.
    """
    if isinstance(part, BaseModel):
        yield where, part
        inner: Any = ((name, getattr(part, name)) for name in type(part).model_fields)
    elif isinstance(part, Mapping):
        inner = part.items()
    else:
        inner = enumerate(part) if isinstance(part, tuple) else ()
    for step, value in inner:
        yield from list_sections(value, (*where, step))


def format_way(way: Sequence[Step]) -> str:
    """Return a way as files name it.

    >>> format_way(["clients", 0, "link", "trace[]", "file"])
    'clients[0].link.file'
    >>> format_way(["clients", "*", "k"])
    'clients[*].k'
    """
    text = ""
    for step in way:
        if isinstance(step, int) or step == "*":
            text += f"[{step}]"
        elif is_key(step):
            text += f".{step}" if text else step
    return text
