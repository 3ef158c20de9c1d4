"""One generator of scenarios, with every feature of the schema: small, and played in a
moment.

Values are drawn by the type of a key where that says what there is to choose from, else
from `VALUES`; a new key of the schema that is neither is an error of `list_undrawn`,
and so of a test.

What does not go together is not known here: simfed refuses it and says where, and the
key there is taken out again.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

from pydantic import BaseModel

from simfed import InputError, InputErrors
from simfed.device import spec as devices
from simfed.experiment import check_parts, check_world
from simfed.fleet import FaultsSpec, presence
from simfed.fleet.faults import MessagesSpec
from simfed.ground import Only
from simfed.ground.registry import registry
from simfed.net import spec as network
from simfed.scenario import (
    APP,
    FleetFile,
    FleetGroup,
    PluginSpec,
    Scenario,
    model,
    privacy,
    prototype,
    validate_fleet,
    validate_scenario,
)
from simfed.scenario import dataset as data
from simfed.schema import distribution as laws
from simfed.schema.options import OfKind

T = TypeVar("T")

PLUGIN_PARTS = (
    "with-keys", "at-server", "normed", "law-stripes", "every-other", "alternating",
    "lowest-ids",
)  # fmt: skip

EXEMPT = {
    "PolicySpec.arms_from": "a run, which the law of recorded arms makes",
    "PluginSpec.origin": "said by run directories alone",
    "Computing.file": "laws of an app, which somebody measures",
    "Computing.start": "beside such laws",
    "Computing.speed": "of host seconds, which no two runs have alike",
    "FleetFile.app": "the base of a study, which names a folder",
    "App.folder": "the same",
    "App.run_config": "the same",
}

# ---- what there is to choose from ----------------------------------------------------

RATES = "1 Mbps", "100 kbps", "300 kbps", "4 Mbps"
SHORT = "0 s", "20 ms", "150 ms"
STAYS = "1 s", "3 s", "400 ms"
TRIPLES = {
    "rate": ("100 kbps", "500 kbps", "4 Mbps"),
    "duration": ("1 ms", "20 ms", "200 ms"),
    "stay": ("300 ms", "1 s", "4 s"),
    "number": (0.5, 1, 2),
    "loss": (0, 0.01, 0.05),
    "entries": (5, 40, 300),
    "epochs": (1, 2, 3),
}
"""Low, middle and high values of a quantity, as a distribution names them."""

QUANTITY_OF_KEY = {
    **dict.fromkeys(("up", "down", "rate"), "rate"),
    **dict.fromkeys(("latency", "down_latency"), "duration"),
    **dict.fromkeys(("between", "lasts", "on", "off"), "stay"),
    "speed": "number",
    "loss": "loss",
    "k": "entries",
    "local_epochs": "epochs",
}
COLUMNS = {
    "rate": {"column": "up_mbps", "unit": "Mbps"},
    "duration": {"column": "rtt_ms", "unit": "ms"},
    "number": {"column": "speed"},
    "loss": {"column": "loss"},
    "entries": {"column": "k"},
    "epochs": {"column": "k"},
    "stay": {"column": "stay_s", "unit": "s"},
}

IMAGES = "logistic-regression", "perceptron"
LENETS = "lenet5-half", "lenet5"
HEAVY = "mcmahan-cnn", "femnist-cnn", "resnet18", "wresnet40-2", "resnet18-gn"
"""Models that only worlds without learning have: a step takes them too long."""
DATA = (
    ({"name": "mnist-mini"}, (*IMAGES, *LENETS)),
    ({"name": "mnist-mini"}, IMAGES),
    ({"name": "law-stripes"}, (*IMAGES, "normed")),
    ({"leaf": "texts"}, ("char-lstm", "causal-transformer")),
    ({"file": "images.npz"}, (*IMAGES, "normed")),
    ({"file": "owned.npz"}, (*IMAGES, "normed")),
    ({"file": "numbers.npz", "task": "regression"}, IMAGES),
    ({"table": "rows.csv", "target": "label"}, (*IMAGES, "normed")),
    ({"table": "holes.parquet", "target": "label", "missing": "median"}, IMAGES),
    ({"table": "holes.csv", "target": "label", "missing": "mean"}, IMAGES),
    ({"table": "rows.parquet", "target": "weight", "task": "regression"}, IMAGES),
    ({"folder": "pictures"}, IMAGES),
    ({"folder": "albums"}, IMAGES),
    ({"leaf": "leaf"}, IMAGES),
    ({"torchvision": "MNIST", "root": "vision"}, IMAGES),
    ({"huggingface": "hub", "target": "label"}, IMAGES),
)
"""Data sets, and models that fit."""

STRATEGIES = (
    "top-k", "dense", "random-k", "periodic-k", "shared-random-k", "qsgd(4)",
    "terngrad", "fp16", "bf16", "ef-sign", "dgc", "adacomp", "ef21", "detached-ef",
    "powersgd", "svd", "top-k@5%", "top-k+qsgd", "random-k+fp16",
    {"ef21": {"inner": "random-k"}},
    {"svd": {"energy": 0.9}}, {"qsgd": {"levels": 4, "bucket": 64}},
    {"chain": ["top-k", "fp16"]}, {"layers": {"*weight": "top-k@5%", "*": "qsgd"}},
    "every-other",
)  # fmt: skip

TIMES = {
    "training": ("200 ms", "1 s", "50 ms"),
    "private": ("300 ms",),
    "compression": ("50 ms", "0 s"),
    "decompression": ("10 ms",),
    "inference": ("20 ms",),
    "distillation": ("20 ms",),
    "auxiliary": ("10 ms",),
}
"""Seconds that every device of no profile says; the others are drawn as any key."""


def _draw_amount(place: int, drawing: Drawing) -> Any:
    return TRIPLES[drawing.quantity][place]


def _whole_up_to(most: str):
    return lambda drawing: drawing.rng.randint(1, max(1, getattr(drawing, most)))


VALUES: dict[str, Any] = {
    "name": ["law"],
    "seed": lambda drawing: drawing.rng.randrange(100),
    "rounds": [2, 3, 5, 8, 1],
    "prototypes": lambda drawing: drawing.prototypes(),
    "PrototypeSpec.model": lambda drawing: drawing.rng.choice(drawing.models),
    "PrototypeSpec.pretrained": ["base.safetensors"],
    "PrototypeSpec.adapters": [prototype.AdaptersSpec],
    "PrototypeSpec.facts": [prototype.FactsSpec],
    "AdaptersSpec.rank": [1, 2],
    "AdaptersSpec.alpha": [4.0],
    "targets": [["*"], "attention"],
    "parameters": [5000, 1e6],
    "trainable": [400, 5000],
    "flops_per_sample": [1e4, 3e6],
    "FactsSpec.buffers": [12],
    "ClientGroup.prototype": lambda drawing: drawing.prototype,
    "dataset": lambda drawing: drawing.dataset(),
    **{f"DatasetSpec.{key}": [source[key]] for source, _ in DATA for key in source},
    **dict.fromkeys(
        ("Scenario.clients", "FleetFile.clients"), lambda drawing: drawing.groups()
    ),
    "plugins": [["parts.py"], "parts.py", [PluginSpec]],
    "PluginSpec.file": ["parts.py"],
    # data
    "DatasetSpec.public": [16, 8, 40],
    "public_file": ["public.npz"],
    "public_batch": [8, 5],
    "owner": ["whose"],
    "features": [["size", "weight"], ["kind", "size"]],
    "test": ["more.csv", "more.parquet"],
    "pixels": [5],
    "alpha": [0.5, 0.1],
    "shards_per_client": [2, 1],
    "sizes": ["equal", [1, 9]],
    "classes": [1, 2],
    "sigma": [0.5, 0],
    "rotation": [30, 0],
    "Partition.noise": [0.1, 0],
    # learning
    "batch_size": [8, 32, 3],
    "learning_rate": [0.05, 0.3],
    "local_steps": [1, 2, 3],
    "local_epochs": [1, 2],
    "ClientGroup.local_epochs": [2, laws.Distribution],
    "local_time": ["100 ms", "1 s"],
    "momentum": [0.5],
    "weight_decay": [0.001],
    "clip_norm": [1.0],
    "every": [1, 2, 3, 10],
    "EvaluationSpec.share": [0.2, 0.5],
    "measures": [["auc", "recall"], ["accuracy", "balanced-accuracy"]],
    "CheckpointSpec.every": [1, 0, 2, 3],
    "Schedule.every": [1, 2],
    "factor": [0.5],
    "temperature": [2.0],
    "steps": [2],
    "threshold": [0.9, 0.3, 1.0],
    "max_consecutive": [1, 2],
    "window": [2, 1],
    "rollback": [model.Rollback, True, "off"],
    "residuals": [model.ResidualsSpec, "as-sent", {"damped": 0.5}],
    "reference": [model.Reference, {"running-median": 2}],
    "overlap": [model.Overlap],
    "chunks": [2, 3],
    # what travels
    "k": [20, 200, "1%", "10%"],
    "ClientGroup.k": [20, "5%", laws.Distribution],
    "strategies": lambda drawing: drawing.some(drawing.strategies(), 3),
    "k_choices": [[10, 100], ["1%", "10%"], [20, "5%"]],
    "strategy": lambda drawing: drawing.rng.choice(drawing.strategies()),
    # policies and selections
    "rho": [0.5, 1],
    "beta": [0.5, 0],
    "clip": [[-1, 1], None, [-0.2, 0.2]],
    "samples": [10],
    "AdaptiveClip.rate": [0.2],
    "epsilon": [8.0, 50.0],
    "delta": [1e-5, 1e-3],
    "Privacy.noise": [1.0, 0.3],
    "Privacy.clip": [1.0, 0.1, privacy.AdaptiveClip],
    "quantile": [0.5],
    "start": [0.1, 1.0],
    "count_noise": [0.5],
    "clients_per_round": _whole_up_to("clients"),
    # servers
    "deadline": ["1 s", "400 ms", "3 s"],
    "over_selection": [0.5, 0.3],
    "buffer": [2, 1, 3],
    "concurrency": _whole_up_to("clients"),
    "exponent": [0.5, 1.0],
    "after": [1, 0],
    "slope": [0.5],
    "bound": [1, 3, 0],
    "merges": [2, 1, 3],
    "at": lambda drawing: drawing.rng.choice(drawing.places()),
    "edge_servers": [model.EdgeServers],
    "EdgeServers.at": ["edge"],
    "from": [1, 2],
    # devices
    "profile": ["board.yaml", "x86-2core-vm"],
    "speed": [1.0, 0.3, laws.Distribution],
    "count": [2, 3, 1, 4],
    "TierSpec.count": [2, 1, 3],
    "measured": [2],
    "efficiency": [0.5],
    "background": [0.3, devices.Background],
    "trace": [[["0 s", 0.2], ["500 ms", 0.6]]],
    "Background.period": ["1 s"],
    "period": ["100 ms", "30 ms"],
    "Dvfs.steps": lambda drawing: [
        {**drawing.section(devices.ClockStepSpec), "lasts": "300 ms"},
        drawing.section(devices.ClockStepSpec, lasts=None),
    ],
    "ClockStepSpec.lasts": ["300 ms"],
    "ClockStepSpec.factor": [1.0, 0.5],
    "reset_after": ["500 ms"],
    "heating": ["1 s"],
    "cooling": ["2 s"],
    "throttle_at": [0.5],
    "resume_at": [0.3],
    "QuotaSpec.share": [0.5, 0.15],
    "quota": [devices.QuotaSpec, 0.5],
    "cv": [0.3, 1.0],
    **{
        f"{section}.{key}": list(TIMES.get(key, ("10 ms", "100 ms")))
        for section in ("DeviceSpec", "AssumedTimes")
        for key in devices.AssumedTimes.model_fields
    },
    **{f"TimeFactors.{key}": [3.0, 0.5] for key in devices.TimeFactors.model_fields},
    # presence and faults
    "ClientGroup.availability": [presence.PresenceSpec, presence.OwnPresence],
    "PresenceSpec.trace": ["online.csv"],
    "PresenceSpec.period": ["10 s"],
    "zones": [[0], [0, 6]],
    "DailySpec.from": ["00:00", "23:00"],
    "to": ["06:00", "12:00"],
    "download": [0.2],
    "Failure.training": [0.2, 0.5],
    "upload": [0.3],
    "between": ["3 s", "1 s", laws.Distribution],
    "lasts": ["500 ms", "1 s", laws.Distribution],
    "on": ["5 s", "20 s", laws.Distribution],
    "off": ["1 s", "300 ms", laws.Distribution],
    "lost": [0.1, 0.4],
    "doubled": [0.2, 0.5],
    "timeout": ["300 ms", "1 s"],
    "tries": [2, 1, 5],
    # networks
    "up": [*RATES, network.TraceSpec],
    "down": [*RATES, network.TraceSpec],
    "LinkSpec.up": [*RATES, network.TraceSpec, laws.Distribution],
    "LinkSpec.down": [*RATES, network.TraceSpec, laws.Distribution],
    "LinkSpec.rate": ["7 Mbps", "300 kbps", network.TraceSpec, laws.Distribution],
    "receive": ["300 kbps", "2 Mbps", network.TraceSpec],
    "send": ["1 Mbps", "4 Mbps", network.TraceSpec],
    "latency": list(SHORT),
    "down_latency": ["5 ms"],
    "LinkSpec.latency": [
        *SHORT,
        laws.Distribution,
        network.PerMessage,
        network.LatencyTrace,
    ],
    "LinkSpec.down_latency": [
        "5 ms",
        laws.Distribution,
        network.PerMessage,
        network.LatencyTrace,
    ],
    "per_message": [laws.Distribution],
    "loss": [0.01, 0.05],
    "LinkSpec.loss": [0.01, laws.Distribution],
    "mcs": [7, 0, 3],
    "cell": lambda drawing: drawing.rng.choice(sorted(drawing.cells)),
    "cells": lambda drawing: {
        name: drawing.section(network.CellSpec, only=kind)
        for name, kind in drawing.some((("home", "wifi"), ("street", "cellular")), 2)
    },
    "CellSpec.share": [0.5, network.ShareTrace],
    "width": ["20 MHz", "40 MHz"],
    "streams": [1, 2],
    "topology": ["tree", "star", "tree", "graph"],
    "tiers": lambda drawing: [
        drawing.section(network.TierSpec, name=name)
        for name in drawing.rng.choice((("edge",), ("edge", "core")))
    ],
    "edges": lambda drawing: [
        drawing.section(network.EdgeSpec, between=list(pair))
        for pair in (("a", "server"), ("b", "a"), ("b", "server"))
    ],
    "NetworkSpec.file": ["lines.graphml", "lines.gml"],
    "FileCapacity.attribute": ["up", "speed"],
    "FileCapacity.unit": ["Mbps"],
    "FileCapacity.unit_attribute": ["letter"],
    "FileLatency.attribute": ["latency", "delay"],
    "FileLatency.unit": ["ms"],
    "FileLatency.unit_attribute": ["of_time"],
    "routes": [[["b", "a", "server"]]],
    "node": ["server"],
    "header": ["54 B", "0 B"],
    "TcpOptions.window": ["20 kB", None, "3 MB"],
    # traces
    "file": ["up.csv"],
    "TraceSpec.file": [
        *("up.csv", "up.mahimahi", "up.pensieve"),
        *("each.csv", "each.csv/{client}.csv"),
    ],
    "ShareTrace.file": ["air.csv"],
    "LatencyTrace.file": ["rtt.csv"],
    "LatencyTrace.elapsed_column": ["lasts"],
    "latency_column": ["rtt_ms", "rtt{client}"],
    "LatencyTrace.unit": ["ms"],
    "format": ["as the file's name says"],
    "end": [*["loop", "hold"] * 4, "error"],
    "offset": ["random", "0 s", "300 ms"],
    "Background.offset": ["random"],
    "TraceSection.factor": [0.5, 1.0],
    "elapsed_column": ["lasts"],
    "ShareTrace.elapsed_column": [2],
    "bytes_column": ["bytes"],
    "until": ["4 s"],
    "separator": ["comma"],
    "time_column": ["s", 0],
    "rate_column": ["mbps", 1, "ue{client}"],
    "ShareTrace.rate_column": [1],
    "time_unit": ["s"],
    "rate_unit": ["Mbps", "kB/s"],
    "bin": ["200 ms"],
    "length": ["20 s", "3 s"],
    "Generator.high": list(RATES),
    "Generator.low": ["50 kbps", "0 Mbps"],
    "Generator.mean": list(RATES),
    "ShareGenerator.high": [1, 0.8],
    "ShareGenerator.low": [0.2],
    "ShareGenerator.mean": [0.6],
    "mean_high": list(STAYS),
    "mean_low": list(STAYS),
    "correlation": [0.5],
    "step": ["300 ms"],
    # distributions
    "ClientGroup.devices": [laws.DeviceTable],
    "DeviceTable.table": ["devices.csv"],
    "weights": ["likely"],
    **{
        key: partial(_draw_amount, place)
        for place, keys in enumerate((("low", "sd"), ("median", "mean"), ("high",)))
        for key in keys
    },
    "Distribution.column": ["taken from COLUMNS"],
    "Distribution.factor": [1, 0.5],
    "where": [{"speed": ">= 0.1"}],
    "Distribution.offset": [0],
    "inverse": [False],
    "unit": ["taken from COLUMNS"],
    "ChoiceSpec.values": lambda drawing: list(TRIPLES[drawing.quantity]),
    "ChoiceSpec.weights": [[1, 2, 1]],
    "Distribution.table": ["devices.csv"],
    # apps
    "node_config": [{"shard": "{node}-{nth}"}],
    "AppMetrics.accuracy": ["v"],
    "AppMetrics.loss": ["v"],
    "AppMetrics.weight": ["num-examples"],
    "Computing.kind": ["declared"],
    "Computing.seconds": ["0.3", "0.1 + 0.05", {"default": "0.2", "train": "500 ms"}],
    # options of registered parts
    "method.mu": [0.1],
    "server_rate": [0.5, 1.0],
    "beta1": [0.8], "beta2": [0.9], "tau": [0.01], "mixing": [0.6, 0.2], "a": [1.0],
    "b": [1.0], "rate": [0.01], "held_out": [0.25, 0], "check_every": [1],
    "patience": [1], "digest_epochs": [2], "digest_batch": [4], "digest_rate": [0.01],
    "coefficient_rate": [0.1], "coefficient_steps": [2], "kt-pfl.rho": [0.5],
    "pull": [0.1], "margin": [10.0], "server_epochs": [2], "server_batch": [4],
    "own_epochs": [2], "head_epochs": [1],
    "server_steps": [2], "weight": [0.5], "fedgen.weight_decay": [0.9],
    "fedgen.noise": [4], "diversity": [0.5], "hidden": [6],
    "adversarial": [0.2], "forgetting": [0.2],
    "public_epochs": [1], "student": ["a"], "energy_start": [0.7], "energy_end": [0.9],
    "fedproto.width": [4], "fedtgp.width": [4], "least": [1, 2], "stays_s": [1e9, 0.5],
    "warmup": [1, 0, 2], "c": [1.0, 3.0], "ema": [0.5, "1/n"],
    "linucb.alpha": [0.5], "ridge": [2.0], "exploration": [0.5],
    "discount": [0.9], "thompson.sd": [0.3],
    "adaptive-k.least": ["1%", 5], "balance.least": ["1%", 5], "bcrs.least": ["1%", 5],
    "most": ["50%", 300], "adaptive-k.window": [2], "widen": [2.0],
    "balance.share": [0.3, 2.0], "base": ["2%", 20], "alternating.start": [1],
    "fastest.bound": [1, 10], "decay": [0.5], "least_exploration": [0.1],
    "preferred": [0.5], "penalty": [1.0], "cutoff": [0.9], "oort.clip": [0.9],
    "trimmed-mean.share": [0.2, 0.4], "f": [0, 1], "geometric-median.steps": [4],
    "smoothing": [1e-4], "norm-bound.bound": [0.1, 1.0],
    "attack.scale": [2.0, 0.5], "z": [1.0], "backdoor.target": [1],
    "backdoor.size": [2], "backdoor.share": [0.5],
    "capacity_j": [3.0, 20.0], "charge_w": [4.0, 1.0],
    "charges_from": ["00:00", "22:00"], "charges_to": ["12:00", "00:01"],
    "zone": [0, 2], "battery.low": [0.3], "back": [0.6], "work_w": [5.0, 2.0],
}  # fmt: skip
"""Key, maybe behind its section or its part's name → what to choose from, the simplest
first: plain values, sections to be drawn, or one function that draws the value."""

ONE_OF = {
    data.DatasetSpec: data.SOURCES,
    network.TraceSpec: ("file", "generate"),
    network.ShareTrace: ("file", "generate"),
    presence.PresenceSpec: ("trace", "markov", "daily"),
    privacy.Privacy: ("noise", "target"),
    laws.Distribution: laws.Distribution.one_of,
    laws.LognormalSpec: ("median", "mean"),
    network.CellSpec: ("wifi", "cellular"),
    model.Training: ("local_steps", "local_epochs"),
    prototype.PrototypeSpec: ("model", "facts"),
    network.NetworkSpec: ("edges", "file"),
    network.FileLatency: network.FileLatency.one_of,
}
"""Sections that have exactly one of these keys, where they may have any."""
SOME_OF = {
    FaultsSpec: tuple(FaultsSpec.model_fields),
    MessagesSpec: ("lost", "doubled"),
}
"""Sections that have at least one of these keys."""

OFTEN = {
    "FleetFile.computing": 1, "Computing.kind": 1, "FleetFile.network": 0.6,
    "FleetFile.faults": 0.25,
    "method": 0.7, "Scenario.clients": 1, "Scenario.policy": 0.8, "compression": 0.9,
    "training": 0.8, "Scenario.network": 0.6, "Scenario.aggregation": 0.7,
    "evaluation": 0.7, "checkpoint": 0.7, "link": 0.95, "LinkSpec.up": 0.9,
    "LinkSpec.down": 0.7, "strategies": 0.8, "k": 0.9, "ClientGroup.k": 0.1,
    "ClientGroup.local_epochs": 0.1, "local_time": 0.1,
    "EvaluationSpec.every": 1, "mode": 0.8, "batch_size": 0.9, "clients_per_round": 0.8,
    "topology": 0.7, "tiers": 1, "measured": 1, "cells": 0.3, "availability": 0.25,
    "LinkSpec.cell": 0, "CellSpec.at": 1, "PresenceSpec.devices": 0.5,
    "ClientGroup.policy": 0.15, "selection": 0.6, "edge_servers": 0.9, "rollback": 0.8,
    "safeguard": 0.25, "attack": 0.2, "CheckpointSpec.every": 1,
    "DownlinkCompression.strategy": 0.5, "stays_s": 0.3, "late": 0.5, "plugins": 0.15,
    "staleness": 0.4, "partition": 0.5, "index_code": 0.6, "DatasetSpec.public": 1,
    "server_epochs": 1, "server_steps": 1, "feddf.steps": 1, "privacy": 0.15,
    "head_epochs": 1, "rule": 0.3, "Scenario.faults": 0.25, "client_order": 0.3,
    "seed": 1,
}  # fmt: skip
"""How likely an optional key is, where not by the world's own share."""


