"""Compression ratios by bandwidth: uploads take as long as the slowest client's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from simfed.compress.choice import Choice
from simfed.ground.registry import NameOf
from simfed.policy.base import Spent
from simfed.policy.clocked import Clocked


class Bcrs(Clocked):
    """Sets K in proportion to the client's uplink; a merge's slowest sends `base`.

    Bandwidth-aware compression ratio scheduling. The seconds that the slowest uplink of
    a merge needs for `base` entries are everybody's in it: a client whose uplink is n
    times as fast sends n·`base`, kept in [`least`, `most`]. Modelled is the schedule.
    The server tells each client how its last upload's rate compares with the slowest
    that it settled with it, latency included, where the source has bandwidths that are
    known beforehand: so a link that changes is met one participation late, and the
    first K is `base` for all.

    Ignored, as the source has it in the aggregation and not in the choice of a ratio:
    weights of clients that follow their ratios, and of entries that follow how many
    clients sent them. Work and downloads do not count: a client with a slow processor
    and a fast link sends as much as any with that link, and the round waits for it.

    Source: Tang et al., "Bandwidth-Aware and Overlap-Weighted Compression for
    Communication-Efficient Federated Learning", ICPP 2024.

    >>> policy = Bcrs(("top-k",), base=100, least=50, most=900)
    >>> import numpy as np
    >>> first = policy.pull(np.random.default_rng(0)); first
    Pull(arm='top-k', choice='fixed', probability=1.0, k=100)
    >>> spent = Spent(downlink_s=0, work_s=1, uplink_s=0.1, slack_s=0, pace=4)
    >>> policy.watch(first, spent)
    >>> policy.values()
    (400.0,)
    """

    compares_clients = True
    privacy = ("sample",)

    def __init__(
        self,
        arms: Sequence[Choice],
        reward_range: tuple[float, float] = (-1.0, 1.0),
        *,
        base: Annotated[
            int | str, "K of the slowest of a merge, or share of the model"
        ] = "1%",
        strategy: Annotated[str, NameOf("codec"), "the codec"] = "top-k",
        least: Annotated[int | str, "smallest K, or share of the model"] = "0.2%",
        most: Annotated[int | str, "largest K, or share of the model"] = "30%",
    ) -> None:
        super().__init__(arms, strategy, least, most)
        self._base = self._k = self._within.amount("base", base)

    def _next(self, k: float, spent: Spent) -> float:
        return self._base * spent.pace
