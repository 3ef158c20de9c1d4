"""Times the learning side's own functions on this machine: the raw table.

A calibration profile is fitted to it. `MeasurementPlan` says what, `measure` goes
through it, `ModelBench` makes the calls.

What is timed is what a run calls (`simfed.learn.passes`, `losses`, `flat`;
`simfed.compress`): a single client's gradient from the received weights, the
compression of residual + gradient, the server's sparse addition of a payload, the
public logits of a client's model, a distillation step. The model has its right shape,
the samples are random. One call is one row; nothing is averaged here. Cases take turns
in an order that is shuffled anew in every repeat, so a slow minute falls on all of
them; each is called once beforehand, untimed.

A call is made as a round makes it: once, after a rest, with caches that hold other
things by then (`MeasurementPlan.pace_s`; 0: one call after the other, with warm
caches). Training is as many steps in a row as the plan says.

What else runs on the machine should not show. One thread on a CPU is timed by the time
it spent on the processor (`clock: cpu`), anything else by the wall clock. A call during
which the operating system took the processor away is marked as `preempted` and, if it
is short, followed by another.

What is not measured: reading of data, what a server does around these calls, and what a
participation takes beside them (`handling`, `starting`), which only a real client
shows: `simfed.calibrate.from_run` finds it in a deployed run. On CUDA every call is
timed between two synchronisations.
"""

from __future__ import annotations

import contextlib
import csv
import platform
import resource
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import numpy as np
import torch

from simfed.compress import Chain, ErrorFeedback, Payload, codec_from_spec, feedback_for
from simfed.compress.codec import Memory
from simfed.compress.vectors import move_positions
from simfed.device.profile import QUANTITIES, is_value_codec, name_codec
from simfed.device.table import MACHINE_COLUMNS, WORK_COLUMNS
from simfed.ground.cores import most_processes
from simfed.ground.errors import InputError, Interrupted, check_known, listed
from simfed.ground.inputs import MissingFile, read_text
from simfed.ground.registry import registry
from simfed.ground.seeding import Streams
from simfed.ground.version import VERSION
from simfed.ground.writing import writing
from simfed.learn.catalogue import ModelFacts, dataset_facts, facts
from simfed.learn.flat import FlatModel
from simfed.learn.losses import cross_entropy, kl_sum, soft_targets
from simfed.learn.models import build_model
from simfed.learn.objective import Classification
from simfed.learn.passes import choose_passes
from simfed.learn.precision import exact_float32, same_algorithms

_CALL_COLUMNS = ("k", "samples", "steps", "seconds", "clock", "preempted")
COLUMNS = (*WORK_COLUMNS, *_CALL_COLUMNS, *MACHINE_COLUMNS)

_SETTING = ("machine", "cpu", "governor", "device", "threads", "manner")
"""The columns that must not change within one table."""

_ELSEWHERE = "measure into another file"

_TRIES = 3
"""Calls per repeat in the hope of one that is not preempted."""

_SLICE_S = 0.01
"""Longer calls hardly ever have a shared processor to themselves; they are not tried
again."""

_OTHER_THINGS = 48 * 2**20
"""Bytes that caches hold when a round begins: more than most have."""

MEASURED = tuple(name for name in QUANTITIES if name != "auxiliary")
"""The kinds of work that are timed; methods' own work goes by its FLOPs."""
_FILLER = 2
"""Batch of the training that only makes something to compress."""


@dataclass(frozen=True, slots=True)
class MeasuredCase:
    """A quantity, strategy and size whose repeats are timed on this machine.

    The strategy is empty for work that has none; the size is K, a batch or a number of
    samples.
    """

    quantity: str
    strategy: str
    size: int


