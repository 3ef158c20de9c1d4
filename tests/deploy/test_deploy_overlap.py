"""Deployments and Flower fleets refuse uploads in slices in one sentence, deployments
edge servers as well.
"""

from pathlib import Path

import pytest

from simfed import InputError, InputErrors
from simfed.deploy import serve
from simfed.scenario import validate_fleet

GROUP = {"count": 2, "device": "x86-2core-vm", "overlap": {"chunks": 4}}


def scenario(group, **changes):
    return {
        "name": "sliced",
        "rounds": 1,
        "method": "fedavg",
        "dataset": {"name": "mnist-mini"},
        "prototypes": {"small": {"model": "lenet5-half"}},
        "compression": {"k": "1%"},
        "policy": {"kind": "uniform", "strategy": "top-k"},
        "training": {"local_steps": 1},
        "clients": [{**group, "prototype": "small"}],
        **changes,
    }


def test_a_deployment_refuses_them():
    with pytest.raises(
        InputError,
        match=r"clients\[0\].overlap: real clients compress "
        r"and send",
    ):
        serve(scenario(GROUP))


def test_a_deployment_refuses_edge_servers():
    tree = {"topology": "tree", "tiers": [{"name": "edge", "count": 2}]}
    edges = {"network": tree, "aggregation": {"edge_servers": {"at": "edge"}}}
    with pytest.raises(
        InputError, match="edge_servers: expected null: real clients talk to one"
    ):
        serve(scenario({"count": 2, "device": "x86-2core-vm"}, **edges))


def test_a_deployment_does_not_charge_the_base():
    group = {"count": 2, "device": "x86-2core-vm"}
    with pytest.raises(InputError, match=r"charge\.base: expected false: a real"):
        serve(scenario(group, charge={"base": True}))


def test_a_fleet_for_an_app_refuses_them():
    with pytest.raises(InputErrors, match="no overlap in a fleet for an app"):
        validate_fleet(
            {"name": "fleet", "clients": [GROUP]}, source="fleet", folder=Path()
        )
