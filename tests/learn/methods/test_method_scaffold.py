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
            drift = c - c_i[i]
            local = book.trained(
                with_weights(model, x), i, round, added=lambda w, d=drift: d
            )
            y = flat(local)
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


def test_under_compression_the_servers_control_stays_the_mean_of_the_clients():
    made = scenario("scaffold", arm="top-k", participation={"clients_per_round": 2})
    workload, last = played(made)
    arrays = workload.state()[1]
    controls = [torch.tensor(arrays[key]) for key in arrays if "/own/" in key]
    assert_close(torch.tensor(arrays["server/a/control"]), sum(controls) / 4)
    assert any(bool(one.any()) for one in controls)
    # two fields of 30 entries each
    [size] = set(last.uplink_bytes.values())
    task = workload.task(4, 0)
    assert size == 2 * workload.tasks.field_bytes(
        task, task.plan.up["update"], Choice("top-k", 30)
    )


def test_a_lost_upload_leaves_the_clients_control_where_it_was():
    made = scenario("scaffold", arm="top-k")
    workload, _ = played(made, rounds=1)
    before = workload.state()[1]
    workload.discard(workload.begin(2, 0, "top-k", 30))
    after = workload.state()[1]
    same = [key for key in before if not key.startswith("clients/0/rests/update")]
    assert all((after[key] == before[key]).all() for key in same)


@pytest.mark.parametrize("arm", ["powersgd(1)", "layers(*weight=qsgd,*bias=top-k@50%)"])
def test_codecs_that_look_at_layers_find_them_in_both_fields(arm):
    workload, last = played(scenario("scaffold", arm=arm))
    task = workload.task(1, 0)
    update = task.plan.up["update"]
    size = workload.tasks.field_bytes(task, update, Choice.of(arm).at(1))
    assert set(last.uplink_bytes.values()) == {2 * size}
