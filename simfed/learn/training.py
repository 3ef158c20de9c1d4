"""Local training: steps of the scenario's optimiser on a client's own batches.

It is for one client or for many in one pass. Clients of one prototype whose passes can
be stacked (`Passes.stacks`) step together: whoever comes to a batch of the same size is
in the same pass, whatever its number of steps. Nothing is padded, so each gets the
products that it would get alone. All others step one client after another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, partial
from typing import NamedTuple, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from simfed.ground.method import LocalSteps
from simfed.learn.descent import Descent
from simfed.learn.federation import Federation, Positions
from simfed.learn.flat import FlatModel, make_rows
from simfed.learn.passes import Passes
from simfed.scenario.model import Training

Thing = TypeVar("Thing")


class LocalTraining(NamedTuple):
    """The local training of one client."""

    steps: LocalSteps
    """The model that it begins from, and what is added to its gradients."""
    batches: Sequence[Positions]
    """The positions of the samples of each step."""
    noise: Callable[[], AbstractContextManager[None]] = nullcontext
    """Entered while a model that may draw random numbers trains."""
    private: PrivateSteps | None = None
    """The treatment of its samples' gradients; None: their mean is taken."""


class PrivateSteps(NamedTuple):
    """DP-SGD (Abadi et al. 2016): clipped gradients of samples, and noise.

    A step is (Σ of the samples' gradients, each shortened to the norm `clip`, + N(0,
    `deviation`²)) / the expected batch.
    """

    clip: float
    deviation: float
    expected: float
    draws: torch.Generator


class TrainedModel(NamedTuple):
    """The result of a course of local steps."""

    model: dict[str, Tensor]
    """`weights` and `buffers`; with `gradient`, where it was asked for."""
    loss: Tensor
    """The mean over its batches of their losses before their steps."""


