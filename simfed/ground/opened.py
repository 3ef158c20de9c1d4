"""Which files the plug-ins of a run open, so that the run can say by place and content what it
rests on.

Seen is what Python opens for reading while a plug-in's own code asks for it: `open`, `np.load`,
`Path.read_bytes`. Not seen: what a library in another language opens (it is named in the scenario,
`plugins: [{file: parts.py, with: [mine.npz]}]`), modules that are imported, and files of installed
packages.
"""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path
from typing import Any

from simfed.ground.inputs import check_file, open_file

_SIMFED = str(Path(__file__).resolve().parents[1]) + os.sep
_PACKAGES = "site-packages", "dist-packages"
"""Folders of installed packages, which may lie outside this environment: the user's own, one that
it builds on."""
_PIECE_BYTES = 1 << 20
_NO_DATA = (".py", ".pyc", ".so")

_watched: dict[str, str] = {}
"""File of code → the digest by which its opened files are known."""
_opened: dict[str, dict[str, None]] = {}
_digests: dict[tuple[str, int, int], str] = {}


def watch(file: Path, digest: str) -> None:
    """From now on note which files the code in `file` opens; `digest` is of its content."""
    if not _watched:
        sys.addaudithook(_note_opened)
    _watched[str(file)] = digest


def list_opened(digest: str) -> list[str]:
    """The files that this code has opened in this process, those that are there, sorted."""
    return sorted(path for path in _opened.get(digest, ()) if _is_data(path))


def compute_file_sha256(path: str | os.PathLike[str]) -> str:
    """The SHA-256 of a file; read again only when its size or time has changed."""
    check_file(path)
    status = os.stat(path)
    key = (os.path.abspath(path), status.st_size, status.st_mtime_ns)
    if key not in _digests:
        content = hashlib.sha256()
        with open_file(path) as file:
            while piece := file.read(_PIECE_BYTES):
                content.update(piece)
        _digests[key] = content.hexdigest()
    return _digests[key]


def _note_opened(event: str, arguments: tuple[Any, ...]) -> None:
    """The audit hook: notes a file that is opened for reading by watched code."""
    if (
        event != "open"
        or not isinstance(arguments[0], (str, bytes))
        or not _is_reading(*arguments[1:])
    ):
        return
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if name in _watched:
            path = os.path.realpath(os.fsdecode(arguments[0]))
            _opened.setdefault(_watched[name], {})[path] = None
            return
        if name.startswith(_SIMFED):  # a file that simfed opens on the plug-in's behalf
            return
        frame = frame.f_back  # type: ignore[assignment]


def _is_reading(mode: object, flags: object) -> bool:
    if isinstance(mode, str):
        return not set(mode) & set("wax+")
    return not isinstance(flags, int) or flags & (os.O_WRONLY | os.O_RDWR) == 0


def _is_data(path: str) -> bool:
    packages = {place for place in sys.path if os.path.basename(place) in _PACKAGES}
    places = {sys.prefix, sys.base_prefix, _SIMFED, *packages}
    installed = [os.path.realpath(place) + os.sep for place in places]
    return (
        os.path.isfile(path)
        and not path.endswith(_NO_DATA)
        and not path.startswith((*installed, "/proc/", "/sys/", "/dev/"))
    )
