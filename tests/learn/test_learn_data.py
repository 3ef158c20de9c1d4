"""Data sets: what they hold, how files are read and checked, and what is refused."""

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
from learn_tiny import TINY, TINY_FILES, idx, write_tar, write_tiny

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


def test_mnist_mini_is_balanced_real_digits(monkeypatch):
    """Which lie where nobody can write, not in a data folder."""
    monkeypatch.setenv("SIMFED_DATA", "/nowhere")
    data = load_dataset("mnist-mini")
    assert load_dataset("mnist-mini") is data
    assert np.bincount(data.train_labels).tolist() == [1000] * 10
    assert np.bincount(data.test_labels).tolist() == [200] * 10
    assert data.facts == dataset_facts("mnist-mini")
    # MNIST's own mean and deviation normalise it
    train = data.normalise(data.train_images)
    assert train.mean() == pytest.approx(0, abs=0.03)
    assert train.std() == pytest.approx(1, abs=0.03)
    kept = {image.tobytes() for image in data.train_images}
    assert not kept & {image.tobytes() for image in data.test_images}


# ---- Dataset -------------------------------------------------------------------------


def test_bytes_are_normalised_per_channel_when_used():
    mean, sd = np.array([0.5, 0.25]), np.array([0.5, 2.0])
    data = Dataset(**arrays(mean=tuple(mean), sd=tuple(sd)))
    images, labels = data.train(np.array([4, 0]))
    assert images.dtype == np.float32
    assert labels.tolist() == [1, 0]
    stored = data.train_images[[4, 0]] / 255
    expected = (stored - mean[:, None, None]) / sd[:, None, None]
    np.testing.assert_allclose(images, expected, atol=1e-6)
    white = np.full((1, 2, 3, 3), 255, np.uint8)
    for options in ({"mean": (0.5,), "sd": (0.5,)}, {}):  # one mean for all, or none
        one = Dataset(**arrays(**options))
        np.testing.assert_allclose(one.normalise(white), 1.0, atol=1e-6)


def test_floats_are_used_as_they_are():
    values = rng.normal(size=(6, 4)).astype(np.float32)
    data = Dataset(**arrays(train_images=values, test_images=values[:4]))
    images, _ = data.train(np.arange(6))
    images[:1] = 0  # in fresh memory
    assert np.array_equal(images[1:], values[1:])
    assert np.array_equal(data.train_images, values)
    for kept in (data.train_images, data.train_labels):
        with pytest.raises(ValueError, match="read-only"):
            kept[0] = 0


def test_the_digest_changes_with_every_part():
    base = arrays()
    parts = "train_images", "train_labels", "test_images", "test_labels"
    changes = [{}, {"mean": (0.5,)}, {"classes": 4}]
    changes += [{part: base[part][::-1]} for part in parts]
    digests = {Dataset(**base | change).digest for change in changes}
    assert len(digests) == 7
    assert Dataset(**base).digest in digests


# ---- the registry --------------------------------------------------------------------


def test_a_users_data_set_with_static_facts_is_not_read_for_them(add_part):
    def mine():
        raise AssertionError("read")

    mine.facts = dataset_facts("cifar10")
    add_part("dataset", "mine", mine)
    assert dataset_facts("mine") == dataset_facts("cifar10")


def test_a_callable_that_returns_something_else_is_refused(add_part):
    add_part("dataset", "mine", lambda: (1, 2))
    with pytest.raises(InputError) as refused:
        load_dataset("mine", where="dataset.name")
    assert str(refused.value) == (
        "dataset.name: got 'tuple', expected data set mine: a callable that returns a "
        "simfed.learn.data.Dataset"
    )


# ---- formats -------------------------------------------------------------------------


@given(shape=st.lists(st.integers(0, 5), min_size=1, max_size=4))
def test_an_idx_file_reads_back(shape):
    array = rng.integers(0, 256, shape, dtype=np.uint8)
    assert np.array_equal(read_idx(idx(array)), array)


def cifar_batch(samples):
    """Labels, images (n, 3, 32, 32) and the binary version of a made-up batch."""
    labels = rng.integers(0, 10, samples, dtype=np.uint8)
    images = rng.integers(0, 256, (samples, 3, 32, 32), dtype=np.uint8)
    rows = np.column_stack([labels, images.reshape(samples, -1)])
    return labels, images, rows.tobytes()