@dataclass(frozen=True, slots=True)
class MeasurementPlan:
    """The cases to measure, and how calls are made.

    Sizes that a model cannot have (K above d) are left out. `simfed calibrate measure`
    makes it from its options; what is wrong in it is found when `measure` begins.
    Ignored is how work of several models beside each other would slow both down.
    """

    models: tuple[tuple[str, str], ...]
    """(model, data set whose samples it takes)."""
    strategies: tuple[str, ...] = ("top-k", "random-k", "periodic-k")
    """Codecs by label; a name without options stands for all options in the table."""
    ks: tuple[int, ...] = (500, 1000, 2000, 5000, 10_000)
    batches: tuple[int, ...] = (8, 16, 32, 64)
    samples: tuple[int, ...] = (64, 128, 256, 512)
    """Samples of public sets: inference and distillation."""
    quantities: tuple[str, ...] = MEASURED
    repeat: int = 20
    threads: int = 1
    device: str = "cpu"
    pace_s: float = 0.02
    """Rest before each call, after which caches hold other things; 0: neither."""
    steps: int = 1
    """Training steps in a row, of which a measurement is the mean."""

    @property
    def clock(self) -> str:
        """`cpu` where processor time is what the one thread took, else `wall`."""
        return "cpu" if self.device == "cpu" and self.threads == 1 else "wall"

    @property
    def manner(self) -> str:
        """The way calls are made, in words."""
        words = [f"rested {self.pace_s:g} s and cold" if self.pace_s else "in a loop"]
        words += [f"{self.steps} steps in a row"] if self.steps > 1 else []
        return ", ".join(words)

    def cases(self, model: str, dataset: str) -> list[MeasuredCase]:
        """Return all cases of one model, K and sizes ascending within a kind of work.

        Args:
            model: a registered model.
            dataset: whose samples it takes.
        """
        d, buffers = facts(model, dataset).parameters, facts(model, dataset).buffers
        ks = [k for k in sorted(set(self.ks)) if k <= d]
        per_strategy = [
            (name_codec(strategy), k)
            for strategy in self.strategies
            for k in ([d] if is_value_codec(strategy) else ks)
        ]
        sizes = {
            "training": self.batches,
            "private": () if buffers else self.batches,  # refused with batch norm
            "inference": self.samples,
            "distillation": self.samples,
            "evaluation": (min(self.samples), max(self.samples)),
        }  # the rest only a deployment knows
        cases = []
        for quantity in self.quantities:
            plain = [("", size) for size in sorted(set(sizes.get(quantity, ())))]
            pairs = per_strategy if QUANTITIES[quantity].per_strategy else plain
            cases += [
                MeasuredCase(quantity, strategy, size) for strategy, size in pairs
            ]
        return cases

    def left_out(self) -> list[str]:
        """Return a sentence for each model that has fewer entries than some K.

        None where no kind of work of the plan has a K.
        """
        if not any(QUANTITIES[quantity].per_strategy for quantity in self.quantities):
            return []
        sentences = []
        for model, dataset in self.models:
            d = facts(model, dataset).parameters
            above = [f"{k:,}" for k in sorted(set(self.ks)) if k > d]
            if above:
                sentences.append(
                    f"K = {listed(above)} is left out: {model} has {d:,} entries"
                )
        return sentences


def measure(
    plan: MeasurementPlan,
    out: str | Path,
    *,
    progress: Callable[[int, int, str], None] | None = None,
) -> int:
    """Append what is missing of the plan to the CSV table `out`.

    A table that is there goes on where it stopped: cases are repeated until each was
    measured `plan.repeat` times.

    Args:
        plan: what to measure, and how often.
        out: the table; its folder is made.
        progress: told of every repeat of a case: done, in all, what.

    Returns:
        How often a case was measured.

    Raises:
        InputError: names, sizes or devices that do not exist, a plan without a case, a
        table of another machine or setting.
        Interrupted: Ctrl-C; every row so far is in the table.
    """
    _check_plan(plan)
    out = Path(out)
    machine = {**describe_machine(plan.device, plan.threads), "manner": plan.manner}
    todo = _list_missing(plan, _count_measured(out, machine, plan))
    total, new = sum(sum(times.values()) for *_, times in todo), 0
    common = {
        "session": _format_now(),
        "clock": plan.clock,
        **machine,
    }
    threads = torch.get_num_threads()
    torch.set_num_threads(plan.threads)
    try:
        with writing(out):
            out.parent.mkdir(parents=True, exist_ok=True)
            table = open(out, "a", newline="", encoding="utf-8")  # noqa: SIM115
        with table as file:
            writer = csv.DictWriter(file, COLUMNS)
            if file.tell() == 0:
                writer.writeheader()
            for model, dataset, times in todo:
                for case, seconds, preempted, last in _time_cases(
                    plan, model, dataset, times
                ):
                    quantity = case.quantity
                    row = {
                        **common,
                        "quantity": quantity,
                        "model": model,
                        "dataset": dataset,
                        "strategy": case.strategy,
                        "k"
                        if QUANTITIES[quantity].per_strategy
                        else "samples": case.size,
                        "steps": plan.steps
                        if quantity in ("training", "private")
                        else "",
                        "seconds": f"{seconds:.9g}",
                        "preempted": preempted,
                        "measured_at": _format_now(),
                    }
                    with writing(out):
                        writer.writerow(row)
                        file.flush()
                    new += last
                    if last and progress is not None:
                        progress(
                            new, total, f"{model} {quantity} {case.strategy}".rstrip()
                        )
    except KeyboardInterrupt:
        raise Interrupted(
            f"stopped; {new} of {total} measurements are in {out}, and the same "
            "command goes on from there"
        ) from None
    finally:
        torch.set_num_threads(threads)
    return new


