"""The simulation's server loop in the real world.

Whom to start, when to merge, what becomes of the late, policies, rewards, records and checkpoints
are `simfed.sim.Simulation`'s. What differs stands here: a client's part is a message that goes out
and one that comes back, a merge takes the time that it takes, and who is there is who has joined.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import numpy as np
import simpy
from numpy.typing import NDArray

from simfed.deploy.frames import Frame, Refused, sentence_of
from simfed.deploy.measured import Instants, lay_out
from simfed.deploy.peers import ArrivedUpload, Peers
from simfed.deploy.world import RealTime
from simfed.ground.contract import Outcome
from simfed.ground.errors import InputError, RunFailed
from simfed.ground.plain import Plain
from simfed.learn.apart import ServerHalf
from simfed.learn.parcel import Parcel
from simfed.record import Checkpoint
from simfed.record.schema import HOST
from simfed.sim import Simulation
from simfed.sim.flight import Flight, Leg
from simfed.sim.server_work import PlayedWork

__all__ = ["Deployed", "Joined", "NoDevice"]

Story = Generator[simpy.Event, Any, None]

_MERGING = ("server", "distillation", "logits")
"""Activities of a workload that are the method's work at a merge."""


class NoDevice:
    """A real device: it takes its own time, and nobody knows its power."""

    counts_energy = False

    def state(self) -> dict[str, Plain]:
        return {}

    def restore(self, state: Mapping[str, Plain]) -> None:
        pass


class Joined:
    """The clients that have joined, in the story's time. A `Presence`."""

    def __init__(self) -> None:
        self.ids: set[int] = set()

    def available(self, at_s: float) -> NDArray[np.int64]:
        return np.array(sorted(self.ids), dtype=np.int64)

    def is_available(self, client: int, at_s: float) -> bool:
        return client in self.ids

    def leaves_at_s(self, client: int, at_s: float) -> float:
        return math.inf

    def next_return_s(self, at_s: float) -> float:
        return math.inf

    def failure(self, client: int, phase: str) -> float:
        return 0.0


