"""A run's learning, cut where clients and server are different machines.

The server's half is the workload that a simulation has, without its clients: what they made is
handed to it (`deliver`), what only they can measure is asked of them (`ask`). A client's half is
the same workload with one client and no server: it is handed what was sent, and does the work. So
what a method is, stands in one place, and with equal numbers on the wire both halves together come
to the bits of the simulation.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from simfed.compress.choice import Choice
from simfed.compress.codec import Memory, Payload
from simfed.fleet.contract import Contribution, Task, Workload
from simfed.ground.errors import InputError
from simfed.ground.method import Field, Method
from simfed.ground.plain import Plain
from simfed.ground.registry import import_part
from simfed.ground.seeding import Streams
from simfed.learn.apart_checks import check_payload, read_measured
from simfed.learn.parcel import Parcel, Part, pack
from simfed.learn.tree import decode_tree, encode_tree
from simfed.scenario import Scenario

Ask = Callable[[str, Sequence[tuple[int, Parcel]]], "Sequence[Parcel | None]"]
"""(what, clients and of what each is asked) → their answers; None: it is gone. All work at the same
time. `what`: `measure` or `test`."""

Fate = Literal["merged", "lost", "undone"]
"""What became of an upload. `lost`: what it carried returns to its client. `undone`: its round was
rolled back, and of what it carried becomes what the scenario says."""

Tell = Callable[[int, str, Fate], object]
"""(client, label of a task, what became of its upload), for that client to know."""


class TaskAnswer(NamedTuple):
    """What a client's half answers to a task."""

    parcel: Parcel
    training_s: float
    compression_s: float
    packing_s: float
    """Until what is sent was bytes."""
    training_busy_s: float
    """Of training: on processors."""
    compression_busy_s: float


class ServerHalf(Workload, Protocol):
    """The server's half of a run's learning: a `Workload` whose clients are elsewhere."""

    def outgoing(self, contribution: Contribution) -> Parcel:
        """What its client is sent, as it was when it was started."""
        ...

    def deliver(self, contribution: Contribution, parcel: Parcel) -> None:
        """Its upload has arrived. Raises: `InputError` for one that no client's half makes."""
        ...

    def most_bytes(self, contribution: Contribution) -> int:
        """No upload of this task is longer."""
        ...

    def forget(self, client: int) -> None:
        """Which version of the model this client has, nobody knows any longer."""
        ...

    def hand_over(self, client: int) -> Parcel:
        """What codecs have agreed on with this client so far, for another process that goes on in
        its place. What the one before it still has under way is not built upon. Any thread may
        call it."""
        ...


class ClientHalf(Protocol):
    """A client's half of a run's learning."""

    def work(self, parcel: Parcel) -> TaskAnswer:
        """Train and compress. Raises: `RunFailed` where the learning has diverged."""
        ...

    def settle(self, label: str, fate: Fate) -> None:
        """What became of an upload; one that this client knows nothing of is none of its own."""
        ...

    def answer(self, what: str, parcel: Parcel) -> Parcel:
        """What the server cannot know: `measure` a loss, or `test` a model of its own."""
        ...

    def keep(self) -> Parcel:
        """All that this client needs to go on from here, on this machine or another."""
        ...

    def take_up(self, parcel: Parcel) -> None:
        """Go on from what `keep` gave, perhaps in another process."""
        ...

    def begin_anew(self) -> None:
        """Forget all that was learned: the server knows nothing of it."""
        ...

    def agree(self, parcel: Parcel) -> None:
        """Take the server's side (`hand_over`) of what codecs hold at both ends."""
        ...

    def close(self) -> None: ...


def server_half(
    scenario: Scenario, streams: Streams, ask: Ask, tell: Tell, device: str = "cpu"
) -> ServerHalf:
    """The server's half of the workload that the scenario's method names. What it `tell`s comes
    before what it `ask`s later."""
    half = _find_half(scenario, "Server")
    server: ServerHalf = half(scenario, streams, ask=ask, tell=tell, device=device)
    return server


def client_half(
    scenario: Scenario, streams: Streams, client: int, device: str = "cpu"
) -> ClientHalf:
    """One client's half of it."""
    client_side: ClientHalf = _find_half(scenario, "Client")(
        scenario, streams, client=client, device=device
    )
    return client_side


def _find_half(scenario: Scenario, side: str) -> Any:
    named = scenario.method.made.workload
    if named != Method.workload:
        raise InputError(
            "a method with simfed's own workload, which can be cut in two",
            where="method", got=named,
        )  # fmt: skip
    return import_part(f"simfed.learn.apart_hosted:Hosted{side}")


def choose_wire_code(index_code: str) -> str:
    """How indices really travel: `ideal` is an accounting without an encoder."""
    return "fixed" if index_code == "ideal" else index_code


@dataclass(eq=False)
class _Moved:
    """What an upload did to a mirror."""

    key: tuple[int, str, str]
    payload: Payload

    @cached_property
    def undone(self) -> Any:
        """The mirror without it."""
        return self.payload.codec.undo(self.payload)


