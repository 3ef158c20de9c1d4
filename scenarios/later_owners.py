"""Data sets: the embedded text in two halves, presidents before 1909 and since.

`text-mini-later` has twenty owners, whom a model that was trained on
`text-mini-earlier` has never read.
"""

from dataclasses import replace
from functools import partial

import numpy as np

import simfed
from simfed.learn.data import Dataset, load_dataset
from simfed.learn.facts import DatasetFacts

LATER = (
    "William H Taft", "Woodrow Wilson", "Warren G Harding", "Calvin Coolidge",
    "Herbert Hoover", "Franklin D Roosevelt", "Harry S Truman", "Dwight D Eisenhower",
    "John F Kennedy", "Lyndon B Johnson", "Richard Nixon", "Gerald R Ford",
    "Jimmy Carter", "Ronald Reagan", "George Bush", "William J Clinton",
    "George W Bush", "Barack Obama", "Donald J Trump", "Joseph R Biden",
)  # fmt: skip


def read_half(*, later: bool) -> Dataset:
    """Return the texts of the later owners, or of all others."""
    whole = load_dataset("text-mini")
    kept = [at for at, o in enumerate(whole.owners) if (o in LATER) is later]
    parts = {"owners": tuple(whole.owners[at] for at in kept)}
    for part in ("train", "test"):
        owners = getattr(whole, f"{part}_owners")
        rows = np.isin(owners, kept)
        parts[f"{part}_images"] = getattr(whole, f"{part}_images")[rows]
        parts[f"{part}_labels"] = getattr(whole, f"{part}_labels")[rows]
        parts[f"{part}_owners"] = np.searchsorted(kept, owners[rows])
    return replace(whole, **parts)


def _register(name: str, owners: int, *, later: bool) -> None:
    read = partial(read_half, later=later)
    shape = (80,), 96, 225 * owners, 24 * owners
    read.facts = DatasetFacts(*shape, "next-token", True, owners)
    simfed.register("dataset", name, read)


_register("text-mini-earlier", 23, later=False)
_register("text-mini-later", 20, later=True)
