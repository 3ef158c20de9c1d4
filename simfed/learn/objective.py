"""What a task minimises and measures: the seam between data and everything that learns.

Training and evaluation ask an objective; what outputs and targets are is known here alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch.nn.functional as F
from torch import Tensor

from simfed.learn.data import Dataset
from simfed.learn.losses import cross_entropy

__all__ = ["Classification", "NextToken", "Objective", "Regression", "objective_of"]


class Objective(Protocol):
    """A task's loss, and what its models are measured by."""

    def loss(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Of a batch: the mean over its samples, and its gradient in the outputs."""
        ...

    def each(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Per sample (n,), float64: what the measure is the mean of (right answers), and the loss.

        Every task is measured by what is better the higher it is, and at most 1."""
        ...


class Classification:
    """Cross-entropy. Outputs (n, classes), targets (n,)."""

    def loss(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        return cross_entropy(outputs, targets)

    def each(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        losses = F.cross_entropy(outputs, targets, reduction="none").double()
        return (outputs.argmax(1) == targets).double(), losses


@dataclass(frozen=True)
class Regression:
    """Mean squared error; the measure is R², the share of the test targets' variance that is
    explained: 1 at best, 0 for their mean, below 0 for worse. Outputs (n, 1), targets (n,)."""

    variance: float
    """Of all test targets."""

    def loss(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        apart = outputs[:, 0] - targets
        return (apart * apart).mean(), (2 / len(apart) * apart)[:, None]

    def each(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        squares = (outputs[:, 0] - targets).double().square()
        return 1 - squares / self.variance, squares


class NextToken:
    """Cross-entropy of each next character, in nats: the perplexity per character is its
    exponential. Outputs (n, length, classes), targets (n, length)."""

    def loss(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        value, gradient = cross_entropy(outputs.flatten(0, 1), targets.flatten())
        return value, gradient.view_as(outputs)

    def each(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        rows = F.cross_entropy(outputs.flatten(0, 1), targets.flatten(), reduction="none")
        right = (outputs.argmax(2) == targets).double()
        return right.mean(1), rows.view_as(targets).double().mean(1)


def objective_of(data: Dataset) -> Objective:
    """By the data set's task."""
    if data.task == "regression":
        return Regression(float(data.test_labels.var(dtype="float64")) or 1.0)
    return NextToken() if data.task == "next-token" else Classification()
