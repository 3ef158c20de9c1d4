"""Federated averaging in simfed and in what else simulates it: processor time, wall time, memory.

    python analysis/benchmarks/rivals.py prepare                  # an environment for each other
    python analysis/benchmarks/rivals.py run --job 1 --out one.json
    python analysis/benchmarks/rivals.py run --job 2 --out two.json
    python analysis/benchmarks/rivals.py table one.json two.json

Job 1 is logistic regression, 1,000 clients with 60 images each, batches of 10, 100 rounds; job 2 is
LeNet-5, 100 clients with 600 images each, batches of 32, 10 rounds. Both: MNIST, 10 clients per
round, one local epoch, learning rate 0.03, the test set at the end. All sides read the same images,
the same split among clients and the same first weights from one file, compute in float32 with one
thread per process, and draw clients and order of samples from random numbers of their own.

The sides (`rivals/`, each a program of its own): `simfed` is its learning alone, `simfed run` the
command with clock, network, run directory and pictures, `loop` a plain PyTorch loop; `fedjax`,
`pfl`, `flgo` and `flower` as their documentation has them simulate. `bridge` is Flower's side,
unmodified, under simfed's clock; it has to be asked for, here and in `prepare`.

Sides play in turns. Times of a round are those between the first tenth of the rounds and the last;
start to end is from the start of the process to its end, imports, compiling, reading and the test
included. Processor time is user and system time of all processes of a side. Those that outlive
their parent are read every half second, so up to that is lost at their end. Memory is the most that
all processes held at once at such a look, pages that they share counted once (Linux).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent / "rivals"))
from rival_simfed import scenario
from rival_task import Task, cpu_seconds, read_task, write_task

HERE, ROOT = Path(__file__).resolve().parent, Path(__file__).resolve().parents[2]
TORCH = "torch>=2.4,<2.14"
PACKAGES = {
    "fedjax": ["fedjax==0.0.17", "jax==0.5.3"],
    "pfl": ["pfl==0.6.0", TORCH],
    "flgo": ["flgo==0.4.4", "nvidia-ml-py", TORCH],
    "flower": ["flwr[simulation]==1.41.0", TORCH],
    "bridge": ["-e", str(ROOT)],
}
"""What pip installs for a side; combinations that were seen to work on Python 3.11."""
ENVIRONMENTS = {"bridge": "flower"}
"""Sides that share another's."""
SIDES = ("simfed", "simfed run", "loop", "fedjax", "pfl", "flgo", "flower")
PROGRAMS = {
    "simfed": ["rival_simfed.py"],
    "loop": ["rival_loop.py"],
    "fedjax": ["rival_fedjax.py"],
    "pfl": ["rival_pfl.py"],
    "flgo": ["rival_flgo.py"],
    "flower": ["rival_flower.py"],
    "bridge": ["rival_simfed.py", "bridge"],
}
JOBS: dict[int, dict[str, Any]] = {
    1: {"model": "logistic-regression", "clients": 1000, "batch": 10, "rounds": 100},
    2: {"model": "lenet5", "clients": 100, "batch": 32, "rounds": 10},
}
LOOK_S = 0.5
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "OMP_NUM_THREADS": "1",
    # one thread for XLA as well, as on all other sides
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    "JAX_PLATFORMS": "cpu",
}


def prepare(envs: Path, sides: Sequence[str]) -> None:
    """A virtual environment for each side that needs one."""
    for side in sides:
        if side not in PACKAGES:
            continue
        folder = envs / ENVIRONMENTS.get(side, side)
        if not folder.exists():
            subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        install = [str(folder / "bin/python"), "-m", "pip", "install", "-q", *PACKAGES[side]]
        subprocess.run(install, check=True)
        print(f"{side}: {', '.join(PACKAGES[side])} in {folder}", flush=True)


def make_task(job: int, dataset: str) -> Task:
    """Images, split and first weights as simfed makes them of seed 0."""
    from simfed.ground.seeding import Streams
    from simfed.learn.data import deal, load_dataset
    from simfed.learn.models import build_model

    settings = dict(JOBS[job])
    data, streams = load_dataset(dataset), Streams(0)
    split = deal(data.train_labels, streams, clients=settings.pop("clients"), public=0, kind="iid")
    shape, seed = data.facts.input_shape, streams.integer("init", "only")
    model = build_model(settings["model"], shape, data.classes, seed=seed)
    import numpy as np

    images, labels = data.train(np.arange(data.facts.train_samples))
    test_images, test_labels = data.test()
    return Task(
        **settings,
        per_round=10,
        rate=0.03,
        images=np.asarray(images),
        labels=np.asarray(labels),
        test_images=np.asarray(test_images),
        test_labels=np.asarray(test_labels),
        owned=tuple(split.clients),
        weights={name: value.numpy() for name, value in model.state_dict().items()},
    )


