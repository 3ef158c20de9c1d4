"""An app in worlds that are drawn whole: `tests/laws`, where Flower is needed."""

import random
from contextlib import suppress

import laws
import pytest

SEEDS = 12


@pytest.mark.parametrize(
    ("law", "seed"), [(law, seed) for law in laws.APP_LAWS for seed in range(SEEDS)]
)
def test_an_app_in_any_world_obeys(law, seed):
    with suppress(laws.Fails, laws.Unfit):
        laws.obey(law, laws.draw(law, random.Random(f"world {seed} of {law}")))
