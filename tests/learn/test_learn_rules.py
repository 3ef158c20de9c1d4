"""Merging rules against a few lines of NumPy each, and what a run makes of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from textbook import ONE, TWO, assert_close, data_of, played, scenario

from simfed.compress.choice import Choice
from simfed.ground.errors import InputError
from simfed.ground.registry import registry
from simfed.ground.seeding import Streams
from simfed.learn import rules
from simfed.learn.catalogue import model_facts
from simfed.learn.hosted import HostedWorkload
from simfed.learn.vectors import ArrivedValues

N, F = 13, 2


@pytest.fixture
def updates():
    """Thirteen updates of nine entries.

    The last three are far away, and two are twins.
    """
    rows = np.random.default_rng(0).normal(1.0, 0.3, (N, 9))
    rows[-3:] = np.random.default_rng(1).normal(-40.0, 5.0, (3, 9))
    rows[4] = rows[1]
    return rows.astype(np.float32)


def merged(rule, rows):
    return rule.merge({"update": torch.from_numpy(rows)})["update"].numpy()


def krum_order(rows, f):
    """Blanchard et al.: places by the sum of squared distances to the n − f − 2
    nearest.
    """
    apart = ((rows[:, None] - rows[None]) ** 2).sum(2, dtype=float)
    scores = []
    for i in range(len(rows)):
        others = np.sort(np.delete(apart[i], i))
        scores.append(others[: max(1, len(rows) - f - 2)].sum())
    return np.argsort(scores, kind="stable")


def test_the_median_is_numpys(updates):
    np.testing.assert_allclose(
        merged(rules.Median(), updates), np.median(updates, 0), rtol=1e-6
    )
    even = updates[:-1]
    np.testing.assert_allclose(
        merged(rules.Median(), even), np.median(even, 0), rtol=1e-6
    )


@pytest.mark.parametrize(
    ("share", "cut"), [(0, 0), (0.05, 1), (0.2, 3), (0.4, 6), (0.49, 6)]
)
def test_the_trimmed_mean_leaves_out_at_least_the_share_on_each_side(
    updates, share, cut
):
    expected = np.sort(updates, 0)[cut : N - cut].mean(0)
    np.testing.assert_allclose(
        merged(rules.TrimmedMean(share), updates), expected, rtol=1e-5
    )


def test_a_share_of_whole_numbers_is_not_rounded_up():
    rows = np.arange(100, dtype=np.float32)[:, None] ** 2
    expected = np.sort(rows, 0)[7:93].mean(0)  # 0.07 × 100 is 7.000000000000001
    np.testing.assert_allclose(
        merged(rules.TrimmedMean(0.07), rows), expected, rtol=1e-6
    )


def test_krum_is_one_of_the_updates(updates):
    np.testing.assert_array_equal(
        merged(rules.Krum(F), updates), updates[krum_order(updates, F)[0]]
    )


def test_multi_krum_is_the_mean_of_n_less_f(updates):
    best = krum_order(updates, F)[: N - F]
    np.testing.assert_allclose(
        merged(rules.MultiKrum(F), updates), updates[best].mean(0), rtol=1e-5
    )


def test_bulyan_picks_by_krum_and_averages_near_the_median(updates):
    left, picked = list(range(N)), []
    while len(picked) < N - 2 * F:
        picked.append(left.pop(krum_order(updates[left], F)[0]))
    chosen = updates[picked]
    near = np.argsort(abs(chosen - np.median(chosen, 0)), axis=0, kind="stable")[
        : N - 4 * F
    ]
    expected = np.take_along_axis(chosen, near, 0).mean(0)
    np.testing.assert_allclose(merged(rules.Bulyan(F), updates), expected, rtol=1e-5)


def test_the_geometric_median_minimises_the_sum_of_distances(updates):
    def total(z):
        return np.linalg.norm(updates - z, axis=1).sum()

    best = minimize(total, updates.mean(0), method="BFGS", options={"gtol": 1e-8}).fun
    assert total(merged(rules.GeometricMedian(), updates)) <= best * (1 + 1e-5)


def test_a_norm_bound_shortens_what_is_longer_and_no_other(updates):
    shortened = merged(rules.NormBound(4.0), updates)
    for before, after in zip(updates, shortened, strict=True):
        length = np.linalg.norm(before)
        np.testing.assert_allclose(after, before * min(1, 4.0 / length), rtol=1e-6)
    zeros = np.zeros((3, 4), np.float32)
    np.testing.assert_array_equal(merged(rules.NormBound(1.0), zeros), zeros)


@pytest.mark.parametrize(
    "kind", ["krum", "multi-krum", "bulyan", "median", "geometric-median"]
)
def test_three_far_ones_of_thirteen_move_little(updates, kind):
    rule = registry("rule").get(kind)
    mean = merged(rule(f=F) if "f" in rule.example else rule(), updates[:-1])
    assert np.linalg.norm(mean - 1.0) < 1.5
    assert np.linalg.norm(updates[:-1].mean(0) - 1.0) > 10


def test_columns_are_sorted_in_blocks_without_a_seam(updates, monkeypatch):
    whole = merged(rules.Median(), updates)
    monkeypatch.setattr(rules, "_BLOCK_ENTRIES", 4 * N)
    np.testing.assert_array_equal(merged(rules.Median(), updates), whole)


# ---- in a run ------------------------------------------------------------------------


def play(rule, method="fedavg", **changes):
    made = scenario(method, aggregation={"rule": rule}, **changes)
    workload, last = played(made)
    state = workload.state()[1]
    workload.close()
    return state, last


def assert_same_state(one, other):
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name])


@pytest.mark.parametrize("method", ["fedavg", "fedopt", "scaffold", "fedkd"])
def test_the_mean_leaves_every_bit_as_it_was(method):
    with_rule, last = play("mean", method)
    workload, without = played(scenario(method))
    assert_same_state(with_rule, workload.state()[1])
    assert last.outcome == without.outcome
    workload.close()


@pytest.mark.parametrize(
    "method", ["fedavg", "fedprox", "fedopt", "scaffold", "fedbuff", "fedkd", "feddf"]
)
def test_a_step_of_every_averaging_method_is_that_of_one_client_that_krum_picks(method):
    prototypes = ONE if method == "fedavg" else TWO
    each = 6 // len(prototypes)
    clients = [
        {"count": each, "prototype": name, "device": "any"} for name in prototypes
    ]
    made = scenario(
        method,
        aggregation={"rule": {"krum": 0}},
        prototypes=prototypes,
        clients=clients,
        client_order="grouped",
        rounds=1,
    )
    workload = HostedWorkload(made, Streams(0), data=six_clients(made))
    before = HostedWorkload(made, Streams(0), data=six_clients(made))
    uploads = [
        workload.execute(workload.task(1, c), Choice("dense", 1)) for c in range(6)
    ]
    workload.work_off()
    values = [
        {name: upload.values[name].clone() for name in upload.values}
        for upload in uploads
    ]
    stand_ins = [
        before.execute(before.task(1, c), Choice("dense", 1)) for c in range(6)
    ]
    before.work_off()
    # by hand: all send what the best of their prototype sent
    for first in range(0, 6, each):
        rows = torch.stack(
            [values[c]["update"] for c in range(first, first + each)]
        ).numpy()
        best = first + int(krum_order(rows, 0)[0])
        for client in range(first, first + each):
            one = stand_ins[client]
            one.result = one.result._replace(values=ArrivedValues(values[best]))
    before.scenario = scenario(method)
    assert workload.merge(1, uploads).losses == before.merge(1, stand_ins).losses
    ours, theirs = workload.state()[1], before.state()[1]
    for name in (name for name in ours if name.startswith("server/")):
        np.testing.assert_array_equal(ours[name], theirs[name])
    workload.close(), before.close()


def six_clients(made):
    data = data_of(made)
    data.owned = [data.owned[i % 4][: 30 + 5 * i] for i in range(6)]
    return data


def test_sample_counts_say_nothing_under_a_median():
    one, _ = play("median")
    made = scenario("fedavg", aggregation={"rule": "median"}, rounds=1)
    workload = HostedWorkload(made, Streams(0), data=data_of(made))
    before = torch.tensor(workload.state()[1]["server/a/weights"])
    uploads = [
        workload.execute(workload.task(1, c), Choice("dense", 1)) for c in range(4)
    ]
    workload.work_off()
    rows = np.stack([upload.values["update"].numpy() for upload in uploads])
    workload.merge(1, uploads)
    after = torch.tensor(workload.state()[1]["server/a/weights"])
    assert_close(before - after, torch.from_numpy(np.median(rows, 0)))
    workload.close()
    assert one["server/a/weights"].shape == after.shape


def test_fewer_uploads_than_the_rule_needs_leave_the_prototype_as_it_is():
    made = scenario("fedavg", aggregation={"rule": "median"})
    workload = HostedWorkload(made, Streams(0), data=data_of(made))
    before = workload.state()[1]["server/a/weights"].copy()
    for round, clients in ((1, [0, 1]), (2, [])):
        uploads = [
            workload.execute(workload.task(round, c), Choice("dense", 1))
            for c in range(4)
        ]
        for client in {0, 1, 2, 3} - set(clients):
            workload.discard(uploads[client])
        workload.merge(round, [uploads[client] for client in clients])
        np.testing.assert_array_equal(workload.state()[1]["server/a/weights"], before)
    workload.close()


def test_a_late_upload_shortens_the_step_by_its_weight():
    def step(weights):
        made = scenario("fedavg", aggregation={"rule": "median"})
        workload = HostedWorkload(made, Streams(0), data=data_of(made))
        before = torch.tensor(workload.state()[1]["server/a/weights"])
        uploads = [
            workload.execute(workload.task(1, c), Choice("dense", 1)) for c in range(4)
        ]
        workload.merge(1, uploads, weights)
        after = torch.tensor(workload.state()[1]["server/a/weights"])
        workload.close()
        return after - before

    assert_close(step([0.5] * 4), 0.5 * step([1.0] * 4))


# ---- what is refused, and what it costs ----------------------------------------------


@pytest.mark.parametrize("arm", ["dense", "qsgd(4)", "powersgd", "ef-sign"])
def test_codecs_that_leave_nothing_out_go_with_a_median(arm):
    scenario("fedavg", aggregation={"rule": "median"}, arm=arm)


@pytest.mark.parametrize(
    ("rule", "rows"),
    [
        ("median", 4),
        ({"krum": 0}, 6),
        ("geometric-median", 128),
        ({"norm-bound": 1}, 4),
    ],
)
def test_the_server_works_through_the_uploads(rule, rows):
    made = scenario("fedavg", aggregation={"rule": rule})
    workload = HostedWorkload(made, Streams(0), data=data_of(made))
    arrived = [workload.task(1, client).who for client in range(4)]
    name = made.aggregation.rule.kind
    (work,) = [
        w for w in workload.tasks.server_work(arrived, 1) if w.quantity == "auxiliary"
    ]
    assert work[:3] == ("auxiliary", f"{name}/logistic-regression", rows)
    d = model_facts("logistic-regression", workload.data.input_shape, 4).parameters
    flops = workload.tasks.auxiliary()[work.model]
    assert flops == d * registry("rule").get(name).flops
    too_few = workload.tasks.server_work(arrived[:2], 1)
    assert bool([w for w in too_few if w.quantity == "auxiliary"]) is (
        name == "norm-bound"
    )
    workload.close()


def test_every_rule_but_the_mean_is_charged():
    rules_of = registry("rule")
    free = [name for name in rules_of.names() if not rules_of.get(name).flops]
    assert free == ["mean"]


def test_bad_options_are_errors_by_name():
    for rule, option in (
        (rules.GeometricMedian, "steps"),
        (rules.GeometricMedian, "smoothing"),
    ):
        with pytest.raises(InputError) as refused:
            rule(**{option: 0})
        assert refused.value.where == option


def test_a_norm_bound_compares_no_uploads():
    mode = {"mode": "buffered", "buffer": 2, "concurrency": 3}
    made = scenario("fedbuff", aggregation={**mode, "rule": {"norm-bound": 1}})
    assert made.aggregation.rule.kind == "norm-bound"
