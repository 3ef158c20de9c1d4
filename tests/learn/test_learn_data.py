"""Data sets: what they hold, how files are read and checked, and what is refused."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import lzma
import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from learn_tiny import TINY, TINY_FILES, write_tar, write_tiny

from simfed import InputError
from simfed.learn import (
    Dataset,
    PublishedFile,
    dataset_facts,
    get,
    load_dataset,
    read_mnist,
)
from simfed.learn.data import CIFAR10
from simfed.learn.data.formats import (
    convert_cifar_pickle,
    join_cifar_rows,
    read_cifar,
    read_idx,
)
from simfed.learn.data.store import find_cache_folder, list_data_folders

rng = np.random.default_rng(0)


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """Data folders of this test's own: ($SIMFED_DATA, cache)."""
    monkeypatch.setenv("SIMFED_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "data", tmp_path / "cache" / "simfed" / "datasets"


def arrays(**changes):
    """Valid arguments of a Dataset: 6 training and 4 test samples of 2×3×3 bytes, 3
    classes.
    """
    return {
        "train_images": rng.integers(0, 256, (6, 2, 3, 3), dtype=np.uint8),
        "train_labels": np.array([0, 1, 2, 0, 1, 2]),
        "test_images": rng.integers(0, 256, (4, 2, 3, 3), dtype=np.uint8),
        "test_labels": np.array([2, 2, 0, 1]),
        "classes": 3,
    } | changes


# ---- mnist-mini ----------------------------------------------------------------------


def test_mnist_mini_is_balanced_real_digits():
    data = load_dataset("mnist-mini")
    assert np.bincount(data.train_labels).tolist() == [1000] * 10
    assert np.bincount(data.test_labels).tolist() == [200] * 10
    assert data.facts == dataset_facts("mnist-mini")
    images, _ = data.test()
    assert images.shape == (2000, 1, 28, 28)
    assert images.dtype == np.float32
    # MNIST's own mean and deviation normalise it
    train = data.normalise(data.train_images)
    assert abs(train.mean()) < 0.03
    assert abs(train.std() - 1) < 0.03
    # no digit is in both sets
    assert not {i.tobytes() for i in data.train_images} & {
        i.tobytes() for i in data.test_images
    }


def test_mnist_mini_needs_no_data_folder(monkeypatch):
    monkeypatch.setenv("SIMFED_DATA", "/nowhere")
    # nobody can write into it
    assert load_dataset("mnist-mini") is load_dataset("mnist-mini")


# ---- Dataset -------------------------------------------------------------------------


def test_bytes_are_normalised_per_channel_when_used():
    data = Dataset(**arrays(mean=(0.5, 0.25), sd=(0.5, 2.0)))
    images, labels = data.train(np.array([4, 0]))
    assert images.dtype == np.float32
    assert labels.tolist() == [1, 0]
    stored = data.train_images[[4, 0]].astype(np.float64) / 255
    expected = (stored - np.array([0.5, 0.25])[:, None, None]) / np.array([0.5, 2.0])[
        :, None, None
    ]
    np.testing.assert_allclose(images, expected, atol=1e-6)
    white = np.full((1, 2, 3, 3), 255, np.uint8)
    for options in ({"mean": (0.5,), "sd": (0.5,)}, {}):  # one mean for all, or none
        one = Dataset(**arrays(**options))
        np.testing.assert_allclose(one.normalise(white), 1.0, atol=1e-6)


def test_floats_are_used_as_they_are():
    values = rng.normal(size=(6, 4)).astype(np.float32)
    data = Dataset(**arrays(train_images=values, test_images=values[:4]))
    images, _ = data.train(np.arange(6))
    assert np.array_equal(images, values)
    images[:] = 0  # in fresh memory
    assert np.array_equal(data.train_images, values)
    for kept in (data.train_images, data.train_labels):
        with pytest.raises(ValueError, match="read-only"):
            kept[0] = 0


def test_the_digest_changes_with_every_part():
    base = arrays()
    digests = {Dataset(**base).digest, Dataset(**base).digest}
    assert len(digests) == 1
    for key in ("train_images", "test_images"):
        changed = base[key].copy()
        changed.flat[3] ^= 1
        digests.add(Dataset(**base | {key: changed}).digest)
    for key in ("train_labels", "test_labels"):
        digests.add(Dataset(**base | {key: base[key][::-1].copy()}).digest)
    digests.add(Dataset(**base | {"mean": (0.5,)}).digest)
    digests.add(Dataset(**base | {"classes": 4}).digest)
    assert len(digests) == 7


# ---- the registry --------------------------------------------------------------------


def test_a_users_data_set_with_static_facts_is_not_read_for_them(add_part):
    def mine():
        raise AssertionError("read")

    mine.facts = dataset_facts("cifar10")
    add_part("dataset", "mine", mine)
    assert dataset_facts("mine") == dataset_facts("cifar10")


def test_a_callable_that_returns_something_else_is_refused(add_part):
    add_part("dataset", "mine", lambda: (1, 2))
    with pytest.raises(
        InputError,
        match=(
            r"dataset\.name: got 'tuple', expected data set mine: a callable that "
            r"returns a simfed\.learn\.data\.Dataset"
        ),
    ):
        load_dataset("mine", where="dataset.name")
    with pytest.raises(InputError, match="did you mean 'mnist'"):
        load_dataset("mnits")


# ---- formats -------------------------------------------------------------------------


@given(shape=st.lists(st.integers(0, 5), min_size=1, max_size=4))
def test_an_idx_file_reads_back(shape):
    array = rng.integers(0, 256, shape, dtype=np.uint8)
    content = (
        struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
        + array.tobytes()
    )
    assert np.array_equal(read_idx(content), array)
    with pytest.raises(InputError, match=f"{len(content)} bytes, as its header says"):
        read_idx(content + b"x")


def cifar_batch(samples):
    """Labels, images (n, 3, 32, 32) and the binary version of a made-up batch."""
    labels = rng.integers(0, 10, samples, dtype=np.uint8)
    images = rng.integers(0, 256, (samples, 3, 32, 32), dtype=np.uint8)
    rows = b"".join(
        bytes([label]) + image.tobytes()
        for label, image in zip(labels, images, strict=True)
    )
    return labels, images, rows


def test_the_binary_version_of_cifar_reads_in_the_order_of_its_batches():
    batches = {f"data_batch_{i}.bin": cifar_batch(3) for i in (2, 1)}
    test = cifar_batch(2)
    files = {name: rows for name, (_, _, rows) in batches.items()} | {
        "test_batch.bin": test[2]
    }
    (images, labels), (test_images, test_labels) = read_cifar(files)
    first, second = batches["data_batch_1.bin"], batches["data_batch_2.bin"]
    assert np.array_equal(images, np.concatenate([first[1], second[1]]))
    assert np.array_equal(labels, np.concatenate([first[0], second[0]]))
    assert np.array_equal(test_images, test[1])
    assert np.array_equal(test_labels, test[0])
    assert join_cifar_rows(test[0], test[1].reshape(2, -1)) == test[2]


def python2_batch(
    labels,
    images,
    kind=b"u1",
    callable_=b"numpy.core.multiarray\n_reconstruct\n",
    key=b"labels",
):
    """The opcodes Python 2 wrote for one batch: {key: list, data: array of bytes}."""

    def text(value):
        return b"U" + bytes([len(value)]) + value

    pixels = images.reshape(len(images), -1)
    content = b"T" + struct.pack("<I", pixels.size) + pixels.tobytes()
    shape = b"".join(b"J" + struct.pack("<i", n) for n in pixels.shape) + b"\x86"
    dtype = (
        b"cnumpy\ndtype\n"
        + text(kind)
        + b"K\x00K\x01\x87R(K\x03"
        + text(b"|")
        + b"NNN"
        + 2 * b"J\xff\xff\xff\xff"
        + b"K\x00tb"
    )
    array = (
        b"c"
        + callable_
        + b"cnumpy\nndarray\nK\x00\x85"
        + text(b"b")
        + b"\x87R(K\x01"
        + shape
        + dtype
        + b"\x89"
        + content
        + b"tb"
    )
    numbers = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    return b"\x80\x02}(" + text(key) + numbers + text(b"data") + array + b"u."


class Evil:
    def __reduce__(self):
        return os.mkdir, ("ran",)


def test_pickles_of_cifar_become_the_binary_version_and_run_no_code(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    labels, images, rows = cifar_batch(4)
    content = python2_batch(labels, images)
    # it is what Python 2 with NumPy would have written: the ordinary reader agrees
    ordinary = pickle.loads(content, encoding="bytes")
    assert np.array_equal(ordinary[b"data"], images.reshape(4, -1))
    assert convert_cifar_pickle(content) == rows
    others = [
        [1, 2],
        {b"labels": [1]},
        {b"labels": [1], b"data": b"x" * 3072},
        Evil(),
    ]
    broken = [b"", b"no pickle", content[:-40]]
    for other in [*broken, *(pickle.dumps(one, protocol=2) for one in others)]:
        with pytest.raises(InputError, match="no pickled batch of CIFAR-10"):
            convert_cifar_pickle(other)
    with pytest.raises(InputError, match="unsigned bytes"):
        convert_cifar_pickle(python2_batch(labels, images, kind=b"i8"))
    assert not Path("ran").exists()


@pytest.mark.parametrize("folder", ["data/cifar-10-batches-py", "elsewhere"])
def test_the_python_version_is_found_in_its_folder_and_where_the_user_says(
    folders, folder
):
    files, place = {}, folders[0].parent / folder
    place.mkdir(parents=True)
    for batch in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        labels, images, rows = cifar_batch(2)
        (place / batch).write_bytes(python2_batch(labels, images))
        files[f"{batch}.bin"] = PublishedFile(
            hashlib.sha256(rows).hexdigest(), len(rows)
        )
    small = dataclasses.replace(CIFAR10, files=files)
    if folder == "elsewhere":
        get(small, source=place)
    assert sorted(small.located()) == sorted(files)


# ---- where files are found -----------------------------------------------------------


def test_data_folders_are_the_variable_then_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("SIMFED_DATA", "~/sets")
    assert list_data_folders() == [
        tmp_path.home() / "sets",
        tmp_path / "simfed" / "datasets",
    ]
    monkeypatch.delenv("SIMFED_DATA")
    assert list_data_folders() == [tmp_path / "simfed" / "datasets"]
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert find_cache_folder().is_relative_to(tmp_path.home())


def test_a_data_set_that_is_not_here_says_how_to_get_it(folders, add_part):
    add_part("dataset", "tiny", TINY)
    with pytest.raises(
        InputError,
        match=r"`simfed data get tiny` fetches it; looked in .*data or "
        r".*datasets",
    ):
        load_dataset("tiny", where="dataset.name")


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("folder", ["Tiny/raw", "tiny"])
def test_files_are_found_in_every_folder_and_layout(folders, index, packed, folder):
    write_tiny(folders[index] / folder, packed=packed)
    data = TINY()
    (images, labels), (test_images, _) = read_mnist(TINY_FILES)
    assert np.array_equal(data.train_images, images)
    assert np.array_equal(data.train_labels, labels)
    assert np.array_equal(data.test_images, test_images)


def test_an_archive_in_a_data_folder_is_read_without_unpacking(folders):
    folders[0].mkdir()
    write_tar(folders[0] / "tiny.tar.gz", "./Tiny/raw/")
    assert TINY().facts.train_samples == 20
    assert [path.name for path in folders[0].iterdir()] == ["tiny.tar.gz"]


def damage(name, change, packed=False):
    """Tiny's files in a folder, of which one has changed."""

    def write(home):
        write_tiny(home / "Tiny/raw", packed=packed)
        path = home / "Tiny/raw" / (f"{name}.gz" if packed else name)
        path.write_bytes(change(path.read_bytes()))

    return write


IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
DAMAGED = {
    "missing": (
        lambda home: write_tiny(home / "Tiny/raw", leave_out=LABELS),
        rf"Tiny/raw: {LABELS} is missing, expected all files of Tiny",
    ),
    "altered": (
        damage(IMAGES, lambda content: content[:-1] + bytes([content[-1] ^ 1])),
        rf"{IMAGES}: got .*, expected a file of Tiny with SHA-256 \w{{64}}",
    ),
    "truncated": (
        damage(IMAGES, lambda content: content[:-1]),
        rf"{IMAGES}: truncated to 95 bytes, expected 96 bytes",
    ),
    "half a gzip": (
        damage(IMAGES, lambda content: content[:30], packed=True),
        rf"{IMAGES}\.gz: truncated or damaged, expected a whole gzip file",
    ),
    "a bomb": (
        damage(LABELS, lambda _: gzip.compress(bytes(10_000_000)), packed=True),
        "SHA-256",
    ),
    **{
        f"archive of {name}": (
            lambda home, content=content: (home / "tiny.tar.gz").write_bytes(content),
            r"tiny\.tar\.gz: damaged: .*, expected a whole tar archive",
        )
        for name, content in {
            "nothing": b"",
            "text": b"no archive at all",
            "half a gzip": gzip.compress(b"x" * 2000)[:30],
            "half an xz": lzma.compress(b"x")[:20],
        }.items()
    },
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_files_are_refused_by_their_names(folders, case):
    write, sentence = DAMAGED[case]
    folders[0].mkdir()
    write(folders[0])
    with pytest.raises(InputError, match=sentence):
        TINY()
