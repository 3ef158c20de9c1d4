"""Each key of the schema has an effect wherever it stands, is refused, or is excused here.

Marked keys (`Only`, `OnlyWith`) are entered where they have no effect by `test_scenario_used.py`.
This file accounts for all others: `REFUSED` enters them where another choice switches them off,
`EXCUSED` says why some may stand there, `ALWAYS` lists those that no choice switches off. A new
key is in none of them, and fails.
"""

from pathlib import Path

import pytest
from test_scenario_used import MARKS, SCHEMA

from simfed.experiment.checks import check
from simfed.ground.errors import InputError, InputErrors
from simfed.scenario.load import apply_overrides, validate_scenario

STATED = {"training": "1 ms", "compression": "1 ms"}
BASE = {
    "name": "effects",
    "rounds": 2,
    "method": "fedavg",
    "dataset": {"name": "mnist-mini", "partition": {"kind": "iid"}},
    "prototypes": {"p": {"model": "lenet5-half"}},
    "clients": [{"count": 4, "prototype": "p", "device": STATED, "link": {"up": "5 Mbps"}}],
}
PROFILE = {"profile": "x86-2core-vm"}
LAW = {"median": "5 Mbps", "cv": 1}
WIFI = {"network.cells": {"home": {"wifi": {"standard": "n"}}}}
TRACE = {"file": "up.csv", "format": "csv", "end": "hold"}
PRIVATE = {"level": "client", "clip": 1.0}
BUSY = {"trace": [["0 s", 0.1]]}

# (mapping, key) → where it has no effect, and what is said of it
REFUSED = {
    ("AdaptiveClip", "quantile"): (
        {"privacy": {"level": "sample", "clip": {"quantile": 0.5}, "noise": 1}},
        "privacy.clip: got 'a quantile'",
    ),
    ("Background", "offset"): (
        {"clients[0].device": {**PROFILE, "background": {**BUSY, "offset": "random"}}},
        "a period beside a random offset",
    ),
    ("CellSpec", "cellular"): (
        {"network.cells": {"home": {"wifi": {"standard": "n"}, "cellular": {}}}},
        "neither or both of wifi and cellular",
    ),
    ("ClientGroup", "devices"): (
        {"clients[0].devices": {"table": "fleet.csv"}},
        "some field of the group with a `column` of this table",
    ),
    ("ClientGroup", "k"): (
        {"clients[0].k": 5, "compression.strategies": ["dense", "qsgd", "top-k@1%"]},
        "clients[0].k: no strategy goes by K",
    ),
    ("ClientGroup", "overlap"): (
        {"method": "local-only", "clients[0].overlap": {"chunks": 2}},
        "nothing is compressed",
    ),
    ("Compression", "k_choices"): (
        {"compression": {"strategies": ["dense", "top-k@1%"], "k_choices": [5, 9]}},
        "compression.k_choices: got [5, 9], expected levels beside a strategy that goes by K",
    ),
    ("Compression", "pairs"): ({"compression.pairs": "factored"}, "compression.pairs: got 'fact"),
    ("CoresSpec", "count"): (
        {"clients[0].device": {**STATED, "cores": 4}},
        "cores.measured",
    ),
    **{
        ("DatasetSpec", key): ({f"dataset.{key}": value}, f"dataset.{key}: name has no columns")
        for key, value in (
            ("target", "y"),
            ("owner", "o"),
            ("features", ["a"]),
            ("missing", "mean"),
        )
    },
    ("DatasetSpec", "layout"): (
        {"dataset.layout": "channels-last"},
        "dataset.layout: name says it itself (layout belongs to file",
    ),
    ("DatasetSpec", "task"): ({"dataset.task": "regression"}, "what name names are classes"),
    ("DeviceSpec", "quota"): (
        {"clients[0].device": {**PROFILE, "quota": 0.5, "background": BUSY}},
        "quota",
    ),
    ("DeviceSpec", "scale"): (
        {"clients[0].device": {**STATED, "scale": {"training": 2}}},
        "stated times are not scaled",
    ),
    ("DeviceSpec", "uncertainty"): (
        {"clients[0].device": {**STATED, "uncertainty": True}},
        "stated times have none",
    ),
    **{
        ("Scale", key): (
            {"clients[0].device": {**PROFILE, "assume": {key: "1 s"}, "scale": {key: 2}}},
            f"scale.{key}: {key} is stated, and stated times are not scaled",
        )
        for key in (
            "training",
            "private",
            "compression",
            "decompression",
            "inference",
            "distillation",
            "auxiliary",
            "starting",
            "handling",
            "evaluation",
            "losses",
        )
    },
    ("Failure", "download"): (
        {"clients[0].failure.download": 0.1, "charge.downlink": False},
        "clients[0].failure.download: got 0.1, expected 0 with charge.downlink false",
    ),
    ("Failure", "upload"): (
        {"clients[0].failure.upload": 0.1, "method": "local-only"},
        "clients[0].failure.upload: got 0.1, expected 0 with method local-only: there is no upl",
    ),
    ("LinkSpec", "up"): (
        {**WIFI, "clients[0].link": {"cell": "home", "mcs": 5, "up": "5 Mbps"}},
        "got 'mcs or up', expected rate or mcs, in a Wi-Fi cell",
    ),
    ("LinkSpec", "down"): (
        {**WIFI, "clients[0].link": {"cell": "home", "mcs": 5, "down": "5 Mbps"}},
        "got 'down or mcs', expected rate or mcs, in a Wi-Fi cell",
    ),
    ("LognormalSpec", "mean"): (
        {"clients[0].link.up": {"lognormal": {**LAW, "mean": "5 Mbps"}}},
        "none or both of median and mean",
    ),
    ("MessagesSpec", "timeout"): (
        {"faults": {"messages": {"doubled": 0.1, "timeout": "1 s"}}},
        "without lost, timeout says nothing",
    ),
    ("MessagesSpec", "tries"): (
        {"faults": {"messages": {"doubled": 0.1, "tries": 2}}},
        "without lost, tries says nothing",
    ),
    ("NetworkSpec", "cells"): (WIFI, "nobody is in it"),
    ("NetworkSpec", "file"): (
        {"network": {"topology": "graph", "file": "a.gml", "edges": [{"between": ["a", "b"]}]}},
        "neither or both of edges and file",
    ),
    ("PresenceSpec", "daily"): (
        {
            "clients[0].availability": {
                "markov": {"on": "1 h", "off": "1 h"},
                "daily": {"from": "22:00", "to": "06:00"},
            }
        },
        "one of trace, markov or daily",
    ),
    ("Privacy", "delta"): (
        {"privacy": {**PRIVATE, "target": {"epsilon": 8}, "delta": 1e-6}},
        "delta inside target",
    ),
    ("Privacy", "noise"): (
        {"privacy": {**PRIVATE, "target": {"epsilon": 8}, "noise": 1}},
        "either noise or target",
    ),
    ("Scenario", "prototypes"): (
        {"prototypes.q": {"model": "lenet5"}, "method": "fedkd"},
        "prototypes.q: no client has this prototype",
    ),
    ("TraceSpec", "generate"): (
        {
            "clients[0].link.up": {
                **TRACE,
                "generate": {"kind": "markov-on-off", "high": "1 Mbps", "low": 0}
                | {"mean_high": "1 s", "mean_low": "1 s"},
            }
        },
        "neither or both of file and generate",
    ),
    ("Training", "local_epochs"): (
        {"training": {"local_steps": 2, "local_epochs": 2}},
        "either local_steps or local_epochs",
    ),
}

