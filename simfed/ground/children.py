"""Python processes that import nothing from the current folder.

That folder may be a stranger's. Python looks there first where it is started with `-c`
or `-m`, as multiprocessing does for its workers and its tracker of resources: a file
`multiprocessing.py` beside a study would be run.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_LEAVE_OUT_HERE = "import sys; sys.path[:] = filter(None, sys.path); "


def make_python_command(code: str, *arguments: str) -> list[str]:
    """Return the command of a Python process that runs `code`, with `sys` imported."""
    return [sys.executable, "-c", _LEAVE_OUT_HERE + code, *arguments]


@contextmanager
def starting_elsewhere() -> Iterator[None]:
    """Return a block in which multiprocessing may start processes."""
    if sys.version_info < (3, 11):  # has no such variable
        here = os.getcwd()
        os.chdir(sys.prefix)
        try:
            yield
        finally:
            os.chdir(here)
        return
    before = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        del os.environ["PYTHONSAFEPATH"]
        if before is not None:
            os.environ["PYTHONSAFEPATH"] = before
