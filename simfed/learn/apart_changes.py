"""Models on their way down to real clients: whole, or as what they have changed by.

The server's end keeps the changes that it has made, as they travel; a client's end
keeps what it has, to which changes are added. Both come to the same bits. What a client
has is the version of its last task, as messages reach it in their order; a client of
whom that is not known, because it was lost or is another process now, is sent
everything.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from simfed.ground.errors import InputError
from simfed.ground.plain import Plain
from simfed.learn.changes import Changes
from simfed.learn.parcel import Part

_SAID_BYTES = 64
"""The most bytes that a message says of one change."""


class ChangesDown:
    """The server's end, of one prototype: changes as bytes, by the version they make.

    It watches `HeldModels`. Changes so old that the whole model is shorter are dropped.
    """

    def __init__(self, changes: Mapping[str, Changes]) -> None:
        """Begin without a change.

        changes: by field of weights; it makes those that travel.
        """
        self._changes = changes
        self._written: dict[int, dict[str, tuple[bytes, Any]]] = {}

    def add(self, version: int) -> None:
        """The changes made last lead to this version, if it comes to stand."""
        self._written[version] = {
            name: change.written() for name, change in self._changes.items()
        }
        spent = dict.fromkeys(self._changes, 0)
        for written in sorted(self._written, reverse=True):
            if all(
                spent[name] >= change.whole_bytes
                for name, change in self._changes.items()
            ):
                del self._written[written]  # who lacks it is sent everything
                continue
            for name, (data, _) in self._written[written].items():
                spent[name] += len(data) + _SAID_BYTES

    def undo(self, version: int) -> None:
        """Forget the changes that lead to this version.

        Its merge was undone, so none was sent.
        """
        self._written.pop(version, None)

    def parts(
        self,
        held: int | None,
        version: int,
        model: Mapping[str, Tensor],
        still: Collection[str],
    ) -> tuple[dict[str, Plain], dict[str, Part]]:
        """Return what of `model` travels to a client, and what is said of it.

        Args:
            held: the version that the client has; None: not known, so all is sent.
            version: of `model`.
            model: its fields.
            still: fields that change with the weights alone: not sent to one that has
                this version.

        Returns:
            The facts that `ChangesHeld.arrived` reads, and the parts of the parcel.
        """
        states: dict[str, list[Plain]] = {}
        parts: dict[str, Part] = {}
        for name, value in model.items():
            missed = self._list_changes_since(held, version, name)
            if missed is None and held == version and name in still:
                missed = []
            if missed is None:
                parts[name] = value.detach().cpu().numpy()
                continue
            states[name] = [state for _, state in missed]
            for number, (data, _) in enumerate(missed):
                parts[f"{name}/{number}"] = data
        return {"version": version, "held": held, "changes": states}, parts

    def _list_changes_since(
        self, held: int | None, version: int, name: str
    ) -> list[tuple[bytes, Any]] | None:
        """Return the changes of a field from one version to another.

        Each as its bytes and what its receiver must know of the codec's state. None
        where one of them is not known any longer, or all are no less than the whole
        field.
        """
        if held is None or name not in self._changes:
            return None
        needed = range(held + 1, version + 1)
        if any(number not in self._written for number in needed):
            return None
        changes = [self._written[number][name] for number in needed]
        size = sum(len(data) + _SAID_BYTES for data, _ in changes)
        return changes if size < self._changes[name].whole_bytes else None


class ChangesHeld:
    """A client's copy of the server's model, brought up to date by changes.

    It has one version at a time, and knows which. Changes of another one are not
    applied: the server is told that the model is missing.
    """

    def __init__(self, changes: Mapping[str, Changes]) -> None:
        """Begin without a model; `changes` read what the server's end has written."""
        self._changes = changes
        self._version: int | None = None
        self._fields: dict[str, Tensor] = {}

    def arrived(
        self, said: Mapping[str, Plain], parts: Mapping[str, Part], *, to_keep: bool
    ) -> dict[str, Tensor] | None:
        """Return the fields of the model that came.

        The client has them from now on if they are `to_keep`; None where changes came
        of another version than it has.

        Raises: `InputError`.
        """
        changed = said["changes"]
        if changed and said["held"] != self._version:
            return None
        pieces = {f"{name}/{n}" for name, of in changed.items() for n in range(len(of))}
        fields = {
            name: read_tensor(parts[name], name) for name in parts.keys() - pieces
        }
        for name, states in changed.items():
            if name in fields or name not in self._fields:
                raise InputError(
                    "a whole field or its changes", where="parts", got=name
                )
            fields[name] = self._fields[name]
            for number, state in enumerate(states):
                data = find_part(parts, f"{name}/{number}")
                if not isinstance(data, bytes) or name not in self._changes:
                    raise InputError(
                        "changes of weights, as bytes", where="parts", got=name
                    )
                change = torch.tensor(self._changes[name].read(data, state))
                fields[name] = fields[name] + change.view_as(fields[name])
        if to_keep:
            self._version, self._fields = said["version"], fields
        return fields


def read_tensor(part: Part, where: str) -> Tensor:
    """Return an array that came, in PyTorch's own memory.

    Raises: `InputError`.
    """
    if isinstance(part, bytes):
        raise InputError("an array", where=where, got="bytes")
    return torch.tensor(part)


def find_part(parts: Mapping[str, Part], name: str) -> Part:
    """Return a part that must be there.

    Raises: `InputError`.
    """
    if name not in parts:
        raise InputError(
            f"a part {name!r}", where="parts", got=", ".join(parts) or "none"
        )
    return parts[name]
