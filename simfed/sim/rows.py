"""Rows of tables, made of what happened in a round.

Pure functions: a settled flight and its merge in, records of `simfed.record.schema`
out. Durations are copied or summed, never differences of late instants.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from simfed.fleet.contract import Outcome
from simfed.ground.method import CLIENT
from simfed.ground.plain import Plain
from simfed.ground.records import make
from simfed.net import LinkUses
from simfed.policy import Spent
from simfed.record import Recorder
from simfed.record.recorder import BLOCK
from simfed.record.schema import (
    BARRIER,
    ClientResult,
    Participation,
    ProcessorUse,
    PrototypeResult,
    Round,
    Span,
)
from simfed.sim.aggregator import PendingMerge
from simfed.sim.blame import Blame
from simfed.sim.flight import Flight
from simfed.tasks.privacy import Account
from simfed.tasks.tasks import count_told


class Settlement(NamedTuple):
    """A participation, and the merge of its server or edge server that ended it."""

    flight: Flight
    merging: PendingMerge


class MergeVerdict(NamedTuple):
    """A merge's meaning for one participation; None: unknown, or nobody was told.

    Columns of `participations.parquet`, in their order there.
    """

    local_loss: float | None = None
    gain: float | None = None
    reward_raw: float | None = None
    reward: float | None = None


UNTOLD = MergeVerdict()


def make_round_row(
    merging: PendingMerge,
    flights: Sequence[Flight],
    outcome: Outcome,
    blame: Blame,
    account: Account | None = None,
) -> Round | tuple[Plain, ...]:
    """Return the row of `rounds.parquet`.

    Args:
        merging: the merge that ended the round.
        flights: the clients' participations that it settled.
        outcome: of the merge.
        blame: who held it up.
        account: of privacy; what it comes to is a last column.
    """
    row = Round(
        round=merging.round,
        started_at_s=merging.started_at_s,
        finished_at_s=merging.finished_at_s,
        participants=len(flights),
        late=sum([flight.outcome == "late" for flight in flights]),
        dropped=sum([flight.lost for flight in flights]),
        uplink_bytes=sum([flight.uplink_bytes for flight in flights]),
        downlink_bytes=sum([flight.downlink_bytes for flight in flights]),
        rolled_back=outcome.rolled_back,
        critical_client=blame.client,
        critical_phase=blame.phase,
        critical_link=blame.link,
        duration_s=merging.duration_s,
        server_s=merging.server_s,
        saved_without_critical_s=blame.saved_s,
    )
    if account is None:
        return row
    taken = [flight.task.who for flight in flights]
    arrived = [flight.task.who for flight in flights if not flight.lost]
    return (*row, account.settle(taken, arrived))


class End(NamedTuple):
    """The time after a client's part in a round."""

    free_at_s: float
    """The instant at which it can be started again."""
    rest_s: float
    """The seconds until then: it waits, or is away."""


def find_end(flight: Flight, merging: PendingMerge) -> End:
    """Return the instant at which a client is free again, and its rest until then."""
    if merging.filled:
        return End(flight.ended_at_s, 0.0)
    free_at_s = merging.finished_at_s
    if merging.waits_for_all:
        rest_s = merging.duration_s - merging.delay_s - flight.elapsed_s
    else:
        rest_s = free_at_s - flight.started_at_s - flight.elapsed_s
    return make(End, (free_at_s, max(rest_s, 0.0)))  # a difference is rounded


def make_processor_row(flight: Flight, merge: int) -> ProcessorUse:
    """Return the row of `processor.parquet` of a real client's participation."""
    assert flight.busy is not None
    return ProcessorUse(
        merge, flight.task.round, flight.client, flight.started_at_s, *flight.busy
    )


