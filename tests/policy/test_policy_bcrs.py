"""K in proportion to a client's uplink: what a cohort settles at, what is refused."""

import numpy as np
import pytest
import worlds

from simfed.policy import Bcrs, Spent, paces_of

RNG = np.random.default_rng(0)


def test_work_and_waiting_do_not_count():
    policy = Bcrs(("top-k",), base="1%", least="0.1%", most="20%")
    pull = policy.pull(RNG)
    for work_s, slack_s in ((1.0, 0.0), (0.0, 9.0)):
        policy.watch(pull, Spent(0.0, work_s, 0.1, slack_s, pace=3.0))
        assert policy.values() == (3.0,)


def test_uploads_without_duration_or_bytes_slow_nobody():
    assert paces_of([(10, 0.0), (10, 0.0)]) == [1.0, 1.0]
    assert paces_of([(10, 0.0), (10, 1.0), (0, 1.0)]) == [np.inf, 1.0, 0.0]


def test_in_a_run_the_fast_link_sends_as_many_times_more_as_it_is_faster():
    clients = worlds.groups({"link": {"up": "200 kbps"}}, {"link": {"up": "1 Mbps"}})
    policy = {"kind": "bcrs", "base": 100, "least": 10, "most": 5000}
    made = worlds.world("tiny", {"rounds": 3, "clients": clients}, policy=policy)
    run = worlds.play(made, time_only=True)
    table = run.participations.pivot(index="round", columns="client", values="k")
    assert table.to_numpy().tolist() == [[100, 100], [100, 500], [100, 500]]
    uploads_s = run.participations.query("round == 3")["uplink_s"]
    assert uploads_s.max() == pytest.approx(uploads_s.min(), rel=0.02)
