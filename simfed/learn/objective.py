"""Objectives: the loss and the measure of a task.

This is the seam between data and everything that learns. Training and evaluation ask an
objective; what outputs and targets are is known here alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from simfed.ground.errors import InputError
from simfed.ground.measure import ACCURACY, CLASS_MEASURES, RECALL
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

    def scores(self, outputs: Tensor) -> Tensor | None:
        """Return the outputs from which measures are counted beside `each`, if any."""
        ...

    def measures(
        self, accuracy: float, loss: float, by_class: Tensor
    ) -> dict[str, float | None]:
        """Return by key the measures of a model, the one that counts first.

        None are there where that is the accuracy alone.

        Args:
            accuracy: the mean share of right answers.
            loss: the mean loss.
            by_class: from `count_by_class`; without columns where `scores` has none.
        """
        ...


@dataclass(frozen=True)
class Classification:
    """Cross-entropy. Outputs (n, classes), targets (n,).

    The measure that counts is the accuracy, unless the scenario names others: balanced
    accuracy, AUC and recalls, which are means over classes or a class's own.
    """

    named: tuple[str, ...] = (ACCURACY.key,)
    """The scenario's `evaluation.measures`."""

    def loss(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean cross-entropy, and its gradient in the logits."""
        return cross_entropy(outputs, targets)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the cross-entropy of each sample."""
        return F.cross_entropy(outputs, targets, reduction="none").double()

    def each(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return 1 for each right answer, and the cross-entropies."""
        right = (outputs.argmax(1) == targets).double()
        return right, _list_cross_entropies(outputs, targets)

    def scores(self, outputs: Tensor) -> Tensor | None:
        """Return the logits where more than the accuracy is measured."""
        return None if self.named == (ACCURACY.key,) else outputs

    def measures(
        self, accuracy: float, loss: float, by_class: Tensor
    ) -> dict[str, float | None]:
        """Return what the scenario names; a class without samples has no recall."""
        values: dict[str, float | None] = {}
        if not by_class.numel():
            return values
        samples, right, auc = by_class
        recalls = right / samples
        of = {"accuracy": accuracy, "balanced-accuracy": recalls.nanmean().item()}
        of["auc"] = auc.nanmean().item()
        for name in self.named:
            if name == RECALL:
                numbers = enumerate(recalls.tolist())
                values |= {
                    f"{RECALL}_{label}": None if math.isnan(recall) else recall
                    for label, recall in numbers
                }
            else:
                values[CLASS_MEASURES[name].key] = of[name]
        return values


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

    def scores(self, outputs: Tensor) -> None:
        """Return None: there are no classes."""

    def measures(
        self, accuracy: float, loss: float, by_class: Tensor
    ) -> dict[str, float | None]:
        """Return the root of the mean squared error, in the target's unit."""
        return {"measure": self.sd * float(loss**0.5)}


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

    def scores(self, outputs: Tensor) -> None:
        """Return None: a character's class is no person's."""

    def measures(
        self, accuracy: float, loss: float, by_class: Tensor
    ) -> dict[str, float | None]:
        """Return the perplexity per character."""
        return {"measure": math.inf if loss > _MOST_NATS else math.exp(loss)}


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


def count_by_class(
    logits: Tensor, labels: Tensor, classes: int, *, ranks: bool
) -> Tensor:
    """Return per class samples, right answers and AUC, (3, classes) float64.

    AUC is that of the class against all others by softmax, the share of pairs of a
    sample of the class and another one of which the first has the higher probability;
    equal ones count half (Hanley and McNeil 1982). It is NaN where the test set has no
    such pairs, and where `ranks` does not ask for it. What is no number counts as 0.

    >>> logits = torch.tensor([[2.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    >>> count_by_class(logits, torch.tensor([0, 0, 1, 1]), 2, ranks=True).tolist()
    [[2.0, 2.0], [2.0, 1.0], [0.875, 0.875]]
    """
    samples = torch.bincount(labels, minlength=classes).double()
    right = torch.bincount(labels[logits.argmax(1) == labels], minlength=classes)
    auc = torch.full_like(samples, math.nan)
    shares = torch.softmax(logits.double(), dim=1).nan_to_num(0.0)
    for label in range(classes if ranks else 0):
        own = labels == label
        ours, others = shares[own, label], shares[~own, label].sort().values
        # those below each of ours, and those that are not above: ties count half
        below = torch.searchsorted(others, ours) + torch.searchsorted(
            others, ours, right=True
        )
        auc[label] = below.sum() / 2 / (len(ours) * len(others) or math.nan)
    return torch.stack([samples, right.double(), auc])


def choose_objective(
    data: Dataset, measures: tuple[str, ...] = (ACCURACY.key,)
) -> Objective:
    """Return the objective of the data set's task.

    measures: the scenario's, of a classification.

    Raises: `InputError` where AUC is asked for and all test samples are of one class.
    """
    classified = data.task == "classification"
    if classified and "auc" in measures and len(np.unique(data.test_labels)) == 1:
        allowed = "without auc, as all test samples are of one class"
        raise InputError(allowed, where="evaluation.measures", got=[*measures])
    if data.task == "regression":
        variance = float(data.test_labels.var(dtype="float64")) or 1.0
        return Regression(variance, data.target_sd)
    return Classification(measures) if classified else NextToken()
