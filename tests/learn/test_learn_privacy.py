"""Client-level privacy: what a merge gets of its arrivals, by hand and by moments of
the noise.
"""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from engine_worlds import Host
from textbook import gradients
from textbook import scenario as four

from simfed import InputError
from simfed.ground import Arrival, Method, Streams
from simfed.learn import (
    ArrivedValues,
    Classification,
    FedBuff,
    FlatModel,
    Kit,
    LogisticRegression,
    Passes,
    build_model,
    choose_passes,
)
from simfed.learn.models import plain
from simfed.learn.privacy import NoisyMeans
from simfed.learn.vectors import Sparse
from simfed.scenario.privacy import AdaptiveClip
from simfed.tasks.privacy import Noise

D = 4
ADAPTIVE = AdaptiveClip(quantile=0.5, start=1.0, rate=0.2)


def scenario(privacy, method="fedavg", **changes):
    """Six clients of one linear model."""
    plain = {
        "clients": 6,
        "training": {"batch_size": 10, "learning_rate": 0.05, "local_epochs": 1},
        "privacy": privacy,
    }
    return four(method, **{**plain, **changes})


class Sums(Kit):
    """The arithmetic of a kit, without models."""

    def __init__(self, seed=0):
        self._streams = Streams(seed)
        self.device = torch.device("cpu")


def who(client, prototype="a", samples=1, parameters=D):
    return SimpleNamespace(**locals())


def means_of(clip, noise=0.0, count=0.0, method=None, parameters=D, other=0):
    """A server that expects four of 8 clients; `other` have prototype b."""
    shares = {"a": 8 - other, "b": other}
    world = SimpleNamespace(
        aggregation=SimpleNamespace(concurrency=None),
        participation=SimpleNamespace(clients_per_round=4),
        client_count=8,
        clients_of_prototype={name: n for name, n in shares.items() if n},
    )
    tasks = SimpleNamespace(first_of=lambda name: who(0, name, parameters=parameters))
    return NoisyMeans(
        world, SimpleNamespace(clip=clip), method or Method(), tasks,
        Noise(noise, noise, count), lambda prototype, round: None,
    )  # fmt: skip


def arrival(client, values, *, weight=1.0, staleness=0, **facts):
    sent = values if isinstance(values, Sparse) else torch.tensor(values)
    return Arrival(
        who(client, **facts), staleness, ArrivedValues({"update": sent}), weight
    )


def update(arrivals, name="a"):
    (mine,) = (a for a in arrivals if a.who.prototype == name)
    assert (mine.staleness, mine.weight) == (0, 1.0)
    return mine.values["update"].tolist()


def short(client, first, **facts):
    """An update of which one entry is something."""
    return arrival(client, [first, 0.0, 0.0, 0.0], **facts)


LATE = [short(1, 8.0, weight=0.5, staleness=3)]


@pytest.mark.parametrize(
    ("clip", "came", "mean"),
    [
        # a long one, a short one, and one as sparse as it travelled; how many samples
        # they own does not count
        (
            2.0,
            [
                arrival(1, [3.0, 4.0, 0.0, 0.0], samples=100),
                arrival(2, [0.0, 0.0, 0.5, 0.0]),
                arrival(5, Sparse(torch.tensor([3]), torch.tensor([-8.0]), D)),
            ],
            [0.3, 0.4, 0.125, -0.5],
        ),
        # uploads of one client are one change
        (1.0, [short(1, 3.0), arrival(1, [0.0, 4.0, 0.0, 0.0])], [0.15, 0.2, 0.0, 0.0]),
        # weighed by mode and method first, 8 · 0.5 · (1 + 3)^−0.5 = 2, then shortened
        (9.0, LATE, [0.5, 0.0, 0.0, 0.0]),
        (1.0, LATE, [0.25, 0.0, 0.0, 0.0]),
    ],
)
def test_each_client_is_shortened_and_counts_one_of_the_expected_four(clip, came, mean):
    means = means_of(clip, method=FedBuff(exponent=0.5))
    assert update(means.arrivals(Sums(), came, 9)) == pytest.approx(mean)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_change_without_a_finite_norm_counts_nothing(value):
    """Neither in the sum, nor among those that the clip left alone."""
    sparse = Sparse(torch.tensor([2]), torch.tensor([value]), D)
    bad = [short(1, value), arrival(3, sparse)]
    came = means_of(1.0).arrivals(Sums(), [*bad, short(2, 0.5)], 1)
    assert update(came) == [0.125, 0.0, 0.0, 0.0]
    means = means_of(ADAPTIVE)
    means.arrivals(Sums(), bad, 1)
    assert means.clip == pytest.approx(math.exp(0.2 * 2 * 0.5 / 4))


