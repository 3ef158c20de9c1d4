"""The check of methods finds what breaks the contract, and every key is read."""

import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Annotated

import engine_worlds as tiny
import numpy as np
import pytest
import torch
import worlds
from broken_parts import naming

from simfed import InputError, InputErrors
from simfed.ground import Field, Streams, Work
from simfed.ground.registry import registry
from simfed.learn import HostedWorkload, plain_rounds
from simfed.learn.methods.fedmd import FedMD
from simfed.learn.methods.fedprox import FedProx
from simfed.learn.methods.local_only import LocalOnly
from simfed.testing import check_method


def test_methods_are_known_without_torch():
    code = (
        "import sys; from simfed.ground.registry import registry as r;"
        "[r('method').get(name)() for name in r('method').names()];"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


calls = []


class PlansByTheCall(FedProx):
    def plan(self, setting, who, round):
        calls.append(who)
        plan = super().plan(setting, who, round)
        return replace(plan, work=[Work("inference", who.model, len(calls))])


class PlansUnknownWork(FedProx):
    def plan(self, *given):
        return replace(super().plan(*given), work=[Work("auxiliary", "mystery", 8)])


class SendsMoreThanPlanned(FedProx):
    def plan(self, *given):
        plan = super().plan(*given)
        return replace(plan, up={**plan.up, "update": Field("update", 1)})


class SendsWhatIsNotPlanned(LocalOnly):
    def train(self, *given):
        values, own = super().train(*given)
        return {**values, "extra": torch.zeros(1)}, own


class ChangesWhatItWasSent(FedProx):
    def train(self, kit, who, round, down, own):
        trained = super().train(kit, who, round, down, own)
        down["weights"].add_(1)
        return trained


class DrawsGlobally(FedProx):
    def train(self, *given):
        values, own = super().train(*given)
        return {**values, "update": values["update"] + torch.rand(1)}, own


class DrawsGloballyInNumPy(FedProx):
    def begin(self, kit):
        np.random.rand()  # noqa: NPY002
        return super().begin(kit)


class RemembersInTheObject(FedProx):
    def train(self, *given):
        values, own = super().train(*given)
        seen = self.__dict__.setdefault("seen", [])
        seen.append(1)
        return {**values, "update": values["update"] * len(seen)}, own


class MergesInPlace(FedProx):
    def merge(self, kit, server, arrivals, round):
        for arrival in arrivals:
            server[arrival.who.prototype]["weights"].sub_(arrival.values["update"])
        return server, {}


class NeedsEverybody(FedMD):
    def merge(self, kit, *given):
        merged, losses = super().merge(kit, *given)
        return merged, {name: losses[name] for name in kit.prototypes}


class MeasuresInSecret(FedProx):
    def merge(self, *given):
        return super().merge(*given)[0], {"checked": {"x": 1.0}}


class KeepsWhatNoFileHolds(LocalOnly):
    def train(self, *given):
        values, own = super().train(*given)
        return values, {**own, "when": {1, 2}}


class EvaluatesHalfAModel(FedProx):
    def model(self, *given):
        return {"weights": super().model(*given)["weights"]}


@dataclass(frozen=True)
class ForgetsAnOption(FedProx):
    extra: Annotated[float, "an option"] = 1.0

    @property
    def options(self):
        return {"mu": self.mu}


class NeverSends(FedProx):
    def participate(self, setting, client):
        yield from client.receive()


class TellsByTheCall(FedProx):
    def participate(self, setting, client):
        calls.append(client)
        yield from client.send(float(len(calls)))
        yield from super().participate(setting, client)


class SendsDoubles(FedProx):
    def trained(self, *given):
        values, own = super().trained(*given)
        return {**values, "buffers": values["buffers"].double()}, own


class Untested(FedProx):
    shared_loss = "agreement"


class WeighsByNothing(FedProx):
    weighs_staleness = "lateness"


test_a_broken_method_is_named = naming(
    check_method,
    {
        PlansByTheCall: "equal plans",
        PlansUnknownWork: "work of",
        SendsMoreThanPlanned: "entries of update",
        SendsWhatIsNotPlanned: r"fields \[\], got \['extra'\]",
        ChangesWhatItWasSent: "change none of its arguments",
        DrawsGlobally: "PyTorch's global generator",
        DrawsGloballyInNumPy: "global random generators",
        RemembersInTheObject: "the same bits from training twice",
        MergesInPlace: "leave alone what was sent",
        NeedsEverybody: "any part of the cohort",
        MeasuresInSecret: "losses by prototype|finite losses",
        KeepsWhatNoFileHolds: "checkpoint|tensors, numbers",
        EvaluatesHalfAModel: "buffers in the model",
        NeverSends: "can be played; the story of .*: client 0 ends without send",
        TellsByTheCall: "a story told alike twice; client 0, round 1",
        SendsDoubles: "a real client may send; buffers: got 'float64'",
        Untested: "shared_loss",
        WeighsByNothing: "weighs_staleness",
    },
)


test_a_forgotten_option_is_named = naming(
    check_method, {ForgetsAnOption: "make again"}, extra=2.0
)


# ---- every key is read, or refused ---------------------------------------------------

KEYS = {
    "policy.reward.local_loss.credit": "as-printed",
    "policy.reward.local_loss.data": "batch",
    "policy.reward.local_loss.samples": 3,
    "compression.k": 7,
    "dataset.public_batch": 8,
    "distillation.temperature": 5.0,
    "training.momentum": 0.5,
}
"""Keys that learning looks at, at another value than `learned` has them."""

OPTIONS = {
    **{name: {"compress_logits": True} for name in ("fedmd", "kt-pfl")},
    "fedal": {"compress_logits": True, "server_steps": 2},
    "feddf": {"steps": 2, "check_every": 1, "batch_size": 4},
    # a linear model's embeddings, and so the nearest of their means, are not learned
    "fedproto": {"predict": "head"},
    "fedtgp": {"server_epochs": 1, "predict": "head"},
    "fedgen": {"server_steps": 2},
    "fedrep": {"head_epochs": 1},
}
"""Some compress only where they are told to, some take long."""


def learned(method, **changes):
    """Return what rounds of two clients whose policies learn come to, and whether
    anything is compressed.
    """
    plain = {
        "rounds": 3,
        "method": {"kind": method, **OPTIONS.get(method, {})},
        "dataset.public": tiny.public_of(method, 24),
        "prototypes.a.model": tiny.model_of(method),
        "training": {"batch_size": 8, "local_steps": 2},
        "policy": {"kind": "exp3", "mixing": 1.0},
        "policy.reward.local_loss.samples": 20,
        "compression.k": 40,
        "evaluation.every": 3,
    }
    scenario = worlds.world("tiny", {**plain, **changes})
    data = tiny.federation(scenario, side=28, train=120, test=8)
    work = HostedWorkload(scenario, Streams(0), data=data)
    compresses = bool(work.task(1, 0).plan.longest)
    outcomes = [
        repr(played.outcome) for played in plain_rounds(scenario, work, Streams(0))
    ]
    work.close()
    return outcomes, compresses


@pytest.mark.parametrize("method", registry("method").names())
def test_every_key_that_is_accepted_is_read(method):
    """What a policy is paid for needs something to choose: where nothing is compressed,
    no policy is asked.
    """
    plain, compresses = learned(method)
    unread = []
    for key, value in KEYS.items():
        asks = compresses or not key.startswith(("policy", "compression"))
        with suppress(InputError, InputErrors):
            if asks and learned(method, **{key: value})[0] == plain:
                unread.append(key)
    assert unread == []
