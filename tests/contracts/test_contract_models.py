"""Every registered model keeps the contract; the check notices those that do not."""

import numpy as np
import pytest
import torch
from torch import nn

from simfed.ground.registry import registry
from simfed.learn import LogisticRegression, ModelFacts, ReluPool
from simfed.learn.models import LeNet5Half
from simfed.testing import check_model


@pytest.mark.parametrize("name", registry("model").names())
def test_registered_model_keeps_the_contract(name):
    # the smallest image every built-in model takes
    check_model(registry("model").get(name), (3, 12, 12), 4)


def test_a_function_is_a_model_too():
    check_model(
        lambda shape, classes: nn.Sequential(nn.Flatten(), nn.Linear(784, classes))
    )


class NumpyWeights(LogisticRegression):
    def __init__(self, input_shape, classes):
        super().__init__(input_shape, classes)
        drawn = np.random.default_rng().normal(size=self.linear.bias.shape)
        self.linear.bias.data = torch.tensor(drawn, dtype=torch.float32)


class GlobalNumpy(LogisticRegression):
    def __init__(self, input_shape, classes):
        super().__init__(input_shape, classes)
        np.random.rand()  # noqa: NPY002


class Constant(LogisticRegression):
    def __init__(self, input_shape, classes):
        super().__init__(input_shape, classes)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)


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
    def __init__(self, input_shape, classes):
        super().__init__(input_shape, classes)
        self.register_buffer("passes", torch.zeros(1))

    def forward(self, x):
        self.passes += 1
        return super().forward(x)


class Unused(LogisticRegression):
    def __init__(self, input_shape, classes):
        super().__init__(input_shape, classes)
        self.other = nn.Linear(2, 2)


class OneTooMany(LogisticRegression):
    def __init__(self, input_shape, classes):
        super().__init__(input_shape, classes + 1)


class Infinite(LogisticRegression):
    def forward(self, x):
        return super().forward(x) / 0


class WrongFacts(LogisticRegression):
    @staticmethod
    def facts(input_shape, classes):
        return ModelFacts(input_shape, classes, 1, 2, 3, 4)


class SloppyPool(ReluPool):
    def plain(self):
        return nn.Sequential(nn.ReLU(), nn.AvgPool2d(2))


class SloppyLeNet(LeNet5Half):
    def __init__(self, input_shape, classes):
        super().__init__(input_shape, classes)
        self.pool1 = SloppyPool()


@pytest.mark.parametrize(
    ("factory", "expected"),
    [
        (NumpyWeights, "the same weights from the same seed"),
        (GlobalNumpy, "no use of the global random generators"),
        (Constant, "other weights from another seed"),
        (Dropout, "the same bits from the same training pass"),
        (DrawsAndIgnores, "passes that draw no random numbers"),
        (
            LooksAtTheBatch,
            "logits of a sample that do not hang on the samples beside it",
        ),
        (KeepsCounting, "buffers that evaluation mode leaves alone"),
        (Unused, "a gradient for every trainable parameter, none for .*other"),
        (OneTooMany, r"\(4, 10\) float32 logits"),
        (Infinite, "finite logits"),
        (WrongFacts, "the facts that it has: .*parameters=7850"),
        (SloppyLeNet, "fast layers that compute"),
    ],
)
def test_the_check_notices(factory, expected):
    with pytest.raises(AssertionError, match=f"expected {expected}"):
        check_model(factory)
