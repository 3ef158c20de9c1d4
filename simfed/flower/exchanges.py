"""An app's messages as rounds: one per exchange, in the tables of any other run.

An exchange begins when the server app sends, and ends when it sends again after it got replies; the
first one begins with the run, the last one ends with the app. What the server does after the last
reply that it waited for belongs to it. Where the app sends to everybody at once and waits for all,
this is a synchronous round, and the blame is that of one; where it does not, the exchange waited
for the last reply that it got.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from flwr.app import Message

from simfed.contract import Contribution, Outcome, Task
from simfed.device import Device
from simfed.flower.messages import Mail, metrics_of
from simfed.method import Field, Plan, Size, Who, Work
from simfed.net import LinkUses, Network
from simfed.policy import Pull
from simfed.record.recorder import Recorder
from simfed.record.schema import PrototypeResult, Span
from simfed.scenario.fleet_file import APP, AppMetrics
from simfed.sim import rows
from simfed.sim.blame import Blame, blame, blame_last
from simfed.sim.flight import Flight
from simfed.sim.rows import End, Played, Verdict
from simfed.tasks import NO_COMPRESSION

__all__ = ["Exchanges", "Got"]

_QUANTITY = {"evaluate": "inference"}
"""Type of message → the profile's word for the work on it, by which noise and watts are told."""
_UP = {"reply": Field("reply", 0, bounded=True)}
_KIND = {"train": "training", "evaluate": "evaluation"}
"""Type of message → kind of the span of the work on it."""


@dataclass(frozen=True, slots=True)
class _Sent:
    """A reply, as the clock's side knows contributions."""

    task: Task
    arm: str = NO_COMPRESSION
    k: int = 0

    def uplink_bytes(self) -> float:
        raise NotImplementedError  # the node knows it, see `simfed.flower.play`


class Got(NamedTuple):
    """Replies that the server app has got and not worked on yet."""

    replies: int = 0
    size_bytes: int = 0


