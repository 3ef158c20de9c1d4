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
from simfed.learn.federation import Positions
from simfed.learn.memory import Arena
from simfed.scenario.distribution import Distribution

__all__ = [
    "Change",
    "Encoder",
    "Received",
    "Residuals",
    "Sent",
    "Sparse",
    "Sum",
    "Wire",
    "as_received",
    "require_finite",
    "terms_of",
]

_BLOCK = 1 << 19
"""Entries of a block of residuals. It lies beside the heap, whose holes it would keep apart."""


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
    size: tuple[float, int] | None = None
    """Bytes on the wire and entries told, where they depend on the data."""


class Residuals:
    """What compression has left out, per client and field.

    Where processes share the work, every client of the scenario has a row in memory that all of
    them see; pages cost nothing before they are written. Else a client has one from its first
    participation on.
    """

    def __init__(self, arena: Arena, tasks: Tasks, clients: Mapping[str, Positions] | None) -> None:
        """clients: of each prototype, where processes share the work."""
        self._arena = arena
        self._alone = clients is None
        self._rows: dict[tuple[int, str], Tensor] = {}
        self._free: dict[int, list[Tensor]] = {}
        """Rows of this length that nobody has yet."""
        self.used: set[tuple[int, str]] = set()
        """(client, field) of those that were written."""
        self._shared: dict[tuple[str, str], Tensor] = {}
        self._place: dict[int, int] = {}
        for prototype, members in (clients or {}).items():
            who = tasks.first_of(prototype)
            rounds = {1, min(2, tasks.setting.rounds), tasks.setting.rounds}
            for round in sorted(rounds):
                for name, field in tasks.method.plan(tasks.setting, who, round).up.items():
                    key = prototype, name
                    if field.compressed and field.feedback and key not in self._shared:
                        self._shared[key] = arena.zeros(len(members), field.entries)
            self._place |= {int(client): place for place, client in enumerate(members)}

    def reach(self, who: Who, fields: Mapping[str, Field]) -> bool:
        """Whether every process sees the residuals of these compressed fields."""
        return self._alone or all(
            not field.feedback or self._fits(who.prototype, name, field.entries)
            for name, field in fields.items()
        )

    def _fits(self, prototype: str, name: str, entries: int) -> bool:
        rows = self._shared.get((prototype, name))
        return rows is not None and rows.shape[1] == entries

    def row(self, who: Who, name: str, entries: int) -> Tensor:
        """The residual of a client's field; zeros where nothing was left out."""
        if self._fits(who.prototype, name, entries):
            return self._shared[who.prototype, name][self._place[who.client]]
        key = who.client, name
        if key not in self._rows:
            free = self._free.setdefault(entries, [])
            if not free:
                on_host = self._arena.device.type == "cpu"
                rows = max(1, _BLOCK // max(1, entries)) if on_host else 1
                free += reversed(self._arena.zeros(rows, entries).unbind())
            self._rows[key] = free.pop()
        return self._rows[key]

    def known(self, who: Who, name: str) -> Tensor:
        """The residual of a client's field of which something was left out (`used`)."""
        if (who.client, name) in self._rows:
            return self._rows[who.client, name]
        return self._shared[who.prototype, name][self._place[who.client]]

    def clear(self, tasks: Tasks) -> None:
        """Set every residual to zero, as before the first round."""
        for client, name in self.used:
            prototype = tasks.who(client).prototype
            if (prototype, name) in self._shared:
                self._shared[prototype, name][self._place[client]].zero_()
        self._rows.clear()
        self._free.clear()
        self.used.clear()


class Encoder:
    """Compression of what clients send, into and out of their residuals."""

    def __init__(self, streams: Streams, tasks: Tasks, residuals: Residuals) -> None:
        self._streams = streams
        self.tasks = tasks
        self.residuals = residuals
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

    def leaves_rest(self, choice: Choice, field: Field) -> bool:
        """Whether there may be any such rest."""
        return self.keeps_rest(choice, field) and not self.player(choice).codec.sends_all

    def encode(
        self, who: Who, round: int, choice: Choice, name: str, field: Field, value: Tensor,
        memory: State, *, rested: bool,
    ) -> Sent:  # fmt: skip
        """What travels of a compressed field; with error feedback, the rest stays.

        rested: something was left out of the client's field before. Raises: `RunFailed` where a
        value is not a finite number.
        """
        player = self.player(choice)
        codec, feedback = player.codec, self.keeps_rest(choice, field)
        whole, length = value.reshape(-1), field.entries
        # what a codec with feedback left behind is not lost when one without is played
        rests = (rested and field.feedback) or (feedback and not codec.sends_all)
        if rests:
            whole = self.residuals.row(who, name, length).add_(whole)
        if codec.sends_all or not _has_finite_check(codec):
            require_finite(whole, who.client, round, name)
        if codec.sends_all:
            sent_value = whole.clone().view_as(value) if rests else value
            sent = Sent(sent_value, memory, memory)
        else:
            sent = self._played(who, choice, name, field, value, whole, memory, round)
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
        return Sent(_build_wire(payload, value), payload.state, player.codec.undo(payload), size)

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
        self, who: Who, choice: Choice, name: str, field: Field, value: Change, share: float = 1.0
    ) -> None:
        """What was sent returns to the residual, or a share of it, where the codec leaves a
        rest."""
        if not self.keeps_rest(choice, field):
            return
        if isinstance(value, Sparse):
            indices, values = value.indices, value.values
        else:
            values = value.reshape(-1)
            indices = torch.arange(len(values), device=values.device)
        rest = self.residuals.row(who, name, field.entries)
        self.residuals.used.add((who.client, name))
        undo(rest, Payload(choice.strategy, field.entries, indices, values), share)

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
