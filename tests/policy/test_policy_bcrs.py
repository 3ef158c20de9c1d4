"""K in proportion to a client's uplink: what a cohort settles at, and what is refused."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import simfed
from simfed.ground.errors import InputError, InputErrors
from simfed.policy import Bcrs, Spent, paces_of
from simfed.scenario.load import validate_scenario

RNG = np.random.default_rng(0)


@given(
    per_entry_s=st.lists(st.floats(1e-5, 1e-3), min_size=2, max_size=6),
    latency_s=st.floats(0, 0.04),
)
def test_every_upload_takes_as_long_as_the_slowest_one_with_its_base(per_entry_s, latency_s):
    cohort = [Bcrs(("top-k",), base=100, least=1, most=10**6) for _ in per_entry_s]
    for _ in range(80):
        pulls = [policy.pull(RNG) for policy in cohort]
        entries = [pull.k.amount for pull in pulls]
        uploads_s = [latency_s + k * s for k, s in zip(entries, per_entry_s, strict=True)]
        paces = paces_of(zip(entries, uploads_s, strict=True))
        for policy, pull, upload_s, pace in zip(cohort, pulls, uploads_s, paces, strict=True):
            policy.watch(pull, Spent(0.0, 1.0, upload_s, 0.0, pace))
    slowest = int(np.argmax(per_entry_s))
    assert entries[slowest] == 100
    steps_s = np.array(per_entry_s)  # K is whole: an entry more or less
    assert np.all(
        np.abs(np.array(uploads_s) - uploads_s[slowest]) <= 0.02 * uploads_s[slowest] + steps_s
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


def two_links(**rest):
    device = {"profile": "x86-2core-vm", "speed": 0.1}
    link = {"down": "10 Mbps"}
    return {
        "name": "two links",
        "seed": 0,
        "rounds": 3,
        "method": "fedavg",
        "dataset": {"name": "mnist-mini"},
        "prototypes": {"net": {"model": "lenet5-half"}},
        "clients": [
            {"count": 1, "prototype": "net", "device": device, "link": {**link, "up": rate}}
            for rate in ("200 kbps", "1 Mbps")
        ],
        "training": {"local_steps": 1},
        "compression": {"index_code": "fixed"},
        "policy": {"kind": "bcrs", "base": 100, "least": 10, "most": 5000},
        **rest,
    }


def test_in_a_run_the_fast_link_sends_as_many_times_more_as_it_is_faster(tmp_path):
    run = simfed.run(two_links(), out=tmp_path / "run", time_only=True, progress=False)
    table = run.participations.pivot(index="round", columns="client", values="k")
    assert table.to_numpy().tolist() == [[100, 100], [100, 500], [100, 500]]
    uploads_s = run.participations.query("round == 3")["uplink_s"]
    assert uploads_s.max() == pytest.approx(uploads_s.min(), rel=0.02)


@pytest.mark.parametrize("own", [False, True])
def test_where_each_merge_has_one_upload_there_is_nobody_to_compare_with(own):
    lonely = two_links(aggregation={"mode": "asynchronous", "concurrency": 2})
    if own:
        lonely["clients"][1]["policy"] = lonely.pop("policy")
        lonely["policy"] = {"kind": "uniform", "strategy": "top-k"}
    where = r"clients\[1\]\.policy" if own else "policy"
    with pytest.raises(InputErrors, match=f"{where}: got 'mode asynchronous, .* policy bcrs"):
        validate_scenario(lonely, source="x", folder=Path())
    buffered = {"mode": "buffered", "concurrency": 2, "buffer": 2}
    assert validate_scenario({**lonely, "aggregation": buffered}, source="x", folder=Path())


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ({"base": "0.1%"}, "base"),
        ({"base": 100}, "base"),
        ({"base": "energy"}, "base"),
        ({"strategy": "dense"}, "strategy"),
        ({"least": 100}, "most"),
    ],
)
def test_options_are_checked(options, where):
    with pytest.raises(InputError) as raised:
        Bcrs(("top-k",), **options)
    assert raised.value.where == where