def _list_missing(
    plan: MeasurementPlan, done: Counter[_CaseKey]
) -> list[tuple[str, str, dict[MeasuredCase, int]]]:
    """Return models and data sets of a plan, each with repeats that are missing.

    Data sets of one shape are the same work, which is done once.
    """
    missing = []
    for model, dataset in plan.models:
        times = {}
        for case in plan.cases(model, dataset):
            key = model, _find_shape(dataset), case
            if done[key] < plan.repeat:
                times[case] = plan.repeat - done[key]
                done[key] = plan.repeat
        if times:
            missing.append((model, dataset, times))
    return missing


def describe_machine(device: str, threads: int) -> dict[str, str]:
    """Return this machine's description in every row, without any name.

    Args:
        device: `cpu` or `cuda`.
        threads: of PyTorch.

    Returns:
        `MACHINE_COLUMNS`, but for the columns of a row's own time and manner.
    """
    return {
        "machine": f"{platform.system()} {platform.machine()}",
        "cpu": _find_cpu_model(),
        "governor": _read_first_line(
            "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"
        ),
        "device": torch.cuda.get_device_name() if device == "cuda" else device,
        "threads": str(threads),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "simfed": VERSION,
    }


_Shape = tuple[tuple[int, ...], int]
_CaseKey = tuple[str, _Shape, MeasuredCase]
"""The name of a model, the shape of samples and classes, what is timed."""


def _find_shape(dataset: str) -> _Shape:
    """Return the shape of a data set's samples, and its number of classes."""
    sizes = dataset_facts(dataset)
    return sizes.input_shape, sizes.classes


def _check_plan(plan: MeasurementPlan) -> None:
    """Check a plan before anything is timed.

    Raises:
        InputError: it has a name, number or device that cannot be, or no case.
    """
    if plan.device not in ("cpu", "cuda"):
        raise InputError("cpu or cuda", where="--device", got=plan.device)
    if plan.device == "cuda" and not torch.cuda.is_available():
        raise InputError(
            "cpu", where="--device", got="cuda", problem="PyTorch sees no CUDA device"
        )
    counts = {
        "--k": plan.ks,
        "--batch": plan.batches,
        "--samples": plan.samples,
        "--repeat": (plan.repeat,),
        "--threads": (plan.threads,),
        "--steps": (plan.steps,),
    }
    for name, values in counts.items():
        if min(values, default=1) < 1:
            allowed, least = "whole numbers of at least 1", min(values)
            raise InputError(allowed, where=name, got=least)
    if plan.threads > most_processes():
        allowed = f"at most {most_processes()}, a few for each core"
        raise InputError(allowed, where="--threads", got=plan.threads)
    if not 0 <= plan.pace_s < 3600:
        raise InputError("seconds from 0 to 3600", where="--paced", got=plan.pace_s)
    for quantity in plan.quantities:
        check_known(quantity, MEASURED, "kinds of work:", where="--only")
    for strategy in plan.strategies:
        codec_from_spec(strategy, where="--strategies")
    shapes: dict[str, _Shape] = {}
    for model, dataset in plan.models:
        registry("model").get(model, where="--models")
        facts(model, dataset)
        if shapes.setdefault(model, _find_shape(dataset)) != _find_shape(dataset):
            raise InputError(
                "one shape of samples for each model",
                where="--models",
                got=f"{model} on two",
                hint="measure into a table of each",
            )
    left_out = plan.left_out()
    if any(plan.cases(model, dataset) for model, dataset in plan.models):
        return
    if left_out:
        hint = "; ".join(left_out)
        raise InputError(
            "a K that a model has", where="--k", got=min(plan.ks), hint=hint
        )
    allowed, got = "work that one machine can time", listed(plan.quantities)
    hint = "`simfed calibrate fit --from RUN` finds it in a deployed run"
    raise InputError(allowed, where="--only", got=got, hint=hint)


