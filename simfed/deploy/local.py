"""A deployment on this machine: one process per client, for trying.

`simfed deploy` is `simfed serve` with as many `simfed join` as the scenario has
clients, each a process of this machine, over the loopback or in network namespaces of
its own.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from simfed.deploy.serving import Listening, serve
from simfed.deploy.shaping import MOST_CLIENTS, QUEUE_S, Shaped, shape
from simfed.deploy.warden import Warden
from simfed.experiment.checks import check_parts
from simfed.experiment.running import RunResult, accept_scenario
from simfed.ground.children import make_python_command
from simfed.ground.errors import InputError, RunFailed
from simfed.ground.plain import Plain
from simfed.scenario import Scenario

_PATIENCE_S = 20.0
"""Seconds that a client looks for a server that is gone."""


def deploy(
    scenario: Scenario | str | os.PathLike[str] | Mapping[str, Plain],
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

    Args:
        scenario: what `simfed.run` takes.
        out: the run directory; None: nothing is written.
        shaped: each client in a network namespace of its own, with links of the
        scenario's capacities and latencies, and a share of processor time where the
        scenario says `speed`; Linux and root only. Whatever was put up is taken down at
        the end, also after Ctrl-C and a crash.
        queue_s: how long what waits for a shaped link may wait; more is dropped, as
        routers do.
        listening: patience and numbers of clients; host, port and token are set here.
        source: the scenario's file.
        allow_plugins: clients may run the Python files that the scenario names.
        options: those of `simfed.deploy.serving.serve`.

    Raises:
        InputError: the scenario cannot be deployed, or shaped links lack something.
        RunFailed: it failed; with the last words of the first client that did.
        Interrupted: Ctrl-C.
    """
    scenario, source = accept_scenario(scenario, source)
    parts = check_parts(scenario, source, time_only=False)
    if scenario.client_count > MOST_CLIENTS:
        raise InputError(
            f"at most {MOST_CLIENTS:,} clients, as each is a process on this machine",
            where="clients",
            got=scenario.client_count,
            hint="simfed serve and simfed join spread them over machines",
        )
    with contextlib.ExitStack() as stack:
        warden = Warden()
        stack.callback(warden.close)
        world = shape(parts, warden, queue_s) if shaped else Shaped()
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory("-simfed")))
        token = secrets.token_hex()
        (folder / "token").write_text(token)  # in a folder that is this user's alone
        listening = replace(
            listening or Listening(), host=world.server, port=0, token=token
        )
        crowd = _Crowd(world, warden, folder, scenario.client_count, allow_plugins)
        options |= {"listening": listening, "source": source, "told": crowd.begin}
        try:
            return serve(scenario, out, **options)
        except RunFailed as error:
            words = crowd.last_words()
            if not words:
                raise
            raise RunFailed(f"{error}; {words}") from None


@dataclass(eq=False)
class _Crowd:
    """The processes of a deployment's clients, on this machine, one each.

    What they print goes to a file each, from which `last_words` reads.
    """

    world: Shaped
    warden: Warden
    folder: Path
    clients: int
    allow_plugins: bool
    processes: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)

    def begin(self, host: str, port: int) -> None:
        """Start every client's process, once the server listens.

        Args:
            host: where it listens.
            port: where it listens.
        """
        for client in range(self.clients):
            self.processes[client] = self._start(client, f"{host}:{port}")
            self.warden.will(f"kill -s KILL -- -{self.processes[client].pid}")

    def _start(self, client: int, server: str) -> subprocess.Popen[bytes]:
        join = f"join {server} --client {client} --quiet --patience {_PATIENCE_S:g}"
        words = [*join.split(), "--token", str(self.folder / "token")]
        words += ["--allow-plugins"] if self.allow_plugins else []
        code = "from simfed.cli import main; sys.exit(main())"
        path = _build_python_path()
        with (self.folder / f"client-{client}").open("wb") as log:
            return subprocess.Popen(
                [*self.world.within(client), *make_python_command(code, *words)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
                # Ctrl-C is the server's to hear, which ends a round first
                start_new_session=True,
            )

    def last_words(self) -> str:
        """Return the last line of the first client that failed."""
        for client, process in self.processes.items():
            if process.poll() not in (None, 0):
                text = (self.folder / f"client-{client}").read_text(errors="replace")
                lines = [line for line in text.split("\n") if line.strip()]
                return f"client {client} said: {lines[-1]}" if lines else ""
        return ""


def _build_python_path() -> str:
    """Return the path of modules with this process's simfed first.

    Clients' processes then run the same code, installed or not.
    """
    here = str(Path(__file__).resolve().parents[2])
    return os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
