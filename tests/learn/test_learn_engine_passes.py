"""The passes by hand against autograd over ordinary layers.

Losses and their gradients.
"""

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from textbook import assert_same, gradients
from torch import nn

from simfed.learn import (
    FlatModel,
    LeNet5,
    LeNetPasses,
    LinearPasses,
    LogisticRegression,
    Passes,
    ReluPool,
    build_model,
    choose_passes,
    compiled,
)
from simfed.learn.losses import cross_entropy
from simfed.learn.models import Perceptron, ResNet18, lenet_passes, plain

needs_loops = pytest.mark.skipif(
    compiled() is None, reason="the package was built without a C++ compiler"
)
SHAPES = [
    ("lenet5", (1, 28, 28)),
    ("lenet5-half", (1, 28, 28)),
    ("lenet5", (3, 32, 32)),
    ("lenet5-half", (5, 16, 20)),
]


def images(shape, count=9, seed=0):
    """Random images with constant borders, as digits have: pooling windows full of
    ties.
    """
    made = torch.randn(count, *shape, generator=torch.Generator().manual_seed(seed))
    made[..., :4, :] = 0.0
    made[..., -5:] = -0.4
    return made


def labels(count=9):
    return torch.arange(count) % 10


@needs_loops
@pytest.mark.parametrize(("name", "shape"), SHAPES)
def test_logits_and_gradients_by_hand_are_those_of_autograd(name, shape):
    model, x = build_model(name, shape, 10, seed=1), images(shape)
    ordinary, flat = plain(model), FlatModel(model)
    logits = ordinary(x)
    loss = F.cross_entropy(logits, labels())
    loss.backward()
    expected = gradients(ordinary)
    for passes in (LeNetPasses(flat), Passes(flat)):
        passes.chunk = 4
        assert_same(passes.logits(x), logits, 1e-5, 1e-6)
        total = torch.ones_like(flat.weights)  # a gradient is added to what is there
        value = passes.gradient(
            x, lambda z: cross_entropy(z, labels()), total, training=True
        )
        assert_same(total - 1, expected, 1e-5, 1e-6)
        assert value.item() == pytest.approx(loss.item(), rel=1e-6)


class Wider(LeNet5):
    widths = (8, 20, 60, 30)


class Doubled(LogisticRegression):
    def forward(self, x):
        return 2 * super().forward(x)


def changed(kind, **parts):
    """Make a model of this kind with other parts."""

    def make(*shape):
        model = kind(*shape)
        for name, part in parts.items():
            setattr(model, name, part)
        return model

    return make


DROPPING = nn.Sequential(ReluPool(), nn.Dropout(0.5))
REFLECTING = nn.Conv2d(1, 6, 5, padding=2, padding_mode="reflect")
HOOKED, FROZEN = nn.Linear(784, 10), nn.Linear(784, 10)
HOOKED.register_forward_hook(lambda *_: None)
FROZEN.weight.requires_grad_(False)


def layers(*middle):
    return lambda *shape: nn.Sequential(nn.Flatten(), *middle)


TWICE = nn.Linear(784, 784)
LENET = LeNetPasses if compiled() else Passes


@pytest.mark.parametrize(
    ("factory", "kind"),
    [
        (LeNet5, LENET),
        (Wider, LENET),
        (changed(LeNet5, pool2=DROPPING), Passes),
        (changed(LeNet5, fc3=nn.Linear(84, 10, bias=False)), Passes),
        (changed(LeNet5, conv1=REFLECTING), Passes),
        (ResNet18, Passes),
        (LogisticRegression, LinearPasses),
        (Perceptron, LinearPasses),
        (Doubled, Passes),
        (changed(LogisticRegression, linear=HOOKED), Passes),
        (changed(LogisticRegression, linear=FROZEN), Passes),
        (layers(TWICE, nn.ReLU(), TWICE, nn.Linear(784, 10)), Passes),
        (layers(nn.Linear(784, 10), nn.Softplus()), Passes),
        (layers(nn.Linear(784, 10), nn.ReLU()), Passes),
        (layers(nn.Linear(784, 8), nn.Dropout(), nn.Linear(8, 10)), Passes),
    ],
)
def test_layers_that_are_known_go_by_hand_and_others_by_autograd(factory, kind):
    shape = (1, 28, 28)
    assert type(choose_passes(FlatModel(factory(shape, 10)), shape)) is kind