USUAL = {"method": ("fedkd", "fedavg") * 3, "policy": ("uniform", "ascend") * 2}
"""Kinds that are drawn more often than others."""


class Drawing:
    """One world under way."""

    def __init__(
        self,
        rng: random.Random,
        *,
        learns: bool = True,
        root: type[BaseModel] = Scenario,
    ) -> None:
        """`learns`: models whose steps do not take long.

        `root`: a scenario, or a fleet of apps.
        """
        self.rng = rng
        self.root = root
        self.learns = learns
        self.share = rng.choice((0.05, 0.12, 0.25))
        self.top: dict[str, Any] = {}
        self.clients = 0
        self.quantity = "number"
        self.plugin = False
        self.in_order = False

    # ---- by the schema ---------------------------------------------------------------

    def world(self) -> dict[str, Any]:
        """A scenario as a file says it, maybe with keys that do not go together."""
        order = (
            "plugins",
            "method",
            "dataset",
            "prototypes",
            "network",
            "aggregation",
            "clients",
        )
        for key in (*order, *self.root.model_fields):
            if key in self.root.model_fields and key not in self.top:
                self.draw_key(self.root, key, self.top)
                self.plugin = self.plugin or (key == "plugins" and key in self.top)
            if self.method == "fedbn" and not self.plugin:
                # no small model of simfed's own has batch norm
                self.top["plugins"], self.plugin = ["parts.py"], True
        if self.top.get("aggregation", {}).get("mode") == "first" and self.clients > 1:
            some = self.top.setdefault("participation", {})
            some["clients_per_round"] = self.rng.randint(1, self.clients - 1)
        return self.top

    def section(
        self,
        section: type[BaseModel],
        only: str | None = None,
        into: dict[str, Any] | None = None,
        **fixed: Any,
    ) -> dict[str, Any]:
        """Values of its keys.

        Those that are `fixed` as they are, None: without this key. `only`: of keys of
        which it has one, which. `into`: the mapping that is filled.
        """
        if section is devices.DeviceSpec and not fixed:
            return self.device()
        drawn = {} if into is None else into
        drawn |= fixed
        if _is_choice(section):
            drawn.setdefault("kind", self.kind(section))
            section = KindSection(section, drawn["kind"])
        rivals = _of_class(ONE_OF, section)
        if (
            section is model.Training
            and self.top["dataset"].get("name") == "mnist-mini"
        ):
            only = "local_steps"  # an epoch takes too long
        chosen = only or (self.rng.choice(rivals) if rivals else None)
        some = _of_class(SOME_OF, section)
        chosen = chosen or (self.rng.choice(some) if some else None)
        for key in section.model_fields:
            if key in drawn:
                continue
            if key == chosen and all(
                self._holds(x, section, drawn) for x in _marks(section, key)
            ):
                drawn[key] = self.value(section, key)
            elif key not in rivals:
                self.draw_key(section, key, drawn)
        if chosen == "column":
            drawn |= COLUMNS[self.quantity]
            if self.in_order:
                drawn.pop("table", None)
                drawn.pop("where", None)
            else:
                drawn["table"] = "devices.csv"
        if "staleness" in drawn and drawn.get("mode") in ("deadline", "first"):
            drawn["late"] = "merge"
        for key in [key for key, value in fixed.items() if value is None]:
            del drawn[key]
        return drawn

    def draw_key(self, section: type[BaseModel], key: str, drawn: dict) -> None:
        """Add the key to `drawn`, if it may stand there and chance wants it."""
        field = section.model_fields[key]
        marks = _marks(section, key)
        if _look_up(EXEMPT, section, key) or not all(
            self._holds(mark, section, drawn) for mark in marks
        ):
            return
        if key == "bytes_column" and drawn.keys() & {"rate_column", "until"}:
            return
        if key == "edge_servers" and "tiers" not in self.top.get("network", {}):
            return
        needed = field.is_required() or any(
            getattr(mark, "needed", False) for mark in marks
        )
        share = _look_up(OFTEN, section, key)
        share = self.share if share is None else share
        if key == "format":
            drawn[key] = drawn["file"].rpartition(".")[2]
        elif needed or self.rng.random() >= 1 - share:
            drawn[key] = self.value(section, key)

    def value(self, section: type[BaseModel], key: str) -> Any:
        """One value of this key."""
        self.quantity = QUANTITY_OF_KEY.get(key, self.quantity)
        choices = list_choices(section, key)
        if callable(choices):
            return choices(self)
        if key == "kind" and hasattr(section, "registry_kind"):
            return self.kind(section)
        value = self.rng.choice(choices)
        if isinstance(value, list):  # what is in it may be a section
            return [self.section(x) if isinstance(x, type) else x for x in value]
        into = self.top.setdefault(key, {}) if section is self.root else None
        return self.section(value, into=into) if isinstance(value, type) else value

    def kind(self, choice: type[OfKind]) -> str:
        names = registry(choice.registry_kind).names()
        mine = [name for name in names if name in PLUGIN_PARTS]
        if mine and self.plugin and self.rng.random() < 0.5:
            return self.rng.choice(mine)
        parts = registry(choice.registry_kind)
        built_in = [name for name in names if parts.origin(name) == "built in"]
        usual = USUAL.get(choice.registry_kind, ())
        return self.rng.choice([*usual, *built_in])

    def _holds(self, mark: Any, section: type[BaseModel], drawn: dict) -> bool:
        """Whether a marked key says something beside what is drawn already."""
        if not isinstance(mark, Only):
            kind = self.top.get("method", {}) if mark.from_the_top else drawn
            kind = kind.get("kind") or ("fedkd" if mark.from_the_top else "ascend")
            return bool(mark._is_one(kind))
        node: Any = self.top if mark.from_the_top else drawn
        model: Any = self.root if mark.from_the_top else section
        for step in mark.key.split("."):
            default = model.model_fields[step].default
            node = (
                node.get(step, default)
                if isinstance(node, dict)
                else getattr(node, step, None)
            )
            model = type(default) if isinstance(default, BaseModel) else model
        return node in mark.values if mark.values else bool(node)

    def some(self, values: Any, most: int) -> list:
        """One to `most` of them, in their order."""
        count = self.rng.randint(1, most)
        return self.rng.sample(list(values), min(count, len(values)))

    # ---- what hangs together ---------------------------------------------------------

    def dataset(self) -> dict[str, Any]:
        fits = [
            (source, models)
            for source, models in DATA
            if self.plugin or source.get("name") != "law-stripes"
        ]
        if self.method == "fedbn":
            fits = [fit for fit in fits if "normed" in fit[1]]
        source, models = self.rng.choice(fits)
        models = [name for name in models if self.plugin or name != "normed"]
        if self.method == "fedbn":
            models = ["normed"]
        if not self.learns and source.get("name") == "mnist-mini":
            models = [*models, *HEAVY]
        if not self.learns and source == {"leaf": "texts"}:
            source = {"name": "text-mini"}
        self.models = models
        fixed = dict(source)
        kind = next(key for key in data.SOURCES if key in fixed)
        drawn = self.section(data.DatasetSpec, only=kind, **fixed)
        columns = ("target", "owner", "features", "missing")
        if kind != "table":
            drawn = {key: value for key, value in drawn.items() if key not in columns}
            drawn |= fixed
        if source.get("file") not in ("images.npz", "owned.npz"):
            drawn.pop("public_file", None)  # whose images are as large as theirs
            drawn.pop("layout", None)
        return {
            key: value for key, value in drawn.items() if key != "task" or key in fixed
        }

    def prototypes(self) -> dict[str, Any]:
        mixes = registry("method").get(self.method).mixes_prototypes
        names = ("a", "b")[: self.rng.choice((1, 1, 2)) if mixes else 1]
        kinds = ("model",) if self.learns else ("model", "model", "facts")
        return {
            name: self.section(prototype.PrototypeSpec, only=self.rng.choice(kinds))
            for name in names
        }

    def groups(self) -> list[dict[str, Any]]:
        groups: list[dict[str, Any]] = []
        names = list(self.top.get("prototypes", {APP: {}}))
        kind = FleetGroup if self.root is FleetFile else model.ClientGroup
        for at in range(max(len(names), self.rng.choice((1, 1, 2, 3)))):
            self.in_order = self.rng.random() > 0.9
            count = min(self.rng.choice((2, 3, 1, 4)), max(1, 6 - self.clients))
            self.clients += count
            self.prototype = names[at % len(names)]
            group = self.section(kind, count=count, devices=None)
            if self.cells and (not at or self.rng.random() < 0.7):
                group["link"] = self.cell_link()
            elif (
                "edges" in (written := self.top.get("network", {})) or "file" in written
            ):
                group.setdefault("link", {}).setdefault(
                    "at", self.rng.choice(self.places())
                )
            if self.in_order:
                group["devices"] = self.section(laws.DeviceTable)
                self.quantity = "rate"
                group.setdefault("link", {})["up"] = dict(COLUMNS["rate"])
            if self.rng.random() < 0.2:
                unit = self.rng.choice(("ms/step", "ms/sample", "ms/epoch"))
                taken = {"table": "devices.csv", "column": "rtt_ms", "unit": unit}
                device = group["device"]
                device.get("assume", device)["training"] = taken
            groups.append(group)
        return groups

    def strategies(self) -> list:
        mine = [s for s in STRATEGIES if self.plugin or s != "every-other"]
        return [*mine[:4], *mine]

    def device(self) -> dict[str, Any]:
        """A device of stated times, or of a profile beside which the same times are
        assumed.
        """
        fixed = dict.fromkeys(devices.AssumedTimes.model_fields)
        drawn = self.section(devices.DeviceSpec, assume=None, **fixed)
        times = {key: self.rng.choice(values) for key, values in TIMES.items()}
        if "profile" in drawn:  # which knows the one and not the other
            keep = self.some(times, len(times))
            drawn["assume"] = {key: times[key] for key in keep}
        else:
            drawn.pop("scale", None)
            drawn.pop("uncertainty", None)
            further = set(devices.AssumedTimes.model_fields) - set(TIMES)
            more = {
                key: "20 ms" for key in sorted(further) if self.rng.random() >= 0.95
            }
            drawn |= times | more
        return drawn

    def places(self) -> list[str]:
        """Nodes of the network to which something can be attached."""
        written = self.top.get("network", {})
        if "tiers" in written:
            first = written["tiers"][0]
            alone = first.get("count", 1) == 1
            return [
                first["name"] if alone else f"{first['name']}-{n}" for n in range(2)
            ]
        return ["a", "b", "server"]

    @property
    def method(self) -> str:
        """The kind of method that is drawn."""
        drawn: str = self.top.get("method", {}).get("kind", "fedkd")
        return drawn

    @property
    def cells(self) -> dict[str, Any]:
        """The radio cells that are drawn."""
        return self.top.get("network", {}).get("cells", {})

    def cell_link(self) -> dict[str, Any]:
        """A client's place in one of them."""
        name = self.value(network.LinkSpec, "cell")
        keys = ("up", "down") if "cellular" in self.cells[name] else ("rate",)
        if "wifi" in self.cells[name] and self.rng.random() > 0.5:
            keys = ("mcs",)
        return {
            "cell": name,
            **{key: self.value(network.LinkSpec, key) for key in keys},
        }


