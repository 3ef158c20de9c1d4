r"""Flower's own examples and baselines under the simulated clock, from a checkout that
you name.

    git clone https://github.com/adap/flower
    python analysis/flower_originals.py flower --out originals --stand-ins --compare
    python analysis/flower_originals.py flower --out originals \
        --only quickstart --fleet FLEET.yaml

Every folder below CHECKOUT with a `pyproject.toml` that names a Flower app is played as
`simfed flower run` does it, in a process of its own, for so many rounds as `--rounds`
says where the app has a setting of that name; then its run directory is checked by
`simfed verify`. What an app needs has to be there, but for data: `--stand-ins` puts
made-up tables of the same columns in place of the data sets that most of them download
(`flower_stand_ins.py`). One that misses something is a row with the sentence that says
what.

Without `--fleet` an app gets as many equal nodes as it names (`--nodes` where it names
none), one a little further away than the other, so that replies come in the order of
nodes. `--compare` plays each app in Flower's engine as well, one message at a time,
with simfed's random numbers and with replies in that order, and holds every message's
arrays and every reply (arrays, metrics, configuration) against those of the same node
under the clock. Not compared are seconds and bytes: in these secure aggregation has its
keys and masks, which the operating system draws.

OUT gets the run directories and `apps.csv`, a row for each app: its folder, how it
ended, simulated and host seconds, how many replies were compared and by how much they
differ at most (of the largest number of an array), and the last line that it said.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import os
import pickle
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pages import markdown

from simfed.ground.errors import SimfedError
from simfed.ground.plain import Plain
from simfed.ground.seeding import Streams

if TYPE_CHECKING:
    from simfed.flower.computing import HostSpent
    from simfed.scenario.fleet_file import Computing

ROWS = Path(__file__).parent / "flower_originals.csv"
"""Rows of `apps.csv` that are kept."""
PAGE = Path(__file__).parents[1] / "docs" / "flower-messages.md"
ROUND_SETTINGS = ("num-server-rounds", "num-rounds", "num_rounds")
CLOCKS = ("time", "duration", "seconds")
"""Parts of names of metrics that are read from a clock, and not compared."""

Replies = dict[tuple[int, int], dict[str, NDArray[np.generic]]]
"""(node, how many messages it had before) → the arrays that it got, and what its reply
says."""


class Job(NamedTuple):
    """One play of one app in one engine."""

    folder: str
    engine: str
    """`clock` or `flower`."""
    config: dict[str, Plain]
    fleet: str
    """A fleet file, or empty."""
    nodes: int
    run: str
    """The run directory."""
    replies: str
    """The file for them."""
    stand_ins: bool


class Played(NamedTuple):
    app: str
    outcome: str
    """`finished`, `failed` (exit code 1), `refused` (2), `timeout`, `broken` (by
    verify), or `differs` (from Flower's engine)."""
    simulated_s: float | None
    wall_s: float
    compared: int | None
    """Replies; None: Flower's engine was not asked, or did not get through either."""
    difference: float | None
    sentence: str
    nodes: int = 0
    config: str = ""
    """The settings in place of its own, as `--run-config` takes them."""


def find_apps(checkout: Path, only: str) -> Iterator[Path]:
    """Folders of apps below a checkout whose path has `only` in it, in their order."""
    for project in sorted(checkout.rglob("pyproject.toml")):
        folder = project.parent
        if only in str(
            folder.relative_to(checkout)
        ) and "[tool.flwr.app.components]" in (project.read_text(encoding="utf-8")):
            yield folder


def play_app(folder: Path, name: str, options: argparse.Namespace) -> Played:
    """Play one app, check its run directory, and compare it."""
    from simfed.flower.loading import describe, read_stated_nodes
    from simfed.scenario.fleet_file import load_fleet

    run = options.out / name.replace("/", "--")
    try:
        described = describe(folder, {})[1]
        nodes = options.nodes or min(read_stated_nodes(folder), default=10)
        if options.fleet:
            nodes = load_fleet(options.fleet).client_count
    except SimfedError as error:
        return Played(name, "refused", None, 0.0, None, None, str(error))
    rounds = next(
        (key for key in described if key.rpartition(".")[2] in ROUND_SETTINGS), None
    )
    config: dict[str, Plain] = {} if rounds is None else {rounds: options.rounds}
    config |= {
        key: value for key, value in options.run_config.items() if key in described
    }
    fleet = str(options.fleet.resolve()) if options.fleet else ""

    def play(engine: str) -> tuple[str, str, Replies]:
        replies = run.resolve().with_suffix(f".{engine}.pickle")
        job = Job(
            str(folder.resolve()),
            engine,
            config,
            fleet,
            nodes,
            str(run.resolve()),
            str(replies),
            options.stand_ins,
        )
        aside = run.resolve().with_suffix(".files")  # what the app writes beside itself
        aside.mkdir(exist_ok=True)
        command = [sys.executable, __file__, "--job", json.dumps(job)]
        outcome, sentence = _call(command, options.limit, aside)
        with contextlib.suppress(FileNotFoundError), open(replies, "rb") as file:
            return outcome, sentence, pickle.load(file)
        return outcome, sentence, {}

    began_s = time.perf_counter()
    outcome, sentence, ours = play("clock")
    wall_s = round(time.perf_counter() - began_s, 1)
    simulated_s = None
    if outcome == "finished":
        simulated_s = json.loads((run / "summary.json").read_text())["simulated_s"]
        command = [sys.executable, "-m", "simfed", "verify", str(run)]
        checked, broken = _call(command, options.limit, None)
        if checked != "finished":
            outcome, sentence = "broken", broken
    compared, difference = None, None
    if outcome == "finished" and options.compare:
        there, why, theirs = play("flower")
        if there != "finished":
            sentence = f"in Flower's engine {there}: {why}"
        elif ours.keys() != theirs.keys():
            outcome = "differs"
            sentence = f"{len(ours)} replies, {len(theirs)} in Flower's engine"
        else:
            compared, (difference, where) = len(ours), compare(ours, theirs)
            if difference > options.tolerance:
                outcome, sentence = "differs", where
    settings = " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())
    return Played(
        name,
        outcome,
        simulated_s,
        wall_s,
        compared,
        difference,
        sentence,
        nodes,
        settings,
    )


def page_parts() -> dict[str, str]:
    """A line for each kept app that was compared."""
    table = [["app", "nodes", "settings", "replies", "largest difference"]]
    with open(ROWS, encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["compared"]:
                off = float(row["difference"])
                settings = f"`{row['config']}`" if row["config"] else ""
                line = [row["app"], row["nodes"], settings, row["compared"]]
                table.append([*line, f"{off:.0e}" if off else "0"])
    return {"flower-originals": markdown(table)}


def compare(ours: Replies, theirs: Replies) -> tuple[float, str]:
    """The largest difference of two apps' replies, and where it is."""
    worst = (0.0, "")
    for (node, turn), here in ours.items():
        there = theirs[node, turn]
        for name in here.keys() | there.keys():
            if any(part in name.lower() for part in CLOCKS):
                continue
            off = _difference(here.get(name), there.get(name))
            worst = max(
                worst, (off, f"{name} of message {turn} to node {node} by {off:.2g}")
            )
    return worst


def _difference(here: NDArray[Any] | None, there: NDArray[Any] | None) -> float:
    if (
        here is not None
        and there is not None
        and here.dtype.kind == there.dtype.kind == "S"
    ):
        return 0.0
    if (
        here is None
        or there is None
        or here.shape != there.shape
        or here.dtype != there.dtype
    ):
        return float("inf")
    if np.array_equal(here, there, equal_nan=here.dtype.kind == "f"):
        return 0.0
    if here.dtype.kind not in "fiub":
        return float("inf")
    a, b = here.astype(float), there.astype(float)
    return float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-300))


