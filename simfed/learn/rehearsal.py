"""What of a registered method can be timed by itself: its auxiliary work, at its default options.

A method is asked as in a run with one model, so names and sizes of its work are those of that
model. Importing this needs no torch.
"""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

from simfed.ground.errors import InputError
from simfed.ground.method import Method, Setting, Size
from simfed.ground.registry import registry
from simfed.learn.catalogue import facts

__all__ = ["Rehearsal", "lone_setting", "rehearsals"]

CLIENTS, PUBLIC, BATCH = 10, 256, 32
"""Of the run that methods are asked about; work that depends on them has them in its name."""


class Rehearsal(NamedTuple):
    """One kind of auxiliary work."""

    method: Method
    setting: Setting
    flops: float
    """Per sample."""


def lone_setting(model: str, dataset: str) -> Setting:
    """The facts of a run in which everybody has this model."""
    of = facts(model, dataset)
    size = Size(model, of.parameters, of.buffers, of.features, CLIENTS, of.shapes)
    return Setting(1, CLIENTS, CLIENTS, of.classes, PUBLIC, BATCH, None, 1, {model: size})


def rehearsals(model: str, dataset: str) -> dict[str, Rehearsal]:
    """The auxiliary work of every registered method that can do without options, by its name.

    >>> sorted(rehearsals("lenet5-half", "mnist-mini"))[:2]
    ['fedal/discriminator-10-64-10', 'fedgen/generate-42-128-42']
    """
    setting = lone_setting(model, dataset)
    found: dict[str, Rehearsal] = {}
    for name in registry("method").names():
        # a method with options that are required, one that cannot take this model, a broken package
        with suppress(TypeError, InputError, ImportError):
            method: Method = registry("method").get(name)()
            method.check(setting)
            for work, flops in method.auxiliary(setting).items():
                found[work] = Rehearsal(method, setting, flops)
    return found
