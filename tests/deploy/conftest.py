"""Where a deployment's run goes."""

import pytest


@pytest.fixture
def out(tmp_path):
    return tmp_path / "real"
