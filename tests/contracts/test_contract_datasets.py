"""Every registered data set keeps the contract, and the check notices those that do
not.

The published sets are not on every machine: they are checked with made-up files of
their exact sizes, laid out as their publishers do.
"""

import dataclasses
import hashlib
import json
import struct

import numpy as np
import pytest

from simfed.ground.registry import registry
from simfed.learn import Dataset, DatasetFacts, Published, PublishedFile
from simfed.testing import check_dataset

PUBLISHED = {
    name: registry("dataset").get(name) for name in registry("dataset").names()
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_registered_data_set_keeps_the_contract(name, tmp_path, monkeypatch):
    entry = PUBLISHED[name]
    if isinstance(entry, Published) and entry.home is None:
        monkeypatch.setenv("SIMFED_DATA", str(tmp_path))
        entry = made_up(entry, tmp_path)
    check_dataset(entry)


def made_up(published, root):
    """The same data set with other samples: random pixels, labels in turn."""
    folder = root / published.folders[0]
    folder.mkdir(parents=True)
    files = {}
    for name, file in published.files.items():
        content = made_up_file(name, file.size_bytes)
        (folder / name).write_bytes(content)
        files[name] = PublishedFile(hashlib.sha256(content).hexdigest(), len(content))
    return dataclasses.replace(published, files=files)


def made_up_texts():
    """43 owners with as many texts as the presidents have together."""
    samples = [3129] * 21 + [3126] + [3130] * 20 + [3040]
    return json.dumps(
        {str(i): "a" * (80 * count + 1) for i, count in enumerate(samples)}
    ).encode()


def made_up_file(name, size_bytes):
    if name == "texts.json":
        return made_up_texts()
    rng = np.random.default_rng(size_bytes)
    if name.endswith(".bin"):
        rows = rng.integers(0, 256, (size_bytes // 3073, 3073), dtype=np.uint8)
        rows[:, 0] = np.arange(len(rows)) % 10
        return rows.tobytes()
    if "labels" in name:
        count = size_bytes - 8
        return (
            struct.pack(">4BI", 0, 0, 8, 1, count)
            + (np.arange(count) % 10).astype(np.uint8).tobytes()
        )
    count = (size_bytes - 16) // 784
    return struct.pack(">4B3I", 0, 0, 8, 3, count, 28, 28) + rng.bytes(count * 784)


def data(images, classes=2):
    labels = np.arange(len(images)) % 2
    return Dataset(images, labels, images[:4], labels[:4], classes=classes)


def steady():
    return data(np.full((6, 1, 2, 2), 7, np.uint8))


def another_every_time():
    return data(np.random.default_rng().integers(0, 256, (6, 1, 2, 2), dtype=np.uint8))


def global_randomness():
    np.random.rand()  # noqa: NPY002
    return steady()


def no_sample_of_a_class():
    return data(np.zeros((6, 1, 2, 2), np.uint8), classes=3)


def wrong_facts():
    return steady()


wrong_facts.facts = DatasetFacts((1, 2, 2), 2, 6, 5)


def test_a_users_data_set_keeps_the_contract():
    check_dataset(steady)


@pytest.mark.parametrize(
    ("load", "expected"),
    [
        (lambda: [1, 2], "a Dataset, got list"),
        (another_every_time, "the same samples from reading it twice"),
        (global_randomness, "no use of the global random generators"),
        (no_sample_of_a_class, r"training samples of every class, none of \[2\]"),
        (wrong_facts, "the facts that it has: .*test_samples=4"),
    ],
)
def test_the_check_notices(load, expected):
    with pytest.raises(AssertionError, match=f"expected {expected}"):
        check_dataset(load)
