"""How fast the learning engine is, beside a textbook loop, in one process.

    python analysis/benchmarks/learning.py …
        mnist                       # 10 clients, LeNets, ASCEND
        cifar                       # 10 clients, residual networks (an hour)
        cifar --quarter --rounds 5  # of the samples: minutes
        cifar --device cuda         # the same on a GPU; mnist as well
        options                     # what public_batch does to accuracy
        accuracy                    # of both after 1,000 rounds, five seeds
        memory                      # 1,000 clients, 50 per round, 500 rounds
        fedavg                      # logistic regression, 1,000 clients
        fedavg --model lenet5       # 100 clients, batch 32

The textbook loop is the one the tests compare the engine with
(`tests/learn/reference_loop.py`): ordinary modules, one client after another,
`torch.topk`, public images in batches of 128. Loop and engine play rounds in turn, so
that both meet the same machine; the loop plays with one and with two threads and is
credited with the better. Reported are the best and the median round of each, their
ratios, the share of the measured matrix-multiply rate that the useful FLOPs reach
(those of the layers, without anything done twice or for convenience), and where the
engine's time goes.

`fedavg` plays federated averaging (10 clients per round, one epoch, dense updates)
beside a loop of its own: one module, one client after another, autograd,
`torch.optim.SGD`, images held as normalised floats. Reported are the processor time of
a round of each (all threads of this process), and of `--method fedprox` or another that
the host of plain methods runs.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "learn"))
from reference_loop import ReferenceLoop
from textbook import answers

from simfed.fleet.selection import Selector
from simfed.ground.errors import InputError
from simfed.ground.seeding import Streams
from simfed.learn.catalogue import dataset_facts, model_facts
from simfed.learn.data import Dataset, deal
from simfed.learn.federation import Federation, draw_local, load_federation
from simfed.learn.hosted import HostedWorkload
from simfed.learn.models import build_model, plain
from simfed.learn.plain import plain_rounds
from simfed.scenario import Scenario

CASES: dict[str, dict[str, Any]] = {
    "mnist": {
        "dataset": {"name": "mnist-mini", "public": 256},
        "prototypes": {"small": {"model": "lenet5-half"}, "large": {"model": "lenet5"}},
        "compression": {"k": 1000},
    },
    "cifar": {  # WResNet40-2 and ResNet18
        "dataset": {"name": "cifar10", "public": 256},
        "prototypes": {
            "small": {"model": "wresnet40-2"},
            "large": {"model": "resnet18"},
        },
        "compression": {"k": 100_000},
    },
}


def scenario(case: str, **changes: Any) -> Scenario:
    """Ten clients of two prototypes under ASCEND, everything else as by default."""
    return Scenario.model_validate(
        {
            "name": case,
            "rounds": 10**6,
            "client_order": "round-robin",
            "clients": [
                {"count": 5, "prototype": "small", "device": "any"},
                {"count": 5, "prototype": "large", "device": "any"},
            ],
            "training": {"batch_size": 32},
            "evaluation": {"every": 10**6},
            **CASES[case],
            **changes,
        }
    )


def a_quarter(case: str) -> dict[str, Any]:
    """Of the public images, of the batch and of the probes: on a processor, a round of
    all may take half a minute.
    """
    return {
        "dataset": {**CASES[case]["dataset"], "public": 64},
        "training": {"batch_size": 8},
        "policy": {"kind": "ascend", "reward": {"local_loss": {"samples": 64}}},
    }


def federation(made: Scenario, device: str = "cpu") -> Federation:
    """The scenario's data, or noise of its shape where it is not on this machine."""
    try:
        return load_federation(made, Streams(made.seed), torch.device(device))
    except InputError as error:
        print(f"noise instead of images, which takes the same time: {error}")
    facts, rng = dataset_facts(made.dataset), np.random.default_rng(0)

    def noise(count: int) -> tuple[NDArray[Any], NDArray[Any]]:
        images = rng.integers(0, 256, (count, *facts.input_shape), dtype=np.uint8)
        return images, np.arange(count) % facts.classes

    samples = max(10_000, 60 * made.client_count)
    data = Dataset(
        *noise(samples), *noise(100), classes=facts.classes, mean=(0.5,), sd=(0.25,)
    )
    split = deal(
        data.train_labels,
        Streams(made.seed),
        clients=made.client_count,
        public=made.dataset.public,
        kind=made.dataset.partition.kind,
    )
    return Federation(data, split.clients, split.public, torch.device(device))


