"""What a task minimises and measures: the seam between data and everything that learns.

Training and evaluation ask an objective; what outputs and targets are is known here alone.
"""

from __future__ import annotations

from typing import Protocol

import torch.nn.functional as F
from torch import Tensor

from simfed.learn.losses import cross_entropy

__all__ = ["OBJECTIVES", "Objective"]


class Objective(Protocol):
    """A task's loss, and what its models are measured by."""

    def loss(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Of a batch: the mean over its samples, and its gradient in the outputs."""
        ...

    def each(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Per sample (n,), float64: the share of right answers, and the loss."""
        ...


class Classification:
    """Cross-entropy. Outputs (n, classes), targets (n,)."""

    def loss(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        return cross_entropy(outputs, targets)

    def each(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        losses = F.cross_entropy(outputs, targets, reduction="none").double()
        return (outputs.argmax(1) == targets).double(), losses


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


OBJECTIVES: dict[str, Objective] = {
    "classification": Classification(),
    "next-token": NextToken(),
}
"""By the task of a data set."""
