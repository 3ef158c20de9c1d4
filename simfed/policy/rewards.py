"""Rewards of policies: learning gain per simulated second."""

from __future__ import annotations

import math


def gain(
    rho: float,
    beta: float,
    kd_before: float | None,
    kd_after: float | None,
    local_before: float | None,
    local_after: float | None,
) -> float:
    """Return ΔL = rho·(kd_before − kd_after) + beta·(local_before − local_after).

    Args:
        rho: weight of the prototype's gain.
        beta: weight of the client's own.
        kd_before: loss of distillation before the merge.
        kd_after: the same after it.
        local_before: loss on the client's own data before the merge.
        local_after: the same after it.

    Returns:
        The gain in loss; positive where losses fell. A term counts 0 when one of its
        losses is None: no distillation (FedAvg), or the as-printed credit's first
        round, which has no earlier local loss.

    >>> gain(0.5, 0.25, 2.0, 1.0, 3.0, 5.0)
    0.0
    >>> gain(0.6, 0.4, None, None, 1.0, 0.5)
    0.2
    """
    kd = local = 0.0
    if kd_before is not None and kd_after is not None:
        kd = kd_before - kd_after
    if local_before is not None and local_after is not None:
        local = local_before - local_after
    return rho * kd + beta * local


def reward(
    gain: float, tau_s: float, clip: tuple[float, float] = (-1.0, 1.0)
) -> tuple[float, float]:
    """Return the gain per simulated second, as it is and clipped to `clip`.

    Args:
        gain: of `gain`.
        tau_s: the client's own training, compression and upload, in simulated seconds.
            Where these took no time at all, the reward before the clip is ±inf (0 for
            no gain).
        clip: its bounds.

    >>> reward(0.002, 0.01)
    (0.2, 0.2)
    >>> reward(-0.5, 0.01)
    (-50.0, -1.0)
    """
    instant = math.copysign(math.inf, gain) if gain else 0.0
    raw = gain / tau_s if tau_s > 0 else instant
    return raw, min(max(raw, clip[0]), clip[1])
