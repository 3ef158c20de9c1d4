"""A few short plays of an app on this machine, and the laws of what its messages take.

Each play is a process of its own with one thread: it plays the app over a fleet without links'
limits, under the simulated clock, with the work really done, and writes down what every message
took and what can be seen of it. Between plays one thing changes: the number of nodes doubles, a
setting that sizes work doubles, a batch becomes a quarter. So one play says what a message takes,
and the others how that grows; where work grows with the number of nodes, a play with four times as
many tells how.

What is measured is processor time, children's included. What else runs on the machine shows in it
as far as caches and shared cores go, which makes a whole process slower, and which one is chance;
so each play is made twice, the second time after all others, and a message's lesser time counts.
What is ignored: memory that runs out, GPUs, what
several nodes on one machine do to each other.
"""

from __future__ import annotations

import csv
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from simfed.flower.laws import GOOD, MessageRow, fit_kinds
from simfed.flower.versions import flower_version
from simfed.flower.workfile import Kernel, KindLaw, Visible, WorkFile
from simfed.ground.children import make_python_command
from simfed.ground.errors import InputError, RunFailed
from simfed.ground.plain import Plain
from simfed.record.digest import digest_folder
from simfed.scenario.fleet_file import FleetFile

__all__ = [
    "NODES",
    "AppPlay",
    "MeasuredApp",
    "further_plays",
    "measure",
    "play_all",
    "play_and_print",
    "plays_of",
    "take_lesser",
    "time_kernel",
]

NODES = 10
"""Of the smallest play, where neither the command nor the app says a number."""
MOST_ROUNDS = 3
"""Of a play: settings called rounds are lowered to it."""
_PLAYS = 7
_THREADS = ("OMP", "MKL", "OPENBLAS", "NUMEXPR", "VECLIB_MAXIMUM")
_NO_SIZE = re.compile(
    r"round|seed|\b(min|max|port|id|rank|every|verbose|threshold|shares|class(es)?|nodes?|clients?|"
    r"supernodes|partitions?|workers?|threads?|cores?|cpus?|gpus?)\b"
)
"""Parts of names of whole numbers that size no message."""

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class AppPlay:
    """One play: on how many nodes, with which settings in place of the app's own."""

    nodes: int
    overrides: Mapping[str, Plain]
    changes: str
    """What is special about it."""
    clock_speed: float = 1.0
    """Of the nodes' clocks, beside this machine's processor."""


@dataclass(frozen=True, slots=True)
class MeasuredApp:
    """The work file of an app, and the timed messages that it was fitted to."""

    work: WorkFile
    rows: list[MessageRow]


