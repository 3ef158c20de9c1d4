"""What the server sends of its model where changes travel down in place of models.

For each field of weights the server keeps what a client that is up to date holds. At a merge it
compresses the model less that, and everybody's next download carries what comes of it. So what was
left out is in the next change by itself: the error at the server is the model less what clients
hold, and after any number of merges the sum of what was sent is the change of the model less the
error. Source: Tang et al., "DoubleSqueeze", 2019, where what clients hold is the model itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from simfed.compress import Payload, with_error_feedback
from simfed.fleet.tasks import Tasks
from simfed.ground.errors import RunFailed
from simfed.ground.method import Field, Who
from simfed.learn.apart import plain_state, wire_code
from simfed.learn.tree import to_plain
from simfed.scenario import Scenario

__all__ = ["Changes"]


class Changes:
    """The changes of one field of weights of one prototype, merge after merge."""

    def __init__(self, scenario: Scenario, tasks: Tasks, who: Who, field: Field) -> None:
        """`who`: any client of the prototype."""
        self._prototype = who.prototype
        self._player = with_error_feedback(tasks.change_choice.codec)
        self._k, self._length = tasks.change_entries(field), field.entries
        self._layout = field.layout_of(who)
        self._index_code = tasks.change_code
        self._varies = tasks.change_bytes(who, field) is None
        self._memory: Any = None
        self._last: Payload | None = None
        self.whole_bytes = 4 * field.entries
        """Of the weights themselves, as they travel to real clients."""
        self.sizes: list[float] = []
        """Bytes of each change so far, where they depend on what is learned."""
        self._before: tuple[Any, int] = None, 0

    def next(self, model: Tensor, held: Tensor, rng: np.random.Generator) -> Tensor:
        """What up-to-date clients, who hold `held`, add to it. Raises: `RunFailed` for a model that
        is not finite."""
        self._before = self._memory, len(self.sizes)
        error = model - held
        if not bool(torch.isfinite(error).all()):
            raise RunFailed(
                f"the model of {self._prototype} has values that are not finite numbers: the "
                "learning has diverged; a smaller training.learning_rate may help"
            )
        payload = self._player.encode_in_place(
            None, error, self._k, rng, state=self._memory, layout=self._layout
        )
        self._memory, self._last = payload.state, payload
        if self._varies:
            self.sizes.append(payload.wire_bytes(self._index_code))
        sent: Tensor = payload.dense()
        return sent

    def undo(self) -> None:
        """The change since the last accepted one, if there is any, was never sent."""
        self._memory, count = self._before
        del self.sizes[count:]

    def keep(self) -> None:
        """The last change was sent; it is not undone any more."""
        self._before = self._memory, len(self.sizes)

    def written(self) -> tuple[bytes, Any]:
        """The last change as it travels, and what its receiver must know of the selection."""
        assert self._last is not None
        state = plain_state(self._last.state_before)
        return self._last.encoded(wire_code(self._index_code)), state

    def read(self, data: bytes, state: Any) -> Any:
        """What `next` gave, of what `written` made of it. Raises: `InputError`."""
        payload = self._player.codec.from_bytes(
            data, self._length, self._k, wire_code(self._index_code),
            layout=self._layout, state=state,
        )  # fmt: skip
        return payload.dense()

    def plain(self, name: str, arrays: dict[str, Any]) -> list[Any]:
        """What a checkpoint keeps; vectors go to `arrays`."""
        return [self.sizes, to_plain(self._memory, f"{name}/memory", arrays)]

    def restore(self, sizes: Sequence[float], memory: Any) -> None:
        """Inverse of `plain`, its memory read again."""
        self.sizes, self._memory = list(sizes), memory
        self.keep()
