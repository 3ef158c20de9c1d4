"""Apps of all kinds under simfed's clock and in Flower's own engine."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from flower_worlds import fleet

import simfed

APPS = Path(__file__).resolve().parents[2] / "analysis" / "flower_apps"


def test_an_app_with_a_legacy_strategy_runs_under_the_clock_and_repeats():
    """A client class, mods, and a strategy that asks from a pool of threads."""
    world = fleet(*({"link": {"up": f"{up} Mbps"}} for up in (1, 5, 2, 9)))
    first, again = (
        simfed.flower.run_folder(
            APPS / "fedprox", world, run_config={"num-server-rounds": 2}, progress=False
        )
        for _ in range(2)
    )
    assert first.fingerprint == again.fingerprint
    assert first.participations["outcome"].eq("aggregated").sum() == 16


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(path.name for path in APPS.iterdir()))
def test_every_reply_of_an_app_is_that_of_flowers_engine(name, tmp_path, monkeypatch):
    """Trees, recurrent nets, secure aggregation, vertical and legacy ones."""
    monkeypatch.syspath_prepend(str(APPS.parent))
    from flower_originals import main as play_originals

    arguments = [str(APPS), "--only", name, "--nodes", "4", "--out", str(tmp_path)]
    assert play_originals([*arguments, "--compare"]) == 0
    (row,) = csv.DictReader((tmp_path / "apps.csv").open())
    assert int(row["compared"]) > 0
