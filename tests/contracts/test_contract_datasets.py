"""Every registered data set keeps the contract, and the check notices those that do
not.

The published sets are not on every machine: they are checked with made-up files of
their exact sizes, laid out as their publishers do.
"""

import dataclasses
import hashlib
import json
import struct
from functools import partial

import numpy as np
import pytest
from broken_parts import naming

from simfed.ground.registry import registry
from simfed.learn import Dataset, DatasetFacts, Published, PublishedFile
from simfed.testing import check_dataset


@pytest.mark.parametrize("name", registry("dataset").names())
def test_registered_data_set_keeps_the_contract(name, tmp_path, monkeypatch):
    entry = registry("dataset").get(name)
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


def made_up_file(name, size_bytes):
    if name == "texts.json":
        # 43 owners with as many texts as the presidents have together
        counts = [3129] * 21 + [3126] + [3130] * 20 + [3040]
        return json.dumps(
            {i: "a" * (80 * n + 1) for i, n in enumerate(counts)}
        ).encode()
    rng = np.random.default_rng(size_bytes)
    if name.endswith(".bin"):
        rows = rng.integers(0, 256, (size_bytes // 3073, 3073), dtype=np.uint8)
        rows[:, 0] = np.arange(len(rows)) % 10
        return rows.tobytes()
    if "labels" in name:
        count = size_bytes - 8
        return struct.pack(">4BI", 0, 0, 8, 1, count) + bytes(range(10)) * (count // 10)
    count = (size_bytes - 16) // 784
    return struct.pack(">4B3I", 0, 0, 8, 3, count, 28, 28) + rng.bytes(count * 784)


def data(images, classes=2):
    labels = np.arange(len(images)) % 2
    return Dataset(images, labels, images[:4], labels[:4], classes=classes)


def steady(classes=2):
    return data(np.full((6, 1, 2, 2), 7, np.uint8), classes)


def another_every_time():
    return data(np.random.default_rng().integers(0, 256, (6, 1, 2, 2), dtype=np.uint8))


def global_randomness():
    np.random.rand()  # noqa: NPY002
    return steady()


def wrong_facts():
    return steady()


wrong_facts.facts = DatasetFacts((1, 2, 2), 2, 6, 5)


def test_a_users_data_set_keeps_the_contract():
    check_dataset(steady)


test_a_broken_data_set_is_named = naming(
    check_dataset,
    {
        list: "a Dataset, got list",
        another_every_time: "the same samples from reading it twice",
        global_randomness: "no use of the global random generators",
        partial(steady, 3): r"training samples of every class, none of \[2\]",
        wrong_facts: "the facts that it has: .*test_samples=4",
    },
)
