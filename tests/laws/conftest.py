"""`laws_parts.py` is a plug-in that drawn worlds name: nobody but simfed runs it."""

import os
from unittest import mock

import pytest

from simfed.ground import IMPORTS

collect_ignore = ["laws_parts.py"]

_kept: dict[str, str] = {}


@pytest.fixture(autouse=True)
def _keep_plugins_to_laws():
    """Other tests of this process, and those that they start, know nothing of the
    plug-in.
    """
    with mock.patch.dict(os.environ, _kept):
        yield
        if IMPORTS in os.environ:
            _kept[IMPORTS] = os.environ[IMPORTS]
