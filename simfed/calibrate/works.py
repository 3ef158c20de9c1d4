"""The works that a table's models were measured on, as far as simfed knows them."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from simfed.device.profile import ModelWork
from simfed.ground.errors import InputError
from simfed.ground.registry import registry
from simfed.learn import catalogue

if TYPE_CHECKING:
    from simfed.device.table import MeasuredRows


def find_works(table: MeasuredRows) -> dict[str, ModelWork]:
    """Return the works that the table's models and auxiliary works were measured on.

    Args:
        table: its column `dataset` says on whose samples.

    Returns:
        Work by the model's name; what simfed does not know is not there.

    Raises:
        InputError: rows of one name are not of one shape.
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
    """Add `others` to `works`, in place.

    Raises:
        InputError: both have one name for unlike work.
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
