"""What a method's learning is written with: models, data, local training, keyed randomness.

A `Kit` belongs to one process and keeps nothing between calls that could be seen in a result:
models come in and go out as values, `{"weights": …, "buffers": …}`, flat float32 tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from simfed.learn.descent import Descent, plain_descent
from simfed.learn.federation import Federation, Positions, draw_local, draw_public
from simfed.learn.flat import FlatModel
from simfed.learn.losses import kl_sum
from simfed.learn.mixes import by_class, label_counts
from simfed.learn.models import build_model
from simfed.learn.models.build import last_linear
from simfed.learn.noise import keyed_noise
from simfed.learn.passes import passes_of
from simfed.learn.training import Course, Trainer
from simfed.method import LocalSteps, Setting, Values, Who
from simfed.registry import registry
from simfed.scenario import Scenario
from simfed.scenario.model import Training
from simfed.seeding import Streams

__all__ = ["Batch", "Kit", "Model", "Passed", "mean_of"]

Model = dict[str, Tensor]
"""`weights` (d,) and `buffers` (b,): one model's values."""


class Batch(NamedTuple):
    """What a loss of one's own sees of one local step."""

    logits: Tensor
    """(n, classes)"""
    embeddings: Tensor
    """(n, features): what goes into the last linear layer."""
    labels: Tensor
    samples: Tensor
    step: int
    """0, 1, … within the participation."""
    head: Callable[[Tensor], Tensor]
    """The model's last linear layer as it is now: embeddings → logits, differentiable in its
    weights."""


class Passed(NamedTuple):
    """What came of samples that went through a model."""

    logits: Tensor
    embeddings: Tensor


Loss = Callable[[Batch], Tensor]
"""A scalar to be minimised, differentiable in logits and embeddings."""


