"""A model's worth for one client: on the test set, and on what is like its own.

That is the samples of the same owner, or all in the client's own label mix.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from simfed.fleet.contract import Evaluation, PersonalEvaluation
from simfed.learn.federation import Federation
from simfed.learn.objective import Objective, count_by_class


def sum_by_group(
    outputs: Tensor, targets: Tensor, objective: Objective, places: Tensor, groups: int
) -> Tensor:
    """Return per group samples, sums of shares and of losses.

    They are rows of (3, groups) float64; shares are of right answers.

    places: (n,) the group of each sample.

    >>> from simfed.learn.objective import Classification
    >>> logits, labels = torch.tensor([[9.0, 0.0], [9.0, 0.0]]), torch.tensor([0, 1])
    >>> sum_by_group(logits, labels, Classification(), labels, 2)[:2].tolist()
    [[1.0, 1.0], [1.0, 0.0]]
    """
    right, losses = objective.each(outputs, targets)
    zeros = torch.zeros(groups, dtype=torch.float64, device=outputs.device)
    columns = (torch.ones_like(right), right, losses)
    return torch.stack([zeros.index_add(0, places, column) for column in columns])


class TestPart(NamedTuple):
    """The results of a model on a part of the test set."""

    rows: Tensor
    """(3, groups), from `sum_by_group`."""
    scores: Tensor | None
    """(n, classes) where measures need them."""


def join_tests(parts: Sequence[TestPart], data: Federation) -> Tensor:
    """Return the results of a model on the whole test set, on the CPU.

    They are (3, groups) of `sum_by_group`; where measures need it, (3, classes) of
    `count_by_class` beside them.
    """
    rows = torch.stack([part.rows for part in parts]).sum(0)
    scores = [part.scores for part in parts if part.scores is not None]
    if scores:
        labels, ranks = data.test_labels, "auc" in data.measures
        classes = count_by_class(torch.cat(scores), labels, data.classes, ranks=ranks)
        rows = torch.cat([rows, classes], dim=1)
    return rows.cpu()


def label_counts(data: Federation, client: int) -> Tensor:
    """Return (classes,) training samples of each class that a client owns, float32."""
    positions = torch.as_tensor(data.owned[client], device=data.device)
    labels = data.labels.index_select(0, positions)
    return torch.bincount(labels, minlength=data.classes).float()


def compute_own_mix(data: Federation, client: int) -> Tensor:
    """Return how much each group of test samples counts for a client.

    It is its own group alone, where clients are owners with test samples, else every
    class as often as the client has it.
    """
    if data.own_groups is None:
        return label_counts(data, client).cpu()
    counts = data.own_groups.bincount(minlength=len(data.owned) + 1).float()
    if counts[client]:
        counts = torch.zeros_like(counts).index_fill_(0, torch.tensor(client), 1.0)
    return counts  # of an owner without test samples: as all count


def evaluate(tested: Tensor, groups: int, objective: Objective) -> Evaluation:
    """Return the share, loss and measures of what `join_tests` returns."""
    samples, right, losses = (float(row[:groups].sum()) for row in tested)
    accuracy, loss = right / samples, losses / samples
    measures = objective.measures(accuracy, loss, tested[:, groups:])
    return Evaluation(accuracy, loss, measures)


def evaluate_in_mix(
    tested: Tensor, mix: Tensor, objective: Objective
) -> PersonalEvaluation:
    """Return share and loss in a client's mix of groups, and the test set's measures.

    What counts by class (recall, AUC) is of the whole test set alone. Groups that the
    test set lacks count nothing in the client's own mix.

    Args:
        tested: From `join_tests`.
        mix: From `compute_own_mix`: how much each group counts, of any sum.
        objective: The task's.
    """
    whole = evaluate(tested, len(mix), objective)
    counts, right, losses = tested[:, : len(mix)]
    mix = mix.double() * (counts > 0)
    share = mix / mix.sum().clamp(min=1)
    each = counts.clamp(min=1)
    own_loss = float((share * losses / each).sum())
    own_accuracy = float((share * right / each).sum())
    own = objective.measures(own_accuracy, own_loss, tested[:, :0])
    measures = {f"own_{key}": value for key, value in own.items()}
    return PersonalEvaluation(
        whole.accuracy,
        whole.loss,
        own_accuracy,
        own_loss,
        {**whole.measures, **measures},
    )
