"""Small networks of methods: generators, discriminators, adapters.

They stand beside the clients' models.

Their sizes are known without torch, as plans want them; their weights are flat vectors,
as everything else that travels or is kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Generator, Tensor


class Mlp(NamedTuple):
    """Linear layers with ReLU between them; no layer: the identity.

    A flat vector holds each layer's weight (outputs, inputs), then its bias, from the
    first layer on.

    >>> net = Mlp((3, 8, 2))
    >>> net.parameters, net.forward_flops, net.train_flops, net.shape
    (50, 80, 192, '3-8-2')
    """

    widths: tuple[int, ...]
    """Entries of the input, of each hidden layer and of the output."""
    bias: bool = True

    @property
    def layers(self) -> list[tuple[int, int]]:
        """(inputs, outputs) of each linear layer, from the first."""
        return list(zip(self.widths, self.widths[1:], strict=False))

    @property
    def parameters(self) -> int:
        """The length of its flat vector."""
        return sum((inputs + self.bias) * outputs for inputs, outputs in self.layers)

    @property
    def forward_flops(self) -> int:
        """FLOPs of one sample forward; matrix products alone, a multiply-add is 2."""
        return sum(2 * inputs * outputs for inputs, outputs in self.layers)

    @property
    def train_flops(self) -> int:
        """FLOPs of one sample forward and backward; no gradient for the input."""
        inputs, outputs = self.layers[0]
        return 3 * self.forward_flops - 2 * inputs * outputs

    @property
    def shape(self) -> str:
        """The widths in one word: part of the name of its work."""
        return "-".join(map(str, self.widths))

    def initial(self, generator: Generator) -> Tensor:
        """Return flat first weights as PyTorch initialises linear layers.

        They are uniform in ±1/√inputs, drawn from a `torch.Generator` on the CPU.
        """
        import torch

        parts = []
        for inputs, outputs in self.layers:
            bound = inputs**-0.5
            drawn = torch.rand((inputs + self.bias) * outputs, generator=generator)
            parts.append(drawn.mul_(2 * bound).sub_(bound))
        return torch.cat(parts)

    def forward(self, weights: Tensor, x: Tensor) -> Tensor:
        """Return (n, inputs) → (n, outputs), differentiable in both arguments."""
        import torch.nn.functional as F

        start = 0
        for number, (inputs, outputs) in enumerate(self.layers):
            middle = start + inputs * outputs
            bias = weights[middle : middle + outputs] if self.bias else None
            x = F.linear(
                x if number == 0 else x.relu(),
                weights[start:middle].view(outputs, inputs),
                bias,
            )
            start = middle + outputs * self.bias
        return x