class Deployed(Simulation):
    """A run whose clients are elsewhere."""

    _env: RealTime
    _workload: ServerHalf

    def __init__(self, *parts: Any, joined: Joined, rejoin_s: float, **others: Any) -> None:
        """rejoin_s: how long to wait while nobody is there."""
        super().__init__(*parts, presence=joined, **others)
        self._joined = joined
        self.before: Callable[[Callable[[], bool]], object] = lambda stop_requested: None
        """Called with what `run` is given, before the first round."""
        self._rejoin_s = rejoin_s
        self._outcome: Outcome | None = None
        self.client_states: dict[int, Parcel] = {}
        """What clients need to go on from the last checkpoint."""

    def connect(self, peers: Peers) -> None:
        """Play with these clients; call it before anything else."""
        self._peers = peers
        self._env = RealTime()
        self._back = self._env.event()
        self._under_way: dict[int, simpy.Event] = {}
        """What comes when a client's upload is there."""
        self._network = None  # type: ignore[assignment]  # it is a real one

    @property
    def now_s(self) -> float:
        """The instant in the story, s."""
        return self._env.now

    def run(self, *, stop_requested: Callable[[], bool] = lambda: False, **others: Any) -> None:
        """Wait for clients, then play the rounds that are left."""
        if self._round < self._scenario.rounds:
            self.before(stop_requested)
        super().run(stop_requested=stop_requested, **others)

    def begin(self) -> None:
        """Time passes from now on."""
        self._joined.ids.update(self._peers.there)
        self._env.begin()

    def _set_out(self) -> None:
        self._env._now = self._now_s  # the clock of a resumed run goes on where it stood

    # ---- called in the story's time --------------------------------------------------------------

    def joined(self, client: int) -> None:
        """A client is there."""
        self._joined.ids.add(client)
        back, self._back = self._back, self._env.event()
        back.succeed()

    def left(self, client: int, why: str) -> None:
        """A client is there no longer."""
        self._joined.ids.discard(client)
        self._forget_model_of(client)

    def _forget_model_of(self, client: int) -> None:
        """Its version is no longer known: where changes travel down, it is sent a whole model."""
        if self._held is not None:
            self._held.pop(client, None)
        self._workload.forget(client)

    def post(self, monotonic_s: float, happen: Callable[[], object]) -> None:
        """See `RealTime.post`."""
        self._env.post(monotonic_s, happen)

    # ---- what the real world does otherwise ------------------------------------------------------

    def _somebody_back(self, *, patient: bool = False) -> simpy.Event:
        if patient:
            return self._back
        return self._env.process(self._wait_for_somebody())

    def _wait_for_somebody(self) -> Story:
        back = self._back
        yield back | self._env.timeout(self._rejoin_s)
        if not back.triggered:
            raise RunFailed(
                f"round {self._round + 1}: no client was there for {self._rejoin_s:g} s"
            )

    def _carry(self, flight: Flight) -> None:
        done = self._under_way[flight.client] = self._env.event()
        done.callbacks.append(lambda event: self._arrive(flight, event.value))
        self._peers.give(
            flight.client,
            flight.task.label,
            self._workload.outgoing(flight.contribution),
            self._workload.most_bytes(flight.contribution),
            lambda arrival: None if done.triggered else done.succeed(arrival),
        )

    def _cut(self, flight: Flight, cause: str) -> None:
        done = self._under_way[flight.client]
        done.callbacks.clear()
        if not done.triggered:
            done.succeed(None)
        self._peers.forget(flight.client, flight.task.label)
        self._lose(flight, "dropped")
        self._land(flight)

    def _arrive(self, flight: Flight, arrival: ArrivedUpload) -> None:
        """Its upload is there, or never will be. Raises: `RunFailed` where its learning failed."""
        frame = arrival.frame
        if frame is None:
            flight.away = True
            self._lose(flight, "dropped", arrival.sent_bytes)
        elif frame.kind == "failed":
            raise RunFailed(f"client {flight.client}: {sentence_of(frame.facts.get('why'))}")
        else:
            try:
                self._take_upload(flight, arrival, frame)
            except (InputError, Refused, LookupError, TypeError, ValueError):
                # what no client of this version sends: it counts as a failure of its own
                self._lose(flight, "failed", arrival.sent_bytes, frame.size)
        self._land(flight)

    def _take_upload(self, flight: Flight, arrival: ArrivedUpload, frame: Frame) -> None:
        facts = dict(frame.facts)
        instants = Instants.of(
            facts.pop("times", None),
            lambda there_s: self._env.instant_s(arrival.line.here_s(there_s)),
            started_s=flight.started_at_s,
            sent_s=self._env.instant_s(arrival.sent_s),
            arrived_s=self._env.instant_s(frame.at_s),
            landed_s=self._env.now,
        )
        self._workload.deliver(flight.contribution, Parcel(facts, frame.body))
        sizes = float(arrival.sent_bytes), float(frame.size)
        flight.legs = lay_out(instants, flight.pull.arm.label, *sizes)
        flight.done = len(flight.legs)

    def _land(self, flight: Flight) -> None:
        del self._under_way[flight.client]
        flight.end(self._env.now)
        self._landed(flight)
        if flight.lost:
            self._forget_model_of(flight.client)

    def _lose(
        self, flight: Flight, outcome: str, down_bytes: float = 0.0, up_bytes: float = 0.0
    ) -> None:
        """It never arrives; what it did until now is not known, but how much travelled."""
        flight.lose(outcome)
        flight.legs = [
            Leg("download", "download", 0.0, moved_bytes=float(down_bytes)),
            Leg("upload", "upload", 0.0, moved_bytes=float(up_bytes)),
            Leg(HOST, "lost", self._env.now - flight.started_at_s),
        ]

    def _server_work(self, taken: Sequence[Flight]) -> list[PlayedWork]:
        """The merge itself, timed."""
        before = dict(self._workload.timings())
        self._outcome = super()._merge(taken, self._round + 1)
        after = self._workload.timings()
        spent = {name: max(after[name] - before.get(name, 0.0), 0.0) for name in after}
        whole_s = max(self._env.real_now_s() - self._env.now, 0.0)
        merge_s = min(sum(spent.get(name, 0.0) for name in _MERGING), whole_s)
        tests_s = min(spent.get("evaluation", 0.0), whole_s - merge_s)
        losses_s = min(spent.get("local_losses", 0.0), whole_s - merge_s - tests_s)
        return [
            PlayedWork("merge", "merge", None, merge_s),
            PlayedWork(HOST, "evaluation", None, tests_s),
            PlayedWork(HOST, "losses", None, losses_s),
            PlayedWork(HOST, "other", None, whole_s - merge_s - tests_s - losses_s),
        ]

    def _merge(self, taken: Sequence[Flight], round: int) -> Outcome:
        assert self._outcome is not None
        return self._outcome

    # ---- checkpoints -----------------------------------------------------------------------------

    def checkpoint(self) -> Checkpoint:
        """With what every client needs that is there; of the others, what was known of them."""
        self.client_states |= self._peers.states()
        base = super().checkpoint()
        states = self.client_states.items()
        bodies = {
            f"client/{client}": np.frombuffer(state.body, np.uint8) for client, state in states
        }
        clients = {str(client): dict(state.facts) for client, state in states}
        facts = {**base.facts, "clients": clients}
        return Checkpoint(base.round, facts, {**base.arrays, **bodies})

    def restore(self, checkpoint: Checkpoint) -> None:
        self.client_states = {
            int(client): Parcel(facts, np.asarray(checkpoint.arrays[f"client/{client}"]).tobytes())
            for client, facts in checkpoint.facts["clients"].items()
        }
        super().restore(checkpoint)
        if self._held is not None:
            self._held.clear()  # the changes made before are not kept

    def _take_up(
        self, plain: Sequence[Mapping[str, Any]], network: Mapping[str, Any] | None
    ) -> None:
        """Uploads that had arrived wait for their merge; who was under way then is lost."""
        for flight in self._recorded(plain):
            if not flight.over:
                flight.away = True
                self._lose(flight, "dropped")
                flight.end(self._now_s)
            self._await_merge(flight)
