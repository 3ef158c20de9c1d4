"""Training of a part of a model: low-rank adapters, the head, or all of it.

`build_model` calls `load_weights`, then `freeze`. What does not train asks for no
gradients, so a `FlatModel` leaves it out of the vector that travels.
"""

from __future__ import annotations

from math import sqrt

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from simfed.learn.models.layers import find_last_linear
from simfed.learn.pretrained import find_targets, find_weights, make_head_error
from simfed.scenario.prototype import PrototypeSpec


class AdaptedLinear(nn.Linear):
    """A linear layer that does not train, and two thin ones beside it that do.

    x → x·Wᵀ + b + scale·(x·Aᵀ)·Bᵀ, with A (rank, inputs) drawn as PyTorch draws the
    weights of a linear layer, which is what the authors' code does, and B (outputs,
    rank) at 0: at first it computes what the layer alone does.

    Source: E. J. Hu et al., "LoRA: Low-rank adaptation of large language models", 2021,
    equation 3.
    """

    def __init__(self, layer: nn.Linear, rank: int, scale: float) -> None:
        """Take over a layer's weight and bias, which stay as they are.

        Args:
            layer: The layer beside which the thin ones stand.
            rank: Of their product, at least 1.
            scale: The factor of their output (α / rank in the source).
        """
        nn.Module.__init__(self)
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.weight, self.bias = layer.weight, layer.bias
        self.A = nn.Parameter(torch.empty(rank, layer.in_features))
        nn.init.kaiming_uniform_(self.A, a=sqrt(5))
        self.B = nn.Parameter(torch.zeros(layer.out_features, rank))
        self.scale = scale

    def forward(self, input: Tensor) -> Tensor:
        """Map (…, inputs) to (…, outputs)."""
        whole = F.linear(input, self.weight, self.bias)
        return whole.add(F.linear(F.linear(input, self.A), self.B), alpha=self.scale)


class FrozenNorm(nn.Module):
    """Batch norm by its running statistics, which do not move.

    Nothing of it trains, so nothing of it travels.
    """

    def __init__(self, norm: _BatchNorm) -> None:
        super().__init__()
        self.eps = norm.eps
        self.weight: Tensor | None
        self.bias: Tensor | None
        self.running_mean: Tensor
        self.running_var: Tensor
        for name in ("weight", "bias", "running_mean", "running_var"):
            value = getattr(norm, name)
            fixed = None if value is None else nn.Parameter(value.detach(), False)
            self.register_parameter(name, fixed)

    def forward(self, x: Tensor) -> Tensor:
        """Map a batch to one of the same shape."""
        return F.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps
        )


def load_weights(module: nn.Module, path: str, model: str) -> None:
    """Copy a file's tensors into a module's parameters and running statistics.

    Args:
        module: A model without adapters yet.
        path: A safetensors file, or a folder of GPT-2's layout.
        model: Its name, for errors.

    Raises:
        InputError: The tensors are not the module's.
    """
    weights, kept = find_weights(path), module.state_dict().keys()
    into: dict[str, Tensor] = dict(module.named_parameters())
    into |= {
        name: buffer
        for name, buffer in module.named_buffers()
        if name in kept and buffer.is_floating_point()
    }
    weights.check({name: tuple(t.shape) for name, t in into.items()}, model)
    with torch.no_grad():
        weights.load(into)


def freeze(module: nn.Module, spec: PrototypeSpec, model: str) -> None:
    """Leave to training what `spec` says, and add the adapters of which alone it is.

    All else no longer asks for gradients; batch norm stands still, and running
    statistics become frozen parameters, so that none travels.

    Args:
        module: A model, changed in place.
        spec: Of its prototype.
        model: Its name, for errors.

    Raises:
        InputError: There is no such layer.
    """
    if spec.whole:
        return
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    if spec.adapters is None:
        head = find_last_linear(module)
        if head is None or getattr(head, "tied", False):
            raise make_head_error(model)
        for parameter in head.parameters():
            parameter.requires_grad_(True)
    else:
        linear = {n: x for n, x in module.named_modules() if type(x) is nn.Linear}
        sizes = {n: (x.out_features, x.in_features) for n, x in linear.items()}
        rank = spec.adapters.rank
        for name in find_targets(sizes, spec.adapters.targets, rank, model):
            adapted = AdaptedLinear(linear[name], rank, spec.adapters.scale)
            _replace(module, name, adapted)
    for name, layer in list(module.named_modules()):
        if isinstance(layer, _BatchNorm) and layer.running_mean is not None:
            _replace(module, name, FrozenNorm(layer))
    for layer in module.modules():
        for name, buffer in list(layer._buffers.items()):
            if buffer is not None and buffer.is_floating_point():
                del layer._buffers[name]
                layer.register_parameter(name, nn.Parameter(buffer, False))


def _replace(module: nn.Module, name: str, layer: nn.Module) -> None:
    """Put a layer in the place of the one of this dotted name."""
    parent, _, last = name.rpartition(".")
    setattr(module.get_submodule(parent), last, layer)