def test_prototypes_have_their_share_of_the_cohort_and_noise_of_their_own():
    """Two of eight clients have b: of the expected four that is one; nobody came."""
    means = means_of(2.0, noise=1e-6, other=2).arrivals(Sums(), [short(1, 1.0)], 1)
    assert update(means)[0] == pytest.approx(1 / 3, rel=1e-4)
    a, b = (torch.tensor(update(means, name))[1:] for name in ("a", "b"))
    assert 0 < b.abs().max() < 2e-5
    assert not torch.allclose(3 * a, b, atol=1e-9)


def test_the_noise_is_normal_keyed_and_there_when_nobody_came():
    d, sd = 20_000, 1.5 * 3.0 / 4
    means = means_of(3.0, 1.5, parameters=d)

    def drawn(round, seed=0):
        return torch.tensor(update(means.arrivals(Sums(seed), [], round)))

    first, later = drawn(1), drawn(2)
    assert torch.equal(first, drawn(1))
    assert not torch.equal(first, drawn(1, seed=1))
    alike = torch.corrcoef(torch.stack([first, later]))[0, 1]
    assert abs(alike) < 5 / math.sqrt(d)
    assert first.std().item() == pytest.approx(sd, rel=0.025)
    assert abs(first.mean()) < 5 * sd / math.sqrt(d)
    assert 2.6 < (first / first.std()).pow(4).mean() < 3.4


def test_an_adaptive_clip_follows_the_quantile():
    """Three of four norms are above 1: the clip grows by exp(−η(¼ − ½)).

    Then no norm is.
    """
    means = means_of(ADAPTIVE)
    came = [short(client, float(client)) for client in (1, 2, 3, 4)]
    assert update(means.arrivals(Sums(), came, 1))[0] == pytest.approx(1.0)
    assert means.clip == pytest.approx(math.exp(0.05))
    means.arrivals(Sums(), [short(1, 0.1)], 2)
    share = (1 - 0.5) / 4 + 0.5  # of the four expected, three did not come
    assert means.clip == pytest.approx(math.exp(0.05 - 0.2 * (share - 0.5)))


def test_the_noise_on_the_count_moves_the_clip():
    def steps(rounds, count):
        means, clips = means_of(ADAPTIVE, count=count), [1.0]
        for round in range(rounds):
            means.arrivals(Sums(), [], round)
            clips.append(means.clip)
        return torch.tensor(clips).log().diff() / 0.2 * 4

    assert not steps(3, 0.0).any()
    assert steps(2000, 0.7).std().item() == pytest.approx(0.7, rel=0.08)


def weights_after(made, rounds=2):
    host = Host(made)
    for round in range(1, rounds + 1):
        host.play(round)
    return host.array("server/a/weights")


EVENLY = {"dataset": {"name": "stripes", "partition": {"kind": "iid"}}, "clients": 4}
"""Clients own equally many samples, which count without privacy."""
WHOLE = {"training": {"batch_size": 400, "learning_rate": 0.05, "local_steps": 3}}
"""A batch is all that a client has."""