class Mirrors:
    """What the server keeps of its clients' codecs, to read what builds on earlier uploads.

    `ef21` sends changes of an estimate that both ends have; nothing else needs a mirror: where the
    selection's own state is not sent as indices (`seeded`), its two numbers come along.

    Another process that goes on as a client is handed that client's mirrors, so that both ends have
    the same again, whatever the process before it had sent or saved. From then on uploads that
    were asked of the one before move no mirror.
    """

    def __init__(self, index_code: str) -> None:
        self._code = choose_wire_code(index_code)
        self._of: dict[tuple[int, str, str], Memory] = {}
        self._last: dict[tuple[str, str], _Moved] = {}
        """(label, field) → what an upload under way did to its mirror, in the order in which they
        came."""
        self._asked: dict[str, int] = {}
        """Label → client of the uploads that may move mirrors."""
        self._alone = threading.Lock()
        """Mirrors are handed over on the connections' thread."""

    def ask(self, task: Task) -> None:
        """A client is asked for an upload."""
        with self._alone:
            self._asked[task.label] = task.client

    def read(
        self, task: Task, name: str, field: Field, choice: Choice, data: Part, state: Plain
    ) -> Payload:
        """One compressed field of an upload. `state`: what its client said of its selection.
        Raises: `InputError` for what no encoder wrote."""
        if not isinstance(data, bytes):
            raise InputError("a payload", where=name, got="an array")
        key, codec = (task.client, name, choice.strategy), choice.codec
        memory: Any = state
        length, layout = field.entries, field.layout_of(task.who)
        k = choice.entries(length)
        with self._alone:
            if is_mirrored(choice):
                if task.label not in self._asked:
                    raise InputError("an upload of the process that the client is now", where=name)
                memory = Memory(state, self._of[key].arrays) if key in self._of else None
            try:
                payload = codec.from_bytes(data, length, k, self._code, layout=layout, state=memory)
                check_payload(name, payload, length)
            except InputError:
                raise
            except Exception as error:  # whatever a codec makes of a stranger's bytes
                allowed = f"a payload that {choice.strategy} has written"
                raise InputError(allowed, where=name, got=type(error).__name__) from error
            if isinstance(payload.state, Memory):
                self._of[key] = payload.state
                self._last[task.label, name] = _Moved(key, payload)
        return payload

    def settle(self, label: str, *, stands: bool) -> None:
        """What became of an upload: it stands, or its client takes it back."""
        with self._alone:
            self._asked.pop(label, None)
            for at in [at for at in self._last if at[0] == label]:
                later = list(self._last.values())[list(self._last).index(at) + 1 :]
                moved = self._last.pop(at)
                if not stands:
                    self._undo(moved, [one for one in later if one.key == moved.key])

    def _undo(self, moved: _Moved, later: Sequence[_Moved]) -> None:
        """Take out of a mirror what an upload did; `later` ones stay, as at the client."""
        if not later:
            self._of[moved.key] = moved.undone
            return
        undo = partial(
            moved.payload.codec.undo_earlier, undone=moved.undone, sent=moved.payload.dense()
        )
        self._of[moved.key] = undo(self._of[moved.key])
        for one in later:
            one.undone = undo(one.undone)

    def hand_over(self, client: int) -> Parcel:
        """A client's mirrors, for another process in its place."""
        with self._alone:
            self._asked = {label: asked for label, asked in self._asked.items() if asked != client}
            self._last = {at: last for at, last in self._last.items() if last.key[0] != client}
            mine = sorted((key, mirror) for key, mirror in self._of.items() if key[0] == client)
        arrays: dict[str, np.ndarray] = {}
        return pack({"mirrors": _encode_mirrors(mine, arrays)}, arrays)

    def plain(self, arrays: dict[str, np.ndarray]) -> list[Plain]:
        """Every mirror with its (client, field, arm); vectors go to `arrays`."""
        return _encode_mirrors(sorted(self._of.items(), key=lambda item: item[0]), arrays)

    def restore(self, plain: Sequence[Plain], arrays: Mapping[str, np.ndarray]) -> None:
        """Inverse of `plain`."""
        self._of = decode_mirrors(plain, arrays)


def is_mirrored(choice: Choice) -> bool:
    """Whether both ends keep the codec's memory."""
    return choice.codec.name == "ef21"


def _encode_mirrors(
    mirrors: Sequence[tuple[tuple[int, str, str], Memory]], arrays: dict[str, np.ndarray]
) -> list[Plain]:
    return [
        [*key, encode_tree(mirror, f"mirrors/{'/'.join(map(str, key))}", arrays)]
        for key, mirror in mirrors
    ]


def decode_mirrors(
    plain: Sequence[Plain], arrays: Mapping[str, np.ndarray]
) -> dict[tuple[int, str, str], Memory]:
    """(client, field, strategy) → what both ends keep; from `Mirrors.plain` or `hand_over`."""
    cpu = torch.device("cpu")
    return {(client, name, arm): decode_tree(one, arrays, cpu) for client, name, arm, one in plain}


def read_tensor(part: Part, where: str) -> Tensor:
    """An array that came, in PyTorch's own memory. Raises: `InputError`."""
    if isinstance(part, bytes):
        raise InputError("an array", where=where, got="bytes")
    return torch.tensor(part)


def find_part(parts: Mapping[str, Part], name: str) -> Part:
    """A part that must be there. Raises: `InputError`."""
    if name not in parts:
        raise InputError(f"a part {name!r}", where="parts", got=", ".join(parts) or "none")
    return parts[name]


def read_loss(answer: Parcel | None) -> float | None:
    """What a client measured; None of one that is gone, does not know, or says no number."""
    with contextlib.suppress(InputError):
        loss = None if answer is None else read_measured(answer.facts.get("loss"))
        return loss if loss is not None and math.isfinite(loss) else None
    return None


def answer_nothing(label: str) -> TaskAnswer:
    """Of a client who was sent changes of a model that it does not have, as it took the place of
    another one that very moment: its participation fails, and it is sent a whole model next."""
    return TaskAnswer(pack({"label": label}, {}), 0.0, 0.0, 0.0, 0.0, 0.0)
