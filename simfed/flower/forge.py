"""Plays of an app that is measured, each forked from one warm process.

Imports are paid once. The warm process has imported Flower, simfed's engine and what
the app's files import from elsewhere, none of the app's own modules: a fork begins as a
new process that has just done so. A play that does not end in time is ended with all
that it started. A framework that does not survive a fork (its threads are not there
afterwards) is played from a process that has imported nothing.

`Forge` is this end; `serve` and `play` run in the processes that it starts. A job is a
line of JSON, its outcome a pickle in a file that the job names.
"""

from __future__ import annotations

import ast
import gc
import importlib
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from simfed.ground.children import make_python_command
from simfed.ground.inputs import list_files_below
from simfed.ground.plain import Plain

if TYPE_CHECKING:
    from simfed.flower.computing import HostSpent
    from simfed.flower.workfile import Visible


LIMIT_S = 600.0
"""Host seconds of a play, after which it is ended."""
_THREADS = ("OMP", "MKL", "OPENBLAS", "NUMEXPR", "VECLIB_MAXIMUM")
_ENGINE = ("flwr.serverapp.strategy", "simfed.flower.running", "simfed.flower.play")
_NEVER_FORKED = frozenset({"jax", "tensorflow"})
"""Frameworks that start threads as they are imported."""


class PlayOutcome(NamedTuple):
    """The outcome of a play."""

    messages: list[tuple[Visible, HostSpent, int]]
    """Visible values, what was spent, and the exchange of each."""
    error: str | None
    """The reason why it did not get to its end, in a sentence."""


