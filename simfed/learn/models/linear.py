"""Models of linear layers alone."""

from __future__ import annotations

from math import prod

from torch import Tensor, nn


class LogisticRegression(nn.Module):
    """One linear layer on the flattened sample: 7,850 parameters for MNIST.

    It takes samples of any shape of numbers, and is a linear regression with one class.
    """

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(prod(input_shape), classes)

    def forward(self, x: Tensor) -> Tensor:
        """Samples (n, *input_shape) → logits (n, classes)."""
        return self.linear(x.flatten(1))


class Perceptron(nn.Sequential):
    """Two hidden layers of 200 units, each with ReLU: the "2NN" of McMahan 2017.

    199,210 parameters on 1×28×28 images with 10 classes.
    """

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__(
            nn.Flatten(),
            nn.Linear(prod(input_shape), 200),
            nn.ReLU(),
            nn.Linear(200, 200),
            nn.ReLU(),
            nn.Linear(200, classes),
        )
