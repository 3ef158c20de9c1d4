"""A client's update between its training and the server: residuals, compression.

`Encoder.encode` plays a codec on each compressed field of an upload, with what earlier
uploads left out (`ClientState.rests`) and what the codec remembers
(`ClientState.memories`). `take_back` and `undo_earlier` are its inverse where an upload
is lost.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from simfed.compress.choice import Choice
from simfed.compress.codec import Codec, Payload
from simfed.compress.feedback import ErrorFeedback, WithoutFeedback, feedback_for, undo
from simfed.compress.sparsifiers import State as CodecState
from simfed.fleet.contract import Task
from simfed.ground.errors import InputError, RunFailed
from simfed.ground.levels import Level
from simfed.ground.method import Field, Values, Who
from simfed.ground.seeding import Streams
from simfed.learn.state import ClientState, OpenUpload
from simfed.learn.vectors import Change, Sparse
from simfed.schema.distribution import Distribution
from simfed.tasks.tasks import Tasks


class Encoder:
    """Compression of what clients send; what is left out comes in and goes out.

    It keeps nothing of a client: states come with each call. Each process has one.
    """

    def __init__(self, streams: Streams, tasks: Tasks) -> None:
        self._streams = streams
        self.tasks = tasks
        self._players: dict[str, ErrorFeedback | WithoutFeedback] = {}
        self.payloads: dict[str, Payload] | None = None
        """Field → the last payload, where somebody wants to see it."""

    def player(self, choice: Choice) -> ErrorFeedback | WithoutFeedback:
        """Return the player of a choice's codec: with error feedback or without."""
        if choice.strategy not in self._players:
            self._players[choice.strategy] = feedback_for(choice.codec)
        return self._players[choice.strategy]

    def keeps_rest(self, choice: Choice, field: Field) -> bool:
        """Return whether what the codec leaves out goes with the next upload.

        It does where the field wants feedback and the codec is one that is played with
        it.
        """
        return field.feedback and isinstance(self.player(choice), ErrorFeedback)

    def encode(
        self, task: Task, choice: Choice, values: Values, state: ClientState
    ) -> tuple[dict[str, Change], dict[str, tuple[float, int]], ClientState]:
        """Return an upload's payload, its sizes, and the client's state then.

        With error feedback, what does not travel stays as the field's rest. No argument
        is changed.

        Args:
            task: its plan says which fields are compressed.
            choice: codec and K.
            values: field → vector, as the method made it.
            state: the client's, before.

        Returns:
            Field → what the server gets; field → bytes on the wire and entries told,
            where they depend on the data; and the state with the upload among those
            that are under way.

        Raises:
            RunFailed: where a value is not a finite number.
        """
        who, round, player = task.who, task.round, self.player(choice)
        codec = player.codec
        sent: dict[str, Change] = {}
        sizes: dict[str, tuple[float, int]] = {}
        rests, memories, undone = dict(state.rests), dict(state.memories), {}
        for name, value in values.items():
            field = task.plan.up[name]
            if not field.compressed:
                require_finite(value, who.client, round, name)
                sent[name] = value
                continue
            whole, rest, feedback = (
                value.reshape(-1),
                rests.get(name),
                self.keeps_rest(choice, field),
            )
            memory = after = undone[name] = state.memory(name, choice.strategy)
            # what a codec with feedback left behind is not lost when one without is
            # played
            rested = (rest is not None and field.feedback) or (
                feedback and not codec.sends_all
            )
            if rested:
                # of nothing, too: 0 + x makes -0.0 a 0.0, as it does in a rest of zeros
                rests[name] = whole = whole + (0.0 if rest is None else rest)
            require_finite(whole, who.client, round, name)
            if codec.sends_all:
                sent[name] = whole.clone().view_as(value) if rested else value
            else:
                payload = self._play(task, choice, name, whole, memory)
                sent[name] = read_payload(payload, value.shape)
                after, undone[name] = payload.state, codec.undo(payload)
                if self.tasks.field_bytes(task, field, choice) is None:
                    sizes[name] = payload.wire_bytes(self.tasks.index_code), payload.k
            memories[name] = {**memories.get(name, {}), choice.strategy: after}
            if rested and (codec.sends_all or not feedback):
                whole.zero_()
        one = OpenUpload((round, who.turn), choice.label, state.own, undone, sent)
        return sent, sizes, ClientState(state.own, rests, memories, (*state.open, one))

    def _play(
        self, task: Task, choice: Choice, name: str, whole: Tensor, memory: CodecState
    ) -> Payload:
        """Return what a codec makes of a field.

        Args:
            task: of the upload.
            choice: codec and K.
            name: the field's.
            whole: (d,); with feedback it becomes what the codec leaves, in place.
            memory: of the codec, for this client and field.
        """
        who, round, field = task.who, task.round, task.plan.up[name]
        player = self.player(choice)
        draws = self._draws(player.codec, choice, who, name, round)
        layout, k = field.layout_of(who), choice.entries(field.entries)
        try:
            if self.keeps_rest(choice, field):
                payload = player.encode_in_place(
                    None, whole, k, draws, state=memory, layout=layout
                )
            else:
                payload, _ = player.codec.encode(whole, memory, draws, k, layout=layout)
        except InputError:
            if bool(torch.isfinite(whole).all()):
                raise
            raise _make_field_error(who.client, round, name) from None
        if self.payloads is not None:
            self.payloads[name] = payload
        return payload

    def _draws(
        self, codec: Codec, choice: Choice, who: Who, name: str, round: int
    ) -> np.random.Generator | None:
        """Return the random numbers of a play; None for codecs without any.

        Codecs whose entries are `shared` draw by prototype and round, all others by
        client and participation.
        """
        if not codec.draws:
            return None
        others = [] if name == "update" else [name]
        if codec.shared:
            return self._streams(choice.strategy, who.prototype, round, *others)
        return self._streams(choice.strategy, who.client, who.key(round), *others)

    def shared_entries(self, prototype: str, round: int) -> Tensor | None:
        """Return the entries of the update that clients of this prototype send.

        They are the same in a round for all of them whoever comes; else None.
        """
        scenario, who = self.tasks.scenario, self.tasks.first_of(prototype)
        if scenario.aggregation.mode != "synchronous":
            return None  # who is late sends those of an earlier round
        written = []
        for group in scenario.clients:
            policy, k = scenario.policy_of_group(group), scenario.k_of_group(group)
            arms = scenario.arms_of_group(group)
            if group.prototype != prototype:
                continue
            if (
                policy.kind != "uniform"
                or policy.arms_from
                or isinstance(k, Distribution)
            ):
                return None  # K is a client's own
            if group.overlap is not None:
                return None  # every slice has entries of its own
            written += [(arm, k) for arm in arms]
        choice, k = written[0]
        codec = self.player(choice).codec
        if not codec.shared or any(pair != written[0] for pair in written):
            return None
        entries = Level.of(choice.level or k).k(who.parameters)
        draws = self._draws(codec, choice, who, "update", round)
        zeros = np.zeros(who.parameters, np.float32)
        indices = codec.encode(zeros, None, draws, entries)[0].indices
        return None if indices is None else torch.as_tensor(indices)

    def take_back(
        self,
        choice: Choice,
        field: Field,
        value: Change,
        rest: Tensor | None,
        share: float,
    ) -> Tensor | None:
        """Return the rest once what was sent, or a share of it, is back in it.

        Args:
            choice: by which it was sent; where its codec leaves no rest, that is as it
                was.
            field: of the plan.
            value: as it was sent.
            rest: of the field now; None: zeros.
            share: of what was sent, from 0 to 1.
        """
        if not self.keeps_rest(choice, field):
            return rest
        if isinstance(value, Sparse):
            indices, values = value.indices, value.values
        else:
            values = value.reshape(-1)
            indices = torch.arange(len(values), device=values.device)
        rest = values.new_zeros(field.entries) if rest is None else rest.clone()
        undo(rest, Payload(choice.strategy, field.entries, indices, values), share)
        return rest

    def undo_earlier(
        self, choice: Choice, undone: CodecState, sent: Tensor, state: CodecState
    ) -> CodecState:
        """Return a state without an earlier lost upload; see `Codec.undo_earlier`.

        `sent`: what the server would have got.
        """
        return self.player(choice).codec.undo_earlier(state, undone, sent.reshape(-1))


