"""A policy that sets K by its client's clock: as much upload as there is time for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

from simfed.compress.choice import Choice
from simfed.ground.registry import NameOf
from simfed.policy.base import Spent, check_option
from simfed.policy.clocked import Clocked


class Balance(Clocked):
    """Sets K so that an upload takes a given share of the rest of the client's round.

    After a participation whose upload took u seconds, the rest of the round (download,
    local work, and waiting until the server had all that it waited for) r seconds, the
    next upload is to take `share`·r: K ← K·`share`·r/u, kept in [`least`, `most`]. A
    client behind a slow link then sends little and one behind a fast link much. Where
    nothing changes everybody's upload comes to `share` of the longest that anyone needs
    without an upload, whoever that is: clients on fast processors use the time for
    which the server waits for others.

    Nothing is learned from rewards, and nothing explored. It takes for granted that the
    seconds of an upload grow in proportion to K. With a latency l beside them K is
    still led to where both together take what they may, each step leaving l over that
    time of the distance; a link that is slower to answer than that leaves `least`. An
    outlier in one client's round shows in the next round of the others, as `share` of
    it. A server that does not wait for a cohort leaves no time to fill but that until
    the merge.

    The first K is the geometric middle. Participations that are lost, or forced to
    another arm, change nothing. `least` and `most` are two numbers of entries or two
    shares of the model. `values` has K itself, a share in per cent.

    >>> import numpy as np
    >>> policy = Balance(("top-k",), share=0.5, least=100, most=900)
    >>> first = policy.pull(np.random.default_rng(0)); first
    Pull(arm='top-k', choice='fixed', probability=1.0, k=300)
    >>> spent = Spent(downlink_s=0.1, work_s=0.2, uplink_s=0.1, slack_s=0.1)
    >>> policy.watch(first, spent)
    >>> policy.values()  # half of 0.4 s is twice as long as it took
    (600.0,)
    """

    privacy = ("sample",)

    def __init__(
        self,
        arms: Sequence[Choice],
        reward_range: tuple[float, float] = (-1.0, 1.0),
        *,
        share: Annotated[
            float, "seconds of upload per second of the rest of the round"
        ] = 0.3,
        strategy: Annotated[str, NameOf("codec"), "the codec"] = "top-k",
        least: Annotated[int | str, "smallest K, or share of the model"] = "0.2%",
        most: Annotated[int | str, "largest K, or share of the model"] = "30%",
    ) -> None:
        check_option("share", share, 0 < share < math.inf, "a number above 0")
        super().__init__(arms, strategy, least, most)
        self.share = share

    def _next(self, k: float, spent: Spent) -> float:
        may_s = self.share * (spent.downlink_s + spent.work_s + spent.slack_s)
        return k * (may_s / spent.uplink_s if spent.uplink_s > 0 else math.inf)
