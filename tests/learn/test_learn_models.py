"""Models: exact sizes, keyed initialisation, and fast layers equal to the ordinary ones
bit for bit.
"""

import os

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from simfed import InputError
from simfed.ground.registry import registry
from simfed.learn import ModelFacts, ReluPool, build_model, count_facts, model_facts
from simfed.learn.catalogue import facts

MNIST, CIFAR10 = (1, 28, 28), (3, 32, 32)
SIZES = [
    ("lenet5", "mnist", 61_706, 0),
    ("lenet5-half", "mnist", 15_738, 0),
    ("resnet18", "cifar10", 11_173_962, 9_600),
    ("wresnet40-2", "cifar10", 2_243_546, 5_408),
    ("logistic-regression", "mnist", 7_850, 0),
    ("perceptron", "mnist", 199_210, 0),
    ("mcmahan-cnn", "mnist", 1_663_370, 0),
    ("resnet18-gn", "cifar10", 11_173_962, 0),
]
OF_TEXT = [("char-lstm", 824_160), ("causal-transformer", 431_712)]


@pytest.mark.parametrize(("name", "dataset", "parameters", "buffers"), SIZES)
def test_sizes_are_those_of_the_method(name, dataset, parameters, buffers):
    sizes = facts(name, dataset)
    assert (sizes.parameters, sizes.buffers) == (parameters, buffers)
    assert sizes.parameter_bytes == 4 * parameters


@pytest.mark.parametrize("name", [row[0] for row in SIZES])
def test_static_facts_equal_the_counted_module(name):
    assert model_facts(name, (2, 17, 30), 7) == count_facts(name, (2, 17, 30), 7)


@pytest.mark.parametrize(("name", "parameters"), OF_TEXT)
def test_models_of_text_have_the_sizes_that_are_said(name, parameters):
    sizes, counted = facts(name, "text-mini"), count_facts(name, (80,), 96)
    assert (sizes.parameters, sizes.buffers) == (parameters, 0)
    assert (sizes.shapes, sizes.names) == (counted.shapes, counted.names)
    assert (sizes.classes, sizes.features) == (counted.classes, counted.features)


def test_flops_of_an_lstm_by_hand():
    # per character: gates of both layers, then the head
    per_character = 4 * 256 * (8 + 256) + 4 * 256 * (256 + 256) + 256 * 96
    assert facts("char-lstm", "text-mini").forward_flops == 2 * 80 * per_character


def test_lenet5_flops_by_hand():
    # conv1 28²·5²·6, conv2 10²·5²·6·16, then 400·120, 120·84, 84·10 multiply-adds
    layers = [784 * 25 * 6, 100 * 25 * 96, 400 * 120, 120 * 84, 84 * 10]
    sizes = facts("lenet5", "mnist")
    assert sizes.forward_flops == 2 * sum(layers)
    assert sizes.train_flops == 2 * (3 * sum(layers) - layers[0])


@pytest.mark.parametrize("name", [row[0] for row in SIZES])
def test_initialisation_is_pytorchs_own(name):
    built = build_model(name, CIFAR10, 10, seed=11)
    with torch.random.fork_rng(devices=[]):
        torch.set_rng_state(torch.Generator().manual_seed(11).get_state())
        default = registry("model").get(name)(CIFAR10, 10).state_dict()
    assert all(torch.equal(t, default[key]) for key, t in built.state_dict().items())


def test_a_model_that_fails_leaves_the_global_generator_alone(add_part):
    before = torch.get_rng_state()

    def fails(input_shape, classes):
        torch.rand(5)
        raise RuntimeError("no such layer")

    add_part("model", "fails", fails)
    with pytest.raises(RuntimeError, match="no such layer"):
        build_model("fails", MNIST, 10, seed=3)
    assert torch.equal(before, torch.get_rng_state())


@given(
    shape=st.tuples(*[st.integers(1, 3)] * 2, *[st.integers(2, 7)] * 2),
    levels=st.integers(1, 4),
    seed=st.integers(0, 2**32 - 1),
)
def test_relu_pool_sends_gradients_where_max_pool_sends_them(shape, levels, seed):
    drawn = torch.Generator().manual_seed(seed)
    values = torch.randint(-1, levels, shape, generator=drawn).float()
    pooled = ReluPool()(values)
    weights, answers = torch.randn(pooled.shape, generator=drawn), []
    for pool in (ReluPool(), ReluPool().plain()):
        x = values.clone().requires_grad_()
        came = pool(x)
        (came * weights).sum().backward()
        answers.append((came, x.grad))
    assert all(map(torch.equal, *answers))
    assert torch.equal(pooled, came)


def test_a_users_model_is_counted_once_or_states_its_facts(add_part):
    built = []

    def make(*shape):
        built.append(shape)
        return nn.Sequential(nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(3072, 4))

    add_part("model", "mine", make)
    for _ in range(2):  # it is counted once
        counted = model_facts("mine", CIFAR10, 4)
    assert built == [(CIFAR10, 4)]
    sizes = {"parameters": 6 + 3072 * 4 + 4, "buffers": 6, "features": 3072}
    assert counted == ModelFacts(
        CIFAR10, 4, **sizes, forward_flops=24576, train_flops=73728,
        shapes=((3,), (3,), (4, 3072), (4,)), head="2", norms=("0",),
        names=("0.weight", "0.bias", "2.weight", "2.bias"),
    )  # fmt: skip

    make.facts = lambda *shape: ModelFacts(*shape, 1, 2, 3, 4)
    add_part("model", "stated", make)
    assert model_facts("stated", MNIST, 10).parameters == 1
    assert len(built) == 1


@pytest.mark.parametrize(
    ("made", "sentence"),
    [
        (3, r"got 'int', expected model odd: .*torch\.nn\.Module"),
        (nn.Linear(784, 10).double(), "model odd: a module with trainable float32"),
        (nn.Flatten(), "model odd: a module with trainable float32"),
        (nn.Sequential(nn.Flatten(), nn.Linear(784, 3)), r"logits of shape \(n, 10\)"),
    ],
)
def test_a_factory_that_makes_something_else_is_refused(add_part, made, sentence):
    add_part("model", "odd", lambda input_shape, classes: made)
    with pytest.raises(InputError, match=sentence):
        count_facts("odd", MNIST, 10)


def test_counting_computes_no_gradient_in_this_process():
    """Beside a GPU, PyTorch would then let this process fork no workers that compute
    some.
    """
    here = []

    class Watched(nn.Linear):
        def forward(self, x):
            logits = super().forward(x.flatten(1))
            if logits.requires_grad:
                logits.register_hook(lambda gradient: here.append(os.getpid()))
            return logits

    facts = count_facts(lambda shape, classes: Watched(784, classes), MNIST, 10)
    assert facts.train_flops == 2 * facts.forward_flops  # no gradient of the images
    assert here == []


class Broken(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise RuntimeError("no way back")


def test_a_model_that_cannot_be_trained_says_why():
    class Model(nn.Linear):
        def forward(self, x):
            return Broken.apply(super().forward(x.flatten(1)))

    with pytest.raises(RuntimeError, match="no way back"):
        count_facts(lambda shape, classes: Model(784, classes), MNIST, 10)
