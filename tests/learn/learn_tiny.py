"""A published data set of a few bytes, for tests of reading and fetching: 20 + 5
samples of 2×2.
"""

import gzip
import hashlib
import io
import struct
import tarfile

import numpy as np

from simfed.learn import DatasetFacts, Published, PublishedFile, load_data
from simfed.scenario import DatasetSpec


def spec(home, **keys):
    """The section `dataset` of a scenario in a folder."""
    return DatasetSpec.model_validate(keys, context={"folder": home})


def load(home, **keys):
    return load_data(spec(home, **keys))


def idx(array):
    """A file in MNIST's format."""
    return (
        struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
        + array.tobytes()
    )


_rng = np.random.default_rng(1)
TINY_FILES = {
    "train-images-idx3-ubyte": idx(_rng.integers(0, 256, (20, 2, 2), dtype=np.uint8)),
    "train-labels-idx1-ubyte": idx((np.arange(20) % 3).astype(np.uint8)),
    "t10k-images-idx3-ubyte": idx(_rng.integers(0, 256, (5, 2, 2), dtype=np.uint8)),
    "t10k-labels-idx1-ubyte": idx((np.arange(5) % 3).astype(np.uint8)),
}

TINY = Published(
    name="tiny",
    title="Tiny",
    facts=DatasetFacts((1, 2, 2), 3, 20, 5),
    mean=(0.5,),
    sd=(0.5,),
    licence="none",
    citation="none",
    folders=("Tiny/raw", "tiny"),
    files={
        n: PublishedFile(hashlib.sha256(c).hexdigest(), len(c))
        for n, c in TINY_FILES.items()
    },
    archives=("tiny.tar.gz",),
)


def write_tiny(folder, *, packed=False, leave_out=None):
    """Write Tiny's files into `folder`, gzipped if `packed`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in TINY_FILES.items():
        if name != leave_out:
            path = folder / (f"{name}.gz" if packed else name)
            path.write_bytes(gzip.compress(content) if packed else content)


def write_tar(path, prefix):
    """Write an archive of Tiny's files, gzipped if its name says so."""
    with tarfile.open(path, "w:gz" if path.suffix == ".gz" else "w") as tar:
        for name, content in TINY_FILES.items():
            member = tarfile.TarInfo(prefix + name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