def useful_flops(work: HostedWorkload) -> float:
    """Of one round: gradients, public logits of every client, distillation, probes
    after the merge.
    """
    kit, total = work.kit, 0.0
    shape, classes = work.data.input_shape, work.data.classes
    facts = {
        name: model_facts(of, shape, classes)
        for name, of in work.scenario.prototypes.items()
    }
    for client in range(work.scenario.client_count):
        who = work.tasks.who(client)
        of, batches = facts[who.prototype], kit.batches(who, 1)
        total += of.train_flops * sum(map(len, batches))
        total += of.forward_flops * (
            len(kit.own_samples(client, 1)) + kit.setting.public
        )
    return total + sum(of.train_flops for of in facts.values()) * kit.setting.public


def multiply_rate(threads: int) -> float:
    """FLOP/s of the best of several single-precision products of 2048 × 2048."""
    torch.set_num_threads(threads)
    a, b = torch.randn(2048, 2048), torch.randn(2048, 2048)
    return 2 * 2048**3 / min(timed(lambda: a @ b) for _ in range(8))


def timed(play: Callable[[], object]) -> float:
    """Host seconds of one call."""
    begin = time.perf_counter()
    play()
    return time.perf_counter() - begin


def timed_on_gpu(play: Callable[[], object], times: int = 1) -> float:
    """Host seconds of so many calls, until the device has done all of it."""

    def until_done() -> None:
        for _ in range(times):
            play()
        torch.cuda.synchronize()

    torch.cuda.synchronize()
    return timed(until_done)


def on_cpu(case: str, rounds: int, cores: int, *, quarter: bool = False) -> None:
    """Loop and engines in turn; see the module's docstring."""
    changes = a_quarter(case) if quarter else {}
    made = scenario(case, **changes)
    streams = Streams(made.seed)
    data = federation(made)
    engines = {
        w: HostedWorkload(made, streams, workers=w, data=data)
        for w in dict.fromkeys((1, cores))
    }
    players: dict[str, tuple[int, Callable[[], object]]] = {}
    for threads in dict.fromkeys((1, cores)):
        loop, numbers = ReferenceLoop(made, streams, data), iter(range(1, 10**6))
        loop_rounds = map(loop.round, numbers)
        players[(f"textbook loop, {threads} thread(s)")] = (
            threads,
            partial(next, loop_rounds),
        )
    for workers, work in engines.items():
        turns = plain_rounds(made, work, streams)
        players[f"engine, {workers} worker(s)"] = (1, partial(next, turns))
    seconds: dict[str, list[float]] = {name: [] for name in players}
    for turn in range(rounds + 1):  # the first warms up
        for name, (threads, play) in players.items():
            torch.set_num_threads(threads)
            spent = timed(play)
            if turn:
                seconds[name].append(spent)
    report(case, seconds, engines[cores], cores)
    for work in engines.values():
        work.close()


