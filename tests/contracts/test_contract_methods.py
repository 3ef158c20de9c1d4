"""Every registered method keeps the contract; the check notices those that do not."""

import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Annotated

import engine_worlds as tiny
import numpy as np
import pytest
import torch

from simfed import InputError
from simfed.ground import Field, Streams, Work
from simfed.ground.registry import registry
from simfed.learn import HostedWorkload, plain_rounds
from simfed.learn.methods.fedmd import FedMD
from simfed.learn.methods.fedprox import FedProx
from simfed.learn.methods.local_only import LocalOnly
from simfed.scenario import Scenario
from simfed.testing import check_method

OPTIONS = {
    "fedmd": {"compress_logits": True},
    "feddf": {"steps": 3, "check_every": 2, "batch_size": 4},
}
"""Where the defaults take long, or leave something out."""


@pytest.mark.parametrize("name", registry("method").names())
def test_registered_method_keeps_the_contract(name):
    check_method(registry("method").get(name), **OPTIONS.get(name, {}))


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
        calls.append(who.client)
        plan = super().plan(setting, who, round)
        return replace(
            plan, work=[*plan.work, Work("inference", who.model, len(calls))]
        )


class PlansUnknownWork(FedProx):
    def plan(self, setting, who, round):
        plan = super().plan(setting, who, round)
        return replace(plan, work=[Work("auxiliary", "mystery", 8)])


class SendsMoreThanPlanned(FedProx):
    def plan(self, setting, who, round):
        plan = super().plan(setting, who, round)
        return replace(
            plan, up={**plan.up, "update": Field("update", who.parameters - 1)}
        )


class SendsWhatIsNotPlanned(LocalOnly):
    def train(self, kit, who, round, down, own):
        values, own = super().train(kit, who, round, down, own)
        return {**values, "extra": torch.zeros(1)}, own


class ChangesWhatItWasSent(FedProx):
    def train(self, kit, who, round, down, own):
        values, own = super().train(kit, who, round, down, own)
        down["weights"].add_(1)
        return values, own


class DrawsGlobally(FedProx):
    def train(self, kit, who, round, down, own):
        values, own = super().train(kit, who, round, down, own)
        return {**values, "update": values["update"] + torch.rand(1)}, own


class DrawsGloballyInNumPy(FedProx):
    def begin(self, kit):
        np.random.rand()  # noqa: NPY002
        return super().begin(kit)


class RemembersInTheObject(FedProx):
    def train(self, kit, who, round, down, own):
        values, own = super().train(kit, who, round, down, own)
        seen = self.__dict__.setdefault("seen", [])
        seen.append(who.client)
        return {**values, "update": values["update"] * len(seen)}, own


class MergesInPlace(FedProx):
    def merge(self, kit, server, arrivals, round):
        for arrival in arrivals:
            server[arrival.who.prototype]["weights"].sub_(arrival.values["update"])
        return server, {}


class NeedsEverybody(FedMD):
    def merge(self, kit, server, arrivals, round):
        merged, losses = super().merge(kit, server, arrivals, round)
        return merged, {name: losses[name] for name in kit.prototypes}


class MeasuresInSecret(FedProx):
    def merge(self, kit, server, arrivals, round):
        return super().merge(kit, server, arrivals, round)[0], {"checked": {"x": 1.0}}


class KeepsWhatNoFileHolds(LocalOnly):
    def train(self, kit, who, round, down, own):
        values, own = super().train(kit, who, round, down, own)
        return values, {**own, "when": {1, 2}}


class EvaluatesHalfAModel(FedProx):
    def model(self, server, own, who):
        return {"weights": super().model(server, own, who)["weights"]}


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
        calls.append(client.who.client)
        yield from client.send(float(len(calls)))
        yield from super().participate(setting, client)


class SendsDoubles(FedProx):
    def trained(self, kit, who, round, down, own, after):
        values, own = super().trained(kit, who, round, down, own, after)
        return {**values, "buffers": values["buffers"].double()}, own


class Untested(FedProx):
    shared_loss = "agreement"


class WeighsByNothing(FedProx):
    weighs_staleness = "lateness"


