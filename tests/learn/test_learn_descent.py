"""Local steps are PyTorch's: with momentum, weight decay, clipping, and Adam."""

import pytest
import torch
from torch import nn

from simfed.learn.descent import Descent
from simfed.scenario import Training

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
    common = {"lr": RATE, "weight_decay": training.weight_decay}
    if training.optimizer == "adam":
        optimiser = torch.optim.Adam([theirs], **common)
    else:
        optimiser = torch.optim.SGD([theirs], momentum=training.momentum, **common)
    ours, descent = start.clone(), Descent(training, RATE)
    for step in range(12):
        # short ones, which no clip shortens, and long ones
        gradient = torch.randn(50, generator=draw) * (0.02 if step % 3 else 2.0)
        theirs.grad = gradient.clone()
        if training.clip_norm is not None:
            nn.utils.clip_grad_norm_([theirs], training.clip_norm)
        optimiser.step()
        descent.step(ours, gradient)
        torch.testing.assert_close(ours, theirs.detach(), rtol=1e-6, atol=1e-7)
