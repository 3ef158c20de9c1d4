"""The versions that a manifest names, found without importing what they belong to."""

from __future__ import annotations

import platform
import sys
from importlib import metadata

from simfed.version import VERSION

__all__ = ["versions"]

_PACKAGES = ("numpy", "torch", "simpy", "scipy", "pyarrow", "pandas", "networkx")


def versions() -> dict[str, str]:
    """simfed's version, Python's, those of the packages a run rests on, and the platform."""
    found = {"simfed": VERSION, "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:  # torch may be left out for time-only runs
            continue
    return {**found, "platform": f"{sys.platform} {platform.machine()}"}
