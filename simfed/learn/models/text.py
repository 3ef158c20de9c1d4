"""Models of text: characters (n, length) to logits of each next character.

Characters are whole numbers, logits (n, length, classes).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from simfed.learn.facts import check_token_shape


class CharLSTM(nn.Module):
    """An embedding of 8 per character, two LSTM layers of 256, a linear layer.

    As the model of Shakespeare's characters in H. B. McMahan et al.,
    "Communication-efficient learning of deep networks from decentralized data", AISTATS
    2017, with PyTorch's two biases per gate: 824,160 parameters with 96 characters.
    """

    tokens = True
    embedding, hidden, depth = 8, 256, 2

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        check_token_shape("char-lstm", input_shape)
        self.embed = nn.Embedding(classes, self.embedding)
        self.lstm = nn.LSTM(self.embedding, self.hidden, self.depth, batch_first=True)
        self.head = nn.Linear(self.hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Characters (n, length) → logits (n, length, classes)."""
        return self.head(self.lstm(self.embed(x))[0])


class _Block(nn.Module):
    """Attention to what came before, then a perceptron of four times the width.

    Layer norm before each, and both beside an identity.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.attend = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        parts = self.attend(self.norm1(x)).view(
            n, length, 3, self.heads, width // self.heads
        )
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(seen.transpose(1, 2).reshape(n, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class CausalTransformer(nn.Module):
    """A small language model: width 128, 2 layers of 4 heads.

    Learned positions, layer norm first, no dropout. 431,712 parameters with 96
    characters in texts of 80.
    """

    tokens = True
    width, depth, heads = 128, 2, 4

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        (length,) = check_token_shape("causal-transformer", input_shape)
        self.embed = nn.Embedding(classes, self.width)
        self.places = nn.Parameter(torch.empty(length, self.width).normal_(std=0.02))
        self.blocks = nn.Sequential(
            *(_Block(self.width, self.heads) for _ in range(self.depth))
        )
        self.norm = nn.LayerNorm(self.width)
        self.head = nn.Linear(self.width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Characters (n, length) → logits (n, length, classes)."""
        hidden = self.embed(x) + self.places[: x.shape[1]]
        return self.head(self.norm(self.blocks(hidden)))
