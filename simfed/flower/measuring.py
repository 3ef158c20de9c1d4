"""Measures an app on this machine: the laws of its messages.

The app is played a few times over a fleet without links' limits, under the simulated
clock and with the work really done (`simfed.flower.forge`), with sizes that tell how
its messages grow (`simfed.flower.probing`). What is measured is processor time,
children's included. What is ignored: memory that runs out, GPUs, what several nodes on
one machine do to each other.
"""

from __future__ import annotations

import csv
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from simfed.flower.forge import Forge, run_python
from simfed.flower.laws import MessageRow, estimate_repeat_error, fit_kinds
from simfed.flower.probing import NodeGroup, PlayLog, Tell, list_numbers, probe
from simfed.flower.versions import flower_version
from simfed.flower.workfile import Kernel, WorkFile, round_number
from simfed.ground.errors import InputError, RunFailed, check_known
from simfed.ground.plain import Plain
from simfed.record.digest import digest_folder
from simfed.scenario.fleet_file import FleetFile

NODES = 4
"""The nodes of the smallest play, where neither the command nor the app says a number.
"""


@dataclass(frozen=True, slots=True)
class MeasuredApp:
    """The work file of an app, and the timed messages that it was fitted to."""

    work: WorkFile
    rows: list[MessageRow]


def measure(
    app: str | Path,
    *,
    overrides: Mapping[str, Plain] | None = None,
    nodes: int | None = None,
    fleet: FleetFile | None = None,
    sizes: Sequence[str] | None = None,
    tell: Tell = lambda line: None,
) -> MeasuredApp:
    """Play the app in a folder and fit laws of what its messages take.

    Args:
        app: the app's folder.
        overrides: settings of the run's configuration in place of the app's own.
        nodes: of the smallest play; half of them should still be an app's least. None:
        as the app's `num-supernodes`, or `NODES`.
        fleet: whose nodes' configuration the plays' nodes have; None: they have none.
        sizes: the numbers to vary, in place of all that configurations have.
        tell: gets a line before every play.

    Returns:
        The work file, and the messages that its laws were fitted to.

    Raises:
        InputError: the folder is no app, or does not have such sizes.
        RunFailed: the first play failed, or the app does not run with two sizes.
    """
    flower_version()
    folder, overrides = Path(app), dict(overrides or {})
    if nodes is not None and nodes < 1:
        raise InputError("at least 1 node", where="--nodes", got=nodes)
    from simfed.flower.loading import describe, read_stated_nodes

    components, config = describe(folder, overrides)
    groups = [NodeGroup(1, {})]
    if fleet is not None:
        groups = [NodeGroup(group.count, group.node_config) for group in fleet.clients]
    numbers = list_numbers(config, groups)
    for size in sizes or ():
        names = [name for name, _ in numbers]
        what = "a number of the app's or its nodes' configuration:"
        check_known(size, names, what, where="--sizes")
    if sizes is not None:  # what a first play lowers is varied all the same
        numbers = [(n, of) for n, of in numbers if n in sizes or "round" in n.lower()]
    smallest = max(nodes or min(read_stated_nodes(folder), default=NODES), len(groups))
    with Forge(folder) as forge:
        plays = PlayLog(forge, folder, config, tell)
        settings = probe(plays, smallest, overrides, groups, numbers)
        rows = plays.all_rows()
        laws = fit_kinds(rows, [spot.changes for spot in plays.spots])
        kinds = list(plays.count(laws))
    done = [plays.spots[number] for number in plays.repeats]
    left_out = [
        f"{plays.spots[number].changes}: {why}" for number, why in plays.failed.items()
    ]
    if len(done) < 2:
        why = "; ".join(left_out)
        raise RunFailed(
            f"one size does not tell what grows, and no other one runs: {why}"
        )
    tell("the kernel, a gradient of lenet5")
    kernel, machine = time_kernel()
    tell("imports of the client app")
    imports_s = _time_imports(components["clientapp"], folder)
    work = WorkFile(
        app=folder.resolve().name,
        digest=digest_folder(folder, "*.py"),
        machine=machine,
        kernel=kernel,
        imports=round_number(imports_s),
        run_config=_list_values([{**config, **spot.settings} for spot in done]),
        node_config=_list_values(
            [group.node_config for spot in done for group in spot.groups]
        ),
        settings=settings,
        nodes=sorted({spot.nodes for spot in done}),
        repeats=sum(plays.repeats.values()),
        busy=round_number(estimate_repeat_error(rows)),
        left_out=left_out,
        kinds=kinds,
    )
    return MeasuredApp(work, rows)


def _list_values(configs: Sequence[Mapping[str, Plain]]) -> dict[str, list[Plain]]:
    """Return every value that each setting had in plays, as they came."""
    values: dict[str, dict[Plain, None]] = defaultdict(dict)
    for config in configs:
        for name, value in config.items():
            values[name][value] = None
    return {name: list(seen) for name, seen in values.items()}


# ---- what is beside the plays --------------------------------------------------------


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
    """Return processor seconds of a new process until the client app is there.

    It is as a SuperNode starts it, after plays that have filled the disk's cache. 0
    where the import fails.
    """
    done = run_python(_IMPORTS, reference, str(folder.resolve()))
    with suppress(ValueError, IndexError):
        return float(done.stdout.strip().splitlines()[-1])
    return 0.0


_KERNEL = """
import sys
from simfed.calibrate.measure import MeasurementPlan, measure
plan = MeasurementPlan((("lenet5", "mnist-mini"),), batches=(32,), \
quantities=("training",))
measure(plan, sys.argv[1])
"""


def time_kernel() -> tuple[Kernel, dict[str, str]]:
    """Return the kernel's median on this machine, and the machine's description.

    It is measured as profiles are, in a new process.

    Raises:
        RunFailed: it could not be timed.
    """
    from simfed.learn.catalogue import model_facts

    with tempfile.TemporaryDirectory(prefix="simfed-") as folder:
        table = Path(folder) / "kernel.csv"
        done = run_python(_KERNEL, str(table))
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["it gave no answer"])[-1]
            raise RunFailed(f"the kernel could not be timed: {last}")
        with open(table, encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    facts = model_facts("lenet5", (1, 28, 28), 10)
    kernel = Kernel(
        parameters=facts.parameters,
        flops=facts.train_flops,
        seconds=round_number(statistics.median(float(row["seconds"]) for row in rows)),
    )
    columns = ("machine", "cpu", "threads", "python", "torch", "numpy", "simfed")
    return kernel, {
        **{name: rows[0][name] for name in columns},
        "flwr": flower_version(),
    }
