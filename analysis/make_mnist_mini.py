"""Make the embedded data set mnist-mini from MNIST: 1,000 training and 200 test digits
per class.

    simfed data get mnist
    python analysis/make_mnist_mini.py [FOLDER]

The digits are drawn without replacement from MNIST's own training and test set, class
by class, by a generator keyed by the purpose alone, and kept in MNIST's order. The
files are MNIST's idx format, gzipped without a time stamp, so that the same MNIST gives
the same digits; prints what `simfed.learn.data.published` records: the SHA-256 of each
uncompressed file.
"""

from __future__ import annotations

import gzip
import hashlib
import struct
import sys
from pathlib import Path

import numpy as np

from simfed.ground.seeding import Streams
from simfed.learn.data import MNIST_MINI, load_dataset

PER_CLASS = {"train": 1000, "t10k": 200}
LARGEST_BYTES = 2_500_000


def main(folder: Path) -> None:
    """Write the four files into `folder`."""
    mnist = load_dataset("mnist")
    splits = {
        "train": (mnist.train_images, mnist.train_labels),
        "t10k": (mnist.test_images, mnist.test_labels),
    }
    folder.mkdir(parents=True, exist_ok=True)
    total = 0
    for split, (images, labels) in splits.items():
        rng = Streams(0)("mnist-mini", split)
        chosen = np.sort(
            np.concatenate(
                [
                    rng.choice(
                        np.flatnonzero(labels == digit), PER_CLASS[split], replace=False
                    )
                    for digit in range(10)
                ]
            )
        )
        pixels, digits = images[chosen, 0], labels[chosen].astype(np.uint8)
        for name, array in (("images-idx3", pixels), ("labels-idx1", digits)):
            header = struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
            content = header + array.tobytes()
            packed = gzip.compress(content, 9, mtime=0)
            (folder / f"{split}-{name}-ubyte.gz").write_bytes(packed)
            total += len(packed)
            print(
                f"{split}-{name}-ubyte  {hashlib.sha256(content).hexdigest()}  "
                f"{len(packed):,} bytes gzipped"
            )
    if total > LARGEST_BYTES:
        raise SystemExit(f"{total:,} bytes are more than the {LARGEST_BYTES:,} allowed")


if __name__ == "__main__":
    assert MNIST_MINI.home is not None
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else MNIST_MINI.home)
