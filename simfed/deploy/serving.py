"""The server of a deployed run, from a scenario to a run directory: `simfed serve`."""

from __future__ import annotations

import contextlib
import os
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simfed.assembly import Parts, checked
from simfed.contract import Workload
from simfed.deploy.frames import Frame
from simfed.deploy.peers import Patience, Peers
from simfed.deploy.playing import Deployed, Joined, NoDevice, wait_until
from simfed.errors import InputError, Interrupted, RunFailed, listed
from simfed.experiment import Progress, RunResult, carry_out, loaded, self_contained
from simfed.learn.parcel import Parcel, pack
from simfed.record import Recorder
from simfed.record.digest import scenario_digest
from simfed.replay.key import data_digest
from simfed.scenario import Scenario

if TYPE_CHECKING:
    from simfed.learn.apart import Fate

__all__ = ["Listening", "serve"]

_MOST = 2**20


@dataclass(frozen=True, slots=True)
class Listening:
    """Where and for whom a server listens."""

    host: str = "127.0.0.1"
    port: int = 0
    """0: any free one."""
    token: bytes = b""
    tls: ssl.SSLContext | None = None
    join_s: float = 600.0
    """How long to wait for clients before the first round, and whenever nobody is there."""
    at_least: int | None = None
    """Begin once so many are there; None: all."""
    patience: Patience = field(default_factory=Patience)


