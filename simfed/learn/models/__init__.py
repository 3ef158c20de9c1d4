"""The models: architectures as ordinary `torch.nn.Module`s, built from a keyed seed.

A registered model is anything that can be called as `factory(input_shape, classes)` and
returns a `torch.nn.Module` that maps a batch `(n, *input_shape)` of float32 samples to
logits `(n, classes)`: a class with that constructor, or a function. `docs/extending.md`
shows one of a user's own. A model of text has an attribute `tokens = True`, and maps
whole numbers `(n, length)` to `(n, length, classes)`; in a regression `classes` is 1.

`build` makes and counts them, `adapters` says what of one trains, `layers` and
`convpool` are fast parts of LeNets, `…_passes` gradients without a tape.
"""

from simfed.learn.models.build import build_model, count_facts, plain
from simfed.learn.models.conv import FemnistCNN, McMahanCNN
from simfed.learn.models.lenet import LeNet5, LeNet5Half
from simfed.learn.models.linear import LogisticRegression, Perceptron
from simfed.learn.models.resnet import ResNet18, ResNet18GN, WResNet40x2
from simfed.learn.models.text import CausalTransformer, CharLSTM

__all__ = [
    "CausalTransformer",
    "CharLSTM",
    "FemnistCNN",
    "LeNet5",
    "LeNet5Half",
    "LogisticRegression",
    "McMahanCNN",
    "Perceptron",
    "ResNet18",
    "ResNet18GN",
    "WResNet40x2",
    "build_model",
    "count_facts",
    "plain",
]
