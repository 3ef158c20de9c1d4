"""Models on the test set: what is due, and what the answers of the units say.

Testing is split in two, since processes do it: `Evaluating.units` says what is to be
done, `spread_over_clients` and `of_clients` make results of the answers. What is
counted per sample, `simfed.learn.mixes` and the objective know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from torch import Tensor

from simfed.fleet.contract import Evaluation, PersonalEvaluation
from simfed.ground.method import State
from simfed.learn.clients import Bench, Unit, Units
from simfed.learn.mixes import compute_own_mix, evaluate, evaluate_in_mix, join_tests
from simfed.scenario.model import ATTACK_SUCCESS

Evaluations = tuple[dict[str, Evaluation], dict[int, PersonalEvaluation]]
"""Per prototype, and per client where there is any."""


class Evaluating:
    """Evaluation of one run's models.

    Prototypes are tested at the server where clients share its model, and clients with
    models of their own one by one. Made by the host; knows no state of the run.
    """

    def __init__(self, bench: Bench) -> None:
        """Take what models and data are made of; nothing is computed yet."""
        self._data, self._tasks, self._kit = bench.data, bench.tasks, bench.kit
        self._scenario, self._method = bench.tasks.scenario, bench.method

    def units(self, server: State) -> Units:
        """Return the units that test the server's models.

        Args:
            server: the state of which the models are.

        Returns:
            For each prototype a unit for each part of the test set, then the backdoor's
            where there is one; and the FLOPs of each.
        """
        parts = self._kit.parts
        models = {
            name: self._method.model(server, {}, self._tasks.first_of(name))
            for name in self._scenario.prototypes
        }
        units: list[Unit] = [
            ("test", (name, values, part, parts))
            for name, values in models.items()
            for part in range(parts)
        ]
        samples = len(self._data.test_labels) / parts
        if self._scenario.backdoor is not None:
            units += [
                ("attack_success", (name, values)) for name, values in models.items()
            ]
        return units, [
            self._kit.flops[prototype] * samples for _, (prototype, *_) in units
        ]

    def successes(self, answers: Sequence[Any]) -> dict[str, dict[str, float]]:
        """Return per prototype the share of marked images that a backdoor gets through.

        Empty where there is no backdoor, or nothing was tested.
        """
        names = list(self._scenario.prototypes)
        if self._scenario.backdoor is None or not answers:
            return {}
        counts = [answer.tolist() for answer in answers[-len(names) :]]
        return {
            name: {ATTACK_SUCCESS: taken / max(images, 1)}
            for name, (images, taken) in zip(names, counts, strict=True)
        }

    def spread_over_clients(self, answers: Sequence[Any]) -> Evaluations:
        """Return the results of `units` where clients have no models of their own.

        With `evaluation.clients`, each client is told what its prototype's model is
        worth in its own mix of groups.
        """
        parts = self._kit.parts
        tested = {
            name: join_tests(answers[at * parts : (at + 1) * parts], self._data)
            for at, name in enumerate(self._scenario.prototypes)
        }
        groups, objective = self._data.groups, self._data.objective
        prototypes = {
            name: evaluate(rows, groups, objective) for name, rows in tested.items()
        }
        if not self._scenario.evaluates_clients:
            return prototypes, {}
        clients = range(len(self._data.owned))
        return prototypes, {
            client: self._in_mix(client, tested[self._tasks.who(client).prototype])
            for client in clients
        }

    def of_clients(self, answers: Mapping[int, Tensor]) -> Evaluations:
        """Return the results, by client, where clients have models of their own.

        Of a prototype it is the mean over those of its clients that have one.
        """
        clients = {
            client: self._in_mix(client, rows) for client, rows in answers.items()
        }
        prototypes = {}
        for name in self._scenario.prototypes:
            mine = [
                evaluation
                for client, evaluation in clients.items()
                if self._tasks.who(client).prototype == name
            ]
            if mine:
                accuracy = fmean(one.accuracy for one in mine)
                loss = fmean(one.loss for one in mine)
                # what one lacks (a class that the test set has not) all lack
                measures = {
                    key: None
                    if value is None
                    else fmean(one.measures[key] or 0.0 for one in mine)
                    for key, value in mine[0].measures.items()
                    if not key.startswith("own_")
                }
                prototypes[name] = Evaluation(accuracy, loss, measures)
        return prototypes, clients

    def _in_mix(self, client: int, rows: Tensor) -> PersonalEvaluation:
        """Return a model's results for one client; rows are those of `join_tests`."""
        return evaluate_in_mix(
            rows, compute_own_mix(self._data, client), self._data.objective
        )
