"""SCAFFOLD against option II of the paper, written out."""

import pytest
import torch
from engine_worlds import played
from textbook import assert_close, beside, flat, scenario, with_weights

from simfed.policy import Choice


def test_three_rounds_are_those_of_the_paper():
    made = scenario(
        {"kind": "scaffold", "server_rate": 0.7}, participation={"clients_per_round": 3}
    )
    workload, book, x = beside(made)
    model = book.module("a")
    c, c_i = torch.zeros_like(x), [torch.zeros_like(x) for _ in range(4)]
    for round in (1, 2, 3):
        clients = book.cohort(round)
        moves, changes = [], []
        for i in clients:
            drift, begun = c - c_i[i], with_weights(model, x)
            y = flat(book.trained(begun, i, round, lambda w, d=drift: d))
            new = c_i[i] - c + (x - y) / (3 * 0.05)
            moves.append(y - x)
            changes.append(new - c_i[i])
            c_i[i] = new
        x = x + 0.7 * sum(moves) / len(clients)
        c = c + len(clients) / 4 * sum(changes) / len(clients)
    assert_close(workload.array("server/a/weights"), x)
    assert_close(workload.array("server/a/control"), c, 1e-5)
    for i in range(4):
        assert_close(workload.array(f"clients/{i}/own/control"), c_i[i], 1e-5)


@pytest.mark.parametrize(
    "arm", ["top-k", "powersgd(1)", "layers(*weight=qsgd,*bias=top-k@50%)"]
)
def test_under_compression_the_servers_control_stays_the_mean_of_the_clients(arm):
    """Whose fields travel alike, and of which the update alone has a residual."""
    made = scenario("scaffold", arm=arm, participation={"clients_per_round": 2})
    workload, last = played(made)
    controls = torch.stack([own["control"] for own in workload.kept.own.values()])
    assert_close(workload.kept.server["a"]["control"], controls.sum(0) / 4)
    assert controls.any()
    assert {name for one in workload.kept.states.values() for name in one.rests} <= {
        "update"
    }
    task = workload.task(4, 0)
    choice = Choice.of(arm).at(30 if arm == "top-k" else 1)
    size = workload.tasks.field_bytes(task, task.plan.up["update"], choice)
    assert set(last.uplink_bytes.values()) == {2 * size}


def test_a_lost_upload_leaves_the_clients_control_where_it_was():
    made = scenario("scaffold", arm="top-k")
    workload, _ = played(made, rounds=1)
    before = workload.state()[1]
    workload.discard(workload.begin(2, 0, "top-k", 30))
    after = workload.state()[1]
    same = [key for key in before if not key.startswith("clients/0/rests/update")]
    assert all((after[key] == before[key]).all() for key in same)
