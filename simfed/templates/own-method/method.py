"""A method of your own: a frozen dataclass of options with plain functions.

`plan` says what a participation is, from facts alone, so the clock needs no tensors.
`train` is what a client makes of what arrives, `merge` what the server makes of what
comes back; both take state in and give state out. Check it with
`simfed.testing.check_method(HalfStep)`.
"""

from dataclasses import dataclass
from typing import Annotated

from typing_extensions import override

import simfed
from simfed.ground.errors import InputError
from simfed.ground.method import Field, Method, Plan
from simfed.learn.methods.averaging import by_prototype
from simfed.learn.methods.fields import model_down


@dataclass(frozen=True)
class HalfStep(Method):
    """Federated averaging whose server goes only a share of the way."""

    share: Annotated[float, "of the mean update that the server takes"] = 0.5

    def __post_init__(self):
        if not 0 < self.share <= 1:
            raise InputError(
                "a number above 0, at most 1", where="share", got=self.share
            )

    @override
    def plan(self, setting, who, round):
        update = Field("update", who.parameters, compressed=True)
        return Plan(model_down(who.size), [setting.training(who)], {"update": update})

    @override
    def begin(self, kit):
        return {name: kit.initial(name) for name in kit.prototypes}

    @override
    def send(self, server, who, round):
        return server[who.prototype]

    @override
    def train(self, kit, who, round, down, own):
        after, _loss = kit.descend(who, round, down)
        return {"update": after["weights"] - down["weights"]}, own

    @override
    def merge(self, kit, server, arrivals, round):
        after = dict(server)
        for name, mine in by_prototype(arrivals).items():
            whole = sum(arrival.weight for arrival in mine)
            mean = (
                sum(arrival.weight * arrival.values["update"] for arrival in mine)
                / whole
            )
            weights = server[name]["weights"] + self.share * mean
            after[name] = {**server[name], "weights": weights}
        return after, {}

    @override
    def model(self, server, own, who):
        return server[who.prototype]


simfed.register("method", "half-step", HalfStep)
