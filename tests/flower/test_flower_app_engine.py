"""The same apps under simfed's clock and in Flower's own engine."""

from __future__ import annotations

import flower_apps as apps
import numpy as np
import pytest
from flower_worlds import fleet

import simfed

APPS = {
    "fedavg": (apps.fedavg, apps.torch_client),
    "fedprox": (apps.fedprox, apps.torch_client),
    "fedadam": (apps.fedadam, apps.torch_client),
    "asynchronous": (apps.asynchronous, apps.torch_client),
    "classic": (apps.classic, apps.classic_client),
    "fedxgb-bagging": (apps.bagging, apps.trees_client),
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


@pytest.mark.parametrize("name", [n for n in APPS if n != "fedxgb-bagging"])
def test_apps_run_under_the_clock_and_repeat(name):
    first, again = (under_the_clock(*APPS[name]) for _ in range(2))
    for here, there in zip(first, again, strict=True):
        np.testing.assert_array_equal(here, there)
