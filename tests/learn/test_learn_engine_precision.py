"""Channels-last and chunks: what changes and what does not."""

from __future__ import annotations

import torch

from simfed.learn.flat import FlatModel
from simfed.learn.models import build_model
from simfed.learn.models.convpool import compiled
from simfed.learn.models.lenet_passes import LeNetPasses
from simfed.learn.models.linear_passes import LinearPasses
from simfed.learn.passes import DEEP_CHUNK, Passes, choose_passes


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
        passes = choose_passes(
            FlatModel(build_model(name, (1, 28, 28), 10, seed=0)), (1, 28, 28)
        )
        assert type(passes) is kind
