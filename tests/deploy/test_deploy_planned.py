"""What a scenario plans to go wrong, on top of what really does: presence, failures,
restarts.
"""

from dataclasses import dataclass

import deploy_worlds as worlds
import pytest

from simfed import InputError
from simfed.learn import Averaging


def group(**more):
    return [{"count": 3, "prototype": "small", "device": "x86-2core-vm", **more}]


def test_phases_fail_that_fail_in_the_simulation(out):
    failing = group(failure={"download": 0.2, "training": 0.2, "upload": 0.2})
    plan = worlds.scenario(rounds=4, clients=failing)
    real = worlds.deployed(plan, out)
    outcomes = real.participations["outcome"].value_counts()
    assert set(outcomes.index) == {"aggregated", "failed"}
    worlds.assert_same_learning(real, plan)


def test_who_is_not_to_be_there_is_not_asked_and_who_leaves_is_dropped(tmp_path, out):
    trace = tmp_path / "there.csv"
    trace.write_text("client,from_s,to_s\n0,0,100000\n2,0,0.4\n")
    plan = worlds.scenario(rounds=2, clients=group(availability={"trace": str(trace)}))
    real = worlds.deployed(plan, out, slow={"client_2": 1.0})
    seen = real.participations[["round", "client", "outcome"]].to_numpy().tolist()
    assert seen == [[1, 0, "aggregated"], [1, 2, "dropped"], [2, 0, "aggregated"]]


def test_server_restarts_and_loses_what_it_got(out):
    between = {"uniform": {"low": "0.2 s", "high": "0.3 s"}}
    restarts = {"between": between, "lasts": "0.1 s"}
    plan = worlds.scenario(rounds=2, faults={"restarts": restarts})
    slow = dict.fromkeys(("client_0", "client_1", "client_2"), 0.6)
    real = worlds.deployed(plan, out, slow=slow)
    assert set(real.participations["outcome"]) == {"dropped"}
    assert "restart" in set(real.spans["kind"])


@dataclass(frozen=True)
class TwoTrips(Averaging):
    """Averaging whose clients say something before they begin."""

    def participate(self, setting, client):
        yield from client.receive()
        yield from client.send(8.0)
        yield from client.send()


DENSE = {
    "method": "two-trips",
    "policy": {"kind": "uniform", "strategy": "dense"},
    "compression": {"strategies": ["dense"]},
}


def test_method_whose_clients_say_something_before_is_refused(add_part):
    add_part("method", "two-trips", TwoTrips)
    with pytest.raises(InputError) as raised:
        worlds.serve(worlds.scenario(**DENSE))
    assert raised.value.where == "method"