def _call(
    command: Sequence[str], limit_s: float, folder: Path | None
) -> tuple[str, str]:
    """How a command ended, and the last line that it wrote to standard error."""
    threads = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "MKL", "OPENBLAS")}
    path = os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), *sys.path]))
    quiet = {
        "FLWR_TELEMETRY_ENABLED": "0",
        "WANDB_MODE": "disabled",
        "PYTHONPATH": path,
    }
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=limit_s,
            env={**os.environ, **threads, **quiet},
            cwd=folder,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "timeout", f"gave up after {limit_s:g} s"
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    outcome = {0: "finished", 2: "refused"}.get(done.returncode, "failed")
    return outcome, "" if done.returncode == 0 or not lines else lines[-1].strip()


# ---- in a process of its own ---------------------------------------------------------


def do_job(job: Job) -> int:
    """Play an app in an engine and keep its replies; the exit code."""
    if job.stand_ins:
        from flower_stand_ins import install

        install()
    from simfed.ground.errors import InputError, InputErrors

    try:
        replies = (
            play_under_clock(job) if job.engine == "clock" else play_in_flower(job)
        )
    except SimfedError as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, (InputError, InputErrors)) else 1
    with open(job.replies, "wb") as file:
        pickle.dump(replies, file)
    return 0


def play_under_clock(job: Job) -> Replies:
    """As `simfed flower run` does it."""
    from simfed.flower import run_folder
    from simfed.flower.messages import Mail
    from simfed.flower.running import check_some_worked
    from simfed.flower.work import Answer
    from simfed.scenario.fleet_file import FleetFile, load_fleet

    replies: Replies = {}
    turns: Counter[int] = Counter()

    def watch(mail: Mail, answer: Answer) -> None:
        keep(
            replies, turns, mail.client, mail.message.message(), answer.reply.message()
        )

    nodes = [
        {"device": {"training": "1 s"}, "link": {"latency": f"{10 * (node + 1)} ms"}}
        for node in range(job.nodes)
    ]
    computing = {"kind": "declared", "seconds": "1 s"}
    equal = {"name": "originals", "clients": nodes, "computing": computing}
    fleet = load_fleet(job.fleet) if job.fleet else FleetFile.model_validate(equal)
    with _same_modules():
        result = run_folder(
            job.folder,
            fleet,
            job.run,
            run_config=job.config,
            overwrite=True,
            progress=False,
            watch=watch,
        )
    check_some_worked(result)
    return replies


