"""Laws over worlds nobody thought of: a fixed handful of each (CI draws others)."""

import random
from contextlib import suppress
from pathlib import Path

import laws
import laws_worlds
import pytest
import worlds
import yaml

from simfed.scenario.load import import_plugins

SEEDS = dict.fromkeys(
    ("deployed", "spread", "killed", "resolved", "filled", "replaced"), 2
)
"""Worlds of a law in the suite that always runs; of the others three."""
KEPT = yaml.safe_load(Path(__file__).with_name("found.yaml").read_text())


def test_every_key_of_the_schema_can_be_drawn():
    plugin = {"plugins": ["parts.py"]}
    import_plugins(plugin, source="", folder=laws.files(), allow=True)
    assert laws_worlds.list_undrawn() == []
    assert laws_worlds.list_stale() == []


@pytest.mark.parametrize(
    ("law", "seed"),
    [(law, seed) for law in laws.LAWS for seed in range(SEEDS.get(law, 3))],
)
def test_a_handful_of_worlds_obeys(law, seed):
    with suppress(laws.Fails, laws.Unfit):
        laws.obey(law, draw_one(law, random.Random(f"world {seed} of {law}")))


def draw_one(law, rng):
    """Return the first drawn world whose parts go together."""
    while True:
        with suppress(laws_worlds.NoWorld):
            return laws.draw(law, rng)


@pytest.mark.parametrize("found", KEPT["found"], ids=lambda found: found["what"])
def test_what_was_found(found):
    law = found["law"]
    keys = {path: value for path, value in found.items() if path not in ("what", "law")}
    laws.obey(law, laws.read(law, worlds.change(KEPT["small"], keys)))
