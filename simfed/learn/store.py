"""Clients' states in bounded memory: those used last lie there, all others in files.

`--memory` of a run makes a `Store` in place of the plain mapping of
`simfed.learn.clients.Here`; what is learned does not depend on it.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections import OrderedDict
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from simfed.compress.codec import Memory
from simfed.ground.errors import RunFailed
from simfed.ground.plain import Plain
from simfed.learn.state import ClientState, decode_state
from simfed.learn.tree import Arrays, Tree, encode_tree
from simfed.record.checkpoint import UNDER_WAY, FileOfArrays, put_arrays

_OVERHEAD_BYTES = 2048
"""Bytes of a state beside its vectors (measured)."""


class Store(MutableMapping[int, ClientState]):
    """Client → state, a mapping.

    A file is never changed, so a checkpoint links those that it needs. It is written
    when its state is pushed out of memory or saved, and deleted when the client has a
    newer state.
    """

    def __init__(self, most_bytes: float, run: Path | None) -> None:
        """Begin without states, in an own folder.

        Args:
            most_bytes: of states in memory; one lies there at least.
            run: beside whose checkpoints files are; None: in a temporary folder.
        """
        self._most, self.device = most_bytes, torch.device("cpu")
        temporary = Path(tempfile.mkdtemp("-simfed")) if run is None else None
        self._folder = temporary or Path(run or "") / "checkpoint" / UNDER_WAY
        self._warm: OrderedDict[int, tuple[ClientState, int]] = OrderedDict()
        self._file_of: dict[int, tuple[FileOfArrays, str]] = {}
        """Client → the file that has its state as it is, and the facts of it, as
        JSON."""
        self._bytes = 0

    def __getitem__(self, client: int) -> ClientState:
        if client in self._warm:
            self._warm.move_to_end(client)
            return self._warm[client][0]
        file, facts = self._file_of[client]
        state = decode_state(json.loads(facts), file.load(), self.device)
        self._keep(client, state)
        return state

    def __setitem__(self, client: int, state: ClientState) -> None:
        self._drop_file(client)
        self._keep(client, state)

    def __delitem__(self, client: int) -> None:
        self._drop_file(client)
        _, size = self._warm.pop(client, (None, 0))
        self._bytes -= size

    def __iter__(self) -> Iterator[int]:
        return iter(self._warm.keys() | self._file_of.keys())

    def __len__(self) -> int:
        return len(self._warm.keys() | self._file_of.keys())

    def encode(self, client: int, name: str, arrays: dict[str, Any]) -> Tree:
        """Return the facts of a state, for a checkpoint.

        What has its vectors goes to `arrays` as `name`: a file, not arrays.
        """
        if client not in self._file_of:
            self._write(client, self._warm[client][0])
        arrays[name], facts = self._file_of[client]
        return json.loads(facts)

    def adopt(self, client: int, facts: Plain, file: FileOfArrays) -> None:
        """Take up a state from a checkpoint's file, by a link to it.

        Args:
            client: whose state it is.
            facts: as `encode` returned them.
            file: of the checkpoint.

        Raises:
            RunFailed: where the folder cannot be written.
        """
        path = self._folder / file.path.name
        with self._writing(path):
            path.unlink(missing_ok=True)
            os.link(file.path, path)
        self._file_of[client] = file._replace(path=path), json.dumps(facts)

    def close(self) -> None:
        """Delete the files; checkpoints have links of their own."""
        self._warm.clear()
        self._file_of.clear()
        shutil.rmtree(self._folder, ignore_errors=True)
        with suppress(OSError):  # not where there are checkpoints
            self._folder.parent.rmdir()

    def _keep(self, client: int, state: ClientState) -> None:
        """Put a state into memory, and push those used longest ago out of it."""
        _, before = self._warm.pop(client, (None, 0))
        size = _OVERHEAD_BYTES + _count_bytes(state)
        self._warm[client] = state, size
        self._bytes += size - before
        while self._bytes > self._most and len(self._warm) > 1:
            cold, (gone, freed) = self._warm.popitem(last=False)
            self._bytes -= freed
            if cold not in self._file_of:
                self._write(cold, gone)

    def _write(self, client: int, state: ClientState) -> None:
        """Write a state to its file, and know it by that from now on."""
        arrays: Arrays = {}
        facts = json.dumps(encode_tree(state, f"clients/{client}", arrays))
        path = self._folder / f"{client}.safetensors"
        with self._writing(path):
            file = put_arrays(path, arrays)
            # by its content, as links to earlier ones keep their names
            named = path.with_name(f"{client}-{file.digest[-16:]}{path.suffix}")
            os.replace(path, named)
        self._file_of[client] = file._replace(path=named), facts

    @contextmanager
    def _writing(self, path: Path) -> Iterator[None]:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            yield
        except OSError as error:
            problem = error.strerror or error
            raise RunFailed(
                f"{path}: a client's state cannot be written ({problem})"
            ) from error

    def _drop_file(self, client: int) -> None:
        known = self._file_of.pop(client, None)
        if known is not None:
            known[0].path.unlink(missing_ok=True)


def _count_bytes(tree: Tree) -> int:
    """Return the bytes of all vectors of a state."""
    if isinstance(tree, Tensor):
        return tree.nbytes
    if isinstance(tree, Memory):
        return sum(array.nbytes for array in tree.arrays.values())
    if isinstance(tree, Mapping):
        return sum(map(_count_bytes, tree.values()))
    if isinstance(tree, (list, tuple)):
        return sum(map(_count_bytes, tree))
    return 0
