"""What a deployed run measured, as rows of a calibration table and as rates of links.

Every participation that arrived is one measurement of training, one of compression and one of
handling its messages (what its hosts took beside the phases), on its client's device as it was:
cold, once a round, beside whatever else the machine did. Seconds are put on the profile's scale by
the speed that its group came to. What the server took becomes times that the scenario says: of a
merge as a whole, of an evaluation, and of waiting for the losses that clients measure.

What is ignored: how a method's local work divides into units (all of it counts as training steps),
and a merge into its parts; rates of links that change within the run: one rate per group and
direction, the median over its participations, behind the latency that the scenario says, also where
a shared link was what limited them.
"""

from __future__ import annotations

import copy
import csv
import io
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import yaml

from simfed.assembly import Parts
from simfed.device.noise import Measured
from simfed.device.table import Table
from simfed.errors import InputError
from simfed.levels import split_arm
from simfed.record.read import Run
from simfed.record.schema import PHASES
from simfed.scenario import dump_scenario
from simfed.scenario.distribution import Distribution

__all__ = ["Found", "Served", "by_group", "calibrated", "centred", "measurements", "of_server"]

_COLUMNS = (
    "session", "quantity", "model", "dataset", "strategy", "k", "batch_size", "samples", "seconds",
)  # fmt: skip
_OF_CLIENTS = ("training", "compression", "handling")
_MERGING = ("decompression", "inference", "distillation", "auxiliary")


class Found(NamedTuple):
    """What a group of clients came to."""

    group: int
    up_bytes_per_s: float
    down_bytes_per_s: float
    faster: float
    """Than all clients of its model together, on the scale of the scenario's `speed`."""


class Served(NamedTuple):
    """What a merge took."""

    merge_s: float
    """All of it but evaluations and losses: a round's median."""
    evaluation_s: float | None
    """Of one prototype; None: nothing was evaluated."""
    losses_s: float | None
    """Until everybody asked had measured its loss; None: nobody was asked."""


def measurements(
    run: Run, parts: Parts, *, rounds: tuple[int, int] | None = None, host: bool = True
) -> str:
    """The run's participations as a table in CSV, such as `simfed calibrate fit` reads.

    rounds: of these alone, first and last included. host: what hosts took beside the phases as
    well, as handling of messages. Raises: `InputError` for a run that was not deployed, or has no
    such rows.
    """
    faster = {of.group: of.faster for of in by_group(run, parts, rounds=rounds)}
    text = io.StringIO()
    writer = csv.DictWriter(text, _COLUMNS)
    writer.writeheader()
    rows = 0
    for row in _arrived(run, rounds):
        who = parts.tasks.who(row["client"])
        speed = _speed(parts, row["client"]) * faster[int(parts.fleet.group[row["client"]])]
        common = {
            "session": str(run.manifest.get("id", "run")), "model": who.model,
            "dataset": parts.scenario.dataset.name,
        }  # fmt: skip
        step_s, size = _step_s(row, parts), parts.tasks.setting.batch_size
        if step_s > 0:
            timed = {"quantity": "training", "batch_size": size, "seconds": repr(step_s * speed)}
            writer.writerow({**common, **timed})
            rows += 1
        told_s = sum(row[name] for name in PHASES)
        beside_s = row["finished_at_s"] - row["started_at_s"] - told_s
        if host and beside_s > 0:
            timed = {"quantity": "handling", "samples": 1, "seconds": repr(beside_s * speed)}
            writer.writerow({**common, **timed})
        if row["compression_s"] > 0 and row["k"]:
            timed = {
                "quantity": "compression", "strategy": split_arm(row["arm"])[0], "k": row["k"],
                "seconds": repr(row["compression_s"] * speed),
            }  # fmt: skip
            writer.writerow({**common, **timed})
    if not rows:
        raise InputError("rounds with uploads that arrived", where="--from", got="none")
    return text.getvalue()


def centred(document: Mapping[str, Any], table: Table) -> dict[str, Any]:
    """A fitted profile whose rows, with its scatter, have the means that were measured.

    Scatter is one law for all rows of a kind of work, around medians. Where rows scatter unlike one
    another (work under a quota passes at once or waits, so that a median is the one or the other),
    medians with that law have other means. Laws stay as they are.
    """
    means: dict[tuple[str, str, str, float], list[float]] = {}
    for row in table.rows:
        means.setdefault((*row.key, row.size), []).append(row.seconds)
    found: dict[str, Any] = copy.deepcopy(dict(document))
    noise = {name: Measured.read(node, name).mean for name, node in found.get("noise", {}).items()}
    for (quantity, model, strategy, size), seconds in means.items():
        node = found[quantity][model]
        rows = node[strategy] if strategy else node
        if quantity in noise and "law" not in rows:
            middle_s = float(np.mean(seconds)) / noise[quantity]
            rows[int(size) if size.is_integer() else size] = f"{middle_s:.6g} s"
    return found