# ---- the schema ----------------------------------------------------------------------


class KindSection:
    """A section of one kind: the keys of all kinds, and the options of its part."""

    def __init__(self, choice: type[OfKind], kind: str) -> None:
        options = choice.list_options(kind)
        self.choice, self.kind, self.registry_kind = choice, kind, choice.registry_kind
        self.__name__ = f"{choice.__name__}.{kind}"
        self.model_fields = {**choice.model_fields, **options.fields}
        self.marks = options.marks


def _is_choice(section: Any) -> bool:
    return isinstance(section, type) and issubclass(section, OfKind)


def list_choices(section: type[BaseModel], key: str) -> Any:
    """What there is to choose from for a key, or the function that draws it.

    Empty: nothing.
    """
    values = _look_up(VALUES, section, key)
    if (
        values is None
        and (kind := getattr(section, "registry_kind", None))
        and key == "kind"
    ):
        return list(registry(kind).names())
    return _list_of(section.model_fields[key].annotation) if values is None else values


def _list_of(annotation: Any) -> list:
    """All values of a type that has few, with sections among them."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if annotation is bool:
        return [True, False]
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return list(inner)
    if origin in (tuple, list, dict) or annotation is NoneType:
        return []
    if origin is Annotated:
        inner = inner[:1]
    return [value for one in inner for value in _list_of(one)]


def list_sections(section: type[BaseModel], seen: dict) -> dict[str, type[BaseModel]]:
    """Every section of the schema, those of each registered kind among them, by its
    name.
    """
    if section.__name__ in seen:
        return seen
    seen[section.__name__] = section
    if _is_choice(section):
        parts = registry(section.registry_kind)
        for name in parts.names():
            if parts.origin(name) == "built in" or name in PLUGIN_PARTS:
                list_sections(KindSection(section, name), seen)
    for field in section.model_fields.values():
        for inner in _list_models(field.annotation):
            list_sections(inner, seen)
    return seen


def _list_models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _list_models(inner)


def list_all_sections() -> dict[str, type[BaseModel]]:
    """Those of a scenario and of a fleet of apps."""
    return list_sections(FleetFile, list_sections(Scenario, {}))


def list_undrawn() -> list[str]:
    """Keys of the schema that no world will ever have."""
    return [
        f"{name}.{key}"
        for name, section in list_all_sections().items()
        for key in section.model_fields
        if not list_choices(section, key) and not _look_up(EXEMPT, section, key)
    ]


def _marks(section: type[BaseModel], key: str) -> list:
    """What says where the key says something: `Only`, `OnlyWith`."""
    marks = [
        x for x in section.model_fields[key].metadata if hasattr(x, "from_the_top")
    ]
    return [
        *marks,
        *(mark for name, mark in getattr(section, "marks", ()) if name == key),
    ]


def list_stale() -> list[str]:
    """Keys that are drawn here and are none of the schema any longer."""
    known = {
        name
        for section in list_all_sections().values()
        for key in section.model_fields
        for name in (key, *(f"{place}.{key}" for place in _places(section)))
    }
    return [
        key for table in (VALUES, OFTEN, EXEMPT) for key in table if key not in known
    ]


def _look_up(table: dict[str, Any], section: type[BaseModel], key: str) -> Any:
    """Of the section's own name, its part's, its registry's, a base's, or of the key
    alone.
    """
    names = (f"{place}.{key}" for place in _places(section))
    return next((table[name] for name in names if name in table), table.get(key))


def _places(section: type[BaseModel]) -> list[str]:
    """Its part's name, its registry's, its own and its bases'."""
    names = [getattr(section, "kind", ""), getattr(section, "registry_kind", "")]
    bases = getattr(section, "choice", section).__mro__
    return [*filter(None, names), *(base.__name__.lstrip("_") for base in bases)]


