"""FedOpt (Reddi et al. 2021): the mean change of the clients as a gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typing_extensions import override

from simfed.ground.method import Arrival, State, Values
from simfed.ground.registry import Only
from simfed.learn.methods.averaging import Averaging, moved
from simfed.learn.methods.options import ABOVE_ZERO, BELOW_ONE

if TYPE_CHECKING:
    from simfed.learn.kit import Kit

_RATES = {"momentum": 1.0, "adagrad": 0.03, "adam": 0.01, "yogi": 0.01}
_BETA1 = {"momentum": 0.9, "adagrad": 0.0, "adam": 0.9, "yogi": 0.9}


@dataclass(frozen=True)
class FedOpt(Averaging):
    """Federated averaging with an optimiser at the server.

    It steps along the mean change Δ.

    Per prototype, Δ is the mean of (what a client made of w) − w, weighted by samples.
    `momentum`: m ← β₁·m + Δ, w ← w + η·m. The others: m ← β₁·m + (1 − β₁)·Δ, w ← w +
    η·m/(√v + τ), with v ← v + Δ² (adagrad), β₂·v + (1 − β₂)·Δ² (adam), v − (1 −
    β₂)·Δ²·sign(v − Δ²) (yogi). Moments begin as m = 0 and v = τ², and are not corrected
    for their beginning, as the paper's are not. They are the server's alone: clients
    send and keep what they do with fedprox.

    Left open there: which rates fit; the defaults here did on 10,000 MNIST images
    (docs/methods.md), and adagrad goes without β₁, as in the paper's experiments.
    Running statistics are averaged without an optimiser. A prototype without an arrival
    keeps its weights and moments.

    The gain of a reward is that of the cross-entropy on the client's own data (local)
    alone. Source: S. Reddi et al., "Adaptive Federated Optimization", 2021.
    """

    two_levels = True

    optimizer: Annotated[
        Literal["momentum", "adagrad", "adam", "yogi"], "what the server steps with"
    ] = "adam"
    server_rate: Annotated[
        float | None,
        ABOVE_ZERO,
        "η of the server; if omitted 1 (momentum), 0.03 (adagrad) or 0.01",
    ] = None
    beta1: Annotated[
        float | None, BELOW_ONE, "memory of the mean; if omitted 0.9, with adagrad 0"
    ] = None
    beta2: Annotated[
        float, BELOW_ONE, Only("optimizer", "adam", "yogi"), "memory of the squares"
    ] = 0.99
    tau: Annotated[
        float,
        ABOVE_ZERO,
        Only("optimizer", "adagrad", "adam", "yogi"),
        "added to the root of the squares: less is more adaptive",
    ] = 1e-3
    privacy = ("client", "sample")

    @property
    def momentum(self) -> float:
        """β₁, the memory of the mean change."""
        return _BETA1[self.optimizer] if self.beta1 is None else self.beta1

    @override
    def begin(self, kit: Kit) -> State:
        server = {}
        for name, model in super().begin(kit).items():
            zeros = model["weights"] * 0
            server[name] = {**model, "mean": zeros, "square": zeros + self.tau**2}
        return server

    @override
    def merged(
        self, kit: Kit, before: Values, arrivals: Sequence[Arrival], round: int
    ) -> Values:
        mean = moved(before, arrivals)
        stepped = self._step(before, mean["weights"] - before["weights"])
        return {**stepped, "buffers": mean["buffers"]}

    def _step(self, before: Values, change: Any) -> Values:
        """Return weights and moments after one step of the server's optimiser.

        Args:
            before: the prototype's state, its moments as long as the weights.
            change: (d,) the mean change of the weights, in place of a negative
                gradient.
        """
        beta1 = self.momentum
        rate = _RATES[self.optimizer] if self.server_rate is None else self.server_rate
        square = before["square"]
        if self.optimizer == "momentum":
            mean = beta1 * before["mean"] + change
            return {
                "weights": before["weights"] + rate * mean,
                "mean": mean,
                "square": square,
            }
        mean = beta1 * before["mean"] + (1 - beta1) * change
        seen = change * change
        if self.optimizer == "adagrad":
            square = square + seen
        elif self.optimizer == "adam":
            square = self.beta2 * square + (1 - self.beta2) * seen
        else:
            square = square - (1 - self.beta2) * seen * (square - seen).sign()
        weights = before["weights"] + rate * mean / (square.sqrt() + self.tau)
        return {"weights": weights, "mean": mean, "square": square}