def make_participation_row(
    flight: Flight,
    end: End,
    merging: PendingMerge,
    verdict: MergeVerdict,
    energy_j: float | None,
    merge: int | None = None,
) -> Participation:
    """Return the row of `participations.parquet`.

    The rest of the round is waiting, or being away.

    Args:
        flight: over and settled.
        end: when its client is free again.
        merging: the merge that took it, of its server or edge server.
        verdict: what the merge meant for it.
        energy_j: joules of it; None: not known.
        merge: the server's merge that settled it, where an edge server's took it
        before.
    """
    task, pull, rest_s, away = flight.task, flight.pull, end.rest_s, flight.away
    k = count_told(task, pull.arm, flight.contribution.k)
    if k is None:
        k = flight.contribution.k if flight.told is None else flight.told
    row = (
        task.round,
        task.client,
        task.who.prototype,
        task.model_version,
        pull.arm.label,
        k,
        pull.choice,
        flight.outcome,
        flight.started_at_s,
        end.free_at_s,
        flight.downlink_s,
        flight.training_s,
        flight.compression_s,
        flight.uplink_s,
        flight.barrier_s + (0.0 if away else rest_s),  # waiting
        rest_s if away else 0.0,  # offline
        flight.uplink_bytes,
        flight.downlink_bytes,
        energy_j,
        *verdict,
        compute_slack_s(flight, merging),
        flight.staleness,
        merging.round if merge is None else merge,
    )
    return make(Participation, row)


def compute_slack_s(flight: Flight, merging: PendingMerge) -> float | None:
    """Return how much later an upload could have arrived without delaying the merge.

    None: it did not arrive.
    """
    if flight.lost:
        return None
    if merging.waits_for_all:
        slack_s = merging.waited_s - merging.delay_s - flight.elapsed_s
    else:
        slack_s = merging.at_s - flight.ended_at_s
    return max(slack_s, 0.0)  # a difference is rounded


def compute_spent(flight: Flight, merging: PendingMerge, pace: float) -> Spent:
    """Return what a policy that watches time is told of an arrived participation.

    `pace`: its upload's rate over that of the merge's slowest, see `paces_of`.
    """
    slack_s = compute_slack_s(flight, merging) or 0.0
    work_s = flight.training_s + flight.compression_s
    return Spent(flight.downlink_s, work_s, flight.uplink_s, slack_s, pace)


def list_client_spans(flight: Flight, end: End) -> list[Span]:
    """Return one span per phase that took time, or per piece that faults left.

    Each starts where the one before it ended.
    """
    round, client = flight.task.round, flight.client
    track, at_s, free_s = f"client {client}", flight.started_at_s, end.free_at_s
    spans = []
    for leg in flight.legs:
        if leg.frozen or leg.name == "timeout":
            pieces = [*leg.pieces()]
        else:  # what nearly all are, without a call
            kind = leg.phase if leg.node == CLIENT else BARRIER
            pieces = [(kind, leg.name, leg.duration_s - leg.hidden_s)]
        for kind, name, seconds in pieces:
            if seconds > 0:
                until_s = min(at_s + seconds, free_s)
                spans.append(
                    make(Span, (track, kind, name, round, client, at_s, until_s))
                )
                at_s = until_s
    for lane, leg in () if flight.chain else flight.tracks():
        until_s = leg.started_at_s + leg.duration_s
        spans.append(
            Span(lane, leg.phase, leg.name, round, client, leg.started_at_s, until_s)
        )
    if end.rest_s > 0:
        kind = "offline" if flight.away else "waiting"
        spans.append(make(Span, (track, kind, kind, round, client, at_s, free_s)))
    return spans


def compute_powered_s(flight: Flight, rest_s: float = 0.0) -> dict[str, float]:
    """Return seconds of a participation, and of a rest after it, by kind of power.

    Kinds are the names that a device profile gives watts for; the seconds add up to its
    length. A device that rests, stands still, or waits before it sends again, is idle;
    of one that is away nothing is known. Where it does several things at once, each
    counts in full, and what they come to beyond its length is idleness below zero.

    Args:
        flight: over.
        rest_s: seconds after it until its client is free; none of one that is away.
    """
    rest_s = 0.0 if flight.away else rest_s
    idle_s = flight.barrier_s + rest_s
    spent_s = {"downlink": flight.downlink_s, "uplink": flight.uplink_s, "idle": idle_s}
    stood_s: dict[str, float] = {}
    for leg in flight.legs:
        if leg.node != CLIENT:
            continue
        if leg.quantity:
            spent_s[leg.quantity] = spent_s.get(leg.quantity, 0.0) + leg.duration_s
        elif leg.pause:
            name = "downlink" if leg.phase == "download" else "uplink"
            stood_s[name] = stood_s.get(name, 0.0) + leg.duration_s
    for leg in flight.legs:
        for _, seconds in leg.frozen:
            stood_s[leg.quantity] = stood_s.get(leg.quantity, 0.0) + seconds
    for name, seconds in stood_s.items():
        spent_s[name] = max(spent_s[name] - seconds, 0.0)
        spent_s["idle"] += seconds
    if not flight.chain:
        both_s = sum([leg.hidden_s - leg.held_s for leg in flight.legs])
        spent_s["uplink"] += both_s
        spent_s["idle"] -= both_s
    return spent_s


