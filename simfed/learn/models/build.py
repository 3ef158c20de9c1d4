"""Building a registered model from a keyed seed, and counting what it is made of."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.flop_counter import FlopCounterMode

from simfed.ground.errors import InputError
from simfed.ground.registry import registry
from simfed.ground.vocabulary import ModelFacts
from simfed.learn.models.adapters import freeze, load_weights
from simfed.learn.models.layers import find_last_linear
from simfed.learn.models.text import GPT2
from simfed.learn.pretrained import read_config
from simfed.scenario.prototype import PrototypeSpec

Factory = Callable[[tuple[int, ...], int], nn.Module]
"""A registered model: called with the shape of one sample and the number of classes."""


def build_model(
    model: str | Factory | PrototypeSpec,
    input_shape: tuple[int, ...],
    classes: int,
    *,
    seed: int,
) -> nn.Module:
    """Return the registered model of this name (or of a factory), drawn from `seed`.

    The weights are exactly those that the module's constructor draws when PyTorch's
    global CPU generator stands at `seed`; that generator is put back to where it was,
    so nobody else's draws move. Module constructors take no generator of their own, and
    swapping the global one's state for the moment of construction is the one way that
    also serves layers of a user's own.

    Args:
        model: A registered name, a factory, or a scenario's prototype; the last has the
            weights of its `pretrained`, its adapters, and asks for gradients where it
            trains.
        input_shape: Of one sample, channels first.
        classes: The number of classes, or of tokens; 1 in a regression.
        seed: Of the initial weights.

    Returns:
        The module in training mode, float32, on the CPU.

    Raises:
        InputError: An unknown name, samples of a shape that the model cannot take, or a
            factory that returns something else than a module with trainable float32
            parameters.

    >>> before = torch.get_rng_state()
    >>> model = build_model("lenet5-half", (1, 28, 28), 10, seed=7)
    >>> sum(p.numel() for p in model.parameters())
    15738
    >>> bool((before == torch.get_rng_state()).all())
    True
    """
    factory, name = _find_factory(model)
    with _global_generator_at(seed):
        module = factory(tuple(input_shape), int(classes))
        if isinstance(model, PrototypeSpec) and isinstance(module, nn.Module):
            if model.pretrained is not None:
                load_weights(module, model.pretrained, name)
            freeze(module, model, name)
    if not isinstance(module, nn.Module):
        raise InputError(
            f"model {name}: a factory(input_shape, classes) that returns a "
            f"torch.nn.Module",
            got=type(module).__name__,
        )
    types = {p.dtype for p in module.parameters()}
    if types != {torch.float32} or not any(
        p.requires_grad for p in module.parameters()
    ):
        raise InputError(
            f"model {name}: a module with trainable float32 parameters",
            got=sorted(map(str, types)),
        )
    return module.train()


def plain(model: nn.Module) -> nn.Module:
    """Return a copy of `model` with ordinary layers in place of fast ones.

    Same parameters under the same names, same values and gradients bit for bit; tests
    compare the two.
    """
    stand_in = getattr(model, "plain", None)
    if callable(stand_in):
        return cast(nn.Module, stand_in())
    twin = copy.deepcopy(model)
    for parent in list(twin.modules()):
        for name, child in list(parent.named_children()):
            if callable(stand_in := getattr(child, "plain", None)):
                setattr(parent, name, stand_in())
    return twin


def takes_one_sample(model: str, input_shape: tuple[int, ...], classes: int) -> bool:
    """Return whether the model trains on a batch of one.

    Batch norm needs several values of each channel, of one sample as many as there are
    pixels where it stands.

    >>> [takes_one_sample("resnet18", (3, side, side), 2) for side in (8, 16)]
    [False, True]
    """
    module = build_model(model, input_shape, classes, seed=0)
    try:
        with torch.no_grad(), _global_generator_at(0):
            module(_make_sample(module, input_shape))
    except ValueError:
        return False
    return True


def count_facts(
    model: str | Factory | PrototypeSpec, input_shape: tuple[int, ...], classes: int
) -> ModelFacts:
    """Return the facts of a model that is built once for it.

    They are parameters, running statistics, FLOPs of one sample forward and of a step,
    as PyTorch counts them.

    Args:
        model: As `build_model` takes it.
        input_shape: Of one sample.
        classes: The number of classes.

    Raises:
        InputError: As `build_model`, and for logits of another shape.

    >>> from simfed.learn.catalogue import model_facts
    >>> count_facts("lenet5", (1, 28, 28), 10) == model_facts("lenet5", (1, 28, 28), 10)
    True
    """
    module = plain(build_model(model, input_shape, classes, seed=0))
    last = find_last_linear(module)
    buffers = sum(b.numel() for b in module.buffers() if b.is_floating_point())
    sample = _make_sample(module, input_shape)
    # evaluation mode, where batch norm takes a single one
    with FlopCounterMode(display=False) as forward:
        logits = module.eval()(sample)
    shape = (classes,) if sample.is_floating_point() else (*input_shape, classes)
    if tuple(logits.shape) != (1, *shape):
        name, wanted = _find_factory(model)[1], ", ".join(map(str, shape))
        raise InputError(
            f"model {name}: logits of shape (n, {wanted})", got=tuple(logits.shape)
        )

    def train_flops() -> int:
        with FlopCounterMode(display=False) as train:
            module(sample).sum().backward()
        return int(train.get_total_flops())

    trained = {n: p for n, p in module.named_parameters() if p.requires_grad}
    head = next((name for name, m in module.named_modules() if m is last), None)
    return ModelFacts(
        input_shape=tuple(input_shape),
        classes=classes,
        parameters=sum(p.numel() for p in trained.values()),
        buffers=buffers,
        forward_flops=forward.get_total_flops(),
        train_flops=_call_in_fork(train_flops),
        features=last.in_features if last is not None else 0,
        shapes=tuple(tuple(p.shape) for p in trained.values()),
        names=tuple(trained),
        head=head if any(n.rpartition(".")[0] == head for n in trained) else None,
        norms=tuple(n for n, m in module.named_modules() if isinstance(m, _BatchNorm)),
        base=sum(p.numel() for p in module.parameters() if not p.requires_grad),
    )


def _make_sample(module: nn.Module, input_shape: tuple[int, ...]) -> Tensor:
    """Return (1, *input_shape) zeros, of the type that the module takes."""
    tokens = getattr(module, "tokens", False)
    kind = torch.int64 if tokens else torch.float32
    return torch.zeros(1, *input_shape, dtype=kind)


def _call_in_fork(count: Callable[[], int]) -> int:
    """Return the result of a call in a forked process.

    Where there is a GPU, a process that has computed a gradient can fork no workers for
    more.
    """
    answer, into = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            torch.set_num_threads(1)  # threads do not survive a fork
            os.write(into, str(count()).encode())
        finally:
            os._exit(0)
    os.close(into)
    with os.fdopen(answer) as told:
        counted = told.read()
    os.waitpid(child, 0)
    # where there is none, the error is seen here
    return int(counted) if counted else count()


def _find_factory(model: str | Factory | PrototypeSpec) -> tuple[Factory, str]:
    """Return a model's factory, and its name for errors."""
    if isinstance(model, PrototypeSpec):
        if model.model is None:
            assert model.pretrained is not None
            return partial(GPT2, read_config(model.pretrained)), "gpt2"
        model = model.model
    if isinstance(model, str):
        return registry("model").get(model), model
    return model, getattr(model, "__name__", type(model).__name__)


@contextmanager
def _global_generator_at(seed: int) -> Iterator[None]:
    """Let PyTorch's global CPU generator stand at `seed` in the block."""
    state = torch.get_rng_state()
    torch.set_rng_state(torch.Generator().manual_seed(seed).get_state())
    try:
        yield
    finally:
        torch.set_rng_state(state)
