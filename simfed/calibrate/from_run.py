"""A deployed run's measurements, as rows of a calibration table and link rates.

Every participation that arrived is one measurement of training, one of compression and
one of handling its messages (what its hosts took beside the phases), on its client's
device as it was: cold, once a round, beside whatever else the machine did. Seconds are
put on the profile's scale by the speed that its group came to. Of a device with a quota
they are those that its processors worked, as clients told (`processor.parquet`): what
the quota makes of them is the simulation's. What the server took becomes times that the
scenario says: of a merge as a whole, of an evaluation, and of waiting for the losses
that clients measure.

What is ignored: how a method's local work divides into units (all of it counts as
training steps), and a merge into its parts; rates of links that change within the run:
one rate per group and direction, the median over its participations, behind the latency
that the scenario says, also where a shared link was what limited them.
"""

from __future__ import annotations

import copy
import csv
import io
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

from simfed.calibrate.starts import add_starts
from simfed.compress.choice import Choice
from simfed.device.noise import Measured
from simfed.device.profile import ModelWork
from simfed.device.table import SIZE_COLUMNS, WORK_COLUMNS, MeasuredRows
from simfed.experiment.assembly import load_parts
from simfed.ground.errors import InputError
from simfed.ground.plain import Plain
from simfed.record.read import open_run
from simfed.record.schema import PHASES
from simfed.scenario import dump_scenario
from simfed.schema.distribution import Distribution

_COLUMNS = (*WORK_COLUMNS, *SIZE_COLUMNS, "steps", "seconds")
_OF_CLIENTS = ("training", "compression", "starting", "handling")
_SERVERS_OWN = ("serialising", "waking up")
"""Host spans of a participation in which its client does nothing."""
_MERGING = ("decompression", "inference", "distillation", "auxiliary")


class GroupSpeed(NamedTuple):
    """The rates of links and the speed of devices of a group of clients."""

    group: int
    rates: dict[str, float]
    """Bytes per second by way, `up` and `down`; infinite where nothing moved."""
    faster: float
    """Than all clients of its model together, on the scale of the scenario's
    `speed`."""


