"""The server: rounds, between one workload and one world.

When clients are started, waited for and merged is its `Aggregator`'s. Here stands what
comes of it: tasks, merges, rewards, records; at the round's border show progress, save,
or stop. A round is what lies between two merges. The run ends with its last round,
never when the clock runs dry: a cancelled wait may leave something on it.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import cast

from simpy.events import ProcessGenerator

from simfed.compress.choice import Choice
from simfed.fleet.contract import Contribution, Outcome, Task, TieredWorkload, Workload
from simfed.fleet.edges import EdgeServer
from simfed.fleet.faults import Faults
from simfed.ground.errors import Interrupted, RunFailed, unwrap_error
from simfed.ground.records import make
from simfed.ground.seeding import Streams
from simfed.policy import (
    Context,
    Policy,
    gain,
    paces_of,
    reads_context,
    reward,
    watches,
)
from simfed.record import Recorder
from simfed.record.recorder import BLOCK
from simfed.record.schema import PolicyValue
from simfed.record.summary import average_over_clients
from simfed.scenario import Scenario
from simfed.sim import rows
from simfed.sim.aggregator import Aggregator, PendingMerge
from simfed.sim.blame import Blame, blame_last, blame_round
from simfed.sim.clock import Clock
from simfed.sim.edges import EdgeLayer
from simfed.sim.flight import Flight
from simfed.sim.modes import make_cloud_mode, make_server_mode
from simfed.sim.population import Population
from simfed.sim.rows import UNTOLD, MergeVerdict, Settlement
from simfed.sim.server_work import PlayedWork
from simfed.sim.world import Carrier
from simfed.tasks.privacy import make_account
from simfed.tasks.tasks import choose_pull

Progress = Callable[[int, float, "float | None"], None]
"""`(round, simulated_s, mean measure where it was evaluated)`, after each round."""


class Simulation:
    """One run on the clock side: a mode, a workload and a world, played by `run`.

    Idle clients are columns; those in flight are the world's. The learning side is
    asked in one fixed order (client ids within an instant), whatever the clock does, so
    in a synchronous server its results do not depend on devices or networks unless a
    policy looks at time.
    """

    def __init__(
        self,
        scenario: Scenario,
        *,
        workload: Workload,
        world: Carrier,
        make_policy: Callable[[int], Policy],
        recorder: Recorder,
        streams: Streams,
        samples_of: Callable[[int], int] = lambda client: 1,
        base_bytes: Mapping[str, float] | None = None,
        faults: Faults | None = None,
        edges: Sequence[EdgeServer] = (),
        backbone: Clock | None = None,
    ) -> None:
        """Compose a run.

        Args:
            scenario: the run's scenario.
            workload: the learning side, or its stand-in.
            world: carries participations.
            make_policy: called once per client that takes part.
            recorder: gets rows.
            streams: keyed generators.
            samples_of: what a selection may look at.
            base_bytes: prototype → bytes that a client is sent once, beside its first
                model; None: nobody is.
            faults: when the server restarts (what befalls devices and messages is the
                world's).
            edges: edge servers between the clients and the server.
            backbone: the world of edge servers' own participations.
        """
        self._scenario = scenario
        self._workload = workload
        self._world = world
        self._recorder = recorder
        self._streams = streams
        self._may_resend = faults is not None and faults.messages is not None
        self._population = Population(
            scenario, make_policy, streams, world.presence, samples_of
        )
        restarts = None if faults is None else faults.restarts
        self._edges: EdgeLayer | None = None
        if backbone is None:
            mode = make_server_mode(scenario)
            self._aggregator = Aggregator(
                mode, self, world, scenario.client_count, restarts
            )
        else:
            mode = make_cloud_mode(scenario, len(edges))
            self._aggregator = Aggregator(mode, self, backbone, len(edges), restarts)
            self._edges = EdgeLayer(
                scenario,
                edges,
                backbone,
                server=self,
                world=world,
                workload=cast("TieredWorkload", workload),
                population=self._population,
                recorder=recorder,
                streams=streams,
            )
        self._account = make_account(scenario, samples_of)
        self._held: dict[int, int] | None = (
            {} if scenario.downlink.compression else None
        )
        self._base_bytes = base_bytes
        self._with_base: set[int] = set()
        """Clients that have received what stands still of their model."""
        self._forced_arm: str | None = None
        self._version = 0
        self._shared_loss: dict[str, float] = {}
        self._turns: dict[int, int] = {}
        self._rates: dict[int, float] = {}
        """Bytes per second of each client's last upload that arrived, where its policy
        reads that."""
        self._total = HostSeconds()
        self._learning = HostSeconds()
        self._recording = HostSeconds()
        world.connect(self)

    # ---- from outside ----------------------------------------------------------------

    def run(
        self,
        *,
        progress: Progress | None = None,
        stop_requested: Callable[[], bool] = lambda: False,
        save: Callable[[int], bool] | None = None,
        save_every: int = 0,
        plays_again: Callable[[int], int] = lambda round: 0,
    ) -> None:
        """Play the rounds that are left.

        Args:
            progress: called after each round.
            stop_requested: asked at each round's border; once it says yes the state is
                saved and `Interrupted` raised.
            save: keeps what was learned up to this round, and returns whether anything
                was; called every `save_every` rounds and after the last one.
            save_every: 0: only when stopped.
            plays_again: asked at each round's border, up to which round it is kept
                already; 0: it is not.
        """
        self._world.set_out()
        self._env = self._world.env
        if self._edges is not None:
            self._edges.set_out()
        self._aggregator.set_out()
        self._progress, self._stop_requested = progress, stop_requested
        self._save, self._save_every = save, save_every
        self._plays_again = plays_again
        if self._round < self._scenario.rounds:
            self._world.gather(stop_requested)
        at_once = self._aggregator.mode.at_once(len(self._population))
        try:
            with self._total, _collect_less_often(at_once):
                self._env.run(until=self._env.process(self._play()))
        except Exception as error:
            if self._env.peek() == math.inf and isinstance(self._world, Clock):
                self._world.check_stuck()
            raise unwrap_error(error) from None

    def wall_s(self) -> dict[str, float]:
        """Return host seconds of `run`: learning, recording, the rest."""
        learning_s, recording_s = self._learning.wall_s, self._recording.wall_s
        return {
            "learning": learning_s,
            "simulation": self._total.wall_s - learning_s - recording_s,
            "recording": recording_s,
        }

    # ---- what the world asks and tells -----------------------------------------------

    def size_of(self, flight: Flight) -> float:
        """Return the bytes of an upload."""
        with self._learning:  # whatever learning is pending for this size happens here
            size_bytes = flight.contribution.uplink_bytes()
        flight.told = flight.contribution.told
        return size_bytes

    def forget_model_of(self, client: int | None) -> None:
        """Note that a client is sent a whole model next, where changes travel down.

        `client`: None: any client is.
        """
        if self._held is None:
            return
        if client is None:
            self._held.clear()
        else:
            self._held.pop(client, None)

    def land(self, flight: Flight) -> None:
        """Take note that a participation is over."""
        if self._held is not None and flight.received:
            self._held[flight.client] = flight.task.model_version
        if self._base_bytes is not None and flight.received:
            self._with_base.add(flight.client)
        edges = self._edges
        merged_at = (
            self._aggregator if edges is None else edges.find_aggregator(flight.client)
        )
        merged_at.land(flight)

    def land_edge(self, flight: Flight) -> None:
        """Take note that an edge server's participation is over."""
        self._aggregator.land(flight)

    # ---- participations and merges ---------------------------------------------------

    @property
    def round(self) -> int:
        """The round under way."""
        return self._round + 1

    @property
    def last(self) -> bool:
        """True in the last round."""
        return self.round == self._scenario.rounds

    @property
    def _round(self) -> int:
        return self._aggregator.merges

    def choose(self) -> list[int]:
        """Return the clients, or edge servers, that are started now."""
        if self._edges is not None:
            return self._edges.choose(self._aggregator)
        return self._population.choose(
            self._aggregator, self._streams, self.round, self._env.now
        )

    def may_pass(self) -> bool:
        """Return whether nobody may be chosen though somebody is there."""
        return self._edges is None and self._population.may_pass(
            self._aggregator, self._env.now
        )

    def make_flights(self, ids: Sequence[int]) -> list[Flight]:
        """Return the participations of these clients, or edge servers."""
        if self._edges is not None:
            return self._edges.make_flights(ids, self._turns)
        return self.start_clients(ids, self.round, self._turns)

    def start_clients(
        self,
        ids: Sequence[int],
        round: int,
        turns: dict[int, int],
        edge: Contribution | None = None,
    ) -> list[Flight]:
        """Return the flights of these clients, before anything moves.

        Each gets its task, then its arm, then its contribution, one step for all before
        the next, in the order given.

        Args:
            ids: the clients.
            round: of the run.
            turns: how often each was started before in this round; counted on.
            edge: what their edge server merges into; None: the server's models.
        """
        people, held = self._population, self._held
        policies = [people.policy(client) for client in ids]
        tasks = []
        with self._learning:
            for client in ids:
                turn = turns.get(client, 0)
                turns[client] = turn + 1
                version = None if held is None else held.get(client)
                task = self._workload.task(round, client, turn, version)
                if edge is not None:
                    task = task._replace(model_version=edge.task.model_version)
                tasks.append(task)
        asked = []
        forced = None if self._forced_arm is None else Choice(self._forced_arm)
        context = partial(self._make_context, round)
        for task, policy in zip(tasks, policies, strict=True):
            if policy.learns:
                for arm, value in zip(policy.arms, policy.values(), strict=True):
                    told = None if math.isnan(value) else value
                    self._recorder.policies.append(
                        PolicyValue(round, task.client, arm.label, told)
                    )
            pull = choose_pull(task, policy, forced, self._streams, context)
            asked.append((task, pull, people.fleet.compression(task, pull)))
        flights = []
        execute = self._workload.execute
        if edge is not None:
            execute = partial(cast("TieredWorkload", self._workload).execute, edge=edge)
        with self._learning:
            for task, pull, choice in asked:
                contribution = execute(task, choice)
                flights.append(
                    Flight(
                        self._add_base(contribution.task),
                        contribution,
                        pull,
                        self._env.now,
                        self._shared_loss,
                    )
                )
        return flights

    def _make_context(self, round: int, client: int) -> Context:
        """Return what a policy may know of its client now."""
        presence, now_s = self._world.presence, self._env.now
        battery = 1.0 if presence is None else presence.battery(client, now_s)
        rate = self._rates.get(client)
        return Context(round, self._scenario.rounds, battery, rate)

    def _add_base(self, task: Task) -> Task:
        """Return a task that begins with what stands still of its client's model.

        A client that has received it once is not sent it again.
        """
        if self._base_bytes is None or task.client in self._with_base:
            return task
        size = task.downlink_bytes + self._base_bytes[task.prototype]
        return task._replace(downlink_bytes=size)

    def work(
        self, merging: PendingMerge, merge: Callable[[], Outcome]
    ) -> tuple[list[PlayedWork], Callable[[], Outcome]]:
        """Return the work at a merge, and what gives its outcome.

        Args:
            merging: what has arrived.
            merge: called once, when the world says so.
        """
        if self._edges is not None and self.last:
            self._edges.stop()
        arrived = merging.arrived
        contributions = [flight.contribution for flight in arrived]
        work = partial(self._workload.server_work, merging.round, contributions)
        return self._aggregator.world.merge(merging.round, arrived, work, merge)

    def lose(self, flight: Flight) -> None:
        """Lose a participation; with an edge server's, all that it had merged."""
        self.discard(flight)
        if self._edges is not None:
            self._edges.lose(flight)

    def discard(self, flight: Flight) -> None:
        """Tell the learning that nothing of a participation will be merged.

        What it sent is let go of.
        """
        with self._learning:
            self._workload.discard(flight.contribution)
        flight.forget_upload()

    def merge(self, merging: PendingMerge) -> Outcome:
        """Merge what has arrived, settle rewards and rows, and return the outcome."""
        arrived = merging.arrived
        weights = [self._aggregator.mode.weight(flight.staleness) for flight in arrived]
        with self._learning:
            contributions = [flight.contribution for flight in arrived]
            outcome = self._workload.merge(merging.round, contributions, weights)
        self._forced_arm = outcome.forced_arm
        # the first models' loss is told by the first merge: flights that hold them get
        # to know it
        self._shared_loss |= outcome.shared_loss_before
        if outcome.model_version != self._version:
            self._version = outcome.model_version
            self._shared_loss = {**self._shared_loss, **outcome.shared_loss}
        return outcome

    def _play(self) -> ProcessGenerator:
        """Make one merge after another."""
        while self._round < self._scenario.rounds:
            merging, outcome = yield from self._aggregator.merge()
            self._turns.clear()
            self._record(merging, outcome)
            self._border(outcome)

    def _reward(
        self, flight: Flight, outcome: Outcome, merging: PendingMerge, pace: float
    ) -> MergeVerdict:
        """Tell the client's policy what its pull was worth, and return that.

        Args:
            flight: settled.
            outcome: of the merge that settled it.
            merging: that merge.
            pace: as of `rows.compute_spent`.

        Raises:
            RunFailed: a gain without bound, or losses that are no longer finite.
        """
        losses = outcome.local_loss
        before, after = (
            losses.get(flight.task.label, (None, None)) if losses else (None, None)
        )
        if not flight.task.plan.longest:
            # nothing was compressed, and the policy not asked
            return MergeVerdict(after)
        policy = self._population.policy(flight.client)
        if flight.lost:
            policy.void(flight.pull)
            return UNTOLD
        if reads_context(policy) and flight.uplink_s > 0:
            self._rates[flight.client] = flight.uplink_bytes / flight.uplink_s
        if watches(policy):
            policy.watch(flight.pull, rows.compute_spent(flight, merging, pace))
        if not policy.learns and after is None:
            return UNTOLD
        rule = self._population.reward_rule(flight.client)
        prototype = flight.task.prototype
        worth = gain(
            rule.rho, rule.beta,
            flight.shared_loss.get(prototype), outcome.shared_loss.get(prototype),
            before, after,
        )  # fmt: skip
        raw, clipped = reward(worth, flight.tau_s, rule.bounds)
        if not policy.learns or flight.pull.choice == "forced":
            policy.void(flight.pull)
            return MergeVerdict(after, worth, raw, None)
        if not math.isfinite(clipped):
            who = f"client {flight.client}"
            why = (
                f"{who} took no simulated time, so its gain per second has no bound; "
                "give its work times, or policy.reward.clip"
                if math.isfinite(worth)
                else f"the losses of {who} are no longer finite numbers, the training "
                "has diverged; a smaller learning rate may help"
            )
            raise RunFailed(f"round {self._round}: {why}")
        policy.update(flight.pull, clipped)
        return MergeVerdict(after, worth, raw, clipped)

    # ---- facts -----------------------------------------------------------------------

    def blame_clients(self, merging: PendingMerge) -> Blame:
        """Return who held up a merge of clients' uploads, here or at an edge server."""
        taken, work = merging.taken, merging.work
        if merging.waits_for_all and taken:
            return blame_round(
                taken, work, self._world.network, resent=self._may_resend
            )
        cause, network = _find_other_cause(merging), self._world.network
        return blame_last(merging.last, work, network, cause)

    def _record(self, merging: PendingMerge, outcome: Outcome) -> None:
        """Make blame, rewards and rows of a merge, and forget its legs."""
        if self._edges is None:
            who = self.blame_clients(merging)
            settled = [make(Settlement, (flight, merging)) for flight in merging.taken]
        else:
            who = self._edges.blame(merging, _find_other_cause(merging))
            self._edges.note_merge("server", merging.round, merging)
            settled = self._edges.settle(merging)
        flights = [flight for flight, _ in settled]
        paces = paces_of(
            (0, 0) if f.lost else (f.uplink_bytes, f.uplink_s) for f in flights
        )
        verdicts = [
            self._reward(flight, outcome, own, pace)
            for (flight, own), pace in zip(settled, paces, strict=True)
        ]
        with self._recording:
            into = self._recorder
            into.rounds.append(
                rows.make_round_row(merging, flights, outcome, who, self._account)
            )
            into.prototypes.extend(
                rows.list_prototype_rows(outcome, into.own.get("prototypes", ()))
            )
            columns = into.own.get("clients", ())
            into.clients.extend(rows.list_client_rows(outcome, columns, self._account))
            for (flight, own), verdict in zip(settled, verdicts, strict=True):
                whole_s = None if flight.lost else flight.elapsed_s
                self._population.selecting.tell(
                    flight.client, whole_s, verdict.local_loss
                )
                end = rows.find_end(flight, own)
                powered_s = partial(rows.compute_powered_s, flight, end.rest_s)
                energy_j = self._world.energy_j(flight.client, powered_s)
                into.participations.append(
                    rows.make_participation_row(
                        flight, end, own, verdict, energy_j, merging.round
                    )
                )
                if flight.busy is not None:
                    into.processor.append(
                        rows.make_processor_row(flight, merging.round)
                    )
                into.spans.extend(rows.list_client_spans(flight, end))
                flight.legs.clear()  # as much memory as the rows take
                if len(into.participations) >= BLOCK:
                    into.settle()
            into.spans.extend(rows.list_server_spans(merging))
            rows.record_links(into, self._world.uses, merging.round)
            into.settle()

    def _border(self, outcome: Outcome) -> None:
        """Do what happens between two rounds: progress, a checkpoint, a stop."""
        if self._progress is not None:
            self._progress(self._round, self._env.now, self._mean_measure(outcome))
        kept = self._plays_again(self._round)
        last = self._round == self._scenario.rounds
        stop = not last and self._stop_requested()
        due = self._save_every and (last or self._round % self._save_every == 0)
        if self._save is not None and (stop or due) and not kept:
            with self._recording:
                kept = self._round if self._save(self._round) else 0
        if stop:
            goes_on = "goes on from there"
            if not kept:
                goes_on = "begins again, as nothing was learned yet"
            hints = [f"--resume {goes_on}"] if self._save is not None else []
            raise Interrupted(f"stopped after round {kept or self._round}", *hints)

    def _mean_measure(self, outcome: Outcome) -> float | None:
        """Return the mean headline measure over clients; None: not evaluated."""
        values = {
            name: tested.headline
            for name, tested in outcome.evaluation.items()
            if tested.headline is not None
        }
        return average_over_clients(values, self._scenario.clients_of_prototype)


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
def _collect_less_often(cohort_size: int) -> Iterator[None]:
    """Let Python look for reference cycles less often while many clients are in flight.

    Nothing here makes cycles, but their search visits everything alive: at 5,000
    clients it took 0.30 of 0.67 s a round; with these thresholds it takes a hundredth
    of a round.
    """
    before = gc.get_threshold()
    if before[0] > 0:  # 0: somebody has switched it off
        gc.set_threshold(max(before[0], 50 * cohort_size), *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _find_other_cause(merging: PendingMerge) -> str:
    """Return what ended the wait for a merge that waited for nobody in particular.

    It is the server's own work where there was nobody to wait for.
    """
    if merging.struck:
        return "restart"
    waited = merging.taken or merging.waited_s > merging.delay_s
    return "deadline" if waited else "server"
