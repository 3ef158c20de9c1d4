"""The server of a deployed run, from a scenario to a run directory: `simfed serve`.

`serve` checks what cannot be deployed and hands `_Holder`'s methods to `carry_out_run`,
which goes on as for any run: the learning (whose clients are those that join), the
loop, the recorder, the manifest.
"""

from __future__ import annotations

import contextlib
import os
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from simfed.deploy.access import require_guard
from simfed.deploy.messages import Message, quote
from simfed.deploy.peers import Patience, Peers
from simfed.deploy.playing import Remote, make_loop
from simfed.experiment.assembly import Parts
from simfed.experiment.checks import check_parts
from simfed.experiment.running import (
    Progress,
    RunResult,
    accept_scenario,
    carry_out_run,
    make_self_contained,
)
from simfed.fleet.contract import Workload
from simfed.ground.errors import InputError, Interrupted, RunFailed
from simfed.ground.method import Plan
from simfed.ground.plain import Plain
from simfed.learn.parcel import Parcel, pack
from simfed.record import Recorder
from simfed.record.digest import digest_scenario
from simfed.record.manifest import versions
from simfed.replay.journaled import Journaled
from simfed.replay.key import data_digest
from simfed.scenario import Scenario
from simfed.scenario.model import Overlap
from simfed.sim import Simulation

if TYPE_CHECKING:
    from simfed.learn.apart import Elsewhere
    from simfed.learn.state import Fate

_MOST = 2**20


@dataclass(frozen=True, slots=True)
class Listening:
    """The address and the audience of a server.

    `simfed serve` makes it from its options, `simfed deploy` sets host, port and token
    itself.
    """

    host: str = "127.0.0.1"
    port: int = 0
    """0: any free one."""
    token: str = ""
    tls: ssl.SSLContext | None = None
    join_s: float = 600.0
    """Seconds of waiting for clients before the first round, and whenever nobody is
    there."""
    at_least: int | None = None
    """Begin once so many are there; None: all."""
    patience: Patience = field(default_factory=Patience)


def serve(
    scenario: Scenario | str | os.PathLike[str] | Mapping[str, Plain],
    out: str | Path | None = None,
    *,
    listening: Listening | None = None,
    source: str | Path | None = None,
    device: str = "cpu",
    resume: bool = False,
    overwrite: bool = False,
    progress: bool | Progress = True,
    told: Callable[[str, int], object] = lambda host, port: None,
    say: Callable[[str], object] = lambda sentence: None,
) -> RunResult:
    """Serve a scenario to clients that join; its run directory goes to `out`.

    Real: devices, links, and whatever goes wrong with them. The rest is the
    simulation's: selection, server mode, policies (whose rewards count measured
    seconds), codecs, learning, records; and on top of what really happens, who is to be
    there, which phases are to fail, and the server's restarts.

    Args:
        scenario: what `simfed.run` takes.
        out: the run directory; None: nothing is written.
        listening: address, secret, TLS, patience.
        source: the scenario's file.
        device: the server's, `cpu` or `cuda`.
        resume: go on with the run that is in `out`.
        overwrite: replace the run that is in `out`.
        progress: as for `simfed.run`.
        told: called with host and port once clients may join.
        say: is told, in a sentence, of each client that leaves or is refused.

    Raises:
        InputError: the scenario cannot be deployed, or the address lacks a guard.
        RunFailed: too few clients joined, or all were gone for too long.
        Interrupted: Ctrl-C; the run can be resumed.
    """
    if resume and out is None:
        raise InputError(
            "a run directory to go on with", where="resume", problem="no run is named"
        )
    listening = listening or Listening()
    require_guard(listening.host, listening.token, listening.tls)
    scenario, source = accept_scenario(scenario, source)
    _refuse_undeployable(scenario)
    parts = check_parts(scenario, source, time_only=False)
    _refuse_unknown(parts)
    holder = _Holder(parts, listening, told, say)
    with contextlib.closing(holder):
        return carry_out_run(
            parts,
            out,
            mode="deployed",
            device=device,
            workers=1,
            make_workload=lambda: holder.workload(device),
            make_simulation=holder.simulation,
            resume=resume,
            overwrite=overwrite,
            progress=progress,
            beside=holder.connected,
            at_end=holder.at_end,
        )