def plays_of(
    config: Mapping[str, Plain], overrides: Mapping[str, Plain], nodes: int
) -> list[AppPlay]:
    """The plays that tell how an app's messages grow; `overrides`: what the user has set, which
    stays as it is except where it is a size.

    >>> plays = plays_of({"num-server-rounds": 9, "local-epochs": 1, "batch-size": 32}, {}, 4)
    >>> [(play.nodes, play.changes) for play in plays]
    [(4, '4 nodes'), (8, '8 nodes'), (4, 'local-epochs 2'), (4, 'batch-size 8')]
    """
    few = {
        key: MOST_ROUNDS
        for key, value in config.items()
        if "round" in key.lower() and _is_whole(value) and value > MOST_ROUNDS
    }
    common = {**few, **overrides}
    plays = [
        AppPlay(nodes, common, f"{nodes:,} nodes"),
        AppPlay(2 * nodes, common, f"{2 * nodes:,} nodes"),
    ]
    for key, value in {**config, **overrides}.items():
        words = key.lower().replace("_", "-")
        if not _is_whole(value) or value < 1 or _NO_SIZE.search(words):
            continue
        changed = max(1, value // 4) if "batch" in words else 2 * value
        if changed != value:
            plays.append(AppPlay(nodes, {**common, key: changed}, f"{key} {changed:,}"))
    return plays


def _is_whole(value: Plain) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def measure(
    app: str | Path,
    *,
    overrides: Mapping[str, Plain] | None = None,
    nodes: int | None = None,
    runs: int = _PLAYS,
    tell: Tell = lambda line: None,
) -> MeasuredApp:
    """Play the app in a folder and fit laws of what its messages take.

    Args:
        overrides: settings of the run's configuration in place of the app's own.
        nodes: of the smallest play; half of them should still be an app's least.
        runs: plays at most, two at least; further settings stay as they are.
        tell: gets a line before every play.

    Raises:
        InputError: the folder is no app, or it does not run with two sizes.
        RunFailed: the first play failed, or none of its messages was worked on.
    """
    flower_version()
    folder, overrides = Path(app), dict(overrides or {})
    if runs < 2:
        raise InputError("at least 2 plays: one does not tell what grows", where="--runs", got=runs)
    if nodes is not None and nodes < 1:
        raise InputError("at least 1 node", where="--nodes", got=nodes)
    from simfed.flower.loading import describe, read_stated_nodes

    components, config = describe(folder, overrides)
    smallest = nodes or min(read_stated_nodes(folder), default=NODES)
    plays = plays_of(config, overrides, smallest)[:runs]
    rows, left_out = _play_twice(list(enumerate(plays)), folder, config, tell)
    done = {row.play for row in rows}
    if 0 not in done:
        raise RunFailed(f"the app cannot be measured, as its first play failed: {left_out[0]}")
    if len(done) < 2:
        allowed = "an app that runs with two sizes, to tell what grows"
        raise InputError(allowed, where=str(folder), problem="; ".join(left_out))
    laws = fit_kinds(rows)
    more = further_plays(rows, laws, plays[0])[: runs - len(plays)]
    if more:
        numbered = list(enumerate(more, len(plays)))
        further, failed = _play_twice(numbered, folder, config, tell)
        plays, rows, left_out = [*plays, *more], [*rows, *further], [*left_out, *failed]
        laws, done = fit_kinds(rows), {row.play for row in rows}
    tell("the kernel, a gradient of lenet5")
    kernel, machine = time_kernel()
    tell("imports of the client app")
    imports_s = _time_imports(components["clientapp"], folder)
    work = WorkFile(
        app=folder.resolve().name,
        digest=digest_folder(folder, "*.py"),
        machine=machine,
        kernel=kernel,
        imports=float(f"{imports_s:.4g}"),
        run_config={
            key: list(dict.fromkeys({**config, **plays[n].overrides}[key] for n in sorted(done)))
            for key in config
        },
        nodes=sorted({plays[number].nodes for number in done}),
        left_out=left_out,
        kinds=laws,
    )
    return MeasuredApp(work, rows)


def further_plays(
    rows: Sequence[MessageRow], laws: Sequence[KindLaw], smallest: AppPlay
) -> list[AppPlay]:
    """Plays that are asked for by what others have shown."""
    plays, large = [], [law for law in laws if law.share >= GOOD]
    if any("nodes" in law.names for law in large):
        # two numbers of nodes do not tell work for each node from work for each pair of them
        nodes = 4 * smallest.nodes
        plays.append(replace(smallest, nodes=nodes, changes=f"{nodes:,} nodes"))
    of_kinds = [
        [row for row in rows if law.covers(row.visible.message_type, row.visible.texts)]
        for law in large
    ]
    if any(len({row.readings for row in kind}) > 1 for kind in of_kinds):
        # one that works until its seconds are spent reads its clock now more, now less often, and
        # does more by a slower one; twice the nodes, so that their messages outweigh chance
        nodes, overrides = 2 * smallest.nodes, smallest.overrides
        plays.append(AppPlay(nodes, overrides, "clocks a third as fast", clock_speed=1 / 3))
    return plays


# ---- plays, each in a process of its own ---------------------------------------------------------


def _run_python(
    code: str, *arguments: str, cwd: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Python code in a process of one thread, with this one's path of modules."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    environment |= {f"{name}_NUM_THREADS": "1" for name in _THREADS}
    command = make_python_command(code, *arguments)
    return subprocess.run(
        command, env=environment, cwd=cwd, capture_output=True, text=True, check=False
    )


def _play_twice(
    plays: Sequence[tuple[int, AppPlay]], folder: Path, config: Mapping[str, Plain], tell: Tell
) -> tuple[list[MessageRow], list[str]]:
    """What `play_all` says of these plays, each made again after all others: the lesser times."""
    rows, left_out = play_all(plays, folder, config, tell)
    done = {row.play for row in rows}
    again = [(number, play) for number, play in plays if number in done]
    rows = take_lesser(rows, play_all(again, folder, config, tell, way="again")[0])
    return rows, left_out


def play_all(
    plays: Sequence[tuple[int, AppPlay]],
    folder: Path,
    config: Mapping[str, Plain],
    tell: Tell,
    *,
    way: str = "",
) -> tuple[list[MessageRow], list[str]]:
    """(the messages of plays, a sentence for each play that failed); `way`: what to say of these
    plays."""
    rows: list[MessageRow] = []
    left_out: list[str] = []
    for place, (number, play) in enumerate(plays, 1):
        tell(f"play {place} of {len(plays)}: {play.changes}{way and ', '}{way}")
        job = {
            "folder": str(folder.resolve()),
            "overrides": play.overrides,
            "nodes": play.nodes,
            "clock_speed": play.clock_speed,
        }
        code = "from simfed.flower.measuring import play_and_print; play_and_print()"
        with tempfile.NamedTemporaryFile("r", suffix=".json") as answer:
            done = _run_python(code, json.dumps(job), answer.name)
            text = answer.read()
        if done.returncode or not text:
            last = (done.stderr.strip().splitlines() or ["it gave no answer"])[-1]
            left_out.append(f"{play.changes}: {last}")
            if not rows:  # the others would fail for the same reason
                break
            continue
        seen = {**config, **play.overrides}
        said = json.loads(text)
        if not said["messages"]:
            left_out.append(f"{play.changes}: no message was worked on without an error")
        rows += _read_rows(said["messages"], number, play, seen)
    return rows, left_out


def play_and_print() -> None:
    """Play the app that the first argument (JSON) describes, and write its messages to the file
    that the second one names: what `measure` starts as a process."""
    from simfed.flower import run_folder
    from simfed.flower.charging import Watch
    from simfed.flower.messages import Mail
    from simfed.flower.work import Answer
    from simfed.ground.errors import SimfedError

    job, out = json.loads(sys.argv[1]), sys.argv[2]
    messages: list[dict[str, Plain]] = []

    def tell(mail: Mail, answer: Answer, visible: Visible) -> None:
        if answer.error is not None:
            return
        spent = answer.spent
        messages.append(
            {
                "message_type": visible.message_type,
                "config": visible.config,
                "reply": visible.reply,
                "counted": visible.counted,
                "downlink_bytes": visible.downlink_bytes,
                "uplink_bytes": visible.uplink_bytes,
                "work_s": spent.work_s,
                "waited_s": spent.waited_s,
                "readings": answer.readings,
                "round": 0 if mail.flight is None else mail.flight.task.round,
            }
        )

    fleet = FleetFile.model_validate(
        {
            "name": "measured",
            "clients": [{"count": job["nodes"], "device": {"training": "1 s"}}],
            "computing": {"kind": "declared", "seconds": "1 s"},
        }
    )
    watch = Watch(tell, clock_speed=job["clock_speed"])
    options = {"run_config": job["overrides"], "progress": False, "watch": watch}
    try:
        run_folder(job["folder"], fleet, **options)
    except SimfedError as error:
        sys.exit(str(error))
    Path(out).write_text(json.dumps({"messages": messages}), encoding="utf-8")


_VISIBLE = ("message_type", "config", "reply", "counted", "downlink_bytes", "uplink_bytes")


def _read_rows(
    messages: Sequence[Mapping[str, Plain]], number: int, play: AppPlay, config: Mapping[str, Plain]
) -> Iterator[MessageRow]:
    """The messages of one play; the first of each type and texts is one that began a process."""
    begun: set[tuple[str, str]] = set()
    for message in messages:
        visible = Visible(**{name: message[name] for name in _VISIBLE})
        kind = visible.message_type, json.dumps(visible.texts, sort_keys=True)
        times = {name: message[name] for name in ("work_s", "waited_s", "readings", "round")}
        first, speed = kind not in begun, play.clock_speed
        yield MessageRow(
            number, visible, config, play.nodes, first=first, clock_speed=speed, **times
        )
        begun.add(kind)


def take_lesser(rows: Sequence[MessageRow], again: Sequence[MessageRow]) -> list[MessageRow]:
    """Of messages that were played twice, the lesser times: what else runs on the machine makes a
    whole process slower by a quarter, and which one is chance. Plays that took another course keep
    theirs."""
    if [_read_course(row) for row in rows] != [_read_course(row) for row in again]:
        return list(rows)
    return [
        replace(
            min(row, twin, key=lambda one: one.work_s),  # with what it says of its work
            waited_s=min(row.waited_s, twin.waited_s),
            repeats=(row.work_s, twin.work_s),
        )
        for row, twin in zip(rows, again, strict=True)
    ]


def _read_course(row: MessageRow) -> tuple[int, str]:
    return row.play, row.visible.message_type


# ---- what is beside the plays --------------------------------------------------------------------


_IMPORTS = """
import sys, time
from pathlib import Path
import flwr.supernode.cli  # what the process of a client app imports beside the app
from flwr.clientapp.client_app import LoadClientAppError
from flwr.supercore.object_ref import load_app
load_app(sys.argv[1], LoadClientAppError, Path(sys.argv[2]))
print(time.process_time())
"""


def _time_imports(reference: str, folder: Path) -> float:
    """Processor seconds of a new process until the client app is there, as a SuperNode starts it;
    the lesser of two, as the first fills the disk's cache."""
    seconds = []
    for _ in range(2):
        done = _run_python(_IMPORTS, reference, str(folder.resolve()))
        with suppress(ValueError, IndexError):
            seconds.append(float(done.stdout.strip().splitlines()[-1]))
    return min(seconds, default=0.0)


_KERNEL = """
import sys
from simfed.calibrate.measure import MeasurementPlan, measure
plan = MeasurementPlan((("lenet5", "mnist-mini"),), batches=(32,), quantities=("training",))
measure(plan, sys.argv[1])
"""


def time_kernel() -> tuple[Kernel, dict[str, str]]:
    """The kernel's median on this machine, measured as profiles are, and the machine. Raises:
    `RunFailed`."""
    from simfed.learn.catalogue import model_facts

    with tempfile.TemporaryDirectory(prefix="simfed-") as folder:
        table = Path(folder) / "kernel.csv"
        done = _run_python(_KERNEL, str(table))
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["it gave no answer"])[-1]
            raise RunFailed(f"the kernel could not be timed: {last}")
        with open(table, encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    facts = model_facts("lenet5", (1, 28, 28), 10)
    kernel = Kernel(
        parameters=facts.parameters,
        flops=facts.train_flops,
        seconds=float(f"{statistics.median(float(row['seconds']) for row in rows):.4g}"),
    )
    columns = ("machine", "cpu", "threads", "python", "torch", "numpy", "simfed")
    return kernel, {**{name: rows[0][name] for name in columns}, "flwr": flower_version()}
