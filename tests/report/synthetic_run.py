"""Run directories of a made-up world, for testing what reads them.

The world is small but obeys every law of a real one: phases add up to spans, spans of one track
never overlap, two edge links are shared equally below each client's own cap, bytes add up, the
round ends when its last awaited upload has arrived and the server has worked. Numbers that only
learning could tell (accuracy, losses, rewards) follow smooth curves with keyed noise.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from simfed.record.schema import CLIENT_KINDS, PHASES, TABLES, arrow_schema, columns

ARMS = ("top-k", "random-k", "periodic-k")
SERVER_KINDS = (("decompression", 0.004), ("logits", 0.012), ("distillation", 0.008))
EDGE_BYTES_PER_S_PER_CLIENT = 4e4


class World:
    """A synthetic run: `tables` by name (column → list), `manifest`, `summary`, `scenario`."""

    def __init__(
        self,
        clients: int = 10,
        rounds: int = 20,
        seed: int = 0,
        name: str = "synthetic",
        *,
        lost: float = 0.03,
        away: float = 0.03,
        learns: bool = True,
        prototypes: tuple[str, ...] = ("small", "large"),
    ) -> None:
        self.name, self.seed, self.clients, self.rounds = name, seed, clients, rounds
        self.lost, self.away, self.learns, self.names = lost, away, learns, prototypes
        rng = self.rng = np.random.default_rng([seed, clients])
        self.kind = np.arange(clients) % len(prototypes)
        self.speed = np.where(np.arange(clients) % 4 == 3, 0.4, 1.0) * rng.lognormal(
            0, 0.1, clients
        )
        self.up = np.where(np.arange(clients) % 5 == 2, 2.5e5, 1e6)
        self.down = 10 * self.up
        self.edge_bytes_per_s = EDGE_BYTES_PER_S_PER_CLIENT * clients
        self.tables: dict[str, dict[str, list[Any]]] = {
            table: {column.name: [] for column in columns(table)} for table in TABLES
        }
        self.value = rng.normal(0.1, 0.05, (clients, len(ARMS)))
        at_s = 0.0
        for t in range(1, rounds + 1):
            at_s = self._round(t, at_s)
        self.ended_at_s = at_s

    def _row(self, table: str, **values: Any) -> None:
        for column, cells in self.tables[table].items():
            cells.append(values[column])

    def _round(self, t: int, start_s: float) -> float:
        rng, n = self.rng, self.clients
        arm = self._arms(t)
        times = {
            "download": (60_000 * (1 + 3 * self.kind)) / self.down + 0.01,
            "training": 0.05 * (1 + 0.8 * self.kind) / self.speed * rng.lognormal(0, 0.1, n),
            "compression": 0.02 * (1 + (arm == 2)) / self.speed,
            "offline": np.where(rng.random(n) < self.away, rng.uniform(0.02, 0.2, n), 0.0),
        }
        size = rng.uniform(0.9, 1.1, n) * 40_000.0
        sent_at = start_s + sum(times.values())
        upload, pieces = self._uploads(sent_at, size)
        gone = (rng.random(n) < self.lost) & (n > 1) & (np.arange(n) != np.argmax(sent_at + upload))
        share = np.where(gone, rng.uniform(0.3, 0.9, n), 1.0)
        times["upload"], size = upload * share, size * share
        arrived = sent_at + times["upload"]
        last = int(np.argmax(np.where(gone, -np.inf, arrived)))
        server_s = sum(seconds for _, seconds in SERVER_KINDS)
        end_s = float(arrived[last]) + server_s
        times["waiting"] = end_s - arrived
        self._participations(t, start_s, end_s, times, size, arm, gone, float(arrived[last]))
        self._links(start_s, times, size, pieces, sent_at)
        self._server(t, float(arrived[last]))
        if self.learns:
            self._learning(t)
        phase = max(CLIENT_KINDS[:4], key=lambda kind: times[kind][last])
        others = np.where(gone | (np.arange(n) == last), -np.inf, arrived)
        self._row(
            "rounds", round=t, started_at_s=start_s, finished_at_s=end_s, participants=n, late=0,
            dropped=int(gone.sum()), uplink_bytes=float(size.sum()),
            downlink_bytes=float((60_000 * (1 + 3 * self.kind)).sum()), rolled_back=t % 17 == 0,
            critical_client=last, critical_phase=phase, critical_link=self._edge(last),
            duration_s=end_s - start_s, server_s=server_s,
            saved_without_critical_s=float(arrived[last] - others.max()) if n > 1 else None,
        )  # fmt: skip
        return end_s

    def _edge(self, client: int) -> str:
        return f"edge-{client % 2 + 1}"

    def _arms(self, t: int) -> np.ndarray:
        explore = self.rng.random(self.clients) < min(1, 3 / np.sqrt(t))
        self.greedy = ~explore
        best = self.value.argmax(axis=1)
        return np.where(explore, self.rng.integers(0, 3, self.clients), best)

    def _uploads(self, sent_at: np.ndarray, size: np.ndarray):
        upload, pieces = np.zeros(self.clients), []
        for edge in range(min(2, self.clients)):
            members = np.arange(edge, self.clients, 2)
            done, used = equal_sharing(
                sent_at[members], size[members], self.up[members], self.edge_bytes_per_s
            )
            upload[members] = done
            pieces += [(f"edge-{edge + 1}", *piece) for piece in used]
        return upload, pieces

    def _participations(self, t, start_s, end_s, times, size, arm, gone, merged_at_s) -> None:
        for c in range(self.clients):
            at_s = start_s
            for kind in ("download", "training", "compression", "offline", "upload", "waiting"):
                duration_s = float(times[kind][c])
                if duration_s > 0:
                    until_s = end_s if kind == "waiting" else at_s + duration_s
                    self._row(
                        "spans", track=f"client {c}", kind=kind, round=t, client=c,
                        name=ARMS[arm[c]] if kind == "compression" else kind,
                        started_at_s=at_s, finished_at_s=until_s,
                    )  # fmt: skip
                    at_s = until_s
            lost = gone[c] or not self.learns
            gain = float(0.4 * np.exp(-t / 10) + 0.02 * self.rng.normal())
            busy_s = sum(float(times[kind][c]) for kind in ("training", "compression", "upload"))
            reward = None if lost else float(np.clip(gain / busy_s, -1, 1))
            choice = "warm-up" if t <= 5 else "exploit" if self.greedy[c] else "explore"
            self._row(
                "participations", round=t, client=c, prototype=self.names[self.kind[c]],
                model_version=t - 1, arm=ARMS[arm[c]], k=1000, choice=choice,
                outcome="dropped" if gone[c] else "aggregated", started_at_s=start_s,
                finished_at_s=end_s, uplink_bytes=float(size[c]),
                downlink_bytes=60_000.0 * (1 + 3 * int(self.kind[c])), energy_j=None,
                local_loss=None if lost else float(2 * np.exp(-t / 30) + 0.1),
                gain=None if lost else gain,
                reward_raw=None if lost else gain / busy_s, reward=reward,
                slack_s=None if gone[c] else merged_at_s - at_s + float(times["waiting"][c]),
                **{f: float(times[k][c]) for f, k in zip(PHASES, CLIENT_KINDS, strict=True)},
            )  # fmt: skip
            for a, name in enumerate(ARMS if self.learns else ()):
                self._row("policies", round=t, client=c, arm=name, value=float(self.value[c, a]))
            if reward is not None:
                self.value[c, arm[c]] += 0.1 * (reward - self.value[c, arm[c]])

    def _links(self, start_s, times, size, pieces, sent_at) -> None:
        for c in range(self.clients):
            moved = 60_000.0 * (1 + 3 * int(self.kind[c]))
            for link, from_s, length_s, amount, capacity in (
                (f"client-{c} down", start_s + 0.01, moved / self.down[c], moved, self.down[c]),
                (f"client-{c} up", sent_at[c], times["upload"][c], size[c], self.up[c]),
            ):
                self._row(
                    "links", link=link, from_s=float(from_s), to_s=float(from_s + length_s),
                    bytes=float(amount), capacity_bytes_per_s=float(capacity), flows=1,
                )  # fmt: skip
        for link, from_s, to_s, moved, flows in pieces:
            self._row(
                "links", link=link, from_s=from_s, to_s=to_s, bytes=moved,
                capacity_bytes_per_s=self.edge_bytes_per_s, flows=flows,
            )  # fmt: skip

    def _server(self, t: int, at_s: float) -> None:
        for kind, seconds in SERVER_KINDS:
            self._row(
                "spans", track="server", kind=kind, name=kind, round=t, client=None,
                started_at_s=at_s, finished_at_s=at_s + seconds,
            )  # fmt: skip
            at_s += seconds

    def _learning(self, t: int) -> None:
        evaluated = t % max(1, self.rounds // 20) == 0 or t == self.rounds
        for i, prototype in enumerate(self.names):
            noise = self.rng.normal(0, 0.01)
            accuracy = 0.1 + (0.82 + 0.05 * i) * (1 - np.exp(-4 * t / self.rounds)) + noise
            self._row(
                "prototypes", round=t, prototype=prototype,
                kd_loss=float(np.exp(-3 * t / self.rounds) * (1 + noise)),
                test_accuracy=float(min(accuracy, 1)) if evaluated else None,
                test_loss=float(2.3 * np.exp(-3 * t / self.rounds)) if evaluated else None,
            )  # fmt: skip

    @property
    def scenario(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "seed": self.seed,
            "rounds": self.rounds,
            "dataset": {"name": "mnist-mini"},
            "prototypes": {n: {"model": "lenet5"} for n in self.names},
            "compression": {"k": 1000, "strategies": list(ARMS)},
            "client_order": "round-robin",
            "clients": [
                {"count": int((self.kind == i).sum()), "prototype": n, "device": "made-up"}
                for i, n in enumerate(self.names)
            ],
        }

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(f"{self.name} {self.seed} {self.clients}".encode()).hexdigest()

    def write(self, path: Path) -> Path:
        """Write the run directory and return its path."""
        path.mkdir(parents=True)
        for table, cells in self.tables.items():
            pq.write_table(pa.table(cells, schema=arrow_schema(table)), path / f"{table}.parquet")
        (path / "scenario.yaml").write_text(yaml.safe_dump(self.scenario, sort_keys=False))
        (path / "manifest.json").write_text(json.dumps(self.manifest(), indent=1))
        (path / "summary.json").write_text(json.dumps(self.summary(), indent=1))
        return path

    def manifest(self) -> dict[str, Any]:
        return {
            "format": 1,
            "name": self.name,
            "mode": "full" if self.learns else "time-only",
            "simfed": "0.1.0",
            "python": "3.11.7",
            "numpy": "2.0.0",
            "seed": self.seed,
            "status": "finished",
            "fingerprint": self.fingerprint,
            "wall_s": {"total": 1.0},
            "warnings": ["made up: no device was measured"],
        }

    def summary(self) -> dict[str, Any]:
        return {"simulated_s": self.ended_at_s}


def run_maker(root: Path) -> Callable[..., Path]:
    """A function that writes the run of given arguments below `root`, once, and gives its folder."""
    numbers = itertools.count()
    return functools.cache(
        lambda *args, **kwargs: World(*args, **kwargs).write(root / f"run-{next(numbers)}")
    )


def equal_sharing(arrive_s, size, cap, capacity):
    """Flows on one link, shared equally below each flow's cap: (durations, pieces of use).

    A piece is (from, to, bytes, flows). Piecewise constant, exact up to rounding.
    """
    left, ended = size.astype(float).copy(), np.zeros(len(size))
    now, pieces = float(arrive_s.min()), []
    waiting = np.ones(len(size), dtype=bool)
    while waiting.any():
        active = waiting & (arrive_s <= now)
        later = arrive_s[waiting & ~active]
        if not active.any():
            now = float(later.min())
            continue
        rate = _water_fill(cap[active], capacity)
        step = float((left[active] / rate).min())
        if len(later):
            step = min(step, float(later.min()) - now)
        moved = np.minimum(rate * step, left[active])
        left[active] -= moved
        pieces.append((now, now + step, float(moved.sum()), int(active.sum())))
        now += step
        done = active & (left <= 1e-9 * size)
        ended[done], waiting[done] = now, False
        if step == 0 and not done.any():
            now = float(np.nextafter(now, np.inf))
    return ended - arrive_s, pieces


def _water_fill(cap: np.ndarray, capacity: float) -> np.ndarray:
    rate, left = np.empty(len(cap)), capacity
    for rank, i in enumerate(np.argsort(cap)):
        rate[i] = min(cap[i], left / (len(cap) - rank))
        left -= rate[i]
    return rate
