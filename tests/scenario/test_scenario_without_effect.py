"""Each key of the schema has an effect wherever it stands, is refused, or is excused
here.

Marked keys (`Only`, `OnlyWith`) are entered where they have no effect by
`test_scenario_used.py`. This file accounts for all others: `refusals/effects.txt`
enters them where another choice switches them off, `EXCUSED` says why some may stand
there, `ALWAYS` lists those that no choice switches off. A new key is in none of them,
and fails.
"""

from pathlib import Path

import refusals
from test_scenario_used import MARKS, SCHEMA
from worlds import TINY

from simfed import InputError, InputErrors
from simfed.experiment import check
from simfed.scenario import Scenario, apply_overrides, validate_scenario

EFFECTS = Path(__file__).parents[1] / "refusals" / "effects.txt"

# (mapping, key) of each row, as its comment says
REFUSED = {
    tuple(row.written.split("\n")[0][2:].split(".")) for row in refusals.read(EFFECTS)
}

# mappings with keys that may stand where they have no effect, and why
EXCUSED = {
    "one base serves studies that vary strategies, policies, methods, models and what "
    "is charged": {
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
        "AssumedTimes": "training private compression decompression inference "
        "distillation auxiliary starting handling evaluation losses",
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
        "DeviceSpec": "training private compression decompression inference "
        "distillation auxiliary starting handling evaluation losses"
    },
}

ALWAYS = {
    "Scenario": "name seed method rounds dataset clients training compression "
    "safeguard network aggregation participation server charge downlink evaluation "
    "faults privacy checkpoint plugins extends",
    "AdaptiveClip": "start rate count_noise",
    "Aggregation": "mode",
    "AttackChoice": "kind",
    "Background": "trace period",
    "CellSpec": "wifi share",
    "CellularSpec": "scheduler",
    "ChargeSpec": "downlink",
    "CheckpointSpec": "every",
    "ChoiceSpec": "values weights",
    "ClientGroup": "count prototype device link availability failure policy "
    "local_epochs local_time",
    "ClockStepSpec": "factor lasts",
    "DailySpec": "zones from to",
    "DatasetSpec": "name file table folder leaf torchvision huggingface partition",
    "DeviceSpec": "profile speed cores background dvfs thermal noise assume",
    "DeviceTable": "table rows where",
    "Distillation": "learning_rate steps temperature divergence",
    "Distribution": "lognormal uniform normal choice column",
    "Downlink": "compression",
    "DownlinkCompression": "strategy",
    "Dvfs": "steps",
    "EdgeServers": "mode at merges device restarts",
    "EdgeSpec": "between up down latency down_latency",
    "EvaluationSpec": "clients measures owners",
    "Failure": "training",
    "FaultsSpec": "stalls freezes messages restarts",
    "FileCapacity": "attribute missing",
    "FileLatency": "attribute by",
    "Generator": "kind length",
    "LinkSpec": "cell latency",
    "LatencyTrace": "file format end offset factor latency_column unit",
    "PerMessage": "per_message",
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
    "PrototypeSpec": "model pretrained adapters train facts",
    "AdaptersSpec": "rank alpha targets",
    "FactsSpec": "parameters trainable flops_per_sample buffers",
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
    "ShareTrace": "file generate end offset factor",
    "Staleness": "kind bound",
    "StallsSpec": "between lasts links",
    "StrikeSpec": "between lasts",
    "TcpOptions": "handshake header window",
    "ThermalSpec": "heating cooling throttle_at factor resume_at",
    "TierSpec": "name count up latency",
    "TraceSpec": "file end offset factor",
    "Training": "batch_size learning_rate local_steps optimizer weight_decay clip_norm "
    "schedule",
    "UniformBetween": "low high",
    "WifiSpec": "standard width streams aggregation fair",
}


def pairs(table):
    return {(mapping, key) for mapping, keys in table.items() for key in keys.split()}


def test_every_key_is_refused_excused_or_has_an_effect():
    marked = {(mapping.__name__, name) for mapping, name, _ in MARKS}
    mappings = {"Scenario": SCHEMA, **SCHEMA["$defs"]}
    # options of registered parts belong to their kind, and are refused beside another
    # one
    own = {name: node for name, node in mappings.items() if "." not in name}
    every = {
        (name, key) for name, node in own.items() for key in node.get("properties", ())
    }
    excused = set().union(*map(pairs, EXCUSED.values()))
    accounted = marked | REFUSED | excused | pairs(ALWAYS)
    assert every - accounted == set()
    assert (REFUSED | excused | pairs(ALWAYS)) - every == set()
    assert not pairs(ALWAYS) & (marked | REFUSED | excused)


def said_of(overrides):
    """What is said of a scenario, however late; empty: nothing."""
    data = apply_overrides(TINY, overrides.items(), Scenario)
    try:
        check(validate_scenario(data, source="x.yaml", folder=Path()), time_only=True)
    except InputErrors as errors:
        return [str(error) for error in errors.errors]
    except InputError as error:
        return [str(error)]
    return []


def test_the_base_is_fine():
    assert said_of({"policy": {"kind": "uniform", "strategy": "top-k"}}) == []


def test_one_base_serves_arms_that_do_not_look_at_its_compression():
    base = {"compression": {"k": 50, "index_code": "rice", "strategies": ["dense"]}}
    assert said_of({**base, "policy": {"kind": "uniform", "strategy": "dense"}}) == []
    drawn = {"clients[0].k": {"uniform": {"low": 5, "high": 50}}}
    assert said_of({**drawn, "policy": {"kind": "uniform", "strategy": "dense"}}) == []