@dataclass(eq=False)
class _Holder:
    """The makers of learning, loop and connections for `carry_out_run`.

    They are called one after the other, and what one makes the next ones need.
    """

    parts: Parts
    listening: Listening
    told: Callable[[str, int], object]
    say: Callable[[str], object]

    def __post_init__(self) -> None:
        files, self._text = make_self_contained(self.parts)
        self._files = pack({}, files)
        self._digest = digest_scenario(self._text)
        self._data = data_digest(self.parts.scenario)
        self._peers: Peers | None = None
        self._gone: list[str] = []
        """A sentence for each client that has left, or whose upload was refused."""
        self._versions: dict[int, dict[str, Plain]] = {}
        """Client → versions of what it computes with."""
        self._done = False

    @property
    def peers(self) -> Peers:
        """The connections, once there is a loop."""
        assert self._peers is not None
        return self._peers

    def workload(self, device: str) -> Workload:
        """Return the learning, whose clients are those that join."""
        from simfed.learn.apart import make_server_workload

        scenario, streams = self.parts.scenario, self.parts.streams
        return make_server_workload(
            scenario,
            streams,
            lambda what, questions: self.peers.ask(what, questions),
            self._settle,
            device,
        )

    def simulation(
        self, parts: Parts, workload: Workload, recorder: Recorder
    ) -> Simulation:
        """Return the server loop, which nobody is connected to yet."""
        assert isinstance(workload, Journaled)
        self._clients: Elsewhere = workload.real.clients
        self._world = Remote(
            workload,
            self.listening.join_s,
            parts.streams,
            parts.fleet.presence(),
        )
        entries = max(_count_entries(parts))
        most = _MOST + 64 * entries * (2 + len(parts.scenario.compression.choices))
        facts = {**self._files.facts, "scenario": self._text}
        self._world.refused = self._note_gone
        self._peers = Peers(
            parts.scenario.client_count,
            self.listening.token,
            self._world.env.post,
            welcome=Parcel(facts, self._files.body),
            check=self._check,
            tell_newcomer=self._tell_newcomer,
            joined=self._world.joined,
            left=self._note_leaving,
            most=most,
            patience=self.listening.patience,
        )
        self._world.play_with(self._peers)
        return make_loop(parts, workload, self._world, recorder)

    @contextlib.contextmanager
    def connected(self, parts: Parts, simulation: object) -> Iterator[Progress]:
        """Yield what is told of every round, in a block around all of them."""
        rounds = parts.scenario.rounds

        def border(round: int, time_s: float, accuracy: float | None) -> None:
            self._world.come_back_again()
            if round == rounds:
                self._done = True

        self._world.before = self._gather
        yield border

    def _gather(self, stop_requested: Callable[[], bool]) -> None:
        """Listen, and wait for clients; then time begins.

        Raises:
            Interrupted: the user has asked to stop.
            RunFailed: too few came within `Listening.join_s`.
        """
        import pandas  # noqa: F401 - what the first checkpoint would otherwise wait for
        import safetensors.numpy  # noqa: F401

        peers, listening = self.peers, self.listening
        self.told(*peers.listen(listening.host, listening.port, listening.tls))
        wanted = self.parts.scenario.client_count
        if listening.at_least is not None:
            wanted = min(wanted, listening.at_least)
        until_s = time.monotonic() + listening.join_s
        while len(peers.there) < wanted:
            if stop_requested():
                raise Interrupted("stopped before anybody could begin")
            if time.monotonic() > until_s:
                joined = f"{len(peers.there)} of {wanted} clients joined"
                refused = f"; refused: {peers.refused[-1]}" if peers.refused else ""
                raise RunFailed(f"{joined} within {listening.join_s:g} s{refused}")
            time.sleep(0.05)
        self._world.begin()

    def close(self) -> None:
        """Tell everybody, and hang up."""
        if self._peers is not None:
            self._peers.close(done=self._done)

    def at_end(self) -> dict[str, Plain]:
        """Return the manifest's facts of the real world."""
        ours = versions()
        strange = {
            f"client {client} has {name} {quote(theirs[name])}, the server {version}: "
            "its last bits may be others"
            for client, theirs in self._versions.items()
            for name, version in ours.items()
            if name in ("python", "torch", "numpy", "layers")
            and theirs.get(name, version) != version
        }
        return {
            "clocks": self.peers.clocks(),
            "warnings": [*sorted(strange), *self._gone[:20]],
        }

    # ---- what the learning and the connections ask -----------------------------------

    def _settle(self, client: int, label: str, fate: Fate) -> None:
        """Tell a client what became of its upload, and note it for its next process."""
        message = Message("settle", {"label": label, "fate": fate})
        self._world.note_fate(client, label, message)
        self.peers.tell(client, message)

    def _check(self, client: int, facts: dict[str, Plain]) -> str | None:
        """Return what is wrong with a client's facts of itself; None: nothing.

        Its versions are noted: others than the server's become warnings.
        """
        if facts.get("digest") != self._digest:
            return f"client {client} was built for another scenario"
        if facts.get("data") != self._data:
            name = self.parts.scenario.dataset.label
            return f"client {client} has another data set {name} than the server"
        theirs = facts.get("versions")
        self._versions[client] = theirs if isinstance(theirs, dict) else {}
        return None

    def _tell_newcomer(self, client: int) -> list[Message]:
        """Return what a client's new process goes on from.

        It is its state at the last checkpoint, if there is one, and what became of
        uploads since.
        """
        state, agreed = (
            self._world.client_states.get(client),
            self._clients.hand_over(client),
        )
        begin = (
            Message("anew")
            if state is None
            else Message("take up", state.facts, state.body)
        )
        fates = self._world.fates.get(client, ())
        return [begin, *fates, Message("agree", agreed.facts, agreed.body)]

    def _note_leaving(self, client: int, why: str) -> None:
        self._world.left(client, why)
        self._note_gone(
            f"client {client} was gone at {self._world.env.now:.6g} s: {why}"
        )

    def _note_gone(self, sentence: str) -> None:
        self._gone.append(sentence)
        self.say(sentence)