@contextlib.contextmanager
def _same_modules() -> Iterator[None]:
    """What modules draw at random as they are imported is the same in both engines."""
    from simfed.flower.clocks import foreign_randomness

    with foreign_randomness(0):
        yield


def keep(
    replies: Replies, turns: Counter[int], node: int, message: Any, reply: Any
) -> None:
    """Note what a node has got and answered."""
    values: dict[str, NDArray[np.generic]] = {}
    for name, record in message.content.array_records.items():
        values |= {f"got {name}/{key}": array.numpy() for key, array in record.items()}
    if reply is None or reply.has_error():
        values["error"] = np.array(True)
    else:
        for name, record in reply.content.items():
            for key, value in record.items():
                array = value.numpy() if hasattr(value, "numpy") else np.array(value)
                values[f"{name}/{key}"] = array
    replies[node, turns[node]] = values
    turns[node] += 1


def play_in_flower(job: Job) -> Replies:
    """As Flower's engine does it, see `run_in_flower`."""
    replies: Replies = {}
    turns: Counter[int] = Counter()

    def tell(node: int, message: Any, reply: Any, spent: HostSpent, round: int) -> None:
        keep(replies, turns, node, message, reply)

    run_in_flower(job.folder, job.config, job.nodes, tell)
    return replies


