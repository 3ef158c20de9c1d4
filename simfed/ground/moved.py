"""Modules that scripts and plug-ins knew under an older address, which goes on working.

Importing an old address gives the module that stands at the new one, the same object, with a
`DeprecationWarning` that names it.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

__all__ = ["NEW_ADDRESSES", "follow_old_addresses"]

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
    "simfed.levels": "simfed.ground.levels",
    "simfed.method": "simfed.ground.method",
    "simfed.record.invariants": "simfed.verify.invariants",
    "simfed.verify.audit": "simfed.verify.run",
    "simfed.registry": "simfed.ground.registry",
    "simfed.regret": "simfed.study.regret",
    "simfed.seeding": "simfed.ground.seeding",
    "simfed.selection": "simfed.fleet.selection",
    "simfed.study.comparison": "simfed.report.comparison",
    "simfed.study.statistics": "simfed.report.statistics",
    "simfed.tables": "simfed.ground.tables",
    "simfed.tasks": "simfed.fleet.tasks",
    "simfed.units": "simfed.ground.units",
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
        sys.modules[old] = importlib.import_module(new)


def follow_old_addresses() -> None:
    """Let old addresses be imported, once per process."""
    if not any(isinstance(finder, _OldAddresses) for finder in sys.meta_path):
        sys.meta_path.append(_OldAddresses())
