"""Each key of the schema has an effect wherever it stands, is refused, or is excused
here.

Marked keys (`Only`, `OnlyWith`) are entered where they have no effect by
`test_scenario_used.py`. This file accounts for all others: `refusals/effects.txt`
enters them where another choice switches them off, `EXCUSED` says why some may stand
there, `ALWAYS` lists those that no choice switches off. A new key is in none of them,
and fails.
"""

import pytest
import refusals
from test_scenario_used import MARKS, SCHEMA
from worlds import world

from simfed.experiment import check

# (mapping, key) of each row, as its comment says
REFUSED = {
    tuple(row.written.split("\n")[0][2:].split("."))
    for row in refusals.read(refusals.HERE / "effects.txt")
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
    # options of registered parts belong to their kind, and are refused beside another
    # one
    every = {
        (name, key)
        for name, node in {"Scenario": SCHEMA, **SCHEMA["$defs"]}.items()
        for key in node.get("properties", ())
        if "." not in name
    }
    sometimes = REFUSED.union(*map(pairs, EXCUSED.values()))
    accounted, always = sometimes | pairs(ALWAYS), pairs(ALWAYS)
    assert not every - marked - accounted
    assert not accounted - every
    assert not always & (marked | sometimes)


@pytest.mark.parametrize(
    "keys",
    [
        {"compression": {"k": 50, "index_code": "rice", "strategies": ["dense"]}},
        {"clients[0].k": {"uniform": {"low": 5, "high": 50}}},
    ],
)
def test_one_base_serves_arms_that_do_not_look_at_its_compression(keys):
    dense = {"policy": {"kind": "uniform", "strategy": "dense"}}
    check(world("tiny", {**keys, **dense}), time_only=True)
