"""The steps of link capacities in a finished run, from its directory.

Tables record what links carried. What they could have carried while they were idle is
worked out here from the scenario, for the pictures of `simfed.report`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from simfed.experiment.assembly import load_parts
from simfed.ground.errors import InputError, InputErrors
from simfed.record.read import Run

if TYPE_CHECKING:
    from simfed.net.traces import LinkTrace

_MOST_STEPS = 100_000
"""The most steps of one link's capacity that a picture is given."""


def capacities_of(
    run: Run, path: str | Path
) -> dict[str, tuple[list[float], list[float]]]:
    """Return (instants, bytes/s from then on) of each link whose capacity varies.

    Airtime is left out: its bytes/s also depend on who sends.

    Args:
        run: a finished run.
        path: its directory, whose scenario names the traces; tables record no capacity
            while a link is idle.

    Returns:
        Name of a link → instants in simulated seconds, from 0 on, and as many rates.
        Empty
        where no capacity varies, and where the traces are missing.
    """
    end_s = float(run.rounds["finished_at_s"].max()) if len(run.rounds) else 0.0
    try:
        topology = load_parts(run, path).topology
        recorded = run.links["link"].unique()
    except (InputError, InputErrors):
        return {}
    wires = 2 * topology.clients + len(topology.lines)
    names = {topology.link_name(k): k for k in range(wires)}
    capacities = {}
    for name in recorded:
        link = (
            topology.traces[names[name]] if names.get(name) in topology.traces else None
        )
        if link is not None:
            capacities[str(name)] = _list_steps(link, end_s)
    return capacities


def _list_steps(link: LinkTrace, end_s: float) -> tuple[list[float], list[float]]:
    """Return the steps of a trace: instants before `end_s`, bytes/s from each on.

    There are at most `_MOST_STEPS`; a picture could not show more.
    """
    moment = link.trace.moment(link.offset_s)
    at_s, rates = [0.0], [link.trace.rate_bytes_per_s(moment)]
    while len(at_s) < _MOST_STEPS:
        after, from_s = link.trace.next_moment(moment)
        if after is None or from_s - link.offset_s >= end_s:
            break
        moment = after
        at_s.append(max(0.0, from_s - link.offset_s))
        rates.append(link.trace.rate_bytes_per_s(moment))
    return at_s, rates
