"""Losses as sums over chunks of samples: what clients and the server minimise and report."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["kl_sum", "mean_logits", "soft_targets"]


def mean_logits(logits: list[Tensor]) -> Tensor:
    """The mean of the participants' logits, each (samples, classes), added in the order given."""
    total = logits[0].clone()
    for other in logits[1:]:
        total += other
    return total.div_(len(logits))


def soft_targets(logits: Tensor, temperature: float) -> Tensor:
    """softmax(logits / temperature) in float64: what the students learn from."""
    return torch.softmax(logits.double() / temperature, dim=1)


def kl_sum(targets: Tensor, logits: Tensor, temperature: float) -> Tensor:
    """Sum over samples and classes of KL(targets ‖ softmax(logits / temperature)).

    Divided by the number of samples this is the distillation loss: the mean over samples of the sum
    over classes. (`reduction="mean"` of PyTorch's would divide by the classes as well.)

    In float64, because the loss is a small difference of large terms: among models that nearly
    agree, as they do in the beginning, float32 leaves five digits of it, and rewards are
    differences of such losses. It costs microseconds, for it sees a few logits per sample.

    >>> uniform = torch.full((2, 4), 0.25, dtype=torch.float64)
    >>> kl_sum(uniform, torch.zeros(2, 4), 1.0).item()
    0.0
    """
    log_student = F.log_softmax(logits.double() / temperature, dim=1)
    return F.kl_div(log_student, targets, reduction="sum")
