"""Federated averaging of one model (McMahan et al. 2017)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from typing_extensions import override

from simfed.ground.method import Arrival, Values
from simfed.learn.methods.averaging import Averaging, compute_shares, merge_models

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

    shares_add_up = False
    mixes_prototypes = False
    moves_point = True
    two_levels = True
    privacy = ("client", "sample")

    @override
    def shares(self, arrivals: Sequence[Arrival]) -> Mapping[str, Sequence[float]]:
        parts = compute_shares([arrival.who.samples for arrival in arrivals])
        damped = [a.weight * part for a, part in zip(arrivals, parts, strict=True)]
        return {"update": damped, "buffers": parts}

    @override
    def merged(
        self, kit: Kit, before: Values, arrivals: Sequence[Arrival], round: int
    ) -> Values:
        sizes = [arrival.who.samples for arrival in arrivals]
        factors = [-arrival.weight for arrival in arrivals]
        return merge_models(kit, before, arrivals, sizes, factors)
