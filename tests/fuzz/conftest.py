"""A good file of each kind, for all tests of this folder."""

import pytest
import readers


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    return readers.corpus(tmp_path_factory.mktemp("good") / "good")
