"""What a task minimises and measures: the seam between data and everything that learns.

Training and evaluation ask an objective; what outputs and targets are is known here alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from simfed.learn.data import Dataset
from simfed.learn.losses import cross_entropy

_MOST_NATS = 700.0
"""The largest loss whose exponential a float can hold."""


class Objective(Protocol):
    """A task's loss, and what its models are measured by."""

    def loss(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Of a batch: the mean over its samples, and its gradient in the outputs."""
        ...

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each sample (n,), float64, which `torch.func.vmap` can follow."""
        ...

    def each(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Per sample (n,), float64: a share (of right answers; at most 1), and the loss."""
        ...

    def measure(self, loss: float) -> float | None:
        """By what models are judged, from the mean loss; None: by the mean share."""
        ...


class Classification:
    """Cross-entropy. Outputs (n, classes), targets (n,)."""

    def loss(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        return cross_entropy(outputs, targets)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets, reduction="none").double()

    def each(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        return (outputs.argmax(1) == targets).double(), _list_cross_entropies(outputs, targets)

    def measure(self, loss: float) -> float | None:
        return None


@dataclass(frozen=True)
class Regression:
    """Mean squared error of standardised targets; the measure is its root in the target's unit
    (RMSE), the share R²: what of the test targets' variance is explained, 1 at best, 0 for their
    mean, below 0 for worse. Outputs (n, 1), targets (n,)."""

    variance: float
    """The variance of all test targets."""
    sd: float = 1.0
    """What one is in the target's unit."""

    def loss(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        apart = outputs[:, 0] - targets
        return (apart * apart).mean(), (2 / len(apart) * apart)[:, None]

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs[:, 0] - targets).double().square()

    def each(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        squares = self.losses(outputs, targets)
        return 1 - squares / self.variance, squares

    def measure(self, loss: float) -> float | None:
        return self.sd * float(loss**0.5)


class NextToken:
    """Cross-entropy of each next character, in nats; the measure is its exponential, the perplexity
    per character. Outputs (n, length, classes), targets (n, length)."""

    def loss(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        value, gradient = cross_entropy(outputs.flatten(0, 1), targets.flatten())
        return value, gradient.view_as(outputs)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        rows = F.cross_entropy(outputs.flatten(0, 1), targets.flatten(), reduction="none")
        return rows.view_as(targets).double().mean(1)

    def each(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        rows = _list_cross_entropies(outputs.flatten(0, 1), targets.flatten())
        right = (outputs.argmax(2) == targets).double()
        return right.mean(1), rows.view_as(targets).mean(1)

    def measure(self, loss: float) -> float | None:
        return math.inf if loss > _MOST_NATS else math.exp(loss)


def _list_cross_entropies(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy of each sample, float64: a finite number, or NaN where an output is
    none. Outputs (n, classes), targets (n,)."""
    losses = F.cross_entropy(outputs, targets, reduction="none").double()
    if losses.isinf().any():  # differences of outputs beyond single precision
        most = torch.finfo(outputs.dtype).max
        wide = outputs.double().clamp(-most, most)
        finite = F.cross_entropy(wide, targets, reduction="none")
        losses = torch.where(losses.isinf(), finite, losses)
    return losses


def choose_objective(data: Dataset) -> Objective:
    """By the data set's task."""
    if data.task == "regression":
        variance = float(data.test_labels.var(dtype="float64")) or 1.0
        return Regression(variance, data.target_sd)
    return NextToken() if data.task == "next-token" else Classification()
