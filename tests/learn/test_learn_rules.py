"""Merging rules against a few lines of NumPy each, and what a run makes of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from engine_worlds import Host
from scipy.optimize import minimize
from textbook import ONE, TWO, assert_close, scenario

from simfed import InputError
from simfed.ground.registry import registry
from simfed.learn import ArrivedValues, rules

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


# ---- in a run ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method", ["fedavg", "fedprox", "fedopt", "scaffold", "fedbuff", "fedkd", "feddf"]
)
def test_a_step_of_every_averaging_method_is_that_of_one_client_that_krum_picks(method):
    prototypes = ONE if method == "fedavg" else TWO
    each = 6 // len(prototypes)
    made = scenario(
        method,
        aggregation={"rule": {"krum": 0}},
        prototypes=prototypes,
        clients=[
            {"count": each, "prototype": name, "device": "any"} for name in prototypes
        ],
        client_order="grouped",
        rounds=1,
    )
    host, before = Host(made), Host(made)
    uploads, stand_ins = (
        [one.begin(1, client) for client in range(6)] for one in (host, before)
    )
    host.work_off(), before.work_off()
    # by hand: all send what the best of their prototype sent
    for first in range(0, 6, each):
        group = range(first, first + each)
        rows = np.stack([uploads[c].values["update"].numpy() for c in group])
        best = uploads[first + int(krum_order(rows, 0)[0])].values
        copied = {name: best[name].clone() for name in best}
        for client in group:
            one = stand_ins[client]
            one.result = one.result._replace(values=ArrivedValues(copied))
    before.scenario = scenario(method)
    assert host.merge(1, uploads).losses == before.merge(1, stand_ins).losses
    ours, theirs = host.state()[1], before.state()[1]
    for name in (name for name in ours if name.startswith("server/")):
        np.testing.assert_array_equal(ours[name], theirs[name])


MEDIAN = scenario("fedavg", aggregation={"rule": "median"})


@pytest.mark.parametrize("weight", [1.0, 0.5])
def test_a_median_counts_no_samples_and_late_uploads_shorten_its_step(weight):
    host = Host(MEDIAN)
    before = host.array("server/a/weights")
    rows = torch.stack(host.sent()).numpy()
    host = Host(MEDIAN)
    host.merge(1, [host.begin(1, client) for client in range(4)], [weight] * 4)
    step = before - host.array("server/a/weights")
    assert_close(step, weight * torch.from_numpy(np.median(rows, 0)))


def test_fewer_uploads_than_the_rule_needs_leave_the_prototype_as_it_is():
    host = Host(MEDIAN)
    before = host.array("server/a/weights")
    for round, clients in ((1, [0, 1]), (2, [])):
        host.play(round, clients)
        assert torch.equal(host.array("server/a/weights"), before)


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
    host, name = Host(made), made.aggregation.rule.kind
    arrived = [host.task(1, client).who for client in range(4)]

    def auxiliary(arrived):
        work = host.tasks.server_work(arrived, 1)
        return [each for each in work if each.quantity == "auxiliary"]

    [work] = auxiliary(arrived)
    assert work[:3] == ("auxiliary", f"{name}/logistic-regression", rows)
    per_entry = registry("rule").get(name).flops
    assert host.tasks.auxiliary()[work.model] == arrived[0].parameters * per_entry
    assert bool(auxiliary(arrived[:2])) is (name == "norm-bound")


def test_every_rule_but_the_mean_is_charged_and_those_of_columns_need_all_entries():
    rules_of = {name: registry("rule").get(name) for name in registry("rule").names()}
    assert [name for name, rule in rules_of.items() if not rule.flops] == ["mean"]
    dense = [name for name, rule in rules_of.items() if rule.needs_dense]
    assert dense == ["median", "trimmed-mean", "bulyan"]


@pytest.mark.parametrize("option", ["steps", "smoothing"])
def test_bad_options_are_errors_by_name(option):
    with pytest.raises(InputError) as refused:
        rules.GeometricMedian(**{option: 0})
    assert refused.value.where == option
