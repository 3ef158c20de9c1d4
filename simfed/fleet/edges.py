"""Edge servers: their places, their clients, and their devices."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simfed.device import Device
from simfed.ground.strikes import Strikes


class EdgeServer(NamedTuple):
    """A server between its clients and the cloud."""

    name: str
    """The name of its node."""
    clients: NDArray[np.int64]
    """Their ids, ascending."""
    device: Device | None = None
    """None: its work takes no time."""
    strikes: Strikes | None = None
    """The strikes in which it is down; None: never."""
