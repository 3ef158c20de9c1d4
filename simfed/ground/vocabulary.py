"""Words and facts that several rooms share: each stands here once."""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple, get_args

RELEVANT_RATIO = 1.05
"""A ratio of two times below this counts as no difference in a verdict."""

OUTCOMES = ("aggregated", "late", "dropped", "failed")
"""The outcomes of a participation."""

Reason = Literal["warm-up", "explore", "exploit", "fixed", "forced"]
CHOICES: tuple[Reason, ...] = get_args(Reason)
"""The reasons why an arm was chosen."""

IndexCode = Literal["ideal", "fixed", "rice", "seeded"]
INDEX_CODES: tuple[IndexCode, ...] = get_args(IndexCode)
"""The formats of the indices of a payload's entries."""


class LinkUse(NamedTuple):
    """The constant use of one link over one interval.

    Its flows and its capacity stay the same in it. A row of `links.parquet`: the
    annotations are its schema and the meanings of its columns.
    """

    link: Annotated[str, "its name in the topology"]
    from_s: Annotated[float, "instant"]
    to_s: Annotated[float, "instant"]
    bytes: Annotated[float, "moved in the interval"]
    capacity_bytes_per_s: Annotated[float, "of the link in the interval"]
    flows: Annotated[int, "transfers on the link in the interval"]
    airtime_s: Annotated[
        float | None,
        (
            "of a cell: time on the air; the capacity is then that of this mix of "
            "clients"
        ),
    ] = None
