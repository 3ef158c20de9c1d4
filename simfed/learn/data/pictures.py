"""Folders of pictures: a folder per class, or per owner and in it per class."""

from __future__ import annotations

from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from simfed.ground.errors import InputError
from simfed.ground.inputs import check_file, make_missing_file_error
from simfed.learn.data.outline import Outline, Reader, describe_error

SUFFIXES = (
    ".png",
    ".jpg",
    ".jpeg",
    ".bmp",
    ".gif",
    ".webp",
    ".pgm",
    ".ppm",
    ".tif",
    ".tiff",
)

MOST_PIXELS = 50_000_000
"""The most pixels of one picture; more is refused before it is unpacked."""


def read_picture(
    file: str | IO[bytes], where: str, pixels: int | None = None
) -> NDArray[np.uint8]:
    """Return (channels, height, width) bytes of a picture.

    Args:
        file: A path, or the open content of one.
        where: The picture, for errors.
        pixels: Scaled to so many rows and columns, bilinearly; None: as it is.

    Returns:
        1 channel of a grey picture, 3 (red, green, blue) of any other.

    Raises:
        InputError: It cannot be read, or has more than `MOST_PIXELS`.
    """
    from PIL import Image, UnidentifiedImageError  # comes with Matplotlib

    if isinstance(file, str):
        check_file(file)
    try:
        with Image.open(file) as picture:
            if picture.width * picture.height > MOST_PIXELS:
                raise InputError(
                    f"a picture of at most {MOST_PIXELS:,} pixels",
                    where=where,
                    got=f"{picture.width} × {picture.height}",
                )
            grey = picture.mode in ("1", "L", "I", "I;16", "F", "LA")
            plain = picture.convert("L" if grey else "RGB")
            if pixels is not None:
                plain = plain.resize((pixels, pixels), Image.Resampling.BILINEAR)
            values = np.asarray(plain, np.uint8)
    except InputError:
        raise
    except (
        UnidentifiedImageError,
        OSError,
        ValueError,
        Image.DecompressionBombError,
    ) as error:
        problem = f"cannot be read: {describe_error(error)}"
        raise InputError("a picture", where=where, problem=problem) from None
    return np.ascontiguousarray(np.atleast_3d(values).transpose(2, 0, 1))


class FolderReader(Reader):
    """A reader of pictures below `folder`, or below `train` and `test` in it.

    Pictures lie as `CLASS/picture`, or `OWNER/CLASS/picture`. All have one size, or are
    scaled to `pixels`. For sizes and classes only names are read, and the first
    picture.
    """

    def __init__(self, folder: str, pixels: int | None = None) -> None:
        """List the pictures, by the endings of their names.

        Args:
            folder: Without a folder `train` in it a test set is drawn.
            pixels: The scenario's `dataset.pixels`; None: pictures keep their size.

        Raises:
            InputError: There is no such folder, no picture, or pictures lie otherwise.
        """
        self._place, self._pixels = folder, pixels
        root = Path(folder)
        if not root.exists():
            raise make_missing_file_error(folder)
        if not root.is_dir():
            raise InputError("a folder", where=folder)
        parts = [root / "train", root / "test"] if (root / "train").is_dir() else [root]
        self._files = [_list_pictures(part) for part in parts if part.is_dir()]
        depths = {
            len(path.relative_to(part).parts)
            for part, files in zip(parts, self._files, strict=False)
            for path in files
        }
        if depths not in ({2}, {3}):
            raise InputError(
                "pictures in a folder per class, or per owner and class",
                where=folder,
                got=f"pictures {' and '.join(str(d - 1) for d in sorted(depths))} "
                f"folders deep"
                if depths
                else "no picture",
            )
        self._owned = depths == {3}

    def _read(self, path: Path) -> NDArray[np.uint8]:
        return read_picture(str(path), str(path), self._pixels)

    @override
    def outline(self) -> Outline:
        targets = [
            np.array([path.parent.name for path in files]) for files in self._files
        ]
        owners = [
            np.array([path.parent.parent.name for path in files])
            for files in self._files
            if self._owned
        ]
        shape = self._read(self._files[0][0]).shape
        return Outline(self._place, shape, targets, owners)

    @override
    def samples(self, test: bool) -> np.ndarray:
        files = self._files[1 if test else 0]
        first = self._read(self._files[0][0])
        images = np.empty((len(files), *first.shape), np.uint8)
        for into, path in zip(images, files, strict=True):
            picture = self._read(path)
            if picture.shape != first.shape:
                raise InputError(
                    f"pictures like the first, {first.shape}",
                    where=str(path),
                    got=picture.shape,
                    hint="dataset.pixels: 32 scales all"
                    if self._pixels is None
                    else None,
                )
            into[:] = picture
        return images


def _list_pictures(folder: Path) -> list[Path]:
    return sorted(
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in SUFFIXES and path.is_file()
    )
