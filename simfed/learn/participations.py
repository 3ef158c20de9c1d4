"""Participations as any process can carry them out: training, and compression of what is sent.

A `Worker` is in every process; what it is asked to do are *units*, named calls that know nothing of
who carries them out.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from simfed.compress.choice import Choice
from simfed.compress.sparsifiers import State as CodecState
from simfed.compress.vectors import move_positions
from simfed.ground.errors import RunFailed
from simfed.ground.method import Field, Method, State, Values, Who
from simfed.ground.plain import Plain
from simfed.learn.kit import Kit
from simfed.learn.shelf import Shelf
from simfed.learn.uploads import Encoder, Received, Wire, as_received, require_finite

__all__ = ["Assignment", "Trained", "Unit", "Worker", "check_fields"]

_ACTIVITIES = {
    "train": "training",
    "public_logits": "logits",
    "distil_public": "distillation",
    "own_losses": "local_losses",
    "test": "evaluation",
    "attack_success": "evaluation",
}
"""Unit of work → what its time is spent on; compression is told apart from training."""

Unit = tuple[str, tuple[Any, ...]]
"""`train`, or the name of a method of the kit's; its arguments."""


class Assignment(NamedTuple):
    """What a process is told of a started participation: ids, and what is not the same for all."""

    client: int
    turn: int
    prototype: str
    round: int
    down: Values
    own: State | None
    """The client's state; None: it has not taken part before."""
    choice: str
    """Its label."""
    memories: Mapping[str, CodecState]
    """Compressed field → what the codec remembers of the client."""
    rests: Mapping[str, Tensor]
    """Compressed field → what was left out of it before, where something was."""
    encodes: bool
    """Whether its fields are compressed where it is trained."""


_NONE: Mapping[str, Any] = {}


class Trained(NamedTuple):
    """What came of a participation."""

    values: Mapping[str, Plain]
    """Field → a tensor, or once it is `encoded` a `Wire`."""
    own: State
    loss: Tensor | None
    """The mean of its batches, where training is local steps."""
    encoded: bool = False
    memories: Mapping[str, CodecState] = _NONE
    if_lost: Mapping[str, CodecState] = _NONE
    rests: Mapping[str, Tensor] = _NONE
    sizes: Mapping[str, tuple[float, int]] = _NONE


class _Started(NamedTuple):
    """A participation as the process knows it that carries it out."""

    participation: Assignment
    who: Who
    choice: Choice
    up: Mapping[str, Field]
    """What travels up, by the method's plan."""


