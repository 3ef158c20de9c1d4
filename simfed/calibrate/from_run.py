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
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import yaml

from simfed.calibrate.starts import add_starts
from simfed.compress.choice import Choice
from simfed.device.noise import Measured
from simfed.device.table import SIZE_COLUMNS, WORK_COLUMNS, MeasuredRows
from simfed.experiment.assembly import Parts
from simfed.ground.errors import InputError
from simfed.ground.plain import Plain
from simfed.record.read import Run
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
    up_bytes_per_s: float
    down_bytes_per_s: float
    faster: float
    """Than all clients of its model together, on the scale of the scenario's
    `speed`."""


class ServerTimes(NamedTuple):
    """The seconds of a merge on the server."""

    merge_s: float
    """Seconds of a merge but for evaluations and losses: a round's median."""
    evaluation_s: float | None
    """The evaluation of one prototype; None: nothing was evaluated."""
    losses_s: float | None
    """Seconds until everybody asked had measured its loss; None: nobody was asked."""


def format_table(
    run: Run, parts: Parts, *, rounds: tuple[int, int] | None = None, host: bool = True
) -> str:
    """Return the run's participations as a table in CSV.

    `simfed calibrate fit` reads such. `rounds`: of these alone, first and last
    included. `host`: what hosts took beside the phases as well, as handling of
    messages.

    Raises: `InputError` for a run that was not deployed, or has no such rows.
    """
    faster = {
        group.group: group.faster
        for group in measure_group_speeds(run, parts, rounds=rounds)
    }
    text = io.StringIO()
    writer = csv.DictWriter(text, _COLUMNS)
    writer.writeheader()
    rows = 0
    session, dataset = str(run.manifest.get("id", "run")), parts.scenario.dataset.label
    worked = _build_work_reader(run, parts)
    for row in _list_arrivals(run, rounds):
        who = parts.tasks.who(row["client"], round=row["round"])
        speed = faster[int(parts.fleet.group[row["client"]])]
        training_s, compression_s, beside_s = (
            speed * seconds for seconds in worked(row)
        )
        common = {"session": session, "model": who.model, "dataset": dataset}
        steps, size = parts.tasks.setting.steps(who), parts.tasks.setting.batch_size
        if training_s > 0:
            step = {
                "batch_size": size,
                "steps": steps,
                "seconds": repr(training_s / steps),
            }
            writer.writerow({**common, "quantity": "training", **step})
            rows += 1
        if host and beside_s > 0:
            timed = {"quantity": "handling", "samples": 1, "seconds": repr(beside_s)}
            writer.writerow({**common, **timed})
        if compression_s > 0 and row["k"]:
            arm, asked = Choice.of(row["arm"]), row["k"]
            # the work is known by the K that the codec was given, not by what it made
            # of it
            if arm.codec.count_told(who.parameters, 1) != 1:
                asked = parts.fleet.k(row["client"], who.parameters, arm.level)
            timed = {
                "quantity": "compression",
                "strategy": arm.strategy,
                "k": asked,
                "seconds": repr(compression_s),
            }
            writer.writerow({**common, **timed})
    if not rows:
        allowed = "rounds with uploads that arrived"
        raise InputError(allowed, where="--from", problem="no upload arrived")
    return text.getvalue()


