"""What a profile is fitted to: rows of deployed runs, and the works of their models."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from simfed.calibrate.from_run import (
    calibrate_scenario,
    format_table,
    measure_group_speeds,
    measure_server_times,
)
from simfed.device.profile import ModelWork
from simfed.experiment.assembly import load_parts
from simfed.ground.errors import InputError
from simfed.ground.registry import registry
from simfed.learn import catalogue
from simfed.record.read import open_run

if TYPE_CHECKING:
    from simfed.device.table import MeasuredRows


class MeasuredRun:
    """The measurements of a deployed run, and what is made of them."""

    def __init__(
        self, run: Path, choose: Callable[[int], tuple[int, int]] | None = None
    ) -> None:
        """Open a run; `choose` says which of so many rounds count, all if omitted."""
        self._run = open_run(run)
        self._parts = load_parts(self._run, run)
        self._rounds = None if choose is None else choose(len(self._run.rounds))

    def table(self, host: bool) -> str:
        """Return CSV of its participations, a row per activity.

        `host`: of host seconds too.
        """
        return format_table(self._run, self._parts, rounds=self._rounds, host=host)

    def works(self) -> dict[str, ModelWork]:
        """Return the works that its models were measured on."""
        prototypes = self._parts.scenario.prototypes
        return {
            prototypes[name].model: ModelWork.of(x)
            for name, x in self._parts.facts.items()
        }

    def scenario(self, profile: str, noise: bool) -> str:
        """Return its scenario as it came to be."""
        groups = measure_group_speeds(self._run, self._parts, rounds=self._rounds)
        server = measure_server_times(self._run, rounds=self._rounds)
        return calibrate_scenario(self._parts, profile, groups, server, noise=noise)


def join_rows(runs: Sequence[MeasuredRun], host: bool) -> str:
    """Return CSV of several runs' activities, under one header."""
    first, *others = [run.table(host) for run in runs]
    return first + "".join(text.partition("\n")[2] for text in others)


def find_works(table: MeasuredRows) -> dict[str, ModelWork]:
    """Return the works that the table's models and auxiliary works were measured on.

    They are those that simfed has, with their data sets.

    Raises: `InputError` where rows of one name are not of one shape.
    """
    works: dict[str, ModelWork] = {}
    of_methods: dict[str, dict[str, ModelWork]] = {}
    for quantity, name, dataset in dict.fromkeys(
        (*row.key[:2], row.dataset) for row in table.rows
    ):
        known: dict[str, ModelWork] = {}
        if quantity == "auxiliary":
            if dataset not in of_methods:
                of_methods[dataset] = _find_auxiliary_works(dataset)
            known = {n: work for n, work in of_methods[dataset].items() if n == name}
        else:
            with contextlib.suppress(InputError):
                known = {name: ModelWork.of(catalogue.facts(name, dataset))}
        add_works(works, known)
    return works


def add_works(works: dict[str, ModelWork], others: Mapping[str, ModelWork]) -> None:
    """Add `others` to `works`.

    Raises: `InputError` where both have one name for unlike work.
    """
    for name, work in others.items():
        before = works.setdefault(name, work)
        if before != work:
            problem = f"{name} was measured on {before}, and on {work}"
            hint = "fit a profile of each"
            raise InputError(
                "rows of one shape of each name", problem=problem, hint=hint
            )


def _find_auxiliary_works(dataset: str) -> dict[str, ModelWork]:
    """Return FLOPs of methods' own work beside any registered model on this data."""
    works = {}
    for model in registry("model").names():
        with contextlib.suppress(InputError):
            for name, flops in catalogue.list_auxiliary(model, dataset).items():
                works[name] = ModelWork(0, flops, flops)
    return works
