"""Changes of the server's model that travel down in place of models.

For each field of weights the server keeps what a client that is up to date holds. At a
merge it compresses the model less that, and everybody's next download carries what
comes of it. So what was left out is in the next change by itself: the error at the
server is the model less what clients hold, and after any number of merges the sum of
what was sent is the change of the model less the error. Source: Tang et al.,
"DoubleSqueeze", 2019, where what clients hold is the model itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from simfed.compress import Payload, with_error_feedback
from simfed.compress.sparsifiers import State as CodecState
from simfed.fleet.contract import Task
from simfed.ground.errors import RunFailed
from simfed.ground.method import Field, State, Values, Who
from simfed.ground.plain import Plain
from simfed.ground.seeding import Streams
from simfed.learn.tree import Arrays, decode_tree, encode_tree
from simfed.learn.uploads import choose_wire_code, make_divergence_error
from simfed.tasks.tasks import Tasks


class Changes:
    """The changes of one field of weights of one prototype, merge after merge."""

    def __init__(self, tasks: Tasks, who: Who, field: Field) -> None:
        """Begin without a change.

        Args:
            tasks: know by what changes travel, K and sizes.
            who: any client of the prototype.
            field: of weights.
        """
        self._prototype = who.prototype
        self._player = with_error_feedback(tasks.change_choice.codec)
        self._k, self._length = tasks.change_entries(field), field.entries
        self._layout = field.layout_of(who)
        self._index_code = tasks.change_code
        self._varies = tasks.change_bytes(who, field) is None
        self._memory: CodecState = None
        self._last: Payload | None = None
        self.whole_bytes = 4 * field.entries
        """Bytes of the weights themselves, as they travel to real clients."""
        self.sizes: list[float] = []
        """Bytes of each change so far, where they depend on what is learned."""
        self._before: tuple[CodecState, int] = None, 0

    def next(self, model: Tensor, held: Tensor, rng: np.random.Generator) -> Tensor:
        """Return what up-to-date clients, who hold `held`, add to it.

        Args:
            model: (d,), the server's.
            held: (d,), without what earlier changes left out.
            rng: of this version's draws.

        Raises:
            RunFailed: for a model that is not finite.
        """
        self._before = self._memory, len(self.sizes)
        error = model - held
        if not bool(torch.isfinite(error).all()):
            what = f"the model of {self._prototype}"
            raise make_divergence_error(
                f"{what} has values that are not finite numbers"
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
        """Drop the changes since the last accepted one: they were never sent."""
        self._memory, count = self._before
        del self.sizes[count:]

    def keep(self) -> None:
        """Take note that the last change was sent; it is not undone any more."""
        self._before = self._memory, len(self.sizes)

    def written(self) -> tuple[bytes, CodecState]:
        """Return the last change as it travels, and the selection's state.

        Its receiver must know the latter.
        """
        assert self._last is not None
        state = self._last.codec.tell(self._last.state_before)
        return self._last.encoded(choose_wire_code(self._index_code)), state

    def read(self, data: bytes, state: CodecState) -> NDArray[np.float32]:
        """Return what `next` returned, from what `written` made of it.

        Args:
            data: the change as it travels.
            state: of the selection, as `written` told it.

        Raises:
            InputError: for bytes that no encoder wrote.
        """
        payload = self._player.codec.from_bytes(
            data, self._length, self._k, choose_wire_code(self._index_code),
            layout=self._layout, state=state,
        )  # fmt: skip
        vector: NDArray[np.float32] = payload.dense()
        return vector

    def plain(self, name: str, arrays: Arrays) -> list[Plain]:
        """Return what a checkpoint keeps; vectors go to `arrays`."""
        return [self.sizes, encode_tree(self._memory, f"{name}/memory", arrays)]

    def restore(self, sizes: Sequence[float], memory: CodecState) -> None:
        """Inverse of `plain`, its memory read again."""
        self.sizes, self._memory = list(sizes), memory
        self.keep()


def make_changes(tasks: Tasks, who: Who) -> dict[str, Changes]:
    """Return field of weights → its changes, for a client's prototype.

    None where models travel whole.
    """
    if tasks.scenario.downlink.compression is None:
        return {}
    return {
        name: Changes(tasks, who, field)
        for name, field in tasks.list_weights_down(who, 1).items()
    }


class ChangeKeeper(Protocol):
    """A keeper of the changes that travel down."""

    def add(self, version: int) -> None:
        """Take the changes made last, which lead to this version."""
        ...

    def undo(self, version: int) -> None:
        """Drop those that lead to this version: they were never sent."""
        ...


_Key = tuple[str, str]
"""(prototype, field of weights)"""


class HeldModels:
    """The server's models as up-to-date clients hold them.

    Changes travel down in place of models; it is empty where models travel whole.
    """

    def __init__(self, streams: Streams, tasks: Tasks, server: State) -> None:
        """Everybody is sent the first models, of this state of the server, whole."""
        self._streams, self._tasks = streams, tasks
        self._scenario = scenario = tasks.scenario
        self._changes: dict[_Key, Changes] = {}
        self._weights: dict[_Key, Tensor] = {}
        """The weights that clients are to have."""
        self.held: dict[_Key, Tensor] = {}
        """The weights that they have, up to what was left out; never changed in place.
        """
        self.version = 0
        """The version that they have, or had before a merge that was undone."""
        self.watchers: list[ChangeKeeper] = []
        """Whoever is to know of each change."""
        self._round = 1
        """The round in which they are to have it: a merge that is undone is a round
        without a version."""
        if scenario.downlink.compression is None:
            return
        self.note(server, 1)
        for prototype in scenario.prototypes:
            made = make_changes(tasks, tasks.first_of(prototype))
            self._changes |= {
                (prototype, name): changes for name, changes in made.items()
            }
        for key in self._changes:
            self.held[key] = self._weights[key].clone()

    def note(self, server: State, round: int) -> None:
        """Take note of what clients are to have in `round`.

        Args:
            server: the state that sends it.
            round: after the last one, the last one.
        """
        if self._scenario.downlink.compression is None:
            return
        self._round = round = min(round, self._scenario.rounds)
        for prototype in self._scenario.prototypes:
            who = self._tasks.first_of(prototype)
            sent = self._tasks.method.send(server, who, round)
            for name in self._tasks.list_weights_down(who, round):
                self._weights[prototype, name] = sent[name]

    def advance(self, server: State, round: int, version: int) -> None:
        """Let clients hold, after the merge of `round`, what the next change makes.

        Raises: `RunFailed` for a model that is not finite.
        """
        self.note(server, round + 1)
        for key, changes in self._changes.items():
            draws = self._streams("downlink", *key, version)
            held = self.held[key]
            sent = changes.next(self._weights[key].reshape(-1), held.reshape(-1), draws)
            self.held[key] = held + sent.view_as(held)
        self.version = version
        for watcher in self.watchers:
            watcher.add(version)

    def settle(self, *, stands: bool) -> None:
        """Note whether the last changes were sent, or the merge was undone before."""
        for changes in self._changes.values():
            changes.keep() if stands else changes.undo()
        for watcher in () if stands else self.watchers:
            watcher.undo(self.version)

    def arrived(self, task: Task, down: Values) -> Values:
        """Return what a client has of `down` once changes have arrived.

        Args:
            task: of the client.
            down: the fields as the method sends them.

        Raises:
            RunFailed: for weights that are not the same for all clients of a prototype.
        """
        if not self._changes:
            return down
        arrived = dict(down)
        for name in down.keys() & self.of_prototype(task.prototype).keys():
            weights = self._weights[task.prototype, name]
            if down[name] is not weights and not torch.equal(down[name], weights):
                raise RunFailed(
                    f"method {self._scenario.method.kind} sends {name} that differ "
                    f"between the clients of {task.prototype}, of which "
                    "downlink.compression knows one"
                )
            arrived[name] = self.held[task.prototype, name]
        return arrived

    def of_prototype(self, prototype: str) -> dict[str, Changes]:
        """Field of weights → the changes of it that were sent to this prototype."""
        return {
            name: changes
            for (owner, name), changes in self._changes.items()
            if owner == prototype
        }

    def sizes(self, prototype: str) -> dict[str, list[float]]:
        """Bytes of each change so far, where they depend on what is learned."""
        return {
            name: changes.sizes
            for name, changes in self.of_prototype(prototype).items()
        }

    def plain(self, arrays: Arrays) -> dict[str, Plain]:
        """Return what a checkpoint keeps of them; vectors go to `arrays`."""
        return {
            "held_in": self._round,
            "changes": [
                [*key, *changes.plain(f"changes/{'/'.join(key)}", arrays)]
                for key, changes in self._changes.items()
            ],
            "held": [
                [*key, encode_tree(held, f"held/{'/'.join(key)}", arrays)]
                for key, held in self.held.items()
            ],
        }

    def restore(
        self, facts: Mapping[str, Plain], arrays: Mapping[str, Plain], server: State
    ) -> None:
        """Inverse of `plain`; `server`: its state then."""
        device = next((held.device for held in self.held.values()), torch.device("cpu"))
        for prototype, name, sizes, memory in facts.get("changes", ()):
            self._changes[prototype, name].restore(
                sizes, decode_tree(memory, arrays, device)
            )
        for prototype, name, held in facts.get("held", ()):
            self.held[prototype, name] = decode_tree(held, arrays, device)
        self.note(server, facts["held_in"])
