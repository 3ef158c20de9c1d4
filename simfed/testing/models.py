"""The contract of models, data sets and devices."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from simfed.ground.registry import registry
from simfed.testing.common import no_global_randomness, read_bits, require

if TYPE_CHECKING:
    import torch

    from simfed.learn.data import Dataset


def check_model(
    factory: Callable[..., torch.nn.Module],
    input_shape: tuple[int, ...] = (1, 28, 28),
    classes: int = 10,
) -> None:
    """Check a model factory, called as `factory(input_shape, classes)`.

    - it gives a `torch.nn.Module` with trainable float32 parameters, whose values hang
      on PyTorch's generator alone, and which has the sizes that `factory.facts` states,
      if it does;
    - (n, *input_shape) float32 samples become finite (n, classes) float32 logits; of a
      model with `tokens = True`, whole numbers (n, length) become (n, length, classes);
    - neither pass draws random numbers (no dropout), and the same pass twice gives the
      same bits;
    - in evaluation mode a sample's logits hang on nothing but the sample, and no buffer
      changes;
    - every trainable parameter gets a gradient;
    - a fast layer (one with `plain()`) computes and differentiates as what it stands
      for.

    Args:
        factory: makes the module.
        input_shape: of one sample.
        classes: how many logits a sample has.

    Raises:
        AssertionError: at the first clause that it breaks, in one sentence.
    """
    import torch

    from simfed.learn.models import build_model, count_facts, plain

    tokens = bool(getattr(factory, "tokens", False))
    if tokens and len(input_shape) > 1:
        input_shape = input_shape[-1:]
    with no_global_randomness():
        model, again, other = (
            build_model(factory, input_shape, classes, seed=n) for n in (1, 1, 2)
        )
    first, second, third = (read_bits(m.state_dict()) for m in (model, again, other))
    require(first == second, "the same weights from the same seed")
    require(first != third, "other weights from another seed")
    declared = getattr(factory, "facts", None)
    if callable(declared):
        counted = count_facts(factory, input_shape, classes)
        require(
            declared(input_shape, classes) == counted,
            f"the facts that it has: {counted}",
        )
    generator = torch.Generator().manual_seed(3)
    images = torch.randn(4, *input_shape, generator=generator)
    labels = torch.arange(4) % classes
    if tokens:
        images = torch.randint(classes, (4, *input_shape), generator=generator)
        labels = images.roll(-1, 1)
    before = torch.get_rng_state()
    _check_evaluation(model, images, classes)
    twins = (model, again, plain(model))  # copied before a pass moves its statistics
    came, repeated, ordinary = (_train_pass(m, images, labels) for m in twins)
    same = read_bits(came) == read_bits(repeated)
    require(same, "the same bits from the same training pass")
    same = all(came[name].equal(ordinary[name]) for name in came)
    require(same, "fast layers that compute and differentiate as their plain() does")
    untouched = torch.equal(before, torch.get_rng_state())
    require(untouched, "passes that draw no random numbers, such as dropout does")


def _train_pass(module: Any, images: Any, labels: Any) -> dict[str, Any]:
    """Return the gradients of trainable parameters after a pass, and the buffers.

    Args:
        module: put into training mode.
        images: a batch.
        labels: of the batch, or of each of its tokens.
    """
    import torch

    module.train()
    logits = module(images)
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten())
    names = [name for name, p in module.named_parameters() if p.requires_grad]
    trainable = [p for p in module.parameters() if p.requires_grad]
    gradients = torch.autograd.grad(loss, trainable, allow_unused=True)
    missing = [name for name, g in zip(names, gradients, strict=True) if g is None]
    require(
        not missing, f"a gradient for every trainable parameter, none for {missing}"
    )
    return {**dict(module.named_buffers()), **dict(zip(names, gradients, strict=True))}


def _check_evaluation(module: Any, images: Any, classes: int) -> None:
    """Check that evaluated logits are well formed, and hang on their own sample alone.

    Args:
        module: put into evaluation mode.
        images: a batch of several.
        classes: logits of a sample, or of a token.
    """
    import torch

    module.eval()
    before = read_bits(module.state_dict())
    with torch.no_grad():
        logits, alone = (
            module(images),
            torch.cat([module(image[None]) for image in images]),
        )
    shape = (
        (*images.shape, classes)
        if getattr(module, "tokens", False)
        else (len(images), classes)
    )
    shaped = tuple(logits.shape) == shape and logits.dtype == torch.float32
    sizes = ", ".join(map(str, shape))
    require(shaped, f"({sizes}) float32 logits of {len(images)} samples")
    require(bool(logits.isfinite().all()), "finite logits")
    scale = float(logits.abs().max())
    same = torch.allclose(logits, alone, rtol=1e-4, atol=1e-5 * scale)
    require(same, "logits of a sample that do not hang on the samples beside it")
    untouched = read_bits(module.state_dict()) == before
    require(untouched, "buffers that evaluation mode leaves alone")


def check_dataset(load: Callable[[], Dataset]) -> None:
    """Check a data set, a function without arguments that returns a `Dataset`.

    - shapes, types and labels fit together (`simfed.learn.data.Dataset` itself refuses
      what does not), and the channels of images come first;
    - reading it twice gives the same samples, without global randomness;
    - it has the sizes that `load.facts` states, if it does;
    - every class has training samples;
    - normalised samples are finite float32.

    Args:
        load: the function, as it is registered.

    Raises:
        AssertionError: at the first clause that it breaks, in one sentence.
    """
    from simfed.learn.catalogue import DatasetFacts
    from simfed.learn.data import Dataset
    from simfed.learn.data.dataset import check_channels

    with no_global_randomness():
        data, again = load(), load()
    require(isinstance(data, Dataset), f"a Dataset, got {type(data).__name__}")
    require(data.digest == again.digest, "the same samples from reading it twice")
    check_channels(data, "the data set")
    declared = getattr(load, "facts", None)
    if isinstance(declared, DatasetFacts):
        require(declared == data.facts, f"the facts that it has: {data.facts}")
    missing = sorted(
        set(range(data.classes)) - set(np.unique(data.train_labels).tolist())
    )
    # an alphabet may have rare characters
    missing = [] if data.task == "next-token" else missing
    require(not missing, f"training samples of every class, none of {missing}")
    for images in (data.train_images[:256], data.test_images[:256]):
        values = data.normalise(images)
        kind = np.int64 if data.tokens else np.float32
        sound = values.dtype == kind and values.shape == images.shape
        require(
            sound and bool(np.isfinite(values).all()),
            "finite float32 normalised samples",
        )


def check_device(part: str | Path | Callable[[], str | Path]) -> None:
    """Check a device: the path of a calibration profile, or a function that returns it.

    - it can be read (which refuses what makes no sense), and says what it is;
    - it is called what it is registered as, so that records name it;
    - at the ends of the sizes that its laws hold for, times are positive and finite;
    - what it says that registered models were measured on is what simfed counts for
      such samples.

    Args:
        part: as it is registered.

    Raises:
        AssertionError: at the first clause that it breaks, in one sentence.
    """
    from simfed.device import ModelWork, load_profile
    from simfed.device.curve import Fitted
    from simfed.learn.catalogue import model_facts

    path = part() if callable(part) else part
    profile = load_profile(str(path))
    description = profile.provenance.get("description") or profile.provenance.get(
        "source"
    )
    require(bool(description), "a description, or the source of its times")
    names = [
        name
        for name in registry("device").names()
        if registry("device").get(name) is part
    ]
    require(
        not names or profile.name in names,
        f"the name {profile.name!r} to be registered under",
    )
    for (quantity, model, strategy), curve in profile.curves.items():
        if not isinstance(curve, Fitted):
            continue  # rows are positive, or the profile is refused
        what = " ".join(filter(None, (quantity, model, strategy)))
        for ends in itertools.product(*curve.valid.values()):
            seconds = curve.at(dict(zip(curve.valid, ends, strict=True)))
            require(0 < seconds < math.inf, f"positive, finite seconds for {what}")
    for model, shape in profile.measured_on.items():
        if model in registry("model") and shape.input_shape:
            counted = ModelWork.of(model_facts(model, shape.input_shape, shape.classes))
            require(
                shape == counted, f"measured_on.{model} as it is counted: {counted!r}"
            )