class Exchanges:
    """The exchanges of a run, recorded one after another."""

    def __init__(
        self,
        recorder: Recorder,
        metrics: AppMetrics,
        clients: int,
        device_of: Callable[[int], Device],
        progress: Callable[[int, float, float | None], None] | None = None,
    ) -> None:
        self._recorder = recorder
        self._metrics = metrics
        self._device_of = device_of
        self._progress = progress
        self._size = Size(APP, 0, 0, 0, clients)
        self.network: Network | None = None
        self.number = 1
        self._version = 0
        self._started_at_s = 0.0
        self._sent_at_s: float | None = None
        self._awaited_s: float | None = None
        """Until when the server has waited for somebody in this exchange."""
        self._gave_up = False
        self._got = Got()
        self._pulled = False
        self._begun: list[Flight] = []
        self._flying: set[Flight] = set()
        self._taken: list[Flight] = []
        self._landed: dict[Flight, None] = {}
        """Arrived, and not pulled."""
        self._latest: dict[int, Flight] = {}
        self._next_s: dict[Flight, float] = {}
        self._turns: dict[int, int] = {}
        self._work: list[tuple[str, float, float]] = []
        self._of_nodes: list[tuple[dict[str, float], float]] = []
        self._of_server: dict[str, float] | None = None
        self.odd: set[str] = set()
        """What the metrics said that is none of what is shown."""

    # ---- what happens ----------------------------------------------------------------------------

    def sends(self, now_s: float, uses: LinkUses) -> None:
        """The server app sends."""
        if self._pulled:
            self._close(now_s, uses)
        if self._sent_at_s is None:
            self._sent_at_s = now_s

    def begin(self, mail: Mail, now_s: float) -> Flight:
        """A node begins with a message: its participation."""
        client = mail.client
        turn = self._turns.get(client, 0)
        self._turns[client] = turn + 1
        kind = mail.kind
        name = mail.message.metadata.message_type
        work = Work(_QUANTITY.get(kind, "training"), APP, 1, kind=_KIND.get(kind, kind), name=name)
        who = Who(client, APP, self._size, 1, turn)
        task = Task(self.number, client, who, Plan({}, (work,), _UP), self._version,
                    float(mail.size_bytes))  # fmt: skip
        flight = Flight(task, _as_contribution(_Sent(task)), Pull(NO_COMPRESSION, "fixed"), now_s)
        before = self._latest.get(client)
        if before is not None:
            self._next_s[before] = now_s
        self._latest[client] = flight
        self._begun.append(flight)
        self._flying.add(flight)
        return flight

    def landed(self, flight: Flight, *, useless: bool) -> None:
        """A participation is over; `useless`: the server was told before that no reply comes."""
        self._flying.discard(flight)
        if useless and not flight.lost:
            flight.lose("dropped")
        if flight.lost:
            self._taken.append(flight)
        else:
            self._landed[flight] = None

    def pulled(self, mail: Mail, message: Message, *, answered: bool, now_s: float) -> None:
        """The server app gets a reply, or an error in its place."""
        self._pulled = True
        flight = mail.flight
        if not answered:
            self.waited_until(now_s)
            if flight in self._landed:
                del self._landed[flight]
                flight.lose("dropped")
                self._taken.append(flight)
            return
        del self._landed[flight]
        self._taken.append(flight)
        arrived_s = flight.ended_at_s
        self._awaited_s = max(arrived_s, self._awaited_s or 0.0)
        self._got = Got(self._got.replies + 1, self._got.size_bytes + int(flight.uplink_bytes))
        if message.has_error():
            flight.lose("failed")
        elif mail.kind == "evaluate":
            found = dict(metrics_of(message))
            self._of_nodes.append((found, float(found.get(self._metrics.weight, 1.0))))

    def waited_until(self, now_s: float) -> None:
        """The server waited until now, and not everybody came."""
        self._awaited_s, self._gave_up, self._pulled = now_s, True, True

    def take_got(self) -> Got:
        """The replies that the app has got since the last time."""
        got, self._got = self._got, Got()
        return got

    def worked(self, kind: str, from_s: float, to_s: float) -> None:
        """The server app spent this time."""
        self._work.append((kind, from_s, to_s))

    def evaluated(self, metrics: dict[str, float]) -> None:
        """The server app has measured its model."""
        if self._sent_at_s is not None:  # before the first exchange there is no row for it
            self._of_server = metrics

    def end(self, now_s: float, uses: LinkUses) -> None:
        """The server app is through, and nothing is under way any more."""
        for flight in self._landed:
            flight.lose("dropped")
        self._taken += self._landed
        self._landed = {}
        if self._sent_at_s is not None:
            self._close(now_s, uses)

    @property
    def any(self) -> bool:
        """Whether anything was ever sent."""
        return self.number > 1 or self._sent_at_s is not None

    # ---- rows ------------------------------------------------------------------------------------

    def _close(self, now_s: float, uses: LinkUses) -> None:
        taken = sorted(self._taken, key=lambda flight: flight.task.order)
        for flight in taken:
            if flight.task.round != self.number and not flight.lost:
                flight.outcome = "late"
        whole = self._waited_for_all(taken)
        merge_at_s = now_s if self._awaited_s is None else self._awaited_s
        server_s = now_s - merge_at_s
        delay_s = (self._sent_at_s or 0.0) - self._started_at_s
        if whole:
            waited_s = delay_s + max(flight.elapsed_s for flight in taken)
        else:
            waited_s = merge_at_s - self._started_at_s
        played = Played(
            self.number, self._started_at_s, now_s, waited_s, server_s, merge_at_s, delay_s,
            whole, False,
        )  # fmt: skip
        self._record(played, taken, uses)
        self._version += any(not flight.lost for flight in taken)
        self.number += 1
        self._started_at_s, self._sent_at_s, self._awaited_s = now_s, None, None
        self._gave_up = self._pulled = False
        self._begun, self._taken, self._work, self._of_nodes = [], [], [], []
        self._of_server = None
        self._turns.clear()

    def _waited_for_all(self, taken: Sequence[Flight]) -> bool:
        """Whether all started at once, and the server waited for exactly these."""
        if not taken or self._gave_up or self._flying or self._landed:
            return False
        if set(taken) != set(self._begun) or len({f.client for f in taken}) != len(taken):
            return False
        if any(flight.started_at_s != self._sent_at_s for flight in taken):
            return False
        return self._awaited_s == max(flight.ended_at_s for flight in taken)

    def _blame(self, played: Played, taken: Sequence[Flight]) -> Blame:
        assert self.network is not None
        if played.waits_for_all:
            return blame(taken, [], self.network)
        awaited = [f for f in taken if f.ended_at_s == played.merge_at_s and not f.lost]
        return blame_last(min(awaited, key=lambda f: f.client, default=None), [])

    def _record(self, played: Played, taken: Sequence[Flight], uses: LinkUses) -> None:
        into = self._recorder
        outcome = Outcome(played.round, self._version)
        into.rounds.append(rows.round_row(played, taken, outcome, self._blame(played, taken)))
        for flight in taken:
            end = self._end_of(flight, played)
            energy_j = rows.energy_of(flight, end, self._device_of(flight.client))
            into.participations.append(
                rows.participation_row(flight, end, played, Verdict(), energy_j)
            )
            into.spans.extend(rows.client_spans(flight, end))
            self._next_s.pop(flight, None)
            if self._latest.get(flight.client) is flight:
                del self._latest[flight.client]
        for kind, from_s, to_s in self._work:
            into.spans.append(Span("server", kind, kind, played.round, None, from_s, to_s))
        into.spans.extend(rows.link_spans(uses, played.round))
        into.links.extend(uses)
        uses.clear()
        accuracy, loss = self._shown()
        if accuracy is not None or loss is not None:
            into.prototypes.append(PrototypeResult(played.round, APP, None, accuracy, loss))
        into.settle()
        if self._progress is not None:
            self._progress(played.round, played.finished_at_s, accuracy)

    def _end_of(self, flight: Flight, played: Played) -> End:
        """Free with its exchange, or when it begins with the next message."""
        next_s = self._next_s.get(flight)
        if next_s is None or next_s >= played.finished_at_s:
            return rows.end_of(flight, played)
        return End(next_s, max(next_s - flight.started_at_s - flight.elapsed_s, 0.0))

    def _shown(self) -> tuple[float | None, float | None]:
        """Accuracy and loss of this exchange: the server's own, or the nodes' weighted mean."""
        return self._metric(self._metrics.accuracy, "acc"), self._metric(self._metrics.loss, "loss")

    def _metric(self, name: str | None, part: str) -> float | None:
        value = None
        if self._of_server is not None:
            value = self._of_server.get(_named(name, part, self._of_server))
        elif self._of_nodes:
            key = _named(name, part, self._of_nodes[0][0])
            known = [(found[key], weight) for found, weight in self._of_nodes if key in found]
            total = sum(weight for _, weight in known)
            value = sum(v * weight for v, weight in known) / total if total > 0 else None
        if value is not None and part == "acc" and not 0 <= value <= 1:
            self.odd.add(f"an accuracy of {value:g}, which is not from 0 to 1, is not shown")
            return None
        return None if value is None else float(value)


def _named(name: str | None, part: str, metrics: dict[str, float]) -> str:
    if name is not None:
        return name
    return next((key for key in metrics if part in key.lower()), "")


def _as_contribution(sent: Any) -> Contribution:
    found: Contribution = sent
    return found
