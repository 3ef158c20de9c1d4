"""Local steps on a flat vector of weights: SGD with momentum, or Adam, as PyTorch's own take
them."""

from __future__ import annotations

import torch
from torch import Tensor

from simfed.scenario.model import Training

__all__ = ["Descent", "plain_descent"]

_BETAS = (0.9, 0.999)
_EPSILON = 1e-8


class Descent:
    """The optimiser of one participation; its state begins anew with each.

    Per step: the gradient is shortened to `clip_norm` where it is longer, `weight_decay` × the
    weights is added, then it goes through momentum (heavy ball, no dampening) or Adam (β 0.9 and
    0.999, ε 1e-8). The same as `torch.nn.utils.clip_grad_norm_` on the whole model before
    `torch.optim.SGD` or `torch.optim.Adam` (tested); those are not called because they want a
    parameter per layer and, once, half a second of imports.
    """

    def __init__(self, training: Training, rate: float) -> None:
        self._training = training
        self._rate = rate
        self._plain = training.plain_sgd
        self._velocity: Tensor | None = None
        self._square: Tensor | None = None
        self._steps = 0

    def step(self, weights: Tensor, gradient: Tensor) -> None:
        """Move `weights`, in place; `gradient` is used up."""
        if self._plain:
            weights.sub_(gradient, alpha=self._rate)
            return
        training = self._training
        if training.clip_norm is not None:
            length = float(torch.linalg.vector_norm(gradient))
            gradient.mul_(min(1.0, training.clip_norm / (length + 1e-6)))
        if training.weight_decay:
            gradient.add_(weights, alpha=training.weight_decay)
        if training.optimizer == "adam":
            self._adam(weights, gradient)
        else:
            weights.sub_(self._with_momentum(gradient), alpha=self._rate)

    def _with_momentum(self, gradient: Tensor) -> Tensor:
        if not self._training.momentum:
            return gradient
        if self._velocity is None:
            self._velocity = gradient.clone()
        else:
            self._velocity.mul_(self._training.momentum).add_(gradient)
        return self._velocity

    def _adam(self, weights: Tensor, gradient: Tensor) -> None:
        if self._velocity is None or self._square is None:
            self._velocity = torch.zeros_like(gradient)
            self._square = torch.zeros_like(gradient)
        self._steps += 1
        self._velocity.lerp_(gradient, 1 - _BETAS[0])
        self._square.mul_(_BETAS[1]).addcmul_(gradient, gradient, value=1 - _BETAS[1])
        size = self._rate / (1 - _BETAS[0] ** self._steps)
        correction = (1 - _BETAS[1] ** self._steps) ** 0.5
        weights.addcdiv_(
            self._velocity, (self._square.sqrt() / correction).add_(_EPSILON), value=-size
        )


def plain_descent(rate: float, optimizer: str = "sgd") -> Descent:
    """The optimiser of work that is not local training: the scenario's momentum, weight decay and
    clipping are not for it."""
    return Descent(Training.model_validate({"optimizer": optimizer}), rate)
