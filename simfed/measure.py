"""Times the learning side's own functions on this machine: the raw table behind a calibration
profile.

What is timed is what a run calls (`simfed.learn.passes`, `losses`, `flat`; `simfed.compress`): a
single client's gradient from the received weights, the compression of residual + gradient, the
server's sparse addition of a payload, the public logits of a client's model, a distillation step.
The model has its right shape, the samples are random. One call is one row; nothing is averaged
here. Cases take turns in an order that is shuffled anew in every repeat, so a slow minute falls on
all of them; each is called once beforehand, untimed.

A call is made as a round makes it: once, after a rest, with caches that hold other things by then
(`Plan.pace_s`; 0: one call after the other, with warm caches). Training is as many steps in a row
as the plan says.

What else runs on the machine should not show, unless the plan asks for it. One thread on a CPU is
timed by the time it spent on the processor (`clock: cpu`), anything else by the wall clock. A call
during which the operating system took the processor away is marked as `preempted` and, if it is
short, followed by another. Under a quota of processor time, or beside other processes of the
plan's, the wall clock counts all that: seconds are then those of a whole processor (wall time times
the quota), so that a scenario's `speed` of that share gives back what was measured.

What is not measured: reading of data, sockets, and what a run does around these calls (drawing
seeds, recording). On CUDA every call is timed between two synchronisations.
"""

from __future__ import annotations

import contextlib
import csv
import multiprocessing
import os
import platform
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch

from simfed.compress import Chain, ErrorFeedback, Payload, codec_from_spec, feedback_for
from simfed.compress.selection import beside
from simfed.cores import cpu_groups, home_group, make_group
from simfed.device.profile import QUANTITIES, codec_key
from simfed.device.table import MACHINE_COLUMNS
from simfed.errors import InputError, Interrupted, listed
from simfed.learn.catalogue import ModelFacts, facts
from simfed.learn.engine import PARTS
from simfed.learn.flat import FlatModel
from simfed.learn.losses import cross_entropy, kl_sum, soft_targets
from simfed.learn.memory import Arena
from simfed.learn.models import build_model
from simfed.learn.parcel import pack, unpack
from simfed.learn.passes import passes_of
from simfed.learn.precision import exact_float32, same_algorithms
from simfed.learn.rehearsal import Rehearsal, rehearsals
from simfed.learn.worker import stretch
from simfed.reading import why_unreadable
from simfed.registry import registry
from simfed.seeding import Streams
from simfed.version import VERSION

__all__ = ["Case", "Plan", "measure", "this_machine"]

COLUMNS = (
    "session",
    "quantity",
    "model",
    "dataset",
    "strategy",
    "k",
    "samples",
    "seconds",
    "clock",
    "preempted",
    *MACHINE_COLUMNS,
)

_LINEAR_ALGEBRA = ("powersgd", "svd")
"""Codecs that call NumPy's."""

_SETTING = ("machine", "cpu", "governor", "device", "threads", "manner")
"""What must not change within one table."""

_TRIES = 3
"""Calls per repeat in the hope of one that is not preempted."""

_SLICE_S = 0.01
"""Longer calls hardly ever have a shared processor to themselves; they are not tried again."""

_OTHER_THINGS = 48 * 2**20
"""Bytes that caches hold when a round begins: more than most have."""

_FILLER = 2
"""Batch of the training that only makes something to compress."""


