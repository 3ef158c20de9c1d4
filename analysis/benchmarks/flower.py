"""Federated averaging in simfed and in Flower's simulation: wall time, memory, accuracy.

    python -m venv flower-venv
    flower-venv/bin/pip install "flwr[simulation]" torch
    python analysis/benchmarks/flower.py compare --flower-python flower-venv/bin/python

The task: logistic regression on MNIST (`--dataset mnist-mini` where MNIST is not at hand), 1,000
clients with equal shares, 10 per round, batches of 10, learning rate 0.03, one local epoch, 100
rounds, the test set every 20. Both sides get the same samples, the same split among clients and
the same initial weights from one file, start in a process of their own and use both cores: simfed
with two workers, Flower with as many clients at a time as there are cores. Who is drawn and how
samples are shuffled differs. Wall time counts from the start of the process to its end, imports
included, and of it the rounds alone; memory is the most that all processes of a side held at once,
pages that they share counted once (Linux).

Flower's side is `flower_app.py`, written for speed. Where simfed is installed beside Flower
(`pip install -e ".[flower]"`), a third side is the same app, unmodified, under simfed's clock: each
client on a link of its own, all messages and all work charged.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

CLIENTS, PER_ROUND, ROUNDS, EVERY = 1000, 10, 100, 20
BATCH, RATE = 10, 0.03


# ---- simfed's side -------------------------------------------------------------------------------


def scenario(dataset: str) -> Any:
    """The task as a scenario."""
    from simfed.scenario import Scenario

    return Scenario.model_validate(
        {
            "name": "fedavg",
            "method": "fedavg",
            "rounds": ROUNDS,
            "dataset": {"name": dataset, "public": 0, "partition": {"kind": "iid"}},
            "prototypes": {"only": {"model": "logistic-regression"}},
            "clients": [{"count": CLIENTS, "prototype": "only", "device": "any"}],
            "training": {"batch_size": BATCH, "learning_rate": RATE},
            "compression": {"strategies": ["dense"]},
            "policy": {"kind": "uniform", "strategy": "dense"},
            "participation": {"clients_per_round": PER_ROUND},
            "evaluation": {"every": EVERY},
        }
    )


def write_task(dataset: str, path: Path) -> None:
    """Samples, split and initial weights, for the other side."""
    import numpy as np

    from simfed.learn.data import deal, load_dataset
    from simfed.learn.models import build_model
    from simfed.seeding import Streams

    data, streams = load_dataset(dataset), Streams(0)
    split = deal(data.train_labels, streams, clients=CLIENTS, public=0, kind="iid")
    model = build_model(
        "logistic-regression",
        data.facts.input_shape,
        data.classes,
        seed=streams.integer("init", "only"),
    )
    images, labels = data.train(np.arange(data.facts.train_samples))
    test_images, test_labels = data.test()
    weights = model.state_dict()
    np.savez(
        path,
        images=images.reshape(len(images), -1),
        labels=labels,
        test_images=test_images.reshape(len(test_images), -1),
        test_labels=test_labels,
        owned=np.concatenate(split.clients),
        counts=[len(own) for own in split.clients],
        weight=weights["linear.weight"].numpy(),
        bias=weights["linear.bias"].numpy(),
    )


def play_simfed(dataset: str) -> None:
    """All rounds; prints what there is to know as JSON."""
    from simfed.learn.plain import plain_rounds
    from simfed.learn.workload import LearningWorkload
    from simfed.seeding import Streams

    made, streams = scenario(dataset), Streams(0)
    work = LearningWorkload(made, streams, workers=os.cpu_count() or 1, learns=False)
    begin, accuracy = time.perf_counter(), {}
    for played in plain_rounds(made, work, streams):
        for found in played.outcome.evaluation.values():
            accuracy[played.round] = found.accuracy
    print(json.dumps({"rounds_s": time.perf_counter() - begin, "accuracy": accuracy}))
    work.close()


# ---- Flower's app under simfed's clock ----------------------------------------------------------


def play_bridge(task: str) -> None:
    """All rounds of `flower_app.py`; prints what there is to know as JSON."""
    import flower_app  # beside this file; imports nothing of simfed

    import simfed

    os.environ[flower_app.TASK] = task
    link = {"up": "10 Mbps", "down": "50 Mbps", "latency": "20 ms"}
    fleet = {
        "name": "bridge",
        "clients": [{"count": CLIENTS, "device": "x86-2core-vm", "link": link}],
        "computing": "metered",
    }
    begin = time.perf_counter()
    run = simfed.flower.run(
        flower_app.server_app, flower_app.client_app, fleet, progress=False,
        workers=os.cpu_count() or 1,
    )  # fmt: skip
    took_s = time.perf_counter() - begin
    found = {"rounds_s": took_s, "accuracy": flower_app.accuracy}
    print(json.dumps({**found, "simulated_s": run.summary["simulated_s"]}))


# ---- side by side --------------------------------------------------------------------------------


def measured(command: list[str]) -> dict[str, Any]:
    """Run a side; its last line is JSON. Adds its wall time and the most memory it held."""
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
    importable = {"PYTHONPATH": str(Path(__file__).parent)}  # in Ray's worker processes, too
    begin = time.perf_counter()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, **quiet, **importable}, start_new_session=True,
    )  # fmt: skip
    peak = {"bytes": 0}
    done = threading.Event()
    watch = threading.Thread(target=_watch, args=(process.pid, peak, done))
    watch.start()
    output, errors = process.communicate()
    wall_s = time.perf_counter() - begin
    done.set()
    watch.join()
    if process.returncode:
        raise SystemExit(f"{command} failed:\n{errors[-3000:]}")
    last = [line for line in output.splitlines() if line.startswith("{")][-1]
    return {**json.loads(last), "wall_s": wall_s, "peak_bytes": peak["bytes"]}


def _watch(root: int, peak: dict[str, int], done: threading.Event) -> None:
    while not done.wait(1.0):  # a look takes tens of milliseconds of the cores that are measured
        peak["bytes"] = max(peak["bytes"], _held_bytes(root))


def _held_bytes(session: int) -> int:
    """Proportional memory of all processes of a session, and of Ray's, which leave it."""
    total = 0
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            command = (entry / "cmdline").read_bytes()
            ours = int(stat[3]) == session or b"/ray/" in command or command.startswith(b"ray::")
            if ours and int(entry.name) != os.getpid():
                rollup = (entry / "smaps_rollup").read_text()
                total += 1024 * int(rollup.split("\nPss:")[1].split()[0])
        except (OSError, IndexError):
            continue  # it has ended meanwhile, or is not ours to look at
    return total