def measured(command: list[str], told: Path | None = None) -> dict[str, Any]:
    """Run a side; what it found is the last line that it printed, or the summary at `told`."""
    importable = {"PYTHONPATH": f"{HERE / 'rivals'}{os.pathsep}{ROOT}"}  # in Ray's workers, too
    begin = time.perf_counter()
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command, stdout=output, stderr=errors, env={**os.environ, **QUIET, **importable}
        )
        watch = Watch(process.pid)
        _, status, used = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - begin
        process.returncode = os.waitstatus_to_exitcode(status)
        peak_bytes, cpu_s = watch.end()
        output.seek(0)
        errors.seek(0)
        if process.returncode:
            raise SystemExit(f"{command} failed:\n{errors.read()[-3000:]}")
        if told is None:
            facts = json.loads([line for line in output if line.startswith("{")][-1])
        else:
            facts = {"accuracy": json.loads(told.read_text())["accuracy"]["mean"]["final"]}
    # the system's account has all that were waited for, the looks all that lived long enough
    cpu_s = max(cpu_s, used.ru_utime + used.ru_stime)
    return {**facts, "wall_s": wall_s, "cpu_s": cpu_s, "peak_bytes": peak_bytes}


class Watch:
    """Looks at a process and its descendants until `end`."""

    def __init__(self, root: int) -> None:
        self._root, self._peak_bytes = root, 0
        self._seen: dict[int, float] = {}
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def end(self) -> tuple[int, float]:
        """The most bytes held at a look; processor seconds as last seen of each process."""
        self._done.set()
        self._thread.join()
        return self._peak_bytes, sum(self._seen.values())

    def _watch(self) -> None:
        while not self._done.wait(LOOK_S):
            family = cpu_seconds(self._root, self._seen.keys())
            self._seen.update(family)
            self._peak_bytes = max(self._peak_bytes, sum(map(_held_bytes, family)))


def _held_bytes(pid: int) -> int:
    """Proportional memory of a process."""
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        return 1024 * int(rollup.split("\nPss:")[1].split()[0])
    except (OSError, IndexError):
        return 0  # it has ended meanwhile


def play(side: str, path: Path, dataset: str, envs: Path) -> dict[str, Any]:
    if side == "simfed run":
        folder = Path(tempfile.mkdtemp(dir=path.parent))
        described, out = folder / "rival.yaml", folder / "run"
        described.write_text(json.dumps(scenario(read_task(path), dataset)))  # JSON is YAML
        command = [sys.executable, "-m", "simfed", "run", str(described), "--out", str(out)]
        return measured([*command, "--workers", "1", "--quiet"], out / "summary.json")
    python = sys.executable
    if side in PACKAGES:
        python = str((envs / ENVIRONMENTS.get(side, side) / "bin/python").absolute())
    program, *rest = PROGRAMS[side]
    rest = [dataset] if side == "simfed" else rest
    return measured([python, str(HERE / "rivals" / program), str(path), *rest])


