"""Uses of links, kept as columns of numbers.

There are several per transfer, so an object each would cost too much, and whoever
records them wants columns.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from simfed.ground.arrays import Floats
from simfed.ground.vocabulary import LinkUse

_EACH = 7
"""Numbers of a use: link, from and to on the network's clock, bytes, capacity, flows,
airtime."""

_BLOCK = 4096
"""Uses that become objects at once."""

NO_AIR = -1.0
"""The airtime of a link that is no cell's."""


class LinkUses:
    """A list of `LinkUse`, in columns.

    Given to a `Network` as its `on_use`, it is filled.

    >>> import simpy
    >>> from simfed.net import Network, Star
    >>> env, uses = simpy.Environment(), LinkUses()
    >>> network = Network(env, Star(1, up_bytes_per_s=4.0), on_use=uses)
    >>> env.run(network.send(0, 30.0))
    7.5
    >>> [(use.link, use.from_s, use.to_s, use.bytes) for use in uses]
    [('client-0/up', 0.0, 7.5, 30.0)]
    """

    __slots__ = ("_epochs", "_name_by_number", "_named", "_numbers")

    def __init__(self) -> None:
        self._name_by_number: Callable[[int], str] | None = None
        self._named: dict[str, int] = {}
        """The numbers, below 0, of links that came with their names."""
        self._numbers = array("d")
        self._epochs: list[tuple[int, float]] = []
        """(first number, the instant at which its clock began), wherever that
        changes."""

    def __len__(self) -> int:
        return len(self._numbers) // _EACH

    def __iter__(self) -> Iterator[LinkUse]:
        for columns in self.blocks():
            yield from map(LinkUse, *columns)

    def names_by(self, name_of: Callable[[int], str]) -> None:
        """Let `name_of` name links by their numbers from now on.

        An example is `Topology.link_name`.
        """
        self._name_by_number = name_of

    def name_of(self, link: int) -> str:
        """Return a link's name by its number."""
        if link < 0:
            return list(self._named)[-1 - link]
        assert self._name_by_number is not None
        return self._name_by_number(link)

    def append(self, use: LinkUse) -> None:
        """Add one use of a link that is named rather than numbered."""
        link = self._named.setdefault(use.link, -1 - len(self._named))
        airtime_s = NO_AIR if use.airtime_s is None else use.airtime_s
        self.add((link, *use[1:6], airtime_s), 0.0)

    def add(self, numbers: Sequence[float], epoch_s: float) -> None:
        """Add uses, each as seven numbers.

        They are link, from and to (s since `epoch_s`), bytes, capacity (bytes/s),
        flows, seconds of airtime (`NO_AIR`: a wire).
        """
        if not self._epochs or self._epochs[-1][1] != epoch_s:
            self._epochs.append((len(self._numbers), epoch_s))
        self._numbers.extend(numbers)

    def extend(self, others: LinkUses) -> None:
        """Add the uses of another list over the same links."""
        if others._named:
            for use in others:
                self.append(use)
            return
        self._name_by_number = others._name_by_number or self._name_by_number
        here = len(self._numbers)
        self._epochs += [(here + first, epoch_s) for first, epoch_s in others._epochs]
        self._numbers.extend(others._numbers)

    def order(self) -> None:
        """Sort uses that end at one instant by their links' names."""
        ends_s = self._numbers[2::_EACH]
        if len(set(ends_s)) == len(ends_s):
            return  # as in most rounds of one client
        table = np.frombuffer(self._numbers, np.float64).reshape(-1, _EACH)
        links, place = np.unique(table[:, 0].astype(np.int64), return_inverse=True)
        names = [self.name_of(link) for link in links.tolist()]
        rank = np.argsort(np.argsort(np.array(names)))[place]
        begins = [first // _EACH for first, _ in self._epochs]
        epoch = np.repeat(np.arange(len(begins)), np.diff([*begins, len(table)]))
        ordered = table[np.lexsort((rank, table[:, 2], epoch))].ravel()
        self._numbers = array("d", ordered.tobytes())

    def clear(self) -> None:
        """Forget all uses; names of links stay."""
        del self._numbers[:]
        self._epochs.clear()

    def intervals(self) -> Iterator[tuple[int, float, float]]:
        """Return (link's number, from, to) of each use.

        Instants in simulated seconds.
        """
        ends = [*(first for first, _ in self._epochs[1:]), len(self._numbers)]
        # of none, one end
        for (first, epoch_s), end in zip(self._epochs, ends, strict=False):
            for at in range(first, end, _BLOCK * _EACH):
                numbers = self._numbers[at : min(at + _BLOCK * _EACH, end)].tolist()
                links, from_s, to_s = (numbers[k::_EACH] for k in range(3))
                since_s, until_s = (
                    [epoch_s + s for s in instants] for instants in (from_s, to_s)
                )
                yield from zip(map(int, links), since_s, until_s, strict=True)

    def blocks(self) -> Iterator[list[list[object]]]:
        """Yield lists, one for each field of `LinkUse`, of some uses at a time.

        Fields are in order.
        """
        table = np.frombuffer(self._numbers, np.float64).reshape(-1, _EACH)
        begins = [first // _EACH for first, _ in self._epochs]
        epochs_s = [epoch_s for _, epoch_s in self._epochs]
        epoch_s = np.repeat(epochs_s, np.diff([*begins, len(table)]))
        for at in range(0, len(table), _BLOCK):
            yield self._list_columns(table[at : at + _BLOCK], epoch_s[at : at + _BLOCK])

    def _list_columns(self, table: Floats, epoch_s: Floats) -> list[list[object]]:
        numbers, place = np.unique(table[:, 0].astype(np.int64), return_inverse=True)
        names = [self.name_of(link) for link in numbers.tolist()]
        return [
            [names[at] for at in place.tolist()],
            (epoch_s + table[:, 1]).tolist(),
            (epoch_s + table[:, 2]).tolist(),
            table[:, 3].tolist(),
            table[:, 4].tolist(),
            table[:, 5].astype(np.int64).tolist(),
            [None if air_s == NO_AIR else air_s for air_s in table[:, 6].tolist()],
        ]
