"""Getting a published data set: from a folder, or from its publisher.

What arrives is checked before anything is installed, and files are installed whole or
not at all.
"""

from __future__ import annotations

import contextlib
import errno
import http.client
import shutil
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

from simfed.ground.errors import InputError, SimfedError, within
from simfed.ground.inputs import make_missing_file_error
from simfed.ground.units import format_bytes
from simfed.ground.version import VERSION
from simfed.learn.data.store import Progress, Published, list_data_folders

TIMEOUT_S = 30.0
"""Silence after which a connection counts as broken."""
LARGEST_BYTES = 1 << 30
"""More than any published file; nobody fills the disk."""
CHUNK_BYTES = 1 << 18


class Unavailable(SimfedError):
    """One origin did not work; the next may."""


def get(
    published: Published,
    *,
    source: Path | None = None,
    progress: Progress = lambda *_: None,
) -> tuple[Path, str]:
    """Make a published data set available on this machine.

    It is installed in the first data folder, whole or not at all. Two processes may
    fetch the same set at once.

    Args:
        published: The data set.
        source: A folder or archive that the user names: files come from there and from
            nowhere else. None: from a data folder that has them, or else from the set's
            origins, one after another.
        progress: Called as bytes arrive; see `Progress`.

    Returns:
        Where the files are, and what was done, as words for people.

    Raises:
        InputError: `source` is missing, or lacks the files.
        SimfedError: No origin works (it says which files go where), or the disk is
            full.
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
        if source is None:
            return _fetch_from_origins(published, root, progress)
        files = _read_source(published, source)
        return published.install(files, root), f"from {source}"


def _read_source(published: Published, source: Path) -> dict[str, bytes]:
    """Return the checked files, name → content, from where `--from` says."""
    if not source.exists():
        raise make_missing_file_error(source).within("--from")
    with within("--from"):
        files = _find_files(published, source)
    if files is None:
        allowed = f"a folder or archive with {', '.join(published.files)}"
        raise InputError(allowed, where="--from", got=str(source))
    return files


def _find_files(published: Published, place: Path) -> dict[str, bytes] | None:
    """Return the published files from anywhere in a folder or archive.

    None: none is there.
    """
    read = (published.read(view, anywhere=True) for view in published.views(place))
    return next(filter(None, read), None)


def _fetch_from_origins(
    published: Published, root: Path, progress: Progress
) -> tuple[Path, str]:
    """Return what `get` does, from the first of the set's origins that works.

    Each is fetched into a temporary folder and read like a folder of the user's.
    """
    failures = []
    for addresses in published.origins:
        label = addresses[0].rpartition("/")[0]
        try:
            with tempfile.TemporaryDirectory(prefix=".fetching-", dir=root) as folder:
                _download_files(addresses, Path(folder), progress)
                files = _find_files(published, Path(folder))
                if files is None:
                    raise Unavailable("its files are not in it")
                return published.install(files, root), f"from {label}"
        except (Unavailable, InputError) as error:
            failures.append(f"{label}: {error}")
    reason = (
        f"could not be fetched ({'; '.join(failures)})"
        if failures
        else "has no address"
    )
    raise SimfedError(
        f"{published.title} {reason}; "
        f"put {', '.join(published.files)} into {root / published.folders[0]}, "
        "or name a folder or archive that holds them with --from"
    )


def _download_files(urls: Sequence[str], folder: Path, progress: Progress) -> None:
    """Fetch files whole into a folder.

    Args:
        urls: The last part of an address is the file's name.
        folder: Where they go.
        progress: See `Progress`.

    Raises:
        Unavailable: There is no connection, or it broke, or a file is too large.
    """
    for url in urls:
        name = url.rpartition("/")[2]
        try:
            _download_file(url, folder / name, progress)
        except (http.client.HTTPException, OSError) as error:
            if isinstance(error, OSError) and error.errno == errno.ENOSPC:
                raise
            raise Unavailable(f"{name}: {_describe_error(error)}") from None


def _download_file(url: str, to: Path, progress: Progress) -> None:
    """Fetch one address to a file, chunk by chunk."""
    request = urllib.request.Request(url, headers={"User-Agent": f"simfed/{VERSION}"})
    with (
        urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer,
        open(to, "wb") as file,
    ):
        length = answer.headers.get("Content-Length")
        while chunk := answer.read(CHUNK_BYTES):
            file.write(chunk)
            progress(to.name, file.tell(), int(length) if length else None)
            if file.tell() > LARGEST_BYTES:
                raise Unavailable(f"{to.name}: more than {format_bytes(LARGEST_BYTES)}")
        if length and file.tell() < int(length):
            broke = f"the connection broke after {format_bytes(file.tell())}"
            raise http.client.HTTPException(broke)


def _describe_error(error: Exception) -> str:
    """Return why an address did not answer, in a few words for people."""
    if isinstance(error, urllib.error.HTTPError):
        return f"HTTP status {error.code}"
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, TimeoutError):
        return "no answer"
    text = (
        cause.strerror if isinstance(cause, OSError) and cause.strerror else str(cause)
    )
    return (
        f"no connection, {text}"
        if isinstance(cause, OSError)
        else (text or type(cause).__name__)
    )


# ---- disk ----------------------------------------------------------------------------


def _check_space(published: Published, root: Path) -> None:
    """Raise a `SimfedError` if the disk of `root` has no room for the set's files."""
    root.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(root).free
    if free < published.size_bytes:
        raise SimfedError(
            f"{published.title} needs {format_bytes(published.size_bytes)} in {root}, "
            f"where {format_bytes(free)} are free"
        )


@contextlib.contextmanager
def _disk_trouble_in_a_sentence(published: Published, root: Path) -> Iterator[None]:
    """Turn an `OSError` of the block into a `SimfedError` that says what and where."""
    try:
        yield
    except OSError as error:
        raise SimfedError(
            f"{published.title} could not be written to {error.filename or root}: "
            f"{error.strerror or error}"
        ) from None
