"""The processors that this process may use, and shares of one (cgroup `cpu`, Linux)."""

from __future__ import annotations

import os
import platform
from functools import cache
from pathlib import Path

from simfed.ground.errors import InputError

_CGROUP = Path("/sys/fs/cgroup")
_PROCESSES_PER_CORE = 4
"""Some wait for others or for a disk; beyond that they only take memory from one
another."""


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


def most_processes() -> int:
    """Return the most processes that may work at a time: 4 per core."""
    return _PROCESSES_PER_CORE * available_cores()


@cache
def identify_processor() -> tuple[str, str]:
    """Return the processor's model and its vector instructions.

    Numerical kernels are chosen by them.
    """
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine(), platform.processor()
    facts = {
        k.strip(): v.strip() for k, _, v in (line.partition(":") for line in lines)
    }
    flags = facts.get("flags", facts.get("Features", "")).split()
    families = ("amx", "avx", "fma", "sve", "asimd")
    model = f"{platform.machine()} {facts.get('model name', '')}".strip()
    return model, " ".join(sorted(flag for flag in flags if flag.startswith(families)))


def quota(share: float, period_s: float | None = None) -> tuple[int, int]:
    """Return (µs of processor time, in so many µs) of a share.

    No quota is below 1 ms, the kernel's least. Without a period: 10 ms, or 100 where
    that is too short.

    >>> quota(0.25), quota(0.02), quota(0.25, 0.1)
    ((2500, 10000), (2000, 100000), (25000, 100000))
    """
    if period_s is None:
        period_s = 0.01 if share >= 0.1 else 0.1
    period = round(1e6 * period_s)
    return max(round(share * period), 1000), period


def find_cpu_groups() -> Path | None:
    """Return the folder in which groups with a quota are made; None without one.

    Groups of version 2 come before those of version 1.
    """
    for folder, needed in (
        (_CGROUP, "cgroup.controllers"),
        (_CGROUP / "cpu", "cgroup.procs"),
    ):
        file = folder / needed
        if not file.exists() or not os.access(folder, os.W_OK):
            continue
        if needed == "cgroup.procs" or "cpu" in file.read_text().split():
            return folder
    return None


def make_group(
    group: Path, share: float, where: str, period_s: float | None = None
) -> None:
    """Make a control group whose processes have this share of one processor.

    They have it of every period, and ten times the weight of others while they have it.

    Raises: `InputError`, at `where`, where the system refuses.
    """
    above, (most, period) = group.parent, quota(share, period_s)
    try:
        if (above / "cgroup.controllers").exists():
            (above / "cgroup.subtree_control").write_text("+cpu")
        group.mkdir()
        if (group / "cpu.max").exists():
            (group / "cpu.max").write_text(f"{most} {period}")
            (group / "cpu.weight").write_text("1000")
        else:
            (group / "cpu.cfs_period_us").write_text(str(period))
            (group / "cpu.cfs_quota_us").write_text(str(most))
            (group / "cpu.shares").write_text("10240")
    except OSError as error:
        raise InputError(
            "a cgroup with a quota",
            where=where,
            got=f"{group}: {error.strerror or error}",
        ) from None
