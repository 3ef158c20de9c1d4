"""Data: the published sets, getting and reading them, and dealing them to clients.

No torch here. Begin reading at `own`, which opens whatever a scenario's `dataset`
names:

- `dataset`: a `Dataset`, all samples and labels in memory.
- `published`, `store`, `fetch`, `texts`: sets with a name, their files and digests.
- `arrays`, `tables`, `pictures`, `leaf`, `hub`: a `Reader` for each kind of a user's
  own files; `outline` turns what one reads into `Labels`.
- `partition`, `sizing`: which training samples each client owns.
- `looks`: images that differ from client to client.
- `owned`: who owns what, counted for people.
"""

from simfed.learn.data.dataset import Dataset, load_dataset
from simfed.learn.data.own import (
    count_held_out,
    files_digest,
    hold_out,
    labels_in,
    load_data,
    public_digest,
    split_of,
)
from simfed.learn.data.partition import Split, deal
from simfed.learn.data.published import (
    CIFAR10,
    FASHION_MNIST,
    MNIST,
    MNIST_MINI,
    SOTU,
    TEXT_MINI,
)

__all__ = [
    "CIFAR10",
    "FASHION_MNIST",
    "MNIST",
    "MNIST_MINI",
    "SOTU",
    "TEXT_MINI",
    "Dataset",
    "Split",
    "count_held_out",
    "deal",
    "files_digest",
    "hold_out",
    "labels_in",
    "load_data",
    "load_dataset",
    "public_digest",
    "split_of",
]