def _count_measured(
    out: Path, machine: dict[str, str], plan: MeasurementPlan
) -> Counter[_CaseKey]:
    """Return how often each case of a model was measured in a table.

    Args:
        out: the table, which need not be there.
        machine: columns that must be the same in every row.
        plan: whose models must have been measured on the same samples.

    Raises:
        InputError: the table is of another machine or setting, or of other samples.
    """
    done: Counter[_CaseKey] = Counter()
    tries: Counter[_CaseKey] = Counter()
    wanted = {model: _find_shape(dataset) for model, dataset in plan.models}
    shapes: dict[str, _Shape] = {}
    for line, row in _read_rows(out):
        for column in _SETTING:
            if row[column] != machine[column]:
                raise InputError(
                    f"a table of this machine and setting ({column} {machine[column]})",
                    where=str(out),
                    got=row[column],
                    hint=_ELSEWHERE,
                )
        try:
            case = MeasuredCase(
                row["quantity"], row["strategy"], int(row["k"] or row["samples"])
            )
            seconds, preempted = float(row["seconds"]), int(row["preempted"])
        except (TypeError, ValueError):
            allowed, where = "a row of `calibrate measure`", f"{out}: line {line}"
            raise InputError(allowed, where=where, problem="cannot be read") from None
        model, dataset = row["model"], row["dataset"]
        if dataset not in shapes:
            # a data set of one's own may not be registered this time
            shapes[dataset] = (), 0
            with contextlib.suppress(InputError):
                shapes[dataset] = _find_shape(dataset)
        if wanted.get(model, shapes[dataset]) != shapes[dataset]:
            raise InputError(
                f"a table of {model} on the same samples",
                where=f"{out}: line {line}",
                got=dataset,
                hint=_ELSEWHERE,
            )
        key = model, shapes[dataset], case
        tries[key] += 1
        if _is_last_attempt(seconds, preempted, tries[key]):
            done[key] += 1
            tries[key] = 0
    return done


def _read_rows(out: Path) -> list[tuple[int, dict[str, str]]]:
    """Return the rows of a table with their line numbers.

    None where there is no table yet.
    """
    try:
        text = read_text(out)
    except MissingFile:
        return []
    rows = csv.DictReader(text.splitlines())
    if text and tuple(rows.fieldnames or ()) != COLUMNS:
        allowed = "a new file, or a table of `calibrate measure`"
        raise InputError(allowed, where=str(out), got=rows.fieldnames)
    return [(rows.line_num, row) for row in rows]


def _is_last_attempt(seconds: float, preempted: int, attempt: int) -> bool:
    """Return whether this attempt ends a repeat, so that no other follows.

    Args:
        seconds: it took.
        preempted: so often the processor was taken away.
        attempt: from 1.
    """
    return preempted == 0 or attempt == _TRIES or seconds > _SLICE_S


def _time_cases(
    plan: MeasurementPlan, model: str, dataset: str, times: dict[MeasuredCase, int]
) -> Iterator[tuple[MeasuredCase, float, int, bool]]:
    """Yield the timed calls of one model, whose cases take turns.

    Args:
        plan: how calls are made.
        model: a registered model.
        dataset: whose samples it takes.
        times: case → repeats that are missing.

    Yields:
        Case, seconds, preemptions, and whether the call ends a repeat.
    """
    bench = ModelBench(model, facts(model, dataset), plan)
    for case in times:
        bench.time(case)
    for repeat in range(max(times.values())):
        left = [case for case, repeats in times.items() if repeats > repeat]
        for i in Streams(repeat)("measure-order", model).permutation(len(left)):
            attempt, last = 0, False
            while not last:
                attempt += 1
                seconds, preempted = bench.time(left[i])
                last = _is_last_attempt(seconds, preempted, attempt)
                yield left[i], seconds, preempted, last


