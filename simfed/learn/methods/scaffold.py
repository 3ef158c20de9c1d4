"""SCAFFOLD (Karimireddy et al. 2020): local steps corrected by control variates.

The steps themselves are the kit's (`LocalSteps.drift`); here is what becomes of c and
c_i, also where an upload is lost (`without`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from typing_extensions import override

from simfed.ground.method import (
    Arrival,
    Field,
    LocalSteps,
    Plan,
    Setting,
    State,
    Values,
    Who,
)
from simfed.learn.methods.averaging import Averaging, compute_shares
from simfed.learn.methods.fields import model_down, update_up
from simfed.learn.methods.options import ABOVE_ZERO

if TYPE_CHECKING:
    from simfed.learn.kit import Kit


@dataclass(frozen=True)
class Scaffold(Averaging):
    """Federated averaging with control variates: every local step descends g − c_i + c.

    Down travel the weights and the server's c, up the change of the weights and that of
    c_i, each as long as the model. A client keeps c_i, 0 at first, which becomes c_i −
    c + (w − w_i)/(K·η) after its K steps (option II of the paper). The server moves by
    η_g times the plain mean of the changes, and c by the sum of the changes of c_i over
    the number N_p of the prototype's clients, so that c stays the mean of all c_i. Each
    prototype has a c of its own.

    Under compression c_i follows what travelled, not what was meant, or c would no
    longer be the mean of the c_i. What was left out of Δc_i is in the next one by
    itself: it has no residual. The update has one, as everywhere. A late update is
    weighed by the server mode; a late Δc_i counts in full, since the client has moved
    its c_i already. K·η supposes plain steps: with momentum or Adam, c_i would not be a
    gradient, and they are refused.

    The gain of a reward is that of the cross-entropy on the client's own data (local)
    alone. Source: S. P. Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging
    for Federated Learning", 2020.
    """

    privacy = ("sample",)
    two_levels = True
    weighs_samples = False
    plain_steps = True

    server_rate: Annotated[
        float, ABOVE_ZERO, "η_g, on the mean change of the weights"
    ] = 1.0

    @override
    def plan(self, setting: Setting, who: Who, round: int) -> Plan:
        down = {**model_down(who.size), "control": Field("control", who.parameters)}
        # as the update's: each entry belongs to one weight
        layers = who.size.shapes or None
        change = Field(
            "control", who.parameters, compressed=True, feedback=False, layout=layers
        )
        return Plan(
            down, (setting.training(who),), {**update_up(who.size), "control": change}
        )

    @override
    def begin(self, kit: Kit) -> State:
        return {
            name: {**model, "control": model["weights"] * 0}
            for name, model in super().begin(kit).items()
        }

    @override
    def begin_client(self, kit: Kit, who: Who) -> State:
        return {"control": kit.initial(who.prototype)["weights"] * 0}

    @override
    def send(self, server: State, who: Who, round: int) -> Values:
        state: Values = server[who.prototype]
        return state

    @override
    def local_steps(
        self, kit: Kit, who: Who, round: int, down: Values, own: State
    ) -> LocalSteps:
        return LocalSteps(down, drift=down["control"] - own["control"])

    @override
    def trained(
        self, kit: Kit, who: Who, round: int, down: Values, own: State, after: Values
    ) -> tuple[Values, State]:
        update = down["weights"] - after["weights"]
        length = kit.setting.steps(who) * kit.rate(round)
        control = update / length - down["control"]
        return {"update": update, "buffers": after["buffers"], "control": control}, own

    @override
    def sent(self, own: State, values: Values) -> State:
        return {"control": own["control"] + values["control"]}

    @override
    def without(self, own: State, left: State, before: State) -> State:
        return {"control": own["control"] - left["control"] + before["control"]}

    @override
    def shares(self, arrivals: Sequence[Arrival]) -> Mapping[str, Sequence[float]]:
        parts = compute_shares([arrival.weight for arrival in arrivals])
        return {"update": parts, "buffers": parts, "control": [1.0] * len(arrivals)}

    @override
    def merged(
        self, kit: Kit, before: Values, arrivals: Sequence[Arrival], round: int
    ) -> Values:
        from simfed.learn.kit import mean_of

        weights = [arrival.weight * arrival.uploads for arrival in arrivals]
        mean = mean_of([arrival.values for arrival in arrivals], weights)
        change = sum(arrival.values["control"] for arrival in arrivals)
        return {
            "weights": before["weights"] - self.server_rate * mean["update"],
            "buffers": mean["buffers"],
            "control": before["control"] + change / arrivals[0].who.size.clients,
        }
