"""What of a registered method or merging rule can be timed by itself: its auxiliary work, at its
default options.

A method is asked as in a run with one model, so names and sizes of its work are those of that
model. Importing this needs no torch.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from simfed.ground.errors import InputError
from simfed.ground.method import Method, Setting, Size
from simfed.ground.registry import registry
from simfed.learn.catalogue import facts

CLIENTS, PUBLIC, BATCH = 10, 256, 32
"""Of the run that methods are asked about; work that depends on them has them in its name."""


class Rehearsal(NamedTuple):
    """One kind of auxiliary work."""

    flops: float
    """Per sample."""
    prepare: Callable[[int], Callable[[], object] | None]
    """Samples → one call on so many; None: it is never done on so many, or not by itself."""


def build_lone_setting(model: str, dataset: str) -> Setting:
    """The facts of a run in which everybody has this model."""
    sizes = facts(model, dataset)
    size = Size(model, sizes.parameters, sizes.buffers, sizes.features, CLIENTS, sizes.shapes)
    return Setting(1, CLIENTS, CLIENTS, sizes.classes, PUBLIC, BATCH, None, 1, {model: size})


def rehearsals(model: str, dataset: str) -> dict[str, Rehearsal]:
    """The auxiliary work of every registered method that can do without options, by its name.

    >>> sorted(rehearsals("lenet5-half", "mnist-mini"))[:2]
    ['bulyan/lenet5-half', 'fedal/discriminator-10-64-10']
    """
    setting = build_lone_setting(model, dataset)
    rehearsal_of: dict[str, Rehearsal] = {}
    for name in registry("method").names():
        # a method with options that are required, one that cannot take this model, a broken package
        with suppress(TypeError, InputError, ImportError):
            method: Method = registry("method").get(name)()
            method.check(setting)
            for work, flops in method.auxiliary(setting).items():
                rehearsal_of[work] = Rehearsal(flops, partial(method.rehearse, setting, work))
    for name in registry("rule").names():
        with suppress(TypeError, InputError, ImportError, AttributeError):
            rule = registry("rule").get(name)
            rule = rule(**rule.example)
            for size in setting.prototypes.values():
                for work, flops in rule.auxiliary(name, size).items():
                    rehearsal_of[work] = Rehearsal(flops, partial(rule.rehearse, size))
    return rehearsal_of
