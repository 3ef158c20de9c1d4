"""A listening socket before which so many may stand who have not said who they are.

One more ends the oldest connection of its address, or of all. So whoever opens
connections and keeps silent shuts out nobody and takes no file of the run's: a client
says who it is within a way there and back, and whoever was dropped may come again. It
counts as the kernel hands connections over, before TLS, which the library `websockets`
does not see.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket

_MOST, _MOST_OF_ONE = 64, 16
"""Connections at a time: of all, and of one IPv4 address, or one IPv6 network of 64
bits, which is what one household or host is given."""


class Doorstep(socket.socket):
    """A listening socket that knows which of its connections are strangers'.

    `simfed.deploy.peers` makes one for each address of the server, and lets clients in.
    """

    def __init__(self, listener: socket.socket) -> None:
        """Take over a listening socket."""
        super().__init__(fileno=listener.detach())
        self._strangers: list[tuple[str, socket.socket]] = []
        """Oldest first: where each is from."""

    @property
    def strangers(self) -> int:
        """The number of open connections whose other end has not said who it is."""
        return sum(other.fileno() >= 0 for _, other in self._strangers)

    def accept(self) -> tuple[socket.socket, tuple[object, ...]]:
        """Return the next connection, for which an older one may have to make room."""
        stranger, address = super().accept()
        origin = find_origin(str(address[0]))
        self.let_in(-1)
        near = [other for place, other in self._strangers if place == origin]
        if len(near) >= _MOST_OF_ONE:
            self._end(near[0])
        elif len(self._strangers) >= _MOST:
            self._end(self._strangers[0][1])
        self._strangers.append((origin, stranger))
        return stranger, address

    def let_in(self, descriptor: int) -> None:
        """Forget the connection with this descriptor, and those that have ended.

        Args:
            descriptor: of a connection whose other end has said who it is; -1: of none.
        """
        known = -1, descriptor
        self._strangers = [
            one for one in self._strangers if one[1].fileno() not in known
        ]

    def end_all(self) -> None:
        """End the connections of all strangers."""
        for _, stranger in self._strangers:
            self._end(stranger)

    def _end(self, stranger: socket.socket) -> None:
        self._strangers = [one for one in self._strangers if one[1] is not stranger]
        with contextlib.suppress(OSError):  # whoever reads it closes it
            stranger.shutdown(socket.SHUT_RDWR)


def find_origin(address: str) -> str:
    """Return the address or network whose connections are counted together.

    >>> find_origin("2001:db8:1:2:3:4:5:6")
    '2001:db8:1:2::/64'
    >>> find_origin("::ffff:10.0.0.1"), find_origin("fe80::1%eth0")
    ('10.0.0.1', 'fe80::/64')
    """
    parsed = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, 64), strict=False))