def _list_plans(parts: Parts) -> Iterator[Plan]:
    """Yield the plan of each group's first client in the first round."""
    for i in range(len(parts.scenario.clients)):
        yield parts.tasks.task(1, parts.fleet.first(i), 0).plan


def _count_entries(parts: Parts) -> Iterator[int]:
    """Yield the entries of all that travels in each group's participations."""
    for plan in _list_plans(parts):
        yield sum(field.entries for field in (*plan.down.values(), *plan.up.values()))


def _refuse_undeployable(scenario: Scenario) -> None:
    """Raises: `InputError` for what real clients cannot be made to do."""
    if scenario.aggregation.edge_servers is not None:
        raise InputError(
            "null: real clients talk to one server", where="aggregation.edge_servers"
        )
    if scenario.charge.base:
        raise InputError(
            "false: a real client has the base before it joins", where="charge.base"
        )
    if scenario.privacy is not None:
        raise InputError(
            where="privacy",
            problem="a deployment does not claim it: whoever has the scenario's seed "
            "can draw its "
            "noise again",
            hint="simfed run simulates it",
        )
    faults = [] if scenario.faults is None else sorted(scenario.faults.model_fields_set)
    struck = [
        name for name in faults if name != "restarts" and getattr(scenario.faults, name)
    ]
    if struck:
        raise InputError(
            "restarts alone in a deployment, whose links, devices and messages fail by "
            "themselves",
            where="faults",
            got=struck,
        )
    for i, group in enumerate(scenario.clients):
        if group.overlap not in (None, Overlap(chunks=1)):
            raise InputError(
                where=f"clients[{i}].overlap",
                problem="real clients compress and send one after the other",
                hint="simfed run simulates it",
            )
        if group.local_time is not None:
            raise InputError(
                "null: real devices are not asked how long a step takes",
                where=f"clients[{i}].local_time",
                got=f"{group.local_time:g} s",
            )
        if group.attack is not None:
            raise InputError(
                "null: attackers are simulated, real clients are as they are",
                where=f"clients[{i}].attack",
                got=group.attack.kind,
            )


def _refuse_unknown(parts: Parts) -> None:
    """Refuse parts that ask what nobody knows, or does, of real clients.

    Raises: `InputError`.
    """
    if parts.scenario.method.made.tells_own_story:
        raise InputError(
            "a method whose clients receive, work and send: real ones exchange nothing "
            "beside",
            where="method",
            got=parts.scenario.method.kind,
        )
    presence = parts.fleet.presence()
    if presence is not None and presence.follows_work:
        raise InputError(
            "a trace, daily or markov in a deployment: nobody knows the joules of real "
            "devices",
            where="clients.availability",
            got="one that follows work, such as battery",
        )
