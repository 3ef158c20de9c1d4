"""The same apps under simfed's clock and in Flower's own engine."""

from __future__ import annotations

import csv
from pathlib import Path

import flower_apps as apps
import numpy as np
import pytest
from flower_worlds import fleet

import simfed

ROOT = Path(__file__).resolve().parents[2]
APPS = {
    "fedavg": (apps.fedavg, apps.torch_client),
    "classic": (apps.classic, apps.classic_client),
}


def under_the_clock(server_app, client_app):
    groups = [{"link": {"up": f"{u} Mbps"}} for u in (1, 5, 2, 9)]
    world = fleet(*groups)
    simfed.flower.run(server_app, client_app, world, progress=False)
    return apps.finals.pop()


@pytest.mark.long
@pytest.mark.parametrize("name", APPS)
def test_an_app_comes_to_what_flowers_own_engine_comes_to(name):
    from flwr.simulation import run_simulation

    ours = under_the_clock(*APPS[name])
    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(*APPS[name], num_supernodes=4, backend_config=resources)
    theirs = apps.finals.pop()
    assert len(ours) == len(theirs)
    for here, there in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(here, there, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", APPS)
def test_apps_run_under_the_clock_and_repeat(name):
    first, again = (under_the_clock(*APPS[name]) for _ in range(2))
    for here, there in zip(first, again, strict=True):
        np.testing.assert_array_equal(here, there)


@pytest.mark.long
@pytest.mark.parametrize(
    "name", sorted(path.name for path in (ROOT / "analysis" / "flower_apps").iterdir())
)
def test_every_reply_of_an_app_is_that_of_flowers_engine(name, tmp_path, monkeypatch):
    """Trees, recurrent nets, secure aggregation, vertical and legacy ones."""
    monkeypatch.syspath_prepend(str(ROOT / "analysis"))
    from flower_originals import main as play_originals

    kept = ROOT / "analysis" / "flower_apps"
    arguments = [str(kept), "--only", name, "--nodes", "4", "--out", str(tmp_path)]
    assert play_originals([*arguments, "--compare"]) == 0
    (row,) = csv.DictReader((tmp_path / "apps.csv").open())
    assert int(row["compared"]) > 0
