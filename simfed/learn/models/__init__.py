"""The models: architectures as ordinary `torch.nn.Module`s, built from a keyed seed.

A registered model is anything that can be called as `factory(input_shape, classes)` and returns a
`torch.nn.Module` that maps a batch `(n, *input_shape)` of float32 samples to logits `(n, classes)`:
a class with that constructor, or a function. `docs/extending.md` shows one of a user's own.
"""

from simfed.learn.models.build import build_model, count_facts, plain
from simfed.learn.models.lenet import LeNet5, LeNet5Half
from simfed.learn.models.linear import LogisticRegression, Perceptron
from simfed.learn.models.resnet import ResNet18, WResNet40x2

__all__ = [
    "LeNet5",
    "LeNet5Half",
    "LogisticRegression",
    "Perceptron",
    "ResNet18",
    "WResNet40x2",
    "build_model",
    "count_facts",
    "plain",
]
