"""Digests by which runs, learning and parts are known again."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

__all__ = ["digest_of", "file_digest"]


def digest_of(value: Any) -> str:
    """A hash of plain values; the order of keys counts, as that of prototypes does in a run."""
    return hashlib.blake2b(json.dumps(value).encode(), digest_size=16).hexdigest()


def file_digest(path: Path) -> str:
    """A hash of a file's content."""
    return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
