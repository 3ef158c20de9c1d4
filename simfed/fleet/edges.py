"""Where edge servers are, which clients are theirs, and what they work with."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simfed.device import Device
from simfed.ground.strikes import Strikes


class EdgeServer(NamedTuple):
    """A server between its clients and the cloud."""

    name: str
    """Of its node."""
    clients: NDArray[np.int64]
    """Their ids, ascending."""
    device: Device | None = None
    """None: its work takes no time."""
    strikes: Strikes | None = None
    """When it goes down; None: never."""
