"""Federated averaging of one model (McMahan et al. 2017)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import override

from simfed.ground.method import Arrival, Losses, State
from simfed.learn.methods.averaging import (
    Averaging,
    by_prototype,
    compute_shares,
    merge_models,
)

if TYPE_CHECKING:
    from simfed.learn.kit import Kit


@dataclass(frozen=True)
class FedAvg(Averaging):
    """Federated averaging, weighted by clients' samples.

    Clients train the server's model on their own data and send what that changed.

    The server averages over the participants, weighted by how many samples they own.

    The gain of a reward is that of the cross-entropy on the client's own data (local)
    alone. Source: McMahan et al., "Communication-Efficient Learning of Deep Networks
    from Decentralized Data", 2017.
    """

    shares_add_up: ClassVar[bool] = False
    mixes_prototypes: ClassVar[bool] = False
    moves_point: ClassVar[bool] = True
    two_levels: ClassVar[bool] = True
    privacy: ClassVar[tuple[str, ...]] = ("client", "sample")

    @override
    def shares(self, arrivals: Sequence[Arrival]) -> Mapping[str, Sequence[float]]:
        parts = compute_shares([arrival.who.samples for arrival in arrivals])
        damped = [a.weight * part for a, part in zip(arrivals, parts, strict=True)]
        return {"update": damped, "buffers": parts}

    @override
    def merge(
        self, kit: Kit, server: State, arrivals: Sequence[Arrival], round: int
    ) -> tuple[State, Losses]:
        after = dict(server)
        for name, mine in by_prototype(arrivals).items():
            sizes = [arrival.who.samples for arrival in mine]
            after[name] = merge_models(
                kit, server[name], mine, sizes, [-a.weight for a in mine]
            )
        return after, {}