def centre_rows(document: Mapping[str, Plain], table: MeasuredRows) -> dict[str, Plain]:
    """Return a fitted profile whose rows, with its scatter, have the measured means.

    Scatter is one law for all rows of a kind of work, around medians. Where rows
    scatter unlike one another (work under a quota passes at once or waits, so that a
    median is the one or the other), medians with that law have other means. Laws stay
    as they are.
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


def measure_server_times(
    run: Run, *, rounds: tuple[int, int] | None = None
) -> ServerTimes:
    """Return the server's seconds for its merges; `rounds` as of `format_table`.

    Where devices have quotas, what it took to send tasks and to turn to uploads is part
    of a merge; else it is in what clients' hosts took.
    """
    spans = run.spans[run.spans["round"].between(*(rounds or (1, np.inf)))]
    spans = spans.assign(seconds=spans["finished_at_s"] - spans["started_at_s"])
    sending_s = 0.0
    if any(group["device"].get("quota") for group in run.scenario["clients"]):
        sending = spans[spans["client"].notna() & spans["name"].isin(_SERVERS_OWN)]
        sending_s = float(
            sending.groupby(["round", "client"])["seconds"].sum().median()
        )
    spans = spans[spans["track"] == "server"]
    tests, losses = spans["name"] == "evaluation", spans["name"] == "losses"
    masks = (~tests & ~losses, tests, losses)
    sums = [spans[mask].groupby("round")["seconds"].sum() for mask in masks]
    merge_s, tests_s, losses_s = (None if x.empty else float(x.median()) for x in sums)
    prototypes = len(run.scenario["prototypes"])
    test_s = None if tests_s is None else tests_s / prototypes
    return ServerTimes((merge_s or 0.0) + sending_s, test_s, losses_s)


def measure_group_speeds(
    run: Run, parts: Parts, *, rounds: tuple[int, int] | None = None
) -> list[GroupSpeed]:
    """Return the rates and speeds of each group's transfers and devices.

    `rounds` as of `format_table`.
    """
    if parts.topology.delays is not None:
        allowed, got = "constant latencies", "some that differ from message to message"
        raise InputError(allowed, where="clients: link.latency", got=got)
    rates: dict[int, tuple[list[float], list[float]]] = {}
    steps: dict[int, list[float]] = {}
    worked = _build_work_reader(run, parts)
    for row in _list_arrivals(run, rounds):
        client = row["client"]
        group = int(parts.fleet.group[client])
        training_s, _, _ = worked(row)
        who = parts.tasks.who(client, round=row["round"])
        step_s = training_s / parts.tasks.setting.steps(who)
        steps.setdefault(group, []).append(step_s)
        ways = zip(rates.setdefault(group, ([], [])), ("up", "down"), strict=True)
        for way_rates, way in ways:
            latency_s = parts.topology.path(
                client,
                way,  # type: ignore[arg-type]
            ).latency_s
            took_s = row[f"{way}link_s"] - latency_s
            if row[f"{way}link_bytes"] > 0 and took_s > 0:
                way_rates.append(row[f"{way}link_bytes"] / took_s)
    by_model: dict[str, list[float]] = {}
    for group, seconds in steps.items():
        by_model.setdefault(_find_model(parts, group), []).extend(seconds)
    typical_s = {model: _median(seconds) for model, seconds in by_model.items()}
    speeds = []
    for group, (up, down) in sorted(rates.items()):
        faster = typical_s[_find_model(parts, group)] / _median(steps[group])
        speeds.append(GroupSpeed(group, _median(up), _median(down), faster))
    return speeds


def calibrate_scenario(
    parts: Parts,
    profile: str,
    groups: list[GroupSpeed],
    server: ServerTimes,
    *,
    noise: bool,
) -> str:
    """Return the run's scenario with the measured profile and rates, as YAML.

    Speeds of groups and the server's seconds stand in it, too. A speed that is drawn
    stays as it is. `noise`: the profile knows that of all work.
    """
    plain: dict[str, Plain] = yaml.safe_load(dump_scenario(parts.scenario))
    for group in plain["clients"]:
        device = group["device"]
        device["profile"] = profile
        for key in ("assume", "scale"):  # what the profile knows now
            left = {
                name: s
                for name, s in (device[key] or {}).items()
                if name not in _OF_CLIENTS
            }
            device[key] = left if any(s is not None for s in left.values()) else None
        if noise:
            device["noise"] = {"kind": "measured"}
    seconds = {
        "handling": server.merge_s,
        "evaluation": server.evaluation_s or 0.0,
        "losses": server.losses_s or 0.0,
        **dict.fromkeys(_MERGING, 0.0),  # they are in the merge as a whole
    }
    assume = {name: f"{1e3 * s:.4g} ms" for name, s in seconds.items()}
    plain["server"] = {"device": {"assume": assume}}
    for speed in groups:
        device, link = (
            plain["clients"][speed.group][key] for key in ("device", "link")
        )
        if isinstance(device["speed"], (int, float)):
            device["speed"] = float(f"{device['speed'] * speed.faster:.4g}")
        for key, rate in (
            ("up", speed.up_bytes_per_s),
            ("down", speed.down_bytes_per_s),
        ):
            if np.isfinite(rate):
                link[key] = f"{8e-6 * rate:.6g} Mbps"
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=100)


def _list_arrivals(
    run: Run, rounds: tuple[int, int] | None
) -> Iterator[dict[str, Any]]:
    """Return the rows of participations that arrived.

    Raises: `InputError` for a run not deployed.
    """
    mode = run.manifest.get("mode")
    if mode != "deployed":
        raise InputError(
            "a deployed run, whose seconds are real", where="--from", got=mode
        )
    for row in run.table("participations").to_pylist():
        within = rounds is None or rounds[0] <= row["round"] <= rounds[1]
        if within and row["outcome"] in ("aggregated", "late"):
            yield row


def _build_work_reader(
    run: Run, parts: Parts
) -> Callable[[dict[str, Any]], tuple[float, float, float]]:
    """Return a function that gives a participation's seconds at speed 1.

    They are of training, compression and all else of its hosts, as its device would
    take them without its quota.
    """
    limited = [group.device.quota is not None for group in parts.scenario.clients]
    told = run.table("processor").to_pylist() if any(limited) else []
    of_participation = {
        (row["merge"], row["client"], row["started_at_s"]): row for row in told
    }

    def seconds(row: dict[str, Any]) -> tuple[float, float, float]:
        client, speed = row["client"], _find_speed(parts, row["client"])
        if limited[int(parts.fleet.group[client])]:
            busy = of_participation[row["merge"], client, row["started_at_s"]]
            beside_s = busy["other_s"]
        else:
            busy = row
            beside_s = (
                row["finished_at_s"] - row["started_at_s"] - sum(row[n] for n in PHASES)
            )
        return (
            speed * busy["training_s"],
            speed * busy["compression_s"],
            speed * beside_s,
        )

    return seconds


def _find_model(parts: Parts, group: int) -> str:
    model: str = parts.scenario.prototypes[
        parts.scenario.clients[group].prototype
    ].model
    return model


def _find_speed(parts: Parts, client: int) -> float:
    speed = parts.group(client).device.speed
    return (
        parts.fleet.speed(client) if isinstance(speed, Distribution) else float(speed)
    )


def _median(rates: list[float]) -> float:
    return float(np.median(rates)) if rates else float("inf")