def _of_class(table: dict, section: type) -> tuple[str, ...]:
    section = getattr(section, "choice", section)
    return next((keys for one, keys in table.items() if issubclass(section, one)), ())


# ---- to a valid world ----------------------------------------------------------------

MOST_MENDED = 25
"""Keys that are taken out of a world before it is given up."""


class NoWorld(Exception):
    """What was drawn does not go together, and no key can be spared."""


def mend_world(plain: dict[str, Any], read: Callable[[dict[str, Any]], T]) -> T:
    """What `read` makes of a world out of which the keys are taken that it refuses in
    an `InputError`. Raises: `NoWorld`.
    """
    said: list[str] = []
    for _ in range(MOST_MENDED):
        try:
            return read(plain)
        except (InputError, InputErrors) as error:
            refused = getattr(error, "errors", [error])
            said = [str(one) for one in refused]
            spared = [_take_out(plain, one) for one in refused]
            if not any(spared):
                break
    raise NoWorld("; ".join(said))


def read_world(plain: dict[str, Any], files: Path, *, learns: bool = True) -> Scenario:
    """The scenario of a world. Raises: `InputError`, `InputErrors`."""
    scenario = validate_scenario(
        plain, source="world", folder=files, allow_plugins=True
    )
    check_parts(scenario, files / "world.yaml", time_only=not learns)
    return scenario


