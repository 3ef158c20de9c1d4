"""Flower apps in a real deployment on this machine, beside what `simfed flower run`
says of it.

    python analysis/flower_deployed.py play APP_DIR… --nodes 2
    python analysis/flower_deployed.py table

`play` measures an app, charges it by its laws (`start: per message`, as a SuperNode
starts a process for each), then deploys it: a SuperLink and a SuperNode per node,
processes of Flower's own that talk over sockets on the loopback. The app is as it is;
around its two ends stands a class that writes down what each message took and when each
exchange began and ended. Rows go to `flower_deployed.csv`, an app's earlier ones give
way. `table` renews what docs/flower.md shows.

A message's seconds are those of the processor, from the start of the process that works
on it to the app's reply. Rounds are seconds of the wall's clock, which all nodes share
with whatever else the machine does, and at whose ends Flower's grid looks for replies
every three seconds.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from pages import markdown, write_page

from simfed.experiment.running import RunResult
from simfed.flower.measuring import measure
from simfed.flower.probing import MOST_ROUNDS
from simfed.flower.workfile import write_work
from simfed.ground.plain import Plain
from simfed.scenario.fleet_file import FleetFile

ROWS = Path(__file__).parent / "flower_deployed.csv"
PAGE = Path(__file__).parents[1] / "docs" / "flower.md"
LIMIT_S = 900.0

CLIENT = """
import json, time
from flwr.clientapp import ClientApp
from {module} import {name} as inner

class Watched(ClientApp):
    def __call__(self, message, context):
        reply = inner(message, context)
        spent = {{"type": message.metadata.message_type, \
"process_s": time.process_time()}}
        with open({out!r}, "a") as file:
            print(json.dumps(spent), file=file)
        return reply

app = Watched()
"""

SERVER = """
import json, time
from flwr.serverapp import ServerApp
from {module} import {name} as inner

class Watched(ServerApp):
    def __call__(self, grid, context):
        while len(list(grid.get_node_ids())) < {nodes}:
            time.sleep(0.2)
        ask = grid.send_and_receive

        def timed(messages, **options):
            began_s = time.time()
            replies = list(ask(messages, **options))
            with open({out!r}, "a") as file:
                print(json.dumps({{"round_s": time.time() - began_s}}), file=file)
            return replies

        grid.send_and_receive = timed
        inner(grid, context)
        with open({out!r}, "a") as file:
            print(json.dumps({{"end": True}}), file=file)

app = Watched()
"""


class Row(NamedTuple):
    """The seconds of one kind of message, or of rounds."""

    app: str
    what: str
    messages: int
    """Or rounds."""
    charged_s: float
    """The median by the laws."""
    deployed_s: float
    """The median in the deployment."""


def charge(
    folder: Path, nodes: int, config: Mapping[str, Plain], work: Path
) -> RunResult:
    """The app's run by its laws, a process started for each message."""
    from simfed.flower import run_folder

    fleet = FleetFile.model_validate(
        {
            "name": "deployed",
            "clients": [{"count": nodes, "device": {"training": "1 s"}}],
            "computing": {"kind": "work", "file": str(work), "start": "per message"},
        }
    )
    return run_folder(folder, fleet, run_config=dict(config), progress=False)


def deploy(
    folder: Path, nodes: int, config: Mapping[str, Plain]
) -> list[dict[str, Plain]]:
    """What the two ends of the app wrote down in a deployment.

    Raises: `RuntimeError` where it did not come to an end.
    """
    with tempfile.TemporaryDirectory(prefix="simfed-deployed-") as place:
        out, copy = Path(place) / "out.jsonl", Path(place) / folder.name
        shutil.copytree(folder, copy)
        watch_app(copy, nodes, out)
        home, port = Path(place) / "home", free_port()
        home.mkdir()
        (home / "config.toml").write_text(
            '[superlink]\ndefault = "deployed"\n[superlink.deployed]\n'
            f'address = "127.0.0.1:{port}"\ninsecure = true\n'
        )
        threads = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "MKL", "OPENBLAS")}
        quiet = {"FLWR_HOME": str(home), "FLWR_TELEMETRY_ENABLED": "0"}
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        environment = {**os.environ, **threads, **quiet, "PATH": path}
        fleet_api, log = f"127.0.0.1:{free_port()}", Path(place) / "log.txt"
        link = ["flower-superlink", "--insecure", "--port", str(port)]
        link += [
            "--fleet-api-address",
            fleet_api,
            "--disable-runtime-dependency-installation",
        ]
        with log.open("w") as file, ExitStack() as processes:
            processes.enter_context(started(link, environment, file))
            wait_for(port)
            for node in range(nodes):
                command = ["flower-supernode", "--insecure", "--superlink", fleet_api]
                command += ["--port", str(free_port()), "--node-config"]
                command.append(f"partition-id={node} num-partitions={nodes}")
                processes.enter_context(started(command, environment, file))
            command = ["flwr", "run", str(copy), "deployed"]
            for key, value in config.items():
                command += ["--run-config", f"{key}={json.dumps(value)}"]
            asked = subprocess.run(
                command, env=environment, capture_output=True, text=True, check=False
            )
            ends_s = time.monotonic() + LIMIT_S
            while time.monotonic() < ends_s and asked.returncode == 0:
                texts = (
                    out.read_text(encoding="utf-8").splitlines() if out.exists() else []
                )
                rows = [json.loads(text) for text in texts]
                if rows and "end" in rows[-1]:
                    return rows
                time.sleep(1)
        raise RuntimeError(f"{asked.stdout}{asked.stderr}{log.read_text()[-4000:]}")


