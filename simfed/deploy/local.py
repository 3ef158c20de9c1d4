"""A deployment on this machine: one process per client, for trying. `simfed deploy`."""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from simfed.assembly import checked
from simfed.deploy.serving import Listening, serve
from simfed.deploy.shaping import QUEUE_S, Shaped, shape
from simfed.deploy.warden import Warden
from simfed.errors import RunFailed
from simfed.experiment import RunResult, loaded
from simfed.scenario import Scenario

__all__ = ["deploy"]

_PATIENCE_S = 20.0
"""For how long a client looks for a server that is gone."""


def deploy(
    scenario: Scenario | str | os.PathLike[str] | Mapping[str, Any],
    out: str | Path | None = None,
    *,
    shaped: bool = False,
    queue_s: float = QUEUE_S,
    listening: Listening | None = None,
    source: str | Path | None = None,
    allow_plugins: bool = False,
    **options: Any,
) -> RunResult:
    """Serve a scenario to one process per client on this machine, over the loopback.

    shaped: each client in a network namespace of its own, with links of the scenario's capacities
    and latencies, and a share of processor time where the scenario says `speed`; Linux and root
    only. Whatever was put up is taken down at the end, also after Ctrl-C and a crash.
    queue_s: how long what waits for a shaped link may wait; more is dropped, as routers do.
    Other arguments: those of `simfed.deploy.serving.serve`.

    Raises: `InputError`, where `shaped`, with what is missing; `RunFailed`; `Interrupted`.
    """
    scenario, source = loaded(scenario, source)
    parts = checked(scenario, source, time_only=False)
    with contextlib.ExitStack() as stack:
        warden = Warden()
        stack.callback(warden.close)
        world = shape(parts, warden, queue_s) if shaped else Shaped()
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory("-simfed")))
        token = secrets.token_hex().encode()
        descriptor = os.open(folder / "token", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        os.write(descriptor, token)
        os.close(descriptor)
        given = replace(listening or Listening(), host=world.server, port=0, token=token)
        crowd = _Crowd(world, warden, folder, scenario.client_count, allow_plugins)
        try:
            return serve(scenario, out, listening=given, source=source, told=crowd.begin, **options)
        except RunFailed as error:
            said = crowd.last_words()
            if not said:
                raise
            raise RunFailed(f"{error}; {said}") from None


class _Crowd:
    """The clients' processes."""

    def __init__(
        self, world: Shaped, warden: Warden, folder: Path, clients: int, allow_plugins: bool
    ) -> None:
        self._world, self._warden, self._folder, self._clients = world, warden, folder, clients
        self._allow_plugins = allow_plugins
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def begin(self, host: str, port: int) -> None:
        """Start them all."""
        for client in range(self._clients):
            self._processes[client] = self._start(client, f"{host}:{port}")
            self._warden.will(end=self._processes[client].pid)

    def _start(self, client: int, server: str) -> subprocess.Popen[bytes]:
        command = [
            *self._world.within(client), sys.executable, "-m", "simfed", "join", server,
            "--client", str(client), "--token", str(self._folder / "token"), "--quiet",
            "--patience", f"{_PATIENCE_S:g}", *(["--allow-plugins"] if self._allow_plugins else []),
        ]  # fmt: skip
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": _path()}
        with (self._folder / f"client-{client}").open("wb") as log:
            # a group of its own: Ctrl-C is the server's to hear, which ends a round first
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment,
                start_new_session=True,
            )  # fmt: skip

    def last_words(self) -> str:
        """What the first client that failed had to say."""
        for client, process in self._processes.items():
            if process.poll() not in (None, 0):
                lines = (self._folder / f"client-{client}").read_text(errors="replace").split("\n")
                said = [line for line in lines if line.strip()]
                return f"client {client} said: {said[-1]}" if said else ""
        return ""


def _path() -> str:
    """Where this process's simfed is, before what else there is."""
    here = str(Path(__file__).resolve().parents[2])
    return os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