def read_fleet(plain: dict[str, Any], files: Path) -> FleetFile:
    """The world of an app. Raises: `InputError`, `InputErrors`."""
    fleet = validate_fleet(plain, source="world", folder=files)
    check_world(fleet, files / "world.yaml")
    return fleet


_NEEDED = re.compile(
    r"name|rounds|dataset|prototypes(\.\w+(\.model)?)?|clients|clients\.\d+|"
    r"dataset\.missing|.*\.(kind|clip)"
)
SIMPLE = {
    "method": "fedavg",
    "policy": {"kind": "uniform", "strategy": "dense"},
    "compression": {"strategies": ["dense"]},
    "training": {"local_steps": 1, "batch_size": 8},
    "device": {key: times[0] for key, times in TIMES.items()},
}
"""What stands in place of a value that is refused, before its key is taken out."""
AWAY = "availability", "failure"
INSTEAD = {
    "network.topology": "aggregation",
    "participation.clients_per_round": "aggregation",
    "dataset": "privacy",
    "prototypes.a.model": "privacy",
    "dataset.missing": "privacy",
    "client": "network",
}
"""What is taken out where an error is about what nobody wrote."""


def _take_out(plain: dict[str, Any], error: InputError) -> bool:
    """Whether the key that an error is about, or the mapping around it, could be
    spared.
    """
    where = re.sub(
        r"^.*?world(\.yaml)?(: "
        r"|$)",
        "",
        error.where or "",
    ).replace(": ", ".")
    if belongs := re.match(r"(\w+) belongs to", error.hint or ""):
        where += f".{belongs[1]}"
    if where == "training.batch_size" and plain["dataset"].pop("partition", None):
        return True  # somebody owns one sample, which batch norm refuses
    if where.startswith("prototypes") and "b" in plain.get("prototypes", ()):
        del plain["prototypes"]["b"]
        for group in plain["clients"]:
            group["prototype"] = "a"
        return True
    node, path = plain, []
    for step in re.findall(r"[^.\[\]]+", where):
        at = int(step) if isinstance(node, list) and step.isdigit() else step
        known = (
            at in node
            if isinstance(node, dict)
            else isinstance(at, int) and at < len(node)
        )
        if known:
            path.append((node, at))
            node = node[at]
    while path:
        around, key = path[-1]
        said = ".".join(str(at) for _, at in path)
        simple = SIMPLE.get("device" if key == "device" else said)
        if simple and around[key] != simple:
            around[key] = simple
            return True
        if isinstance(key, str) and not simple and not _NEEDED.fullmatch(said):
            del around[key]
            return True
        path.pop()
    if (
        where.startswith("compression")
        and plain.get("compression") == SIMPLE["compression"]
    ):
        for group in plain["clients"]:
            group.pop("policy", None)
        where = "policy"
    for said in ("method", "policy", "training", "compression"):
        if where.startswith(said) and plain.get(said) != SIMPLE[said]:
            plain[said] = SIMPLE[said]
            return True
    if where == "clients":
        return any(group.pop(key, None) for group in plain["clients"] for key in AWAY)
    where = "client" if where.startswith("client-") else where
    return plain.pop(INSTEAD.get(where, ""), None) is not None
