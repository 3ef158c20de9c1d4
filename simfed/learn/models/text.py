"""Models of text: characters (n, length) to logits of each next character.

Characters are whole numbers, logits (n, length, classes).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from simfed.learn.facts import check_token_shape
from simfed.learn.pretrained import GPT2Config, check_texts


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
    """Attention to what came before, then a perceptron of `inner` units.

    Layer norm before each, and both beside an identity.
    """

    def __init__(self, sizes: GPT2Config, approximate: str) -> None:
        super().__init__()
        width = sizes.width
        self.heads, self.approximate = sizes.heads, approximate
        self.norm1 = nn.LayerNorm(width, sizes.eps)
        self.attend = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width, sizes.eps)
        self.up = nn.Linear(width, sizes.inner)
        self.down = nn.Linear(sizes.inner, width)

    def forward(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        parts = self.attend(self.norm1(x)).view(
            n, length, 3, self.heads, width // self.heads
        )
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(seen.transpose(1, 2).reshape(n, length, width))
        raised = F.gelu(self.up(self.norm2(x)), approximate=self.approximate)
        return x + self.down(raised)


class _Decoder(nn.Module):
    """Blocks between an embedding and a head, which its class adds.

    Learned positions, layer norm first, no dropout.
    """

    tokens = True
    head: nn.Module

    def __init__(self, sizes: GPT2Config, approximate: str = "none") -> None:
        super().__init__()
        self.embed = nn.Embedding(sizes.vocabulary, sizes.width)
        self.places = nn.Parameter(
            torch.empty(sizes.positions, sizes.width).normal_(std=0.02)
        )
        self.blocks = nn.Sequential(
            *(_Block(sizes, approximate) for _ in range(sizes.depth))
        )
        self.norm = nn.LayerNorm(sizes.width, sizes.eps)

    def forward(self, x: Tensor) -> Tensor:
        """Characters (n, length) → logits (n, length, classes)."""
        hidden = self.embed(x) + self.places[: x.shape[1]]
        return self.head(self.norm(self.blocks(hidden)))


class CausalTransformer(_Decoder):
    """A small language model: width 128, 2 layers of 4 heads.

    Learned positions, layer norm first, no dropout. 431,712 parameters with 96
    characters in texts of 80.
    """

    width, depth, heads = 128, 2, 4

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        (length,) = check_token_shape("causal-transformer", input_shape)
        width, depth, heads = self.width, self.depth, self.heads
        sizes = GPT2Config(classes, length, width, depth, heads, 4 * width, 1e-5)
        super().__init__(sizes)
        self.head = nn.Linear(width, classes)


class GPT2(_Decoder):
    """A model of GPT-2's layout, whose head is its embedding, and without dropout.

    Tokens are those of its vocabulary; it answers with the logits of the first
    `classes` of them.

    Source: A. Radford et al., "Language models are unsupervised multitask learners",
    2019; the layout is that of the folders that Hugging Face's library saves.
    """

    def __init__(
        self, config: GPT2Config, input_shape: tuple[int, ...], classes: int
    ) -> None:
        check_texts(config, input_shape, classes)
        super().__init__(config, "tanh")
        self.head = _TiedHead(self.embed, classes)


class _TiedHead(nn.Linear):
    """The logits of the first tokens: products with their embeddings."""

    tied = True

    def __init__(self, embed: nn.Embedding, classes: int) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = embed.embedding_dim, classes
        self.weight = embed.weight
        self.register_parameter("bias", None)

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, self.weight[: self.out_features])