def of_server(run: Run, *, rounds: tuple[int, int] | None = None) -> Served:
    """What the server took for its merges; `rounds` as of `measurements`."""
    spans = run.spans
    within = (spans["track"] == "server") & spans["round"].between(*(rounds or (1, np.inf)))
    spans = spans[within].assign(seconds=spans["finished_at_s"] - spans["started_at_s"])
    tests, losses = spans["name"] == "evaluation", spans["name"] == "losses"
    each = [spans[of].groupby("round")["seconds"].sum() for of in (~tests & ~losses, tests, losses)]
    merge_s, tests_s, losses_s = (None if of.empty else float(of.median()) for of in each)
    prototypes = len(run.scenario["prototypes"])
    return Served(merge_s or 0.0, None if tests_s is None else tests_s / prototypes, losses_s)


def by_group(run: Run, parts: Parts, *, rounds: tuple[int, int] | None = None) -> list[Found]:
    """Per group, what its transfers and its devices came to; `rounds` as of `measurements`."""
    found: dict[int, tuple[list[float], list[float]]] = {}
    steps: dict[int, list[float]] = {}
    for row in _arrived(run, rounds):
        client = row["client"]
        group = int(parts.fleet.group[client])
        steps.setdefault(group, []).append(_step_s(row, parts) * _speed(parts, client))
        rates = found.setdefault(group, ([], []))
        for of, way in zip(rates, ("up", "down"), strict=True):
            latency_s = parts.topology.path(client, way).latency_s  # type: ignore[arg-type]
            took_s = row[f"{way}link_s"] - latency_s
            if row[f"{way}link_bytes"] > 0 and took_s > 0:
                of.append(row[f"{way}link_bytes"] / took_s)
    of_model: dict[str, list[float]] = {}
    for group, seconds in steps.items():
        of_model.setdefault(_model(parts, group), []).extend(seconds)
    typical = {model: _median(seconds) for model, seconds in of_model.items()}
    return [
        Found(
            group, _median(up), _median(down), typical[_model(parts, group)] / _median(steps[group])
        )
        for group, (up, down) in sorted(found.items())
    ]


def calibrated(
    parts: Parts, profile: str, groups: list[Found], server: Served, *, noise: bool
) -> str:
    """The run's scenario with that profile, those rates and speeds, and the server's seconds, as
    YAML. A speed that is drawn stays as it is. noise: the profile knows that of all work."""
    plain: dict[str, Any] = yaml.safe_load(dump_scenario(parts.scenario))
    for group in plain["clients"]:
        device = group["device"]
        device["profile"] = profile
        for key in ("assume", "scale"):  # what the profile knows now
            left = {name: s for name, s in (device[key] or {}).items() if name not in _OF_CLIENTS}
            device[key] = left if any(s is not None for s in left.values()) else None
        if noise:
            device["noise"] = {"kind": "measured"}
    said = {
        "handling": server.merge_s,
        "evaluation": server.evaluation_s or 0.0,
        "losses": server.losses_s or 0.0,
    }
    apart = dict.fromkeys(_MERGING, 0.0)  # they are in the merge as a whole
    plain["server"] = {
        "device": {"assume": {name: f"{1e3 * s:.4g} ms" for name, s in (said | apart).items()}}
    }
    for of in groups:
        device = plain["clients"][of.group]["device"]
        if isinstance(device["speed"], (int, float)):
            device["speed"] = float(f"{device['speed'] * of.faster:.4g}")
        link = plain["clients"][of.group]["link"]
        for key, rate in (("up", of.up_bytes_per_s), ("down", of.down_bytes_per_s)):
            if np.isfinite(rate):
                link[key] = f"{8e-6 * rate:.6g} Mbps"
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=100)


def _arrived(run: Run, rounds: tuple[int, int] | None) -> Iterator[dict[str, Any]]:
    if run.manifest.get("mode") != "deployed":
        raise InputError(
            "a deployed run, whose seconds are real", where="--from", got=run.manifest.get("mode")
        )
    for row in run.table("participations").to_pylist():
        within = rounds is None or rounds[0] <= row["round"] <= rounds[1]
        if within and row["outcome"] in ("aggregated", "late"):
            yield row


def _step_s(row: dict[str, Any], parts: Parts) -> float:
    """Seconds of one step of local work."""
    step_s: float = row["training_s"] / parts.tasks.setting.steps(parts.tasks.who(row["client"]))
    return step_s


def _model(parts: Parts, group: int) -> str:
    model: str = parts.scenario.prototypes[parts.scenario.clients[group].prototype].model
    return model


def _speed(parts: Parts, client: int) -> float:
    speed = parts.group(client).device.speed
    return parts.fleet.speed(client) if isinstance(speed, Distribution) else float(speed)


def _median(rates: list[float]) -> float:
    return float(np.median(rates)) if rates else float("inf")