@pytest.mark.parametrize(
    ("level", "method", "changes"),
    [
        ("client", "fedavg", EVENLY),
        ("client", "fedprox", EVENLY),
        ("client", "fedbuff", EVENLY),
        ("client", {"kind": "fedopt", "optimizer": "adam"}, EVENLY),
        ("sample", "fedavg", WHOLE),
    ],
)
def test_without_noise_and_clip_it_is_plain_learning(level, method, changes):
    """The clip is so wide, the noise so little, less than a file may ask for, that
    neither shows.
    """
    loud = {"level": level, "clip": 1e6, "noise": 1.0}
    made = scenario(loud, method, **changes)
    privacy = made.privacy.model_copy(update={"noise": 1e-15})
    private = weights_after(made.model_copy(update={"privacy": privacy}))
    plain = weights_after(scenario(None, method, **changes))
    assert torch.allclose(plain, private, atol=2e-6)


def shared(**changes):
    """Six clients that send the same 5 % of entries in a round."""
    codec = {"strategies": ["shared-random-k"], "k": "5%"}
    privacy = {"level": "client", "clip": 1.0, "noise": 0.5}
    return Host(
        scenario(privacy, arm="shared-random-k", **{"compression": codec, **changes})
    )


def test_a_cohort_that_sends_the_same_entries_gets_noise_on_these_alone():
    """Also where nobody came: which entries have noise tells nothing."""
    host = shared()
    k = round(0.05 * host.tasks.who(0).parameters)
    before, touched = host.array("server/a/weights"), []
    for turn, clients in ((1, range(6)), (2, [3]), (3, [])):
        host.play(turn, clients, "shared-random-k", k)
        after = host.array("server/a/weights")
        entries = (after - before).nonzero().flatten()
        assert len(entries) == k
        for upload in host.uploads:
            sent = upload.values["update"].nonzero()
            assert len(sent)
            assert torch.isin(sent, entries).all()
        before = after
        touched.append(entries.tolist())
    assert touched[0] != touched[1] != touched[2]


@pytest.mark.parametrize(
    "changes",
    [
        {"aggregation": {"mode": "deadline", "deadline": "1 s"}},
        {"clients": [{"count": 3, "k": {"uniform": {"low": 9, "high": 99}}}]},
        {"clients": [{"count": 3, "k": k} for k in (50, 60)]},
        {"clients": [{"count": 3, "overlap": {"chunks": 2}}]},
    ],
)
def test_where_entries_may_differ_there_is_noise_on_all(changes):
    host = shared(**changes)
    before = host.array("server/a/weights")
    host.merge(1, [])
    assert (host.array("server/a/weights") != before).all()


def test_an_entry_that_no_noise_would_cover_ends_the_run():
    means = means_of(1.0, noise=0.1)
    means._shared_entries = lambda prototype, round: torch.tensor([0, 2])
    means.arrivals(Sums(), [short(1, 0.5)], 1)
    with pytest.raises(RuntimeError, match="no noise covers"):
        means.arrivals(Sums(), [arrival(1, [0.5, 0.1, 0.0, 0.0])], 1)


# ---- samples -------------------------------------------------------------------------


def samples_of(model, count):
    """A model's flat form, samples, labels, and each sample's gradient by autograd."""
    module = build_model(model, (1, 28, 28), 10, seed=3)
    draw = torch.Generator().manual_seed(count)
    samples = torch.randn(count, 1, 28, 28, generator=draw)
    labels = torch.randint(10, (count,), generator=draw)
    rows, ordinary = [], plain(module)
    for sample, label in zip(samples, labels, strict=True):
        ordinary.zero_grad()
        F.cross_entropy(ordinary(sample[None]), label[None]).backward()
        rows.append(gradients(ordinary))
    return FlatModel(module), samples, labels, torch.stack(rows)


def assert_clipped(flat, samples, labels, rows):
    """The clipped sum is that of the rows, by the fast passes of the model and by those
    of any module.
    """
    clip = rows.norm(dim=1).median().item()
    expected = (clip / rows.norm(dim=1)).clamp(max=1) @ rows
    for passes in (choose_passes(flat, (1, 28, 28)), Passes(flat)):
        into = torch.zeros_like(flat.weights)
        loss = passes.clipped_gradient(samples, labels, Classification(), clip, into)
        assert (into - expected).norm() <= 1e-6 * expected.norm()
    return loss