def serve(
    scenario: Scenario | str | os.PathLike[str] | Mapping[str, Any],
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

    Real: devices, links, availability, failures. The scenario's own are not played. The rest is the
    simulation's: selection, server mode, policies (whose rewards count measured seconds), codecs,
    learning, records.

    told: called with host and port once clients may join. The other arguments are those of
    `simfed.run`.
    Raises: `InputError` for a scenario that cannot be deployed, `RunFailed`, `Interrupted`.
    """
    if resume and out is None:
        raise InputError("a run directory to go on with", where="resume")
    listening = listening or Listening()
    scenario, source = loaded(scenario, source)
    parts = checked(scenario, source, time_only=False)
    holder = _Holder(parts, listening, told, say)
    with contextlib.closing(holder):
        return carry_out(
            parts, out, mode="deployed", device=device, workers=1,
            make_workload=partial(holder.workload, device),
            make_simulation=holder.simulation, resume=resume, overwrite=overwrite,
            progress=progress, beside=holder.connected, at_end=holder.at_end,
        )  # fmt: skip


class _Holder:
    """Joins what `carry_out` makes one after the other: learning, the loop, the connections."""

    def __init__(
        self, parts: Parts, listening: Listening, told: Callable[[str, int], object],
        say: Callable[[str], object],
    ) -> None:  # fmt: skip
        self._parts, self._listening, self._told, self._say = parts, listening, told, say
        files, self._text = self_contained(parts)
        self._files = pack({}, files)
        self._digest = scenario_digest(self._text)
        self._data = data_digest(parts.scenario.dataset.name)
        self._peers: Peers | None = None
        self._gone: list[str] = []
        self._versions: dict[int, Any] = {}
        self._last = Frame("bye")

    def workload(self, device: str) -> Workload:
        """The server's half of the learning."""
        from simfed.learn.apart import server_half

        scenario, streams = self._parts.scenario, self._parts.streams
        return server_half(scenario, streams, self._ask, self._tell, device)

    def simulation(self, parts: Parts, workload: Workload, recorder: Recorder) -> Deployed:
        """The server loop, which nobody is connected to yet."""
        self._loop = Deployed(
            parts.scenario,
            workload=workload,
            make_policy=parts.policy,
            make_device=lambda client: NoDevice(),
            make_network=None,
            recorder=recorder,
            streams=parts.streams,
            samples_of=parts.samples_of,
            joined=Joined(),
            rejoin_s=self._listening.join_s,
        )
        most = max(_most_down(parts), default=0)
        self._peers = Peers(
            parts.scenario.client_count, self._listening.token, self._loop_post,
            welcome=lambda client: self._welcome(24 * most + _MOST),
            check=self._check,
            state_of=lambda client: self._loop.kept.get(client),
            joined=self._loop.joined,
            left=self._left,
            most_state=_MOST + 64 * most * (2 + len(parts.scenario.compression.arms)),
            patience=self._listening.patience,
        )  # fmt: skip
        self._loop.connect(self._peers)
        return self._loop

    @contextlib.contextmanager
    def connected(self, parts: Parts, simulation: Any) -> Iterator[Progress]:
        """While the rounds are played."""
        loop, rounds = self._loop, parts.scenario.rounds

        def border(round: int, time_s: float, accuracy: float | None) -> None:
            if round == rounds:
                self._last = Frame("done")

        loop.before = self._gather
        yield border

    def _gather(self, stop_requested: Callable[[], bool]) -> None:
        """Listen, and wait for clients; then time begins."""
        import pandas  # noqa: F401 - what the first checkpoint would otherwise wait for
        import safetensors.numpy  # noqa: F401

        assert self._peers is not None
        peers, given = self._peers, self._listening
        self._told(*peers.listen(given.host, given.port, given.tls))
        wanted = self._parts.scenario.client_count
        if given.at_least is not None:
            wanted = min(wanted, given.at_least)

        def check() -> None:
            if stop_requested():
                raise Interrupted("stopped before anybody could begin")

        if not wait_until(lambda: len(peers.there) >= wanted, given.join_s, check):
            refused = f"; refused: {peers.refused[-1]}" if peers.refused else ""
            raise RunFailed(
                f"{len(peers.there)} of {wanted} clients joined within {given.join_s:g} s{refused}"
            )
        self._loop.begin()

    def close(self) -> None:
        """Say it to everybody and hang up."""
        if self._peers is not None:
            self._peers.close(self._last)

    def at_end(self) -> dict[str, Any]:
        """What the manifest says of the real world."""
        assert self._peers is not None
        ours = self._parts_versions()
        strange = {
            f"client {client} has {name} {theirs[name]}, the server {version}: "
            "its last bits may be others"
            for client, theirs in self._versions.items()
            for name, version in ours.items()
            if name in ("python", "torch", "numpy", "layers")
            and theirs.get(name, version) != version
        }
        return {
            "clocks": self._peers.clocks(),
            "warnings": [*sorted(strange), *self._gone[:20], *_not_played(self._parts)],
        }

    @staticmethod
    def _parts_versions() -> dict[str, str]:
        from simfed.record.manifest import versions

        return versions()

    # ---- what the connections ask ----------------------------------------------------------------

    def _loop_post(self, at_s: float, happen: Callable[[], object]) -> None:
        self._loop.post(at_s, happen)

    def _ask(self, what: str, asked: Sequence[tuple[int, Parcel]]) -> Sequence[Parcel | None]:
        assert self._peers is not None
        return self._peers.ask(what, asked)

    def _tell(self, client: int, label: str, fate: Fate) -> None:
        assert self._peers is not None
        self._peers.tell(client, Frame("settle", {"label": label, "fate": fate}))

    def _welcome(self, most_down: int) -> Parcel:
        facts = {**self._files.facts, "scenario": self._text, "most_down": most_down}
        return Parcel(facts, self._files.body)

    def _check(self, client: int, facts: dict[str, Any]) -> str | None:
        if facts.get("digest") != self._digest:
            return f"client {client} was built for another scenario"
        if facts.get("data") != self._data:
            name = self._parts.scenario.dataset.name
            return f"client {client} has another data set {name} than the server"
        theirs = facts.get("versions")
        self._versions[client] = theirs if isinstance(theirs, dict) else {}
        return None

    def _left(self, client: int, why: str) -> None:
        self._loop.left(client, why)
        sentence = f"client {client} was gone at {self._loop.now_s:.6g} s: {why}"
        self._gone.append(sentence)
        self._say(sentence)


def _most_down(parts: Parts) -> Iterator[int]:
    for i in range(len(parts.scenario.clients)):
        plan = parts.tasks.task(1, parts.fleet.first(i), 0).plan
        yield sum(of.entries for of in (*plan.down.values(), *plan.up.values()))


def _not_played(parts: Parts) -> Iterator[str]:
    found = []
    if parts.fleet.presence() is not None:
        found.append("availability or failure")
    if parts.scenario.faults is not None:
        found.append("faults")
    if found:
        yield f"{listed(found)} of the scenario were not played: clients were real"
