"""Texts by owner: stretches of numbered characters, each with its next one."""

from __future__ import annotations

import json
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
    """Return samples and, for each of their characters, the one that follows.

    Args:
        codes: (characters,) of one text.
        length: Characters of a sample; samples follow one another in the text, and what
            is left at its end is dropped.

    Returns:
        Two arrays (n, length), of which the second is one character ahead.

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

    Stretches of `LENGTH` characters are the samples. The last tenth of each text is the
    test set, so that no test sample overlaps a training one. The one file is
    `texts.json`: owner → text.
    """

    @property
    def holds(self) -> str:
        """The kind of its samples, their length, and the number of owners."""
        facts = self.facts
        return f"texts of {facts.input_shape[0]} characters, {facts.owners} owners"

    def __call__(self) -> Dataset:
        """Return the data set, from the first data folder that has it.

        Its digests are checked.
        """
        texts: dict[str, str] = json.loads(self.located()["texts.json"])
        train: list[tuple[np.ndarray, ...]] = []
        test: list[tuple[np.ndarray, ...]] = []
        for number, (name, text) in enumerate(texts.items()):
            codes = number_characters(text, f"{self.name}: {name}")
            samples, following = cut_stretches(codes)
            at = len(samples) - max(1, int(_TEST_SHARE * len(samples)))
            for part, some in ((train, slice(at)), (test, slice(at, None))):
                owners = np.full(len(samples[some]), number)
                part.append((samples[some], following[some], owners))
        (inputs, labels, owned), (test_inputs, test_labels, test_owned) = (
            map(np.concatenate, zip(*part, strict=True)) for part in (train, test)
        )
        return Dataset(
            inputs,
            labels,
            test_inputs,
            test_labels,
            classes=len(ALPHABET),
            licence=self.licence,
            citation=self.citation,
            task="next-token",
            train_owners=owned,
            test_owners=test_owned,
            owners=tuple(texts),
        )