@pytest.mark.parametrize(
    ("model", "count"),
    [
        ("mcmahan-cnn", 5),
        ("lenet5", 16),
        *[("lenet5-half", count) for count in (1, 16, 37)],
        *[("perceptron", count) for count in (1, 37)],
        ("logistic-regression", 37),
    ],
)
def test_a_clipped_sum_is_that_of_samples_one_by_one(model, count):
    flat, samples, labels, rows = samples_of(model, count)
    loss = assert_clipped(flat, samples, labels, rows)
    logits = plain(flat.module)(samples)
    assert loss.item() == pytest.approx(
        F.cross_entropy(logits, labels).item() * count, 1e-5
    )


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e38])
@pytest.mark.parametrize("model", ["lenet5-half", "mcmahan-cnn", "perceptron"])
def test_a_sample_without_a_finite_gradient_counts_nothing(model, value):
    """The others count as without it, and of none alone is left no sum."""
    flat, samples, labels, rows = samples_of(model, 5)
    samples[3] = value
    assert_clipped(flat, samples, labels, rows[[0, 1, 2, 4]])
    for passes in (choose_passes(flat, (1, 28, 28)), Passes(flat)):
        into = torch.zeros_like(flat.weights)
        passes.clipped_gradient(samples[3:4], labels[3:4], Classification(), 1.0, into)
        assert not into.any()


NOISY = {"level": "sample", "clip": 1.0, "noise": 1.0}


def test_the_noise_of_a_step_is_that_of_the_expected_batch():
    """One client, one step at rate 1/4 of 400 samples, a tiny clip: z·S·η/100."""
    made = scenario(
        {"level": "sample", "clip": 1e-3, "noise": 50.0},
        clients=1,
        training={"batch_size": 100, "learning_rate": 0.5, "local_steps": 1},
    )
    moved = weights_after(made, 1) - Host(made).array("server/a/weights")
    assert moved.std().item() == pytest.approx(50.0 * 1e-3 * 0.5 / 100, rel=0.1)


def test_poisson_batches_are_drawn_for_each_step():
    training = {"batch_size": 8, "learning_rate": 0.05, "local_epochs": 3}
    host = Host(scenario(NOISY, training=training))
    who, owned = host.tasks.who(0), host.data.owned[0]
    parts = -(-len(owned) // 8)
    rounds = [host.kit.batches(who, round) for round in range(40)]
    assert {len(batches) for batches in rounds} == {3 * parts}
    assert np.isin(np.concatenate(rounds[0]), owned).all()
    sizes = [len(batch) for batches in rounds for batch in batches]
    mean = len(owned) / parts
    assert np.mean(sizes) == pytest.approx(mean, rel=0.05)
    assert np.var(sizes) == pytest.approx(mean * (1 - 1 / parts), rel=0.15)


class Centred(LogisticRegression):
    def forward(self, x):
        logits = super().forward(x)
        return logits if logits.abs().max() < 1e9 else logits * 0


def test_a_model_that_looks_at_the_whole_batch_is_refused(add_part):
    add_part("model", "centred", Centred)
    with pytest.raises(InputError) as error:
        Host(scenario(NOISY, prototypes={"a": {"model": "centred"}}))
    assert (error.value.where, error.value.got) == ("prototypes.a.model", "centred")


@pytest.mark.privacy
@pytest.mark.parametrize("model", ["lenet5", "mcmahan-cnn"])
def test_a_clipped_sum_is_that_of_opacus(model):
    from opacus.grad_sample import GradSampleModule

    flat, samples, labels, _ = samples_of(model, 24)
    theirs = GradSampleModule(plain(flat.module), loss_reduction="sum")
    F.cross_entropy(theirs(samples), labels, reduction="sum").backward()
    rows = torch.cat([p.grad_sample.flatten(1) for p in theirs.parameters()], 1)
    assert_clipped(flat, samples, labels, rows)