def accuracy(
    rounds: int, cores: int, dataset: str, strategy: str | None, seeds: int
) -> None:
    """What loop and engine have learnt after as many rounds, over so many seeds.

    A last bit decides now and then which entry is sent and where a kink's gradient
    goes, so the two go apart as two seeds do: their means are to be compared.
    """
    accuracies: dict[str, list[float]] = {"textbook loop": [], "engine": []}
    for seed in range(seeds):
        made = scenario(
            "mnist",
            seed=seed,
            rounds=rounds,
            dataset={"name": dataset, "public": 256},
            evaluation={"every": rounds},
            **(
                {"policy": {"kind": "uniform", "strategy": strategy}}
                if strategy
                else {}
            ),
        )
        streams = Streams(seed)
        loop = ReferenceLoop(made, streams)
        work = HostedWorkload(made, streams, workers=cores)
        for played in plain_rounds(made, work, streams):
            loop.round(played.round)
        work.close()
        samples, labels = loop.data.test_samples, loop.data.test_labels
        right = [answers(m, samples).argmax(1) == labels for m in loop.models.values()]
        accuracies["textbook loop"].append(torch.stack(right).double().mean().item())
        accuracies["engine"].append(
            statistics.mean(
                each.accuracy for each in played.outcome.evaluation.values()
            )
        )
        print(
            f"  seed {seed}: "
            + ", ".join(f"{who} {v[-1]:.4f}" for who, v in accuracies.items()),
            flush=True,
        )
    means = {who: statistics.mean(values) for who, values in accuracies.items()}
    apart = [
        a - b
        for a, b in zip(
            accuracies["engine"], accuracies[("textbook loop")], strict=True
        )
    ]
    error = statistics.stdev(apart) / len(apart) ** 0.5
    print(
        f"  mean: {means}; difference {statistics.mean(apart):+.4f} ± {error:.4f} "
        f"(standard error)"
    )


def options(rounds: int, cores: int, dataset: str) -> None:
    """Accuracy and time with a public subset per round, over three seeds."""
    variants: dict[str, dict[str, Any]] = {
        "256 public images": {},
        "64 of them per round": {
            "dataset": {"name": dataset, "public": 256, "public_batch": 64}
        },
    }
    for name, changes in variants.items():
        reached, spent = [], []
        for seed in range(3):
            made = scenario(
                "mnist",
                **{
                    "seed": seed,
                    "rounds": rounds,
                    "dataset": {"name": dataset, "public": 256},
                    "policy": {"kind": "uniform", "strategy": "top-k"},
                    "evaluation": {"every": rounds},
                    **changes,
                },
            )
            work = HostedWorkload(made, Streams(seed), workers=cores, learns=False)
            begin = time.perf_counter()
            *_, last = plain_rounds(made, work, Streams(seed))
            spent.append((time.perf_counter() - begin) / rounds)
            work.close()
            evaluations = last.outcome.evaluation.values()
            reached.append(
                statistics.mean(evaluation.accuracy for evaluation in evaluations)
            )
        print(
            f"  {name:22} accuracy {statistics.mean(reached):.4f} "
            f"{[f'{x:.4f}' for x in reached]}, {min(spent) * 1e3:.1f} ms per round",
            flush=True,
        )


def on_gpu(case: str, rounds: int) -> None:
    """The textbook loop and the engine on one CUDA device, in turn."""
    if not torch.cuda.is_available():
        raise SystemExit("PyTorch finds no CUDA device here")
    made = scenario(case)
    streams = Streams(made.seed)
    data = federation(made, "cuda")
    work = HostedWorkload(made, streams, device="cuda", data=data)
    turns = plain_rounds(made, work, streams)
    next(turns)
    # before the loop's models are there, too
    engine_bytes = torch.cuda.max_memory_allocated()
    loop = map(ReferenceLoop(made, streams, data).round, range(1, 10**6))
    players: dict[str, Callable[[], object]] = {
        # in float32 like the engine, which has set it
        "textbook loop": partial(next, loop),
        "loop, TF32": partial(by_default, partial(next, loop)),
        "engine": partial(next, turns),
    }
    seconds: dict[str, list[float]] = {name: [] for name in players}
    for turn in range(rounds + 3):  # the first ones choose algorithms and warm up
        for name, play in players.items():
            spent = timed_on_gpu(play)
            if turn >= 3:
                seconds[name].append(spent)
    print(f"{case} on {torch.cuda.get_device_name()}: {rounds} rounds each, in turn")
    for name, values in seconds.items():
        print(
            f"  {name:14} best {min(values) * 1e3:8.1f} ms, median "
            f"{statistics.median(values) * 1e3:8.1f} ms, "
            f"{1 / statistics.median(values):6.1f} rounds/s, device busy "
            f"{busy_s(players[name]) / statistics.median(values):.0%}"
        )
    best, median = (
        one(seconds[("textbook loop")]) / one(seconds["engine"])
        for one in (min, statistics.median)
    )
    print(
        f"  engine: {best:.2f} × the loop's rounds per second by the best round, "
        f"{median:.2f} × by the median"
    )
    rate = useful_flops(work) / statistics.median(seconds["engine"])
    print(
        f"  useful work {rate / 1e12:.1f} TFLOP/s; the engine takes at most "
        f"{engine_bytes / 1e9:.1f} GB on the device"
    )
    work.close()


