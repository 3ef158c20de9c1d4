"""bfloat16 on the public set, channels-last and chunks: what changes and what does not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
import engine_worlds as tiny

from simfed.ground.seeding import Streams
from simfed.learn.flat import FlatModel
from simfed.learn.hosted import HostedWorkload
from simfed.learn.losses import cross_entropy
from simfed.learn.models import build_model
from simfed.learn.models.convpool import compiled
from simfed.learn.models.lenet_passes import LeNetPasses
from simfed.learn.models.linear_passes import LinearPasses
from simfed.learn.passes import DEEP_CHUNK, Passes, choose_passes
from simfed.learn.plain import plain_rounds


def played(**changes):
    scenario = tiny.scenario(rounds=3, **changes)
    work = HostedWorkload(scenario, Streams(0))
    rounds = list(plain_rounds(scenario, work, Streams(0)))
    work.close()
    return [played.outcome for played in rounds]


def test_bf16_touches_what_comes_from_the_public_set_only():
    fixed = {"policy": {"kind": "ascend", "warmup": 1, "reward": {"local_loss": {"samples": 40}}}}
    coarse = played(precision={"public": "bf16"}, **fixed)
    exact = played(**fixed)
    for client in range(4):
        # f_n before the first merge: training and probes are as they were
        label = f"{client}/1"
        assert coarse[0].local_loss[label][0] == exact[0].local_loss[label][0]
    for name, loss in exact[0].shared_loss.items():
        assert coarse[0].shared_loss[name] != loss
        assert coarse[0].shared_loss[name] == pytest.approx(loss, rel=0.2)
    for name, evaluation in exact[-1].evaluation.items():
        assert coarse[-1].evaluation[name].loss == pytest.approx(evaluation.loss, rel=0.02)


@pytest.mark.parametrize("name", ["resnet18", "wresnet40-2", "lenet5"])
def test_bf16_logits_and_gradients_are_near_those_of_float32(name):
    shape = (3, 16, 16)
    flat = FlatModel(build_model(name, shape, 10, seed=0))
    passes = choose_passes(flat, shape)
    x = torch.randn(8, *shape, generator=torch.Generator().manual_seed(0))
    exact, coarse = passes.logits(x), passes.logits(x, bf16=True)
    assert coarse.dtype == torch.float32
    assert not torch.equal(exact, coarse)
    torch.testing.assert_close(coarse, exact, rtol=0.1, atol=0.05 * exact.abs().max().item())
    gradients = []
    for bf16 in (False, True):
        into = torch.zeros_like(flat.weights)
        labels = torch.arange(8)
        passes.gradient(x, lambda z: cross_entropy(z, labels), into, training=False, bf16=bf16)  # noqa: B023
        gradients.append(into)
    assert torch.cosine_similarity(*gradients, dim=0) > 0.98


def test_deep_models_run_in_chunks_that_fit_the_cache_and_lose_nothing_by_it():
    shape = (3, 8, 8)
    model = build_model("wresnet40-2", shape, 10, seed=0)
    passes = choose_passes(FlatModel(model), shape)
    assert passes.chunk == DEEP_CHUNK
    x = torch.randn(2 * DEEP_CHUNK + 3, *shape)
    with torch.no_grad():
        expected = model.eval()(x)
    torch.testing.assert_close(passes.logits(x), expected, rtol=1e-5, atol=1e-6)


def test_lenets_and_linear_layers_go_by_hand_and_others_by_autograd():
    for name, kind in (
        ("lenet5", LeNetPasses if compiled() else Passes),
        ("resnet18", Passes),
        ("logistic-regression", LinearPasses),
        ("perceptron", LinearPasses),
    ):
        passes = choose_passes(FlatModel(build_model(name, (1, 28, 28), 10, seed=0)), (1, 28, 28))
        assert type(passes) is kind