class MeasuredRun:
    """The measurements of a deployed run, and what is made of them.

    `simfed calibrate fit --from RUN` makes one per run: `rows` go to a CSV file, speeds
    and the server's seconds into the scenario that `scenario` returns.
    """

    def __init__(
        self, folder: Path, choose: Callable[[int], tuple[int, int]] | None = None
    ) -> None:
        """Open a run.

        Args:
            folder: the run directory.
            choose: from the number of rounds to the first and last that count; all if
            omitted.

        Raises:
            InputError: the run was not deployed, or no upload arrived.
        """
        self._run = open_run(folder)
        self._parts = load_parts(self._run, folder)
        mode = self._run.manifest.get("mode")
        if mode != "deployed":
            raise InputError(
                "a deployed run, whose seconds are real", where="--from", got=mode
            )
        first, last = 1.0, math.inf
        if choose is not None:
            first, last = choose(len(self._run.rounds))
        self._rounds = first, last
        self._arrivals = [
            row
            for row in self._run.table("participations").to_pylist()
            if first <= row["round"] <= last
            and row["outcome"] in ("aggregated", "late")
        ]
        if not self._arrivals:
            allowed = "rounds with uploads that arrived"
            raise InputError(allowed, where="--from", problem="no upload arrived")
        self._limited = [
            g.device.quota is not None for g in self._parts.scenario.clients
        ]
        told = self._run.table("processor").to_pylist() if any(self._limited) else []
        self._processor = {_key(row): row for row in told}

    def rows(self, host: bool) -> list[dict[str, Plain]]:
        """Return its participations as rows of a table for `simfed calibrate fit`.

        Args:
            host: also what hosts took beside the phases, as handling of messages.
        """
        parts = self._parts
        faster = {speed.group: speed.faster for speed in self.speeds}
        rows: list[dict[str, Plain]] = []
        common: dict[str, Plain] = {
            "session": str(self._run.manifest.get("id", "run")),
            "dataset": parts.scenario.dataset.label,
        }
        for row in self._arrivals:
            who = parts.tasks.who(row["client"], round=row["round"])
            scale = faster[self._group(row)]
            training_s, compression_s, beside_s = self._read_work(row)
            common["model"] = who.model

            def add(quantity: str, seconds: float, **size: Plain) -> None:
                timed = {"quantity": quantity, "seconds": repr(seconds), **size}
                rows.append({**common, **timed})

            steps, size = parts.tasks.setting.steps(who), parts.tasks.setting.batch_size
            if training_s > 0:
                step_s = scale * training_s / steps
                add("training", step_s, batch_size=size, steps=steps)
            if host and beside_s > 0:
                add("handling", scale * beside_s, samples=1)
            if compression_s > 0 and row["k"]:
                arm, asked = Choice.of(row["arm"]), row["k"]
                # the work is known by the K that the codec was given, not by what it
                # made of it
                if arm.codec.count_told(who.parameters, 1) != 1:
                    asked = parts.fleet.k(row["client"], who.parameters, arm.level)
                seconds = scale * compression_s
                add("compression", seconds, strategy=arm.strategy, k=asked)
        return rows

    def works(self) -> dict[str, ModelWork]:
        """Return the works that its models were measured on, by the model's name."""
        names = self._parts.scenario.model_names
        return {names[name]: ModelWork.of(x) for name, x in self._parts.facts.items()}

    def _sum_server_s(self) -> dict[str, float]:
        """Return the server's seconds of a merge, by kind of work: rounds' medians.

        They are `handling`, the merge as a whole, the `evaluation` of one prototype,
        and `losses`, the wait until everybody asked had measured its own. Where devices
        have quotas, what it took to send tasks and to turn to uploads is part of a
        merge; else it is in what clients' hosts took.
        """
        spans = self._run.spans[self._run.spans["round"].between(*self._rounds)]
        spans = spans.assign(seconds=spans["finished_at_s"] - spans["started_at_s"])
        sending_s = 0.0
        if any(self._limited):
            sending = spans[spans["client"].notna() & spans["name"].isin(_SERVERS_OWN)]
            sending_s = float(
                sending.groupby(["round", "client"])["seconds"].sum().median()
            )
        spans = spans[spans["track"] == "server"]
        tests, losses = spans["name"] == "evaluation", spans["name"] == "losses"
        masks = (~tests & ~losses, tests, losses)
        sums = [spans[mask].groupby("round")["seconds"].sum() for mask in masks]
        merge_s, tests_s, losses_s = (
            0.0 if x.empty else float(x.median()) for x in sums
        )
        return {
            "handling": merge_s + sending_s,
            "evaluation": tests_s / len(self._parts.scenario.prototypes),
            "losses": losses_s,
        }

    @cached_property
    def speeds(self) -> list[GroupSpeed]:
        """The rates and speeds of each group's transfers and devices.

        Raises:
            InputError: latencies differ from message to message.
        """
        if self._parts.topology.delays is not None:
            allowed = "constant latencies"
            got = "some that differ from message to message"
            raise InputError(allowed, where="clients: link.latency", got=got)
        scenario = self._parts.scenario
        models = [scenario.model_names[group.prototype] for group in scenario.clients]
        rates: dict[tuple[int, str], list[float]] = defaultdict(list)
        steps: dict[int, list[float]] = defaultdict(list)
        by_model: dict[str, list[float]] = defaultdict(list)
        for row in self._arrivals:
            client, group = row["client"], self._group(row)
            who = self._parts.tasks.who(client, round=row["round"])
            count = self._parts.tasks.setting.steps(who)
            step_s = self._read_work(row)[0] / count
            steps[group].append(step_s)
            by_model[models[group]].append(step_s)
            for way in ("up", "down"):
                path = self._parts.topology.path(client, way)
                took_s = row[f"{way}link_s"] - path.latency_s
                if row[f"{way}link_bytes"] > 0 and took_s > 0:
                    rates[group, way].append(row[f"{way}link_bytes"] / took_s)
        return [
            GroupSpeed(
                group,
                {way: _median(rates[group, way]) for way in ("up", "down")},
                _median(by_model[models[group]]) / _median(own),
            )
            for group, own in sorted(steps.items())
        ]

    def scenario(self, profile: str, noise: bool) -> str:
        """Return its scenario with the measured profile and rates, as YAML.

        Speeds of groups and the server's seconds stand in it, too. A speed that is
        drawn stays as it is.

        Args:
            profile: the name of the measured one.
            noise: the profile knows that of all work.
        """
        plain: dict[str, Plain] = yaml.safe_load(dump_scenario(self._parts.scenario))
        for group in plain["clients"]:
            device = group["device"]
            device["profile"] = profile
            for key in ("assume", "scale"):  # what the profile knows now
                left = {
                    name: s
                    for name, s in (device[key] or {}).items()
                    if s is not None and name not in _OF_CLIENTS
                }
                device[key] = left or None
            if noise:
                device["noise"] = {"kind": "measured"}
        # the parts of a merge are in it as a whole
        seconds = self._sum_server_s() | dict.fromkeys(_MERGING, 0.0)
        assume = {name: f"{1e3 * s:.4g} ms" for name, s in seconds.items()}
        plain["server"] = {"device": {"assume": assume}}
        for speed in self.speeds:
            device, link = (
                plain["clients"][speed.group][key] for key in ("device", "link")
            )
            if isinstance(device["speed"], (int, float)):
                device["speed"] = float(f"{device['speed'] * speed.faster:.4g}")
            for key, rate in speed.rates.items():
                if np.isfinite(rate):
                    link[key] = f"{8e-6 * rate:.6g} Mbps"
        return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=100)

    def _read_work(self, row: dict[str, Any]) -> list[float]:
        """Return the seconds of a participation's work at speed 1.

        They are those of training, of compression, and of all else of its hosts. Under
        a quota they are those that processors worked, as the client told.
        """
        client, busy = row["client"], row
        drawn = self._parts.group(client).device.speed
        speed = (
            self._parts.fleet.speed(client)
            if isinstance(drawn, Distribution)
            else float(drawn)
        )
        if self._limited[self._group(row)]:
            busy = self._processor[_key(row)]
            beside_s = busy["other_s"]
        else:
            whole_s = row["finished_at_s"] - row["started_at_s"]
            beside_s = whole_s - sum(row[n] for n in PHASES)
        worked = busy["training_s"], busy["compression_s"], beside_s
        return [speed * seconds for seconds in worked]

    def _group(self, row: dict[str, Any]) -> int:
        return int(self._parts.fleet.group[row["client"]])