class Worker:
    """What a process needs to carry out units. Built before processes are forked."""

    activities = tuple(dict.fromkeys(_ACTIVITIES.values()))

    def __init__(self, method: Method, kit: Kit, encoder: Encoder, shelf: Shelf) -> None:
        self._method = method
        self._kit = kit
        self._encoder = encoder
        self.shelf = shelf
        self.batch: Sequence[Unit] = ()
        """In the first process, the units that are shared now: its own need no message."""
        self._batch = 0
        self._compressing_s = 0.0
        self.busy_s = dict.fromkeys([*self.activities, "compression"], 0.0)
        """Activity → seconds on processors so far, of this process."""
        self._steps_locally = type(method).train is Method.train

    def begin_process(self, number: int) -> None:
        """Called in each worker process at its start."""
        self.shelf = self.shelf.end(number)

    def together(self, prototype: str) -> int:
        """Clients of a prototype that are trained in one pass, at most."""
        return self._kit.together(prototype) if self._steps_locally else 1

    def takes_longer(self, units: Sequence[Unit]) -> bool:
        """Whether there are trainings among the units that take longer than their FLOPs say: steps
        of one client after another, or a method's own."""
        return any(
            name == "train" and self.together(participations[0].prototype) == 1
            for name, (participations, *_) in units
        )

    def run(self, unit: tuple[int, int, str, bytes]) -> tuple[Any, dict[str, float]]:
        """`answer` to a unit of a batch: the batch's number, its own there, what it calls and, as
        it comes through a pipe, with what; from another process packed."""
        batch, at, name, packed = unit
        if not self.shelf.process:
            return self.answer(*self.batch[at])
        if batch != self._batch:
            self.shelf.clear()
            self._batch = batch
        result, seconds = self.answer(name, self.shelf.unpack(packed))
        return self.shelf.pack(result), seconds

    def answer(self, name: str, arguments: tuple[Any, ...]) -> tuple[Any, dict[str, float]]:
        """The result of a unit, and host seconds by activity."""
        begun, self._compressing_s = time.perf_counter(), 0.0
        busy_s = time.process_time() - self.busy_s["compression"]
        call = self.train if name == "train" else getattr(self._kit, name)
        result = call(*arguments)
        wall_s = time.perf_counter() - begun
        activity = _ACTIVITIES.get(name, "server")
        self.busy_s[activity] += time.process_time() - self.busy_s["compression"] - busy_s
        seconds = {activity: wall_s - self._compressing_s}
        return result, {**seconds, "compression": self._compressing_s}

    def train(self, participations: Sequence[Assignment]) -> list[Trained]:
        """Local training of clients of one prototype, and what they send."""
        method, kit = self._method, self._kit
        starts = [self._started(participation) for participation in participations]
        begins = [self._beginning(start) for start in starts]
        if self._steps_locally:
            steps = [(who, round, method.local_steps(kit, who, round, down, own))
                     for who, round, down, own in begins]  # fmt: skip
            trained = [
                Trained(*method.trained(kit, *begin, after), loss)
                for begin, (after, loss) in zip(begins, kit.trained_each(steps), strict=True)
            ]
        else:
            trained = [Trained(*method.train(kit, *begin), None) for begin in begins]
        return [self._sent(start, done) for start, done in zip(starts, trained, strict=True)]

    def _started(self, participation: Assignment) -> _Started:
        who = self._encoder.tasks.who(participation.client, participation.turn)
        up = self._method.plan(self._kit.setting, who, participation.round).up
        return _Started(participation, who, self._encoder.choice(participation.choice), up)

    def _beginning(self, start: _Started) -> tuple[Who, int, Values, State]:
        """Who trains, the round, what it has been sent, from where the codec wants gradients to be
        taken, and its state."""
        participation, who, choice, up = start
        round, down, own = participation.round, participation.down, participation.own
        if self._method.moves_point:
            for name, memory in participation.memories.items():
                point = self._encoder.player(choice).codec.point(memory)
                if point is not None and up[name].kind == "update":
                    shift = np.float32(self._method.update_scale(self._kit, round)) * point
                    weights = down["weights"] + move_positions(shift, self._kit.device)
                    down = {**down, "weights": weights}
        return who, round, down, self._method.begin_client(self._kit, who) if own is None else own

    def _sent(self, start: _Started, trained: Trained) -> Trained:
        """What its client sends, an attacker something else; compressed, where that can be here."""
        who, round = start.who, start.participation.round
        attack = self._kit.attack_on(who.client, round)
        if attack is not None:
            rng = self._kit.generator("attack", who.client, who.key(round))
            update = attack.craft(trained.values["update"], rng)
            trained = trained._replace(values={**trained.values, "update": update})
        check_fields(self._kit.method, who, round, "up", trained.values, start.up)
        return self._encoded(start, trained) if start.participation.encodes else trained

    def encode(self, participation: Assignment, trained: Trained) -> Trained:
        """What travels of what was trained elsewhere."""
        return self._encoded(self._started(participation), trained)

    def _encoded(self, start: _Started, trained: Trained) -> Trained:
        begun, busy_s = time.perf_counter(), time.process_time()
        participation, who, choice, up = start
        round = participation.round
        values: dict[str, Wire] = {}
        memories, if_lost, rests, sizes = {}, {}, {}, {}
        for name, value in trained.values.items():
            if not up[name].compressed:
                require_finite(value, who.client, round, name)
                values[name] = value
                continue
            memory, rest = participation.memories[name], participation.rests.get(name)
            sent = self._encoder.encode(who, round, choice, name, up[name], value, memory, rest)
            values[name], memories[name], if_lost[name] = sent.value, sent.memory, sent.if_lost
            if sent.rest is not None:
                rests[name] = sent.rest
            if sent.size is not None:
                sizes[name] = sent.size
        own = trained.own
        if type(self._method).sent is not Method.sent:
            received = Received({name: as_received(value) for name, value in values.items()})
            own = self._method.sent(own, received)
        self._compressing_s += time.perf_counter() - begun
        self.busy_s["compression"] += time.process_time() - busy_s
        return Trained(values, own, trained.loss, True, memories, if_lost, rests=rests, sizes=sizes)


def check_fields(
    kind: str, who: Who, round: int, way: str, values: Values, planned: Mapping[str, Field]
) -> None:
    """Raises: `RunFailed` for values that are not what a plan says."""
    if values.keys() != planned.keys():
        raise RunFailed(
            f"{_where(kind, who, round)}: fields {', '.join(planned) or 'none'} travel {way} by "
            f"its plan, got {', '.join(values) or 'none'}"
        )
    for name, of_plan in planned.items():
        value = values[name]
        tensor = isinstance(value, Tensor)
        got = value.numel() if tensor else type(value)
        if not tensor or (got > of_plan.entries if of_plan.bounded else got != of_plan.entries):
            most = "at most " if of_plan.bounded else ""
            raise RunFailed(
                f"{_where(kind, who, round)}: field {name!r} has {most}{of_plan.entries} entries "
                f"by its plan, got {got}"
            )


def _where(kind: str, who: Who, round: int) -> str:
    return f"method {kind}, client {who.client}, round {round}"
