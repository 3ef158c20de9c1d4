"""What scripts and plug-ins knew under an older address, which goes on working.

Importing an old module gives the one that stands at the new address, the same object; asking a
module for an old name gives what it is called now. Both give a `DeprecationWarning` that says so.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

NEW_ADDRESSES = {
    "simfed.again": "simfed.verify.again",
    "simfed.arithmetic": "simfed.ground.arithmetic",
    "simfed.assembly": "simfed.experiment.assembly",
    "simfed.audit": "simfed.verify.run",
    "simfed.availability": "simfed.fleet.availability",
    "simfed.contract": "simfed.fleet.contract",
    "simfed.distributions": "simfed.ground.distributions",
    "simfed.errors": "simfed.ground.errors",
    "simfed.faults": "simfed.fleet.faults",
    "simfed.ground.contract": "simfed.fleet.contract",
    "simfed.learn.workload": "simfed.learn.hosted",
    "simfed.levels": "simfed.ground.levels",
    "simfed.method": "simfed.ground.method",
    "simfed.record.invariants": "simfed.verify.invariants",
    "simfed.verify.audit": "simfed.verify.run",
    "simfed.verify.parts": "simfed.testing",
    "simfed.registry": "simfed.ground.registry",
    "simfed.regret": "simfed.study.regret",
    "simfed.seeding": "simfed.ground.seeding",
    "simfed.replay.digest": "simfed.record.digest",
    "simfed.selection": "simfed.fleet.selection",
    "simfed.study.comparison": "simfed.report.comparison",
    "simfed.study.statistics": "simfed.report.statistics",
    "simfed.tables": "simfed.ground.tables",
    "simfed.tasks": "simfed.fleet.tasks",
    "simfed.units": "simfed.ground.units",
}
NEW_NAMES = {
    "simfed.again.replay_draws": "simfed.verify.run.verify",
    "simfed.experiment.assembly.capacities_of": "simfed.experiment.capacities.capacities_of",
    "simfed.fleet.Fleet": "simfed.fleet.columns.Fleet",
    "simfed.learn.workload.LearningWorkload": "simfed.learn.hosted.HostedWorkload",
}


class _OldAddresses(MetaPathFinder, Loader):
    """Finds the modules of `NEW_ADDRESSES` by their old names."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname in NEW_ADDRESSES else None

    def exec_module(self, module: ModuleType) -> None:
        old = module.__name__
        new = NEW_ADDRESSES[old]
        warnings.warn(f"{old} is {new} now", DeprecationWarning, stacklevel=2)
        # what the import statement then hands out, see importlib's _load_unlocked
        sys.modules[old] = moved = importlib.import_module(new)
        for name, now in NEW_NAMES.items():
            if name.rpartition(".")[0] == old:
                setattr(moved, name.rpartition(".")[2], _import_name(now))


def follow_old_addresses() -> None:
    """Let old addresses be imported, once per process."""
    if not any(isinstance(finder, _OldAddresses) for finder in sys.meta_path):
        sys.meta_path.append(_OldAddresses())


def old_names(module: str) -> Callable[[str], Any]:
    """The `__getattr__` of a module that still stands, but some of its names elsewhere."""

    def look_up(name: str) -> Any:
        old = f"{module}.{name}"
        if old not in NEW_NAMES:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warnings.warn(f"{old} is {NEW_NAMES[old]} now", DeprecationWarning, stacklevel=2)
        return _import_name(NEW_NAMES[old])

    return look_up


def _import_name(address: str) -> Any:
    home, _, name = address.rpartition(".")
    return getattr(importlib.import_module(home), name)
