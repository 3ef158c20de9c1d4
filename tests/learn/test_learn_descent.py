"""Local steps are PyTorch's: with momentum, weight decay, clipping, and Adam."""

import engine_worlds as tiny
import pytest
import torch
from torch import nn

from simfed.compress.choice import Choice
from simfed.ground.seeding import Streams
from simfed.learn.descent import Descent
from simfed.learn.hosted import HostedWorkload
from simfed.scenario.model import Training

RATE = 0.05
OPTIONS = {
    "plain": {},
    "momentum": {"momentum": 0.9},
    "weight decay": {"weight_decay": 0.1},
    "clipping": {"clip_norm": 0.5},
    "all of sgd": {"momentum": 0.8, "weight_decay": 0.01, "clip_norm": 1.0},
    "adam": {"optimizer": "adam"},
    "all of adam": {"optimizer": "adam", "weight_decay": 0.01, "clip_norm": 1.0},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_the_steps_are_those_of_torch(options):
    training = Training(**options)
    draw = torch.Generator().manual_seed(0)
    start = torch.randn(50, generator=draw)
    theirs = nn.Parameter(start.clone())
    sgd = {
        "lr": RATE,
        "momentum": training.momentum,
        "weight_decay": training.weight_decay,
    }
    if training.optimizer == "adam":
        optimiser = torch.optim.Adam(
            [theirs], lr=RATE, weight_decay=training.weight_decay
        )
    else:
        optimiser = torch.optim.SGD([theirs], **sgd)
    ours, descent = start.clone(), Descent(training, RATE)
    for step in range(12):
        gradient = torch.randn(50, generator=draw) * (0.02 if step % 3 else 2.0)
        theirs.grad = gradient.clone()
        if training.clip_norm is not None:
            nn.utils.clip_grad_norm_([theirs], training.clip_norm)
        optimiser.step()
        descent.step(ours, gradient)
        torch.testing.assert_close(ours, theirs.detach(), rtol=1e-6, atol=1e-7)


def test_short_gradients_are_left_alone():
    training, weights = Training(clip_norm=10.0), torch.zeros(2)
    Descent(training, 1.0).step(weights, torch.tensor([3.0, -4.0]))
    assert weights.tolist() == [-3.0, 4.0]


def weights_after(training, method, rounds=2):
    prototypes = {"small": {"model": "lenet5-half"}}
    clients = [{"count": 2, "prototype": "small", "device": "any"}]
    fixed = {"kind": "uniform", "strategy": "dense"}
    plain = tiny.scenario(
        method=method,
        prototypes=prototypes,
        clients=clients,
        policy=fixed,
        training={"batch_size": 16, **training},
    )
    work = HostedWorkload(plain, Streams(0), data=tiny.federation(plain), learns=False)
    for round in range(1, rounds + 1):
        work.merge(
            round,
            [work.execute(work.task(round, c), Choice("dense", 1)) for c in (0, 1)],
        )
    weights = tiny.state_of(work).server["small"]["weights"]
    work.close()
    return weights


@pytest.mark.parametrize("method", ["fedkd", "fedavg"])
def test_methods_use_the_optimiser_of_the_scenario(method):
    plain = weights_after({"local_steps": 3}, method)
    for options in ({"momentum": 0.9}, {"optimizer": "adam"}, {"clip_norm": 1e-3}):
        other = weights_after({"local_steps": 3, **options}, method)
        assert torch.isfinite(other).all()
        assert (other - plain).abs().max() > 1e-4
    assert torch.equal(
        weights_after({"local_steps": 3, "momentum": 0.0}, method), plain
    )


def test_fedavg_with_momentum_is_what_a_textbook_makes_of_it():
    """One client, dense: the server's model afterwards is the client's own."""
    import copy

    import torch.nn.functional as F

    from simfed.learn.federation import draw_local
    from simfed.learn.models import build_model, plain

    scenario = tiny.scenario(
        method="fedavg",
        prototypes={"only": {"model": "lenet5-half"}},
        rounds=1,
        clients=[{"count": 1, "prototype": "only", "device": "any"}],
        training={
            "batch_size": 16,
            "local_steps": 5,
            "momentum": 0.9,
            "weight_decay": 0.01,
            "clip_norm": 1.0,
        },
        policy={"kind": "uniform", "strategy": "dense"},
    )
    data, streams = tiny.federation(scenario), Streams(0)
    work = HostedWorkload(scenario, streams, data=data, learns=False)
    module = build_model(
        "lenet5-half",
        data.input_shape,
        data.classes,
        seed=streams.integer("init", "only"),
    )
    module = copy.deepcopy(plain(module)).train()
    optimiser = torch.optim.SGD(
        module.parameters(), lr=0.02, momentum=0.9, weight_decay=0.01
    )
    for batch in draw_local(streams("batch", 0, 1), data.owned[0], scenario.training):
        optimiser.zero_grad()
        at = torch.from_numpy(batch)
        F.cross_entropy(module(data.samples(at)), data.labels[at]).backward()
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimiser.step()
    work.merge(1, [work.execute(work.task(1, 0), Choice("dense", 1))])
    ours = tiny.state_of(work).server["only"]["weights"]
    theirs = torch.cat([p.detach().reshape(-1) for p in module.parameters()])
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    work.close()