# mappings with keys that may stand where they have no effect, and why
EXCUSED = {
    "one base serves studies that vary strategies, policies, methods, models and what is charged": {
        "Compression": "k strategies index_code",
        "DownlinkCompression": "k index_code",
        "Reward": "rho beta clip local_loss",
        "Scenario": "policy",
        "ChargeSpec": "buffers",
        "LinkSpec": "down_latency",
        "ServerLink": "send down_latency",
        "TierSpec": "down down_latency",
    },
    "it tells of a device, whatever work a run gives to it": {
        "Assumed": "training private compression decompression inference distillation auxiliary "
        "starting handling evaluation losses",
        "Dvfs": "reset_after",
        "CoresSpec": "measured efficiency",
    },
    "another number of clients or rounds gives it an effect": {
        "Scenario": "client_order",
        "AttackChoice": "from",
        "EvaluationSpec": "every",
        "Rollback": "max_consecutive",
    },
    "it is short for another key": {
        "DeviceSpec": "training private compression decompression inference distillation auxiliary "
        "starting handling evaluation losses",
    },
}

ALWAYS = {
    "Scenario": "name seed method rounds dataset clients training compression safeguard network "
    "aggregation participation server charge downlink evaluation faults privacy "
    "checkpoint plugins extends",
    "AdaptiveClip": "start rate count_noise",
    "Aggregation": "mode",
    "AttackChoice": "kind",
    "Background": "trace period",
    "CellSpec": "wifi share",
    "CellularSpec": "scheduler",
    "ChargeSpec": "downlink",
    "CheckpointSpec": "every",
    "ChoiceSpec": "values weights",
    "ClientGroup": "count prototype device link availability failure policy",
    "ClockStep": "factor lasts",
    "Daily": "zones from to",
    "DatasetSpec": "name file table folder leaf torchvision huggingface partition",
    "DeviceSpec": "profile speed cores background dvfs thermal noise assume",
    "Devices": "table rows",
    "Distillation": "learning_rate steps temperature divergence",
    "Distribution": "lognormal uniform normal choice column",
    "Downlink": "compression",
    "DownlinkCompression": "strategy",
    "Dvfs": "steps",
    "EdgeServers": "mode at merges device restarts",
    "EdgeSpec": "between up down latency down_latency",
    "EvaluationSpec": "clients",
    "Failure": "training",
    "FaultsSpec": "stalls freezes messages restarts",
    "FileCapacity": "missing",
    "Generator": "kind length",
    "LinkSpec": "cell latency",
    "LocalLoss": "data credit",
    "LognormalSpec": "median cv low high",
    "MarkovSpec": "on off",
    "MessagesSpec": "lost doubled",
    "MethodChoice": "kind",
    "NetworkSpec": "topology model server",
    "NoiseSpec": "kind",
    "NormalSpec": "mean sd low high",
    "Overlap": "chunks",
    "OwnPresence": "kind",
    "Partition": "kind",
    "PluginSpec": "file origin",
    "PolicySpec": "kind arms_from",
    "PresenceSpec": "trace markov",
    "Privacy": "level clip target",
    "PrivacyTarget": "epsilon delta",
    "PrototypeSpec": "model",
    "QuotaSpec": "share period",
    "Reference": "kind",
    "ResidualsSpec": "kind",
    "Rollback": "threshold",
    "RuleChoice": "kind",
    "Schedule": "kind",
    "SelectionChoice": "kind",
    "ServerLink": "receive latency",
    "ServerSpec": "device",
    "ShareGenerator": "kind length",
    "ShareTrace": "file generate end offset scale",
    "Staleness": "kind bound",
    "Stalls": "between lasts links",
    "Strike": "between lasts",
    "TcpOptions": "handshake header",
    "ThermalSpec": "heating cooling throttle_at factor resume_at",
    "TierSpec": "name count up latency",
    "TraceSpec": "file end offset scale",
    "Training": "batch_size learning_rate local_steps optimizer weight_decay clip_norm schedule",
    "UniformBetween": "low high",
    "WifiSpec": "standard width streams aggregation fair",
}


