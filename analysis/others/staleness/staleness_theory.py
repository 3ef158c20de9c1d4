"""Mean staleness of asynchronous SGD per client, against its closed form."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import yaml
from ledger import STATED, Row, play
from numpy.typing import NDArray
from scipy import stats

RATES_PER_S = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 4.0)
CONCURRENCIES = (8, 5, 2)
_QUANTILES = 4001
_BATCHES = 20
_WARM_UP = 1000  # merges: everybody begins together, which is not the stationary law


def mean_staleness(rates_per_s: Sequence[float], concurrency: int) -> list[float]:
    """Merges by others while one of client i's participations lasts, on average.

    Whoever ends is replaced by one of those who are idle, itself included, drawn
    uniformly. With exponential service the set S of those at work is a reversible
    Markov chain of the product form π(S) ∝ Π 1/μ_i (a closed Jackson network's). Client
    i ends at the rate μ_i P(i ∈ S), others end beside it at the rate Σ_j μ_j P(i, j ∈
    S); the quotient is the mean.

    >>> mean_staleness([1.0, 1.0, 2.0], 3)
    [3.0, 3.0, 1.0]
    """
    everybody = range(len(rates_per_s))
    at_work = np.zeros((len(rates_per_s),) * 2)
    for cohort in itertools.combinations(everybody, concurrency):
        weight = 1 / np.prod([rates_per_s[i] for i in cohort])
        at_work[np.ix_(cohort, cohort)] += weight
    rates = np.asarray(rates_per_s)
    beside = at_work @ rates - np.diag(at_work) * rates
    return [float(x) for x in beside / (np.diag(at_work) * rates)]


def exponential_factors() -> list[float]:
    """Quantiles of the exponential law of mean 1.

    The last one gives their line the mean 1.
    """
    probabilities = np.linspace(0, 1, _QUANTILES)[:-1]
    factors = np.maximum(-np.log1p(-probabilities), 1e-6)
    last = 2 * (_QUANTILES - 1 - factors[1:].sum()) - factors[0]
    return [float(x) for x in (*factors, last)]


def compare_rows(data: Path | None = None) -> list[Row]:
    """Every client under every concurrency; `data` is not needed."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        profile = Path(folder) / "exponential.yaml"
        profile.write_text(
            yaml.safe_dump(
                {
                    "kind": "table",
                    "name": "exponential",
                    "training": {"logistic-regression": {32: "1 s"}},
                    "noise": {
                        "training": {"quantiles": exponential_factors()},
                        "compression": {"log_sd": 0.0},
                    },
                }
            ),
            encoding="utf-8",
        )
        for concurrency in CONCURRENCIES:
            rows += _rows(concurrency, profile)
    return rows


def _rows(concurrency: int, profile: Path) -> list[Row]:
    noise = {"kind": "measured"}
    devices = [
        {"profile": str(profile), "speed": rate, "noise": noise} for rate in RATES_PER_S
    ]
    groups = [
        {"count": 1, "prototype": "one", "device": d, "link": {}} for d in devices
    ]
    run = play("staleness", {"clients": groups, "aggregation.concurrency": concurrency})
    merged = run.participations.query("outcome == 'aggregated' and round > @_WARM_UP")
    rows = []
    for client, theory in enumerate(mean_staleness(RATES_PER_S, concurrency)):
        staleness = merged.loc[merged["client"] == client, "staleness"].to_numpy(
            dtype=float
        )
        low, high = batch_interval(staleness)
        quantity = (
            f"staleness of client {client} (rate {RATES_PER_S[client]}), "
            f"{concurrency} of 8"
        )
        mean = float(staleness.mean())
        rows.append(Row(quantity, "merges", theory, mean, STATED, low, high))
    return rows


def batch_interval(values: NDArray[np.float64]) -> tuple[float, float]:
    """The 95 % interval of the mean of a stationary series, by means of batches."""
    means = [float(batch.mean()) for batch in np.array_split(values, _BATCHES)]
    half = stats.t.ppf(0.975, _BATCHES - 1) * np.std(means, ddof=1) / np.sqrt(_BATCHES)
    return float(values.mean() - half), float(values.mean() + half)