class Trainer:
    """Trains clients of one prototype in this process.

    A kit has one for each prototype. Whether its clients step together (`stacks`) hangs
    on the scenario and the model, never on who takes part.
    """

    def __init__(
        self,
        model: FlatModel,
        passes: Passes,
        data: Federation,
        training: Training,
        *,
        private: bool = False,
    ) -> None:
        """Take a model to train in, where clients are trained one by one.

        Args:
            model: the module's values lie there while it trains.
            passes: the model's.
            data: of the run.
            training: of the scenario: optimiser, clipping, decay.
            private: courses have `PrivateSteps`, so that clients step alone.
        """
        self._private = private
        self._model = model
        self._passes = passes
        self._data = data
        self._training = training
        self._one_step = training.local_steps == 1 and training.plain_sgd

    @cached_property
    def stacks(self) -> bool:
        """True if clients of one prototype step together, as one stack of models."""
        classes = self._data.task == "classification"  # whose loss is compiled
        return (
            not self._private
            and self._passes.stacks
            and classes
            and not self._model.statistics.numel()
        )

    @cached_property
    def together(self) -> int:
        """Clients in one pass, at most."""
        return self._passes.stacked_together if self.stacks else 1

    def train(
        self, courses: Sequence[LocalTraining], rate: float
    ) -> Iterator[TrainedModel]:
        """Return what comes of each course at this learning rate, in the order given.

        Courses differ neither in `pull` nor in whether they have a drift or are asked
        for their gradient. What comes of one hangs on no other. Where the gradient of
        one plain step is asked for, the weights stay as they are.
        """
        if not self.stacks:
            for course in courses:
                yield self._train_alone(course, rate)
            return
        for first in range(0, len(courses), self.together):
            yield from self._train_together(
                courses[first : first + self.together], rate
            )

    def _asks_gradient(self, steps: LocalSteps) -> bool:
        """Return whether all that is asked for is the gradient of one plain step."""
        return (
            steps.gradient and self._one_step and steps.drift is None and not steps.pull
        )

    def descend(
        self,
        batches: Sequence[Positions],
        rate: float,
        *,
        differentiate: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None,
        corrections: Sequence[Callable[[Tensor], Tensor]] = (),
        private: PrivateSteps | None = None,
        fixed: Sequence[slice] = (),
    ) -> list[Tensor]:
        """Make local steps on the model as it is, and return the loss of each batch.

        Args:
            batches: positions of the samples of each step.
            rate: learning rate.
            differentiate: (samples, labels, gradient) → a loss, whose gradient is added
                to `gradient`; None: the task's own.
            corrections: weights → what is added to each step's gradient.
            private: DP-SGD in place of a batch's mean gradient.
            fixed: places of weights that no step moves, and that count in no gradient's
                length.
        """
        weights = self._model.weights
        kept = [weights[place].clone() for place in fixed]
        descent = Descent(self._training, rate)
        gradient = torch.empty_like(weights)
        losses = []
        differentiate = differentiate or partial(self._differentiate, private=private)
        for positions in batches:
            samples, labels = self._data.at(positions)
            gradient.zero_()
            with self._model.hold(fixed):
                losses.append(differentiate(samples, labels, gradient))
            for correction in corrections:
                gradient += correction(weights)
            for place in fixed:
                gradient[place] = 0.0
            descent.step(weights, gradient)
            for place, values in zip(fixed, kept, strict=True):
                weights[place] = values  # which decay by themselves
        return losses

    def _differentiate(
        self,
        samples: Tensor,
        labels: Tensor,
        gradient: Tensor,
        private: PrivateSteps | None,
    ) -> Tensor:
        """Add the gradient of a batch's mean loss to `gradient`; return the loss."""
        if private is not None:
            return self.add_private_mean(private, samples, labels, gradient)
        loss = partial(self._data.objective.loss, targets=labels)
        return self._passes.gradient(samples, loss, gradient, training=True)

    def add_private_mean(
        self, private: PrivateSteps, samples: Tensor, labels: Tensor, gradient: Tensor
    ) -> Tensor:
        """Add the noisy mean of the samples' gradients to `gradient`.

        Returns their mean loss, which is told to nobody.
        """
        total, objective = gradient.new_zeros(()), self._data.objective
        if len(samples):
            total = self._passes.clipped_gradient(
                samples, labels, objective, private.clip, gradient
            )
        noise = torch.randn(len(gradient), generator=private.draws).to(gradient.device)
        gradient.add_(noise, alpha=private.deviation).div_(private.expected)
        return total.float() / max(1, len(samples))

    def _train_alone(self, course: LocalTraining, rate: float) -> TrainedModel:
        """Train one client in the module, and return what it comes to."""
        steps, model, private = course.steps, self._model, course.private
        before, pull, drift, _ = steps
        if self._asks_gradient(steps):
            model.load(before).reset_counters()
            gradient = torch.zeros_like(model.weights)
            samples, labels = self._data.at(course.batches[0])
            with course.noise():
                loss = self._differentiate(samples, labels, gradient, private)
            buffers = model.statistics.clone()
            return TrainedModel(
                {**before, "buffers": buffers, "gradient": gradient}, loss
            )
        corrections: list[Callable[[Tensor], Tensor]] = []
        if drift is not None:
            corrections.append(lambda _: drift)
        if pull:
            corrections.append(lambda weights: pull * (weights - before["weights"]))
        model.to_change(before)
        with course.noise():
            losses = self.descend(
                course.batches, rate, corrections=corrections, private=private
            )
        after = _apply_steps(steps, model.values(), rate)
        return TrainedModel(after, torch.stack(losses).double().mean())

    @torch.inference_mode()  # views and versions need no account
    def _train_together(
        self, courses: Sequence[LocalTraining], rate: float
    ) -> list[TrainedModel]:
        """Train several clients, a row of weights each.

        Whoever has the longest batches comes first, so that waves (`_plan_waves`) are
        of neighbours. With plain SGD and no correction the passes subtract rate ×
        gradient themselves.
        """
        order = sorted(
            range(len(courses)), key=lambda i: [-len(b) for b in courses[i].batches]
        )
        queues = [courses[i].batches for i in order]
        steps = [courses[i].steps for i in order]
        weights = _stack_rows([one.model["weights"] for one in steps])
        pull, drifts = steps[0].pull, [one.drift for one in steps]
        begun = weights.clone() if pull else weights
        drift = None if drifts[0] is None else _stack_rows(cast(list[Tensor], drifts))
        asked = self._asks_gradient(steps[0])
        plain = self._training.plain_sgd and not asked and drift is None and not pull
        gradient = weights if plain else make_rows(weights, *weights.shape)
        descent = Descent(self._training, rate, len(courses))
        total = torch.zeros(len(courses), dtype=torch.float64, device=weights.device)
        waves = list(_plan_waves(queues))
        where = self._data.places(
            np.concatenate([batch for _, group in waves for batch in group])
        )
        every_label, start = self._data.labels.index_select(0, where), 0
        for rows, batches in waves:
            some_weights, slopes = weights[rows], gradient[rows]
            shape = len(batches), len(batches[0])
            here = slice(start, start := start + shape[0] * shape[1])
            samples, labels = (
                self._data.samples(where[here]),
                every_label[here].view(shape),
            )
            samples = samples.view(*shape, *samples.shape[1:])
            into = rate if plain else slopes
            total[rows].add_(
                self._passes.gradients_of_rows(some_weights, samples, labels, into)
            )
            if asked or plain:
                continue
            if drift is not None:
                slopes += drift[rows]
            if pull:
                slopes += pull * (some_weights - begun[rows])
            descent.step(some_weights, slopes, rows)
        means = total / torch.tensor(
            [len(queue) for queue in queues], device=total.device
        )
        found: list[TrainedModel] = []
        for at in sorted(range(len(courses)), key=order.__getitem__):
            after = {**steps[at].model, "weights": weights[at].clone()}
            if asked:
                after["gradient"] = gradient[at].clone()
            else:
                after = _apply_steps(steps[at], after, rate)
            found.append(TrainedModel(after, means[at]))
        return found


