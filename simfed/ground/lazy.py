"""Names of a package that are imported when they are first asked for."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def load_names(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package (PEP 562) whose names lie in its modules.

    So importing the package imports none of them.

    Args:
        package: its `__name__`.
        homes: name → the module below the package in which it is.

    >>> load_names("simfed.record", {"Run": "read"})("Run").__name__
    'Run'
    """

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{homes[name]}"), name)

    return load
