"""Times the learning side's own functions on this machine: the raw table behind a calibration profile.

What is timed is what a run calls: a `Worker`'s units (local training and compression of one client,
public logits of its model, the parts of one distillation step) and the server's sparse addition,
on a model of the right shape with random samples. One call is one row; nothing is averaged here.
Cases take turns in an order that is shuffled anew in every repeat, so a slow minute falls on all
of them; each is called once beforehand, untimed. A call during which the operating system took the
processor away is marked as `preempted` and followed by another: it shows what else ran, not how
fast the device is.

What is not measured: the reading of data, evaluation, and what a client would do besides. On CUDA
every call is timed between two synchronisations.
"""

from __future__ import annotations

import contextlib
import csv
import platform
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import torch

from simfed.device.profile import QUANTITIES
from simfed.device.table import MACHINE_COLUMNS
from simfed.errors import InputError, Interrupted, listed
from simfed.learn.catalogue import ModelFacts, facts
from simfed.learn.engine import PARTS
from simfed.learn.losses import soft_targets
from simfed.learn.memory import Arena
from simfed.learn.models import build_model
from simfed.learn.prototype import Prototype
from simfed.learn.worker import Distil, Knowledge, Send, Worker
from simfed.registry import registry
from simfed.scenario import Scenario
from simfed.seeding import Streams
from simfed.version import VERSION

__all__ = ["Case", "Plan", "measure", "this_machine"]

COLUMNS = ("session", "quantity", "model", "dataset", "strategy", "k", "samples", "seconds", "preempted", *MACHINE_COLUMNS)  # fmt: skip

_SETTING = ("machine", "cpu", "governor", "device", "threads")
"""What must not change within one table."""

_TRIES = 3
"""Calls per repeat in the hope of one that is not preempted."""

_FILLER = 2
"""Samples of the client whose training only precedes a compression."""


@dataclass(frozen=True, slots=True)
class Case:
    """One thing to time."""

    quantity: str
    strategy: str
    size: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure. Sizes that a model cannot have (K above d) are left out."""

    models: tuple[tuple[str, str], ...]
    """(model, data set whose samples it takes)."""
    strategies: tuple[str, ...] = ("top-k", "random-k", "periodic-k")
    ks: tuple[int, ...] = (500, 1000, 2000, 5000, 10_000)
    batches: tuple[int, ...] = (8, 16, 32, 64)
    samples: tuple[int, ...] = (64, 128, 256, 512)
    """Of public sets: inference and distillation."""
    quantities: tuple[str, ...] = tuple(QUANTITIES)
    repeat: int = 20
    threads: int = 1
    device: str = "cpu"

    def cases(self, model: str, dataset: str) -> list[Case]:
        """All cases of one model."""
        d = facts(model, dataset).parameters
        ks = [k for k in sorted(set(self.ks)) if k <= d]
        per_strategy = [(strategy, k) for strategy in self.strategies for k in ks]
        sizes = {
            "training": [("", b) for b in sorted(set(self.batches))],
            "compression": per_strategy,
            "decompression": per_strategy,
            "inference": [("", s) for s in sorted(set(self.samples))],
            "distillation": [("", s) for s in sorted(set(self.samples))],
        }
        return [Case(q, strategy, x) for q in self.quantities for strategy, x in sizes[q]]


def measure(
    plan: Plan, out: str | Path, *, progress: Callable[[int, int, str], None] | None = None
) -> int:
    """Append what is missing of the plan to the CSV table `out`; how often a case was measured.

    `progress(done, total, what)` is told of every repeat of a case. A table that is there goes on where it
    stopped: cases are repeated until each was measured `plan.repeat` times.
    Raises: `InputError` for names, sizes and devices that do not exist, and for a table of another
    machine or setting; `Interrupted` on Ctrl-C, every row so far being in the table.
    """
    _check(plan)
    out = Path(out)
    machine = this_machine(plan.device, plan.threads)
    done = _rows_in(out, machine)
    todo = [
        (model, dataset, case, plan.repeat - done[model, case])
        for model, dataset in plan.models
        for case in plan.cases(model, dataset)
        if done[model, case] < plan.repeat
    ]
    total = sum(left for _, _, _, left in todo)
    new = 0
    out.parent.mkdir(parents=True, exist_ok=True)
    threads = torch.get_num_threads()
    torch.set_num_threads(plan.threads)
    try:
        with open(out, "a", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS)
            if file.tell() == 0:
                writer.writeheader()
            session = _now()
            for model, dataset in plan.models:
                mine = {case: left for m, d, case, left in todo if (m, d) == (model, dataset)}
                for case, seconds, preempted, last in _timed(plan, model, dataset, mine):
                    row = {"k" if QUANTITIES[case.quantity].per_strategy else "samples": case.size}
                    writer.writerow({
                        "session": session, "quantity": case.quantity, "model": model,
                        "dataset": dataset, "strategy": case.strategy, "seconds": f"{seconds:.9g}",
                        "preempted": preempted, **row, **machine, "measured_at": _now(),
                    })  # fmt: skip
                    file.flush()
                    new += last
                    if last and progress is not None:
                        progress(new, total, f"{model} {case.quantity} {case.strategy}".rstrip())
    except KeyboardInterrupt:
        raise Interrupted(
            f"stopped; {new} of {total} measurements are in {out}, and the same command goes on from there"
        ) from None
    finally:
        torch.set_num_threads(threads)
    return new


def this_machine(device: str, threads: int) -> dict[str, str]:
    """What describes this machine in every row; no name of it and nobody's."""
    return {
        "machine": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu_model(),
        "governor": _first_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "device": torch.cuda.get_device_name() if device == "cuda" else device,
        "threads": str(threads),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "simfed": VERSION,
    }


