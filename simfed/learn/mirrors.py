"""Mirrors of real clients' codecs, to read what builds on earlier uploads.

Used by the server's end of a deployment alone (`simfed.learn.apart.Elsewhere`); a
simulation has the clients' own states at hand.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch

from simfed.compress.choice import Choice
from simfed.compress.codec import Memory, Payload
from simfed.compress.sparsifiers import State as CodecState
from simfed.fleet.contract import Task
from simfed.ground.errors import InputError
from simfed.ground.method import Field
from simfed.ground.plain import Plain
from simfed.learn.apart_checks import check_payload
from simfed.learn.parcel import Parcel, Part, pack
from simfed.learn.tree import decode_tree, encode_tree
from simfed.learn.uploads import choose_wire_code


@dataclass(eq=False)
class _Moved:
    """The effect of an upload on a mirror."""

    key: tuple[int, str, str]
    payload: Payload

    @cached_property
    def undone(self) -> CodecState:
        """The mirror without it."""
        return self.payload.codec.undo(self.payload)


class Mirrors:
    """The server's copies of its clients' codecs.

    `ef21` sends changes of an estimate that both ends have; nothing else needs a
    mirror: where the selection's own state is not sent as indices (`seeded`), its two
    numbers come along.

    Another process that goes on as a client is handed that client's mirrors, so that
    both ends have the same again, whatever the process before it had sent or saved.
    From then on uploads that were asked of the one before move no mirror.
    """

    def __init__(self, index_code: str) -> None:
        """Begin without a mirror.

        index_code: the scenario's, by which payloads are read.
        """
        self._code = choose_wire_code(index_code)
        self._of: dict[tuple[int, str, str], Memory] = {}
        self._last: dict[tuple[str, str], _Moved] = {}
        """(label, field) → what an upload under way did to its mirror, in the order in
        which they came."""
        self._asked: dict[str, int] = {}
        """Label → client of the uploads that may move mirrors."""
        self._alone = threading.Lock()
        """Mirrors are handed over on the connections' thread."""

    def ask(self, task: Task) -> None:
        """Take note that a client is asked for an upload that may move its mirrors."""
        with self._alone:
            self._asked[task.label] = task.client

    def read(
        self,
        task: Task,
        name: str,
        field: Field,
        choice: Choice,
        data: Part,
        state: Plain,
    ) -> Payload:
        """Return one compressed field of an upload, and move its mirror.

        Args:
            task: of the upload.
            name: the field's.
            field: as the task plans it.
            choice: codec and K by which it travels.
            data: what came.
            state: what its client said of its selection.

        Raises:
            InputError: for what no encoder wrote.
        """
        if not isinstance(data, bytes):
            raise InputError("a payload", where=name, got="an array")
        key, codec = (task.client, name, choice.strategy), choice.codec
        memory: Any = state
        length, layout = field.entries, field.layout_of(task.who)
        k = choice.entries(length)
        with self._alone:
            if is_mirrored(choice):
                if task.label not in self._asked:
                    raise InputError(
                        "an upload of the process that the client is now", where=name
                    )
                memory = (
                    Memory(state, self._of[key].arrays) if key in self._of else None
                )
            try:
                payload = codec.from_bytes(
                    data, length, k, self._code, layout=layout, state=memory
                )
                check_payload(name, payload, length)
            except InputError:
                raise
            except Exception as error:  # whatever a codec makes of a stranger's bytes
                allowed = f"a payload that {choice.strategy} has written"
                raise InputError(
                    allowed, where=name, got=type(error).__name__
                ) from error
            if isinstance(payload.state, Memory):
                self._of[key] = payload.state
                self._last[task.label, name] = _Moved(key, payload)
        return payload

    def settle(self, label: str, *, stands: bool) -> None:
        """Note that an upload stands, or that its client takes it back.

        Args:
            label: of its task.
            stands: False takes what it did out of the mirrors, whatever came after it.
        """
        with self._alone:
            self._asked.pop(label, None)
            for at in [at for at in self._last if at[0] == label]:
                order = list(self._last)
                later = [self._last[one] for one in order[order.index(at) + 1 :]]
                moved = self._last.pop(at)
                if not stands:
                    self._undo(moved, [one for one in later if one.key == moved.key])

    def _undo(self, moved: _Moved, later: Sequence[_Moved]) -> None:
        """Take out of a mirror what an upload did.

        `later` ones stay, as at the client.
        """
        if not later:
            self._of[moved.key] = moved.undone
            return
        undo = partial(
            moved.payload.codec.undo_earlier,
            undone=moved.undone,
            sent=moved.payload.dense(),
        )
        self._of[moved.key] = undo(self._of[moved.key])
        for one in later:
            one.undone = undo(one.undone)

    def hand_over(self, client: int) -> Parcel:
        """Return a client's mirrors, for another process in its place.

        Uploads that are under way lose their right to move them. Any thread may call
        it.
        """
        with self._alone:
            self._asked = {
                label: asked for label, asked in self._asked.items() if asked != client
            }
            self._last = {
                at: last for at, last in self._last.items() if last.key[0] != client
            }
            mine = {key: one for key, one in self._of.items() if key[0] == client}
        arrays: dict[str, np.ndarray] = {}
        return pack({"mirrors": _encode_mirrors(mine, arrays)}, arrays)

    def plain(self, arrays: dict[str, np.ndarray]) -> list[Plain]:
        """Return every mirror with its (client, field, arm); vectors go to `arrays`."""
        return _encode_mirrors(self._of, arrays)

    def restore(self, plain: Sequence[Plain], arrays: Mapping[str, np.ndarray]) -> None:
        """Inverse of `plain`."""
        self._of = decode_mirrors(plain, arrays)


def is_mirrored(choice: Choice) -> bool:
    """Return whether both ends keep the codec's memory."""
    return choice.codec.name == "ef21"


def _encode_mirrors(
    mirrors: Mapping[tuple[int, str, str], Memory], arrays: dict[str, np.ndarray]
) -> list[Plain]:
    return [
        [*key, encode_tree(mirrors[key], f"mirrors/{'/'.join(map(str, key))}", arrays)]
        for key in sorted(mirrors)
    ]


def decode_mirrors(
    plain: Sequence[Plain], arrays: Mapping[str, np.ndarray]
) -> dict[tuple[int, str, str], Memory]:
    """Return (client, field, strategy) → what both ends keep.

    From `Mirrors.plain` or `hand_over`.
    """
    cpu = torch.device("cpu")
    return {
        (client, name, arm): decode_tree(one, arrays, cpu)
        for client, name, arm, one in plain
    }