class ModelBench:
    """One model on one device, with all that the learning side's functions need.

    Samples, labels and targets are random, of the right shapes. `prepare` gives the
    call of a case, `time` makes it.
    """

    def __init__(
        self,
        model: str,
        facts: ModelFacts,
        plan: MeasurementPlan,
    ) -> None:
        """Build the model twice, as a server's and as a client's.

        Args:
            model: a registered model.
            facts: its sizes.
            plan: how calls are made; its largest batch and public set bound the
            samples.
        """
        self._plan = plan
        self.clock = time.process_time if plan.clock == "cpu" else time.perf_counter
        self._rng = np.random.default_rng(0)
        draw = torch.Generator().manual_seed(0)
        count, public = max([_FILLER, *plan.batches]), max([1, *plan.samples])
        shape = facts.input_shape
        drawn = (
            torch.randn(count, *shape, generator=draw),
            torch.randint(facts.classes, (count,), generator=draw),
            torch.randn(public, *shape, generator=draw),
            soft_targets(torch.randn(public, facts.classes, generator=draw), 1.0),
        )
        self.samples, self.labels, self._public, self._targets = (
            values.to(plan.device) for values in drawn
        )
        self.server, self.client = (
            FlatModel(build_model(model, shape, facts.classes, seed=0).to(plan.device))
            for _ in range(2)
        )
        self._server_passes = choose_passes(self.server, shape)
        self._client_passes = choose_passes(self.client, shape)
        self.residual = torch.zeros(facts.parameters, device=plan.device)
        self._gradient = torch.zeros_like(self.residual)
        self._players = {
            name_codec(name): feedback_for(codec_from_spec(name))
            for name in plan.strategies
        }
        self._states: dict[str, Memory | None] = {}
        self.other_things = np.zeros(_OTHER_THINGS if plan.pace_s else 0, np.uint8)

    def time(self, case: MeasuredCase) -> tuple[float, int]:
        """Make one call of a case, and return its seconds and preemptions.

        Seconds of training are of one step, of several in a row their mean.
        """
        with exact_float32(), same_algorithms():  # as in a run
            call = self.prepare(case)
            self._wait()
            if self._plan.pace_s:  # caches hold other things afterwards
                self.other_things += 1
                time.sleep(self._plan.pace_s)
            before, begin = _count_preemptions(), self.clock()
            call()
            self._wait()
            seconds = self.clock() - begin
            preempted = _count_preemptions() - before
        if case.quantity in ("training", "private"):
            seconds /= self._plan.steps
        return seconds, preempted

    def prepare(self, case: MeasuredCase) -> Callable[[], object]:
        """Return the call of a case, with all that it needs at hand.

        What comes before the call (a gradient to compress, a payload to add) is done
        here and not timed.
        """
        call: Callable[[], object] = getattr(self, f"_{case.quantity}")(case)
        return call

    # ---- one method per kind of work: prepares a call and returns it -----------------

    def _training(self, case: MeasuredCase) -> Callable[[], object]:
        """Return a call: training from the received weights to the gradient.

        The gradient is added to the residual.
        """
        return self._in_a_row(lambda: self.step(case.size))

    def _private(self, case: MeasuredCase) -> Callable[[], object]:
        """Return a call: training with clipped gradients of samples, and noise."""
        draws = torch.Generator().manual_seed(0)

        def step() -> None:
            loss = self._client_passes.clipped_gradient(
                *self._batch(case.size), Classification(), 1.0, self.residual
            )
            noise = torch.randn(len(self.residual), generator=draws)
            self.residual.add_(noise.to(loss.device), alpha=1e-9)

        return self._in_a_row(step)

    def _in_a_row(self, step: Callable[[], object]) -> Callable[[], object]:
        """Return a call of as many steps as the plan says."""
        return lambda: [step() for _ in range(self._plan.steps)]

    def _compression(self, case: MeasuredCase) -> Callable[[], object]:
        """Return a call: compression of residual and gradient."""
        self.step(_FILLER)
        return lambda: self.encode(case)

    def _decompression(self, case: MeasuredCase) -> Callable[[], object]:
        """Return a call: the server's addition of a payload to its weights."""
        self.step(_FILLER)
        payload = self.encode(case)
        weights, codec = self.server.weights, self._players[case.strategy].codec

        def call() -> None:
            if payload.indices is None:
                weights.add_(codec.decode(payload), alpha=0.0)
                return
            if isinstance(codec, Chain) and codec.values is not None:
                for _ in codec.values.blocks(payload.symbols):
                    pass  # reading them is the work
            weights.index_add_(0, payload.indices, payload.values * 0.0)

        return call

    def _inference(self, case: MeasuredCase) -> Callable[[], object]:
        """Return a call: the logits of the public set."""

        def call() -> torch.Tensor:
            self.client.weights.copy_(self.server.weights)
            return self._client_passes.logits(self._public[: case.size])

        return call

    def _distillation(self, case: MeasuredCase) -> Callable[[], object]:
        """Return a call: one student step on the public set.

        It is loss, gradient and new weights, in parts as a run has them.
        """

        def call() -> None:
            self._gradient.zero_()
            for part in self._server_passes.chunks(0, case.size):
                self._distil(part)
            self.server.weights.sub_(self._gradient, alpha=0.0)

        return call

    def _evaluation(self, case: MeasuredCase) -> Callable[[], object]:
        """Return a call: the test of samples, right answers and the loss."""
        labels = torch.zeros(case.size, dtype=torch.long, device=self._public.device)

        def call() -> None:
            for part in self._server_passes.chunks(0, case.size):
                logits = self._server_passes.logits(self._public[part])
                (
                    (logits.argmax(1) == labels[part]).sum(),
                    cross_entropy(logits, labels[part]),
                )

        return call

    # ---- inside ----------------------------------------------------------------------

    def step(self, batch: int) -> torch.Tensor:
        """Return the residual after one step of a client from the received weights.

        Args:
            batch: samples of the step.
        """
        samples, labels = self._batch(batch)
        return self._client_passes.gradient(
            samples,
            lambda logits: cross_entropy(logits, labels),
            self.residual,
            training=True,
        )

    def _batch(self, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return so many samples and labels of a client that got the weights anew."""
        self.client.weights.copy_(self.server.weights)
        self.client.statistics.copy_(self.server.statistics)
        self.client.reset_counters()
        chosen = self._rng.choice(len(self.labels), size, replace=False)
        positions = move_positions(chosen, self.labels.device)
        return self.samples[positions], self.labels[positions]

    def encode(self, case: MeasuredCase) -> Payload:
        """Return the payload of the residual, which is what is left of it then.

        Args:
            case: its strategy and K; a codec's state goes on from one call to the next.
        """
        player, state = self._players[case.strategy], self._states.get(case.strategy)
        if isinstance(player, ErrorFeedback):
            payload = player.encode_in_place(
                None,
                self.residual,
                case.size,
                self._rng,
                state=state,
                layout=self.server.shapes,
            )
        else:  # as a run does, which may have to go back
            payload, _ = player.codec.encode(
                self.residual, state, self._rng, case.size, layout=self.server.shapes
            )
            self.residual.zero_()
        self._states[case.strategy] = payload.state
        return payload

    def _distil(self, part: slice) -> torch.Tensor:
        return self._server_passes.gradient(
            self._public[part],
            lambda logits: kl_sum(self._targets[part], logits, 1.0),
            self._gradient,
            training=False,
        )

    def _wait(self) -> None:
        if self._plan.device == "cuda":
            torch.cuda.synchronize()


def _count_preemptions() -> int:
    """Return how often the system has taken a processor away from this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def _format_now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def _read_first_line(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()[0].strip()
    except (OSError, IndexError, UnicodeDecodeError):
        return "unknown"


def _find_cpu_model() -> str:
    lines: list[str] = []
    with contextlib.suppress(OSError):  # on other systems than Linux
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    for key in ("model name", "Model", "Hardware"):
        for line in lines:
            if line.startswith(key):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"
