"""Where images in files of one's own have their channels: said, told by an axis, or
asked for.
"""

import json

import numpy as np
import pyarrow as pa
import pytest
from learn_tiny import spec
from pyarrow import parquet
from worlds import TINY, change, world

from simfed import InputError, InputErrors, check
from simfed.cli import main
from simfed.learn import Dataset, labels_in, load_data
from simfed.learn.data.own import public_samples
from simfed.testing import check_dataset


def images_like(shape, n=32):
    """Images of which each value says where it stands, channels first.

    And the same, last.
    """
    first = np.arange(n * int(np.prod(shape))).reshape(n, *shape) % 251
    return first.astype(np.uint8), np.moveaxis(first, 1, -1).astype(np.uint8)


def write_images(path, images, suffix=".npz", **keys):
    """A set without test data as arrays, or as a column of lists."""
    labels = np.arange(len(images)) % 2
    if suffix == ".npz":
        np.savez(path / "x.npz", x_train=images, y_train=labels)
        return spec(path, file="x.npz", **keys)
    table = pa.table({"x": images.tolist(), "label": labels})
    parquet.write_table(table, path / f"x{suffix}")
    source = {".parquet": {"table": "x.parquet", "target": "label"}}
    if suffix == ".hub":
        (path / "saved").mkdir(exist_ok=True)
        (path / "x.hub").rename(path / "saved" / "train-0.parquet")
    return spec(
        path, **source.get(suffix, {"huggingface": "saved/"}), features=["x"], **keys
    )


@pytest.mark.parametrize("suffix", [".npz", ".parquet", ".hub"])
@pytest.mark.parametrize("channels", [1, 3])
def test_an_axis_of_one_or_three_is_the_channels(tmp_path, suffix, channels):
    first, last = images_like((channels, 6, 5))
    read = load_data(write_images(tmp_path, first, suffix))
    turned = write_images(tmp_path, last, suffix)
    again = load_data(turned)
    assert (again.train_images == read.train_images).all()
    assert (again.test_images == read.test_images).all()
    assert again.train_images.shape[1:] == (channels, 6, 5)
    assert again.train_images.flags.c_contiguous
    assert labels_in(turned).facts == again.facts
    assert labels_in(turned).facts.layout == "channels-last"


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
@pytest.mark.parametrize("shape", [(4, 6, 5), (3, 6, 1)])
def test_a_layout_that_is_said_counts(tmp_path, suffix, shape):
    first, last = images_like(shape)
    read = load_data(write_images(tmp_path, first, suffix, layout="channels-first"))
    again = load_data(write_images(tmp_path, last, suffix, layout="channels-last"))
    assert read.train_images.shape[1:] == again.train_images.shape[1:] == shape
    assert (again.train_images == read.train_images).all()


@pytest.mark.parametrize(
    ("shape", "model", "fits"),
    [
        ((4, 28, 28), "lenet5", True),  # of which the height would be 4
        ((4, 28, 28), "logistic-regression", False),
        ((4, 28, 28), "resnet18-gn", False),
        ((3, 28, 3), "perceptron", False),
        ((3, 28, 28), "perceptron", True),
        ((28, 28, 3), "perceptron", True),
        ((28, 28), "perceptron", True),
    ],
)
def test_a_layout_that_nothing_tells_is_asked_for(tmp_path, shape, model, fits):
    np.savez(
        tmp_path / "x.npz",
        x_train=np.zeros((40, *shape), np.uint8),
        y_train=np.arange(40) % 2,
    )
    said = {"prototypes.a.model": model, "dataset": {"file": str(tmp_path / "x.npz")}}
    if not fits:
        with pytest.raises(
            InputErrors, match=rf"dataset\.layout: .*model {model} takes them either"
        ):
            check(world("tiny", said))
        said["dataset.layout"] = "channels-first"
    check(world("tiny", said))


@pytest.mark.parametrize(
    ("shape", "layout", "model", "said"),
    [
        (
            (3, 6, 5),
            None,
            "perceptron",
            "C×H×W: its first axis alone has length 1 or 3",
        ),
        ((6, 5, 4), "channels-last", "perceptron", "H×W×C: dataset.layout says so"),
        ((4, 28, 28), None, "lenet5", "C×H×W: the models take no other"),
    ],
)
def test_data_show_says_what_told_the_layout(
    tmp_path, capsys, shape, layout, model, said
):
    write_images(tmp_path, np.zeros((32, *shape), np.uint8))
    data = {"file": "x.npz", "layout": layout}
    made = change(TINY, {"dataset": data, "prototypes.a.model": model})
    (tmp_path / "x.yaml").write_text(json.dumps(made))
    assert main(["data", "show", str(tmp_path / "x.yaml")]) == 0
    assert f"a sample is read as {said}\n" in capsys.readouterr().out


def test_public_images_lie_as_the_training_images_do(tmp_path):
    first, last = images_like((3, 6, 5))
    train = load_data(write_images(tmp_path, last))
    np.savez(tmp_path / "public.npz", x=last[:7])
    np.savez(tmp_path / "first.npz", x=first[:7])
    for name in ("public", "first"):
        assert (public_samples(str(tmp_path / f"{name}.npz"), train) == first[:7]).all()
    np.savez(tmp_path / "flat.npz", x=last[:7].reshape(7, -1))
    with pytest.raises(InputError, match=r"samples of shape \(n, 3, 6, 5\)"):
        public_samples(str(tmp_path / "flat.npz"), train)
    first, last = images_like((4, 4, 4))
    four = load_data(write_images(tmp_path, last, layout="channels-last"))
    np.savez(tmp_path / "square.npz", x=last[:7])
    read = public_samples(str(tmp_path / "square.npz"), four, "channels-last")
    assert (read == first[:7]).all()


def test_images_made_by_code_have_their_channels_first(add_part):
    first, last = images_like((3, 6, 5))

    def made(images):
        return lambda: Dataset(images, np.arange(32) % 2, images, np.arange(32) % 2, 2)

    add_part("dataset", "last", made(last))
    with pytest.raises(InputError, match=r"set last: samples \(channels, .*transpose"):
        load_data("last")
    with pytest.raises(InputError, match="channels, height, width"):
        check_dataset(made(last))
    check_dataset(made(first))
