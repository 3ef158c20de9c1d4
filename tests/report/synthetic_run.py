"""Run directories of a made-up world, for testing what reads them.

The world is small but obeys every law of a real one (`simfed verify` finds nothing):
phases add up to spans, spans of one track never overlap, two edge links are shared
equally below each client's own cap, bytes add up, the round ends when its last awaited
upload has arrived and the server has worked. Numbers that only learning could tell
(accuracy, losses, rewards) follow smooth curves with noise.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from simfed.record import TABLES, Recorder, RunDirectory, summarise
from simfed.record.schema import CLIENT_KINDS, PHASES

ARMS = ("top-k", "random-k", "periodic-k")
SERVER_KINDS = (("decompression", 0.004), ("logits", 0.012), ("distillation", 0.008))
SERVER_S = sum(seconds for _, seconds in SERVER_KINDS)
EDGE_BYTES_PER_S_PER_CLIENT = 4e4
ORDER = ("download", "training", "compression", "upload", "waiting", "offline")


class World:
    """A synthetic run; `write` makes its directory.

    `lost`: share of participations that are dropped (away for the rest of the round) or
    failed. `learns`: False makes it a time-only run; `diverges`: its losses end in
    infinity and NaN. Every 17th round is rolled back.
    """

    def __init__(
        self,
        clients: int = 10,
        rounds: int = 20,
        seed: int = 0,
        name: str = "synthetic",
        *,
        lost: float = 0.04,
        learns: bool = True,
        diverges: bool = False,
        prototypes: tuple[str, ...] = ("small", "large"),
    ) -> None:
        self.name, self.seed, self.clients, self.rounds = name, seed, clients, rounds
        self.lost, self.learns, self.names = lost, learns, prototypes[:clients]
        self.diverges = diverges
        rng = self.rng = np.random.default_rng([seed, clients])
        self.kind = np.arange(clients) % len(self.names)
        self.speed = np.where(np.arange(clients) % 4 == 3, 0.4, 1.0) * rng.lognormal(
            0, 0.1, clients
        )
        self.up = np.where(np.arange(clients) % 5 == 2, 2.5e5, 1e6)
        self.down = 10 * self.up
        self.model_bytes = 60_000.0 * (1 + 3 * self.kind)
        self.edge_bytes_per_s = EDGE_BYTES_PER_S_PER_CLIENT * clients
        self.value = rng.normal(0.1, 0.05, (clients, len(ARMS)))
        self.recorder, self.version, self.forced = Recorder(), 0, False
        at_s = 0.0
        for t in range(1, rounds + 1):
            at_s = self._round(t, at_s)

    def _row(self, table: str, **values: Any) -> None:
        getattr(self.recorder, table).append(TABLES[table].row(**values))

    def _span(self, *cells: Any) -> None:
        names = ("track", "kind", "round", "client", "name", "started_at_s")
        self._row("spans", **dict(zip((*names, "finished_at_s"), cells, strict=True)))

    def _link(self, link: str, *cells: Any) -> None:
        names = ("from_s", "to_s", "bytes", "capacity_bytes_per_s")
        *amounts, flows = cells
        facts = dict(zip(names, map(float, amounts), strict=True))
        self._row("links", link=link, flows=flows, **facts)

    def _round(self, t: int, start_s: float) -> float:
        rng, n = self.rng, self.clients
        arm, choice = self._pulls(t)
        times = {
            "download": self.model_bytes / self.down + 0.01,
            "training": 0.05
            * (1 + 0.8 * self.kind)
            / self.speed
            * rng.lognormal(0, 0.1, n),
            "compression": 0.02 * (1 + (arm == 2)) / self.speed,
        }
        size = rng.uniform(0.9, 1.1, n) * 40_000.0
        sent_s = sum(times.values())
        upload, pieces = self._uploads(sent_s, size)
        gone = (rng.random(n) < self.lost) & (
            np.arange(n) != np.argmax(sent_s + upload)
        )
        share = np.where(gone, rng.uniform(0.3, 0.9, n), 1.0)
        times["upload"], size = upload * share, size * share
        elapsed_s = sent_s + times["upload"]
        last = int(np.argmax(np.where(gone, -np.inf, elapsed_s)))
        waited_s = float(elapsed_s[last])
        away = gone & (np.arange(n) % 2 == 0)
        rest_s = waited_s + SERVER_S - elapsed_s
        times["waiting"] = np.where(away, 0.0, rest_s)
        times["offline"] = np.where(away, rest_s, 0.0)
        end_s = start_s + waited_s + SERVER_S
        outcome = np.where(away, "dropped", np.where(gone, "failed", "aggregated"))
        self._participations(t, start_s, end_s, times, size, arm, choice, outcome)
        self._links(start_s, times, size, pieces, sent_s)
        self._server(t, end_s)
        if self.learns:
            self._learning(t)
        rolled_back = t % 17 == 0
        self.version, self.forced = self.version + (not rolled_back), rolled_back
        others = np.where(gone | (np.arange(n) == last), -np.inf, elapsed_s)
        phase = max(CLIENT_KINDS[:4], key=lambda kind: times[kind][last])
        self._row(
            "rounds",
            round=t,
            started_at_s=start_s,
            finished_at_s=end_s,
            participants=n,
            late=0,
            dropped=int(gone.sum()),
            uplink_bytes=float(size.sum()),
            downlink_bytes=float(self.model_bytes.sum()),
            rolled_back=rolled_back,
            critical_client=last,
            critical_phase=phase,
            critical_link=f"edge-{last % 2 + 1}"
            if phase in ("download", "upload")
            else None,
            duration_s=waited_s + SERVER_S,
            server_s=SERVER_S,
            saved_without_critical_s=waited_s - float(others.max())
            if (others > 0).any()
            else None,
        )
        return end_s

    def _pulls(self, t: int) -> tuple[np.ndarray, np.ndarray]:
        explore = self.rng.random(self.clients) < min(1, 3 / np.sqrt(t))
        arm = np.where(
            explore, self.rng.integers(0, 3, self.clients), self.value.argmax(axis=1)
        )
        if self.forced:
            return np.zeros(self.clients, int), np.full(self.clients, "forced")
        return arm, np.where(explore, "explore", "exploit")

    def _uploads(self, sent_s: np.ndarray, size: np.ndarray):
        upload, pieces = np.zeros(self.clients), []
        for edge in range(min(2, self.clients)):
            members = np.arange(edge, self.clients, 2)
            upload[members], used = equal_sharing(
                sent_s[members], size[members], self.up[members], self.edge_bytes_per_s
            )
            pieces += [(f"edge-{edge + 1}", *piece) for piece in used]
        return upload, pieces

    def _participations(
        self, t, start_s, end_s, times, size, arm, choice, outcome
    ) -> None:
        for c in range(self.clients):
            at_s = start_s
            for kind in ORDER:
                duration_s = float(times[kind][c])
                if duration_s > 0:
                    until_s = (
                        end_s if kind in ("waiting", "offline") else at_s + duration_s
                    )
                    name = ARMS[arm[c]] if kind == "compression" else kind
                    self._span(f"client {c}", kind, t, c, name, at_s, until_s)
                    at_s = until_s
            rewarded = outcome[c] == "aggregated" and self.learns
            gain = float(0.4 * np.exp(-t / 10) + 0.02 * self.rng.normal())
            busy_s = sum(
                float(times[kind][c]) for kind in ("training", "compression", "upload")
            )
            reward = float(np.clip(gain / busy_s, -1, 1))
            self._row(
                "participations",
                round=t,
                client=c,
                prototype=self.names[self.kind[c]],
                model_version=self.version,
                arm=ARMS[arm[c]],
                k=1000,
                choice=str(choice[c]),
                outcome=str(outcome[c]),
                started_at_s=start_s,
                finished_at_s=end_s,
                uplink_bytes=float(size[c]),
                downlink_bytes=float(self.model_bytes[c]),
                energy_j=None,
                local_loss=float(2 * np.exp(-t / 30) + 0.1) if rewarded else None,
                gain=gain if rewarded else None,
                reward_raw=gain / busy_s if rewarded else None,
                reward=reward if rewarded else None,
                slack_s=float(times["waiting"][c]) - SERVER_S
                if outcome[c] == "aggregated"
                else None,
                merge=t,
                **{
                    f: float(times[k][c])
                    for f, k in zip(PHASES, CLIENT_KINDS, strict=True)
                },
            )
            for a, name in enumerate(ARMS if self.learns else ()):
                value = np.inf if self.diverges and a == 0 else float(self.value[c, a])
                self._row("policies", round=t, client=c, arm=name, value=value)
            if rewarded and choice[c] != "forced":
                self.value[c, arm[c]] += 0.1 * (reward - self.value[c, arm[c]])

    def _links(self, start_s, times, size, pieces, sent_s) -> None:
        for c in range(self.clients):
            moved = float(self.model_bytes[c])
            for link, after_s, length_s, amount, capacity in (
                (f"client-{c}/down", 0.01, moved / self.down[c], moved, self.down[c]),
                (f"client-{c}/up", sent_s[c], times["upload"][c], size[c], self.up[c]),
            ):
                from_s = start_s + after_s
                self._link(link, from_s, from_s + length_s, amount, capacity, 1)
        for link, from_s, to_s, moved, flows in pieces:
            ends_s = start_s + from_s, start_s + to_s
            self._link(link, *ends_s, moved, self.edge_bytes_per_s, flows)

    def _server(self, t: int, end_s: float) -> None:
        at_s = end_s - SERVER_S
        for kind, seconds in SERVER_KINDS:
            until_s = min(at_s + seconds, end_s)
            self._span("server", kind, t, None, kind, at_s, until_s)
            at_s = until_s

    def _learning(self, t: int) -> None:
        evaluated = t % max(1, self.rounds // 20) == 0 or t == self.rounds
        for i, prototype in enumerate(self.names):
            noise = self.rng.normal(0, 0.01)
            accuracy = (
                0.1 + (0.82 + 0.05 * i) * (1 - np.exp(-4 * t / self.rounds)) + noise
            )
            broken = self.diverges and t > self.rounds / 2
            self._row(
                "prototypes",
                round=t,
                prototype=prototype,
                kd_loss=np.inf
                if broken
                else float(np.exp(-3 * t / self.rounds) * (1 + noise)),
                test_accuracy=float(min(accuracy, 1)) if evaluated else None,
                test_loss=(
                    np.nan if broken else float(2.3 * np.exp(-3 * t / self.rounds))
                )
                if evaluated
                else None,
            )

    @property
    def scenario(self) -> dict[str, Any]:
        counts = [int((self.kind == i).sum()) for i in range(len(self.names))]
        return {
            "name": self.name,
            "seed": self.seed,
            "rounds": self.rounds,
            "dataset": {"name": "mnist-mini"},
            "prototypes": {name: {"model": "lenet5"} for name in self.names},
            "compression": {"k": 1000, "strategies": list(ARMS)},
            "policy": {"kind": "exp3", "mixing": 0.1},
            "client_order": "round-robin",
            "clients": [
                {"count": count, "prototype": name, "device": "made-up"}
                for name, count in zip(self.names, counts, strict=True)
            ],
        }

    def write(self, path: Path) -> Path:
        """Write the run directory and return its path."""
        facts = {
            "name": self.name,
            "mode": "full" if self.learns else "time-only",
            "seed": self.seed,
            "versions": {"simfed": "0.1.0", "python": "3.11.7"},
            "warnings": ["made up: no device was measured"],
        }
        groups = self.scenario["clients"]
        directory = RunDirectory.create(
            path,
            scenario_yaml=yaml.safe_dump(self.scenario, sort_keys=False),
            manifest=facts,
        )
        clients = {group["prototype"]: group["count"] for group in groups}
        directory.finish(
            self.recorder,
            manifest=facts,
            summary=summarise(self.recorder.table, clients),
        )
        return path


def run_maker(root: Path) -> Callable[..., Path]:
    """A function that writes the run of given arguments below `root`, once, and gives
    its folder.
    """
    numbers = itertools.count()
    return functools.cache(
        lambda *args, **kwargs: World(*args, **kwargs).write(
            root / f"run-{next(numbers)}"
        )
    )


def equal_sharing(arrive_s, size, cap, capacity):
    """Flows on one link, shared equally below each flow's cap: (durations, pieces of
    use).

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
