"""The check of models finds what breaks the contract."""

import numpy as np
import torch
from broken_parts import naming
from torch import nn

from simfed.learn import LogisticRegression, ModelFacts, ReluPool
from simfed.learn.models import LeNet5Half
from simfed.testing import check_model


def test_a_function_is_a_model_too():
    check_model(
        lambda shape, classes: nn.Sequential(nn.Flatten(), nn.Linear(784, classes))
    )


class NumpyWeights(LogisticRegression):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.linear.bias.data += np.random.default_rng().normal()


class GlobalNumpy(LogisticRegression):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        np.random.rand()  # noqa: NPY002


class Constant(LogisticRegression):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        for values in self.parameters():
            nn.init.zeros_(values)


class Dropout(LogisticRegression):
    def forward(self, x):
        return super().forward(nn.functional.dropout(x, 0.5, self.training))


class DrawsAndIgnores(LogisticRegression):
    def forward(self, x):
        torch.rand(1)
        return super().forward(x)


class LooksAtTheBatch(LogisticRegression):
    def forward(self, x):
        return super().forward(x - x.mean(0))


class KeepsCounting(LogisticRegression):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.register_buffer("passes", torch.zeros(1))

    def forward(self, x):
        self.passes += 1
        return super().forward(x)


class Unused(LogisticRegression):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.other = nn.Linear(2, 2)


class OneTooMany(LogisticRegression):
    def __init__(self, input_shape, classes):
        super().__init__(input_shape, classes + 1)


class Infinite(LogisticRegression):
    def forward(self, x):
        return super().forward(x) / 0


class WrongFacts(LogisticRegression):
    @staticmethod
    def facts(*sizes):
        return ModelFacts(*sizes, 1, 2, 3, 4)


class SloppyPool(ReluPool):
    def plain(self):
        return nn.Sequential(nn.ReLU(), nn.AvgPool2d(2))


class SloppyLeNet(LeNet5Half):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.pool1 = SloppyPool()


test_a_broken_model_is_named = naming(
    check_model,
    {
        NumpyWeights: "the same weights from the same seed",
        GlobalNumpy: "no use of the global random generators",
        Constant: "other weights from another seed",
        Dropout: "the same bits from the same training pass",
        DrawsAndIgnores: "passes that draw no random numbers",
        LooksAtTheBatch: "of a sample that do not hang on the samples beside it",
        KeepsCounting: "buffers that evaluation mode leaves alone",
        Unused: "a gradient for every trainable parameter, none for .*other",
        OneTooMany: r"\(4, 10\) float32 logits",
        Infinite: "finite logits",
        WrongFacts: "the facts that it has: .*parameters=7850",
        SloppyLeNet: "fast layers that compute",
    },
)
