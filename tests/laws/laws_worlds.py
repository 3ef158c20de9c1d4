"""One generator of scenarios, with every feature of the schema: small, and played in a
moment.

Values are drawn by the type of a key where that says what there is to choose from, else
from `VALUES`; a new key of the schema that is neither is an error of `list_undrawn`,
and so of a test.

What does not go together is not known here: simfed refuses it and says where, and the
key there is taken out again.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

import yaml
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

CHOICES = yaml.safe_load(Path(__file__).with_name("values.yaml").read_text())

RATES = "1 Mbps", "100 kbps", "300 kbps", "4 Mbps"
SHORT = "0 s", "20 ms", "150 ms"

QUANTITY_OF_KEY = {
    **dict.fromkeys(("up", "down", "rate"), "rate"),
    **dict.fromkeys(("latency", "down_latency"), "duration"),
    **dict.fromkeys(("between", "lasts", "on", "off"), "stay"),
    "speed": "number",
    "loss": "loss",
    "k": "entries",
    "local_epochs": "epochs",
}

HEAVY = "mcmahan-cnn", "femnist-cnn", "resnet18", "wresnet40-2", "resnet18-gn"
"""Models that only worlds without learning have: a step takes them too long."""


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


def _draw_amount(place, drawing):
    return CHOICES["triples"][drawing.quantity][place]


def _whole_up_to(most):
    return lambda drawing: drawing.rng.randint(1, max(1, getattr(drawing, most)))


VALUES: dict[str, Any] = {
    **CHOICES["keys"],
    "seed": lambda drawing: drawing.rng.randrange(100),
    "prototypes": lambda drawing: drawing.prototypes(),
    "PrototypeSpec.model": lambda drawing: drawing.rng.choice(drawing.models),
    "PrototypeSpec.adapters": [prototype.AdaptersSpec],
    "PrototypeSpec.facts": [prototype.FactsSpec],
    "ClientGroup.prototype": lambda drawing: drawing.prototype,
    "dataset": lambda drawing: drawing.dataset(),
    **{
        f"DatasetSpec.{key}": [source[key]]
        for source, _ in CHOICES["data"]
        for key in source
    },
    **dict.fromkeys(
        ("Scenario.clients", "FleetFile.clients"), lambda drawing: drawing.groups()
    ),
    "plugins": [["parts.py"], "parts.py", [PluginSpec]],
    "ClientGroup.local_epochs": [2, laws.Distribution],
    "rollback": [model.Rollback, True, "off"],
    "residuals": [model.ResidualsSpec, "as-sent", {"damped": 0.5}],
    "reference": [model.Reference, {"running-median": 2}],
    "overlap": [model.Overlap],
    "ClientGroup.k": [20, "5%", laws.Distribution],
    "strategies": lambda drawing: drawing.some(drawing.strategies(), 3),
    "strategy": lambda drawing: drawing.rng.choice(drawing.strategies()),
    "Privacy.clip": [1.0, 0.1, privacy.AdaptiveClip],
    "clients_per_round": _whole_up_to("clients"),
    "concurrency": _whole_up_to("clients"),
    "at": lambda drawing: drawing.rng.choice(drawing.places()),
    "edge_servers": [model.EdgeServers],
    "speed": [1.0, 0.3, laws.Distribution],
    "background": [0.3, devices.Background],
    "Dvfs.steps": lambda drawing: [
        {**drawing.section(devices.ClockStepSpec), "lasts": "300 ms"},
        drawing.section(devices.ClockStepSpec, lasts=None),
    ],
    "quota": [devices.QuotaSpec, 0.5],
    **{
        f"{section}.{key}": list(TIMES.get(key, ("10 ms", "100 ms")))
        for section in ("DeviceSpec", "AssumedTimes")
        for key in devices.AssumedTimes.model_fields
    },
    **{f"TimeFactors.{key}": [3.0, 0.5] for key in devices.TimeFactors.model_fields},
    "ClientGroup.availability": [presence.PresenceSpec, presence.OwnPresence],
    "between": ["3 s", "1 s", laws.Distribution],
    "lasts": ["500 ms", "1 s", laws.Distribution],
    "on": ["5 s", "20 s", laws.Distribution],
    "off": ["1 s", "300 ms", laws.Distribution],
    "up": [*RATES, network.TraceSpec],
    "down": [*RATES, network.TraceSpec],
    "LinkSpec.up": [*RATES, network.TraceSpec, laws.Distribution],
    "LinkSpec.down": [*RATES, network.TraceSpec, laws.Distribution],
    "LinkSpec.rate": ["7 Mbps", "300 kbps", network.TraceSpec, laws.Distribution],
    "receive": ["300 kbps", "2 Mbps", network.TraceSpec],
    "send": ["1 Mbps", "4 Mbps", network.TraceSpec],
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
    "LinkSpec.loss": [0.01, laws.Distribution],
    "cell": lambda drawing: drawing.rng.choice(sorted(drawing.cells)),
    "cells": lambda drawing: {
        name: drawing.section(network.CellSpec, only=kind)
        for name, kind in drawing.some((("home", "wifi"), ("street", "cellular")), 2)
    },
    "CellSpec.share": [0.5, network.ShareTrace],
    "tiers": lambda drawing: [
        drawing.section(network.TierSpec, name=name)
        for name in drawing.rng.choice((("edge",), ("edge", "core")))
    ],
    "edges": lambda drawing: [
        drawing.section(network.EdgeSpec, between=list(pair))
        for pair in (("a", "server"), ("b", "a"), ("b", "server"))
    ],
    "ClientGroup.devices": [laws.DeviceTable],
    **{
        key: partial(_draw_amount, place)
        for place, keys in enumerate((("low", "sd"), ("median", "mean"), ("high",)))
        for key in keys
    },
    "ChoiceSpec.values": lambda drawing: list(CHOICES["triples"][drawing.quantity]),
}
"""Key, maybe behind its section or its part's name → what to choose from, the simplest
first: plain values, sections to be drawn, or one function that draws the value. Those
that have only values are in `values.yaml`."""

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


USUAL = {"method": ("fedkd", "fedavg") * 3, "policy": ("uniform", "ascend") * 2}
"""Kinds that are drawn more often than others."""


class Drawing:
    """One world under way."""

    def __init__(
        self,
        rng,
        *,
        learns=True,
        root=Scenario,
    ):
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

    def world(self):
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
        section,
        only=None,
        into=None,
        **fixed,
    ):
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
            drawn |= CHOICES["columns"][self.quantity]
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

    def draw_key(self, section, key, drawn):
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
        share = _look_up(CHOICES["often"], section, key)
        share = self.share if share is None else share
        if key == "format":
            drawn[key] = drawn["file"].rpartition(".")[2]
        elif needed or self.rng.random() >= 1 - share:
            drawn[key] = self.value(section, key)

    def value(self, section, key):
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

    def kind(self, choice):
        names = registry(choice.registry_kind).names()
        mine = [name for name in names if name in PLUGIN_PARTS]
        if mine and self.plugin and self.rng.random() < 0.5:
            return self.rng.choice(mine)
        parts = registry(choice.registry_kind)
        built_in = [name for name in names if parts.origin(name) == "built in"]
        usual = USUAL.get(choice.registry_kind, ())
        return self.rng.choice([*usual, *built_in])

    def _holds(self, mark, section, drawn):
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

    def some(self, values, most):
        """One to `most` of them, in their order."""
        count = self.rng.randint(1, most)
        return self.rng.sample(list(values), min(count, len(values)))

    # ---- what hangs together ---------------------------------------------------------

    def dataset(self):
        fits = [
            (source, models)
            for source, models in CHOICES["data"]
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

    def prototypes(self):
        mixes = registry("method").get(self.method).mixes_prototypes
        names = ("a", "b")[: self.rng.choice((1, 1, 2)) if mixes else 1]
        kinds = ("model",) if self.learns else ("model", "model", "facts")
        return {
            name: self.section(prototype.PrototypeSpec, only=self.rng.choice(kinds))
            for name in names
        }

    def groups(self):
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
                group.setdefault("link", {})["up"] = dict(CHOICES["columns"]["rate"])
            if self.rng.random() < 0.2:
                unit = self.rng.choice(("ms/step", "ms/sample", "ms/epoch"))
                taken = {"table": "devices.csv", "column": "rtt_ms", "unit": unit}
                device = group["device"]
                device.get("assume", device)["training"] = taken
            groups.append(group)
        return groups

    def strategies(self):
        mine = [s for s in CHOICES["strategies"] if self.plugin or s != "every-other"]
        return [*mine[:4], *mine]

    def device(self):
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

    def places(self):
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
    def method(self):
        """The kind of method that is drawn."""
        drawn: str = self.top.get("method", {}).get("kind", "fedkd")
        return drawn

    @property
    def cells(self):
        """The radio cells that are drawn."""
        return self.top.get("network", {}).get("cells", {})

    def cell_link(self):
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

    def __init__(self, choice, kind):
        options = choice.list_options(kind)
        self.choice, self.kind, self.registry_kind = choice, kind, choice.registry_kind
        self.__name__ = f"{choice.__name__}.{kind}"
        self.model_fields = {**choice.model_fields, **options.fields}
        self.marks = options.marks


def _is_choice(section):
    return isinstance(section, type) and issubclass(section, OfKind)


def list_choices(section, key):
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


def _list_of(annotation):
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


def list_sections(section, seen):
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


def _list_models(annotation):
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _list_models(inner)


def list_all_sections():
    """Those of a scenario and of a fleet of apps."""
    return list_sections(FleetFile, list_sections(Scenario, {}))


def list_undrawn():
    """Keys of the schema that no world will ever have."""
    return [
        f"{name}.{key}"
        for name, section in list_all_sections().items()
        for key in section.model_fields
        if not list_choices(section, key) and not _look_up(EXEMPT, section, key)
    ]


def _marks(section, key):
    """What says where the key says something: `Only`, `OnlyWith`."""
    marks = [
        x for x in section.model_fields[key].metadata if hasattr(x, "from_the_top")
    ]
    return [
        *marks,
        *(mark for name, mark in getattr(section, "marks", ()) if name == key),
    ]


def list_stale():
    """Keys that are drawn here and are none of the schema any longer."""
    known = {
        name
        for section in list_all_sections().values()
        for key in section.model_fields
        for name in (key, *(f"{place}.{key}" for place in _places(section)))
    }
    return [
        key
        for table in (VALUES, CHOICES["often"], EXEMPT)
        for key in table
        if key not in known
    ]


def _look_up(table, section, key):
    """Of the section's own name, its part's, its registry's, a base's, or of the key
    alone.
    """
    names = (f"{place}.{key}" for place in _places(section))
    return next((table[name] for name in names if name in table), table.get(key))


def _places(section):
    """Its part's name, its registry's, its own and its bases'."""
    names = [getattr(section, "kind", ""), getattr(section, "registry_kind", "")]
    bases = getattr(section, "choice", section).__mro__
    return [*filter(None, names), *(base.__name__.lstrip("_") for base in bases)]


def _of_class(table, section):
    section = getattr(section, "choice", section)
    return next((keys for one, keys in table.items() if issubclass(section, one)), ())


# ---- to a valid world ----------------------------------------------------------------

MOST_MENDED = 25
"""Keys that are taken out of a world before it is given up."""


class NoWorld(Exception):
    """What was drawn does not go together, and no key can be spared."""


def mend_world(plain, read):
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


def read_world(plain, files, *, learns=True):
    """The scenario of a world. Raises: `InputError`, `InputErrors`."""
    scenario = validate_scenario(
        plain, source="world", folder=files, allow_plugins=True
    )
    check_parts(scenario, files / "world.yaml", time_only=not learns)
    return scenario


def read_fleet(plain, files):
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


def _take_out(plain, error):
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
