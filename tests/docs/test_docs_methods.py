"""The page of methods has all of them, with their options and the losses that rewards
follow.
"""

import inspect
from pathlib import Path

import pytest

from simfed.ground.registry import registry

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "methods.md").read_text()
ROWS = [line.split("|")[1:-1] for line in PAGE.splitlines() if line.startswith("| `")]
OPTIONS_IN_WORDS = {"kt-pfl": "fedmd"}
"""A method whose row says `as …` for the options that it shares with another."""


def row_of(name):
    return next(row for row in ROWS if len(row) == 7 and row[0].strip() == f"`{name}`")


@pytest.mark.parametrize("name", registry("method").names())
def test_every_method_has_a_row_with_its_options_and_its_loss(name):
    cls = registry("method").get(name)
    said = row_of(name)[-1] + row_of(OPTIONS_IN_WORDS.get(name, name))[-1]
    for option in inspect.signature(cls).parameters:
        assert f"`{option}`" in said
    if cls.shared_loss:
        losses = next(row for row in ROWS if len(row) == 3 and f"`{name}`" in row[0])
        assert f"`{cls.shared_loss}`" in losses[1]
