"""For tests of learning."""

import engine_worlds
import pytest


@pytest.fixture(autouse=True)
def shared_however_small(monkeypatch):
    """Worlds here are tiny.

    Their work goes to all processes, as that of large ones does.
    """
    monkeypatch.setattr("simfed.learn.crew._WORTH_SHARING", 0.0)
    yield
    while engine_worlds.OPEN:
        engine_worlds.OPEN.pop().close()