def _key(row: dict[str, Any]) -> tuple[int, int, float]:
    return row["merge"], row["client"], row["started_at_s"]


def _median(values: list[float]) -> float:
    return float(np.median(values)) if values else float("inf")


def join_rows(runs: Sequence[MeasuredRun], host: bool) -> str:
    """Return CSV of several runs' activities, under one header.

    Args:
        runs: of the same devices.
        host: as for `MeasuredRun.rows`.
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, _COLUMNS)
    writer.writeheader()
    for run in runs:
        writer.writerows(run.rows(host))
    return text.getvalue()


def centre_rows(document: Mapping[str, Plain], table: MeasuredRows) -> dict[str, Plain]:
    """Return a fitted profile whose rows, with its scatter, have the measured means.

    Scatter is one law for all rows of a kind of work, around medians. Where rows
    scatter unlike one another (work under a quota passes at once or waits, so that a
    median is the one or the other), medians with that law have other means. Laws stay
    as they are.

    Args:
        document: the profile, which stays as it is.
        table: what it was fitted to.
    """
    profile: dict[str, Plain] = copy.deepcopy(dict(document))
    scatter = profile.get("noise", {}).items()
    noise = {name: Measured.read(node, name) for name, node in scatter}
    means: dict[tuple[str, str, str, float], list[float]] = {}
    for row in add_starts(table).rows:
        if row.key[0] in noise:
            whole_s = row.whole_s / noise[row.key[0]].mean(row.steps)
            step_s = (whole_s - row.starting_s) / row.steps
            means.setdefault((*row.key, row.size), []).append(step_s)
    for (quantity, model, strategy, size), seconds in means.items():
        node = profile[quantity][model]
        rows = node[strategy] if strategy else node
        if "law" not in rows:
            middle_s = float(np.mean(seconds))
            rows[int(size) if size.is_integer() else size] = f"{middle_s:.6g} s"
    return profile
