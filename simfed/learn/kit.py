"""The kit of methods: models, data, local training, keyed randomness.

A `Kit` belongs to one process and keeps nothing between calls that could be seen in a
result: models come in and go out as values, `{"weights": …, "buffers": …}`, flat
float32 tensors.

Methods call it and never touch a module, a data set or a generator of PyTorch's own.
Inside, a prototype's module sits in a `_Seat`; how it trains is
`simfed.learn.training`, how it passes samples `simfed.learn.passes`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from simfed.ground.errors import InputError
from simfed.ground.method import LocalSteps, Setting, Values, Who
from simfed.ground.registry import registry
from simfed.ground.seeding import Streams
from simfed.learn.attacks import Attack
from simfed.learn.catalogue import model_facts
from simfed.learn.descent import Descent, make_plain_training
from simfed.learn.federation import (
    Federation,
    Positions,
    draw_local,
    draw_own,
    draw_poisson,
    draw_public,
)
from simfed.learn.flat import FlatModel
from simfed.learn.losses import DIVERGENCES
from simfed.learn.mixes import TestPart, join_tests, label_counts, sum_by_group
from simfed.learn.models import build_model
from simfed.learn.models.layers import find_last_linear
from simfed.learn.passes import PARTS, choose_passes, find_stretch
from simfed.learn.training import LocalTraining, PrivateSteps, TrainedModel, Trainer
from simfed.learn.vectors import Change, Sparse, Sum, add_change, list_terms
from simfed.scenario import Scenario
from simfed.scenario.model import Distillation, Training
from simfed.scenario.prototype import PrototypeSpec
from simfed.tasks.epochs import LocalEpochs
from simfed.tasks.privacy import count_epoch_steps, make_account

Model = dict[str, Tensor]
"""`weights` (d,) and `buffers` (b,): one model's values."""

Run = Callable[[Sequence[tuple[str, tuple[Any, ...]]], Sequence[float]], list[Any]]
"""(name of a method of the kit's and its arguments for each call, FLOPs of each) → what
it answers."""


class Changed(NamedTuple):
    """A model that is the sum of a known one and a change, and is never made."""

    prototype: str
    model: Values
    """The weights before the change; its running statistics."""
    change: Change | None = None
    """A tensor, or what `Arrival.change` gives; None: there is none."""
    factor: float = 1.0


class Batch(NamedTuple):
    """One local step's batch, as a method's own loss sees it."""

    logits: Tensor
    """(n, classes)"""
    embeddings: Tensor
    """(n, features): what goes into the last linear layer."""
    labels: Tensor
    samples: Tensor
    head: Callable[[Tensor], Tensor]
    """The model's last linear layer as it is now: embeddings → logits, differentiable
    in its weights."""


Loss = Callable[[Batch], Tensor]
"""A scalar to be minimised, differentiable in logits and embeddings."""