def _check(plan: Plan) -> None:
    if plan.device not in ("cpu", "cuda"):
        raise InputError("cpu or cuda", where="--device", got=plan.device)
    if plan.device == "cuda" and not torch.cuda.is_available():
        raise InputError("a CUDA device that PyTorch can see", where="--device", got="cuda")
    for name, values in (
        ("--k", plan.ks), ("--batch", plan.batches), ("--samples", plan.samples),
        ("--repeat", (plan.repeat,)), ("--threads", (plan.threads,)),
    ):  # fmt: skip
        for value in values:
            if value < 1:
                raise InputError("whole numbers of at least 1", where=name, got=value)
    for quantity in plan.quantities:
        if quantity not in QUANTITIES:
            raise InputError(f"kinds of work: {listed(QUANTITIES)}", where="--only", got=quantity)
    for strategy in plan.strategies:
        registry("compressor").get(strategy, where="--strategies")
    for model, dataset in plan.models:
        registry("model").get(model, where="--models")
        facts(model, dataset)


def _rows_in(out: Path, machine: dict[str, str]) -> Counter[tuple[str, Case]]:
    """How often each case of a model was measured in a table: a call that was not preempted, or
    `_TRIES` that were."""
    done: Counter[tuple[str, Case]] = Counter()
    tries: Counter[tuple[str, Case]] = Counter()
    if not out.exists() or out.stat().st_size == 0:
        return done
    with open(out, newline="", encoding="utf-8") as file:
        rows = csv.DictReader(file)
        if tuple(rows.fieldnames or ()) != COLUMNS:
            raise InputError("a new file, or a table of `calibrate measure`", where=str(out), got=rows.fieldnames)  # fmt: skip
        for row in rows:
            for column in _SETTING:
                if row[column] != machine[column]:
                    raise InputError(
                        f"a table of this machine and setting ({column} {machine[column]})",
                        where=str(out), got=row[column], hint="measure into another file",
                    )  # fmt: skip
            size = int(row["k"] or row["samples"])
            key = (row["model"], Case(row["quantity"], row["strategy"], size))
            tries[key] += 1
            if row["preempted"] == "0" or tries[key] == _TRIES:
                done[key] += 1
                tries[key] = 0
    return done


def _timed(
    plan: Plan, model: str, dataset: str, todo: dict[Case, int]
) -> Iterator[tuple[Case, float, int, bool]]:
    """(case, seconds, preemptions, whether it counts as a repeat) of one model, cases taking turns."""
    if not todo:
        return
    bench = _Bench(model, facts(model, dataset), dataset, plan)
    for case in todo:
        bench.time(case)
    for repeat in range(max(todo.values())):
        left = [case for case, times in todo.items() if times > repeat]
        for i in Streams(repeat)("measure-order", model).permutation(len(left)):
            for attempt in range(1, _TRIES + 1):
                seconds, preempted = bench.time(left[i])
                last = preempted == 0 or attempt == _TRIES
                yield left[i], seconds, preempted, last
                if last:
                    break