class Forge:
    """The warm process of one app, from which plays are forked.

    A context manager: at its end the process is ended.
    """

    def __init__(self, folder: Path, limit_s: float = LIMIT_S) -> None:
        """Start the process.

        Args:
            folder: the app's.
            limit_s: host seconds after which a play is ended.
        """
        self._folder = folder
        self._limit_s = limit_s
        self._imports = _list_imports(folder)
        names = {name.partition(".")[0] for name in self._imports}
        self._warm = (
            None if names & _NEVER_FORKED else self._start([*_ENGINE, *self._imports])
        )

    def __enter__(self) -> Forge:
        return self

    def __exit__(self, *_: object) -> None:
        if self._warm is not None:
            _end(self._warm)

    def play(self, job: Mapping[str, Plain]) -> PlayOutcome:
        """Play a job, see `play`.

        A play that does not survive its fork is made again in a new process; where that
        works, so are all that follow.
        """
        job = {**job, "host_timeout_s": 0.9 * self._limit_s}
        said = None if self._warm is None else self._ask(self._warm, job)
        if said is not None:
            return said
        bare = self._start([])
        try:
            said = self._ask(bare, job)
        finally:
            _end(bare)
        if said is None:
            return PlayOutcome([], f"it died, or took longer than {self._limit_s:g} s")
        if self._warm is not None:  # so it was the fork that it did not survive
            _end(self._warm)
            self._warm = None
        return said

    def _start(self, modules: Sequence[str]) -> subprocess.Popen[str]:
        code = "from simfed.flower.forge import serve; serve(*sys.argv[1:])"
        command = make_python_command(code, str(self._limit_s), *modules)
        return subprocess.Popen(
            command,
            env=_make_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def _ask(
        self, process: subprocess.Popen[str], job: Mapping[str, Plain]
    ) -> PlayOutcome | None:
        """Return the outcome of a play in a process.

        None: the play did not come to its end.
        """
        assert process.stdin is not None
        assert process.stdout is not None
        with tempfile.NamedTemporaryFile() as answer:
            try:
                print(
                    json.dumps({**job, "out": answer.name}),
                    file=process.stdin,
                    flush=True,
                )
            except BrokenPipeError:
                return None
            process.stdout.readline()
            said = answer.read()
        return pickle.loads(said) if said else None


def _end(process: subprocess.Popen[str]) -> None:
    """End a process of this module, and a play that it may have under way."""
    process.terminate()
    process.communicate()


def _make_environment() -> dict[str, str]:
    """Return the environment of a process of one thread.

    It has this process's path of modules.
    """
    threads = {f"{name}_NUM_THREADS": "1" for name in _THREADS}
    return {
        **os.environ,
        **threads,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python code in a new process of one thread, with this one's path of modules.

    Args:
        code: what to run; `sys` is imported.
        arguments: its `sys.argv[1:]`.
    """
    command = make_python_command(code, *arguments)
    return subprocess.run(
        command, env=_make_environment(), capture_output=True, text=True, check=False
    )


def _list_imports(folder: Path) -> list[str]:
    """Return modules that the app's files import and that are not its own."""
    own = {path.stem for path in folder.iterdir()}
    names: dict[str, None] = {}
    for file in list_files_below(folder, "*.py"):
        with suppress(SyntaxError, ValueError):
            for node in ast.walk(ast.parse(file.read_text("utf-8"))):
                if isinstance(node, ast.Import):
                    names |= dict.fromkeys(alias.name for alias in node.names)
                elif (
                    isinstance(node, ast.ImportFrom) and node.module and not node.level
                ):
                    names[node.module] = None
    return [name for name in names if name.partition(".")[0] not in own]


# ---- the other end -----------------------------------------------------------------


def serve(limit_s: str, *modules: str) -> None:
    """Import modules, then fork a play for every line of the standard input.

    Args:
        limit_s: host seconds of a play.
        modules: what to import; those that cannot be are passed over.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    tell = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for name in modules:
        with suppress(Exception):  # the play says it of those that it needs
            importlib.import_module(name)
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        child = os.fork()
        if not child:
            _play_in_child(json.loads(line))
        try:
            _wait_for(child, float(limit_s))
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
        print(file=tell, flush=True)


def _wait_for(child: int, limit_s: float) -> None:
    until_s = time.monotonic() + limit_s
    while time.monotonic() < until_s:
        if os.waitpid(child, os.WNOHANG)[0]:
            return
        time.sleep(0.005)


def _play_in_child(job: Mapping[str, Plain]) -> None:
    """Play a job in a group of processes of its own, and end."""
    try:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        with open(os.devnull, "r+") as nothing:
            for stream in (0, 1, 2):
                os.dup2(nothing.fileno(), stream)
        said = play(job)
    except BaseException:
        said = PlayOutcome([], traceback.format_exc().strip().splitlines()[-1])
    try:
        Path(job["out"]).write_bytes(pickle.dumps(said))
    finally:
        os._exit(0)


def play(job: Mapping[str, Plain]) -> PlayOutcome:
    """Play the app of a job over a fleet without links' limits.

    It is under the simulated clock, with the work really done.

    Args:
        job: the app's `folder`, the `overrides` of its configuration, the `groups` of
        its nodes, as a fleet file has them, `host_timeout_s`; with `counts` its work is
        counted.

    Returns:
        What can be seen of each message, with what it took, and why the play failed, if
        it did.
    """
    from simfed.flower.children import UsageMeter
    from simfed.flower.computing import WorkWatch
    from simfed.flower.messages import Mail
    from simfed.flower.running import run_folder
    from simfed.flower.work import Answer
    from simfed.ground.errors import SimfedError
    from simfed.scenario.fleet_file import FleetFile

    messages: list[tuple[Visible, HostSpent, int]] = []
    errors: list[str] = []

    def watch(mail: Mail, answer: Answer) -> None:
        if answer.error is not None:
            errors.append(f"node {mail.client} raised {answer.error}")
            return
        assert mail.flight is not None
        messages.append((answer.visible, answer.spent, mail.flight.task.round))

    device = {"training": "1 s"}
    fleet = FleetFile.model_validate(
        {
            "name": "measured",
            "clients": [{**group, "device": device} for group in job["groups"]],
            "computing": {"kind": "declared", "seconds": "1 s"},
        }
    )
    WorkWatch.meter, WorkWatch.counts = UsageMeter(), bool(job.get("counts"))
    failed = None
    try:
        run_folder(
            job["folder"],
            fleet,
            run_config=job["overrides"],
            progress=False,
            watch=watch,
            host_timeout_s=job["host_timeout_s"],
        )
    except SimfedError as error:
        failed = str(error)
    if failed or not messages:  # a node's own exception is what the user needs
        failed = errors[0] if errors else failed or "no message was worked on"
    return PlayOutcome(messages, failed)
