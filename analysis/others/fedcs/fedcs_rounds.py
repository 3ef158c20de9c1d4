"""How many clients FedCS fits into a round of three minutes, and how many a random order does."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, ClassVar, NamedTuple

import numpy as np
import pandas as pd
from ledger import STATED, Row, play

import simfed
from simfed.fleet.selection import Facts
from simfed.ground.arrays import Floats, Ints
from simfed.ground.errors import RunFailed
from simfed.ground.plain import Plain
from simfed.ground.seeding import Streams
from simfed.report.statistics import Estimate, estimate_mean

CLIENTS, ROUND_S, MODEL_BYTES, EPOCHS = 1000, 180.0, 18.3e6, 5
WORLDS = range(10)
_SENT_BYTES = 61_706 * 4  # what the scenario's model is on the wire


class World(NamedTuple):
    """What each client can do, as the source draws it."""

    bytes_per_s: Floats
    """Alone on the air."""
    training_s: Floats


@cache
def draw_world(number: int) -> World:
    """Distances are uniform up to 2 km, from 10 m on; rates are Shannon's with the source's loss
    and cap, at the path loss of ITU-R M.2135's urban micro cells without line of sight."""
    rng = Streams(number)("fedcs")
    metres = np.maximum(10.0, 2000 * rng.random(CLIENTS))
    loss_db = 36.7 * np.log10(metres) + 22.7 + 26 * np.log10(2.5)
    noise_dbm = -174 + 10 * np.log10(1.8e6)
    signal_to_noise = 10 ** ((20 - loss_db - noise_dbm) / 10)
    bits_per_s = 1.8e6 * np.minimum(np.log2(1 + signal_to_noise / 1.6), 4.8)
    samples = rng.integers(100, 1001, CLIENTS)
    return World(bits_per_s / 8, EPOCHS * samples / rng.uniform(10, 100, CLIENTS))


@dataclass(frozen=True)
class FedCS:
    """Clients one after another as long as the round's deadline holds: T. Nishio and R. Yonetani,
    "Client selection for federated learning with heterogeneous resources in mobile edge", ICC 2019.

    `count` clients say what they can do. Of these the server adds the one that lengthens the round
    least, or with `greedy: false` a random one (their FedLim), whenever the round still ends in
    time. A round is one transmission of the model to all, at the slowest one's rate; then uploads
    take turns, each when its client is trained.
    """

    world: Annotated[int, "which clients"] = 0
    greedy: Annotated[bool, "the shortest first"] = True
    varies: ClassVar[bool] = True

    def choose(
        self, ids: Ints, count: int, facts: Facts, *, round: int, rng: np.random.Generator
    ) -> Ints:
        world = draw_world(self.world)
        asked = rng.choice(ids, min(count, len(ids)), replace=False)
        send_s, training_s = MODEL_BYTES / world.bytes_per_s[asked], world.training_s[asked]
        left = np.ones(len(asked), bool)
        chosen: list[int] = []
        multicast_s = uploaded_s = 0.0
        for place in range(len(asked)):
            multicasts_s = np.maximum(multicast_s, send_s)
            uploads_s = np.maximum(uploaded_s, training_s) + send_s
            longer_s = np.where(left, multicasts_s - multicast_s + uploads_s, np.inf)
            at = int(np.argmin(longer_s)) if self.greedy else place
            left[at] = False
            if multicasts_s[at] + uploads_s[at] < ROUND_S:
                chosen.append(int(asked[at]))
                multicast_s, uploaded_s = float(multicasts_s[at]), float(uploads_s[at])
        return np.sort(np.array(chosen, dtype=np.int64))


def play_world(number: int, *, greedy: bool) -> float:
    """Clients per round in one world. Raises: `RunFailed` where a round outlasts its deadline."""
    world = draw_world(number)
    clients: list[Plain] = [
        {
            "prototype": "one",
            "device": {"training": f"{seconds} s"},
            "link": {
                "cell": "street",
                "up": f"{rate * _SENT_BYTES / MODEL_BYTES} B/s",
                "down": "1 Gbps",
            },
        }
        for rate, seconds in zip(*world, strict=True)
    ]
    selection = {"kind": "fedcs", "world": number, "greedy": greedy}
    changes = {"seed": number, "clients": clients, "participation.selection": selection}
    run = play("fedcs", changes)
    slowest = run.participations.groupby("round")["client"].agg(
        lambda members: world.bytes_per_s[members].min()
    )
    lasted_s = run.rounds.set_index("round")["duration_s"] + MODEL_BYTES / slowest
    if (lasted_s.dropna() > ROUND_S + 1).any():  # latency of the air is not the source's
        raise RunFailed(f"a round of {lasted_s.max():.1f} s, planned for {ROUND_S:g} s")
    aggregated: pd.Series[bool] = run.participations["outcome"] == "aggregated"
    return float(aggregated.sum() / len(run.rounds))


def compare_rows(data: Path | None = None) -> list[Row]:
    """Rates in the cell and clients per round; `data` is not needed."""
    simfed.register("selection", "fedcs", FedCS)
    mbps = [8e-6 * draw_world(number).bytes_per_s for number in WORLDS]
    most = max(float(rates.max()) for rates in mbps)
    greedy, random = (
        estimate_mean([play_world(number, greedy=which) for number in WORLDS])
        for which in (True, False)
    )
    mean = estimate_mean([statistics.fmean(rates) for rates in mbps])
    worlds = f"mean of {len(WORLDS)} cells"
    return [
        _row("mean rate of a client", "Mbps", 1.4, mean, f"{worlds} of {CLIENTS:,} clients"),
        Row("highest rate", "Mbps", 8.6, most, STATED),
        _row("clients per round, FedCS", "clients", 7.7, greedy, worlds),
        _row("clients per round, random order (FedLim)", "clients", 3.3, random, worlds),
    ]


def _row(quantity: str, unit: str, published: float, ours: Estimate, note: str) -> Row:
    return Row(quantity, unit, published, ours.least, STATED, ours.low, ours.high, note)
