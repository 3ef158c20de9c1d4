"""The passes by hand against autograd over ordinary layers.

Losses and their gradients.
"""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

from simfed.learn.flat import FlatModel
from simfed.learn.losses import cross_entropy, kl_sum, soft_targets
from simfed.learn.models import LeNet5, build_model, plain
from simfed.learn.models.convpool import compiled
from simfed.learn.models.lenet_passes import LeNetPasses
from simfed.learn.passes import Passes, choose_passes

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
def test_logits_by_hand_are_those_of_the_ordinary_layers(name, shape):
    model = build_model(name, shape, 10, seed=1)
    expected = plain(model).eval()(images(shape)).detach()
    flat = FlatModel(model)
    passes = LeNetPasses(flat)
    passes.chunk = 4
    logits = passes.logits(images(shape))
    torch.testing.assert_close(logits, expected, rtol=1e-6, atol=1e-6)


@needs_loops
@pytest.mark.parametrize(("name", "shape"), SHAPES)
def test_gradients_by_hand_are_those_of_autograd(name, shape):
    model = build_model(name, shape, 10, seed=1)
    ordinary = plain(model)
    F.cross_entropy(ordinary(images(shape)), labels()).backward()
    expected = torch.cat([p.grad.flatten() for p in ordinary.parameters()])
    flat = FlatModel(model)
    for passes in (LeNetPasses(flat), Passes(flat)):
        gradient = torch.zeros_like(flat.weights)
        value = passes.gradient(
            images(shape), lambda z: cross_entropy(z, labels()), gradient, training=True
        )
        torch.testing.assert_close(
            gradient, expected, rtol=1e-5, atol=1e-6 * expected.abs().max().item()
        )
        assert value.item() == pytest.approx(
            F.cross_entropy(ordinary(images(shape)), labels()).item(), rel=1e-6
        )


@needs_loops
def test_a_gradient_is_added_to_what_is_there():
    flat = FlatModel(build_model("lenet5", (1, 28, 28), 10, seed=0))
    for passes in (LeNetPasses(flat), Passes(flat)):
        alone = torch.zeros_like(flat.weights)
        passes.gradient(
            images((1, 28, 28)),
            lambda z: cross_entropy(z, labels()),
            alone,
            training=True,
        )
        residual = torch.randn(
            flat.parameters, generator=torch.Generator().manual_seed(2)
        )
        total = residual.clone()
        passes.gradient(
            images((1, 28, 28)),
            lambda z: cross_entropy(z, labels()),
            total,
            training=True,
        )
        assert torch.equal(total, residual + alone)


def test_images_whose_windows_do_not_fit_take_the_module():
    flat = FlatModel(build_model("lenet5", (1, 30, 30), 10, seed=0))
    passes = choose_passes(flat, (1, 30, 30))
    assert type(passes) is Passes
    assert passes.logits(images((1, 30, 30))).shape == (9, 10)


class WithDropout(LeNet5):
    def __init__(self, input_shape, classes):
        super().__init__(input_shape, classes)
        self.pool2 = torch.nn.Sequential(self.pool2, torch.nn.Dropout(0.5))


class Wider(LeNet5):
    widths = (8, 20, 60, 30)


def test_other_layers_in_a_lenet_s_places_take_the_module():
    shape = (1, 28, 28)
    assert type(choose_passes(FlatModel(WithDropout(shape, 10)), shape)) is Passes
    without_bias = LeNet5(shape, 10)
    without_bias.fc3 = torch.nn.Linear(84, 10, bias=False)
    assert type(choose_passes(FlatModel(without_bias), shape)) is Passes
    reflecting = LeNet5(shape, 10)
    reflecting.conv1 = torch.nn.Conv2d(
        1, 6, 5, padding=2, dilation=1, padding_mode="reflect"
    )
    assert type(choose_passes(FlatModel(reflecting), shape)) is Passes
    wider = choose_passes(FlatModel(Wider(shape, 10)), shape)
    assert isinstance(wider, LeNetPasses) == (compiled() is not None)


@needs_loops
def test_ties_go_to_the_first_maximum():
    # one channel in, a kernel that copies its input: pooling windows with equal maxima
    shape = (1, 12, 12)
    model = build_model("lenet5", shape, 10, seed=0)
    with torch.no_grad():
        model.conv1.weight.zero_()
        model.conv1.weight[:, 0, 2, 2] = 1.0
        model.conv1.bias.zero_()
    tied = torch.randint(
        0, 2, (6, *shape), generator=torch.Generator().manual_seed(3)
    ).float()
    ordinary = plain(model)
    F.cross_entropy(ordinary(tied), labels(6)).backward()
    flat = FlatModel(model)
    expected = torch.cat([p.grad.flatten() for p in ordinary.parameters()])
    gradient = torch.zeros_like(flat.weights)
    LeNetPasses(flat).gradient(
        tied, lambda z: cross_entropy(z, labels(6)), gradient, training=True
    )
    torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-7)


def test_cross_entropy_is_pytorch_s_bit_for_bit():
    logits = torch.randn(7, 5, requires_grad=True)
    chosen = torch.tensor([0, 4, 2, 2, 1, 3, 0])
    expected = F.cross_entropy(logits, chosen)
    expected.backward()
    value, gradient = cross_entropy(logits.detach(), chosen)
    assert value == expected
    assert torch.equal(gradient, logits.grad)


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_distillation_gradient_is_autograd_s(temperature):
    logits = torch.randn(7, 5, requires_grad=True)
    targets = soft_targets(torch.randn(7, 5), temperature)
    student = torch.log_softmax(logits.double() / temperature, 1)
    expected = (targets * (targets.log() - student)).sum()
    expected.backward()
    value, gradient = kl_sum(targets, logits.detach(), temperature)
    assert value.item() == pytest.approx(expected.item(), rel=1e-12)
    torch.testing.assert_close(gradient.float(), logits.grad, rtol=1e-6, atol=1e-8)


def test_batch_norm_statistics_move_in_training_mode_only():
    flat = FlatModel(
        torch.nn.Sequential(
            torch.nn.Flatten(), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 10)
        )
    )
    passes, x = Passes(flat), torch.randn(6, 1, 2, 2)
    before = flat.statistics.clone()
    into = torch.zeros_like(flat.weights)
    passes.logits(x)
    passes.gradient(x, lambda z: cross_entropy(z, labels(6)), into, training=False)
    assert torch.equal(flat.statistics, before)
    passes.gradient(x, lambda z: cross_entropy(z, labels(6)), into, training=True)
    expected = torch.cat([0.1 * x.flatten(1).mean(0), 0.9 + 0.1 * x.flatten(1).var(0)])
    torch.testing.assert_close(flat.statistics, expected)


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
