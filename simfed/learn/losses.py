"""Losses of clients and the server, with gradients in closed form."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def mean_logits(logits: list[Tensor]) -> Tensor:
    """Return the mean of the participants' logits, added in the order given.

    Each is (samples, classes).
    """
    total = logits[0].clone()
    for other in logits[1:]:
        total += other
    return total.div_(len(logits))


def soft_targets(logits: Tensor, temperature: float) -> Tensor:
    """Return softmax(logits / temperature) in float64: what the students learn from."""
    return torch.softmax(logits.double() / temperature, dim=1)


def cross_entropy(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean cross-entropy over the samples, and its gradient.

    >>> value, gradient = cross_entropy(torch.zeros(1, 2), torch.tensor([1]))
    >>> round(value.item(), 6), gradient.tolist()
    (0.693147, [[0.5, -0.5]])
    """
    log_model = torch.log_softmax(logits, dim=1)
    value = F.nll_loss(log_model, labels)
    in_log_model = torch.zeros_like(logits).scatter_(
        1, labels[:, None], -1.0 / len(labels)
    )
    # PyTorch's own last step, so that gradients are those of its autograd bit for bit
    gradient = torch._log_softmax_backward_data(
        in_log_model, log_model, 1, logits.dtype
    )
    return value, gradient


def compute_cross_entropies(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return `cross_entropy` of several models at once.

    Logits (m, n, classes) and labels (m, n) → values (m,), equal up to rounding, and
    gradients, equal bit for bit.

    >>> labels = torch.ones(3, 1, dtype=torch.int64)
    >>> values, gradients = compute_cross_entropies(torch.zeros(3, 1, 2), labels)
    >>> values.shape, gradients[0].tolist()
    (torch.Size([3]), [[0.5, -0.5]])
    """
    log_models, places = torch.log_softmax(logits, dim=2), labels[..., None]
    in_log_models = torch.zeros_like(logits).scatter_(2, places, -1.0 / labels.shape[1])
    values = torch.linalg.vecdot(in_log_models.flatten(1), log_models.flatten(1))
    return values, torch._log_softmax_backward_data(
        in_log_models, log_models, 2, logits.dtype
    )


def kl_sum(
    targets: Tensor, logits: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """Return the sum of KL(targets ‖ softmax(logits / temperature)), and its gradient.

    The sum is over samples and classes.

    Divided by the number of samples this is the distillation loss: the mean over
    samples of the sum over classes. (`reduction="mean"` of PyTorch's would divide by
    the classes as well.)

    In float64, because the loss is a small difference of large terms: among models that
    nearly agree, as they do in the beginning, float32 leaves five digits of it, and
    rewards are differences of such losses. It costs microseconds, for it sees a few
    logits per sample.

    >>> uniform = torch.full((2, 4), 0.25, dtype=torch.float64)
    >>> [part.sum().item() for part in kl_sum(uniform, torch.zeros(2, 4), 1.0)]
    [0.0, 0.0]
    """
    log_student = torch.log_softmax(logits.double() / temperature, dim=1)
    # no less than 0, which rounding makes of it where student and teacher are one model
    value = F.kl_div(log_student, targets, reduction="sum").clamp_(min=0.0)
    return value, log_student.exp_().sub_(targets).div_(temperature)


def sum_reverse_kl(
    targets: Tensor, logits: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """Return the sum of KL(softmax(logits / temperature) ‖ targets), and its gradient.

    It is `kl_sum` with the two changed over. It asks the student to be nowhere that the
    teacher is not.

    Targets are taken for at least 1e-300.

    >>> certain = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    >>> value, gradient = sum_reverse_kl(certain, torch.zeros(1, 2), 1.0)
    >>> round(value.item(), 1), gradient.round().tolist()
    (344.7, [[-173.0, 173.0]])
    """
    log_student = torch.log_softmax(logits.double() / temperature, dim=1)
    student, apart = log_student.exp(), log_student - targets.clamp(min=1e-300).log()
    each = student * apart
    of_sample = each.sum(dim=1, keepdim=True)
    return each.sum().clamp_(min=0.0), (each - student * of_sample).div_(temperature)


DIVERGENCES = {"teacher-student": kl_sum, "student-teacher": sum_reverse_kl}
"""The divergences, by the scenario's word: which of the two the logarithm's mean is
over."""