def _apply_steps(
    steps: LocalSteps, after: dict[str, Tensor], rate: float
) -> dict[str, Tensor]:
    """Return the model after the steps.

    Where it is asked for, with what they changed over the rate.
    """
    if steps.gradient:
        after["gradient"] = (steps.model["weights"] - after["weights"]) / rate
    return after


def split_evenly(
    things: Sequence[Thing], most: int, least_parts: int
) -> list[list[Thing]]:
    """Return the things in parts of at most so many each.

    There are at least so many parts where there are as many things; neighbours go to
    different parts.

    >>> split_evenly("aabbcc", 3, 2), split_evenly("abc", 9, 1)
    ([['a', 'b', 'c'], ['a', 'b', 'c']], [['a', 'b', 'c']])
    """
    count = max(-(-len(things) // most), min(len(things), least_parts))
    return [list(things[part::count]) for part in range(count)]


def _stack_rows(rows: Sequence[Tensor]) -> Tensor:
    """Return vectors as rows, (len(rows), d), aligned as one vector alone is."""
    whole = make_rows(rows[0], len(rows), rows[0].numel())
    if all(row is rows[0] for row in rows):
        return whole.copy_(rows[0])
    for into, row in zip(whole, rows, strict=True):
        into.copy_(row)
    return whole


def _plan_waves(
    queues: Sequence[Sequence[Positions]],
) -> Iterator[tuple[slice, list[Positions]]]:
    """Yield neighbouring queues whose next batch is of one size, and these batches.

    It ends when all queues are empty.

    The largest are next, so that who comes to a short batch early waits for the others.

    >>> sizes = [[2, 2, 1], [2, 2, 1], [2, 1]]
    >>> queues = [[np.zeros(size, np.int64) for size in of] for of in sizes]
    >>> waves = _plan_waves(queues)
    >>> [(rows.start, rows.stop, len(batches[0])) for rows, batches in waves]
    [(0, 3, 2), (0, 2, 2), (0, 3, 1)]
    """
    sizes = [[*map(len, queue), 0] for queue in queues]
    at = [0] * len(queues)
    while True:
        now = [batches[place] for batches, place in zip(sizes, at, strict=True)]
        size = max(now)
        if not size:
            return
        start = 0
        while start < len(queues):
            stop = start
            while stop < len(queues) and now[stop] == size:
                stop += 1
            if stop > start:
                yield slice(start, stop), [queues[i][at[i]] for i in range(start, stop)]
                for i in range(start, stop):
                    at[i] += 1
            start = max(stop, start + 1)
