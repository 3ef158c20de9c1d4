"""The network part of a scenario: each client's link, and what they share."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from simfed.scenario.fields import Duration, Part, Rate

__all__ = ["Link", "Network", "ServerLink"]


class Link(Part):
    """A client's access link. Rates omitted are unlimited."""

    up: Rate | None = Field(default=None, description="uplink capacity, client to server")
    down: Rate | None = Field(default=None, description="downlink capacity, server to client")
    latency: Duration = Field(default=0.0, description="one-way delay of the access link")


class ServerLink(Part):
    """The server's own link, shared by everybody. Rates omitted are unlimited."""

    receive: Rate | None = None
    send: Rate | None = None
    latency: Duration = 0.0


class Network(Part):
    """How clients reach the server."""

    topology: Literal["star"] = "star"
    model: Literal["fluid"] = "fluid"
    server: ServerLink = ServerLink()
