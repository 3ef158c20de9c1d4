"""Objectives: the loss and the measure of a task.

This is the seam between data and everything that learns. Training and evaluation ask an
objective; what outputs and targets are is known here alone.
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
        """Return the mean loss of a batch, and its gradient in the outputs."""
        ...

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each sample (n,), float64, for `torch.func.vmap`."""
        ...

    def each(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return per sample (n,), float64, a share and the loss.

        The share is of right answers: at most 1.
        """
        ...

    def measure(self, loss: float) -> float | None:
        """Return the measure of a mean loss; None: the mean share is the measure."""
        ...


class Classification:
    """Cross-entropy. Outputs (n, classes), targets (n,)."""

    def loss(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean cross-entropy, and its gradient in the logits."""
        return cross_entropy(outputs, targets)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the cross-entropy of each sample."""
        return F.cross_entropy(outputs, targets, reduction="none").double()

    def each(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return 1 for each right answer, and the cross-entropies."""
        return (outputs.argmax(1) == targets).double(), _list_cross_entropies(
            outputs, targets
        )

    def measure(self, loss: float) -> float | None:
        """Return None: the share of right answers counts."""
        return None


@dataclass(frozen=True)
class Regression:
    """Mean squared error of standardised targets.

    The measure is its root in the target's unit (RMSE), the share R²: what of the test
    targets' variance is explained, 1 at best, 0 for their mean, below 0 for worse.
    Outputs (n, 1), targets (n,).
    """

    variance: float
    """The variance of all test targets."""
    sd: float = 1.0
    """The number by which targets were divided: 1 in their unit."""

    def loss(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean squared error, and its gradient."""
        apart = outputs[:, 0] - targets
        return (apart * apart).mean(), (2 / len(apart) * apart)[:, None]

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the squared error of each sample."""
        return (outputs[:, 0] - targets).double().square()

    def each(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return R² and the squared error of each sample."""
        squares = self.losses(outputs, targets)
        return 1 - squares / self.variance, squares

    def measure(self, loss: float) -> float | None:
        """Return the root of the mean squared error, in the target's unit."""
        return self.sd * float(loss**0.5)


class NextToken:
    """Cross-entropy of each next character, in nats.

    The measure is its exponential, the perplexity per character. Outputs (n, length,
    classes), targets (n, length).
    """

    def loss(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean cross-entropy per character, and its gradient."""
        value, gradient = cross_entropy(outputs.flatten(0, 1), targets.flatten())
        return value, gradient.view_as(outputs)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy of each text."""
        rows = F.cross_entropy(
            outputs.flatten(0, 1), targets.flatten(), reduction="none"
        )
        return rows.view_as(targets).double().mean(1)

    def each(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return the share of right characters of each text, and its cross-entropy."""
        rows = _list_cross_entropies(outputs.flatten(0, 1), targets.flatten())
        right = (outputs.argmax(2) == targets).double()
        return right.mean(1), rows.view_as(targets).mean(1)

    def measure(self, loss: float) -> float | None:
        """Return the perplexity per character."""
        return math.inf if loss > _MOST_NATS else math.exp(loss)


def _list_cross_entropies(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy of each sample, float64.

    It is a finite number, or NaN where an output is none. Outputs (n, classes), targets
    (n,).
    """
    losses = F.cross_entropy(outputs, targets, reduction="none").double()
    if losses.isinf().any():  # differences of outputs beyond single precision
        most = torch.finfo(outputs.dtype).max
        wide = outputs.double().clamp(-most, most)
        finite = F.cross_entropy(wide, targets, reduction="none")
        losses = torch.where(losses.isinf(), finite, losses)
    return losses


def choose_objective(data: Dataset) -> Objective:
    """Return the objective of the data set's task."""
    if data.task == "regression":
        variance = float(data.test_labels.var(dtype="float64")) or 1.0
        return Regression(variance, data.target_sd)
    return NextToken() if data.task == "next-token" else Classification()