def by_default(play: Callable[[], object]) -> None:
    """With convolutions in TF32, as PyTorch computes them where nobody asks for
    float32.
    """
    cudnn: Any = torch.backends.cudnn
    conv = cudnn.conv  # PyTorch 2.9 and later
    before, conv.fp32_precision = conv.fp32_precision, "tf32"
    try:
        play()
    finally:
        conv.fp32_precision = before


def busy_s(play: Callable[[], object], times: int = 5) -> float:
    """Seconds of a call in which the device computes or copies: kernels queue up, one
    at a time.

    To be compared with a call's time without the profiler, which slows every launch.
    """
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CUDA]
    ) as seen:
        timed_on_gpu(play, times)
    of_device: Any = [
        event
        for event in seen.key_averages()
        if event.device_type.name == "CUDA" and not event.is_user_annotation
    ]
    return (
        float(sum(event.self_device_time_total for event in of_device)) * 1e-6 / times
    )


def report(
    case: str, seconds: dict[str, list[float]], work: HostedWorkload, cores: int
) -> None:
    """Print the table, the ratios, the share of the multiply rate and the profile."""
    print(
        f"{case}: {len(next(iter(seconds.values())))} rounds each, in turn, on "
        f"{cores} core(s)"
    )
    for name, values in seconds.items():
        print(
            f"  {name:28} best {min(values) * 1e3:8.1f} ms   median "
            f"{statistics.median(values) * 1e3:8.1f} ms"
        )
    engine = f"engine, {cores} worker(s)"
    for label, pick in (("best", min), ("median", statistics.median)):
        loop = min(
            pick(v) for name, v in seconds.items() if name.startswith("textbook")
        )
        alone = pick(seconds["engine, 1 worker(s)"]) / pick(seconds[engine])
        print(
            f"  {label}: engine {loop / pick(seconds[engine]):.2f} × the loop's rounds "
            f"per second; {cores} workers {alone:.2f} × one"
        )
    flops, rate = useful_flops(work), multiply_rate(cores)
    best = min(seconds[engine])
    print(
        f"  useful work {flops / 1e9:.2f} GFLOP per round: {flops / best / 1e9:.0f} "
        f"GFLOP/s, "
        f"{flops / best / rate:.0%} of the {rate / 1e9:.0f} GFLOP/s of matrix products"
    )
    total = sum(work.timings().values())
    parts = sorted(work.timings().items(), key=lambda item: -item[1])
    print(
        "  the engine's time: "
        + ", ".join(f"{name} {s / total:.0%}" for name, s in parts if s)
    )


