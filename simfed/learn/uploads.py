"""What becomes of a client's update between its training and the server: residuals, compression,
and what the server takes the upload for."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from simfed.compress.choice import Choice
from simfed.compress.codec import Chain, Codec, Payload
from simfed.compress.feedback import ErrorFeedback, WithoutFeedback, feedback_for, undo
from simfed.compress.sparsifiers import State, TopK
from simfed.fleet.tasks import Tasks
from simfed.ground.errors import InputError, RunFailed
from simfed.ground.levels import Level
from simfed.ground.memo import Memo
from simfed.ground.method import Field, Who
from simfed.ground.plain import Plain
from simfed.ground.seeding import Streams
from simfed.schema.distribution import Distribution

__all__ = [
    "Change",
    "Encoder",
    "Received",
    "Sent",
    "Sparse",
    "Sum",
    "Wire",
    "as_received",
    "require_finite",
    "terms_of",
]


class Sparse(NamedTuple):
    """A flat vector with zeros but at `indices`, which are distinct and sorted."""

    indices: Tensor
    values: Tensor
    length: int


Change: TypeAlias = Tensor | Sparse
"""A vector as the server gets it."""


class Sum(NamedTuple):
    """What an edge server forwards: changes times factors, which are added one after another in
    this order wherever the sum is, so that merging them in two steps rounds as merging in one."""

    terms: Sequence[tuple[Change, float]]


def terms_of(changes: Iterable[tuple[Change | Sum, float]]) -> Iterator[tuple[Change, float]]:
    """Changes and factors, with sums taken apart."""
    for change, factor in changes:
        if isinstance(change, Sum):
            yield from ((one, part * factor) for one, part in change.terms)
        else:
            yield change, factor


Wire: TypeAlias = Tensor | list[Plain]
"""A change as pipes and checkpoints carry it: a tensor, or what a `Sparse` is made of."""


def _expand_sparse(value: Change) -> Tensor:
    if isinstance(value, Sparse):
        return value.values.new_zeros(value.length).index_copy_(0, value.indices, value.values)
    return value


class Received(Mapping[str, Tensor]):
    """An upload as the server got it, by the names of its fields; what came as a few entries is
    made dense when it is asked for."""

    def __init__(self, values: Mapping[str, Change]) -> None:
        """values: tensors, or `Sparse` ones."""
        self._values = dict(values)

    def __getitem__(self, name: str) -> Tensor:
        return _expand_sparse(self._values[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def change(self, name: str) -> Change:
        """As it came: see `Arrival.change`."""
        return self._values[name]


class Sent(NamedTuple):
    """What became of one compressed field."""

    value: Wire
    """What the server takes it for: a tensor, or [indices, values, length] of a `Sparse`."""
    memory: State
    """What the codec remembers of this client afterwards."""
    if_lost: State
    """What it is to remember instead if the upload is lost."""
    rest: Tensor | None
    """What was left out of the field so far, shape (d,); None: nothing ever was."""
    size: tuple[float, int] | None = None
    """Bytes on the wire and entries told, where they depend on the data."""


class Encoder:
    """Compression of what clients send; what is left out comes in and goes out."""

    def __init__(self, streams: Streams, tasks: Tasks) -> None:
        self._streams = streams
        self.tasks = tasks
        self._players: dict[str, ErrorFeedback | WithoutFeedback] = {}
        self._choices: Memo[str, Choice] = Memo()
        self.payloads: dict[str, Payload] | None = None
        """Field → the last payload, where somebody wants to see it."""

    def choice(self, label: str) -> Choice:
        """The choice of this label."""
        if label not in self._choices:
            self._choices[label] = Choice.of(label)
        return self._choices[label]

    def player(self, choice: Choice) -> ErrorFeedback | WithoutFeedback:
        """What plays the codec of one field's choice on a client's residual."""
        if choice.strategy not in self._players:
            self._players[choice.strategy] = feedback_for(choice.codec)
        return self._players[choice.strategy]

    def keeps_rest(self, choice: Choice, field: Field) -> bool:
        """Whether what the codec leaves out of this field goes with the client's next upload."""
        return field.feedback and isinstance(self.player(choice), ErrorFeedback)

    def encode(
        self, who: Who, round: int, choice: Choice, name: str, field: Field, value: Tensor,
        memory: State, rest: Tensor | None,
    ) -> Sent:  # fmt: skip
        """Return what travels of a compressed field; with error feedback, the rest stays.

        No argument is changed. rest: what was left out of the client's field before. Raises:
        `RunFailed` where a value is not a finite number.
        """
        player = self.player(choice)
        codec, feedback = player.codec, self.keeps_rest(choice, field)
        whole = value.reshape(-1)
        # what a codec with feedback left behind is not lost when one without is played
        rests = (rest is not None and field.feedback) or (feedback and not codec.sends_all)
        if rests:
            # of nothing, too: 0 + x makes -0.0 a 0.0, as it does in a rest of zeros
            rest = whole = whole + (0.0 if rest is None else rest)
        if codec.sends_all or not _has_finite_check(codec):
            require_finite(whole, who.client, round, name)
        if codec.sends_all:
            sent_value = whole.clone().view_as(value) if rests else value
            sent = Sent(sent_value, memory, memory, rest)
        else:
            sent = self._played(who, choice, name, field, value, whole, memory, round)
            sent = sent._replace(rest=rest)
        if rests and (codec.sends_all or not feedback):
            whole.zero_()
        return sent

    def _played(
        self, who: Who, choice: Choice, name: str, field: Field, value: Tensor,
        whole: Tensor, memory: State, round: int,
    ) -> Sent:  # fmt: skip
        player = self.player(choice)
        draws = self._draws(player.codec, choice, who, name, round)
        layout = field.layout_of(who)
        try:
            k = choice.entries(field.entries)
            if self.keeps_rest(choice, field):
                payload = player.encode_in_place(None, whole, k, draws, state=memory, layout=layout)
            else:
                payload, _ = player.codec.encode(whole, memory, draws, k, layout=layout)
        except InputError:
            if bool(torch.isfinite(whole).all()):
                raise
            raise _make_field_error(who.client, round, name) from None
        if self.payloads is not None:
            self.payloads[name] = payload
        size = None
        if self.tasks.compressed_bytes(who, field, choice) is None:
            size = payload.wire_bytes(self.tasks.index_code), payload.k
        undone = player.codec.undo(payload)
        return Sent(_build_wire(payload, value), payload.state, undone, None, size)

    def _draws(
        self, codec: Codec, choice: Choice, who: Who, name: str, round: int
    ) -> np.random.Generator | None:
        """The random numbers of a play; None for codecs without any."""
        if not codec.draws:
            return None
        others = [] if name == "update" else [name]
        if codec.shared:
            return self._streams(choice.strategy, who.prototype, round, *others)
        return self._streams(choice.strategy, who.client, who.key(round), *others)

    def shared_entries(self, prototype: str, round: int) -> Tensor | None:
        """The entries of the update that clients of this prototype send in a round, where these are
        the same for all of them whoever comes; else None."""
        scenario, who = self.tasks.scenario, self.tasks.first_of(prototype)
        if scenario.aggregation.mode != "synchronous":
            return None  # who is late sends those of an earlier round
        written = []
        for group in scenario.clients:
            policy, k = scenario.policy_of_group(group), scenario.k_of_group(group)
            arms = scenario.arms_of_group(group)
            if group.prototype != prototype:
                continue
            if policy.kind != "uniform" or policy.arms_from or isinstance(k, Distribution):
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
        self, choice: Choice, field: Field, value: Change, rest: Tensor | None, share: float = 1.0
    ) -> Tensor | None:
        """Return the rest once what was sent, or a share of it, is back in it.

        Where the codec leaves no rest, it is as it was.
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

    def undo_earlier(self, choice: Choice, undone: State, sent: Tensor, state: State) -> State:
        """See `Codec.undo_earlier`; `sent`: what the server would have got."""
        return self.player(choice).codec.undo_earlier(state, undone, sent.reshape(-1))


def _build_wire(payload: Payload, like: Tensor) -> Wire:
    if payload.indices is None or payload.k == payload.length or like.dim() != 1:
        dense: Tensor = payload.dense()
        return dense.view_as(like)
    return [torch.as_tensor(payload.indices), payload.values, payload.length]


def as_received(value: Wire) -> Change:
    """A value of `Sent`, as the server keeps it, from how pipes and checkpoints carry it."""
    return Sparse(*value) if isinstance(value, list) else value


def _has_finite_check(codec: Codec) -> bool:
    """Whether a codec refuses what is not a finite number."""
    if not isinstance(codec, Chain) or codec.values is not None:
        return True
    return isinstance(codec.selection, TopK)


def require_finite(value: Tensor, client: int, round: int, name: str) -> None:
    """On a processor; an accelerator would have to be waited for."""
    if not value.numel() or value.device.type != "cpu" or math.isfinite(value.sum()):
        return
    if not torch.isfinite(value).all():  # the sum may overflow where every value is finite
        raise _make_field_error(client, round, name)


def _make_field_error(client: int, round: int, name: str) -> RunFailed:
    what = f"client {client}, round {round}: {name}"
    return make_divergence_error(f"{what} has values that are not finite numbers")


def make_divergence_error(problem: str) -> RunFailed:
    """Of training that has left the numbers; `problem`: where it is seen."""
    return RunFailed(
        f"{problem}: the learning has diverged; a smaller training.learning_rate may help"
    )
