"""The server: rounds as a story of yields, between one workload and one network.

Start a cohort, wait at the barrier, do the server's own work, merge, reward, record; at the round's
border show progress, save, or stop. The run ends when the server's story ends, never when the clock
runs dry: a cancelled wait may leave something on it.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import simpy

from simfed.contract import Outcome, Workload
from simfed.device import Device
from simfed.errors import Interrupted, RunFailed
from simfed.net import LinkUse, Network
from simfed.policy import Policy, Pull, gain, reward
from simfed.record import Checkpoint, Recorder
from simfed.record.schema import PolicyValue
from simfed.scenario import Scenario
from simfed.seeding import Streams
from simfed.selection import cohort
from simfed.sim import rows
from simfed.sim.barrier import Barrier, FullBarrier
from simfed.sim.blame import blame
from simfed.sim.client import participation
from simfed.sim.flight import Flight
from simfed.sim.population import Population
from simfed.sim.rows import Played, Verdict
from simfed.sim.server_work import ServerLoad, Work, played_out

__all__ = ["MakeNetwork", "Progress", "Simulation"]

Story = Generator[simpy.Event, Any, None]
OnUse = Callable[[LinkUse], None]

MakeNetwork = Callable[[simpy.Environment, "OnUse | None"], Network]
"""`(env, on_use)` → the network. Called once for the run, and without `on_use` for what-if plays."""

Progress = Callable[[int, float, "float | None"], None]
"""`(round, simulated_s, mean accuracy where it was evaluated)`, after each round."""


class Simulation:
    """One run on the clock side, built from parts and played by `run`.

    Every client of a cohort in flight is one SimPy process; idle clients are columns. The learning
    side is asked in one fixed order (client ids within a round), whatever the clock does, so its
    results do not depend on devices or networks unless a policy looks at time.
    """

    def __init__(
        self,
        scenario: Scenario,
        *,
        workload: Workload,
        make_policy: Callable[[int], Policy],
        make_device: Callable[[int], Device],
        make_network: MakeNetwork,
        recorder: Recorder,
        streams: Streams,
        server_device: Device | None = None,
        barrier: Barrier | None = None,
    ) -> None:
        """`make_policy(client)` and `make_device(client)` are called once per client that takes
        part; `server_device` None: the server's work takes no simulated time."""
        self._scenario = scenario
        self._workload = workload
        self._make_network = make_network
        self._recorder = recorder
        self._streams = streams
        self._server_device = server_device
        self._barrier = barrier or FullBarrier()
        self._population = Population(scenario, make_policy, make_device, streams)
        self._load = ServerLoad.of(scenario)
        self._round = 0
        self._now_s = 0.0
        self._forced_arm: str | None = None
        self._stories: dict[int, simpy.Process] = {}
        self._uses: list[LinkUse] = []
        self._wall = {"total": 0.0, "learning": 0.0, "recording": 0.0}

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
        begun = time.perf_counter()
        self._env = simpy.Environment(initial_time=self._now_s)
        self._network = self._make_network(self._env, self._uses.append)
        self._progress, self._stop_requested = progress, stop_requested
        self._save, self._save_every = save, save_every
        cohort_size = self._scenario.participation.clients_per_round or len(self._population)
        try:
            with _fewer_collections(cohort_size):
                self._env.run(until=self._env.process(self._serve()))
        except Exception as error:
            raise _as_raised(error) from None
        finally:
            self._wall["total"] += time.perf_counter() - begun

    def lose(self, client: int, outcome: str = "dropped") -> None:
        """This client's participation ends now and nothing of it is merged: `dropped` (the client is
        away for the rest of the round) or `failed` (it stays, and waits)."""
        self._stories[client].interrupt(outcome)

    def wall_s(self) -> dict[str, float]:
        """Host seconds of `run`, split: learning (inside the workload), recording, and the rest."""
        rest = self._wall["total"] - self._wall["learning"] - self._wall["recording"]
        return {
            "learning": self._wall["learning"],
            "simulation": rest,
            "recording": self._wall["recording"],
        }

    def checkpoint(self) -> Checkpoint:
        """Everything a resumed run needs, at a round's border (nobody is in flight)."""
        facts, arrays = self._workload.state()
        device = self._server_device
        own = {
            "now_s": self._now_s,
            "forced_arm": self._forced_arm,
            "population": self._population.state(),
            "server_device": device.state() if device else {},
        }
        return Checkpoint(self._round, {"simulation": own, "workload": facts}, arrays)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Inverse of `checkpoint`, on a new simulation of the same scenario, before `run`."""
        own = checkpoint.facts["simulation"]
        self._round = checkpoint.round
        self._now_s = own["now_s"]
        self._forced_arm = own["forced_arm"]
        self._population.restore(own["population"])
        if self._server_device is not None:
            self._server_device.restore(own["server_device"])
        self._workload.restore(checkpoint.facts["workload"], checkpoint.arrays)

    # ---- the story -------------------------------------------------------------------------------

    def _serve(self) -> Story:
        while self._round < self._scenario.rounds:
            started_at_s = self._env.now
            flights = self._start(self._round + 1)
            self._merge_now = self._env.event()
            self._barrier.started(flights)
            for flight in flights:
                self._stories[flight.client] = self._env.process(self._fly(flight))
            yield self._merge_now
            taken = self._barrier.take()
            waited_s = self._barrier.waited_s(taken, self._env.now)
            work = self._server_work(taken)
            server_s = sum(piece.duration_s for piece in work)
            yield self._env.timeout(server_s)
            self._round += 1
            self._now_s = self._env.now
            played = Played(self._round, started_at_s, self._now_s, waited_s, server_s)
            outcome = self._merge(taken)
            self._record(played, taken, work, outcome)
            self._border(outcome)

    def _fly(self, flight: Flight) -> Story:
        device = self._population.device(flight.client)
        yield from participation(self._env, flight, device, self._network, self._size_of)
        del self._stories[flight.client]
        if self._barrier.ended(flight):
            self._merge_now.succeed()

    def _size_of(self, flight: Flight) -> float:
        with self._learning():  # whatever learning is pending for this size happens here
            return flight.contribution.uplink_bytes

    def _start(self, round: int) -> list[Flight]:
        """The cohort's flights, in client order, before anything moves."""
        people = self._population
        ids = cohort(
            self._streams, round, len(people), self._scenario.participation.clients_per_round
        )
        flights = []
        for client in ids.tolist():
            policy = people.policy(client)
            with self._learning():
                task = self._workload.task(round, client)
            if policy.learns:
                self._recorder.policies.extend(_policy_rows(round, client, policy))
            pull = (
                Pull(self._forced_arm, "forced")
                if self._forced_arm is not None
                else policy.pull(self._streams("policy", client, round))
            )
            with self._learning():
                k = people.k(client, task.parameters)
                contribution = self._workload.execute(task, pull.arm, k)
            flights.append(Flight(task, contribution, pull, self._env.now))
        return flights

    def _server_work(self, taken: Sequence[Flight]) -> list[Work]:
        arrived = [flight for flight in taken if not flight.lost]
        if self._server_device is None or not arrived:
            return []
        return played_out(self._server_device, arrived, self._load, self._env.now, self._round + 1)

    def _merge(self, taken: Sequence[Flight]) -> Outcome:
        arrived = [flight.contribution for flight in taken if not flight.lost]
        with self._learning():
            for flight in taken:
                if flight.lost:
                    self._workload.discard(flight.contribution)
            outcome = self._workload.merge(self._round, arrived)
        self._forced_arm = outcome.forced_arm
        return outcome

    def _reward(self, flight: Flight, outcome: Outcome) -> Verdict:
        """Tell the client's policy what its pull was worth."""
        policy = self._population.policy(flight.client)
        if flight.lost:
            policy.void(flight.pull)
            return Verdict()
        before, after = outcome.local_loss.get(flight.client, (None, None))
        if not policy.learns and after is None:
            return Verdict()
        rule = self._population.reward_rule(flight.client)
        prototype = flight.task.prototype
        worth = gain(
            rule.rho, rule.beta,
            outcome.kd_loss_before.get(prototype), outcome.kd_loss.get(prototype), before, after,
        )  # fmt: skip
        raw, clipped = reward(worth, flight.tau_s, rule.clip)
        if not policy.learns or flight.pull.choice == "forced":
            return Verdict(after, worth, raw, None)
        if not math.isfinite(clipped):
            raise RunFailed(
                f"round {self._round}: the losses of client {flight.client} are no longer finite "
                "numbers, the training has diverged; a smaller learning rate may help"
            )
        policy.update(flight.pull, clipped)
        return Verdict(after, worth, raw, clipped)

    # ---- facts -----------------------------------------------------------------------------------

    def _record(
        self, played: Played, taken: Sequence[Flight], work: Sequence[Work], outcome: Outcome
    ) -> None:
        verdicts = [self._reward(flight, outcome) for flight in taken]
        who = blame(taken, work, self._network, lambda env: self._make_network(env, None))
        with self._timed("recording"):
            into = self._recorder
            into.rounds.append(rows.round_row(played, taken, outcome, who))
            into.prototypes.extend(rows.prototype_rows(outcome))
            for flight, verdict in zip(taken, verdicts, strict=True):
                energy_j = self._population.device(flight.client).energy_j(
                    rows.energy_phases(flight, played)
                )
                into.participations.append(
                    rows.participation_row(flight, played, verdict, energy_j)
                )
                into.spans.extend(rows.client_spans(flight, played))
            into.spans.extend(rows.server_spans(work, played))
            into.spans.extend(rows.link_spans(self._uses, played.round))
            into.links.extend(self._uses)
            self._uses.clear()
            into.settle()

    def _border(self, outcome: Outcome) -> None:
        """Between two rounds: nobody is in flight."""
        if self._progress is not None:
            self._progress(self._round, self._now_s, self._mean_accuracy(outcome))
        last = self._round == self._scenario.rounds
        stop = not last and self._stop_requested()
        due = self._save_every and (last or self._round % self._save_every == 0)
        if self._save is not None and (stop or due):
            with self._timed("recording"):
                self._save(self.checkpoint())
        if stop:
            kept = "; --resume goes on from there" if self._save is not None else ""
            raise Interrupted(f"stopped after round {self._round}{kept}")

    def _mean_accuracy(self, outcome: Outcome) -> float | None:
        weights = self._scenario.clients_of_prototype
        if set(outcome.evaluation) != set(weights):
            return None
        total = sum(weights[name] * found.accuracy for name, found in outcome.evaluation.items())
        return total / sum(weights.values())

    @contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        begun = time.perf_counter()
        try:
            yield
        finally:
            self._wall[what] += time.perf_counter() - begun

    def _learning(self) -> AbstractContextManager[None]:
        return self._timed("learning")


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


def _as_raised(error: Exception) -> Exception:
    """The error that a process raised: SimPy raises a copy of it, made from its arguments alone."""
    cause = error.__cause__
    copied = type(cause) is type(error) and cause.args == error.args
    return cause if copied and isinstance(cause, Exception) else error


def _policy_rows(round: int, client: int, policy: Policy) -> Iterable[PolicyValue]:
    for arm, value in zip(policy.arms, policy.values(), strict=True):
        yield PolicyValue(round, client, arm, None if math.isnan(value) else value)