def pairs(table):
    return {(mapping, key) for mapping, keys in table.items() for key in keys.split()}


def test_every_key_is_refused_excused_or_has_an_effect():
    marked = {(mapping.__name__, name) for mapping, name, _ in MARKS}
    mappings = {"Scenario": SCHEMA, **SCHEMA["$defs"]}
    # options of registered parts belong to their kind, and are refused beside another one
    own = {name: node for name, node in mappings.items() if "." not in name}
    every = {(name, key) for name, node in own.items() for key in node.get("properties", ())}
    excused = set().union(*map(pairs, EXCUSED.values()))
    accounted = marked | REFUSED.keys() | excused | pairs(ALWAYS)
    assert every - accounted == set()
    assert (REFUSED.keys() | excused | pairs(ALWAYS)) - every == set()
    assert not pairs(ALWAYS) & (marked | REFUSED.keys() | excused)


def refusals(overrides):
    """What is said of a scenario, however late; empty: nothing."""
    data = apply_overrides(BASE, overrides.items())
    try:
        check(validate_scenario(data, source="x.yaml", folder=Path()), time_only=True)
    except InputErrors as errors:
        return [str(error) for error in errors.errors]
    except InputError as error:
        return [str(error)]
    return []


def test_the_base_is_fine():
    assert refusals({"policy": {"kind": "uniform", "strategy": "top-k"}}) == []


@pytest.mark.parametrize("key", REFUSED, ids=".".join)
def test_a_key_without_effect_is_refused_in_one_sentence(key):
    overrides, sentence = REFUSED[key]
    with_policy = {"policy": {"kind": "uniform", "strategy": "dense"}, **overrides}
    said = refusals(with_policy)
    assert any(sentence in error for error in said), said
    assert not any("\n" in error for error in said)


def test_one_base_serves_arms_that_do_not_look_at_its_compression():
    base = {"compression": {"k": 50, "index_code": "rice", "strategies": ["dense"]}}
    assert refusals({**base, "policy": {"kind": "uniform", "strategy": "dense"}}) == []
    drawn = {"clients[0].k": {"uniform": {"low": 5, "high": 50}}}
    assert refusals({**drawn, "policy": {"kind": "uniform", "strategy": "dense"}}) == []
