"""Getting a published data set: from a folder, or from its publisher.

What arrives is checked before anything is installed, and files are installed whole or not at all.
A download that the connection breaks goes on where it stopped, at once and in the next attempt of
the user's; only such a beginning of a download is ever kept, in the cache folder, never where data
sets are.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import http.client
import os
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from simfed.ground.errors import InputError, SimfedError
from simfed.ground.inputs import make_missing_file_error
from simfed.ground.units import format_bytes
from simfed.ground.version import VERSION
from simfed.learn.data.store import Progress, Published, find_cache_folder, list_data_folders

TIMEOUT_S = 30.0
"""Silence after which a connection counts as broken."""
FRUITLESS_ATTEMPTS = 3
"""A connection that broke is tried again until so many attempts in a row bring nothing new."""
LARGEST_BYTES = 1 << 30
"""More than any published file; nobody fills the disk."""
CHUNK_BYTES = 1 << 18


class Unavailable(SimfedError):
    """One origin did not work; the next may."""


class Broken(Unavailable):
    """The connection broke, and what has arrived is worth keeping."""


def get(
    published: Published, *, source: Path | None = None, progress: Progress = lambda *_: None
) -> tuple[Path, str]:
    """Make a published data set available on this machine; returns where it is and what was done.

    With `source`, a folder or archive that the user names, from there and nowhere else. Otherwise
    what a data folder already holds, or else its origins one after another. It is installed in the
    first data folder. Raises: `InputError` for a wrong source; `SimfedError` when no origin works
    (it says which files go where), when the disk is full, and when another process is fetching it.
    """
    if published.home:
        published()
        return published.home, "comes with simfed"
    if source is None:
        with contextlib.suppress(InputError):  # damaged: fetched again
            place = published.locate()
            if place:
                return place[0], "already here"
    root = list_data_folders()[0]
    with _disk_trouble_in_a_sentence(published, root):
        _check_space(published, root)
        if source is not None:
            return published.install(_read_source(published, source), root), f"from {source}"
        return _fetch_from_origins(published, root, progress)


def _read_source(published: Published, source: Path) -> dict[str, bytes]:
    if not source.exists():
        raise make_missing_file_error(source).within("--from")
    try:
        for view in published.views(source):
            files = published.read(view, anywhere=True)
            if files is not None:
                return files
    except InputError as error:
        raise error.within("--from") from None
    raise InputError(
        f"a folder or archive with {', '.join(published.files)}", where="--from", got=str(source)
    )


def _fetch_from_origins(published: Published, root: Path, progress: Progress) -> tuple[Path, str]:
    failures = []
    with _alone(published, find_cache_folder() / "partial" / published.name) as partial_folder:
        for number, origin in enumerate(published.origins):
            folder = partial_folder / str(number)
            folder.mkdir(exist_ok=True)
            try:
                place = origin.fetch(folder, progress)
                installed = published.install(_read_fetched(published, place), root)
            except Broken as error:  # what it brought stays for the next attempt
                failures.append(f"{origin.label}: {error}")
            except (Unavailable, InputError) as error:
                shutil.rmtree(folder)
                failures.append(f"{origin.label}: {error}")
            except OSError:  # the disk may be full
                shutil.rmtree(folder)
                raise
            else:
                for child in partial_folder.iterdir():
                    shutil.rmtree(child)
                return installed, f"from {origin.label}"
    reason = f"could not be fetched ({'; '.join(failures)})" if failures else "has no address"
    raise SimfedError(
        f"{published.title} {reason}; "
        f"put {', '.join(published.files)} into {root / published.folders[0]}, "
        "or name a folder or archive that holds them with --from"
    )


@contextlib.contextmanager
def _alone(published: Published, partial_folder: Path) -> Iterator[Path]:
    """The folder `kept`, for one process at a time; removed afterwards unless something is in
    it."""
    partial_folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(partial_folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # ends with the process, whatever ends it
        yield partial_folder
    except BlockingIOError:
        raise SimfedError(f"{published.title} is being fetched by another process") from None
    finally:
        with contextlib.suppress(OSError):
            partial_folder.rmdir()
            partial_folder.parent.rmdir()
        os.close(lock)


def _read_fetched(published: Published, place: Path) -> dict[str, bytes]:
    for view in published.views(place):
        files = published.read(view, anywhere=True)
        if files is not None:
            return files
    raise Unavailable("its files are not in it")


# ---- origins -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Web:
    """Files at addresses; the last part of an address is the file's name."""

    urls: tuple[str, ...]

    @property
    def label(self) -> str:
        return self.urls[0].rpartition("/")[0]

    def fetch(self, folder: Path, progress: Progress) -> Path:
        for url in self.urls:
            to = folder / url.rpartition("/")[2]
            if not to.exists():  # an earlier attempt may have come this far
                _download_file(url, to, progress)
        return folder


