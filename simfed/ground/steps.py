"""What a participation is made of: steps on nodes, in plain data.

A step is a transfer from one node to another, or work on a node. Steps say nothing of links,
processors or instants: a world (`simfed.sim.world`) carries them out. They are shared by all
participations alike, so nothing may be written into one.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from simfed.ground.method import Work

__all__ = ["CLIENT", "DOWNLOAD", "SERVER", "UPLOAD", "Do", "Node", "Send", "Step"]

Node = Literal["client", "server"]
"""Where a step is: the client that takes part, or the server."""

CLIENT: Node = "client"
SERVER: Node = "server"


class Send(NamedTuple):
    """A transfer. Its size stands with the participation: what its task says travels down, or what
    its contribution comes to."""

    source: Node
    target: Node
    phase: str
    """Kind of its span."""


class Do(NamedTuple):
    """Work on a node."""

    node: Node
    work: Work
    phase: str
    """Kind of its span."""


Step = Send | Do

DOWNLOAD = Send(SERVER, CLIENT, "download")
UPLOAD = Send(CLIENT, SERVER, "upload")
