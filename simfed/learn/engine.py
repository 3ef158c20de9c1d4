"""The learning side's arithmetic for one run: clients' work dealt to processes, the server's done
here."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from simfed.compress import codec_from_spec
from simfed.contract import Evaluation, PersonalEvaluation, Task
from simfed.fleet import Fleet
from simfed.learn.catalogue import ModelFacts, model_facts
from simfed.learn.crew import Crew, worth_sharing
from simfed.learn.federation import Federation, prototype_clients
from simfed.learn.losses import DIVERGENCES, mean_logits, soft_targets
from simfed.learn.memory import Arena
from simfed.learn.mixes import in_mix, label_counts
from simfed.learn.models import build_model
from simfed.learn.prototype import Prototype
from simfed.learn.timing import ACTIVITIES
from simfed.learn.training import dealt
from simfed.learn.units import Distil, Evaluate, Infer, MeasureLoss, Result, Send, Train, Unit
from simfed.learn.worker import Worker
from simfed.levels import split_arm
from simfed.registry import registry
from simfed.scenario import Scenario
from simfed.seeding import Streams

__all__ = ["Engine", "Part"]

_SELECTION = 100
"""FLOPs that take as long as compression does for each parameter."""

PARTS = 4
"""A public or test set is worked through in so many units at most, whatever the number of
processes."""


@dataclass(frozen=True, slots=True)
class Part:
    """A client's share in an average."""

    client: int
    row: int
    """Where its payload is."""
    entries: int
    scale: float
    """What makes its payload a change of weights: −η for gradients, −1 for weight differences."""
    weight: float
    """Of sum 1 over the prototype's participants."""