# ---- one file over HTTP ------------------------------------------------------------------------


def _download_file(url: str, to: Path, progress: Progress) -> None:
    """Fetch `url` whole into `to`, going on from what an earlier attempt left beside it."""
    part = to.with_name(f"{to.name}.part")
    attempts, furthest = 1, 0
    while attempts:
        had = _count_bytes(part)
        furthest = max(furthest, had)
        try:
            if _receive(url, part, progress):
                os.replace(part, to)
                return
            reason = f"the connection broke after {format_bytes(max(had, _count_bytes(part)))}"
        except (http.client.HTTPException, OSError) as error:
            if isinstance(error, OSError) and error.errno == errno.ENOSPC:
                raise
            reason = _describe_error(error)
        attempts = FRUITLESS_ATTEMPTS if _count_bytes(part) > furthest else attempts - 1
    size = _count_bytes(part)
    if size:
        raise Broken(f"{to.name}: {reason}; the next attempt goes on from {format_bytes(size)}")
    raise Unavailable(f"{to.name}: {reason}")


def _receive(url: str, part: Path, progress: Progress) -> bool:
    """One request for what `part` lacks; whether the file is whole now.

    A server that cannot go on from the middle sends everything again, into an emptied `part`.
    """
    have = _count_bytes(part)
    headers = {"User-Agent": f"simfed/{VERSION}"} | ({"Range": f"bytes={have}-"} if have else {})
    try:
        answer = urllib.request.urlopen(
            urllib.request.Request(url, headers=headers), timeout=TIMEOUT_S
        )
    except urllib.error.HTTPError as error:
        if error.code != 416 or not have:
            raise
        if error.headers.get("Content-Range") == f"bytes */{have}":
            return True  # nothing lies beyond what we have
        part.unlink()  # the beginning of another file
        return _receive(url, part, progress)
    with answer:
        goes_on = answer.status == 206 and answer.headers.get("Content-Range", "").startswith(
            f"bytes {have}-"
        )
        if answer.status == 206 and not goes_on:
            part.unlink()
            raise http.client.HTTPException("it answered with another part of the file")
        length = answer.headers.get("Content-Length")
        total = int(length) + have * goes_on if length else None
        with open(part, "ab" if goes_on else "wb") as file:
            try:
                while chunk := answer.read(CHUNK_BYTES):
                    file.write(chunk)
                    progress(url.rpartition("/")[2], file.tell(), total)
                    if file.tell() > LARGEST_BYTES:
                        raise Unavailable(f"{part.stem}: more than {format_bytes(LARGEST_BYTES)}")
                return total is None or file.tell() == total
            finally:
                if (
                    file.tell() != total
                    and not goes_on
                    and answer.headers.get("Accept-Ranges") != "bytes"
                ):
                    file.truncate(0)  # it cannot be gone on with


def _count_bytes(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _describe_error(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"HTTP status {error.code}"
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, TimeoutError):
        return "no answer"
    text = cause.strerror if isinstance(cause, OSError) and cause.strerror else str(cause)
    return (
        f"no connection, {text}" if isinstance(cause, OSError) else (text or type(cause).__name__)
    )


# ---- disk --------------------------------------------------------------------------------------


def _check_space(published: Published, root: Path) -> None:
    root.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(root).free
    if free < published.size_bytes:
        raise SimfedError(
            f"{published.title} needs {format_bytes(published.size_bytes)} in {root}, "
            f"where {format_bytes(free)} are free"
        )


@contextlib.contextmanager
def _disk_trouble_in_a_sentence(published: Published, root: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SimfedError(
            f"{published.title} could not be written to {error.filename or root}: "
            f"{error.strerror or error}"
        ) from None
