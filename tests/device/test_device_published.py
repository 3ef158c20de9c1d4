"""Profiles made of what others published: where every number is from, and what a run
says of it.
"""

import itertools
import math
from pathlib import Path

import published_devices
import pytest
import yaml

from simfed.device import ModelWork, load_profile, profile_names

ROOT = Path(__file__).resolve().parents[2]

NUMBERS = yaml.safe_load((ROOT / "analysis" / "published_devices.yaml").read_text())
LENET5 = ModelWork(61_706, 832_880.0, 2_400_000.0)


def rows_of(node):
    """Every published number: a mapping that names its source."""
    if isinstance(node, dict):
        if "source" in node:
            yield node
        for below in node.values():
            yield from rows_of(below)
    elif isinstance(node, list):
        for below in node:
            yield from rows_of(below)


def test_profiles_and_tables_are_as_the_numbers_make_them():
    for path, text in published_devices.files().items():
        assert path.read_text() == text, path


def test_every_number_names_a_source_with_its_method_and_its_place():
    rows = list(rows_of(NUMBERS["devices"]))
    assert len(rows) > 30
    assert {row["source"] for row in rows} <= set(NUMBERS["sources"])
    for source in NUMBERS["sources"].values():
        assert set(source) == {"where", "commit", "path", "method"}
        assert len(source["commit"]) == 40
    for device in NUMBERS["devices"].values():
        assert all(row.get("source") for row in device["second"])


@pytest.mark.parametrize("name", NUMBERS["devices"])
def test_a_shipped_profile_says_its_sources_and_its_uncertainty(name):
    profile = load_profile(name)
    assert profile.kind == "published"
    assert "factor of" in profile.provenance["trust"]
    assert all(all(source.values()) for source in profile.provenance["sources"])
    for curve in profile.curves.values():
        factor = math.exp(1.645 * curve.spread)
        assert 1.99 < factor < 4
        assert f"factor of {factor:.1f}" in profile.provenance["trust"]
    profile.models["lenet5"] = profile.models["other"] = LENET5
    for model, batch in itertools.product(("lenet5", "other"), (8, 32)):
        assert profile.seconds("training", model=model, batch=batch) > 0
    # a run says it once
    (trust,) = (w for w in profile.warnings if profile.provenance["trust"] in w)
    assert trust.startswith(f"device profile {name}: nobody measured it with simfed")


def test_a_measured_profile_says_nothing_of_the_kind():
    published = [
        name for name in profile_names() if load_profile(name).kind == "published"
    ]
    assert sorted(published) == sorted(NUMBERS["devices"])
    profile = load_profile("x86-2core-vm")
    profile.seconds("training", model="lenet5", batch=32)
    assert profile.warnings == []
