"""A model of your own: a factory(input_shape, classes) that returns a torch module.

Samples come in as `input_shape` = (channels, height, width), logits go out. Check it
with `simfed.testing.check_model(MyNet)`.
"""

import math

import torch
from typing_extensions import override

import simfed


class MyNet(torch.nn.Module):
    """One hidden layer."""

    def __init__(self, input_shape, classes, width=32):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Flatten(),
            torch.nn.Linear(math.prod(input_shape), width),
            torch.nn.ReLU(),
            torch.nn.Linear(width, classes),
        )

    @override
    def forward(self, samples):
        return self.layers(samples)


simfed.register("model", "my-net", MyNet)