def watch_app(copy: Path, nodes: int, out: Path) -> None:
    """Put the two classes around an app."""
    project = copy / "pyproject.toml"
    text = project.read_text(encoding="utf-8")
    for end, wrapper in (("client", CLIENT), ("server", SERVER)):
        pattern = rf'{end}app = "([\w.]+):(\w+)"'
        reference = re.search(pattern, text)
        assert reference is not None, project
        module, name = reference.groups()
        code = wrapper.format(module=module, name=name, nodes=nodes, out=str(out))
        (copy / f"watched_{end}.py").write_text(code, encoding="utf-8")
        text = re.sub(pattern, f'{end}app = "watched_{end}:app"', text)
    project.write_text(text, encoding="utf-8")


@contextmanager
def started(
    command: Sequence[str], environment: Mapping[str, str], log: TextIO
) -> Iterator[None]:
    """A command at work, which is ended with all that it has started."""
    process = subprocess.Popen(
        command, env=environment, stdout=log, stderr=log, start_new_session=True
    )
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def free_port() -> int:
    """A port of the loopback that nobody listens at."""
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        port: int = asked.getsockname()[1]
    return port


def wait_for(port: int) -> None:
    """Until somebody listens at a port, a minute at most."""
    for _ in range(120):
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.5)


def compare(
    app: str, run: RunResult, deployed: Sequence[Mapping[str, Any]]
) -> Iterator[Row]:
    """Medians of what was charged beside those of the deployment."""
    spans = run.spans[run.spans["kind"].isin(["training", "evaluation", "query"])]
    for kind, alike in spans.groupby("name"):
        taken = [row["process_s"] for row in deployed if row.get("type") == kind]
        charged_s = float((alike["finished_at_s"] - alike["started_at_s"]).median())
        yield Row(app, str(kind), len(taken), charged_s, statistics.median(taken))
    rounds = [row["round_s"] for row in deployed if "round_s" in row]
    lengths = run.rounds["finished_at_s"] - run.rounds["started_at_s"]
    yield Row(
        app, "round", len(rounds), float(lengths.median()), statistics.median(rounds)
    )


def play_apps(folders: Sequence[Path], nodes: int) -> None:
    """Measure, charge and deploy apps, one after the other, and keep their rows."""
    from simfed.flower.loading import describe

    for folder in folders:
        config = describe(folder, {})[1]
        tell = partial(print, file=sys.stderr, flush=True)
        few = {key: MOST_ROUNDS for key in config if "rounds" in key}
        with tempfile.NamedTemporaryFile(suffix=".work.yaml") as work:
            write_work(measure(folder, nodes=nodes, tell=tell).work, work.name)
            run = charge(folder, nodes, few, Path(work.name))
        tell(f"{folder.name} on {nodes} SuperNodes")
        rows = list(compare(folder.name, run, deploy(folder, nodes, few)))
        write_rows([*(row for row in read_rows() if row.app != folder.name), *rows])


def write_rows(rows: Sequence[Row]) -> None:
    with open(ROWS, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(Row._fields)
        writer.writerows(
            [*row[:3], *(f"{seconds:.4g}" for seconds in row[3:])] for row in rows
        )


def read_rows() -> list[Row]:
    if not ROWS.exists():
        return []
    with open(ROWS, encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))[1:]
    return [
        Row(app, what, int(count), *map(float, seconds))
        for app, what, count, *seconds in rows
    ]


def page_parts() -> dict[str, str]:
    table = [["app", "message", "how many", "charged", "deployed", "charged ×"]]
    for app, what, count, charged_s, deployed_s in read_rows():
        ratio = f"{charged_s / deployed_s:.2f}"
        table.append(
            [
                app,
                what,
                str(count),
                f"{charged_s:.3g} s",
                (f"{deployed_s:.3g} s"),
                ratio,
            ]
        )
    return {"flower-deployed": markdown(table)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    play = commands.add_parser("play")
    play.add_argument("apps", nargs="+", type=Path)
    play.add_argument("--nodes", type=int, default=2)
    commands.add_parser("table")
    asked = parser.parse_args()
    if asked.command == "play":
        play_apps(asked.apps, asked.nodes)
    else:
        write_page("flower_deployed")


if __name__ == "__main__":
    main()
