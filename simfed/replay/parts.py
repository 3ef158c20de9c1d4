"""Digests of parts that do not come with simfed.

Two parts that may differ never share one.

Counted are the part's name in its module, the module's source and that of every module
of the user's that it imports, arguments bound to it (`functools.partial`, defaults,
closures) and, of an object, its attributes. What cannot be described so (typed at a
prompt, a tensor in a closure) is equal to nothing, not even to itself in another
process: learning is then computed anew. Not seen: data files that a part reads (a
package's count in `simfed.replay.key`), and values that are put into a module from
outside while the program runs.
"""

from __future__ import annotations

import functools
import inspect
import sys
import sysconfig
import uuid
from collections.abc import Iterator, Mapping
from importlib import metadata
from itertools import chain
from pathlib import Path
from types import FunctionType, ModuleType

from simfed.ground.plain import Plain
from simfed.record.digest import digest_file, digest_value

_THIS_PROCESS = uuid.uuid4().hex
_SIMFED = Path(__file__).resolve().parents[1]
_LIBRARY = Path(sysconfig.get_path("stdlib")).resolve()


def digest_part(part: object) -> str:
    """Return the digest of a class, function, partial or object.

    >>> import functools
    >>> one, other = functools.partial(print, end=""), functools.partial(print, end="!")
    >>> digest_part(one) == digest_part(other)
    False
    """
    return digest_value(_describe_value(part, ()))


def _describe_value(value: Plain, above: tuple[int, ...]) -> Plain:
    """Return a description in plain values, equal only for parts that learn alike.

    Args:
        value: A part, or what is bound to one.
        above: Ids of the objects that it is part of, so that circles end.
    """
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return [type(value).__name__, repr(value)]
    if id(value) in above:
        return "one of those above"
    above = (*above, id(value))

    def describe(*parts: Plain) -> list[Plain]:
        return [_describe_value(part, above) for part in parts]

    if isinstance(value, (tuple, list)):
        return [type(value).__name__, describe(*value)]
    if isinstance(value, Mapping):
        return ["mapping", [describe(*item) for item in value.items()]]
    if isinstance(value, functools.partial):
        return ["partial", describe(value.func, value.args, value.keywords)]
    if inspect.ismethod(value):
        return ["method", *describe(value.__func__, value.__self__)]
    if inspect.isbuiltin(value):
        return ["builtin", value.__module__, value.__qualname__]
    if inspect.isfunction(value):
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        bound = (cells, value.__defaults__, value.__kwdefaults__)
        return ["function", *_identify_source(value), *describe(bound)]
    if inspect.isclass(value):
        return ["class", *chain(*map(_identify_source, value.__mro__[:-1]))]
    if not _is_users(sys.modules.get(type(value).__module__)) or not hasattr(
        value, "__dict__"
    ):
        # a tensor, say: its attributes do not tell what it holds
        return _format_unique(value)
    return ["object", *describe(type(value), vars(value))]


def _identify_source(named: FunctionType | type) -> list[str]:
    """Return a function's or class's name, with the sources behind it.

    Or with their version.
    """
    name = f"{named.__module__}:{named.__qualname__}"
    module = inspect.getmodule(named)
    if module is None or (_find_file(module) is None and module.__name__ == "__main__"):
        return [_format_unique(named)]
    if not _is_users(module):
        return [name, _find_version(module.__name__.partition(".")[0])]
    users = (module, *_find_imported(module, {module.__name__}))
    files = sorted(file for file in map(_find_file, users) if file is not None)
    return [name, *map(digest_file, files)]


def _find_imported(module: ModuleType, seen: set[str]) -> Iterator[ModuleType]:
    """Yield the user's modules that `module` uses something of, and those they use.

    Args:
        module: Whose names are looked through.
        seen: Names of modules that were met; the new ones are added.
    """
    for value in list(vars(module).values()):
        used = value if isinstance(value, ModuleType) else inspect.getmodule(value)
        if used is not None and used.__name__ not in seen and _is_users(used):
            seen.add(used.__name__)
            yield used
            yield from _find_imported(used, seen)


def _is_users(module: ModuleType | None) -> bool:
    """Return whether a module's file may be edited any time.

    It is neither Python's nor simfed's nor installed.
    """
    file = _find_file(module)
    if file is None or {"site-packages", "dist-packages"} & set(file.parts):
        return False
    return not (file.is_relative_to(_SIMFED) or file.is_relative_to(_LIBRARY))


def _find_file(module: ModuleType | None) -> Path | None:
    """Return the file of a module, links followed; None where it has none."""
    file = getattr(module, "__file__", None)
    return Path(file).resolve() if file is not None and Path(file).is_file() else None


@functools.cache
def _find_version(package: str) -> str:
    """Return the version of the distribution that a package came with.

    Simfed's own and Python's code count elsewhere.
    """
    names = metadata.packages_distributions().get(package, [])
    return " ".join(f"{name} {metadata.version(name)}" for name in sorted(set(names)))


def _format_unique(value: object) -> str:
    """Return a description that equals nothing in any other process."""
    return f"{type(value).__qualname__} {id(value)} in {_THIS_PROCESS}"