@pytest.mark.parametrize(
    ("cls", "options", "complaint"),
    [
        (PlansByTheCall, {}, "equal plans"),
        (PlansUnknownWork, {}, "work of"),
        (SendsMoreThanPlanned, {}, "entries of update"),
        (SendsWhatIsNotPlanned, {}, r"fields \[\], got \['extra'\]"),
        (ChangesWhatItWasSent, {}, "change none of its arguments"),
        (DrawsGlobally, {}, "PyTorch's global generator"),
        (DrawsGloballyInNumPy, {}, "global random generators"),
        (RemembersInTheObject, {}, "the same bits from training twice"),
        (MergesInPlace, {}, "leave alone what was sent"),
        (NeedsEverybody, {}, "any part of the cohort"),
        (MeasuresInSecret, {}, "losses by prototype|finite losses"),
        (KeepsWhatNoFileHolds, {}, "checkpoint|tensors, numbers"),
        (EvaluatesHalfAModel, {}, "buffers in the model"),
        (ForgetsAnOption, {"extra": 2.0}, "make again"),
        (NeverSends, {}, "can be played; the story of .*: client 0 ends without send"),
        (TellsByTheCall, {}, "a story told alike twice; client 0, round 1"),
        (SendsDoubles, {}, "a real client may send; buffers: got 'float64'"),
        (Untested, {}, "shared_loss"),
        (WeighsByNothing, {}, "weighs_staleness"),
    ],
)
def test_a_broken_method_is_noticed(cls, options, complaint):
    with pytest.raises(AssertionError, match=complaint):
        check_method(cls, **options)


# ---- every key is read, or refused ---------------------------------------------------

KEYS = {
    "credit": {"policy": {"local_loss": {"credit": "as-printed", "samples": 20}}},
    "data": {"policy": {"local_loss": {"data": "batch"}}},
    "samples": {"policy": {"local_loss": {"samples": 3}}},
    "public_batch": {"dataset": {"public_batch": 8}},
    "distillation": {"distillation": {"temperature": 5.0}},
    "momentum": {"training": {"momentum": 0.5}},
    "k": {"compression": {"k": 7}},
}
"""Keys that learning looks at, at another value than `plain_world` has them."""


def plain_world(method, changes=None):
    """Two rounds of two clients whose policies learn; None where a key is refused."""
    changes = changes or {}
    public = {"public": 24} if registry("method").get(method).needs_public else {}
    reward = {"local_loss": {"samples": 20}} | changes.get("policy", {})
    try:
        return Scenario.model_validate(
            {
                "name": "keys",
                "rounds": 3,
                "method": {"kind": method, **OPTIONS_HERE.get(method, {})},
                "dataset": {
                    "name": "mnist-mini",
                    **public,
                    **changes.get("dataset", {}),
                },
                "prototypes": {"only": {"model": tiny.model_of(method)}},
                "clients": [{"count": 2, "prototype": "only", "device": "any"}],
                "training": {
                    "batch_size": 8,
                    "local_steps": 2,
                    **changes.get("training", {}),
                },
                "policy": {"kind": "exp3", "mixing": 1.0, "reward": reward},
                "compression": {"k": 40, **changes.get("compression", {})},
                "evaluation": {"every": 3},
                **{
                    name: value
                    for name, value in changes.items()
                    if name == "distillation"
                },
            }
        )
    except ValueError:
        return None


OPTIONS_HERE = {
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


def learned(scenario):
    """What its rounds came to, and whether anything was compressed."""
    data = tiny.federation(scenario, side=28, train=120, test=8)
    work = HostedWorkload(scenario, Streams(0), data=data)
    compresses = bool(work.task(1, 0).plan.longest)
    outcomes = [
        repr(played.outcome) for played in plain_rounds(scenario, work, Streams(0))
    ]
    work.close()
    return outcomes, compresses


@pytest.mark.parametrize("method", sorted(registry("method").names()))
def test_every_key_that_is_accepted_is_read(method):
    """What a policy is paid for needs something to choose: where nothing is compressed,
    no policy is asked.
    """
    plain, compresses = learned(plain_world(method))
    unread = []
    for key, changes in KEYS.items():
        changed = plain_world(method, changes)
        asks = key not in ("credit", "data", "samples", "k") or compresses
        with suppress(InputError):  # refused where it is to be learned
            if changed is not None and asks and learned(changed)[0] == plain:
                unread.append(key)
    assert unread == []
