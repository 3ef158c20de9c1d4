"""Folders of data sets, and readers of published ones from files at hand.

A published data set is a fixed list of files with known SHA-256 digests. They are found
by their names: in torchvision's folders of a data folder, anywhere below a place that
the user names, as published or gzipped, in folders and archives. The digest of their
content decides.

`Published` is a data set; a `View` (`Folder`, `Archive`) a place where its files may
be; `published.py` holds the sets, `fetch.py` gets them.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import lzma
import os
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np
from typing_extensions import override

from simfed.ground.errors import InputError, listed
from simfed.ground.inputs import check_file, open_file
from simfed.learn.data.dataset import Dataset
from simfed.learn.data.formats import Arrays, read_mnist
from simfed.learn.data.outline import describe_error
from simfed.learn.facts import DatasetFacts

Progress = Callable[[str, int, "int | None"], None]
"""Called as (what is being fetched, bytes so far, bytes in all if known)."""

LARGEST_SOURCE_BYTES = 1 << 28
"""More than any file that is converted; of a larger one only so much is read."""


def find_cache_folder() -> Path:
    """Return the user's cache folder of simfed.

    It is `$XDG_CACHE_HOME/simfed`, else the platform's usual place.
    """
    named = os.environ.get("XDG_CACHE_HOME")
    # the XDG specification ignores relative ones
    if named and Path(named).is_absolute():
        return Path(named) / "simfed"
    usual = "Library/Caches" if sys.platform == "darwin" else ".cache"
    return Path.home() / usual / "simfed"


def list_data_folders() -> list[Path]:
    """Return where data sets are looked for, in order.

    The first is where `simfed data get` puts them.
    """
    named = os.environ.get("SIMFED_DATA")
    cached = find_cache_folder() / "datasets"
    return [Path(named).expanduser(), cached] if named else [cached]


class View(Protocol):
    """Files by their path, in a folder or an archive.

    Attributes:
        place: The folder or archive, for errors.
    """

    place: Path

    def read(self, path: str, limit_bytes: int) -> bytes | None:
        """Return at most `limit_bytes` + 1 bytes of the file at `path`.

        None if there is none.
        """
        ...

    def names(self) -> list[str]:
        """Return the paths of all files."""
        ...


class Folder(View):
    """The files below a folder."""

    def __init__(self, place: Path) -> None:
        self.place = place

    @override
    def names(self) -> list[str]:
        below = (path for path in self.place.rglob("*") if path.is_file())
        return sorted(path.relative_to(self.place).as_posix() for path in below)

    @override
    def read(self, path: str, limit_bytes: int) -> bytes | None:
        if not (self.place / path).is_file():
            return None
        with open_file(self.place / path) as file:
            return file.read(limit_bytes + 1)


class Archive(View):
    """The regular files of a tar archive, compressed or not.

    Nothing is unpacked to disk.
    """

    def __init__(self, place: Path) -> None:
        """Open an archive and list its files.

        Raises:
            InputError: It is damaged.
        """
        self.place = place
        check_file(place)
        with self._refuse_damage():
            # read from until the view is dropped
            self._tar = tarfile.open(place)  # noqa: SIM115
            self._members = {
                m.name.removeprefix("./"): m for m in self._tar if m.isfile()
            }

    @override
    def names(self) -> list[str]:
        return sorted(self._members)

    @override
    def read(self, path: str, limit_bytes: int) -> bytes | None:
        if path not in self._members:
            return None
        with self._refuse_damage():
            file = self._tar.extractfile(self._members[path])
            assert file is not None  # a regular file
            return file.read(limit_bytes + 1)

    @contextmanager
    def _refuse_damage(self) -> Iterator[None]:
        """Turn what reading a damaged archive raises into an `InputError`."""
        try:
            yield
        except (
            tarfile.TarError,
            EOFError,
            zlib.error,
            lzma.LZMAError,
            OSError,
        ) as error:
            problem = f"damaged: {describe_error(error).rstrip(':')}"
            allowed = "a whole tar archive"
            raise InputError(allowed, where=str(self.place), problem=problem) from None


@dataclass(frozen=True, slots=True)
class PublishedFile:
    """One file of a published data set, uncompressed: what its content must be.

    `Published.check` compares what was found with it, the size first.
    """

    sha256: str
    size_bytes: int


@dataclass(frozen=True)
class Published:
    """A data set that others published: what it is, its files, and how to read them.

    Called without arguments it is loaded, as every registered data set is. `facts` are
    known without the files, so that plans and time-only runs need none.
    """

    name: str
    title: str
    facts: DatasetFacts
    licence: str
    citation: str
    folders: tuple[str, ...]
    """Folders below a data folder in which its files may lie (torchvision's names);
    they are kept in the first."""
    files: Mapping[str, PublishedFile]
    mean: tuple[float, ...] = ()
    sd: tuple[float, ...] = ()
    decode: Callable[[Mapping[str, bytes]], tuple[Arrays, Arrays]] = read_mnist
    """Files → (samples, labels) of the training and of the test set."""
    made_of: Mapping[str, tuple[str, Callable[[bytes], bytes]]] = field(
        default_factory=dict
    )
    """File → path of another below a data folder, and how it is made of that."""
    archives: tuple[str, ...] = ()
    """Names of archives to look into, in a data folder."""
    origins: tuple[tuple[str, ...], ...] = ()
    """The addresses of its files, of each place that has them all, best first."""
    home: Path | None = None
    """The one folder it is in, if it comes with simfed."""

    @property
    def about(self) -> str:
        """One line for lists: samples, shape, classes, whether it comes with simfed."""
        facts = self.facts
        home = "; comes with simfed" if self.home is not None else ""
        return (
            f"{facts.train_samples:,} training and {facts.test_samples:,} test "
            f"{self.holds}{home}"
        )

    @property
    def holds(self) -> str:
        """The kind of its samples, their shape, and the number of classes."""
        shape = "×".join(map(str, self.facts.input_shape))
        return f"images of {shape}, {self.facts.classes} classes"

    def __call__(self) -> Dataset:
        """Return the data set, from the first data folder that has it.

        Its digests are checked. One that comes with simfed is read once by a process.
        """
        return self._read_dataset() if self.home is None else self._shipped

    @cached_property
    def _shipped(self) -> Dataset:
        return self._read_dataset()

    def _read_dataset(self) -> Dataset:
        (images, labels), (tests, test_labels) = self.decode(self.located())
        return Dataset(
            images,
            labels.astype(np.int64),
            tests,
            test_labels.astype(np.int64),
            classes=self.facts.classes,
            mean=self.mean,
            sd=self.sd,
            licence=self.licence,
            citation=self.citation,
        )

    def located(self) -> dict[str, bytes]:
        """Return its checked files.

        Raises: `InputError` with the command that fetches them.
        """
        place = self.locate()
        if place is None:
            raise InputError(
                "a data set that is on this machine",
                got=self.name,
                hint=(
                    f"`simfed data get {self.name}` fetches it; looked in "
                    f"{listed(map(str, self.homes()))}"
                ),
            )
        return place[1]

    @property
    def size_bytes(self) -> int:
        """Bytes of all files together, once unpacked."""
        return sum(file.size_bytes for file in self.files.values())

    def homes(self) -> list[Path]:
        """Return the folders in which its files are looked for, in order."""
        return [self.home] if self.home else list_data_folders()

    def locate(self) -> tuple[Path, dict[str, bytes]] | None:
        """Return the first place that has the data set, and its checked files.

        None if there is none.
        """
        for home in self.homes():
            for view in self.views(home):
                files = self.read(view)
                if files is not None:
                    return view.place, files
        return None

    def views(self, place: Path) -> Iterator[View]:
        """Return `place` itself, a folder or an archive, then known archives in it."""
        yield Archive(place) if place.is_file() else Folder(place)
        archives = (place / name for name in self.archives)
        yield from (Archive(archive) for archive in archives if archive.is_file())

    def read(self, view: View, *, anywhere: bool = False) -> dict[str, bytes] | None:
        """Return the checked content of the files in `view`; None if none is there.

        Args:
            view: A folder or archive.
            anywhere: By their names anywhere in it; else in the set's own folders
                alone.

        Raises:
            InputError: Names a missing, truncated or altered file.
        """
        paths: dict[str, list[str]] | None = None
        if anywhere:
            paths = {}
            for path in view.names():
                paths.setdefault(path.rpartition("/")[2], []).append(path)
        found: dict[str, bytes] = {}
        for name in self.files:
            if (content := self._find(view, name, paths)) is not None:
                found[name] = content
        missing = [name for name in self.files if name not in found]
        if found and missing:
            raise InputError(
                f"all files of {self.title}",
                where=str(view.place if anywhere else view.place / self.folders[0]),
                problem=f"{listed(missing)} is missing",
            )
        return found or None

    def _find(
        self, view: View, name: str, paths: Mapping[str, list[str]] | None
    ) -> bytes | None:
        """Return the content of one file, under whichever path it has its digest.

        Args:
            view: Where to look.
            name: One of `files`; it may be there gzipped, or as the file that it is
                made of.
            paths: Name → paths of files anywhere in the view; None: in the set's
                folders.

        Returns:
            None where nothing has the name.

        Raises:
            InputError: What is there has another digest everywhere.
        """
        size, trouble = self.files[name].size_bytes, None
        other, convert = self.made_of.get(name, ("", bytes))

        def unpack(packed: bytes) -> bytes:
            return gunzip_bytes(packed, size, f"{view.place}: {name}.gz")

        kinds: list[tuple[str, int, Callable[[bytes], bytes]]] = [
            (name, size, bytes),
            (f"{name}.gz", 2 * size + 1024, unpack),
        ]
        if other:
            kinds.append((other, LARGEST_SOURCE_BYTES, convert))
        for file, most, make in kinds:
            places = [str(Path(folder, file)) for folder in self.folders]
            if paths is not None:
                places = paths.get(file.rpartition("/")[2], [])
            elif file == other:
                places = [other]
            for path in places:
                if (content := view.read(path, most)) is None:
                    continue
                try:
                    made = make(content)
                    self.check(name, made, view.place)
                except InputError as error:
                    trouble = trouble or error
                else:
                    return made
        if trouble is not None:
            raise trouble
        return None

    def check(self, name: str, content: bytes, place: Path) -> None:
        """Raises an `InputError` unless `content` is that of the published file.

        Args:
            name: One of `files`.
            content: What was found, unpacked.
            place: Where, for errors.
        """
        expected = self.files[name]
        where = f"{place}: {name}"
        if len(content) < expected.size_bytes:
            raise InputError(
                f"{expected.size_bytes} bytes",
                where=where,
                problem=f"truncated to {len(content)} bytes",
            )
        actual = hashlib.sha256(content).hexdigest()
        if actual != expected.sha256:
            raise InputError(
                f"a file of {self.title} with SHA-256 {expected.sha256}",
                where=where,
                got=actual,
            )

    def install(self, files: Mapping[str, bytes], root: Path) -> Path:
        """Write the published files below `root`; each appears whole or not at all.

        Args:
            files: Name → checked content.
            root: A data folder, made where it is not there.

        Returns:
            The set's folder, the first of `folders` below `root`.
        """
        root.mkdir(parents=True, exist_ok=True)
        folder = root / self.folders[0]
        with tempfile.TemporaryDirectory(prefix=".incoming-", dir=root) as incoming:
            for name, content in files.items():
                (Path(incoming) / name).write_bytes(content)
            folder.mkdir(parents=True, exist_ok=True)
            for name in files:
                os.replace(Path(incoming) / name, folder / name)
        return folder


def gunzip_bytes(packed: bytes, limit_bytes: int, where: str) -> bytes:
    """Return at most `limit_bytes` + 1 bytes of what is packed.

    A small file may unpack to a huge one, so that the limit comes first.

    Raises:
        InputError: What is packed is truncated or damaged, at `where`.
    """
    with (
        suppress(EOFError, gzip.BadGzipFile, zlib.error),
        gzip.open(io.BytesIO(packed)) as file,
    ):
        return file.read(limit_bytes + 1)
    raise InputError("a whole gzip file", where=where, problem="truncated or damaged")
