"""Feature skew: each client's images turned by its own angle and under its own noise.

That is `partition: {kind: feature, rotation: …, noise: …}`. And a public set from a
file, drawn to the size that the scenario says.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from simfed.ground.errors import InputError
from simfed.ground.seeding import Streams
from simfed.learn.data.dataset import Dataset
from simfed.learn.data.own import public_samples
from simfed.learn.data.partition import Split
from simfed.scenario.dataset import Partition


def draw_looks(
    client: int, partition: Partition, streams: Streams
) -> tuple[float, float]:
    """Return a client's angle in degrees, and the sd of its noise.

    Both are uniform: the angle within ±`rotation`, the sd from 0 to `noise`, where
    black to white is 1. They come from the stream "looks" of this client.
    """
    rng = streams("looks", client)
    angle = float(rng.uniform(-partition.rotation, partition.rotation))
    return angle, float(rng.uniform(0, partition.noise))


def apply_looks(
    data: Dataset, split: Split, partition: Partition, streams: Streams
) -> Dataset:
    """Return the data set with every client's training images as that client sees them.

    Public and test images stay as they are. Of images stored as numbers, black to white
    is taken for 1.
    """
    images = np.array(data.train_images)
    scale = 255.0 if images.dtype == np.uint8 else 1.0
    for client, owned in enumerate(split.clients):
        angle, sd = draw_looks(client, partition, streams)
        looks = turn_images(images[owned], angle).astype(np.float32)
        noise = streams("looks noise", client).standard_normal(looks.shape, np.float32)
        looks += scale * sd * noise
        if images.dtype == np.uint8:
            looks = np.rint(looks).clip(0, 255)
        images[owned] = looks
    return replace(data, train_images=images)


def turn_images(images: np.ndarray, degrees: float) -> np.ndarray:
    """Return images (n, channels, height, width) turned counter-clockwise.

    They turn about their centres, nearest pixels; what comes from outside is 0.

    >>> turn_images(np.arange(4).reshape(1, 1, 2, 2), 90)[0, 0].tolist()
    [[1, 3], [0, 2]]
    """
    height, width = images.shape[-2:]
    angle = np.deg2rad(degrees)
    rows, columns = np.indices((height, width), np.float64)
    down, right = rows - (height - 1) / 2, columns - (width - 1) / 2
    from_row = np.rint(np.cos(angle) * down + np.sin(angle) * right + (height - 1) / 2)
    from_column = np.rint(
        -np.sin(angle) * down + np.cos(angle) * right + (width - 1) / 2
    )
    row = from_row.clip(0, height - 1).astype(int)
    column = from_column.clip(0, width - 1).astype(int)
    inside = (row == from_row) & (column == from_column)
    turned: np.ndarray = images[..., row, column] * inside.astype(images.dtype)
    return turned


def draw_public_samples(
    path: str, data: Dataset, count: int, streams: Streams, layout: str | None = None
) -> np.ndarray:
    """Return so many samples of a file, drawn from the run's seed.

    Args:
        path: An npz file with the array `x`; see `public_samples`.
        data: The training set, whose shape and type the samples must have.
        count: Samples to draw, without replacement; they keep the file's order.
        streams: The stream "public" is drawn from.
        layout: The scenario's `dataset.layout`, of images in files.

    Raises:
        InputError: The file has fewer samples, or does not fit the training set.
    """
    samples = public_samples(path, data, layout)
    if len(samples) < count:
        raise InputError(
            f"at most the {len(samples)} samples of {path}",
            where="dataset.public",
            got=count,
        )
    return samples[
        np.sort(streams("public").choice(len(samples), count, replace=False))
    ]