def test_images_whose_windows_do_not_fit_go_by_autograd(monkeypatch):
    shape = (1, 30, 30)
    assert type(choose_passes(FlatModel(LeNet5(shape, 10)), shape)) is Passes
    # and so do all where the package was built without a compiler
    monkeypatch.setattr(lenet_passes, "compiled", lambda: None)
    flat = FlatModel(LeNet5((1, 28, 28), 10))
    assert type(choose_passes(flat, (1, 28, 28))) is Passes


@pytest.mark.parametrize(("convolutions", "samples"), [(4, 128), (5, 32)])
def test_deep_models_pass_fewer_samples_at_a_time_and_lose_nothing(
    convolutions, samples
):
    """Which decides the last bits of what is learned."""
    convs = [nn.Conv2d(1, 1, 3, padding=1) for _ in range(convolutions)]
    model = nn.Sequential(*convs, nn.Flatten(), nn.Linear(36, 2))
    passes, x = choose_passes(FlatModel(model), (1, 6, 6)), torch.randn(67, 1, 6, 6)
    assert passes.chunk == samples
    torch.testing.assert_close(passes.logits(x), model(x).detach())


def test_cross_entropy_is_pytorch_s_bit_for_bit():
    logits = torch.randn(7, 5, requires_grad=True)
    chosen = torch.tensor([0, 4, 2, 2, 1, 3, 0])
    expected = F.cross_entropy(logits, chosen)
    expected.backward()
    value, gradient = cross_entropy(logits.detach(), chosen)
    assert value == expected
    assert torch.equal(gradient, logits.grad)


def test_a_first_gradient_imports_no_module_of_pytorch_and_learning_no_clock():
    # a backward pass of anything but a number would import hundreds, in every process
    script = """
import sys, torch
import simfed.learn.plain, simfed.learn.hosted
assert "simpy" not in sys.modules
from torch import nn
from simfed.learn.flat import FlatModel
from simfed.learn.losses import cross_entropy
from simfed.learn.passes import Passes
flat = FlatModel(nn.Linear(3, 2))
before = set(sys.modules)
into = torch.zeros(8)
loss = lambda logits: cross_entropy(logits, torch.tensor([0, 1]))
Passes(flat).gradient(torch.ones(2, 3), loss, into, training=True)
print(len([name for name in set(sys.modules) - before if name.startswith("torch")]))
"""
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True
    )
    assert ended.stdout == "0\n", ended.stderr


@pytest.mark.parametrize(
    ("name", "shape", "place"),
    [
        ("lenet5-half", (1, 28, 28), slice(-430)),
        ("perceptron", (1, 28, 28), slice(-2010)),
        ("resnet18", (3, 8, 8), slice(-5130)),
        ("perceptron", (1, 28, 28), slice(157_000)),
    ],
)
def test_gradients_beside_held_weights_have_the_bits_of_whole_ones(name, shape, place):
    flat, x = FlatModel(build_model(name, shape, 10, seed=1)), images(shape)
    passes = choose_passes(flat, shape)

    def gradient():
        into = torch.zeros_like(flat.weights)
        passes.gradient(x, lambda z: cross_entropy(z, labels()), into, training=True)
        return into

    whole = gradient()
    with flat.hold([place]):
        some = gradient()
    assert torch.equal(whole, gradient())
    assert whole[place].any()
    whole[place] = 0.0
    assert torch.equal(some, whole)