class _Bench:
    """One model on one device, ready to be timed through a worker's units."""

    def __init__(self, model: str, known: ModelFacts, dataset: str, plan: Plan) -> None:
        self._plan = plan
        batches = [_FILLER, *plan.batches]
        self._clients = {size: client for client, size in enumerate(batches)}
        largest = max(plan.samples)
        self._data = _Samples(known, batches, largest, plan.device)
        scenario = Scenario.model_validate(
            {
                "name": "measure",
                "rounds": 1,
                "dataset": {"name": dataset, "public": largest},
                "prototypes": {"p": {"model": model}},
                "clients": [{"count": len(batches), "prototype": "p", "device": "this-one"}],
                "training": {"batch_size": max(batches)},
            }
        )
        arena = Arena(shared=False) if plan.device == "cpu" else _DeviceArena(plan.device)
        self._prototype = Prototype(
            "p",
            lambda: build_model(model, known.input_shape, known.classes, seed=0).to(plan.device),
            np.arange(len(batches)),
            arena,  # type: ignore[arg-type]
            k=max([*plan.ks, 1]),
            public=largest,
            classes=known.classes,
            parts=PARTS,
        )
        self._spent: defaultdict[str, tuple[float, int]] = defaultdict(lambda: (0.0, 0))
        self._memories: dict[str, Any] = {}
        self._round = 0
        self._workers = {
            size: self._worker(scenario, self._data.with_public(size), arena)
            for size in plan.samples
        }

    def time(self, case: Case) -> tuple[float, int]:
        """Make one call of a case: its seconds, and how often it was preempted."""
        self._round += 1
        self._spent.clear()
        return getattr(self, f"_{case.quantity}")(case)  # type: ignore[no-any-return]

    # ---- one method per kind of work -------------------------------------------------------------

    def _training(self, case: Case) -> tuple[float, int]:
        self._send(self._clients[case.size], "random-k", 1)
        return self._spent["gradients"]

    def _compression(self, case: Case) -> tuple[float, int]:
        self._send(self._clients[_FILLER], case.strategy, case.size)
        return self._spent["compression"]

    def _decompression(self, case: Case) -> tuple[float, int]:
        client = self._clients[_FILLER]
        entries = self._send(client, case.strategy, case.size)
        with self._spending("average"):  # as the server adds what arrived to the weights
            indices, values = self._prototype.sent(client, entries)
            self._prototype.server.weights.index_add_(0, indices, values * 0.0)
        return self._spent["average"]

    def _inference(self, case: Case) -> tuple[float, int]:
        # a client's payload makes its model of the server's; K as the first of the plan
        unit = Knowledge(self._clients[_FILLER], self._round, min(self._plan.ks, default=1), 0.0)
        self._workers[case.size].knowledge(unit)
        return self._spent["logits"]

    def _distillation(self, case: Case) -> tuple[float, int]:
        worker = self._workers[case.size]
        logits = self._prototype.logits[0, : case.size]
        worker.targets.copy_(soft_targets(logits, 1.0))
        for part in range(PARTS):
            worker.distil(Distil("p", part, self._round))
        with self._spending("distillation"):
            for gradient in self._prototype.gradients:
                self._prototype.server.weights.sub_(gradient, alpha=0.0)
        return self._spent["distillation"]

    # ---- inside ----------------------------------------------------------------------------------

    def _send(self, client: int, strategy: str, k: int) -> int:
        """One client's training and compression; the number of entries kept."""
        memory = self._memories.get(strategy)
        unit = Send(client, self._round, strategy, k, memory, 0.02, 0.0, False, False)
        sent = next(iter(self._workers.values())).send(unit)
        self._memories[strategy] = sent.memory
        self._prototype.moved()  # as after a merge: the next client starts from new weights
        return sent.entries

    def _worker(self, scenario: Scenario, data: _Samples, arena: Any) -> Worker:
        worker = Worker(
            scenario, Streams(0), data, {"p": self._prototype}, arena, processes=1, parts=PARTS  # type: ignore[arg-type]
        )  # fmt: skip
        worker._spending = self._spending  # type: ignore[method-assign]  # its own clock does not wait for CUDA
        return worker

    @contextlib.contextmanager
    def _spending(self, activity: str) -> Iterator[None]:
        seconds, preempted = self._spent[activity]
        self._wait()
        before, begin = _preemptions(), time.perf_counter()
        yield
        self._wait()
        seconds += time.perf_counter() - begin
        self._spent[activity] = (seconds, preempted + _preemptions() - before)

    def _wait(self) -> None:
        if self._plan.device == "cuda":
            torch.cuda.synchronize()


class _Samples:
    """Random samples in the place of a run's data: client i owns as many as the i-th of `owned`."""

    def __init__(self, known: ModelFacts, owned: Sequence[int], public: int, device: str) -> None:
        draw = torch.Generator().manual_seed(0)
        count = max(owned)
        self.owned = [np.arange(n) for n in owned]
        self.classes, self.input_shape = known.classes, known.input_shape
        self.labels = torch.randint(known.classes, (count,), generator=draw).to(device)
        self._samples = torch.randn(count, *known.input_shape, generator=draw).to(device)
        self.public = torch.randn(public, *known.input_shape, generator=draw).to(device)

    def samples(self, positions: torch.Tensor) -> torch.Tensor:
        return self._samples[positions]

    def with_public(self, count: int) -> _Samples:
        """The same with the first `count` public samples."""
        fewer = object.__new__(_Samples)
        fewer.__dict__ = {**self.__dict__, "public": self.public[:count]}
        return fewer


class _DeviceArena:
    """Zeroed tensors on a device."""

    def __init__(self, device: str) -> None:
        self._device = device

    def zeros(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, device=self._device)


def _preemptions() -> int:
    """How often the operating system has taken a processor away from this process."""
    try:
        import resource
    except ImportError:  # not on Windows; every call then passes for undisturbed
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def _first_line(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()[0].strip()
    except (OSError, IndexError, UnicodeDecodeError):
        return "unknown"


def _cpu_model() -> str:
    if sys.platform == "linux":
        try:
            text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        except OSError:
            text = ""
        for key in ("model name", "Model", "Hardware"):
            for line in text.splitlines():
                if line.startswith(key):
                    return line.partition(":")[2].strip()
    return platform.processor() or "unknown"