class Kit:
    """Arithmetic on values for one run.

    Attributes: `setting` (plain facts), `training` and `distillation` (the scenario's),
    `method` and `prototypes` (their names), `device`, `flops` (of a sample forward, by
    prototype).
    """

    def __init__(
        self,
        scenario: Scenario,
        streams: Streams,
        data: Federation,
        setting: Setting,
    ) -> None:
        """Build a model per prototype, and draw its first weights.

        Args:
            scenario: the validated scenario.
            streams: keyed randomness of the run's seed.
            data: of the run, on its device.
            setting: plain facts, as methods know them.

        Raises:
            InputError: under privacy of samples, for a model whose samples cannot be
                told apart.
        """
        self.setting = setting
        self.training: Training = scenario.training
        self.distillation: Distillation = scenario.distillation
        self.device = data.device
        self.method: str = scenario.method.kind
        self.prototypes = list(scenario.prototypes)
        self._scenario = scenario
        self._streams = streams
        self._data = data
        self._seats: dict[str, _Seat] = {
            name: _Seat(
                name, scenario.prototypes[name], streams, data, self.training,
                private=setting.private,
            )
            for name in self.prototypes
        }  # fmt: skip
        self._may_draw = any(seat.may_draw for seat in self._seats.values())
        self._private = self._find_private() if setting.private else None
        self.parts = PARTS if self.device.type == "cpu" else 1
        """A test set is worked through in so many parts at most."""
        self.run: Run
        """Set by the pool that does its calls."""
        self.flops = {
            name: model_facts(prototype, data.input_shape, data.classes).forward_flops
            for name, prototype in scenario.prototypes.items()
        }
        """FLOPs of one sample through each prototype."""
        self._probes: dict[int, Positions] = {}
        policies = [scenario.policy_of_group(group) for group in scenario.clients]
        self._local_losses = [policy.reward.local_loss for policy in policies]
        self._group_of = scenario.group_of_client()
        self._attacks = [group.attack for group in scenario.clients]
        self._epochs = LocalEpochs(scenario, streams)

    # ---- facts and randomness --------------------------------------------------------

    def rate(self, round: int, base: float | None = None) -> float:
        """Return the client learning rate of a round, by the scenario's schedule.

        Args:
            round: from 1.
            base: another rate in place of `training.learning_rate`, by the same
                schedule.
        """
        return (
            base or self.training.learning_rate
        ) * self._scenario.learning_rate_factor(round)

    def rng(self, purpose: str, *keys: int | str) -> np.random.Generator:
        """Return the NumPy generator of this purpose.

        It is keyed by the run's seed, the purpose and the keys, never by the order of
        calls: the same keys give the same numbers in every process.
        """
        return self._streams(f"method {purpose}", *keys)

    def descent(self, round: int) -> Descent:
        """Return a new optimiser of the scenario's `training`, at this round's rate."""
        return Descent(self.training, self.rate(round))

    def generator(self, purpose: str, *keys: int | str) -> torch.Generator:
        """Return PyTorch's generator of this purpose, on the CPU, keyed as `rng` is."""
        seed = self._streams.integer(f"method {purpose}", *keys)
        return torch.Generator().manual_seed(seed)

    @contextmanager
    def noise(self, who: Who, round: int) -> Iterator[None]:
        """Key PyTorch's generator by client and round in the block.

        A user's own model draws random numbers there (dropout), and its draws do not
        hang on which process runs what.
        """
        if not self._may_draw:
            yield
            return
        generator = (
            torch.cuda.default_generators[self.device.index or 0]
            if self.device.type == "cuda"
            else torch.default_generator
        )
        state = generator.get_state()
        generator.manual_seed(
            self._streams.integer("noise", who.client, who.key(round))
        )
        try:
            yield
        finally:
            generator.set_state(state)

    # ---- data ------------------------------------------------------------------------

    def own(self, who: Who) -> tuple[Tensor, Tensor]:
        """Return all samples that a client owns, and their labels.

        They are (n, *input_shape) float32, normalised, and (n,).
        """
        return self._data.at(self._data.owned[who.client])

    def label_counts(self, who: Who) -> Tensor:
        """Return (classes,) how many samples of each class a client owns, float32."""
        return label_counts(self._data, who.client)

    def public(self, round: int) -> Tensor:
        """Return the public samples of a round, (n, *input_shape).

        All of them, or `dataset.public_batch` that are drawn for it. Round 0 is that of
        first losses.
        """
        whole = self.setting.public >= len(self._data.public)
        public = self._data.public
        return public if whole else public[self.public_places(round)]

    def public_places(self, round: int) -> Tensor:
        """Return where the public samples of a round stand in the whole public set."""
        chosen = draw_public(
            self._streams, round, self.public_size, self.setting.public
        )
        places = np.arange(self.public_size) if chosen is None else chosen
        return torch.from_numpy(places).to(self.device)

    @property
    def public_size(self) -> int:
        """Samples of the whole public set."""
        return len(self._data.public)

    def batches(
        self, who: Who, round: int, epochs: int | None = None
    ) -> list[Positions]:
        """Return the positions of the samples of each local step.

        Args:
            who: the client; poisoned data are in place of its own where it attacks.
            round: keys the draws.
            epochs: so many, in orders of their own; None: as the scenario's `training`
                says, cut off at `who.most_steps`.

        Returns:
            A vector of positions in the training set for each step.
        """
        purpose = "batch" if epochs is None else "further batch"
        rng = self._streams(purpose, who.client, who.key(round))
        owned = self._data.owned[who.client]
        if self.find_attack(who.client, round) is not None:
            owned = self._data.poisoned.get(who.client, owned)
        if self._private is not None:
            parts = count_epoch_steps(len(owned), self.training.batch_size)
            return draw_poisson(rng, owned, parts, self.setting.steps(who))
        batches = draw_local(rng, owned, self.training, epochs or who.epochs)
        return batches if epochs else batches[: who.most_steps]

    def find_attack(self, client: int, round: int) -> Attack | None:
        """Return the attack of a client in a round; None: it is honest."""
        chosen = self._attacks[self._group_of[client]]
        begun = chosen is not None and round >= getattr(chosen, "from")
        return chosen.made if begun else None

    def _find_private(self) -> tuple[float, float]:
        """Return the clip of samples' gradients, and the deviation of their noise.

        Raises: `InputError` for a model whose samples cannot be told apart.
        """
        privacy = self._scenario.privacy
        account = make_account(
            self._scenario, lambda client: len(self._data.owned[client])
        )
        assert privacy is not None
        assert account is not None
        assert isinstance(privacy.clip, float)
        for name, seat in self._seats.items():
            samples, labels = self._data.at(np.arange(2))
            steps = PrivateSteps(privacy.clip, 0.0, 1.0, torch.Generator())
            try:
                seat.trainer.add_private_mean(
                    steps, samples, labels, torch.zeros_like(seat.flat.weights)
                )
            except RuntimeError as error:
                raise InputError(
                    "a model that torch.func.vmap can follow, under privacy of samples",
                    where=f"prototypes.{name}.model",
                    got=self._scenario.model_names[name],
                    problem=str(error).partition(".")[0],
                ) from None
        return privacy.clip, privacy.clip * account.noise.total

    def _make_private_steps(self, who: Who, round: int) -> PrivateSteps | None:
        """Return the treatment of samples' gradients; None: their mean is taken."""
        if self._private is None:
            return None
        owned = len(self._data.owned[who.client])
        expected = owned / count_epoch_steps(owned, self.training.batch_size)
        draws = self.generator("privacy", who.client, who.key(round))
        return PrivateSteps(*self._private, expected, draws)

    def take_samples(self, positions: Positions) -> tuple[Tensor, Tensor]:
        """Return training samples and labels at these positions."""
        return self._data.at(positions)

    # ---- models ----------------------------------------------------------------------

    def initial(self, prototype: str) -> Model:
        """Return a prototype's first weights: PyTorch's, drawn from the run's seed."""
        return {
            key: value.clone() for key, value in self._seats[prototype].first.items()
        }

    def descend(
        self,
        who: Who,
        round: int,
        model: Values,
        *,
        loss: Loss | None = None,
        correction: Callable[[Tensor], Tensor] | None = None,
        epochs: int | None = None,
        fixed: Sequence[slice] = (),
    ) -> tuple[Model, float]:
        """Train `model` on the client's own data; return the model and its mean loss.

        Args:
            who: the client.
            round: keys draws.
            model: weights and buffers at the beginning; not changed.
            loss: of a batch; None: mean cross-entropy, in the fastest passes there are.
            correction: weights → what is added to each step's gradient.
            epochs: in place of the scenario's steps or epochs; see `batches`.
            fixed: places of weights that stay as they are.
        """
        seat = self._seats[who.prototype]
        seat.flat.to_change(model)
        batches = self.batches(who, round, epochs)
        with self.noise(who, round):
            losses = seat.trainer.descend(
                batches,
                self.rate(round),
                differentiate=None
                if loss is None
                else partial(seat.differentiate, loss),
                corrections=() if correction is None else [correction],
                fixed=fixed,
            )
        return seat.flat.values(), sum(value.item() for value in losses) / len(batches)

    def trained_each(
        self, participations: Sequence[tuple[Who, int, LocalSteps]]
    ) -> list[TrainedModel]:
        """Train several clients of one prototype, in one pass where that is possible.

        They step together where the prototype's passes can be stacked. What a client
        gets is what it gets alone. On an accelerator losses are not waited for.

        Args:
            participations: (who, round, steps) each.

        Returns:
            For each the model after it, and the mean loss.
        """
        after_of: dict[int, TrainedModel] = {}
        alike: dict[tuple[float, float, bool, bool], list[int]] = {}
        for place, (_, round, steps) in enumerate(participations):
            key = self.rate(round), steps.pull, steps.drift is None, steps.gradient
            alike.setdefault(key, []).append(place)
        trainer = self._seats[participations[0][0].prototype].trainer
        for (rate, *_), places in alike.items():
            courses = [
                LocalTraining(
                    steps,
                    self.batches(who, round),
                    partial(self.noise, who, round),
                    self._make_private_steps(who, round),
                )
                for who, round, steps in map(participations.__getitem__, places)
            ]
            after_of |= zip(places, trainer.train(courses, rate), strict=True)
        return [after_of[place] for place in range(len(participations))]

    def together(self, prototype: str) -> int:
        """Return how many clients `trained_each` trains in one pass, at most."""
        return self._seats[prototype].trainer.together

    def add(
        self, vector: Tensor, changes: Iterable[tuple[Change | Sum, float]]
    ) -> Tensor:
        """Return a vector plus changes times factors, added in the order given.

        Args:
            vector: (d,); not changed.
            changes: (change, factor) each; a change is a tensor, or what
                `Arrival.change` gives: of a sparse one only its entries are touched.
        """
        total = vector.clone()
        for change, factor in list_terms(changes):
            if isinstance(change, Sparse):
                total.index_add_(0, change.indices, change.values * factor)
            else:
                total.add_(change * factor)
        return total

    def logits_each(self, models: Sequence[Changed], round: int) -> list[Tensor]:
        """Return each model's logits of the round's public samples.

        It goes over all processes.

        Args:
            models: of any prototypes.
            round: whose public samples they are.

        Returns:
            (samples, classes) each, in evaluation mode.
        """
        return self.run(
            [("public_logits", (changed, round)) for changed in models],
            [self.flops[one.prototype] * self.setting.public for one in models],
        )

    def public_logits(self, changed: Changed, round: int) -> Tensor:
        """Return one model's logits of the public samples; see `logits_each`.

        The change is made to the weights in place, and taken back from a copy.
        """
        seat = self._seats[changed.prototype]
        flat, change = seat.flat.load(changed.model), changed.change
        if change is None:
            return seat.passes.logits(self.public(round))
        if isinstance(change, Sparse):
            before = flat.weights.index_select(0, change.indices)
            after = before + changed.factor * change.values
            flat.weights.index_copy_(0, change.indices, after)
        else:
            before = flat.weights.clone()
            flat.weights.add_(changed.factor * change)
        logits = seat.passes.logits(self.public(round))
        if isinstance(change, Sparse):
            flat.weights.index_copy_(0, change.indices, before)
        else:
            flat.weights.copy_(before)
        return logits

    def distil_each(
        self, models: dict[str, Model], round: int, targets: Tensor, **options: Any
    ) -> tuple[dict[str, Model], dict[str, float]]:
        """Fit one model per prototype to soft `targets` for the round's public samples.

        It goes over all processes, a unit per prototype.

        Args:
            models: prototype → its model.
            round: whose public samples they are.
            targets: (samples, classes), float64 probabilities.
            options: those of `distil`.

        Returns:
            The models after it, and the losses before.
        """
        found = self.run(
            [
                ("distil_public", (name, model, round, targets, options))
                for name, model in models.items()
            ],
            [3 * self.flops[name] * self.setting.public for name in models],
        )
        after, losses = zip(*found, strict=True)
        return dict(zip(models, after, strict=True)), dict(
            zip(models, losses, strict=True)
        )

    def distil_public(
        self,
        prototype: str,
        model: Values,
        round: int,
        targets: Tensor,
        options: dict[str, Any],
    ) -> tuple[Model, float]:
        """Call `distil` on the public samples of a round; see `distil_each`."""
        return self.distil(prototype, model, self.public(round), targets, **options)

    def own_loss(
        self, prototype: str, model: Values, client: int, key: int | str
    ) -> Tensor:
        """Return f_n of a client at this model, in the participation of this key.

        It is the mean loss of the task's objective over the client's probe, all of its
        samples, or its batches, as its policy's `reward.local_loss` says.
        """
        seat = self._seats[prototype]
        seat.flat.load(model)
        positions = self._data.places(self.own_samples(client, key))
        logits = seat.passes.logits(positions, self._data.samples)
        labels = self._data.labels.index_select(0, positions)
        return self._data.objective.loss(logits, labels)[0]

    def own_samples(self, client: int, key: int | str) -> Positions:
        """Return where f_n of a client is computed in a participation.

        Probes are kept; batches are others in every participation.
        """
        local = self._local_losses[self._group_of[client]]
        if client not in self._probes or local.data == "batch":
            self._probes[client] = draw_own(
                self._streams,
                local,
                client,
                key,
                self._data.owned[client],
                self.training,
                self._epochs.draw(client, key),
            )
        return self._probes[client]

    def estimate_loss_flops(self, who: Who) -> float:
        """Return roughly the FLOPs of a client's f_n, to balance processes."""
        local, samples = self._local_losses[self._group_of[who.client]], who.samples
        if local.data == "probe":
            samples = min(local.samples, samples)
        return float(self.flops[who.prototype] * samples)

    def logits(self, prototype: str, model: Values, samples: Tensor) -> Tensor:
        """Return (n, classes) in evaluation mode."""
        seat = self._seats[prototype]
        seat.flat.load(model)
        return seat.passes.logits(samples)

    def embeddings(self, prototype: str, model: Values, samples: Tensor) -> Tensor:
        """Return (n, features): the inputs of the last linear layer.

        In evaluation mode.
        """
        seat = self._seats[prototype]
        module = seat.flat.load(model).module.eval()
        with torch.no_grad(), seat.listening() as heard:
            parts = []
            for part in seat.passes.chunks(0, len(samples)):
                module(samples[part])
                parts.append(heard[-1])
        return torch.cat(parts)

    def forward(
        self, prototype: str, model: Values, samples: Tensor, *, training: bool = False
    ) -> Tensor:
        """Return logits (n, classes), differentiable in `model["weights"]`.

        They are for losses of several models.

        In training mode, batch norm uses the batch's statistics and moves
        `model["buffers"]`, in place.
        """
        flat = self._seats[prototype].flat
        values = flat.named(model["weights"], model["buffers"])
        logits: Tensor = functional_call(
            flat.module.train(training), values, (samples,)
        )
        return logits

    def head(self, prototype: str, model: Values) -> tuple[Tensor, Tensor]:
        """Return weight and bias of the last linear layer, as views.

        They are (classes, features) and (classes,).
        """
        start, (outputs, inputs) = self._seats[prototype].head_at()
        weights = model["weights"]
        middle = start + outputs * inputs
        return weights[start:middle].view(outputs, inputs), weights[
            middle : middle + outputs
        ]

    def distil(  # noqa: PLR0913  options by keyword
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
        divergence: str = "teacher-student",
        optimizer: str = "sgd",
        order: np.random.Generator | None = None,
        steps: int | None = None,
        watch: Callable[[int, Model], bool] | None = None,
        watch_every: int = 1,
    ) -> tuple[Model, float]:
        """Fit a model to soft `targets`; return the model, and the loss before.

        The loss is KL(targets ‖ model), the mean over samples of the sum over classes.
        Running statistics stay as they are.

        Args:
            prototype: of the model.
            model: where it begins; not changed.
            samples: (n, *input_shape).
            targets: (n, classes), float64 probabilities.
            rate: learning rate of the steps.
            epochs: passes over the samples.
            batch_size: samples of a step; None: all at once.
            temperature: T by which the model's logits are divided.
            divergence: `student-teacher` for KL(model ‖ targets).
            optimizer: `sgd`, plain, or `adam`.
            order: draws an order for each pass; None: as they stand.
            steps: so many in place of epochs.
            watch: is shown every `watch_every`-th step and the model after it; where it
                says True, nothing follows.
            watch_every: steps from one look to the next.
        """
        seat, apart = self._seats[prototype], DIVERGENCES[divergence]
        flat = seat.flat.to_change(model)
        descent = Descent(make_plain_training(optimizer), rate)
        gradient = torch.zeros_like(flat.weights)
        before: float | None = None
        size = batch_size or len(samples)
        if size < len(samples):
            logits = seat.passes.logits(samples)
            before = apart(targets, logits, temperature)[0].item() / len(samples)
        most = epochs * -(-len(samples) // size) if steps is None else steps
        for step, places in enumerate(
            islice(_draw_batches(len(samples), size, order), most), 1
        ):
            at = torch.from_numpy(places).to(self.device)
            gradient.zero_()
            total = torch.zeros((), dtype=torch.float64, device=self.device)
            for part in seat.passes.chunks(0, len(at)):
                mine = at[part]

                def loss(logits: Tensor, mine: Tensor = mine, n: int = len(at)) -> Any:
                    value, slope = apart(targets[mine], logits, temperature)
                    return value, slope.div_(n)

                total += seat.passes.gradient(
                    samples[mine], loss, gradient, training=False
                )
            before = total.item() / len(at) if before is None else before
            descent.step(flat.weights, gradient)
            if (
                watch is not None
                and step % watch_every == 0
                and watch(step, flat.values())
            ):
                break
        assert before is not None
        return flat.values(), before

    def minimise(
        self,
        weights: Tensor,
        loss: Callable[[Tensor, Any], Tensor],
        batches: Iterable[Any],
        rate: float,
        optimizer: str = "sgd",
    ) -> tuple[Tensor, list[float]]:
        """Take a step along the gradient of `loss(weights, batch)` for each batch.

        Args:
            weights: (d,); not changed.
            loss: differentiable in its first argument.
            batches: whatever the loss takes.
            rate: learning rate.
            optimizer: `sgd` or `adam`, plain: no momentum, decay or clipping.

        Returns:
            The weights after all steps, and the loss before each.
        """
        weights, values = weights.clone(), []
        descent = Descent(make_plain_training(optimizer), rate)
        for batch in batches:
            leaf = weights.clone().requires_grad_()
            value = loss(leaf, batch)
            [slope] = torch.autograd.grad(value, leaf)
            descent.step(weights, slope)
            values.append(value.item())
        return weights, values

    def variances(self, prototype: str) -> Tensor:
        """Return (s,) booleans: which running statistics are variances."""
        flat = self._seats[prototype].flat
        zeros = torch.zeros_like(flat.statistics)
        for name, view in flat.named(flat.weights, zeros).items():
            if name.endswith("running_var"):
                view.fill_(1.0)
        return zeros.bool().cpu()

    def test(
        self, prototype: str, model: Values, part: int = 0, parts: int = 1
    ) -> TestPart:
        """Return the test results per class or client of a part of the test set.

        Args:
            prototype: of the model.
            model: its values.
            part: from 0.
            parts: in which the test set is worked through.

        Returns:
            Samples, right answers and sum of losses, per group; logits where measures
            need them.
        """
        some = find_stretch(len(self._data.test_labels), parts, part)
        logits = self.logits(prototype, model, self._data.test_samples[some])
        data = self._data
        rows = sum_by_group(
            logits,
            data.test_labels[some],
            data.objective,
            data.test_groups[some],
            data.groups,
        )
        return TestPart(rows, data.objective.scores(logits))

    def test_own(self, prototype: str, model: Values) -> Tensor:
        """Return the results of a client's own model on the test set; `join_tests`."""
        return join_tests([self.test(prototype, model)], self._data)

    def attack_success(self, prototype: str, model: Values) -> Tensor:
        """Return (2,): test images, and how many are taken for the backdoor's target.

        The images are of other classes; each gets the attacker's mark first.
        """
        backdoor = self._scenario.backdoor
        seat, others = self._seats[prototype], self._data.test_labels != backdoor.target
        seat.flat.load(model)
        marked = self._data.mark_tests(backdoor.mark)[others]
        taken = seat.passes.logits(marked).argmax(1) == backdoor.target
        return torch.stack([others.sum(), taken.sum()])


class _Seat:
    """One prototype's module in this process, into which values are loaded.

    It belongs to a kit alone: no caller sees a module, so none can leave anything in
    it.
    """

    def __init__(
        self,
        name: str,
        spec: PrototypeSpec,
        streams: Streams,
        data: Federation,
        training: Training,
        *,
        private: bool = False,
    ) -> None:
        seed = streams.integer("init", name)
        module = build_model(spec, data.input_shape, data.classes, seed=seed)
        module = module.to(data.device)
        self.flat = FlatModel(module)
        self.passes = choose_passes(self.flat, data.input_shape)
        self.trainer = Trainer(self.flat, self.passes, data, training, private=private)
        of_ones_own = spec.model and registry("model").origin(spec.model) != "built in"
        self.may_draw = bool(of_ones_own)
        self.first = self.flat.values()
        self._name = spec.name(name)

    def differentiate(
        self, loss: Loss, samples: Tensor, labels: Tensor, gradient: Tensor
    ) -> Tensor:
        """Return the value of a method's own loss.

        Its gradient is added to `gradient`, (d,). The module trains, and its hook hands
        the loss the embeddings of the batch.
        """
        module = self.flat.module.train()
        self.flat.accumulate_into(gradient)
        with self.listening() as heard:
            logits = module(samples)
            head = cast(nn.Linear, find_last_linear(module))
            value = loss(Batch(logits, heard[-1], labels, samples, head))
        value.backward()
        self.flat.accumulate_into(None)
        return value.detach()

    @contextmanager
    def listening(self) -> Iterator[list[Tensor]]:
        """Collect what goes into the last linear layer, a tensor for each pass.

        Raises:
            TypeError: for a model without one.
        """
        layer = find_last_linear(self.flat.module)
        if layer is None:
            raise TypeError(
                f"model {self._name} has no linear layer, so samples no embedding"
            )
        heard: list[Tensor] = []
        handle = layer.register_forward_pre_hook(
            lambda _, inputs: heard.append(inputs[0])
        )
        try:
            yield heard
        finally:
            handle.remove()

    def head_at(self) -> tuple[int, tuple[int, int]]:
        """Return the last linear layer's place in the flat vector, and its shape.

        Raises:
            TypeError: for a model without one that has a bias and is its own.
            InputError: where it does not train, so stands in no vector.
        """
        layer = find_last_linear(self.flat.module)
        if layer is None or layer.bias is None:
            raise TypeError(
                f"model {self._name} has no linear layer with a bias at its end"
            )
        if not layer.weight.requires_grad:
            raise InputError(
                "a prototype whose head trains, which this method sends or looks at",
                where="prototypes",
                got=self._name,
            )
        start = 0
        for parameter in self.flat.module.parameters():
            if parameter is layer.weight:
                return start, (layer.out_features, layer.in_features)
            start += parameter.numel() if parameter.requires_grad else 0
        raise TypeError(f"model {self._name} does not own its last linear layer")


def _draw_batches(
    samples: int, size: int, order: np.random.Generator | None
) -> Iterator[Positions]:
    """Yield batches without end: pass after pass over the samples.

    Each pass has an order of its own.
    """
    while True:
        places = np.arange(samples) if order is None else order.permutation(samples)
        yield from (places[start : start + size] for start in range(0, samples, size))


def mean_of(values: Iterable[Values], weights: Sequence[float]) -> Model:
    """Return the weighted mean of values of the same names, added in the order given.

    Of a change that came as a few entries, only these are added.

    >>> mean_of([{"w": torch.zeros(1)}, {"w": torch.ones(1)}], [1, 3])
    {'w': tensor([0.7500])}
    """
    total: Model = {}
    whole = sum(weights)
    for value, weight in zip(values, weights, strict=True):
        share = weight / whole
        as_it_came = getattr(value, "change", value.__getitem__)
        for name in value:
            total[name] = add_change(total.get(name), as_it_came(name), share)
    return total
