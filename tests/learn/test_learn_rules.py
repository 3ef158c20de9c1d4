"""Merging rules against a few lines of NumPy each, and what a run makes of them."""

from inspect import isfunction

import numpy as np
import pytest
import torch
from engine_worlds import Host
from scipy.optimize import minimize
from textbook import ONE, TWO, assert_close, scenario

from simfed.ground.registry import registry
from simfed.learn import ArrivedValues, rules

N, F = 13, 2


@pytest.fixture
def updates():
    """Thirteen updates of nine entries.

    The last three are far away, two are twins, and one is nothing.
    """
    rows = np.random.default_rng(0).normal(1.0, 0.3, (N, 9))
    rows[-3:] = np.random.default_rng(1).normal(-40.0, 5.0, (3, 9))
    rows[4], rows[2] = rows[1], 0
    return rows.astype(np.float32)


def merged(rule, rows):
    return rule.merge({"update": torch.from_numpy(rows)})["update"].numpy()


def krum_order(rows, f):
    """Blanchard et al.: places by the sum of squared distances to the n − f − 2
    nearest.
    """
    apart = np.sort(((rows[:, None] - rows[None]) ** 2).sum(2, dtype=float))
    # the nearest is a row itself
    scores = apart[:, 1 : 1 + max(1, len(rows) - f - 2)].sum(1)
    return np.argsort(scores, kind="stable")


def bulyan(rows):
    left, picked = list(range(N)), []
    while len(picked) < N - 2 * F:
        picked.append(left.pop(krum_order(rows[left], F)[0]))
    chosen = rows[picked]
    apart = abs(chosen - np.median(chosen, 0))
    near = np.argsort(apart, axis=0, kind="stable")[: N - 4 * F]
    return np.take_along_axis(chosen, near, 0).mean(0)


def trimmed(cut):
    """Without so many values on each side, at least the share."""
    return lambda rows: np.sort(rows, 0)[cut : N - cut].mean(0)


@pytest.mark.parametrize(
    ("rule", "by_hand"),
    [
        (rules.Median(), lambda rows: np.median(rows, 0)),
        *[
            (rules.TrimmedMean(share), trimmed(cut))
            for share, cut in ((0, 0), (0.05, 1), (0.2, 3), (0.4, 6), (0.49, 6))
        ],
        (rules.Krum(F), lambda rows: rows[krum_order(rows, F)[0]]),
        (rules.MultiKrum(F), lambda rows: rows[krum_order(rows, F)[: N - F]].mean(0)),
        (rules.Bulyan(F), bulyan),
        (
            rules.NormBound(4.0),
            lambda rows: rows * np.minimum(1, 4 / norms(rows).clip(1e-9)),
        ),
    ],
    ids=lambda value: "" if isfunction(value) else str(value),
)
def test_a_rule_is_that_of_its_paper(updates, rule, by_hand):
    np.testing.assert_allclose(merged(rule, updates), by_hand(updates), rtol=1e-5)


def norms(rows):
    return np.linalg.norm(rows, axis=1, keepdims=True)


def test_the_median_of_an_even_number_is_between_two(updates):
    rows = updates[:-1]
    np.testing.assert_allclose(merged(rules.Median(), rows), np.median(rows, 0), 1e-6)


def test_a_share_of_whole_numbers_is_not_rounded_up():
    rows = np.arange(100, dtype=np.float32)[:, None] ** 2
    expected = np.sort(rows, 0)[7:93].mean(0)  # 0.07 × 100 is 7.000000000000001
    np.testing.assert_allclose(merged(rules.TrimmedMean(0.07), rows), expected, 1e-6)


def test_the_geometric_median_minimises_the_sum_of_distances(updates):
    def total(z):
        return np.linalg.norm(updates - z, axis=1).sum()

    best = minimize(total, updates.mean(0), method="BFGS", options={"gtol": 1e-8}).fun
    assert total(merged(rules.GeometricMedian(), updates)) <= best * (1 + 1e-5)


# ---- in a run ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method", ["fedavg", "fedprox", "fedopt", "scaffold", "fedbuff", "fedkd", "feddf"]
)
def test_a_step_of_every_averaging_method_is_that_of_one_client_that_krum_picks(method):
    prototypes = ONE if method == "fedavg" else TWO
    krum = {"aggregation": {"rule": {"krum": 0}}, "prototypes": prototypes}
    made = scenario(method, clients=6, client_order="grouped", **krum)
    host, plain = Host(made), Host(made)
    uploads, stand_ins = (
        [one.begin(1, client) for client in range(6)] for one in (host, plain)
    )
    host.work_off(), plain.work_off()
    # by hand: all send what the best of their prototype sent
    for group in np.split(np.arange(6), len(prototypes)):
        rows = np.stack([uploads[c].values["update"].numpy() for c in group])
        best = uploads[group[krum_order(rows, 0)[0]]].values
        copied = {name: best[name].clone() for name in best}
        for client in group:
            one = stand_ins[client]
            one.result = one.result._replace(values=ArrivedValues(copied))
    plain.scenario = scenario(method)
    assert host.merge(1, uploads).losses == plain.merge(1, stand_ins).losses
    ours, theirs = host.state()[1], plain.state()[1]
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


@pytest.mark.parametrize("rule", ["median", {"krum": 0}], ids=str)
def test_fewer_uploads_than_the_rule_needs_leave_the_prototype_as_it_is(rule):
    host = Host(scenario("fedavg", aggregation={"rule": rule}))
    before, two = host.array("server/a/weights"), [host.task(1, c).who for c in (0, 1)]
    assert host.tasks.server_work(two, 1)[0].quantity == "handling"  # and no rule
    for round, clients in ((1, [0, 1]), (2, [])):
        host.play(round, clients)
        assert torch.equal(host.array("server/a/weights"), before)


def test_every_rule_but_the_mean_is_charged_and_those_of_columns_need_all_entries():
    rules_of = {name: registry("rule").get(name) for name in registry("rule").names()}
    assert [name for name, rule in rules_of.items() if not rule.flops] == ["mean"]
    dense = [name for name, rule in rules_of.items() if rule.needs_dense]
    assert dense == ["median", "trimmed-mean", "bulyan"]
