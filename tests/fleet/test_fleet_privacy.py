"""ε against closed forms, against Opacus, and along whole runs.

Needs dp-accounting and Opacus.
"""

import numpy as np
import pytest
import worlds
from forging import Forgery

from simfed import InputError
from simfed.deploy import serve
from simfed.ground import Size, Who
from simfed.tasks.privacy import (
    compute_divergences,
    compute_epsilon,
    find_unprovable,
    make_account,
)
from simfed.verify import verify

pytestmark = pytest.mark.privacy

DELTA = 1e-5
SIZE = Size("logistic-regression", 7850, 0, 784, 20)


LINK = {"up": {"lognormal": {"median": "5 Mbps", "cv": 1}}, "down": "50 Mbps"}
CLIENT = {"level": "client", "clip": 0.5, "noise": 1.2}
SAMPLE = {"level": "sample", "clip": 1.0, "noise": 1.2}


def scenario(privacy=CLIENT, **changes):
    """Return twenty clients that are asked by the toss of a coin."""
    plain = {
        "rounds": 6,
        "clients[0].count": 20,
        "clients[0].failure.upload": 0.1,
        "clients[0].link": LINK,
        "training": {"local_steps": 2, "batch_size": 16},
        "participation": {"clients_per_round": 8, "selection": "poisson"},
        "evaluation.every": 3,
        "privacy": privacy,
    }
    return worlds.world("tiny", plain, **changes)


def account(privacy=CLIENT, samples=lambda client: 100, **changes):
    """Return the account of a run in which everybody owns 100 samples."""
    return make_account(scenario(privacy, **changes), samples)


def who(client):
    return Who(client, "a", SIZE, 100)


@pytest.mark.parametrize(("noise", "times"), [(0.7, 1), (1.0, 10), (4.0, 300)])
def test_a_gaussian_mechanism_against_its_closed_form(noise, times):
    """The least over orders α of Tα/(2z²) + log1p(−1/α) − log(δα)/(α − 1): Mironov
    2017, Canonne et al. 2020; on a finer grid it is hardly less.
    """
    orders = np.linspace(1.02, 400, 200_000)
    bounds = times * orders / (2 * noise**2) + np.log1p(-1 / orders)
    best = (bounds - np.log(DELTA * orders) / (orders - 1)).min()
    epsilon = compute_epsilon(1.0, noise, times, DELTA)
    assert best - 1e-6 <= epsilon <= best * 1.01


@pytest.mark.parametrize(
    ("rate", "noise", "times"),
    [(0.01, 0.8, 1000), (0.1, 1.0, 100), (0.4, 2.0, 17), (1 / 19, 1.1, 60)],
)
def test_a_sampled_one_against_opacus(rate, noise, times):
    from opacus.accountants.analysis import rdp

    orders, divergences = map(list, compute_divergences(rate, noise))
    theirs = rdp.compute_rdp(q=rate, noise_multiplier=noise, steps=1, orders=orders)
    # between whole orders our library bounds from above what Opacus works out
    pairs = zip(orders, divergences, theirs, strict=True)
    for order, here, there in pairs:
        if order == int(order):
            assert here == pytest.approx(there, rel=1e-6)
    spent = [times * divergence for divergence in theirs]
    expected, _ = rdp.get_privacy_spent(orders=orders, rdp=spent, delta=DELTA)
    assert (
        expected * (1 - 1e-9)
        <= compute_epsilon(rate, noise, times, DELTA)
        < 1.001 * expected
    )


@pytest.mark.parametrize(
    "mode",
    [
        {"mode": "buffered", "buffer": 3, "concurrency": 6},
        {"mode": "asynchronous", "concurrency": 2},
    ],
)
def test_a_target_of_samples_is_refused_where_clients_are_kept_in_flight(mode):
    """A fast client starts several times between two merges, and each time counts."""
    target = {"level": "sample", "clip": 1.0, "target": {"epsilon": 8.0}}
    flying = {"aggregation": mode, "participation": {}}
    [error] = find_unprovable(scenario(target, **flying))
    assert error.where == "privacy.target"
    assert mode["mode"] in error.problem
    for made in (
        scenario(target),
        scenario(SAMPLE, **flying),
        scenario({**target, "level": "client"}, **flying),
    ):
        assert not list(find_unprovable(made))


def test_amplified_rounds_count_whoever_came():
    spent = account()
    for round in range(1, 4):
        assert spent.settle([], []) == compute_epsilon(8 / 20, 1.2, round, DELTA)


def test_else_the_most_merges_of_any_count_with_half_the_noise():
    spent = account(participation={"clients_per_round": 3})
    one, two = who(1), who(2)
    for asked, came, merges in (
        ([one, two], [one], 1),
        ([two], [two], 1),
        ([one, one], [one, one], 2),  # one change
        ([one], [], 2),  # lost
        ([one], [one], 3),
    ):
        assert spent.settle(asked, came) == compute_epsilon(1.0, 0.6, merges, DELTA)


