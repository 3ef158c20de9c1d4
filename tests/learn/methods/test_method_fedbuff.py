"""FedBuff: the buffer's mean, with late updates discounted."""

import torch
from textbook import arrival, assert_close, beside, scenario, update

from simfed.learn import FedBuff


def test_rounds_are_the_plain_mean_of_updates():
    made = scenario(
        {"kind": "fedbuff", "server_rate": 0.9}, participation={"clients_per_round": 3}
    )
    workload, book, w = beside(made)
    for round in (1, 2, 3):
        w = w + 0.9 * (sum(book.locals(w, round)[1]) / 3 - w)
    assert_close(workload.array("server/a/weights"), w)


def test_a_late_update_counts_by_the_root_of_its_staleness():
    server = {"a": {"weights": torch.zeros(3), "buffers": torch.zeros(1)}}
    late = arrival(update(6.0, 1.0), 1, staleness=3)
    after, _ = FedBuff().merge(None, server, [arrival(update(2.0, 4.0)), late], 9)
    # (1·2 + ½·6)/2, not divided by 1½
    assert after["a"]["weights"].tolist() == [-2.5] * 3
    assert after["a"]["buffers"].tolist() == [3.0]