def memory(rounds: int, method: str) -> None:
    """What the process holds once a run has met all of its many clients."""
    import simfed
    from simfed.scenario import Scenario

    group = {"count": 1000, "prototype": "large", "device": "x86-2core-vm", "link": {}}
    scenario = Scenario.model_validate(
        {
            "name": "memory",
            "rounds": rounds,
            "method": method,
            "dataset": {
                "name": "mnist-mini",
                "public": 0,
                "partition": {"kind": "iid"},
            },
            "prototypes": {"large": {"model": "lenet5"}},
            "clients": [group],
            "training": {"batch_size": 10, "learning_rate": 0.05},
            "compression": {"k": 1000},
            "policy": {"kind": "uniform", "strategy": "top-k"},
            "participation": {"clients_per_round": 50},
            "evaluation": {"every": 50},
        }
    )
    held_mb: list[float] = []

    def look(round: int, simulated_s: float, accuracy: float | None) -> None:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        held_mb.append(pages * os.sysconf("SC_PAGE_SIZE") / 1e6)

    run = simfed.run(scenario, workers=1, progress=look)
    met = int(run.participations.groupby("client")["round"].min().max())
    later = held_mb[met:] or held_mb[-1:]  # a short run may not have met everybody
    clients = run.participations["client"].nunique()
    print(
        f"{method}: {clients} clients met by round {met}; from then on "
        f"{min(later):.0f} to {max(later):.0f} MB, {later[-1]:.0f} MB at the end"
    )


class AveragingLoop:
    """Federated averaging as one writes it down: who takes part and in which order
    samples come are the engine's, so that both learn the same.
    """

    def __init__(self, made: Scenario, streams: Streams, data: Federation) -> None:
        [(name, prototype)] = made.prototypes.items()
        seed = streams.integer("init", name)
        self._model = build_model(prototype, data.input_shape, data.classes, seed=seed)
        self._model = plain(self._model)
        rate = made.training.learning_rate
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=rate)
        every = torch.arange(len(data.labels))
        self._images, self._labels = data.at(every)
        self._data, self._streams, self._made = data, streams, made
        selection = made.participation.selection.made
        self._selecting = Selector(selection, made.client_count, lambda _: 1)

    def round(self, number: int) -> None:
        per_round = self._made.participation.clients_per_round
        cohort = self._selecting.cohort(self._streams, number, per_round)
        owned = [self._data.owned[client] for client in cohort]
        samples = sum(len(owner_rows) for owner_rows in owned)
        parameters = list(self._model.parameters())
        start = [entries.detach().clone() for entries in parameters]
        total = [torch.zeros_like(entries) for entries in start]
        for client, owner_rows in zip(cohort, owned, strict=True):
            with torch.no_grad():
                for parameter, first in zip(parameters, start, strict=True):
                    parameter.copy_(first)
            rng = self._streams("batch", client, number)
            for positions in draw_local(rng, owner_rows, self._made.training):
                batch = torch.from_numpy(positions)
                self._optimizer.zero_grad()
                logits = self._model(self._images[batch])
                torch.nn.functional.cross_entropy(
                    logits, self._labels[batch]
                ).backward()
                self._optimizer.step()
            with torch.no_grad():
                for mean, parameter in zip(total, parameters, strict=True):
                    mean.add_(parameter, alpha=len(owner_rows) / samples)
        with torch.no_grad():
            for parameter, mean in zip(parameters, total, strict=True):
                parameter.copy_(mean)

    def weights(self) -> torch.Tensor:
        """The model now, as a flat vector."""
        return torch.cat(
            [layer.detach().flatten() for layer in self._model.parameters()]
        )


def averaging(model: str, method: str) -> Scenario:
    """Many clients with equal shares of MNIST, 10 of them per round, one epoch, dense
    updates.
    """
    small = model == "logistic-regression"
    return Scenario.model_validate(
        {
            "name": "averaging",
            "method": method,
            "rounds": 10**6,
            "dataset": {"name": "mnist", "public": 0, "partition": {"kind": "iid"}},
            "prototypes": {"only": {"model": model}},
            "clients": [
                {"count": 1000 if small else 100, "prototype": "only", "device": "any"}
            ],
            "training": {
                "batch_size": 10 if small else 32,
                "learning_rate": 0.03,
                "local_epochs": 1,
            },
            "compression": {"strategies": ["dense"]},
            "policy": {"kind": "uniform", "strategy": "dense"},
            "participation": {"clients_per_round": 10},
            "evaluation": {"every": 10**6},
        }
    )