@dataclass(frozen=True, slots=True)
class Case:
    """One thing to time."""

    quantity: str
    strategy: str
    size: int
    work: str = ""
    """The name of a method's auxiliary work; the table has it in place of the model."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure. Sizes that a model cannot have (K above d) are left out."""

    models: tuple[tuple[str, str], ...]
    """(model, data set whose samples it takes)."""
    strategies: tuple[str, ...] = ("top-k", "random-k", "periodic-k")
    """Codecs by label; a name without options stands for all options in the table."""
    ks: tuple[int, ...] = (500, 1000, 2000, 5000, 10_000)
    batches: tuple[int, ...] = (8, 16, 32, 64)
    samples: tuple[int, ...] = (64, 128, 256, 512)
    """Of public sets: inference and distillation; and of methods' auxiliary work."""
    quantities: tuple[str, ...] = tuple(QUANTITIES)
    repeat: int = 20
    threads: int = 1
    device: str = "cpu"
    pace_s: float = 0.02
    """Rest before each call, after which caches hold other things; 0: neither."""
    steps: int = 1
    """Training steps in a row, of which a measurement is the mean."""
    quota: float | None = None
    """Share of one processor that this process, and each beside it, may use."""
    beside: int = 0
    """Other processes that train meanwhile."""

    @property
    def manner(self) -> str:
        """How calls are made, in words."""
        words = [f"rested {self.pace_s:g} s and cold" if self.pace_s else "in a loop"]
        words += [f"{self.steps} steps in a row"] if self.steps > 1 else []
        words += [f"quota {self.quota:g}"] if self.quota is not None else []
        words += [f"beside {self.beside}"] if self.beside else []
        return ", ".join(words)

    def cases(self, model: str, dataset: str) -> list[Case]:
        """All cases of one model."""
        d = facts(model, dataset).parameters
        ks = [k for k in sorted(set(self.ks)) if k <= d]
        per_strategy = [
            (codec_key(strategy), k)
            for strategy in self.strategies
            for k in ([d] if _writes_all(strategy) else ks)
        ]
        sizes = {
            "training": [("", b) for b in sorted(set(self.batches))],
            "compression": per_strategy,
            "decompression": per_strategy,
            "inference": [("", s) for s in sorted(set(self.samples))],
            "distillation": [("", s) for s in sorted(set(self.samples))],
            "auxiliary": [],
            "handling": [("", 1)],
            "evaluation": [("", s) for s in sorted({min(self.samples), max(self.samples)})],
            "losses": [],  # a wait for others, which only a deployment knows
        }
        found = [Case(q, strategy, x) for q in self.quantities for strategy, x in sizes[q]]
        return found + (self._auxiliary(model, dataset) if "auxiliary" in self.quantities else [])

    def _auxiliary(self, model: str, dataset: str) -> list[Case]:
        """The work of methods beside this model; some of it has no samples, and the size 1."""
        return [
            Case("auxiliary", "", size, name)
            for name, of in rehearsals(model, dataset).items()
            for size in sorted({1, *self.samples})
            if of.method.rehearse(of.setting, name, size) is not None
        ]

    def left_out(self) -> list[str]:
        """A sentence for each model that has fewer entries than some K."""
        if not any(QUANTITIES[quantity].per_strategy for quantity in self.quantities):
            return []
        found = []
        for model, dataset in self.models:
            d = facts(model, dataset).parameters
            above = [f"{k:,}" for k in sorted(set(self.ks)) if k > d]
            if above:
                found.append(f"K = {listed(above)} is left out: {model} has {d:,} entries")
        return found

    def threads_beside(self) -> list[str]:
        """A sentence where NumPy's linear algebra may take other threads than `threads`: how many
        is settled from outside, before Python starts."""
        codecs = [s for s in self.strategies if codec_from_spec(s).name in _LINEAR_ALGEBRA]
        told = {os.environ.get(name) for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")}
        if not codecs or str(self.threads) in told:
            return []
        return [
            f"{listed(codecs)} may be timed with the threads of NumPy's linear algebra, all cores: "
            f"set OPENBLAS_NUM_THREADS={self.threads} before measuring"
        ]


def measure(
    plan: Plan, out: str | Path, *, progress: Callable[[int, int, str], None] | None = None
) -> int:
    """Append what is missing of the plan to the CSV table `out`; how often a case was measured.

    `progress(done, total, what)` is told of every repeat of a case. A table that is there goes on
    where it stopped: cases are repeated until each was measured `plan.repeat` times.
    Raises: `InputError` for names, sizes and devices that do not exist, a plan without a case, and
    a table of another machine or setting; `Interrupted` on Ctrl-C, every row so far being in the
    table.
    """
    _check(plan)
    out = Path(out)
    machine = {**this_machine(plan.device, plan.threads), "manner": plan.manner}
    done = _rows_in(out, machine)
    wanted: dict[tuple[str, Case], tuple[str, str, Case]] = {}
    for model, dataset in plan.models:
        for case in plan.cases(model, dataset):
            wanted.setdefault(_key(model, case), (model, dataset, case))  # work may be alike
    todo = [(*of, plan.repeat - done[key]) for key, of in wanted.items() if done[key] < plan.repeat]
    total = sum(left for _, _, _, left in todo)
    new = 0
    clock = "cpu" if _alone_on_a_cpu(plan) else "wall"
    threads = torch.get_num_threads()
    torch.set_num_threads(plan.threads)
    try:
        with _surroundings(plan), _appending(out) as file:
            writer = csv.DictWriter(file, COLUMNS)
            if file.tell() == 0:
                writer.writeheader()
            session = _now()
            for model, dataset in plan.models:
                mine = {case: left for m, d, case, left in todo if (m, d) == (model, dataset)}
                for case, seconds, preempted, last in _timed(plan, model, dataset, mine):
                    row = {"k" if QUANTITIES[case.quantity].per_strategy else "samples": case.size}
                    writer.writerow(
                        {
                            "session": session,
                            "quantity": case.quantity,
                            "model": case.work or model,
                            "dataset": dataset,
                            "strategy": case.strategy,
                            "seconds": f"{seconds:.9g}",
                            "clock": clock,
                            "preempted": preempted,
                            **row,
                            **machine,
                            "measured_at": _now(),
                        }
                    )
                    file.flush()
                    new += last
                    if last and progress is not None:
                        progress(
                            new,
                            total,
                            f"{case.work or model} {case.quantity} {case.strategy}".rstrip(),
                        )
    except KeyboardInterrupt:
        raise Interrupted(
            f"stopped; {new} of {total} measurements are in {out}, and the same command goes on "
            "from there"
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


def _key(model: str, case: Case) -> tuple[str, Case]:
    """A case as the table knows it."""
    return case.work or model, replace(case, work="")


def _check(plan: Plan) -> None:
    if plan.device not in ("cpu", "cuda"):
        raise InputError("cpu or cuda", where="--device", got=plan.device)
    if plan.device == "cuda" and not torch.cuda.is_available():
        raise InputError("a CUDA device that PyTorch can see", where="--device", got="cuda")
    for name, values in (
        ("--k", plan.ks), ("--batch", plan.batches), ("--samples", plan.samples),
        ("--repeat", (plan.repeat,)), ("--threads", (plan.threads,)), ("--steps", (plan.steps,)),
    ):  # fmt: skip
        for value in values:
            if value < 1:
                raise InputError("whole numbers of at least 1", where=name, got=value)
    if not 0 <= plan.pace_s < 3600:
        raise InputError("seconds from 0 to 3600", where="--paced", got=plan.pace_s)
    if plan.quota is not None and not 0.001 <= plan.quota <= 1:
        raise InputError("a share from 0.001 to 1", where="--quota", got=plan.quota)
    if not 0 <= plan.beside <= 1000:
        raise InputError("a whole number from 0 to 1000", where="--beside", got=plan.beside)
    for quantity in plan.quantities:
        if quantity not in QUANTITIES:
            raise InputError(f"kinds of work: {listed(QUANTITIES)}", where="--only", got=quantity)
    for strategy in plan.strategies:
        codec_from_spec(strategy, where="--strategies")
    for model, dataset in plan.models:
        registry("model").get(model, where="--models")
        facts(model, dataset)
    left_out = plan.left_out()
    if any(plan.cases(model, dataset) for model, dataset in plan.models):
        return
    if left_out:
        raise InputError(
            "a K that a model has", where="--k", got=min(plan.ks), hint="; ".join(left_out)
        )
    raise InputError(
        "work that one machine can time",
        where="--only",
        got=listed(plan.quantities),
        hint="`simfed calibrate fit --from RUN` finds it in a deployed run",
    )


def _writes_all(strategy: str) -> bool:
    """Whether it is a value codec alone: its time depends on d and not on K."""
    codec = codec_from_spec(strategy)
    return isinstance(codec, Chain) and codec.keeps_all and codec.values is not None


def _alone_on_a_cpu(plan: Plan) -> bool:
    """Whether the process's time on processors is the time that its one thread took, and all that
    is asked for."""
    return plan.device == "cpu" and plan.threads == 1 and not _disturbed(plan)


def _disturbed(plan: Plan) -> bool:
    """Whether waiting for the processor is part of what is asked for."""
    return plan.quota is not None or plan.beside > 0


@contextlib.contextmanager
def _surroundings(plan: Plan) -> Iterator[None]:
    """While this process is under the plan's quota, and beside the others that it asks for.
    Raises: `InputError` where there can be no quota."""
    above = cpu_groups() if plan.quota is not None else None
    if plan.quota is not None and above is None:
        raise InputError(
            "a system that gives quotas of processor time", where="--quota",
            got="no cgroup with the `cpu` controller that can be written",
        )  # fmt: skip
    context = multiprocessing.get_context("spawn")
    with contextlib.ExitStack() as stack:

        def limit(process: int) -> None:
            if above is None or plan.quota is None:
                return
            group, home = above / f"simfed-measure-{process}", home_group(above)
            make_group(group, plan.quota, "--quota")
            stack.callback(_empty, group, home)
            (group / "cgroup.procs").write_text(str(process))

        ready = context.Semaphore(0)
        for number in range(plan.beside):
            model, dataset = plan.models[number % len(plan.models)]
            other = context.Process(
                target=_train_for_ever, args=(model, dataset, plan, ready), daemon=True
            )
            other.start()
            stack.callback(_end, other)
            ready.acquire()  # it has loaded all that it needs
            assert other.pid is not None
            limit(other.pid)
        limit(os.getpid())
        yield


def _train_for_ever(model: str, dataset: str, plan: Plan, ready: Any) -> None:
    """What a process beside the measuring one does."""
    torch.set_num_threads(1)
    bench = _Bench(model, facts(model, dataset), replace(plan, device="cpu", strategies=()))
    ready.release()
    while os.getppid() == multiprocessing.parent_process().pid:  # type: ignore[union-attr]
        bench.train(min(plan.batches))


def _end(process: Any) -> None:
    process.kill()
    process.join()


def _empty(group: Path, home: Path) -> None:
    """Remove a group; what is left in it goes back to where it was."""
    for _ in range(100):
        for process in (group / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):
                (home / "cgroup.procs").write_text(process)
        try:
            group.rmdir()
        except OSError:  # the last one is still on its way out
            time.sleep(0.02)
        else:
            return


def _appending(out: Path) -> TextIO:
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        return open(out, "a", newline="", encoding="utf-8")
    except OSError as error:
        raise InputError("a file that can be written", where=str(out), got=error.strerror) from None


def _rows_in(out: Path, machine: dict[str, str]) -> Counter[tuple[str, Case]]:
    """How often each case of a model was measured in a table."""
    done: Counter[tuple[str, Case]] = Counter()
    tries: Counter[tuple[str, Case]] = Counter()
    for line, row in _read(out):
        for column in _SETTING:
            if row[column] != machine[column]:
                raise InputError(
                    f"a table of this machine and setting ({column} {machine[column]})",
                    where=str(out), got=row[column], hint="measure into another file",
                )  # fmt: skip
        try:
            key = (
                row["model"],
                Case(row["quantity"], row["strategy"], int(row["k"] or row["samples"])),
            )
            seconds, preempted = float(row["seconds"]), int(row["preempted"])
        except (TypeError, ValueError):
            raise InputError("a row of `calibrate measure`", where=f"{out}: line {line}") from None
        tries[key] += 1
        if _counts(seconds, preempted, tries[key]):
            done[key] += 1
            tries[key] = 0
    return done


def _read(out: Path) -> list[tuple[int, dict[str, str]]]:
    """The rows of a table with their line numbers; none where there is no table yet."""
    allowed = "a new file, or a table of `calibrate measure`"
    try:
        text = out.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(allowed, where=str(out), got=why_unreadable(error)) from None
    rows = csv.DictReader(text.splitlines())
    if text and tuple(rows.fieldnames or ()) != COLUMNS:
        raise InputError(allowed, where=str(out), got=rows.fieldnames)
    return [(rows.line_num, row) for row in rows]


def _counts(seconds: float, preempted: int, attempt: int) -> bool:
    """Whether this attempt ends a repeat, rather than being followed by another."""
    return preempted == 0 or attempt == _TRIES or seconds > _SLICE_S


def _timed(
    plan: Plan, model: str, dataset: str, todo: dict[Case, int]
) -> Iterator[tuple[Case, float, int, bool]]:
    """(case, seconds, preemptions, whether it counts as a repeat) of one model, cases taking
    turns."""
    if not todo:
        return
    bench = _Bench(model, facts(model, dataset), plan, rehearsals(model, dataset))
    for case in todo:
        bench.time(case)
    for repeat in range(max(todo.values())):
        left = [case for case, times in todo.items() if times > repeat]
        for i in Streams(repeat)("measure-order", model).permutation(len(left)):
            for attempt in range(1, _TRIES + 1):
                seconds, preempted = bench.time(left[i])
                last = _counts(seconds, preempted, attempt)
                yield left[i], seconds, preempted, last
                if last:
                    break


class _Bench:
    """One model on one device, with everything that the learning side's functions need."""

    def __init__(
        self,
        model: str,
        known: ModelFacts,
        plan: Plan,
        rehearsed: Mapping[str, Rehearsal] | None = None,
    ) -> None:
        self._plan = plan
        self._clock = time.process_time if _alone_on_a_cpu(plan) else time.perf_counter
        self._rng = np.random.default_rng(0)
        draw = torch.Generator().manual_seed(0)
        count, public = max([_FILLER, *plan.batches]), max([1, *plan.samples])
        self._samples = torch.randn(count, *known.input_shape, generator=draw).to(plan.device)
        self._labels = torch.randint(known.classes, (count,), generator=draw).to(plan.device)
        self._public = torch.randn(public, *known.input_shape, generator=draw).to(plan.device)
        self._targets = soft_targets(torch.randn(public, known.classes, generator=draw), 1.0).to(
            plan.device
        )
        self._server = self._flat_model(model, known)
        self._client = self._flat_model(model, known)
        self._server_passes = passes_of(self._server, known.input_shape)
        self._client_passes = passes_of(self._client, known.input_shape)
        self._residual = self._zeros(known.parameters)
        self._gradient = self._zeros(known.parameters)
        self._players = {
            codec_key(name): feedback_for(codec_from_spec(name)) for name in plan.strategies
        }
        self._states: dict[str, Any] = {}
        self._rehearsals = rehearsed or {}
        self._others = np.zeros(_OTHER_THINGS if plan.pace_s else 0, np.uint8)

    def time(self, case: Case) -> tuple[float, int]:
        """Make one call of a case: its seconds, and how often it was preempted."""
        with exact_float32(), same_algorithms():  # as in a run
            call: Callable[[], object] = getattr(self, f"_{case.quantity}")(case)
            self._wait()
            if self._plan.pace_s:
                self._others += 1
                time.sleep(self._plan.pace_s)
            before, begin = _preemptions(), self._clock()
            call()
            self._wait()
            seconds = self._clock() - begin
            preempted = 0 if _disturbed(self._plan) else _preemptions() - before
        if case.quantity == "training":
            seconds /= self._plan.steps
        return seconds * (self._plan.quota or 1.0), preempted

    def train(self, batch: int) -> None:
        """One training step."""
        with exact_float32(), same_algorithms():
            self._step(batch)

    # ---- one method per kind of work: prepares a call and returns it -----------------------------

    def _training(self, case: Case) -> Callable[[], object]:
        """From the received weights to the gradient, added to the residual."""

        def call() -> None:
            for _ in range(self._plan.steps):
                self._step(case.size)

        return call

    def _compression(self, case: Case) -> Callable[[], object]:
        """From residual + gradient to the payload."""
        self._step(_FILLER)
        return lambda: self._payload(case)

    def _decompression(self, case: Case) -> Callable[[], object]:
        """One payload's change of the server's weights."""
        self._step(_FILLER)
        payload = self._payload(case)
        weights, codec = self._server.weights, self._players[case.strategy].codec

        def call() -> None:
            if payload.indices is None:
                weights.add_(codec.decode(payload), alpha=0.0)
                return
            if isinstance(codec, Chain) and codec.values is not None:
                for _ in codec.values.blocks(payload.symbols):
                    pass  # reading them is the work
            weights.index_add_(0, payload.indices, payload.values * 0.0)

        return call

    def _inference(self, case: Case) -> Callable[[], object]:
        """Public logits of one client's model, weights included."""

        def call() -> torch.Tensor:
            self._client.weights.copy_(self._server.weights)
            return self._client_passes.logits(self._public[: case.size])

        return call

    def _distillation(self, case: Case) -> Callable[[], object]:
        """One student step on the public set: loss, gradient, new weights."""
        most = 1 if self._plan.device == "cuda" else PARTS
        parts = self._server_passes.parts(case.size, most)  # as in a run

        def call() -> None:
            self._gradient.zero_()
            for number in range(parts):
                for part in self._server_passes.chunks(*stretch(case.size, parts, number)):
                    self._distil(part)
            self._server.weights.sub_(self._gradient, alpha=0.0)

        return call

    def _handling(self, case: Case) -> Callable[[], object]:
        """A model comes as bytes and is taken up, and a gradient goes as bytes."""
        down = {"weights": self._server.weights, "buffers": self._server.statistics}
        sent = pack({}, {name: np.asarray(of.cpu()) for name, of in down.items()})

        def call() -> None:
            _, parts = unpack(sent)
            came = {name: torch.tensor(part) for name, part in parts.items()}
            self._client.weights.copy_(came["weights"])
            self._client.statistics.copy_(came["buffers"])
            pack({}, {"update": np.asarray(self._residual.cpu())})

        return call

    def _evaluation(self, case: Case) -> Callable[[], object]:
        """Right answers and the loss on samples of a test set."""
        labels = torch.zeros(case.size, dtype=torch.long, device=self._public.device)

        def call() -> None:
            for part in self._server_passes.chunks(0, case.size):
                logits = self._server_passes.logits(self._public[part])
                (logits.argmax(1) == labels[part]).sum(), cross_entropy(logits, labels[part])

        return call

    def _auxiliary(self, case: Case) -> Callable[[], object]:
        """One step of a method's own, as it says it is done."""
        of = self._rehearsals[case.work]
        call = of.method.rehearse(of.setting, case.work, case.size)
        assert call is not None
        return call

    # ---- inside ----------------------------------------------------------------------------------

    def _step(self, batch: int) -> torch.Tensor:
        self._client.weights.copy_(self._server.weights)
        self._client.statistics.copy_(self._server.statistics)
        self._client.reset_counters()
        drawn = self._rng.choice(len(self._labels), batch, replace=False)
        positions = beside(drawn, self._labels.device)
        labels = self._labels[positions]
        return self._client_passes.gradient(
            self._samples[positions],
            lambda logits: cross_entropy(logits, labels),
            self._residual,
            training=True,
        )

    def _payload(self, case: Case) -> Payload:
        player, state = self._players[case.strategy], self._states.get(case.strategy)
        if isinstance(player, ErrorFeedback):
            payload = player.encode_in_place(
                None, self._residual, case.size, self._rng, state=state, layout=self._server.shapes
            )
        else:  # as a run does, which may have to go back
            payload, _ = player.codec.encode(
                self._residual, state, self._rng, case.size, layout=self._server.shapes
            )
            self._residual.zero_()
        self._states[case.strategy] = payload.state
        return payload

    def _distil(self, part: slice) -> torch.Tensor:
        def loss(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            value, gradient = kl_sum(self._targets[part], logits, 1.0)
            return value, gradient

        return self._server_passes.gradient(
            self._public[part], loss, self._gradient, training=False
        )

    def _flat_model(self, model: str, known: ModelFacts) -> FlatModel:
        module = build_model(model, known.input_shape, known.classes, seed=0).to(self._plan.device)
        return FlatModel(module, weights=self._zeros(known.parameters))

    def _zeros(self, length: int) -> torch.Tensor:
        # placed in memory as a run's arrays are
        return Arena(shared=False, device=torch.device(self._plan.device)).zeros(length)

    def _wait(self) -> None:
        if self._plan.device == "cuda":
            torch.cuda.synchronize()


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