def run(job: int, sides: Sequence[str], repeats: int, dataset: str, envs: Path, out: Path) -> None:
    """All sides in turn, so many times; every other turn backwards. Adds to what `out` has."""
    results = json.loads(out.read_text()) if out.exists() else {"job": job, "runs": []}
    if results["job"] != job:
        raise SystemExit(f"{out}: has job {results['job']}, not {job}")
    first = 1 + max((entry["turn"] for entry in results["runs"]), default=0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "task.npz"
        write_task(path, make_task(job, dataset))
        for turn in range(first, first + repeats):
            for side in sides if turn % 2 else reversed(sides):
                row = {"side": side, "turn": turn, "load": os.getloadavg()[0]}
                row.update(play(side, path, dataset, envs))
                results.update(machine=machine(), dataset=dataset)
                results["runs"].append(row)
                out.write_text(json.dumps(results, indent=1) + "\n")
                print(f"  {turn} {shown(row)}", flush=True)
    print(table(results))


def machine() -> dict[str, Any]:
    models = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return {
        "date": datetime.now(timezone.utc).date().isoformat(),
        "processor": models[0] if models else "unknown",
        "cores": os.cpu_count(),
    }


def shown(row: Mapping[str, Any]) -> str:
    """A run in a line."""
    pace = f"{row['round_cpu_s'] * 1e3:.1f} ms per round, " if "round_cpu_s" in row else ""
    return (
        f"{row['side']}: {pace}{row['cpu_s']:.1f} s of processor time and "
        f"{row['wall_s']:.1f} s from start to end, {row['peak_bytes'] / 1e6:.0f} MB, "
        f"accuracy {row['accuracy']:.4f}, load {row['load']:.1f}"
    )


def table(results: Mapping[str, Any]) -> str:
    """The medians of a job's runs as Markdown, with the least and the most of the main figures.

    A ratio is the median over the turns of a side's time by that of `simfed` in the same turn.
    """
    runs: dict[str, list[Mapping[str, Any]]] = {}
    for row in results["runs"]:
        runs.setdefault(row["side"], []).append(row)
    base = {run["turn"]: run for run in runs.get("simfed", [])}
    rows = [
        "| | processor time per round | × simfed | wall time per round | processor time, start to "
        "end | × simfed | wall time, start to end | memory at most | accuracy |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for side, all_of in sorted(runs.items(), key=_by_whole):
        cells = [
            _spread(all_of, "round_cpu_s", 1e3, "ms"),
            _ratio(all_of, base, "round_cpu_s"),
            _spread(all_of, "round_wall_s", 1e3, "ms"),
            _spread(all_of, "cpu_s", 1, "s"),
            _ratio(all_of, base, "cpu_s"),
            _spread(all_of, "wall_s", 1, "s"),
            f"{statistics.median(run['peak_bytes'] for run in all_of) / 1e9:.1f} GB",
            _accuracies(all_of),
        ]
        rows.append(f"| {side} | {' | '.join(cells)} |")
    loads = [run["load"] for run in results["runs"]]
    versions = {
        name: number for run in results["runs"] for name, number in run.get("versions", {}).items()
    }
    made, turns = results["machine"], max(len(all_of) for all_of in runs.values())
    return (
        f"Job {results['job']}, {results['dataset']}, {made['date']}, {made['processor']}, "
        f"{made['cores']} cores, load {min(loads):.1f} to {max(loads):.1f}, {turns} turn(s); "
        f"{', '.join(f'{name} {number}' for name, number in sorted(versions.items()))}.\n\n"
        + "\n".join(rows)
        + "\n"
    )


def _by_whole(item: tuple[str, list[Mapping[str, Any]]]) -> float:
    return statistics.median(run["cpu_s"] for run in item[1])


def _spread(runs: Sequence[Mapping[str, Any]], key: str, scale: float, unit: str) -> str:
    values = [scale * run[key] for run in runs if key in run]
    if not values:
        return "–"
    low, middle, high = (_short(run(values)) for run in (min, statistics.median, max))
    return f"{middle} {unit} ({low}–{high})" if len(values) > 1 else f"{middle} {unit}"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _ratio(
    runs: Sequence[Mapping[str, Any]], base: Mapping[int, Mapping[str, Any]], key: str
) -> str:
    pairs = [of[key] / base[of["turn"]][key] for of in runs if key in of and of["turn"] in base]
    return f"{statistics.median(pairs):.2f}" if pairs else "–"


def _accuracies(runs: Sequence[Mapping[str, Any]]) -> str:
    percentages = [100 * run["accuracy"] for run in runs]
    low, high = min(percentages), max(percentages)
    return f"{low:.1f} %" if high - low < 0.05 else f"{low:.1f}–{high:.1f} %"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--envs", type=Path, default=Path("rivals-envs"))
    commands = parser.add_subparsers(dest="command", required=True)
    preparing = commands.add_parser("prepare", help="make the environments")
    running = commands.add_parser("run", help="all sides of a job in turn")
    showing = commands.add_parser("table", help="Markdown of what was measured")
    for sub in (preparing, running):
        sub.add_argument("--sides", nargs="+", choices=[*SIDES, "bridge"], default=list(SIDES))
    running.add_argument("--job", type=int, choices=list(JOBS), required=True)
    running.add_argument("--repeats", type=int, default=3)
    running.add_argument("--dataset", default="mnist")
    running.add_argument("--out", type=Path, required=True, help="adds to what it has")
    showing.add_argument("files", type=Path, nargs="+")
    given = parser.parse_args()
    if given.command == "prepare":
        prepare(given.envs, given.sides)
    elif given.command == "run":
        run(given.job, given.sides, given.repeats, given.dataset, given.envs, given.out)
    else:
        for path in given.files:
            print(table(json.loads(path.read_text())))


if __name__ == "__main__":
    main()