def fedavg(model: str, method: str, rounds: int) -> dict[str, float]:
    """Loop and learning in turn, one thread.

    Processor seconds of the median round of each.
    """
    made = averaging(model, method)
    streams, data = Streams(made.seed), federation(made)
    work = workload(made, streams, data)
    loop, numbers = AveragingLoop(made, streams, data), iter(range(1, 10**6))
    loop_rounds = map(loop.round, numbers)
    turns = plain_rounds(made, work, streams)
    players: dict[str, Callable[[], object]] = {
        "plain loop": partial(next, loop_rounds),
        method: partial(next, turns),
    }
    seconds: dict[str, list[float]] = {name: [] for name in players}
    for turn in range(rounds + 3):  # the first ones warm up
        for name, play in players.items():
            begin = time.process_time()
            play()
            if turn >= 3:
                seconds[name].append(time.process_time() - begin)
    ratios = [a / b for a, b in zip(*seconds.values(), strict=True)]
    print(
        f"{method} of {model}, {made.client_count} clients: {rounds} rounds each, in "
        f"turn"
    )
    for name, values in seconds.items():
        print(
            f"  {name:12} best {min(values) * 1e3:7.2f} ms, median "
            f"{statistics.median(values) * 1e3:7.2f} ms of processor time per round"
        )
    print(
        f"  the loop takes {statistics.median(ratios):.2f} × as long in the median "
        f"pair; best rounds {min(seconds['plain loop']) / min(seconds[method]):.2f} ×"
    )
    if method == "fedavg":
        apart = (loop.weights() - work._server["only"]["weights"]).abs().max()
        print(
            f"  weights of the two after all rounds differ by {apart.item():.1e} at "
            f"most"
        )
    work.close()
    return {name: statistics.median(values) for name, values in seconds.items()}


def workload(made: Scenario, streams: Streams, data: Federation) -> HostedWorkload:
    """The learning side of a method, without local losses."""
    return HostedWorkload(made, streams, learns=False, data=data)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "case", choices=[*CASES, "options", "accuracy", "memory", "fedavg"]
    )
    parser.add_argument(
        "--rounds", type=int, help="20; 1,000 for options and accuracy, 500 for memory"
    )
    parser.add_argument(
        "--dataset",
        default="mnist",
        help="for options and accuracy: mnist or mnist-mini",
    )
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="for mnist and cifar"
    )
    parser.add_argument(
        "--quarter",
        action="store_true",
        help="of the samples, for mnist and cifar on a processor",
    )
    parser.add_argument(
        "--strategy", help="for accuracy: a fixed one, in place of ASCEND"
    )
    parser.add_argument("--seeds", type=int, default=5, help="for accuracy")
    parser.add_argument("--method", default="fedavg", help="for memory and fedavg")
    parser.add_argument(
        "--model",
        default="logistic-regression",
        choices=("logistic-regression", "lenet5"),
        help="for fedavg",
    )
    parser.add_argument("--cores", type=int, default=min(2, os.cpu_count() or 1))
    arguments = parser.parse_args()
    if arguments.case == "options":
        options(arguments.rounds or 1000, arguments.cores, arguments.dataset)
    elif arguments.case == "fedavg":
        fedavg(arguments.model, arguments.method, arguments.rounds or 100)
    elif arguments.case == "memory":
        memory(arguments.rounds or 500, arguments.method)
    elif arguments.case == "accuracy":
        accuracy(
            arguments.rounds or 1000,
            arguments.cores,
            arguments.dataset,
            arguments.strategy,
            arguments.seeds,
        )
    elif arguments.device == "cuda":
        on_gpu(arguments.case, arguments.rounds or 20)
    else:
        on_cpu(
            arguments.case,
            arguments.rounds or 20,
            arguments.cores,
            quarter=arguments.quarter,
        )


if __name__ == "__main__":
    main()
