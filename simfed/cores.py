"""How many processors there are for this process."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["available_cores"]


def available_cores() -> int:
    """Cores that this process may use: its affinity, and its control group's quota."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:  # macOS
        cores = os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        cores = min(cores, max(1, int(quota) // int(period)))
    except (OSError, ValueError):
        pass  # no control groups here, or no quota ("max")
    return max(1, cores)
