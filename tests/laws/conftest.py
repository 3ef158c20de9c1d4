"""`laws_parts.py` is a plug-in that drawn worlds name: nobody but simfed runs it."""

import os

import pytest

from simfed.ground import IMPORTS

collect_ignore = ["laws_parts.py"]

_kept: dict[str, str] = {}


@pytest.fixture(autouse=True)
def _keep_plugins_to_laws():
    """Other tests of this process, and those that they start, know nothing of the
    plug-in.
    """
    before = {name: os.environ.get(name) for name in (IMPORTS,)}
    os.environ.update(_kept)
    yield
    _kept.update({name: os.environ[name] for name in before if name in os.environ})
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
