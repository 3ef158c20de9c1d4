"""The server: rounds as a story of yields, between one workload and one world.

Start clients, wait as the mode says, do the server's own work, merge, reward, record; at the
round's border show progress, save, or stop. A round is what lies between two merges. Events of one
instant come in this order: participations that end, the merge, starts. While the server works at a
merge, arrivals wait for the next one and nobody is started. The run ends when the server's story
ends, never when the clock runs dry: a cancelled wait may leave something on it.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import simpy

from simfed.compress.choice import Choice
from simfed.fleet.faults import Faults
from simfed.fleet.tasks import pull_for
from simfed.ground.contract import Outcome, Workload, mean_over_clients
from simfed.ground.errors import Interrupted, RunFailed, as_raised
from simfed.ground.seeding import Streams
from simfed.net.instants import cancel, end_of_instant
from simfed.policy import Policy, gain, reward, watches
from simfed.record import Checkpoint, Recorder
from simfed.record.schema import PolicyValue
from simfed.scenario import Scenario
from simfed.sim import rows
from simfed.sim.blame import blame, blame_last
from simfed.sim.flight import Flight
from simfed.sim.modes import mode_of
from simfed.sim.population import Population
from simfed.sim.rows import Played, Verdict
from simfed.sim.server_work import PlayedWork
from simfed.sim.world import CUT, Instants, World

__all__ = ["Progress", "Simulation"]

_HOPELESS = 10_000
"""So many losses in a row, and ten per client, before a server that waits for arrivals gives up."""

Story = Generator[simpy.Event, Any, None]

Progress = Callable[[int, float, "float | None"], None]
"""`(round, simulated_s, mean accuracy where it was evaluated)`, after each round."""


class Simulation:
    """One run on the clock side, composed of a mode, a workload and a world, and played by `run`.

    Idle clients are columns; those in flight are the world's. The learning side is
    asked in one fixed order (client ids within an instant), whatever the clock does, so in a
    synchronous server its results do not depend on devices or networks unless a policy looks at
    time.
    """

    def __init__(
        self,
        scenario: Scenario,
        *,
        workload: Workload,
        world: World,
        make_policy: Callable[[int], Policy],
        recorder: Recorder,
        streams: Streams,
        samples_of: Callable[[int], int] = lambda client: 1,
        faults: Faults | None = None,
    ) -> None:
        """`make_policy(client)` is called once per client that takes part; `samples_of(client)`:
        what a selection may look at; `faults`: when the server restarts (what befalls devices and
        messages is the world's)."""
        self._scenario = scenario
        self._workload = workload
        self._world = world
        self._recorder = recorder
        self._streams = streams
        self._faults = faults
        self._may_resend = faults is not None and faults.messages is not None
        self._restarts = 0
        """How many there have been."""
        self._mode = mode_of(scenario)
        self._population = Population(scenario, make_policy, streams, world.presence, samples_of)
        self._losses = scenario.method.made.losses
        self._held: dict[int, int] | None = {} if scenario.downlink.compression else None
        self._round = 0
        self._now_s = 0.0
        self._forced_arm: str | None = None
        self._version = 0
        self._shared_loss: dict[str, float] = {}
        self._starts = 0
        self._lost_in_a_row = 0
        self._in_flight: dict[int, Flight] = {}
        self._ended: list[Flight] = []
        self._turns: dict[int, int] = {}
        self._cohort = 0
        self._cohort_ended = 0
        self._arrived = 0
        self._deadline_at_s = math.inf
        self._deadline: simpy.Event | None = None
        self._wake: simpy.Event | None = None
        self._has_set_out = False
        self._total, self._learning, self._recording = HostSeconds(), HostSeconds(), HostSeconds()
        world.connect(self)

    # ---- from outside ----------------------------------------------------------------------------

    def run(
        self,
        *,
        progress: Progress | None = None,
        stop_requested: Callable[[], bool] = lambda: False,
        save: Callable[[Checkpoint], None] | None = None,
        save_every: int = 0,
    ) -> None:
        """Play the rounds that are left.

        progress: called after each round. stop_requested: asked at each round's border; once it
        says yes the state is saved and `Interrupted` raised. save: keeps a checkpoint; called every
        `save_every` rounds and after the last one (0: only when stopped).
        """
        if not self._has_set_out:
            self._set_out()
        self._progress, self._stop_requested = progress, stop_requested
        self._save, self._save_every = save, save_every
        if self._round < self._scenario.rounds:
            self._world.gather(stop_requested)
        at_once = self._mode.at_once(len(self._population))
        try:
            with self._total, _fewer_collections(at_once):
                self._env.run(until=self._env.process(self._serve()))
        except Exception as error:
            raise as_raised(error) from None

    def lose(self, client: int, outcome: str = "dropped") -> None:
        """This client's participation ends now and nothing of it is merged: `dropped` (the
        client is away for the rest of the round) or `failed` (it stays, and waits)."""
        self._world.cut(self._in_flight[client], outcome)

    def wall_s(self) -> dict[str, float]:
        """Host seconds of `run`, split: learning (inside the workload), recording, and the rest."""
        learning_s, recording_s = self._learning.wall_s, self._recording.wall_s
        return {
            "learning": learning_s,
            "simulation": self._total.wall_s - learning_s - recording_s,
            "recording": recording_s,
        }

    def checkpoint(self) -> Checkpoint:
        """Everything a resumed run needs, at a round's border: clients may be in flight."""
        facts, arrays = self._workload.state()
        world, world_arrays = self._world.state()
        flying = [*self._in_flight.values(), *self._ended]
        own = {
            "now_s": self._now_s,
            "forced_arm": self._forced_arm,
            "version": [self._version, self._shared_loss],
            "population": self._population.state(),
            "starts": self._starts,
            "flights": [flight.plain() for flight in flying],
            "held": sorted(self._held.items()) if self._held is not None else None,
            "restarts": self._restarts,
        }
        every = {"simulation": own, "world": world, "workload": facts}
        return Checkpoint(self._round, every, {**arrays, **world_arrays})

    def restore(self, checkpoint: Checkpoint) -> None:
        """Inverse of `checkpoint`, on a new simulation of the same scenario, before `run`."""
        own = checkpoint.facts["simulation"]
        self._round = checkpoint.round
        self._now_s = own["now_s"]
        self._forced_arm = own["forced_arm"]
        self._version, self._shared_loss = own["version"]
        if self._held is not None:
            self._held.update(own["held"])
        self._population.restore(own["population"])
        self._workload.restore(checkpoint.facts["workload"], checkpoint.arrays)
        self._starts, self._restarts = own["starts"], own["restarts"]
        self._set_out()
        self._world.restore(checkpoint.facts["world"], checkpoint.arrays)
        for flight in self._recorded(own["flights"]):
            if flight.over:
                self._await_merge(flight)
                continue
            self._in_flight[flight.client] = flight
            self._population.busy.add(flight.client)
            self._world.resume(flight)
            if flight.over:
                del self._in_flight[flight.client]
                self._await_merge(flight)

    def _set_out(self) -> None:
        self._has_set_out = True
        self._world.set_out(self._now_s)
        self._env = self._world.env
        self._instants = Instants(self._env)

    def _recorded(self, plain: Sequence[Mapping[str, Any]]) -> Iterator[Flight]:
        """A checkpoint's flights, in the order in which they began what they do."""
        for of in sorted(plain, key=lambda of: int(of["order"])):
            round, client, _, turn = of["task"]
            contribution = self._workload.contribution(self._workload.task(round, client, turn))
            flight = Flight.of_plain(of, contribution.task, contribution)
            if flight.task.model_version == self._version:
                flight.shared_loss = self._shared_loss
            yield flight

    def _await_merge(self, flight: Flight) -> None:
        """It had ended before the checkpoint, and nobody has merged it yet."""
        self._ended.append(flight)
        if self._mode.filled:
            self._arrived += not flight.lost
        else:
            self._population.busy.add(flight.client)

    # ---- the story -------------------------------------------------------------------------------

    def _serve(self) -> Story:
        mode, rounds = self._mode, self._scenario.rounds
        while self._round < rounds:
            started_at_s = self._now_s
            delay_s = yield from self._start()
            yield from self._wait()
            struck = not self._due()
            last = None if struck else self._last_awaited()
            if struck or not mode.keeps_late or self._round + 1 == rounds:
                yield from self._cut_off()
            merge_at_s = self._env.now
            taken = self._take()
            if struck:
                for flight in taken:
                    if not flight.lost:  # it had arrived, and nobody knows of it any longer
                        flight.lose("dropped")
            waits_for_all = mode.waits_for_all and not struck
            if waits_for_all:
                # all started at once, so the longest sum of durations is exact where a difference
                # of instants would not be
                waited_s = delay_s + max((flight.elapsed_s for flight in taken), default=0.0)
            else:
                waited_s = merge_at_s - started_at_s
            merge: Callable[[], Outcome] = partial(self._merge, taken, self._round + 1)
            if struck:
                work = [self._restart()]
            else:
                work, merge = self._work_at_merge(taken, merge)
            server_s = sum(piece.duration_s for piece in work)
            yield self._env.timeout(server_s)
            yield end_of_instant(self._env)
            self._round += 1
            self._now_s = self._env.now
            played = Played(
                self._round, started_at_s, self._now_s, waited_s, server_s, merge_at_s, delay_s,
                waits_for_all, self._mode.filled,
            )  # fmt: skip
            outcome = merge()
            otherwise = "restart" if struck else "deadline" if taken else "server"
            self._record(played, taken, work, outcome, last, otherwise)
            self._border(outcome)

    def _start(self) -> Generator[simpy.Event, Any, float]:
        """Start clients; where none is there, wait until one is. How long that took."""
        begun_s = self._env.now
        while True:
            ids = self._population.choose(
                self._mode, self._streams, self._round + 1, self._starts, self._env.now
            )
            if len(ids) or self._in_flight or self._ended:
                break
            if self._population.may_pass(self._env.now):
                break  # a round without participants
            yield self._world.somebody_back(self._round + 1, patient=False)
        delay_s: float = self._env.now - begun_s
        flights = self._flights(ids)
        self._cohort, self._cohort_ended = len(flights), 0
        if not self._mode.filled:
            self._arrived = 0
        self._deadline_at_s = self._env.now + self._mode.deadline_s
        if self._deadline_at_s < math.inf:
            cancel(self._env, self._deadline)
            self._deadline = self._env.timeout(self._mode.deadline_s)
            self._alarm(self._deadline)
        for flight in flights:
            self._send_off(flight)
        return delay_s

    def _wait(self) -> Story:
        """Until the mode says: merge, or a restart strikes."""
        strikes_at_s = self._next_restart_s()
        if strikes_at_s < math.inf:
            self._alarm(self._instants.at(strikes_at_s))
        while not self._due() and self._env.now < strikes_at_s:
            self._wake = self._env.event()
            if self._mode.filled and len(self._in_flight) < (self._mode.concurrency or 0):
                patient = bool(self._in_flight)
                self._alarm(self._world.somebody_back(self._round + 1, patient=patient))
            yield self._wake
            self._wake = None
            yield end_of_instant(self._env)
            if self._lost_in_a_row > _HOPELESS + 10 * len(self._population):
                raise RunFailed(
                    f"round {self._round + 1}: {self._lost_in_a_row:,} participations in a row "
                    f"were lost by {self._env.now:g} s: nobody stays, or succeeds, for as long as "
                    "it takes"
                )
            if self._mode.filled and not self._due() and self._env.now < strikes_at_s:
                ids = self._population.choose(
                    self._mode, self._streams, self._round + 1, self._starts, self._env.now
                )
                for flight in self._flights(ids):
                    self._send_off(flight)

    def _due(self) -> bool:
        mode = self._mode
        if mode.filled:
            return self._arrived >= (mode.wanted or 1)
        if self._env.now >= self._deadline_at_s:
            return True
        if mode.wanted is not None and self._arrived >= mode.wanted:
            return True
        if self._cohort:
            return self._cohort_ended == self._cohort
        # nobody was free to be started, or chosen
        return bool(self._ended) or not self._in_flight

    def _next_restart_s(self) -> float:
        """When the server goes down next; one that was due while it merged comes now."""
        restarts = None if self._faults is None else self._faults.restarts
        if restarts is None:
            return math.inf
        return max(restarts.border_s(2 * self._restarts), self._env.now)

    def _restart(self) -> PlayedWork:
        """The server is down and comes back with what it had after its last merge."""
        assert self._faults is not None
        assert self._faults.restarts is not None
        begins_s, ends_s = (self._faults.restarts.border_s(2 * self._restarts + k) for k in (0, 1))
        self._restarts += 1
        return PlayedWork("restart", "restart", None, ends_s - begins_s)

    def _cut_off(self) -> Story:
        """Nobody is waited for any longer."""
        late = list(self._in_flight.values())
        for flight in late:
            self._world.cut(flight, CUT)
        if late:
            yield end_of_instant(self._env)

    def _take(self) -> list[Flight]:
        """The flights that have ended since the last merge, in client order, lost ones included."""
        taken = sorted(self._ended, key=lambda flight: flight.task.order)
        self._ended = []
        self._arrived = 0
        self._turns.clear()
        merge, bound = self._round + 1, self._mode.bound
        for flight in taken:
            if not self._mode.filled:  # an upload that waits for its merge keeps its client
                self._population.busy.discard(flight.client)
            staleness = merge - flight.task.round
            if flight.lost:
                continue
            if bound is not None and staleness > bound:
                flight.lose("dropped")
            elif staleness and not self._mode.filled:
                flight.outcome = "late"
        return taken

    def _last_awaited(self) -> Flight | None:
        """The flight whose end the merge waited for; None: it waited for a deadline, or for
        nobody."""
        mode, now_s = self._mode, self._env.now
        if now_s >= self._deadline_at_s and self._cohort_ended < self._cohort:
            return None
        enough = mode.wanted is not None and self._arrived >= mode.wanted
        awaited = [f for f in self._ended if f.ended_at_s == now_s and not (enough and f.lost)]
        return min(awaited, key=lambda f: f.client, default=None)

    def _send_off(self, flight: Flight) -> None:
        self._in_flight[flight.client] = flight
        self._population.busy.add(flight.client)
        self._world.carry(flight)

    # ---- what the world asks and tells -----------------------------------------------------------

    def size_of(self, flight: Flight) -> float:
        """See `Asking`."""
        with self._learning:  # whatever learning is pending for this size happens here
            return flight.contribution.uplink_bytes()

    def forget_model_of(self, client: int | None) -> None:
        """See `Asking`: where changes travel down, it is sent a whole model next."""
        if self._held is None:
            return
        if client is None:
            self._held.clear()
        else:
            self._held.pop(client, None)

    def land(self, flight: Flight) -> None:
        """A participation is over, this very moment."""
        del self._in_flight[flight.client]
        if self._mode.filled:
            self._population.busy.discard(flight.client)
        self._ended.append(flight)
        if self._held is not None and flight.received:
            self._held[flight.client] = flight.task.model_version
        ours = flight.task.round == self._round + 1
        self._cohort_ended += ours
        self._arrived += not flight.lost and (ours or self._mode.filled)
        self._lost_in_a_row = self._lost_in_a_row + 1 if flight.lost else 0
        # who keeps clients in flight has another one to start; others need not look before
        if self._mode.filled or self._due():
            self._ring()

    # ---- waiting ---------------------------------------------------------------------------------

    def _ring(self, _: simpy.Event | None = None) -> None:
        """Wake the server, where it waits."""
        if self._wake is not None and not self._wake.triggered:
            self._wake.succeed()

    def _alarm(self, event: simpy.Event) -> None:
        """Wake the server when this event comes."""
        assert event.callbacks is not None
        if self._ring not in event.callbacks:
            event.callbacks.append(self._ring)

    # ---- participations and merges ---------------------------------------------------------------

    def _flights(self, ids: Sequence[int]) -> list[Flight]:
        """The flights of these clients, in the order given, before anything moves."""
        people, held = self._population, self._held
        round, filled = self._round + 1, self._mode.filled
        policies = [people.policy(client) for client in ids]
        tasks = []
        with self._learning:
            for client in ids:
                turn = self._turns.get(client, 0)
                if filled:
                    self._turns[client] = turn + 1
                known = None if held is None else held.get(client)
                tasks.append(self._workload.task(round, client, turn, known))
        asked = []
        forced = None if self._forced_arm is None else Choice(self._forced_arm)
        for task, policy in zip(tasks, policies, strict=True):
            if policy.learns:
                self._recorder.policies.extend(_policy_rows(round, task.client, policy))
            pull = pull_for(task, policy, forced, self._streams)
            asked.append((task, pull, people.compression(task.client, pull, task.plan)))
        flights = []
        with self._learning:
            for task, pull, choice in asked:
                contribution = self._workload.execute(task, choice)
                flights.append(
                    Flight(contribution.task, contribution, pull, self._env.now, self._shared_loss)
                )
        self._starts += len(flights)
        return flights

    def _work_at_merge(
        self, taken: Sequence[Flight], merge: Callable[[], Outcome]
    ) -> tuple[list[PlayedWork], Callable[[], Outcome]]:
        arrived = [flight for flight in taken if not flight.lost]
        round, contributions = self._round + 1, [flight.contribution for flight in arrived]
        work = partial(self._workload.server_work, round, contributions)
        return self._world.merge(round, arrived, work, merge)

    def _merge(self, taken: Sequence[Flight], round: int) -> Outcome:
        arrived = [flight for flight in taken if not flight.lost]
        weights = [self._mode.weight(round - flight.task.round) for flight in arrived]
        with self._learning:
            for flight in taken:
                if flight.lost:
                    self._workload.discard(flight.contribution)
            contributions = [flight.contribution for flight in arrived]
            outcome = self._workload.merge(round, contributions, weights)
        self._forced_arm = outcome.forced_arm
        # the first models' loss is told by the first merge: flights that hold them get to know it
        self._shared_loss |= outcome.shared_loss_before
        if outcome.model_version != self._version:
            self._version = outcome.model_version
            self._shared_loss = {**self._shared_loss, **outcome.shared_loss}
        return outcome

    def _reward(self, flight: Flight, outcome: Outcome, played: Played) -> Verdict:
        """Tell the client's policy what its pull was worth."""
        known = outcome.local_loss
        before, after = known.get(flight.task.label, (None, None)) if known else (None, None)
        if not flight.task.plan.longest:
            return Verdict(after)  # nothing was compressed, and the policy not asked
        policy = self._population.policy(flight.client)
        if flight.lost:
            policy.void(flight.pull)
            return Verdict()
        if watches(policy):
            policy.watch(flight.pull, rows.spent_of(flight, played))
        if not policy.learns and after is None:
            return Verdict()
        rule = self._population.reward_rule(flight.client)
        prototype = flight.task.prototype
        worth = gain(
            rule.rho, rule.beta,
            flight.shared_loss.get(prototype), outcome.shared_loss.get(prototype), before, after,
        )  # fmt: skip
        raw, clipped = reward(worth, flight.tau_s, rule.bounds)
        if not policy.learns or flight.pull.choice == "forced":
            policy.void(flight.pull)
            return Verdict(after, worth, raw, None)
        if not math.isfinite(clipped) and math.isfinite(worth):
            raise RunFailed(
                f"round {self._round}: client {flight.client} took no simulated time, so its gain "
                "per second has no bound; give its work times, or policy.reward.clip"
            )
        if not math.isfinite(clipped):
            raise RunFailed(
                f"round {self._round}: the losses of client {flight.client} are no longer finite "
                "numbers, the training has diverged; a smaller learning rate may help"
            )
        policy.update(flight.pull, clipped)
        return Verdict(after, worth, raw, clipped)

    # ---- facts -----------------------------------------------------------------------------------

    def _record(
        self,
        played: Played,
        taken: Sequence[Flight],
        work: Sequence[PlayedWork],
        outcome: Outcome,
        last: Flight | None,
        otherwise: str,
    ) -> None:
        verdicts = [self._reward(flight, outcome, played) for flight in taken]
        if played.waits_for_all and taken:
            who = blame(taken, work, self._world.network, resent=self._may_resend)
        else:
            who = blame_last(last, work, otherwise)
        with self._recording:
            into = self._recorder
            into.rounds.append(rows.round_row(played, taken, outcome, who))
            into.prototypes.extend(rows.prototype_rows(outcome, self._losses))
            into.clients.extend(rows.client_rows(outcome))
            for flight, verdict in zip(taken, verdicts, strict=True):
                whole_s = None if flight.lost else flight.elapsed_s
                self._population.tell(flight.client, whole_s, verdict.local_loss)
                end = rows.end_of(flight, played)
                powered_s = partial(rows.powered_s, flight, end.rest_s)
                energy_j = self._world.energy_j(flight.client, powered_s)
                into.participations.append(
                    rows.participation_row(flight, end, played, verdict, energy_j)
                )
                into.spans.extend(rows.client_spans(flight, end))
            into.spans.extend(rows.server_spans(work, played))
            uses = self._world.uses
            into.spans.extend(rows.link_spans(uses, played.round))
            into.links.extend(uses)
            uses.clear()
            into.settle()

    def _border(self, outcome: Outcome) -> None:
        """Between two rounds."""
        if self._progress is not None:
            self._progress(self._round, self._now_s, self._mean_accuracy(outcome))
        last = self._round == self._scenario.rounds
        stop = not last and self._stop_requested()
        due = self._save_every and (last or self._round % self._save_every == 0)
        if self._save is not None and (stop or due):
            with self._recording:
                self._save(self.checkpoint())
        if stop:
            kept = "; --resume goes on from there" if self._save is not None else ""
            raise Interrupted(f"stopped after round {self._round}{kept}")

    def _mean_accuracy(self, outcome: Outcome) -> float | None:
        accuracy = {name: found.accuracy for name, found in outcome.evaluation.items()}
        return mean_over_clients(accuracy, self._scenario.clients_of_prototype)


class HostSeconds:
    """Adds up the host seconds of the blocks that it is around."""

    __slots__ = ("_begun", "wall_s")

    def __init__(self) -> None:
        self.wall_s = 0.0

    def __enter__(self) -> None:
        self._begun = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.wall_s += time.perf_counter() - self._begun


@contextmanager
def _fewer_collections(cohort_size: int) -> Iterator[None]:
    """Let Python look for reference cycles less often while many clients are in flight.

    Nothing here makes cycles, but their search visits everything alive: at 5,000 clients it took
    0.30 of 0.67 s a round, with these thresholds 0.04 s.
    """
    before = gc.get_threshold()
    if before[0] > 0:  # 0: somebody has switched it off
        gc.set_threshold(max(before[0], 20 * cohort_size), *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _policy_rows(round: int, client: int, policy: Policy) -> Iterable[PolicyValue]:
    for arm, value in zip(policy.arms, policy.values(), strict=True):
        yield PolicyValue(round, client, arm.label, None if math.isnan(value) else value)
