"""Local steps on a flat vector of weights: SGD with momentum, or Adam.

They are taken as PyTorch's own are.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from simfed.scenario.model import Training

_BETAS = (0.9, 0.999)
_EPSILON = 1e-8


class Descent:
    """The optimiser of one participation; its state begins anew with each.

    Per step: the gradient is shortened to `clip_norm` where it is longer,
    `weight_decay` × the weights is added, then it goes through momentum (heavy ball, no
    dampening) or Adam (β 0.9 and 0.999, ε 1e-8). The same as
    `torch.nn.utils.clip_grad_norm_` on the whole model before `torch.optim.SGD` or
    `torch.optim.Adam` (tested); those are not called because they want a parameter per
    layer and, once, half a second of imports.

    One may serve the participations of several `models`, each with a row of its own;
    each gets the bits that it would get alone.
    """

    def __init__(self, training: Training, rate: float, models: int = 1) -> None:
        """Begin without momentum.

        Args:
            training: optimiser and its settings.
            rate: learning rate of every step.
            models: rows that step in the same optimiser.
        """
        self._training = training
        self._rate = rate
        self._plain = training.plain_sgd
        self._velocity: Tensor | None = None
        self._square: Tensor | None = None
        self._steps = [0] * models

    def step(
        self, weights: Tensor, gradient: Tensor, rows: slice = slice(None)
    ) -> None:
        """Move `weights`, in place; `gradient` is used up.

        Both of one model (d,), or of the models in these `rows`, (m, d).
        """
        if self._plain:
            weights.sub_(gradient, alpha=self._rate)
            return
        training = self._training
        if weights.dim() == 1:
            weights, gradient = weights[None], gradient[None]
        if training.clip_norm is not None:
            length = torch.linalg.vector_norm(gradient, dim=1, keepdim=True).double()
            gradient.mul_(
                (training.clip_norm / (length + 1e-6)).clamp_(max=1.0).float()
            )
        if training.weight_decay:
            gradient.add_(weights, alpha=training.weight_decay)
        if training.optimizer == "adam":
            self._step_by_adam(weights, gradient, rows)
        elif training.momentum:
            if self._velocity is None:
                self._velocity = self._make_zero_state(gradient)
            velocity = self._velocity[rows].mul_(training.momentum).add_(gradient)
            weights.sub_(velocity, alpha=self._rate)
        else:
            weights.sub_(gradient, alpha=self._rate)

    def _step_by_adam(self, weights: Tensor, gradient: Tensor, rows: slice) -> None:
        if self._velocity is None or self._square is None:
            self._velocity, self._square = (
                self._make_zero_state(gradient),
                self._make_zero_state(gradient),
            )
        velocity, square = self._velocity[rows], self._square[rows]
        self._steps[rows] = steps = [taken + 1 for taken in self._steps[rows]]
        velocity.lerp_(gradient, 1 - _BETAS[0])
        square.mul_(_BETAS[1]).addcmul_(gradient, gradient, value=1 - _BETAS[1])
        sizes = [-self._rate / (1 - _BETAS[0] ** step) for step in steps]
        corrections = [(1 - _BETAS[1] ** step) ** 0.5 for step in steps]
        # a model's own numbers beside its row: some may have taken more steps than
        # others
        size, correction = (
            weights.new_tensor(x)[:, None] for x in (sizes, corrections)
        )
        weights.add_(
            (velocity * size).div_(square.sqrt().div_(correction).add_(_EPSILON))
        )

    def _make_zero_state(self, gradient: Tensor) -> Tensor:
        return gradient.new_zeros(len(self._steps), gradient.shape[1])


@cache
def make_plain_training(optimizer: str) -> Training:
    """Return the settings of work that is not local training.

    The scenario's momentum, weight decay and clipping are not for it.
    """
    return Training.model_validate({"optimizer": optimizer})
