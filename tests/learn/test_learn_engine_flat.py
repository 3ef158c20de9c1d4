"""Modules upon flat storage, and memory that processes share."""

import torch
from torch import nn

from simfed.learn import FlatModel


def net():
    return nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3)
    )


def test_statistics_are_views_too_and_counters_are_not_among_them():
    model = FlatModel(net())
    assert model.statistics.tolist() == [0.0, 0.0, 1.0, 1.0]
    model.module.train()(torch.randn(4, 1, 4, 4))
    assert model.statistics[:2].abs().sum() > 0
    assert model.module[1].num_batches_tracked == 1
    model.reset_counters()
    assert model.module[1].num_batches_tracked == 0


def test_frozen_parameters_stay_outside_and_shared_ones_count_once():
    module = net()
    module[0].requires_grad_(False)
    frozen = module[0].weight.clone()
    model = FlatModel(module)
    assert model.parameters == 2 + 2 + 24 + 3
    model.weights.add_(1.0)
    assert torch.equal(module[0].weight, frozen)
    tied = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    tied[1].weight = tied[0].weight
    assert FlatModel(tied).parameters == 9
