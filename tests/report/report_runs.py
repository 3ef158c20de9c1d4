"""Made-up runs for the report's tests.

`report_run(clients, rounds, …)` opens one, made once.

A plugin, which the tests of the browser have, too.
PYTEST_DONT_REWRITE: it has no assertions, and may have been imported before it is a
plugin.
"""

import functools

import pytest
from synthetic_run import run_maker

from simfed.record import open_run


@pytest.fixture(scope="session")
def report_folder(tmp_path_factory):
    """What writes a made-up run (once per arguments) and gives its folder."""
    return run_maker(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="session")
def report_run(report_folder):
    """The same, opened."""
    return functools.cache(
        lambda *args, **kwargs: open_run(report_folder(*args, **kwargs))
    )
