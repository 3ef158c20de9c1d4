"""K in proportion to a client's uplink: what a cohort settles at, what is refused."""

import numpy as np
import pytest
import worlds
from hypothesis import given
from hypothesis import strategies as st

from simfed.policy import Bcrs, Spent, paces_of

RNG = np.random.default_rng(0)


@given(
    per_entry_s=st.lists(st.floats(1e-5, 1e-3), min_size=2, max_size=6),
    latency_s=st.floats(0, 0.04),
)
def test_every_upload_takes_as_long_as_the_slowest_one_with_its_base(
    per_entry_s, latency_s
):
    cohort = [Bcrs(("top-k",), base=100, least=1, most=10**6) for _ in per_entry_s]
    for _ in range(80):
        pulls = [policy.pull(RNG) for policy in cohort]
        entries = [pull.k.amount for pull in pulls]
        uploads_s = [
            latency_s + k * s for k, s in zip(entries, per_entry_s, strict=True)
        ]
        paces = paces_of(zip(entries, uploads_s, strict=True))
        for policy, pull, upload_s, pace in zip(
            cohort, pulls, uploads_s, paces, strict=True
        ):
            policy.watch(pull, Spent(0.0, 1.0, upload_s, 0.0, pace))
    slowest = int(np.argmax(per_entry_s))
    assert entries[slowest] == 100
    steps_s = np.array(per_entry_s)  # K is whole: an entry more or less
    assert np.all(
        np.abs(np.array(uploads_s) - uploads_s[slowest])
        <= 0.02 * uploads_s[slowest] + steps_s
    )


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
    [group] = worlds.TINY["clients"]
    clients = [
        group | {"count": 1, "link": {"up": up}} for up in ("200 kbps", "1 Mbps")
    ]
    policy = {"kind": "bcrs", "base": 100, "least": 10, "most": 5000}
    made = worlds.world("tiny", {"rounds": 3, "clients": clients}, policy=policy)
    run = worlds.play(made, time_only=True)
    table = run.participations.pivot(index="round", columns="client", values="k")
    assert table.to_numpy().tolist() == [[100, 100], [100, 500], [100, 500]]
    uploads_s = run.participations.query("round == 3")["uplink_s"]
    assert uploads_s.max() == pytest.approx(uploads_s.min(), rel=0.02)
