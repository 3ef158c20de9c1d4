"""The versions that a manifest names, found without importing what they belong to."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from functools import lru_cache
from importlib import metadata

from simfed.ground.cores import identify_processor
from simfed.ground.version import VERSION
from simfed.native import name_layer_engine

_PACKAGES = ("numpy", "torch", "simpy", "scipy", "pyarrow", "pandas")

NOT_ALWAYS = {"owned", "laws", "round_metrics", "measure", "privacy", "raised"}
"""Keys that stand in a manifest only where there is something to say."""


def versions() -> dict[str, str]:
    """Return the versions that a run's last bits rest on.

    Keys are `simfed`, `python`, each installed package of those that compute,
    `platform`, `processor` (its model) and `layers` (who computes them).
    """
    installed = {"simfed": VERSION, "python": platform.python_version()}
    built = {
        "platform": f"{sys.platform} {platform.machine()}",
        "processor": identify_processor()[0],
        "layers": name_layer_engine(),
    }
    return {**installed, **_read_packages(), **built}


def count_threads() -> int:
    """Return the threads on which PyTorch computes here; 1 where it is not loaded."""
    torch = sys.modules.get("torch")
    return 1 if torch is None else int(torch.get_num_threads())


@lru_cache
def _read_packages() -> Mapping[str, str]:
    """Return the versions of packages.

    A process reads them once: it takes a sixth of the time of a small run.
    """
    installed = {}
    for package in _PACKAGES:
        try:
            installed[package] = metadata.version(package)
        except (
            metadata.PackageNotFoundError
        ):  # torch may be left out for time-only runs
            continue
    return installed


def list_differences(begun: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return a sentence for each version that has changed since the run began.

    >>> begun = {"numpy": "2.1.0", "torch": "2.4.0"}
    >>> list_differences(begun, {**begun, "torch": "2.5.1"})
    ['began with torch 2.4.0 and went on with 2.5.1: its last bits may be others']
    """
    return [
        f"began with {name} {begun[name]} and went on with {version}: its last bits "
        f"may be others"
        for name, version in now.items()
        if begun.get(name, version) != version
    ]
