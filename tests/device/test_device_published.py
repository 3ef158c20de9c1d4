"""Profiles made of what others published: where every number is from, and what a run
says of it.
"""

import math
import sys
from pathlib import Path

import pytest
import yaml

from simfed import InputError
from simfed.device import ModelWork, load_profile, profile_names

ROOT = Path(__file__).resolve().parents[2]

NUMBERS = yaml.safe_load((ROOT / "analysis" / "published_devices.yaml").read_text())
LENET5 = ModelWork(61_706, 832_880.0, 2_400_000.0)
SOURCE = {"number": "12 s", "source": "a page", "method": "a watch"}


@pytest.fixture
def made(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "analysis"))
    import published_devices

    yield published_devices
    del sys.modules["published_devices"]


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


def test_profiles_and_tables_are_as_the_numbers_make_them(made):
    assert [
        str(path) for path, text in made.files().items() if path.read_text() != text
    ] == []


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


@pytest.mark.parametrize("name", NUMBERS["devices"])
def test_a_run_says_once_how_far_to_trust_it(name):
    profile = load_profile(name)
    profile.models["lenet5"] = profile.models["other"] = LENET5
    for model in ("lenet5", "other"):
        for batch in (8, 32):
            assert profile.seconds("training", model=model, batch=batch) > 0
    trust = [w for w in profile.warnings if profile.provenance["trust"] in w]
    assert len(trust) == 1
    assert trust[0].startswith(f"device profile {name}: nobody measured it with simfed")


def test_a_measured_profile_says_nothing_of_the_kind():
    published = [
        name for name in profile_names() if load_profile(name).kind == "published"
    ]
    assert sorted(published) == sorted(NUMBERS["devices"])
    profile = load_profile("x86-2core-vm")
    profile.seconds("training", model="lenet5", batch=32)
    assert profile.warnings == []


@pytest.mark.parametrize(
    ("provenance", "where"),
    [
        ({}, "provenance.trust"),
        ({"trust": "little"}, "provenance.sources"),
        ({"trust": "little", "sources": []}, "provenance.sources"),
        ({"trust": "little", "sources": [{"number": "12 s"}]}, "provenance.sources"),
        ({"trust": 3, "sources": [SOURCE]}, "provenance.trust"),
    ],
)
def test_a_published_profile_without_a_source_is_refused(tmp_path, provenance, where):
    file = tmp_path / "mine.yaml"
    told = {
        "kind": "published",
        "provenance": provenance,
        "training": {"lenet5": {32: "12 s"}},
    }
    file.write_text(yaml.safe_dump(told))
    with pytest.raises(InputError, match=where):
        load_profile(file)
    told["provenance"] = {"trust": "little", "sources": [SOURCE]}
    file.write_text(yaml.safe_dump(told))
    assert load_profile(file).seconds("training", model="lenet5", batch=32) == 12
