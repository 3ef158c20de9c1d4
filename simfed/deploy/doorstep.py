"""Connections whose other end has not said who it is: so many at a time, and of one address fewer.

One more than that ends the oldest one of its address, or of all. So whoever opens connections and
keeps silent shuts out nobody: a client says who it is within a way there and back, and whoever was
dropped may come again.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Doorstep:
    """most: connections at a time; most_of_one: of one IPv4 address, or one IPv6 network of 64
    bits, which is what one household or host is given."""

    def __init__(self, most: int, most_of_one: int) -> None:
        self._most, self._most_of_one = most, most_of_one
        self._strangers: dict[object, tuple[str, Callable[[], object]]] = {}
        """Oldest first: where each is from, and what ends it."""

    def __len__(self) -> int:
        return len(self._strangers)

    @contextmanager
    def hold(self, address: str, end: Callable[[], object]) -> Iterator[None]:
        """While a connection from `address` has not said who it is; `end` is called should it have
        to make room."""
        origin, stranger = _find_origin(address), object()
        neighbours = [other for other, (place, _) in self._strangers.items() if place == origin]
        if len(neighbours) >= self._most_of_one:
            self._end(neighbours[0])
        elif len(self) >= self._most:
            self.end_oldest()
        self._strangers[stranger] = origin, end
        try:
            yield
        finally:
            self._strangers.pop(stranger, None)

    def end_oldest(self) -> None:
        """Make room, if anybody is there."""
        if self._strangers:
            self._end(next(iter(self._strangers)))

    def _end(self, stranger: object) -> None:
        _, end = self._strangers.pop(stranger)
        end()


def _find_origin(address: str) -> str:
    """The address or network whose connections are counted together.

    >>> [_find_origin(a) for a in ("2001:db8:1:2:3:4:5:6", "::ffff:10.0.0.1", "fe80::1%eth0")]
    ['2001:db8:1:2::/64', '10.0.0.1', 'fe80::/64']
    """
    parsed = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, 64), strict=False))