def list_server_spans(merging: PendingMerge, track: str = "server") -> Iterable[Span]:
    """Yield a server's work, one piece after another, up to the end of its merge."""
    at_s = merging.finished_at_s - merging.server_s
    for piece in merging.work:
        if piece.duration_s > 0:
            until_s = min(at_s + piece.duration_s, merging.finished_at_s)
            yield Span(
                track,
                piece.kind,
                piece.name,
                merging.round,
                piece.client,
                at_s,
                until_s,
            )
            at_s = until_s


def record_links(into: Recorder, uses: LinkUses, round: int) -> None:
    """Record what links carried until the end of a round, and forget it."""
    uses.order()
    for span in _list_link_spans(uses, round):
        into.spans.append(span)
        if len(into.spans) >= BLOCK:
            into.settle()
    into.links.extend(uses)
    uses.clear()


def _list_link_spans(uses: LinkUses, round: int) -> Iterator[Span]:
    """Yield one span per interval without a break in which a link carried anything."""

    def make_span(link: int, interval: tuple[float, float]) -> Span:
        return make(
            Span, (f"link {uses.name_of(link)}", "busy", "busy", round, None, *interval)
        )

    busy: dict[int, tuple[float, float]] = {}
    for link, from_s, to_s in uses.intervals():
        begun = busy.get(link)
        if begun is not None and begun[1] == from_s:
            busy[link] = begun[0], to_s
            continue
        if begun is not None:
            yield make_span(link, begun)
        busy[link] = from_s, to_s
    for link, interval in busy.items():
        yield make_span(link, interval)


def list_prototype_rows(
    outcome: Outcome, names: Sequence[str] = ()
) -> Iterable[tuple[Plain, ...]]:
    """Yield one row per prototype of which the merge said anything.

    Args:
        outcome: of the merge.
        names: columns beside the schema's, such as a method's own losses.
    """
    for prototype in dict.fromkeys((*outcome.losses, *outcome.evaluation)):
        tested = outcome.evaluation.get(prototype)
        measured = outcome.losses.get(prototype, {})
        row = PrototypeResult(
            round=outcome.round,
            prototype=prototype,
            kd_loss=measured.get("kd_loss"),
            test_accuracy=tested.accuracy if tested else None,
            test_loss=tested.loss if tested else None,
        )
        tests = tested.measures if tested else {}
        more = {f"test_{key}": value for key, value in tests.items()}
        more |= measured
        yield (*row, *map(more.get, names)) if names else row


def list_client_rows(
    outcome: Outcome, names: Sequence[str] = (), account: Account | None = None
) -> Iterable[tuple[Plain, ...]]:
    """Yield one row per client whose own model was evaluated.

    Args:
        outcome: of the merge.
        names: columns beside the schema's.
        account: of samples' privacy, which each client spends for itself.
    """
    spent = (account.by_client() if account is not None else None) or {}
    for client, evaluation in sorted(outcome.clients.items()):
        row = ClientResult(
            round=outcome.round,
            client=client,
            accuracy=evaluation.accuracy,
            loss=evaluation.loss,
            own_accuracy=evaluation.own_accuracy,
            own_loss=evaluation.own_loss,
        )
        more = {**evaluation.measures, "epsilon": spent.get(client, 0.0)}
        yield (*row, *map(more.get, names)) if names else row
