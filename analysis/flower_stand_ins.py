"""Made-up tables in place of the data sets that Flower's examples and baselines
download.

`install()` replaces `datasets.load_dataset`, through which
`flwr_datasets.FederatedDataset` reads as well: the partitioners, the transforms and all
else are the apps' own. A table has the columns and types of the data set that its name
belongs to, and some hundred rows to a few thousand that a fixed seed draws; what a
model learns from them means nothing. A name without a table here stays a download.
"""

from __future__ import annotations

import io
from collections.abc import Callable

import numpy as np
from numpy.random import Generator

from simfed.ground.seeding import Streams

Columns = dict[str, object]


def _images(
    side: int, channels: int, classes: int, *names: str
) -> Callable[..., Columns]:
    """A table of pictures, with a column of labels under each of these names."""

    def make(rng: Generator, rows: int) -> Columns:
        from PIL import Image

        shape = (side, side) if channels == 1 else (side, side, channels)
        labels = rng.integers(0, classes, rows)
        column = "image" if channels == 1 else "img"
        encoded = []
        for label in labels:
            pixels = rng.integers(0, 128, shape) + 12 * int(label % 10)
            png = io.BytesIO()
            Image.fromarray(pixels.astype(np.uint8)).save(png, "PNG")
            encoded.append({"bytes": png.getvalue(), "path": None})
        return {
            column: encoded,
            **{name: [int(label) for label in labels] for name in names},
        }

    return make


def _higgs(rng: Generator, rows: int) -> Columns:
    inputs = rng.standard_normal((rows, 28)).astype(np.float32)
    return {
        "inputs": inputs.tolist(),
        "label": (inputs[:, 0] > 0).astype(float).tolist(),
    }


def _iris(rng: Generator, rows: int) -> Columns:
    species = rng.integers(0, 3, rows)
    sizes = rng.normal(0.8 * species[:, None] + 4.0, 0.3, (rows, 4))
    names = ("sepal_length", "sepal_width", "petal_length", "petal_width")
    return {
        **dict(zip(names, sizes.T.tolist(), strict=True)),
        "species": species.tolist(),
    }


def _iris_cm(rng: Generator, rows: int) -> Columns:
    *sizes, species = _iris(rng, rows).values()
    names = (
        "SepalLengthCm",
        "SepalWidthCm",
        "PetalLengthCm",
        "PetalWidthCm",
        "Species",
    )
    return {
        "Id": list(range(1, rows + 1)),
        **dict(zip(names, [*sizes, species], strict=True)),
    }


def _census(rng: Generator, rows: int) -> Columns:
    numbers = (
        "age",
        "fnlwgt",
        "education.num",
        "capital.gain",
        "capital.loss",
        "hours.per.week",
    )
    texts = (
        "workclass",
        "education",
        "marital.status",
        "occupation",
        "relationship",
        "race",
    )
    return {
        **{name: rng.integers(1, 90, rows).tolist() for name in numbers},
        **{name: rng.choice(["a", "b", "c", "d"], rows).tolist() for name in texts},
        "sex": rng.choice(["Female", "Male"], rows).tolist(),
        "native.country": rng.choice(["x", "y"], rows).tolist(),
        "income": rng.choice(["<=50K", ">50K"], rows).tolist(),
    }


def _titanic(rng: Generator, rows: int) -> Columns:
    titles = rng.choice(["Mr.", "Mrs.", "Miss."], rows)
    return {
        "Survived": rng.integers(0, 2, rows).tolist(),
        "Pclass": rng.integers(1, 4, rows).tolist(),
        "Name": [f"{title} Number {row}" for row, title in enumerate(titles)],
        "Sex": rng.choice(["female", "male"], rows).tolist(),
        "Age": rng.uniform(1, 80, rows).round(1).tolist(),
        "Siblings/Spouses Aboard": rng.integers(0, 4, rows).tolist(),
        "Parents/Children Aboard": rng.integers(0, 3, rows).tolist(),
        "Fare": rng.uniform(5, 100, rows).round(2).tolist(),
    }


_MNIST = _images(28, 1, 10, "label")
_TABLES: dict[str, tuple[Callable[..., Columns], int, int]] = {
    "uoft-cs/cifar10": (_images(32, 3, 10, "label"), 2000, 400),
    "cifar10": (_images(32, 3, 10, "label"), 2000, 400),
    "uoft-cs/cifar100": (_images(32, 3, 100, "fine_label", "coarse_label"), 2000, 400),
    "ylecun/mnist": (_MNIST, 2000, 400),
    "mnist": (_MNIST, 2000, 400),
    "zalando-datasets/fashion_mnist": (_MNIST, 2000, 400),
    "jxie/higgs": (_higgs, 4000, 400),
    "hitorilabs/iris": (_iris, 150, 0),
    "scikit-learn/iris": (_iris_cm, 150, 0),
    "scikit-learn/adult-census-income": (_census, 2000, 0),
    "julien-c/titanic-survival": (_titanic, 887, 0),
}
"""Name → (its columns, rows to train with, rows to test with)."""


def _make(name: str, split: str, rows: int) -> object:
    """One split of a table."""
    import datasets

    columns = _TABLES[name][0](Streams(0)("stand-in", name, split), rows)
    table = datasets.Dataset.from_dict(columns)
    for column in {"img", "image"} & set(columns):
        table = table.cast_column(column, datasets.Image())
    for column in {"label", "fine_label", "coarse_label"} & set(columns):
        if {"img", "image"} & set(columns):
            count = 100 if name.endswith("100") else 10
            table = table.cast_column(column, datasets.ClassLabel(num_classes=count))
    return table


def install() -> None:
    """From now on `datasets.load_dataset` gives these tables."""
    import datasets

    download = datasets.load_dataset

    def load_dataset(path: str, *arguments: object, **options: object) -> object:
        name = path.lower()
        if name not in _TABLES:
            return download(path, *arguments, **options)
        _, train, test = _TABLES[name]
        rows = {"train": train, "test": test}
        splits = {
            split: _make(name, split, count) for split, count in rows.items() if count
        }
        asked = options.get("split")
        return splits[str(asked)] if asked else datasets.DatasetDict(splits)

    datasets.load_dataset = load_dataset
