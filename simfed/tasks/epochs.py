"""Partial work: passes over a client's data that are drawn for each participation."""

from __future__ import annotations

import numpy as np

from simfed.ground.distributions import Law, UniformLaw
from simfed.ground.seeding import Streams
from simfed.scenario import Scenario
from simfed.schema.distribution import EPOCHS, Distribution


class LocalEpochs:
    """The `local_epochs` of client groups: a number, or a law of which it is drawn.

    A draw hangs on the seed, the client and the participation alone, so the clock and
    learning each make it for themselves and agree.
    """

    def __init__(self, scenario: Scenario, streams: Streams) -> None:
        self._streams = streams
        self._groups = [_read(group.local_epochs) for group in scenario.clients]
        self._group_of = scenario.group_of_client() if any(self._groups) else None

    def draw(self, client: int, key: int | str) -> int | None:
        """Return the passes of a client's participation of this key.

        Args:
            client: its id.
            key: `make_key` of round and turn, which tells participations apart.

        Returns:
            At least 1; None where its group does not say, and the scenario's `training`
            counts.
        """
        if self._group_of is None:
            return None
        found = self._groups[self._group_of[client]]
        if found is None or isinstance(found, int):
            return found
        u = self._streams("epochs", client, key).random(1)
        value = float(found.quantile(np.clip(u, 1e-12, 1 - 1e-12))[0])
        return max(1, round(value))


def _read(written: int | Distribution | None) -> int | Law | None:
    """Return a group's `local_epochs` as a number or as a law to draw from."""
    if not isinstance(written, Distribution):
        return written
    law = written.law(EPOCHS)
    if isinstance(law, UniformLaw):  # each whole number as likely as any other
        return UniformLaw(law.low - 0.5, law.high + 0.5)
    return law