def compare(dataset: str, flower_python: str | None) -> None:
    """Both sides, one after the other."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "task.npz"
        write_task(dataset, path)
        here = str(Path(__file__).resolve())
        sides = {"simfed": [sys.executable, here, "simfed", "--dataset", dataset]}
        if flower_python:
            app = str(Path(here).with_name("flower_app.py"))
            sides["Flower"] = [flower_python, app, str(path)]
            if _has_simfed(flower_python):
                sides["bridge"] = [flower_python, here, "bridge", "--task", str(path)]
        results = {name: measured(command) for name, command in sides.items()}
    print(
        f"FedAvg, logistic regression on {dataset}, {CLIENTS} clients, {PER_ROUND} per round, "
        f"{ROUNDS} rounds, {os.cpu_count()} cores"
    )
    for name, found in results.items():
        shown = ", ".join(f"{round}: {value:.4f}" for round, value in found["accuracy"].items())
        print(
            f"  {name:7} {found['wall_s']:7.1f} s, of it the rounds {found['rounds_s']:7.1f} s; "
            f"at most {found['peak_bytes'] / 1e6:6.0f} MB; accuracy after round {shown}"
        )
    for name in ("simfed", "bridge") if "Flower" in results else ():
        if name in results:
            faster = {
                key: results["Flower"][key] / results[name][key] for key in ("wall_s", "rounds_s")
            }
            print(
                f"  {name} is {faster['wall_s']:.1f} × as fast as Flower from start to end, "
                f"{faster['rounds_s']:.1f} × in the rounds"
            )


def _has_simfed(python: str) -> bool:
    return subprocess.run([python, "-c", "import simfed"], capture_output=True).returncode == 0


def main() -> None:
    """Parse and play a side, or both."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("role", choices=["compare", "simfed", "bridge"])
    parser.add_argument("--dataset", default="mnist")
    parser.add_argument("--flower-python", help="the interpreter that has Flower installed")
    parser.add_argument("--task", help="the file of the task, for one side alone")
    arguments = parser.parse_args()
    if arguments.role == "compare":
        compare(arguments.dataset, arguments.flower_python)
    elif arguments.role == "bridge":
        play_bridge(arguments.task)
    else:
        play_simfed(arguments.dataset)


if __name__ == "__main__":
    main()
