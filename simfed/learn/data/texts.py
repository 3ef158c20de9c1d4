"""Texts by owner: stretches of numbered characters, each with its next one."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simfed.ground.errors import InputError
from simfed.learn.data.dataset import Dataset
from simfed.learn.data.store import Published

ALPHABET = "\n" + "".join(map(chr, range(32, 127)))
"""The characters of the shipped texts; a character's number is its place here."""

LENGTH = 80
"""Characters of a sample."""

_TEST_SHARE = 0.1


def number_characters(text: str, where: str) -> NDArray[np.int16]:
    """Return the numbers of a text's characters.

    Raises: `InputError` for another than `ALPHABET` has.
    """
    codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    numbers = np.where(codes == 10, 0, codes.astype(np.int64) - 31)
    wrong = np.flatnonzero((codes != 10) & ((codes < 32) | (codes > 126)))
    if wrong.size:
        raise InputError(
            "printable ASCII characters",
            where=f"{where}, character {int(wrong[0]) + 1}",
            got=text[int(wrong[0])],
        )
    return numbers.astype(np.int16)


def cut_stretches(
    codes: NDArray[np.int16], length: int = LENGTH
) -> tuple[NDArray[np.int16], NDArray[np.int16]]:
    """Return samples (n, length), and for each character the one that follows.

    Samples follow one another in the text.

    >>> samples, following = cut_stretches(np.arange(7, dtype=np.int16), 3)
    >>> samples.tolist(), following.tolist()
    ([[0, 1, 2], [3, 4, 5]], [[1, 2, 3], [4, 5, 6]])
    """
    count = (len(codes) - 1) // length
    return (
        codes[: count * length].reshape(count, length),
        codes[1 : count * length + 1].reshape(count, length),
    )


@dataclass(frozen=True)
class PublishedTexts(Published):
    """Texts that others published, one per owner.

    The last tenth of each is the test set, so that no test sample overlaps a training
    one.
    """

    texts: Callable[[Mapping[str, bytes]], dict[str, str]] = lambda files: json.loads(
        files["texts.json"]
    )

    @property
    def about(self) -> str:
        """The description in lists of data sets: counts, lengths, owners."""
        facts = self.facts
        home = "; comes with simfed" if self.home is not None else ""
        return (
            f"{facts.train_samples:,} training and {facts.test_samples:,} test texts "
            f"of {facts.input_shape[0]} characters, {facts.owners} owners{home}"
        )

    def __call__(self) -> Dataset:
        """Return the data set, from the first data folder that has it.

        Its digests are checked.
        """
        texts = self.texts(self.located())
        parts: dict[str, list[NDArray[np.int16]]] = {"train": [], "test": []}
        labels: dict[str, list[NDArray[np.int16]]] = {"train": [], "test": []}
        owners: dict[str, list[NDArray[np.int64]]] = {"train": [], "test": []}
        for number, (name, text) in enumerate(texts.items()):
            samples, following = cut_stretches(
                number_characters(text, (f"{self.name}: {name}"))
            )
            at = len(samples) - max(1, int(_TEST_SHARE * len(samples)))
            for part, some in (("train", slice(at)), ("test", slice(at, None))):
                parts[part].append(samples[some])
                labels[part].append(following[some])
                owners[part].append(np.full(len(samples[some]), number))
        return Dataset(
            np.concatenate(parts["train"]),
            np.concatenate(labels["train"]),
            np.concatenate(parts["test"]),
            np.concatenate(labels["test"]),
            classes=len(ALPHABET),
            licence=self.licence,
            citation=self.citation,
            task="next-token",
            train_owners=np.concatenate(owners["train"]),
            test_owners=np.concatenate(owners["test"]),
            owners=tuple(texts),
        )
