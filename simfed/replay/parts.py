"""A digest of a part that does not come with simfed: two parts that may differ never share one.

Counted are the part's name in its module, the module's source and that of every module of the
user's that it imports, arguments bound to it (`functools.partial`, defaults, closures) and, of an
object, its attributes. What cannot be described so (typed at a prompt, a tensor in a closure) is
equal to nothing, not even to itself in another process: learning is then computed anew. Not seen:
data files that a part reads (those of plug-ins count in `simfed.replay.key`), and values that are
put into a module from outside while the program runs.
"""

from __future__ import annotations

import functools
import inspect
import sys
import sysconfig
import uuid
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from types import FunctionType, ModuleType

from simfed.ground.plain import Plain
from simfed.record.digest import digest_of, file_digest

_THIS_PROCESS = uuid.uuid4().hex
_SIMFED = Path(__file__).resolve().parents[1]
_LIBRARY = Path(sysconfig.get_path("stdlib")).resolve()


def part_digest(part: object) -> str:
    """The digest of a class, function, partial or object.

    >>> import functools
    >>> one, other = functools.partial(print, end=""), functools.partial(print, end="!")
    >>> part_digest(one) == part_digest(other)
    False
    """
    return digest_of(_describe(part, ()))


def _describe(value: Plain, above: tuple[int, ...]) -> Plain:
    """A description in plain values; `above` are the objects it is part of."""
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return [type(value).__name__, repr(value)]
    if id(value) in above:
        return "one of those above"
    above = (*above, id(value))
    if isinstance(value, (tuple, list)):
        return [type(value).__name__, [_describe(inner, above) for inner in value]]
    if isinstance(value, Mapping):
        return ["mapping", [[_describe(k, above), _describe(v, above)] for k, v in value.items()]]
    if isinstance(value, functools.partial):
        return ["partial", [_describe(x, above) for x in (value.func, value.args, value.keywords)]]
    if inspect.ismethod(value):
        return ["method", _describe(value.__func__, above), _describe(value.__self__, above)]
    if inspect.isbuiltin(value):
        return ["builtin", value.__module__, value.__qualname__]
    if inspect.isfunction(value):
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        bound = (cells, value.__defaults__, value.__kwdefaults__)
        return ["function", *_source(value), _describe(bound, above)]
    if inspect.isclass(value):
        return ["class", *(part for base in value.__mro__[:-1] for part in _source(base))]
    if not _is_users(sys.modules.get(type(value).__module__)) or not hasattr(value, "__dict__"):
        return _unlike_any(value)  # a tensor, say: its attributes do not tell what it holds
    return ["object", _describe(type(value), above), _describe(vars(value), above)]


def _source(named: FunctionType | type) -> list[str]:
    """Name of a function or a class, with the sources behind it or their version."""
    name = f"{named.__module__}:{named.__qualname__}"
    module = inspect.getmodule(named)
    if module is None or (_file_of(module) is None and module.__name__ == "__main__"):
        return [_unlike_any(named)]
    if not _is_users(module):
        return [name, _version(module.__name__.partition(".")[0])]
    users = (module, *_imported(module, {module.__name__}))
    files = sorted(file for file in map(_file_of, users) if file is not None)
    return [name, *map(file_digest, files)]


def _imported(module: ModuleType, seen: set[str]) -> Iterator[ModuleType]:
    """The user's modules that `module` uses something of, and those that they use."""
    for value in list(vars(module).values()):
        used = value if isinstance(value, ModuleType) else inspect.getmodule(value)
        if used is not None and used.__name__ not in seen and _is_users(used):
            seen.add(used.__name__)
            yield used
            yield from _imported(used, seen)


def _is_users(module: ModuleType | None) -> bool:
    """Neither Python's nor simfed's nor installed: a file that may be edited any time."""
    file = _file_of(module)
    if file is None or {"site-packages", "dist-packages"} & set(file.parts):
        return False
    return not (file.is_relative_to(_SIMFED) or file.is_relative_to(_LIBRARY))


def _file_of(module: ModuleType | None) -> Path | None:
    spec = getattr(module, "__spec__", None)  # a copy of a plug-in says another `__file__`
    file = spec.origin if spec is not None and spec.has_location else None
    file = file or getattr(module, "__file__", None)
    return Path(file).resolve() if file is not None and Path(file).is_file() else None


@functools.cache
def _version(package: str) -> str:
    """Of the distribution that a package came with; simfed's own and Python's code count
    elsewhere."""
    names = metadata.packages_distributions().get(package, [])
    return " ".join(f"{name} {metadata.version(name)}" for name in sorted(set(names)))


def _unlike_any(value: object) -> str:
    return f"{type(value).__qualname__} {id(value)} in {_THIS_PROCESS}"
