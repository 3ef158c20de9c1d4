"""What holds for all tests: which of them are collected, and the examples of property
tests.

Property tests draw the same examples in every run, so that a suite that passed passes
again; `pytest --hypothesis-profile=explore` draws new ones. Without Flower, what needs
it is not collected: `.ci/flower` runs it, with Flower installed.
"""

import os
import sys
from contextlib import contextmanager
from importlib.util import find_spec

import pytest
from hypothesis import settings

from simfed.ground.registry import IMPORTS, REGISTRIES, registry

settings.register_profile("repeat", derandomize=True, deadline=None, max_examples=30)
settings.register_profile("explore", deadline=None)
settings.load_profile("repeat")

# each of some hundred processes would compile all of simfed anew
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# processes share the cores, threads would only wait
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

HAS_FLOWER = find_spec("flwr") is not None
NEED_FLOWER = (
    *(
        "charging",
        "crew",
        "exchanges",
        "grid",
        "hooks",
        "legacy",
        "loading",
        "messages",
    ),
    *("node", "play", "turns", "work"),
)

if not HAS_FLOWER:
    collect_ignore = [f"simfed/flower/{name}.py" for name in NEED_FLOWER]
    collect_ignore_glob = ["tests/flower/*flower_app*.py"]


@pytest.fixture(autouse=True, scope="session")
def _leave_files_to_the_system():
    """No test takes the machine's power away: files need not reach the disk before it
    goes on.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@contextmanager
def _forget_parts():
    """Forget what is registered in the body, and the files that did it."""
    before, files = {k: _registered(k) for k in REGISTRIES}, os.environ.get(IMPORTS)
    yield
    for kind, names in before.items():
        for name in _registered(kind) - names:
            registry(kind).remove(name)
    if files is None:
        os.environ.pop(IMPORTS, None)
    else:
        os.environ[IMPORTS] = files


@pytest.fixture
def add_part():
    """`add_part(kind, name, part)` registers a part until the test ends, in place of an
    earlier one of that name; all that the test registers otherwise is forgotten with
    it.
    """
    with _forget_parts():
        yield lambda kind, name, part: registry(kind).add(name, part, replace=True)


@pytest.fixture(scope="module")
def own_parts():
    """Keep what a module's tests register, as by a scenario's plug-ins, to them."""
    with _forget_parts():
        yield


@pytest.fixture
def one_thread():
    """PyTorch computes with one thread until the test ends."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _registered(kind: str) -> set[str]:
    names = registry(kind)
    return {name for name in names.names() if names.origin(name) == "registered"}


def pytest_report_header() -> str:
    """What is left out."""
    return "" if HAS_FLOWER else "no flwr: tests of Flower apps are left to .ci/flower"