class Kit:
    """Arithmetic on values for one run.

    Attributes: `setting` (plain facts), `training` (the scenario's), `prototypes` (their names),
    `device`.
    """

    def __init__(
        self,
        scenario: Scenario,
        streams: Streams,
        data: Federation,
        setting: Setting,
    ) -> None:
        self.setting = setting
        self.training: Training = scenario.training
        self.device = data.device
        self.prototypes = list(scenario.prototypes)
        self._scenario = scenario
        self._streams = streams
        self._data = data
        self._seats: dict[str, _Seat] = {
            name: _Seat(name, scenario.prototypes[name].model, streams, data, self.training)
            for name in self.prototypes
        }

    # ---- facts and randomness --------------------------------------------------------------------

    def rate(self, round: int) -> float:
        """The client learning rate of a round, by the scenario's schedule."""
        return self.training.learning_rate * self._scenario.learning_rate_factor(round)

    def rng(self, purpose: str, *keys: int | str) -> np.random.Generator:
        """The NumPy generator of this purpose, keyed: never by the order of calls."""
        return self._streams(f"method {purpose}", *keys)

    def descent(self, round: int) -> Descent:
        """A new optimiser as the scenario's `training` says, at this round's rate."""
        return Descent(self.training, self.rate(round))

    def generator(self, purpose: str, *keys: int | str) -> torch.Generator:
        """The same for PyTorch, on the CPU."""
        seed = self._streams.integer(f"method {purpose}", *keys)
        return torch.Generator().manual_seed(seed)

    def noise(self, who: Who, round: int) -> AbstractContextManager[None]:
        """Where a user's own models draw random numbers (dropout), keyed by client and round."""
        may_draw = any(seat.may_draw for seat in self._seats.values())
        return keyed_noise(self._streams, self.device, may_draw, who.client, who.key(round))

    # ---- data ------------------------------------------------------------------------------------

    def own(self, who: Who) -> tuple[Tensor, Tensor]:
        """All samples that a client owns, and their labels."""
        return self._data.at(self._data.owned[who.client])

    def label_counts(self, who: Who) -> Tensor:
        """(classes,) how many samples of each class a client owns, float32."""
        return label_counts(self._data, who.client)

    def public(self, round: int) -> Tensor:
        """The public samples of a round."""
        whole = self.setting.public >= len(self._data.public)
        return self._data.public if whole else self._data.public[self.public_places(round)]

    def public_places(self, round: int) -> Tensor:
        """Where the public samples of a round stand in the whole public set."""
        chosen = draw_public(self._streams, round, self.public_size, self.setting.public)
        places = np.arange(self.public_size) if chosen is None else chosen
        return torch.from_numpy(places).to(self.device)

    @property
    def public_size(self) -> int:
        """Samples of the whole public set."""
        return len(self._data.public)

    def batches(self, who: Who, round: int) -> list[Positions]:
        """Where the samples of each local step are, as the scenario's `training` says."""
        rng = self._streams("batch", who.client, who.key(round))
        return draw_local(rng, self._data.owned[who.client], self.training)

    def samples_at(self, positions: Positions) -> tuple[Tensor, Tensor]:
        """Training samples and labels at these positions."""
        return self._data.at(positions)

    # ---- models ----------------------------------------------------------------------------------

    def initial(self, prototype: str) -> Model:
        """A prototype's first weights: PyTorch's initialisation, drawn from the run's seed."""
        return {key: value.clone() for key, value in self._seats[prototype].first.items()}

    def descend(
        self,
        who: Who,
        round: int,
        model: Values,
        *,
        loss: Loss | None = None,
        correction: Callable[[Tensor], Tensor] | None = None,
        rate: float | None = None,
    ) -> tuple[Model, float]:
        """Local training from `model` on the client's own data: the model after it, the mean loss.

        loss: of a batch; None: mean cross-entropy, in the fastest passes there are. correction:
        weights → what is added to each step's gradient. rate: in place of the scenario's.
        """
        seat = self._seats[who.prototype]
        seat.load(model).reset_counters()
        batches = self.batches(who, round)
        with self.noise(who, round):
            losses = seat.trainer.descend(
                batches,
                self.rate(round) if rate is None else rate,
                differentiate=None if loss is None else partial(seat.differentiate, loss),
                corrections=() if correction is None else [correction],
            )
        return seat.values(), sum(value.item() for value in losses) / len(batches)

    def descend_each(
        self, participations: Sequence[tuple[Who, int, LocalSteps]]
    ) -> list[tuple[Model, float]]:
        """Local training of several clients of one prototype, (who, round, steps) each: the models
        after it, the mean losses.

        They step together where the prototype's passes can be stacked. What a client gets is what
        it gets alone.
        """
        trainer = self._seats[participations[0][0].prototype].trainer
        found: dict[int, tuple[Model, float]] = {}
        alike: dict[tuple[float, float, bool], list[int]] = {}
        for place, (_, round, steps) in enumerate(participations):
            key = self.rate(round), steps.pull, steps.drift is None
            alike.setdefault(key, []).append(place)
        for (rate, pull, _), places in alike.items():
            courses = []
            for who, round, steps in (participations[place] for place in places):
                model, noise = steps.model, partial(self.noise, who, round)
                courses.append(
                    Course(
                        model["weights"],
                        model["buffers"],
                        self.batches(who, round),
                        steps.drift,
                        noise,
                    )
                )
            trained = trainer.train(courses, rate, pull)
            for place, (weights, statistics, loss) in zip(places, trained, strict=True):
                after = {"weights": weights.clone(), "buffers": statistics.clone()}
                found[place] = after, loss.item()
        return [found[place] for place in range(len(participations))]

    def together(self, prototype: str) -> int:
        """Clients of a prototype that `descend_each` trains in one pass, at most."""
        return self._seats[prototype].trainer.together

    def logits(self, prototype: str, model: Values, samples: Tensor) -> Tensor:
        """(n, classes) in evaluation mode."""
        seat = self._seats[prototype]
        seat.load(model)
        return seat.passes.logits(samples)

    def embeddings(self, prototype: str, model: Values, samples: Tensor) -> Tensor:
        """(n, features) in evaluation mode: what goes into the last linear layer."""
        seat = self._seats[prototype]
        module = seat.load(model).module.eval()
        with torch.no_grad(), seat.listening() as heard:
            parts = []
            for part in seat.passes.chunks(0, len(samples)):
                module(samples[part])
                parts.append(heard[-1])
        return torch.cat(parts)

    def forward(
        self, prototype: str, model: Values, samples: Tensor, *, training: bool = False
    ) -> Passed:
        """Logits and embeddings, differentiable in `model["weights"]`: for losses of several
        models.

        In training mode, batch norm uses the batch's statistics and moves `model["buffers"]`, in
        place.
        """
        return self._seats[prototype].forward(model, samples, training)

    def head(self, prototype: str, model: Values) -> tuple[Tensor, Tensor]:
        """Weight (classes, features) and bias (classes,) of the last linear layer: views."""
        start, (outputs, inputs) = self._seats[prototype].head_at()
        weights = model["weights"]
        middle = start + outputs * inputs
        return weights[start:middle].view(outputs, inputs), weights[middle : middle + outputs]

    def distil(
        self,
        prototype: str,
        model: Values,
        samples: Tensor,
        targets: Tensor,
        *,
        rate: float,
        epochs: int = 1,
        batch_size: int | None = None,
        temperature: float = 1.0,
        optimizer: str = "sgd",
        order: np.random.Generator | None = None,
        steps: int | None = None,
        watch: Callable[[int, Model], bool] | None = None,
        watch_every: int = 1,
    ) -> tuple[Model, float]:
        """Fit a model to soft `targets` (n, classes; float64 probabilities): KL(targets ‖ model),
        the mean over samples of the sum over classes. The model after it, the loss before it.

        epochs × batches of `batch_size` (None: all at once), in an order drawn from `order`; or so
        many `steps` in place of epochs. `watch` is shown every `watch_every`-th step and the model
        after it; where it says True, nothing follows. Running statistics stay as they are.
        """
        seat = self._seats[prototype]
        flat = seat.load(model)
        descent = plain_descent(rate, optimizer)
        gradient = torch.zeros_like(flat.weights)
        before = kl_sum(targets, seat.passes.logits(samples), temperature)[0].item() / len(samples)
        size = batch_size or len(samples)
        most = epochs * -(-len(samples) // size) if steps is None else steps
        for step, places in enumerate(islice(_orders(len(samples), size, order), most), 1):
            at = torch.from_numpy(places).to(self.device)
            gradient.zero_()
            for part in seat.passes.chunks(0, len(at)):
                mine = at[part]

                def loss(logits: Tensor, mine: Tensor = mine, n: int = len(at)) -> Any:
                    value, slope = kl_sum(targets[mine], logits, temperature)
                    return value, slope.div_(n)

                seat.passes.gradient(samples[mine], loss, gradient, training=False)
            descent.step(flat.weights, gradient)
            if watch is not None and step % watch_every == 0 and watch(step, seat.values()):
                break
        return seat.values(), before

    def cross_entropy(self, prototype: str, model: Values, positions: Positions | Tensor) -> float:
        """Mean cross-entropy of a model on training samples, in evaluation mode."""
        samples, labels = self._data.at(positions)
        return F.cross_entropy(self.logits(prototype, model, samples), labels).item()

    def test(self, prototype: str, model: Values) -> Tensor:
        """Per class of the test set: samples, right answers, sum of cross-entropies."""
        logits = self.logits(prototype, model, self._data.test_samples)
        return by_class(logits, self._data.test_labels, self.setting.classes)


class _Seat:
    """One prototype's module in this process, into which values are loaded to be computed with."""

    def __init__(
        self, name: str, model: str, streams: Streams, data: Federation, training: Training
    ) -> None:
        seed = streams.integer("init", name)
        module = build_model(model, data.input_shape, data.classes, seed=seed).to(data.device)
        self.flat = FlatModel(module)
        self.passes = passes_of(self.flat, data.input_shape)
        self.trainer = Trainer(self.flat, self.passes, data, training)
        self.may_draw = registry("model").origin(model) != "built in"
        self.first = self.values()
        self._name = model

    def load(self, model: Values) -> FlatModel:
        self.flat.weights.copy_(model["weights"])
        self.flat.statistics.copy_(model["buffers"])
        return self.flat

    def values(self) -> Model:
        return {"weights": self.flat.weights.clone(), "buffers": self.flat.statistics.clone()}

    def differentiate(
        self, loss: Loss, samples: Tensor, labels: Tensor, step: int, gradient: Tensor
    ) -> Tensor:
        """The value of a loss; its gradient is added to `gradient`."""
        module = self.flat.module.train()
        self.flat.accumulate_into(gradient)
        with self.listening() as heard:
            logits = module(samples)
            head = cast(nn.Linear, last_linear(module))
            value = loss(Batch(logits, heard[-1], labels, samples, step, head))
        value.backward()
        self.flat.accumulate_into(None)
        return value.detach()

    @contextmanager
    def listening(self) -> Iterator[list[Tensor]]:
        """Collects what goes into the last linear layer."""
        layer = last_linear(self.flat.module)
        if layer is None:
            raise TypeError(f"model {self._name} has no linear layer, so samples no embedding")
        heard: list[Tensor] = []
        handle = layer.register_forward_pre_hook(lambda _, inputs: heard.append(inputs[0]))
        try:
            yield heard
        finally:
            handle.remove()

    def forward(self, model: Values, samples: Tensor, training: bool) -> Passed:
        module = self.flat.module.train(training)
        values = self.flat.named(model["weights"], model["buffers"])
        with self.listening() as heard:
            logits = functional_call(module, values, (samples,))
        return Passed(logits, heard[-1])

    def head_at(self) -> tuple[int, tuple[int, int]]:
        """Where the last linear layer's weight begins in the flat vector, and its shape."""
        layer = last_linear(self.flat.module)
        if layer is None or layer.bias is None:
            raise TypeError(f"model {self._name} has no linear layer with a bias at its end")
        start = 0
        for parameter in self.flat.module.parameters():
            if parameter is layer.weight:
                return start, (layer.out_features, layer.in_features)
            start += parameter.numel() if parameter.requires_grad else 0
        raise TypeError(f"model {self._name} does not own its last linear layer")


def _orders(samples: int, size: int, order: np.random.Generator | None) -> Iterator[Positions]:
    """Batches without end: pass after pass over the samples, each in an order of its own."""
    while True:
        places = np.arange(samples) if order is None else order.permutation(samples)
        yield from (places[start : start + size] for start in range(0, samples, size))


def mean_of(values: Iterable[Values], weights: Sequence[float]) -> Model:
    """The weighted mean of values of the same names, added in the order given.

    >>> mean_of([{"w": torch.zeros(1)}, {"w": torch.ones(1)}], [1, 3])
    {'w': tensor([0.7500])}
    """
    total: Model = {}
    for value, weight in zip(values, weights, strict=True):
        share = weight / sum(weights)
        for name, tensor in value.items():
            total[name] = total[name] + share * tensor if name in total else share * tensor
    return total