class Engine:
    """Prototypes, their clients' rows, and what can be done with them, on CPU processes.

    Nothing here knows of rounds being accepted or lost; `LearningWorkload` does.
    """

    parts = PARTS
    worker_class: ClassVar[type[Worker]] = Worker

    def __init__(
        self,
        scenario: Scenario,
        streams: Streams,
        data: Federation,
        *,
        workers: int = 1,
    ) -> None:
        self.scenario = scenario
        self.data = data
        arena = Arena(shared=workers > 1, device=data.device)
        clients = prototype_clients(scenario)
        self.facts: dict[str, ModelFacts] = {}
        self.prototypes: dict[str, Prototype] = {}
        for name, prototype in scenario.prototypes.items():
            model, shape, classes = prototype.model, data.input_shape, data.classes
            seed = streams.integer("init", name)
            self.facts[name] = model_facts(model, shape, classes)
            self.prototypes[name] = Prototype(
                name,
                lambda: build_model(model, shape, classes, seed=seed),  # noqa: B023 - used at once
                clients[name],
                arena,
                input_shape=shape,
                may_draw=registry("model").origin(model) != "built in",
                k=_largest_k(scenario, name, Fleet(scenario, streams), self.facts[name].parameters),
                public=scenario.dataset.public_batch or len(data.public),
                classes=classes,
                parts=self.parts,
                spare=scenario.uploads_in_wait,
                changes=scenario.downlink.compression is not None,
            )
        self.worker = self.worker_class(
            scenario, streams, data, self.prototypes, arena, processes=workers, parts=self.parts
        )
        self._wall: dict[str, float] = dict.fromkeys((*ACTIVITIES, "server"), 0.0)
        self._unshared = 0.0
        """Wall time of which it is not known yet what it was spent on."""
        self._crew = Crew(self.worker, workers)

    @property
    def workers(self) -> int:
        """Processes that share the work."""
        return self._crew.workers

    def run(self, units: Sequence[Unit]) -> list[Result]:
        """The results of units of any kinds, in order; the time goes to the activities' account."""
        if not units:
            return []
        begin, before = time.perf_counter(), self.worker.stopwatch.totals()
        results = self._results(units)
        wall, after = time.perf_counter() - begin, self.worker.stopwatch.totals()
        spent = [now - then for now, then in zip(after, before, strict=True)]
        self._unshared += wall
        if total := sum(spent):  # 0 until somebody has waited for an accelerator
            for activity, share in zip(ACTIVITIES, spent, strict=True):
                self._wall[activity] += self._unshared * share / total
            self._unshared = 0.0
        return results

    def _results(self, units: Sequence[Unit]) -> list[Result]:
        costs = [self._cost(unit) for unit in units]
        # what a training costs beside its FLOPs, nobody knows here
        if not worth_sharing(sum(costs)) and not any(isinstance(unit, Train) for unit in units):
            return [self.worker.run(unit) for unit in units]
        return self._crew.map("run", units, costs)

    def trainings(
        self,
        tasks: Iterable[Task],
        round: int,
        rate: float,
        shifts: Mapping[int, Any] | None = None,
    ) -> list[Train]:
        """Units that train these clients, those of a prototype together as far as that is
        faster; alone who begins beside the weights, by its `Train.shift`."""
        alike: dict[tuple[str, int], list[Task]] = {}
        worker = self.worker
        units = []
        for task in sorted(tasks, key=lambda of: -worker.training_count(of.client)):
            if shifts and task.client in shifts:
                alone = (task.client,), round, (task.key,), rate
                units.append(Train(*alone, shifts[task.client]))
                continue
            alike.setdefault((task.prototype, worker.alike(task.client)), []).append(task)
        for (name, samples), mine in alike.items():
            most = worker.together(self.prototypes[name], samples)
            # who is with whom decides no bit, so every process may get some
            flops = self.facts[name].train_flops * sum(
                worker.training_count(task.client) for task in mine
            )
            for some in dealt(mine, most, self._crew.parts(flops, len(alike))):
                clients, keys = (t.client for t in some), (t.key for t in some)
                units.append(Train(tuple(clients), round, tuple(keys), rate))
        return units

    def remember(self) -> None:
        """Keep the server's weights and statistics as they are, to return to."""
        for prototype in self.prototypes.values():
            prototype.remember()

    def return_to_remembered(self) -> None:
        """Weights and statistics as they were when `remember` was last called."""
        for prototype in self.prototypes.values():
            prototype.return_to_remembered()

    def average(self, parts: Sequence[Part]) -> None:
        """Each prototype becomes the weighted mean of its participating clients' models.

        `parts` in the order of client ids, their weights of sum 1 per prototype; a prototype
        without any stays as it is. Sparse: to change the server's weights by every client's share
        of its K entries is the mean of the dense client models, up to rounding.
        """
        begin = time.perf_counter()
        for prototype in self.prototypes.values():
            mine = [part for part in parts if part.client in prototype.row]
            if mine and prototype.buffers:
                statistics = prototype.server.statistics.zero_()
                for part in mine:
                    statistics.add_(prototype.statistics[part.row], alpha=part.weight)
            for part in mine:
                indices, values = prototype.sent(part.row, part.entries)
                share = values * (part.scale * part.weight)
                if part.entries < prototype.parameters:
                    prototype.server.weights.index_add_(0, indices, share)
                else:
                    prototype.server.weights.add_(share)
            prototype.moved()
        self._wall["server"] += time.perf_counter() - begin

    def teach(self, places: Sequence[tuple[str, int]]) -> None:
        """The students' targets: softened mean of the logits in these prototypes' rows."""
        self._set_targets(mean_logits([self.prototypes[name].logits[row] for name, row in places]))

    def distil(self, round: int, rate: float, steps: int) -> dict[str, float]:
        """The distillation loss per prototype, then `steps` gradient steps on it."""
        first: dict[str, float] = {}
        for _ in range(steps):
            losses = self._distillation(round)
            first = first or losses
            begin = time.perf_counter()
            for prototype in self.prototypes.values():
                for gradient in prototype.gradients:
                    prototype.server.weights.sub_(gradient, alpha=rate)
                prototype.moved()
            self._wall["distillation"] += time.perf_counter() - begin
        return first

    def initial_distillation_loss(self) -> dict[str, float]:
        """L_KD of the initial models, with the logits of all clients: those of their prototypes."""
        begin = time.perf_counter()
        logits: dict[str, Tensor] = {}
        for name, prototype in self.prototypes.items():
            samples = self.worker.public_samples(0)
            bf16 = self.scenario.precision.public == "bf16"
            logits[name] = prototype.passes.logits(samples, bf16=bf16)
        counts = {name: len(prototype.clients) for name, prototype in self.prototypes.items()}
        weighted = torch.stack([logits[name] * counts[name] for name in logits])
        self._set_targets(weighted.sum(0) / sum(counts.values()))
        divergence = DIVERGENCES[self.scenario.distillation.divergence]
        losses = {
            name: divergence(self.worker.targets, own, self._temperature)[0].item() / len(own)
            for name, own in logits.items()
        }
        self._wall["distillation"] += time.perf_counter() - begin
        return losses

    def evaluation_units(self) -> list[Evaluate]:
        """What evaluates every prototype on the test set."""
        samples = len(self.data.test_labels)
        return (
            [Evaluate(name, part) for name in self.prototypes for part in range(self.parts)]
            if samples
            else []
        )

    def evaluation(self, results: Sequence[Result]) -> dict[str, Evaluation]:
        """Accuracy and loss per prototype from the results of `evaluation_units`."""
        samples = len(self.data.test_labels)
        return {
            name: Evaluation(
                accuracy=sum(right for right, *_ in numbers) / samples,
                loss=sum(loss for _, loss, *_ in numbers) / samples,
            )
            for name, numbers in self._tested(results)
        }

    def evaluation_of_clients(self, results: Sequence[Result]) -> dict[int, PersonalEvaluation]:
        """The same per client, at its prototype's weights, where `evaluation.clients` says so."""
        if not self.scenario.evaluation.clients:
            return {}
        found = {}
        for name, numbers in self._tested(results):
            tested = torch.tensor([of[2:] for of in numbers], dtype=torch.float64).sum(0)
            for client in self.prototypes[name].clients.tolist():
                mix = label_counts(self.data, client).cpu()
                found[client] = in_mix(tested.reshape(3, -1), mix)
        return found

    def _tested(self, results: Sequence[Result]) -> Iterator[tuple[str, list[list[float]]]]:
        """Per prototype the numbers of its parts of the test set, if there are any."""
        for i, name in enumerate(self.prototypes if results else ()):
            yield name, [r.numbers for r in results[i * self.parts : (i + 1) * self.parts]]

    def timings(self) -> dict[str, float]:
        """Host seconds by activity; work shared by processes counts as long as it took."""
        return dict(self._wall)

    def close(self) -> None:
        """End the worker processes."""
        self._crew.close()

    def _distillation(self, round: int) -> dict[str, float]:
        units = [
            Distil(name, part, round)
            for name, prototype in self.prototypes.items()
            for part in range(prototype.parts)
        ]
        losses = dict.fromkeys(self.prototypes, 0.0)
        for unit, result in zip(units, self.run(units), strict=True):
            losses[unit.prototype] += result.numbers[0]
        return {name: total / self.worker.public for name, total in losses.items()}

    def _set_targets(self, logits: Tensor) -> None:
        self.worker.targets.copy_(soft_targets(logits, self._temperature))

    @property
    def _temperature(self) -> float:
        return self.scenario.distillation.temperature

    def _cost(self, unit: Unit) -> float:
        """FLOPs, roughly: enough to balance the processes."""
        worker, prototype = self.worker, self.worker.prototype_for(unit)
        facts = self.facts[prototype.name]
        match unit:
            case Train():
                samples = sum(worker.training_count(client) for client in unit.clients)
                return float(facts.train_flops * samples)
            case Send():
                logits = unit.with_logits * facts.forward_flops * worker.public
                return float(_SELECTION * facts.parameters + logits)
            case Infer():
                return float(facts.forward_flops * worker.public)
            case Distil():
                return facts.train_flops * worker.public / prototype.parts
            case MeasureLoss():
                return float(facts.forward_flops * worker.own_count(unit.client))
            case Evaluate():
                return facts.forward_flops * len(self.data.test_labels) / self.parts


def _largest_k(scenario: Scenario, prototype: str, fleet: Fleet, parameters: int) -> int | None:
    """The most entries that a client of `prototype` may send values for; None for all of them."""
    indices = [i for i, g in enumerate(scenario.clients) if g.prototype == prototype]
    groups = [scenario.clients[i] for i in indices]
    if any(scenario.policy_of_group(group).arms_from for group in groups):
        return None  # what the recorded run played is not known here
    most = 0
    for i, group in zip(indices, groups, strict=True):
        forced = scenario.forced_arms
        for arm in {*forced, *scenario.compression.arms, *scenario.arms_of_group(group)}:
            codec, level = split_arm(arm)
            _, k = fleet.range_of_k(i, parameters, level)
            most = max(most, codec_from_spec(codec).most_entries(parameters, k))
    return most
