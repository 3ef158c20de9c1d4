"""The versions that a manifest names, found without importing what they belong to."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from importlib import metadata

from simfed.native import who_computes_layers
from simfed.version import VERSION

__all__ = ["differences", "versions"]

_PACKAGES = ("numpy", "torch", "simpy", "scipy", "pyarrow", "pandas", "networkx")


def versions() -> dict[str, str]:
    """simfed's version, Python's, those of the packages a run rests on, the platform, and who
    computes layers."""
    found = {"simfed": VERSION, "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:  # torch may be left out for time-only runs
            continue
    built = {"platform": f"{sys.platform} {platform.machine()}", "layers": who_computes_layers()}
    return {**found, **built}


def differences(begun: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """A sentence for each version under which a run goes on that is not the one it began under.

    >>> differences({"numpy": "2.1.0", "torch": "2.4.0"}, {"numpy": "2.1.0", "torch": "2.5.1"})
    ['began with torch 2.4.0 and went on with 2.5.1: its last bits may be others']
    """
    return [
        f"began with {name} {begun[name]} and went on with {version}: its last bits may be others"
        for name, version in now.items()
        if begun.get(name, version) != version
    ]
