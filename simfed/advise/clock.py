"""The rule of thumb: how long a dense upload takes beside the rest of a round."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from simfed.advise.advice import Advice
from simfed.advise.candidates import give_codecs
from simfed.experiment.running import run
from simfed.ground.errors import InputError, InputErrors
from simfed.scenario import Scenario, load_scenario

ABOVE = 2.0
"""Dense upload seconds per second of the rest of a round, beyond which few entries
beat eight bits: read off kept rows, and tried on new ones in analysis/TUNED.md, where
it does not always stand."""
_ROUNDS = 20
"""Rounds from which times are read."""
_PHASES = ["downlink_s", "training_s", "compression_s", "waiting_s", "uplink_s"]
_PAIRS = (("DGC 1 %", "8 bit"), ("Top-K 3 %", "Top-K 10 %"))
"""Codecs for a slow uplink and for another; then for devices that do not know them."""


def measure_shares(path: Path, scenario: Scenario) -> list[float]:
    """Return each group's dense upload seconds over all other seconds of its rounds.

    They are played by the clock alone, over 20 rounds at most.

    Args:
        path: the scenario's file.
        scenario: as it was read from there.

    Returns:
        One share per group; NaN for one that took no part.

    Raises:
        InputError, InputErrors: the clock cannot be played without learning.
    """
    dense = give_codecs(scenario, ["dense"] * len(scenario.clients))
    shorter = {**dense.changes, "rounds": min(scenario.rounds, _ROUNDS)}
    made = load_scenario(path, shorter, allow_plugins=True)
    played = run(made, source=path, time_only=True, progress=False).participations
    groups = pd.Series(scenario.group_of_client()[played["client"]], played.index)
    spent = played[_PHASES].groupby(groups).sum()
    shares = spent["uplink_s"] / (spent.sum(axis=1) - spent["uplink_s"])
    return list(shares.reindex(range(len(scenario.clients))))


def advise_by_clock(path: str | Path, *, allow_plugins: bool = False) -> Advice:
    """Return what a rule of thumb says of a scenario, without learning anything.

    A group whose dense upload takes more than twice as long as the rest of its rounds
    sends DGC at 1 %, another 8 bits, with momentum at the server where the method is
    plain averaging and nobody sends DGC, which has its own. Where devices' profiles
    know neither, it is Top-K at 3 % and at 10 %.

    Args:
        path: the scenario's file.
        allow_plugins: as in `simfed.load_scenario`.

    Raises:
        InputError, InputErrors: the scenario is wrong, cannot be played by the clock
            alone, or can send none of these.
    """
    path = Path(path)
    scenario = load_scenario(path, allow_plugins=allow_plugins)
    shares = measure_shares(path, scenario)
    momentum = scenario.method.kind == "fedavg" and max(shares) <= ABOVE
    told = ", ".join(f"clients[{i}] {share:.2g}" for i, share in enumerate(shares))
    reasons = [f"a dense upload over the rest of a round, by the clock alone: {told}"]
    for slow, other in _PAIRS:
        names = [slow if share > ABOVE else other for share in shares]
        candidate = give_codecs(scenario, names, momentum=momentum)
        try:
            candidate.apply(path)
            break
        except (InputError, InputErrors) as error:
            if slow == _PAIRS[-1][0]:
                raise
            refused = str(error).partition("\n")[0]
            reasons.append(f"not {candidate.name}: {refused}")
    return Advice(path, candidate, reasons)
