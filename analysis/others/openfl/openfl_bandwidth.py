"""OpenFL's execution times over seven bandwidths and two to eight envoys."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import NamedTuple

import numpy as np
from ledger import FITTED, HELD_OUT, Row, play

ENVOYS = (2, 3, 4, 5, 6, 7, 8)
RATES_KBYTES_PER_S = (32, 64, 96, 128, 256, 512, 1024)
PUBLISHED_S = (
    (937.69, 465.33, 307.18, 237.17, 195.12, 146.08, 138.05),
    (2386.749, 587.49, 420.33, 325.27, 225.2, 180.11, 170.10),
    (3092.6, 723.52, 497.49, 419.29, 268.24, 194.15, 184.24),
    (3634.69, 878.75, 599.49, 478.47, 294.38, 221.293, 206.26),
    (3792.81, 994.97, 647.63, 509.52, 325.42, 243.36, 221.27),
    (3965.36, 1227.09, 729.74, 583.61, 359.4, 270.37, 240.42),
    (4314.42, 1455.34, 813.84, 627.67, 418.5, 305.46, 251.44),
)
"""Seconds of five rounds: a row per number of envoys, a column per rate."""

FITTED_CELLS = ((2, 64), (2, 256), (2, 1024), (8, 128), (8, 256), (8, 1024))
"""(envoys, rate): the fewest and the most envoys, over most of the rates."""

ROUNDS = 5
MESSAGE_BYTES = 61_706 * 4
"""What the scenario's model is on the wire."""


class Costs(NamedTuple):
    """What the fit says."""

    start_s: float
    """Of an execution, whatever its envoys and rate."""
    envoy_s: float
    """What each envoy adds to an execution beside its transfers."""
    moved_bytes: float
    """By one envoy in one round, both ways together."""


def published_s(envoys: int, rate: int) -> float:
    return PUBLISHED_S[ENVOYS.index(envoys)][RATES_KBYTES_PER_S.index(rate)]


def fit_costs() -> Costs:
    """Least relative squares over the fitted cells."""
    cells = [(*cell, published_s(*cell)) for cell in FITTED_CELLS]
    design = np.array([(1 / s, n / s, n / (1e3 * rate) / s) for n, rate, s in cells])
    start_s, envoy_s, moved = np.linalg.lstsq(design, np.ones(len(cells)), rcond=None)[
        0
    ]
    return Costs(float(start_s), float(envoy_s), float(moved) / ROUNDS)


def predict_s(costs: Costs, envoys: int, rate: int) -> float:
    """Simulated seconds of five rounds."""
    line_bytes_per_s = 1e3 * rate * 2 * MESSAGE_BYTES / costs.moved_bytes
    line = f"{line_bytes_per_s * 8e-6:.9g} Mbps"
    changes = {
        "clients[0].count": envoys,
        "clients[0].device.training": f"{costs.envoy_s * envoys / ROUNDS:.9g} s",
        "network.server": {"receive": line, "send": line},
        "server.device.handling": f"{costs.start_s / ROUNDS:.9g} s",
        "rounds": ROUNDS,
    }
    return float(play("openfl", changes).rounds["finished_at_s"].iloc[-1])


def compare_rows(data: Path | None = None) -> list[Row]:
    """All 49 cells; `data` is not needed."""
    costs = fit_costs()
    rows = []
    for envoys, rate in itertools.product(ENVOYS, RATES_KBYTES_PER_S):
        use = FITTED if (envoys, rate) in FITTED_CELLS else HELD_OUT
        simulated_s = predict_s(costs, envoys, rate)
        quantity = f"five rounds, {envoys} envoys, {rate} kB/s"
        rows.append(Row(quantity, "s", published_s(envoys, rate), simulated_s, use))
    return rows
