"""Every registered method keeps the contract, and the check notices those that do not."""

import subprocess
import sys
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import pytest
import torch

from simfed.learn.methods.fedmd import FedMD
from simfed.learn.methods.fedprox import FedProx
from simfed.learn.methods.local_only import LocalOnly
from simfed.method import Field, Work
from simfed.registry import registry
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
        "import sys; from simfed.registry import registry as r;"
        "[r('method').get(name)() for name in r('method').names()];"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


calls = []


class PlansByTheCall(FedProx):
    def plan(self, setting, who, round):
        calls.append(who.client)
        plan = super().plan(setting, who, round)
        return plan._replace(work=[*plan.work, Work("inference", who.model, len(calls))])


class PlansUnknownWork(FedProx):
    def plan(self, setting, who, round):
        plan = super().plan(setting, who, round)
        return plan._replace(work=[Work("auxiliary", "mystery", 8)])


class SendsMoreThanPlanned(FedProx):
    def plan(self, setting, who, round):
        plan = super().plan(setting, who, round)
        return plan._replace(up={**plan.up, "update": Field("update", who.parameters - 1)})


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
        found, losses = super().merge(kit, server, arrivals, round)
        return found, {name: losses[name] for name in kit.prototypes}


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


class Untested(FedProx):
    shared_loss = "agreement"


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
        (Untested, {}, "shared_loss"),
    ],
)
def test_a_broken_method_is_noticed(cls, options, complaint):
    with pytest.raises(AssertionError, match=complaint):
        check_method(cls, **options)
