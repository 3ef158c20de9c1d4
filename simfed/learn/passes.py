"""Forward and backward passes over flat models, and the losses between them.

A loss is a function from logits to (its value, its gradient in the logits); closed
forms, so that a pass by hand needs no autograd tape and one by autograd starts from the
same numbers. `Passes` serves any module; `models.lenet_passes` and
`models.linear_passes` are faster for theirs, and `choose_passes` picks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from simfed.ground.registry import import_part
from simfed.learn.flat import FlatModel
from simfed.learn.models.build import plain
from simfed.learn.objective import Objective

Loss = Callable[[Tensor], tuple[Tensor, Tensor]]
"""logits (n, classes) → (value, gradient of the value in the logits).

Called without a tape, maybe in inference mode: no autograd inside, and the value is
only to be read."""

_LINEAR = "simfed.learn.models.linear_passes:LinearPasses"
"""Passes of chains of linear layers and activations, which need declare nothing."""

_OWN_GRADIENTS = 1 << 25
"""Numbers that gradients of samples, each of its own, may take at a time."""

SMALL_CHUNK, DEEP_CHUNK, DEVICE_CHUNK = 128, 32, 512
"""Samples per forward pass, as measured: for small models, for deep ones, on an
accelerator."""

PARTS = 4
"""A test set is worked through in so many parts at most, whatever the number of
processes."""


def find_stretch(total: int, parts: int, part: int) -> slice:
    """Return where `part` of `total` things in `parts` nearly equal stretches is.

    >>> [find_stretch(10, 4, part).start for part in range(4)]
    [0, 2, 5, 7]
    """
    return slice(total * part // parts, total * (part + 1) // parts)


def choose_passes(model: FlatModel, input_shape: tuple[int, ...]) -> Passes:
    """Return the fastest passes there are for this model on samples of this shape.

    A model may declare passes of its own for a processor: a class attribute `passes`, a
    class like `Passes` (or where it is, `"module:class"`) whose `suit(model,
    input_shape)` says whether they are this model's. They must compute what the module
    does, with gradients equal up to float32 rounding. On an accelerator, and where some
    parameters are frozen, each model takes its module's.

    Args:
        model: The flat model that the passes shall work on.
        input_shape: Of one sample.
    """
    if model.weights.device.type != "cpu":
        return Passes(model, DEVICE_CHUNK)
    # those differentiate every weight
    whole = all(p.requires_grad for p in model.module.parameters())
    fast = (getattr(type(model.module), "passes", None), _LINEAR) if whole else ()
    for declared in fast:
        passes: Any = import_part(declared) if isinstance(declared, str) else declared
        if passes is not None and passes.suit(model, input_shape):
            made: Passes = passes(model)
            return made
    deep = sum(isinstance(layer, nn.Conv2d) for layer in model.module.modules()) > 4
    return Passes(model, DEEP_CHUNK if deep else SMALL_CHUNK)


class Passes:
    """The passes of any module, by autograd.

    Parts of one's own inherit from it and override `evaluating_forward` and `gradient`,
    perhaps `clipped_gradient` and, with `stacks`, `gradients_of_rows`.
    """

    stacks = False
    """True if there is `gradients_of_rows`: models of one architecture in one pass."""
    stacked_together = 1
    """Models in one such pass, at most; more would be slower."""

    def __init__(self, model: FlatModel, chunk: int = SMALL_CHUNK) -> None:
        self.model = model
        self.chunk = chunk
        """Samples per forward pass: more leave the cache, fewer waste calls."""
        # Convolutions over several channels are faster where the channels of a pixel
        # are neighbours.
        self._channels_last = model.weights.device.type == "cpu" and any(
            isinstance(layer, nn.Conv2d) and layer.in_channels > 1
            for layer in model.module.modules()
        )

    def chunks(self, start: int, stop: int) -> Iterator[slice]:
        """Yield the slices from `start` to `stop` in which samples go through."""
        for first in range(start, stop, self.chunk):
            yield slice(first, min(first + self.chunk, stop))

    def logits(
        self, samples: Tensor, look_up: Callable[[Tensor], Tensor] | None = None
    ) -> Tensor:
        """Return the logits of the samples, in evaluation mode, float32.

        They are made a chunk at a time.

        Args:
            samples: (n, *input_shape), or (n,) positions for `look_up`.
            look_up: Positions of a chunk → its samples.

        Returns:
            (n, classes), in texts (n, length, classes).
        """
        parts = [samples[part] for part in self.chunks(0, len(samples))] or [samples]
        with torch.no_grad():
            forward = self.evaluating_forward()
            return torch.cat(
                [forward(look_up(part) if look_up else part) for part in parts]
            )

    def evaluating_forward(self) -> Callable[[Tensor], Tensor]:
        """Return samples → logits in evaluation mode, at the weights as they stand."""
        self.model.module.eval()
        return self._forward

    def _forward(self, samples: Tensor) -> Tensor:
        if self._channels_last and samples.dim() == 4:
            samples = samples.contiguous(memory_format=torch.channels_last)
        logits: Tensor = self.model.module(samples)
        return logits

    def gradients_of_rows(
        self, weights: Tensor, samples: Tensor, labels: Tensor, into: Tensor | float
    ) -> Tensor:
        """Return the mean cross-entropy of each of m models on n samples of its own.

        In training mode; the gradients overwrite `into`. Where that is a rate, the
        weights take a plain step of it.

        weights, into: (m, d), a model per row, neighbours in memory along the row;
        samples (m, n, *input_shape); labels (m, n). What a row gets hangs on no other
        row. Called in inference mode, and only where `stacks`.
        """
        raise NotImplementedError

    def gradient(
        self, samples: Tensor, loss: Loss, into: Tensor, *, training: bool
    ) -> Tensor:
        """Return the loss; its gradient is added to the flat vector `into`.

        Args:
            samples: (n, *input_shape).
            loss: Of their logits.
            into: (d,), changed in place.
            training: Batch norm uses the batch's statistics and moves the running ones.
        """
        self.model.module.train(training)
        self.model.accumulate_into(into)
        logits = self._forward(samples)
        value, gradient = loss(logits.detach())
        # the backward pass of a number: that of a tensor, the first time, imports 487
        # modules
        (logits * gradient.to(logits.dtype)).sum().backward()
        self.model.accumulate_into(None)
        return value

    def clipped_gradient(
        self,
        samples: Tensor,
        targets: Tensor,
        objective: Objective,
        clip: float,
        into: Tensor,
    ) -> Tensor:
        """Add each sample's gradient, clipped, to the flat vector `into`.

        In training mode. A sample whose gradient has no finite norm counts 0 in both:
        no factor shortens it. Here for any module that `torch.func.vmap` can follow.

        Args:
            samples: (n, *input_shape).
            targets: (n,) or as the objective wants them.
            objective: Gives the loss of each sample.
            clip: A gradient longer than this is shortened to it.
            into: (d,), changed in place.

        Returns:
            The sum of the losses.

        Raises:
            RuntimeError: `vmap` cannot follow the module.

        Source: M. Abadi et al., "Deep learning with differential privacy", CCS 2016,
        algorithm 1, before the noise.
        """
        named = dict(self._ordinary.named_parameters())
        trained = [name for name, p in named.items() if p.requires_grad]
        live = dict(zip(trained, self.model.split(self.model.weights), strict=True))
        fixed = {n: p.detach() for n, p in named.items() if n not in live}

        def compute_loss(
            weights: dict[str, Tensor], sample: Tensor, target: Tensor
        ) -> Tensor:
            outputs = functional_call(
                self._ordinary, {**fixed, **weights}, (sample[None],)
            )
            return objective.losses(outputs, target[None])[0]

        gradient_each = vmap(
            grad_and_value(compute_loss), in_dims=(None, 0, 0), randomness="different"
        )
        total = into.new_zeros(())
        most = max(1, min(self.chunk, _OWN_GRADIENTS // self.model.parameters))
        for some, mine in zip(samples.split(most), targets.split(most), strict=True):
            by_name, losses = gradient_each(live, some, mine)
            rows = torch.cat([by_name[name].flatten(1) for name in trained], 1)
            norms = torch.linalg.vector_norm(rows, dim=1)
            if not (finite := norms.isfinite()).all():
                rows, norms, losses = rows[finite], norms[finite], losses[finite]
            into += (clip / norms).clamp_(max=1.0) @ rows
            total += losses.sum()
        return total

    @cached_property
    def _ordinary(self) -> nn.Module:
        """A twin of ordinary layers, whose weights are not looked at."""
        return plain(self.model.module).train()
