"""Samples per class and client, as `simfed data show` and reports show them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simfed.ground.plain import Plain
from simfed.ground.seeding import Streams
from simfed.learn.data.own import name_classes, open_labels, split_of
from simfed.scenario import Scenario

MOST_ROWS = 20
"""Clients that a run's manifest names, from the one with fewest to the one with most
samples."""

_MOST_COLUMNS = 40
"""Classes are counted in so many neighbouring groups at most."""


@dataclass(frozen=True, eq=False)
class Owned:
    """The samples of a scenario's clients.

    `count_owned` makes it; `simfed data show`, a run's manifest and reports show it.
    """

    samples: NDArray[np.int64]
    """(clients,)"""
    classes: NDArray[np.int64]
    """(clients, classes or groups of neighbouring ones); no columns where there are no
    classes."""
    names: tuple[str, ...]
    """Names of the classes; of more than forty the first and the last."""
    owners: tuple[str, ...]
    """The owner that each client is; empty where clients are no owners."""
    public: int
    unowned: int = 0
    """Training samples of which neither a client nor the public set has any."""
    labels: tuple[tuple[str, int, int], ...] = ()
    """The classes with their training and test samples, whoever owns them; empty
    without classes."""

    def plain(self) -> dict[str, Plain]:
        """Return the record in a run's manifest: sizes, and classes of some clients.

        Clients are in the order of size, from the smallest to the largest, `MOST_ROWS`
        of them in equal steps. `samples` are the smallest, the median and the largest
        size.
        """
        order = np.argsort(self.samples, kind="stable")
        shown = order[
            np.unique(np.linspace(0, len(order) - 1, MOST_ROWS).round().astype(int))
        ]
        return {
            "clients": len(self.samples),
            "samples": [
                int(x) for x in np.quantile(self.samples, (0, 0.5, 1), method="nearest")
            ],
            "public": self.public,
            **({"unowned": self.unowned} if self.unowned else {}),
            "names": list(self.names),
            "rows": [
                [
                    int(client),
                    self.owners[client] if self.owners else "",
                    int(self.samples[client]),
                    self.classes[client].tolist(),
                ]
                for client in shown
            ],
        }


def count_owned(scenario: Scenario, streams: Streams) -> Owned:
    """Return who owns what in a scenario; of your own files no sample is read.

    Args:
        scenario: Its data set, partition and clients.
        streams: Those of the run's seed, so that the split is the run's.

    Raises:
        InputError: As `split_of`.
    """
    named = open_labels(scenario.dataset)
    facts, split = named.facts, split_of(scenario, streams)
    samples = np.array([len(part) for part in split.clients])
    names: tuple[str, ...] = ()
    labels: tuple[tuple[str, int, int], ...] = ()
    counts = np.zeros((len(samples), 0), np.int64)
    if facts.task == "classification":
        width = -(-facts.classes // _MOST_COLUMNS)
        columns = -(-facts.classes // width)
        names = name_classes(named)
        everywhere = [
            np.bincount(part, minlength=facts.classes).tolist()
            for part in (named.train_labels, named.test_labels)
        ]
        labels = tuple(zip(names, *everywhere, strict=True))
        names = names if width == 1 else (names[0], names[-1])
        counts = np.array(
            [
                np.bincount(named.train_labels[part] // width, minlength=columns)
                for part in split.clients
            ]
        )
    owners = (
        () if split.owners is None else tuple(named.owners[i] for i in split.owners)
    )
    public = len(split.public)
    unowned = facts.train_samples - public - int(samples.sum())
    return Owned(samples, counts, names, owners, public, unowned, labels)
