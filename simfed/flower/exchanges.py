"""An app's messages as rounds: one per exchange, in the tables of any other run.

An exchange begins when the server app sends, and ends when it sends again after it got
replies; the first one begins with the run, the last one ends with the app. What the
server does after the last reply that it waited for belongs to it. Where the app sends
to everybody at once and waits for all, this is a synchronous round, and the blame is
that of one; where it does not, the exchange waited for the last reply that it got.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from flwr.app import Message

from simfed.compress.choice import NO_COMPRESSION, Choice
from simfed.fleet.contract import Outcome, Task
from simfed.flower.messages import Mail, read_metrics
from simfed.ground.method import Field, Plan, Size, Who, Work
from simfed.net import LinkUses
from simfed.policy import Pull
from simfed.record.recorder import Recorder
from simfed.record.schema import START, Participation, PrototypeResult, Span
from simfed.scenario.fleet_file import APP, AppMetrics
from simfed.sim import rows
from simfed.sim.aggregator import PendingMerge
from simfed.sim.blame import Blame, blame_last, blame_round
from simfed.sim.clock import Clock
from simfed.sim.flight import Flight
from simfed.sim.rows import UNTOLD, End

Progress = Callable[[int, float, float | None], None]
"""Told after every exchange: its number, when it ended (s), the accuracy if it is
known."""

_QUANTITY = {"evaluate": "inference"}
"""Type of message → the profile's word for the work on it, by which noise and watts are
told."""
_UP = {"reply": Field("reply", 0, bounded=True)}
_KIND = {"train": "training", "evaluate": "evaluation"}
"""Type of message → kind of the span of the work on it."""


@dataclass(frozen=True, slots=True)
class _Sent:
    task: Task
    choice: Choice = NO_COMPRESSION
    k: int = 0
    told: int | None = None

    def uplink_bytes(self) -> float:
        raise NotImplementedError  # the node knows it, see `simfed.flower.play`


class Exchanges:
    """The exchanges of a run, recorded one after another.

    `AppPlay` tells it what happens (`send`, `begin`, `land`, `pull`, `give_up`); rows
    are written when an exchange is over. A participation belongs to the exchange in
    which its message was sent, its row to the one in which the server was through with
    it: the difference is its staleness.
    """

    def __init__(
        self,
        recorder: Recorder,
        metrics: AppMetrics,
        clients: int,
        clock: Clock,
        *,
        resent: bool,
        progress: Progress | None,
    ) -> None:
        """Begin the first exchange at 0 s.

        Args:
            recorder: gets the rows; with columns of its own, nodes' starts are one.
            metrics: names of the metrics that `prototypes.parquet` shows.
            clients: how many nodes there are.
            clock: on which they work.
            resent: messages may be lost and sent again.
            progress: is told of every exchange when it is over.
        """
        self._recorder = recorder
        self._metrics = metrics
        self._clock = clock
        self._resent = resent
        self._progress = progress
        self._size = Size(APP, 0, 0, 0, clients)
        self._starts = bool(recorder.own)
        """Nodes' starts are charged, as a phase of their own."""
        self.number = 0
        self._version = 0
        self._received = 0, 0
        """Replies that the server app has not worked on yet, and their bytes."""
        self._flying: set[Flight] = set()
        self._landed: dict[Flight, Mail] = {}
        """Replies that arrived and were not pulled yet."""
        self._latest: dict[int, Flight] = {}
        """Client → its latest flight."""
        self._next_s: dict[Flight, float] = {}
        """Flight → when its client began with the next one."""
        self._worked_until_s = 0.0
        self.warnings: set[str] = set()
        """Sentences about metrics that cannot be shown."""
        self._open(0.0)

    def _open(self, now_s: float) -> None:
        """Begin the next exchange."""
        self.number += 1
        self._started_at_s = now_s
        self._sent_at_s: float | None = None
        self._awaited_s: float | None = None
        """The instant until which the server has waited for somebody in this exchange.
        """
        self._gave_up = False
        """True if it has stopped waiting for somebody."""
        self._pulled = False
        self._begun: list[Flight] = []
        self._settled: list[Flight] = []
        """Flights of this exchange that the server is through with."""
        self._turns: dict[int, int] = defaultdict(int)
        """Client → how many flights it has begun in this exchange."""
        self._work: list[tuple[str, float, float]] = []
        """Intervals of the server's work: kind, from, to."""
        self._node_metrics: list[tuple[dict[str, float], float]] = []
        """Metrics of evaluations on nodes, and their weights."""
        self._server_metrics: dict[str, float] | None = None

    # ---- what happens ----------------------------------------------------------------

    def send(self, now_s: float, uses: LinkUses) -> None:
        """Note that the server app sends now.

        What it pulled before belongs to an exchange that is over, whose rows are
        written.
        """
        if self._pulled:
            self._close(now_s, uses)
        if self._sent_at_s is None:
            self._sent_at_s = now_s

    def begin(self, mail: Mail, now_s: float) -> Flight:
        """Return the participation of a node that begins with a message now.

        Its plan is a download, the start of a process where that is charged, the work
        and an upload whose bytes nobody knows yet.
        """
        client = mail.client
        who = Who(client, APP, self._size, 1, self._turns[client])
        self._turns[client] += 1
        kind = mail.kind
        quantity, name = _QUANTITY.get(kind, "training"), mail.type
        work = Work(quantity, APP, 1, kind=_KIND.get(kind, kind), name=name)
        start = (Work("auxiliary", APP, 1, kind=START),) if self._starts else ()
        plan, size_bytes = Plan({}, (*start, work), _UP), float(mail.size_bytes)
        task = Task(self.number, client, who, plan, self._version, size_bytes)
        flight = Flight(task, _Sent(task), Pull(NO_COMPRESSION, "fixed"), now_s)
        before = self._latest.get(client)
        if before is not None:
            self._next_s[before] = now_s
        self._latest[client] = flight
        self._begun.append(flight)
        self._flying.add(flight)
        return flight

    def land(self, mail: Mail) -> None:
        """Take note that a participation is over.

        It is of no use where the server was told before that no reply comes.
        """
        flight = mail.flight
        assert flight is not None
        self._flying.discard(flight)
        if mail.answered and not flight.lost:
            flight.lose("dropped")
        if flight.lost:
            self._settled.append(flight)
        else:
            self._landed[flight] = mail

    def pull(
        self, mail: Mail, message: Message, *, answered: bool, now_s: float
    ) -> None:
        """Take note that the server app gets a reply, or an error in its place.

        Args:
            mail: the message that it sent.
            message: what it gets.
            answered: its node has replied, be it with an error of the app's.
            now_s: the clock.
        """
        self._pulled = True
        flight = mail.flight
        if not answered:
            self.give_up(now_s)
            if flight in self._landed:
                self._settle(flight, "dropped")
            return
        assert flight is not None
        if flight in self._landed:  # else its exchange is over
            self._settle(flight)
        self._awaited_s = max(flight.ended_at_s, self._awaited_s or 0.0)
        replies, size_bytes = self._received
        self._received = replies + 1, size_bytes + int(flight.uplink_bytes)
        if message.has_error():
            flight.lose("failed")
        elif mail.kind == "evaluate":
            metrics = dict(read_metrics(message))
            self._node_metrics.append(
                (metrics, float(metrics.get(self._metrics.weight, 1.0)))
            )

    def _settle(self, flight: Flight, lost: str | None = None) -> None:
        """Take note that the server is through with a reply.

        Args:
            flight: its participation.
            lost: what became of it where it is of no use.
        """
        del self._landed[flight]
        if lost is not None:
            flight.lose(lost)
        self._settled.append(flight)

    def give_up(self, now_s: float) -> None:
        """Take note that the server has waited until now, and not everybody came."""
        self._awaited_s, self._gave_up, self._pulled = now_s, True, True

    def collect_received(self) -> tuple[int, int]:
        """Return the number of replies since the last time, and their bytes."""
        received, self._received = self._received, (0, 0)
        return received

    def add_work(self, kind: str, from_s: float, to_s: float) -> None:
        """Note an interval in which the server app worked, for the round's spans.

        What another of its threads did at the same time and has ended is left out.

        Args:
            kind: `aggregation`, `server work` or `sleep`.
            from_s: its beginning.
            to_s: its end.
        """
        from_s, self._worked_until_s = max(from_s, self._worked_until_s), to_s
        if to_s > from_s:
            self._work.append((kind, from_s, to_s))

    def set_evaluation(self, metrics: dict[str, float]) -> None:
        """Note the metrics of the server's own evaluation, for the round under way."""
        # before the first exchange there is no row for it
        if self._sent_at_s is not None:
            self._server_metrics = metrics

    def end(self, now_s: float, uses: LinkUses) -> None:
        """Write the last exchange's rows.

        Replies that the app looked for and never pulled are dropped.
        """
        for flight, mail in list(self._landed.items()):
            if mail.polled:
                self._settle(flight, "dropped")
        if self._sent_at_s is not None:
            self._close(now_s, uses)

    @property
    def has_sent(self) -> bool:
        """True if anything was ever sent."""
        return self.number > 1 or self._sent_at_s is not None

    # ---- rows ------------------------------------------------------------------------

    def _settle_unpolled(self) -> None:
        """Settle replies that have arrived and that the server has never looked for.

        Their messages were sent to be worked on, not to be answered, and have done what
        they were for.
        """
        for flight, mail in list(self._landed.items()):
            if not mail.polled:
                failed = mail.reply is not None and mail.reply.error is not None
                self._settle(flight, "failed" if failed else None)

    def _close(self, now_s: float, uses: LinkUses) -> None:
        """Write the rows of an exchange that ends now, and begin the next one.

        Args:
            now_s: its end.
            uses: of links since the last one.
        """
        whole = self._waited_for_all(self._settled)
        self._settle_unpolled()
        taken = sorted(self._settled, key=lambda flight: flight.task.order)
        for flight in taken:
            flight.staleness = self.number - flight.task.round
            if flight.staleness and not flight.lost:
                flight.outcome = "late"
        merge_at_s = now_s if self._awaited_s is None else self._awaited_s
        delay_s = (self._sent_at_s or 0.0) - self._started_at_s
        if whole:
            waited_s = delay_s + max(flight.elapsed_s for flight in taken)
        else:
            waited_s = merge_at_s - self._started_at_s
        merging = PendingMerge(
            round=self.number,
            started_at_s=self._started_at_s,
            delay_s=delay_s,
            waited_s=waited_s,
            at_s=merge_at_s,
            waits_for_all=whole,
            filled=False,
            taken=taken,
            server_s=now_s - merge_at_s,
            finished_at_s=now_s,
        )
        self._record(merging, uses)
        self._version += any(not flight.lost for flight in taken)
        self._open(now_s)

    def _waited_for_all(self, taken: Sequence[Flight]) -> bool:
        """Return whether all started at once, and the server waited for just these."""
        return (
            bool(taken)
            and not (self._gave_up or self._flying or self._landed)
            and set(taken) == set(self._begun)
            and len({flight.client for flight in taken}) == len(taken)
            and {flight.started_at_s for flight in taken} == {self._sent_at_s}
            and self._awaited_s == max(flight.ended_at_s for flight in taken)
        )

    def _blame(self, merging: PendingMerge) -> Blame:
        """Return who and what set an exchange's length.

        A synchronous round's is found as for any other; elsewhere it is the last reply
        that the server waited for.
        """
        taken, network = merging.taken, self._clock.network
        if merging.waits_for_all:
            return blame_round(taken, [], network, resent=self._resent)
        awaited = [f for f in taken if f.ended_at_s == merging.at_s and not f.lost]
        last = min(awaited, key=lambda f: f.client, default=None)
        return blame_last(last, [], network)

    def _record(self, merging: PendingMerge, uses: LinkUses) -> None:
        """Append an exchange's rows: round, participations, spans, links, metrics."""
        recorder, taken = self._recorder, merging.taken
        outcome = Outcome(merging.round, self._version)
        recorder.rounds.append(
            rows.make_round_row(merging, taken, outcome, self._blame(merging))
        )
        for flight in taken:
            end = self._end_of(flight, merging)
            powered_s = partial(rows.compute_powered_s, flight, end.rest_s)
            energy_j = self._clock.energy_j(flight.client, powered_s)
            row = rows.make_participation_row(flight, end, merging, UNTOLD, energy_j)
            recorder.participations.append(
                _split_start(row, flight) if self._starts else row
            )
            recorder.spans.extend(rows.list_client_spans(flight, end))
            self._next_s.pop(flight, None)
            if self._latest.get(flight.client) is flight:
                del self._latest[flight.client]
        for kind, from_s, to_s in self._work:
            recorder.spans.append(
                Span("server", kind, kind, merging.round, None, from_s, to_s)
            )
        rows.record_links(recorder, uses, merging.round)
        accuracy = self._metric(self._metrics.accuracy, "acc")
        loss = self._metric(self._metrics.loss, "loss")
        if accuracy is not None or loss is not None:
            recorder.prototypes.append(
                PrototypeResult(merging.round, APP, None, accuracy, loss)
            )
        recorder.settle()
        if self._progress is not None:
            self._progress(merging.round, merging.finished_at_s, accuracy)

    def _end_of(self, flight: Flight, merging: PendingMerge) -> End:
        """Return when a participation's client was free again, and how long it rested.

        That is with its exchange, or when it begins with the next message.
        """
        next_s = self._next_s.get(flight)
        if next_s is None or next_s >= merging.finished_at_s:
            return rows.find_end(flight, merging)
        return End(next_s, max(next_s - flight.started_at_s - flight.elapsed_s, 0.0))

    def _metric(self, name: str | None, part: str) -> float | None:
        """Return a metric of this exchange: the server's, or the nodes' weighted mean.

        Args:
            name: the metric's; None: the first whose name has `part` in it.
            part: `acc` or `loss`.

        Returns:
            None where it was not evaluated; also for an accuracy outside of 0 to 1,
            with a warning.
        """
        told = self._node_metrics
        if self._server_metrics is not None:
            told = [(self._server_metrics, 1.0)]
        first = told[0][0] if told else {}
        shown = (metric for metric in first if part in metric.lower())
        key = next(shown, "") if name is None else name
        pairs = [(m[key], weight) for m, weight in told if key in m]
        total = sum(weight for _, weight in pairs)
        if total <= 0:
            return None
        value = sum(v * weight for v, weight in pairs) / total
        if part == "acc" and not 0 <= value <= 1:
            self.warnings.add(
                f"an accuracy of {value:g}, which is not from 0 to 1, is not shown"
            )
            return None
        return value


def _split_start(row: Participation, flight: Flight) -> Any:
    """Return a row with a last column: what the node's start took of its local work."""
    start_s, work_s = 0.0, 0.0
    for leg in flight.legs:
        if leg.phase == START:
            start_s += leg.duration_s
        elif leg.quantity:
            work_s += leg.duration_s
    return (*row._replace(training_s=work_s), start_s)