def test_the_binary_version_of_cifar_reads_in_the_order_of_its_batches():
    second, first, test = (cifar_batch(samples) for samples in (3, 3, 2))
    names = "data_batch_2.bin", "data_batch_1.bin", "test_batch.bin"
    batches = zip(names, (second, first, test), strict=True)
    train, tested = read_cifar({name: rows for name, (*_, rows) in batches})
    for (images, labels), parts in ((train, [first, second]), (tested, [test])):
        assert np.array_equal(labels, np.concatenate([part[0] for part in parts]))
        assert np.array_equal(images, np.concatenate([part[1] for part in parts]))
    assert join_cifar_rows(test[0], test[1].reshape(2, -1)) == test[2]


def python2_batch(labels, images, kind=b"u1", key=b"labels"):
    """The opcodes Python 2 wrote for one batch: {key: list, data: array of bytes}."""

    def text(value):
        return b"U" + bytes([len(value)]) + value

    pixels = images.reshape(len(images), -1)
    shape = b"J%bJ%b\x86" % tuple(struct.pack("<i", n) for n in pixels.shape)
    dtype = b"cnumpy\ndtype\n%bK\x00K\x01\x87R(K\x03%bNNN%bK\x00tb" % (
        text(kind), text(b"|"), 2 * b"J\xff\xff\xff\xff",
    )  # fmt: skip
    start = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85"
    array = start + text(b"b") + b"\x87R(K\x01" + shape + dtype + b"\x89T"
    array += struct.pack("<I", pixels.size) + pixels.tobytes() + b"tb"
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
    half = {b"labels": [1]}
    others = [[1, 2], half, {**half, b"data": b"x" * 3072}, Evil()]
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
        digest = hashlib.sha256(rows).hexdigest()
        files[f"{batch}.bin"] = PublishedFile(digest, len(rows))
    small = dataclasses.replace(CIFAR10, files=files)
    if folder == "elsewhere":
        get(small, source=place)
    assert small.located().keys() == files.keys()


# ---- where files are found -----------------------------------------------------------


def test_data_folders_are_the_variable_then_the_cache(monkeypatch, tmp_path):
    cache = tmp_path / "simfed/datasets"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("SIMFED_DATA", "~/sets")
    assert list_data_folders() == [tmp_path.home() / "sets", cache]
    monkeypatch.delenv("SIMFED_DATA")
    assert list_data_folders() == [cache]
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert find_cache_folder().is_relative_to(tmp_path.home())


def test_a_data_set_that_is_not_here_says_how_to_get_it(folders, add_part):
    add_part("dataset", "tiny", TINY)
    sentence = r"`simfed data get tiny` fetches it; looked in .*data or .*datasets"
    with pytest.raises(InputError, match=sentence):
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


IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


@pytest.mark.parametrize(
    ("file", "change", "sentence"),
    [
        (
            IMAGES,
            lambda content: content[:-1] + bytes([content[-1] ^ 1]),
            r": got .*, expected a file of Tiny with SHA-256 \w{64}",
        ),
        (
            IMAGES,
            lambda content: content[:-1],
            ": truncated to 95 bytes, expected 96 bytes",
        ),
        (
            f"{IMAGES}.gz",
            lambda content: content[:30],
            r"\.gz: truncated or damaged, expected a whole gzip file",
        ),
        # a bomb
        (f"{LABELS}.gz", lambda _: gzip.compress(bytes(10_000_000)), ": .*SHA-256"),
    ],
)
def test_damaged_files_are_refused_by_their_names(folders, file, change, sentence):
    path = folders[0] / "Tiny/raw" / file
    write_tiny(path.parent, packed=path.suffix == ".gz")
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(InputError, match=path.stem + sentence):
        TINY()


def test_a_missing_file_is_named(folders):
    write_tiny(folders[0] / "Tiny/raw", leave_out=LABELS)
    sentence = f"Tiny/raw: {LABELS} is missing, expected all files of Tiny"
    with pytest.raises(InputError, match=sentence):
        TINY()


@pytest.mark.parametrize(
    "content",
    [b"", b"no archive", gzip.compress(b"x" * 2000)[:30], lzma.compress(b"x")[:20]],
)
def test_a_damaged_archive_is_named(folders, content):
    folders[0].mkdir()
    (folders[0] / "tiny.tar.gz").write_bytes(content)
    sentence = r"tiny\.tar\.gz: damaged: .*, expected a whole tar archive"
    with pytest.raises(InputError, match=sentence):
        TINY()