def run_in_flower(
    folder: str | Path,
    overrides: dict[str, Plain],
    nodes: int,
    tell: Callable[[int, Any, Any, HostSpent, int], None],
    computing: Computing | None = None,
) -> None:
    """Play an app in Flower's engine with one worker, simfed's random numbers and names
    of nodes, and replies by their nodes' numbers.

    `tell` gets each message's node, the message, its reply (None: the app raised), what
    was spent on it as `computing` watches it, and the exchange. Ray is not needed.
    """
    from flwr.server.superlink.fleet.vce.backend import Backend
    from flwr.server.superlink.linkstate import in_memory_linkstate
    from flwr.serverapp import ServerApp
    from flwr.simulation import run_simulation

    from simfed.flower.clocks import foreign_randomness
    from simfed.flower.computing import WorkWatch
    from simfed.flower.loading import load
    from simfed.flower.messages import PackedMessage

    turns: Counter[int] = Counter()
    exchange = {"number": 1, "answered": False}
    numbers = {Streams(0).integer("flower-node", node): node for node in range(nodes)}
    new_ids = iter(numbers)  # sets of nodes have an order that hangs on their ids
    in_memory_linkstate.generate_rand_int_from_bytes = lambda *_, **__: next(new_ids)

    with (
        _same_modules(),
        load(folder, overrides) as (server_app, client_app, config),
    ):

        class OneWorker(Backend):  # type: ignore[misc]
            num_workers = 1

            def __init__(self, config: Any) -> None:
                self._watch = WorkWatch(computing)

            def build(self, app_fn: Any) -> None:
                pass

            def is_worker_idle(self) -> bool:
                return True

            def terminate(self) -> None:
                pass

            def process_message(self, message: Any, context: Any) -> Any:
                node = int(context.node_config["partition-id"])
                before, context.run_config, reply = (
                    context.run_config,
                    dict(config),
                    None,
                )
                round = exchange["number"]
                alone = PackedMessage.of(
                    message
                ).message()  # as it comes from elsewhere
                seed = Streams(0).integer("flower-call", node, turns[node])
                try:
                    with foreign_randomness(seed), self._watch.watched():
                        reply = client_app(alone, context)
                    return reply, context
                finally:
                    turns[node] += 1
                    context.run_config = before
                    tell(node, message, reply, self._watch.collect(), round)

        class InOrder(ServerApp):  # type: ignore[misc]
            def __call__(self, grid: Any, context: Any) -> None:
                ids, others = grid.get_node_ids, grid.get_nodes
                ask, push = grid.send_and_receive, grid.push_messages
                pull = grid.pull_messages

                def in_order(messages: Any) -> list[Any]:
                    replies = list(messages)
                    exchange["answered"] = exchange["answered"] or bool(replies)
                    return sorted(
                        replies, key=lambda m: numbers[m.metadata.src_node_id]
                    )

                def send(messages: Any) -> Any:
                    if exchange["answered"]:
                        exchange.update(number=exchange["number"] + 1, answered=False)
                    return push(messages)

                while len(ids()) < nodes:
                    time.sleep(0.1)
                grid.get_node_ids = lambda: sorted(ids(), key=numbers.__getitem__)
                grid.get_nodes = lambda: sorted(
                    others(), key=lambda n: numbers[n.node_id]
                )
                grid.send_and_receive = lambda messages, **more: in_order(
                    ask(messages, **more)
                )
                grid.pull_messages = lambda ids: in_order(pull(ids))
                grid.push_messages = send
                context.run_config = dict(config)
                with foreign_randomness(Streams(0).integer("flower-server")):
                    server_app(grid, context)

        engine = ModuleType("raybackend")
        engine.RayBackend = OneWorker  # type: ignore[attr-defined]
        sys.modules["flwr.server.superlink.fleet.vce.backend.raybackend"] = engine
        run_simulation(
            InOrder(), client_app, num_supernodes=nodes, backend_name="one worker"
        )


# ---- the command ---------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Play all apps of a checkout; 0 where each of them finished."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("checkout", type=Path, help="folder of a checkout of Flower")
    parser.add_argument(
        "--out", type=Path, required=True, help="folder for runs and apps.csv"
    )
    parser.add_argument(
        "--fleet", type=Path, help="fleet file, in place of equal nodes"
    )
    parser.add_argument(
        "--nodes", type=int, default=0, help="where an app names no number (10)"
    )
    parser.add_argument("--only", default="", help="apps whose path has this in it")
    parser.add_argument("--rounds", type=int, default=2, help="of each app (2)")
    parser.add_argument(
        "--run-config",
        default="",
        help="settings, for those apps that have them: 'KEY=VALUE …'",
    )
    parser.add_argument(
        "--limit", type=float, default=900.0, help="host seconds per app (900)"
    )
    parser.add_argument(
        "--stand-ins", action="store_true", help="made-up tables, no downloads"
    )
    parser.add_argument("--compare", action="store_true", help="with Flower's engine")
    parser.add_argument(
        "--tolerance", type=float, default=1e-5, help="of a comparison (1e-5)"
    )
    options = parser.parse_args(arguments)
    from simfed.flower.running import read_config

    options.run_config = read_config([options.run_config] if options.run_config else [])
    folders = list(find_apps(options.checkout, options.only))
    if not folders:
        parser.error(
            f"{options.checkout}: no folder with a Flower app's pyproject.toml"
        )
    options.out.mkdir(parents=True, exist_ok=True)
    played = []
    with open(options.out / "apps.csv", "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(Played._fields)
        for folder in folders:
            row = play_app(
                folder, folder.relative_to(options.checkout).as_posix(), options
            )
            played.append(row)
            table.writerow(row)
            file.flush()
            off = (
                ""
                if row.difference is None
                else f", {row.compared} replies differ by at most "
            )
            off += "" if row.difference is None else f"{row.difference:.2g}"
            print(f"{row.app}: {row.outcome}{off} {row.sentence}".rstrip(), flush=True)
    finished = sum(row.outcome == "finished" for row in played)
    print(f"{finished} of {len(played)} apps finished; {options.out / 'apps.csv'}")
    return int(finished < len(played))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--job"]:
        sys.exit(do_job(Job(*json.loads(sys.argv[2]))))
    sys.exit(main())