def test_samples_count_by_client_and_lost_uploads_too():
    owned = {0: 16, 1: 320}
    spent = account(
        SAMPLE,
        samples=lambda client: owned.get(client, 64),
        training={"local_epochs": 2, "batch_size": 16},
    )
    spent.settle([who(0), who(1)], [who(1)])
    largest = spent.settle([who(1)], [who(1)])
    assert spent.by_client() == {
        0: compute_epsilon(1.0, 1.2, 2, DELTA),
        1: compute_epsilon(1 / 20, 1.2, 2 * 2 * 20, DELTA),
    }
    assert largest == max(spent.by_client().values())


COUNTED = {"quantile": 0.5, "count_noise": 1.0}


@pytest.mark.parametrize(
    ("privacy", "changes"),
    [
        (CLIENT, {}),
        (CLIENT, {"participation": {"clients_per_round": 3}}),
        (SAMPLE, {}),
        ({**CLIENT, "clip": {**COUNTED, "count_noise": 40.0}}, {}),
    ],
)
def test_targets_are_met_and_hardly_missed(privacy, changes):
    target = {**privacy, "noise": None, "target": {"epsilon": 8.0}}
    spent = account(target, **changes)
    everybody = [who(client) for client in range(20)]
    last = [spent.settle(everybody, everybody) for _ in range(6)][-1]
    assert 8.0 * 0.998 < last <= 8.0


def test_the_noise_on_a_count_is_part_of_the_whole():
    """1/z² is the sum of 1/z_sum² and 1/(2σ)²."""
    noise = account({**CLIENT, "clip": COUNTED}).noise
    assert (noise.total, noise.of_count) == (1.2, 1.0)
    assert noise.of_sum**-2 + 0.5**2 == pytest.approx(1.2**-2)


def test_a_target_that_no_noise_reaches():
    hopeless = {**CLIENT, "clip": {"quantile": 0.5}, "noise": None}
    hopeless["target"] = {"epsilon": 0.1}
    with pytest.raises(InputError) as error:
        _ = account(hopeless).noise
    assert (error.value.where, error.value.got) == ("privacy.target.epsilon", 0.1)
    assert "fewer rounds" in error.value.hint
    assert "count_noise" in error.value.hint
    least = float(str(error.value.allowed).rpartition(" ")[2])
    reachable = {**hopeless, "target": {"epsilon": least}}
    assert account(reachable).noise.total < 0.8  # twice a twentieth of eight


MODES = {
    "amplified": {},
    "fixed size": {"participation": {"clients_per_round": 8}},
    "buffered": {
        "aggregation": {"mode": "buffered", "buffer": 3, "concurrency": 6},
        "participation": {}, "method": "fedbuff",
    },
}  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
def test_a_run_says_what_it_spent(mode, tmp_path):
    made = scenario(**MODES[mode])
    run = worlds.play(made, tmp_path / "run", time_only=True)
    spent = run.rounds["epsilon"]
    assert (spent.diff()[1:] >= 0).all()
    assert run.summary["epsilon"] == spent.iloc[-1] > 0
    if mode != "amplified":
        came = run.participations["outcome"].isin(["aggregated", "late"])
        most = run.participations[came].groupby("client")["merge"].nunique().max()
        assert spent.iloc[-1] == compute_epsilon(1.0, 0.6, int(most), DELTA)
        assert run.manifest["privacy"]["adjacency"] == "replace a client"


def test_what_samples_have_spent_stands_by_client(tmp_path):
    made = scenario(SAMPLE, **{"clients[0].device.private": "30 ms"})
    run = worlds.play(made, tmp_path / "run")
    last = run.clients[run.clients["round"] == 6]
    assert len(last) == 20
    assert last["epsilon"].max() == run.summary["epsilon"]
    assert run.participations["training_s"].median() == 2 * 0.03


def test_a_run_that_promises_more_than_it_keeps_is_found(tmp_path):
    run = worlds.play(scenario(rounds=2), tmp_path / "run")
    promises = {
        "noise": 2.4,
        "delta": 1e-6,
        "amplified": False,
        "adjacency": "replace a client",
    }
    for key, value in promises.items():

        def promise(draft, key=key, value=value):
            draft.manifest["privacy"][key] = value

        (complaints,) = verify(Forgery(key, promise).of(run.path, tmp_path / key))
        assert complaints.startswith("manifest.json: privacy is")


def test_a_deployment_does_not_claim_it(tmp_path):
    with pytest.raises(InputError) as error:
        serve(scenario(), tmp_path / "run")
    assert error.value.where == "privacy"