def choose_wire_code(index_code: str) -> str:
    """Return how indices really travel: `ideal` is an accounting without an encoder."""
    return "fixed" if index_code == "ideal" else index_code


def read_payload(payload: Payload, shape: Sequence[int]) -> Change:
    """Return what the server takes a payload for, of a field of this shape."""
    if payload.indices is None or payload.k == payload.length or len(shape) != 1:
        return _move_to_torch(payload.dense()).view(*shape)
    indices, values = map(_move_to_torch, (payload.indices, payload.values))
    return Sparse(indices, values, payload.length)


def _move_to_torch(array: Tensor | np.ndarray) -> Tensor:
    # copied: PyTorch's own memory is aligned alike everywhere
    return array if isinstance(array, Tensor) else torch.tensor(array)


def require_finite(value: Tensor, client: int, round: int, name: str) -> None:
    """Refuse values that are not finite, on a processor.

    An accelerator would have to be waited for.

    Raises:
        RunFailed: with client, round and field.
    """
    if not value.numel() or value.device.type != "cpu" or math.isfinite(value.sum()):
        return
    # the sum may overflow where every value is finite
    if not torch.isfinite(value).all():
        raise _make_field_error(client, round, name)


def _make_field_error(client: int, round: int, name: str) -> RunFailed:
    what = f"client {client}, round {round}: {name}"
    return make_divergence_error(f"{what} has values that are not finite numbers")


def make_divergence_error(problem: str) -> RunFailed:
    """Return the error of training that has left the numbers.

    `problem`: where it is seen.
    """
    return RunFailed(
        f"{problem}: the learning has diverged; a smaller training.learning_rate may "
        f"help"
    )
