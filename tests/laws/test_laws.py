"""Laws over worlds that nobody thought of: a fixed handful always, fresh ones in CI."""

import random
import time
from contextlib import suppress
from unittest import SkipTest

import laws
import laws_worlds as worlds
import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from simfed.scenario.load import import_plugins

SEEDS = {"resumed": 4, "answered": 3, "deployed": 2, "spread": 2}
"""Worlds of a law in the suite that always runs, where not `SEEDS_ELSE`."""
SEEDS_ELSE = 3
DRAWN_S, SHRUNK_S = 30, 60
"""Seconds that fresh worlds of a law are drawn for, and one that breaks it is shrunk for."""


def test_every_key_of_the_schema_can_be_drawn():
    plugin = {"plugins": ["parts.py"]}
    import_plugins(plugin, source="", folder=laws.files(), allow=True, allow_outside=True)
    assert worlds.list_undrawn() == []
    assert worlds.list_stale() == []


@pytest.mark.parametrize("law", laws.LAWS)
@pytest.mark.parametrize("seed", range(max(SEEDS.values())))
def test_a_handful_of_worlds_obeys(law, seed):
    if seed >= SEEDS.get(law, SEEDS_ELSE):
        pytest.skip("enough worlds of this law")
    with suppress(laws.Fails, laws.Unfit):
        laws.obey(law, laws.draw(law, random.Random(f"world {seed} of {law}")))


DEVICE = {"training": "50 ms", "compression": "50 ms"}
SMALL = {
    "name": "law",
    "seed": 1,
    "rounds": 2,
    "method": "fedavg",
    "dataset": {"leaf": "leaf"},
    "prototypes": {"a": {"model": "logistic-regression"}},
    "clients": [{"count": 2, "prototype": "a", "device": DEVICE}],
    "policy": {"kind": "uniform", "strategy": "top-k"},
}


def group(**changes):
    return {"clients": [{**SMALL["clients"][0], **changes}]}


FOUND = {
    "a warning names the profile of a file as the run's copy does": (
        "verified",
        {"downlink": {"compression": {"k": 5}}, **group(device={"profile": "board.yaml"})},
    ),
    "the process that ran a plug-in knows its files by the run's copies": (
        "verified",
        {"plugins": [{"file": "parts.py", "copy": True, "with": ["opened.txt"]}]},
    ),
}
"""What drawn worlds broke, in the smallest world that does."""


@pytest.mark.parametrize("what", FOUND)
def test_what_was_found(what):
    law, changes = FOUND[what]
    laws.obey(law, laws.read(law, {**SMALL, **changes}))


@pytest.mark.fresh
@pytest.mark.parametrize("law", laws.LAWS)
def test_fresh_worlds_obey(law):
    """`python -m pytest -m fresh tests/laws` draws others each time."""
    began, broken = time.monotonic(), {}

    @settings(
        max_examples=100_000,
        database=None,
        deadline=None,
        derandomize=False,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.randoms(use_true_random=False))
    def obeyed(rng):
        spent_s = time.monotonic() - began
        if not broken and spent_s > DRAWN_S:
            raise SkipTest
        try:
            world = laws.draw(law, rng)
        except worlds.NoWorld:
            reject()
        key = repr(world.plain)
        if broken and spent_s > DRAWN_S + SHRUNK_S and key not in broken:
            return  # as small as there is time for
        try:
            laws.obey(law, world)
        except (laws.Fails, laws.Unfit):
            reject()
        except AssertionError:
            broken[key] = True
            raise

    with suppress(SkipTest):
        obeyed()
