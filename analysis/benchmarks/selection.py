"""How long selection, error feedback and codecs take, beside what one would write with
PyTorch alone.

    OPENBLAS_NUM_THREADS=1 python analysis/benchmarks/selection.py [--quick] [--memory]
        [--codecs]

One thread (OpenBLAS, behind the low-rank codecs, has to be told). Each line times two
things in turn in this process and gives the best of both and their ratio, because a
ratio survives a change of machine better than milliseconds do. `--memory` also plays
100 ResNet18 clients and 1,000 LeNet5 clients, and needs 6 GB.

- Top-K: `simfed.compress.top_k_indices` against `torch.topk` of |x| followed by sorting
  the indices, which gives the same set but for ties. Inputs: normal, Student's t with
  1.5 degrees of freedom (heavy-tailed), all equal, mostly zero, and the residual that a
  ResNet18 is left with after 5 rounds of Top-K error feedback on real digits
  (`mnist-mini`, enlarged to 32 × 32 × 3).
- Random-K and Periodic-K (a client's plays in a row): against the start of
  `torch.randperm`, sorted.
- Error feedback: residual += gradient (parameter by parameter), Top-K, values out,
  zeros in, on a buffer that stays; against a fresh flat gradient, sum and residual each
  round.
- Codecs: one play of each on an update of a ResNet18 (a client's part: residual and
  state included), and what decodes it, as multiples of copying that vector. *Passes*
  are how often the rule itself has to go over a vector of that length: the goal is
  three copies' time per pass. The time is that of the processor, so that what else runs
  on the machine shows less. `svd` is bound by arithmetic, not memory.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from simfed.compress import (
    PeriodicK,
    RandomK,
    TopK,
    codec_from_spec,
    feedback_for,
    top_k_indices,
    with_error_feedback,
)
from simfed.ground.seeding import Streams
from simfed.learn.data import load_dataset
from simfed.learn.models.build import build_model

RESNET18, WRESNET, LENET5, LENET5_HALF = 11_173_962, 2_243_546, 61_706, 15_738


def best_ms(*tasks: Callable[[], Any], repeat: int) -> list[float]:
    """The shortest time of each task, all of them taken in turn."""
    times: list[list[float]] = [[] for _ in tasks]
    for _ in range(repeat):
        for task, taken in zip(tasks, times, strict=True):
            began = time.perf_counter()
            task()
            taken.append(1e3 * (time.perf_counter() - began))
    return [min(taken) for taken in times]


def line(what: str, d: int, k: int, ours: float, other: float) -> None:
    print(
        f"| {what:29} | {d:10,} | {k:9,} | {ours:8.3f} | {other:8.3f} | "
        f"{ours / other:5.2f} |"
    )


def heading(title: str, other: str) -> None:
    print(
        f"\n{title}\n\n| what | d | K | simfed, ms | {other}, ms | ratio "
        "|\n|---|--:|--:|--:|--:|--:|"
    )


def residual_of_resnet18(k: int, rounds: int = 5) -> tuple[Any, list[Any]]:
    """(residual, last gradients) after some rounds on real digits."""
    data = load_dataset("mnist-mini")
    model = build_model("resnet18", (3, 32, 32), 10, seed=0)
    feedback, residual = with_error_feedback(TopK()), np.zeros(RESNET18, np.float32)
    for round in range(rounds):
        images, labels = data.train(np.arange(8 * round, 8 * round + 8))
        batch = torch.nn.functional.pad(torch.from_numpy(images), (2, 2, 2, 2)).expand(
            -1, 3, -1, -1
        )
        model.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(batch), torch.from_numpy(labels))
        loss.backward()
        gradients = [parameter.grad for parameter in model.parameters()]
        feedback.encode_in_place(gradients, residual, k)
    return residual, gradients


def inputs(d: int, residual: Any) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    normal = rng.standard_normal(d, dtype=np.float32)
    return {
        "normal": normal,
        "heavy-tailed": rng.standard_t(1.5, d).astype(np.float32),
        "all equal": np.full(d, 0.5, np.float32),
        "19 of 20 zero": np.where(rng.random(d) < 0.95, np.float32(0), np.float32(1))
        * normal,
        "residual": residual[:d],
    }


def torch_top_k(values: torch.Tensor, k: int) -> torch.Tensor:
    return values.abs().topk(k, sorted=False).indices.sort().values


def torch_random(d: int, k: int) -> torch.Tensor:
    return (
        torch.randperm(d, generator=torch.Generator().manual_seed(0))[:k].sort().values
    )


def top_k(residual: Any, quick: bool) -> None:
    heading("Top-K", "torch.topk + sort")
    sizes: list[tuple[int, tuple[int, ...]]] = [
        (RESNET18, (100_000, 2_000_000)),
        (LENET5, (1000, 5000)),
    ]
    if not quick:
        sizes[1:1] = [
            (WRESNET, (100_000, 500_000)),
            (1_000_000, (1000,)),
            (100_000, (1000, 20_000)),
        ]
        sizes += [(LENET5_HALF, (500, 1000, 5000)), (1000, (10, 100))]
    for d, ks in sizes:
        for name, values in inputs(d, residual).items():
            for k in ks:
                ours = partial(top_k_indices, values, k)
                other = partial(torch_top_k, torch.from_numpy(values), k)
                repeat = 5 if d > 1e6 else 50
                line(f"Top-K, {name}", d, k, *best_ms(ours, other, repeat=repeat))


def blind(quick: bool) -> None:
    heading("Random-K and Periodic-K", "torch.randperm + sort")
    for d, k in ((RESNET18, 100_000), (RESNET18, 2_000_000), (LENET5, 1000)):
        vector, rng = np.empty(d, np.float32), np.random.default_rng(0)
        random = partial(RandomK().select, vector, k, rng=rng)
        ours, other = best_ms(random, partial(torch_random, d, k), repeat=5)
        line("Random-K", d, k, ours, other)
        plays = 5 if quick else min(150, 2 * d // k)
        (ours,) = best_ms(partial(periodic_plays, vector, k, plays, rng), repeat=2)
        line(f"Periodic-K, mean of {plays} plays", d, k, ours / plays, other)


def periodic_plays(vector: Any, k: int, plays: int, rng: np.random.Generator) -> None:
    state = None
    for _ in range(plays):
        state = PeriodicK().select(vector, k, state=state, rng=rng).state


def feedback(residual: Any, gradients: list[Any]) -> None:
    heading("Error feedback, one client", "naive")
    memory = {"residual": torch.from_numpy(residual.copy())}
    for strategy in (TopK(), RandomK(), PeriodicK()):
        for k in (100_000, 2_000_000):
            rng = Streams(0)("benchmark")
            encode = with_error_feedback(strategy).encode_in_place
            ours = partial(encode, gradients, residual.copy(), k, rng)
            other = partial(
                naive_feedback, gradients, memory, k, strategy.name == "top-k"
            )
            line(
                f"{strategy.name} with residual",
                RESNET18,
                k,
                *best_ms(ours, other, repeat=5),
            )


def naive_feedback(
    gradients: list[Any], memory: dict[str, Any], k: int, largest: bool
) -> Any:
    total = memory["residual"] + torch.cat(
        [gradient.flatten() for gradient in gradients]
    )
    chosen = torch_top_k(total, k) if largest else torch_random(len(total), k)
    memory["residual"] = total.index_fill(0, chosen, 0.0)
    return chosen, total[chosen]


PASSES = {
    "dense": (1, "copy"),
    "top-k": (1, "look"),
    "random-k": (0, "the chosen alone"),
    "periodic-k": (0, "the chosen alone"),
    "qsgd(16)": (3, "norms, rounding, residual"),
    "terngrad(2.5)": (3, "deviation, maximum, rounding"),
    "ef-sign": (3, "mean, signs, residual"),
    "fp16": (2, "casting, residual"),
    "bf16": (2, "casting, residual"),
    "top-k+qsgd(4)": (1, "look"),
    "random-k+fp16": (1, "look for NaN"),
    "dgc(0.9,warmup=0)": (3, "momentum, sum, look"),
    "adacomp(500)": (3, "sum, maxima, comparison"),
    "ef21(top-k)": (2, "difference, look"),
    "detached-ef(random-k)": (2, "look for NaN, sum"),
    "powersgd(2)": (3, "two products, residual"),
    "svd(2)": (3, "two products, residual"),
    "svd(energy=0.95)": (3, "two products, residual"),
}
"""Codec → how often one play has to go over a vector of length d, and what for."""


def codecs(quick: bool) -> None:
    """Plays on normal gradients, anew in every repeat; the state goes on."""
    layout = [
        tuple(p.shape)
        for p in build_model("resnet18", (3, 32, 32), 10, seed=0).parameters()
    ]
    rng = np.random.default_rng(0)
    updates = [rng.standard_normal(RESNET18, dtype=np.float32) for _ in range(4)]
    other = np.zeros_like(updates[0])
    copy = min(processor_ms(partial(np.copyto, other, updates[0])) for _ in range(9))
    print(
        f"\nCodecs, d = {RESNET18:,}, K = 100,000; copying the vector takes {copy:.1f} "
        f"ms\n\n"
        "| codec | play, ms | copies | passes | copies per pass | decoding, copies |\n"
        "|---|--:|--:|--:|--:|--:|"
    )
    for label, (passes, why) in PASSES.items():
        if quick and label.startswith("svd"):
            continue
        player, state, times = feedback_for(codec_from_spec(label)), None, []
        for update in updates:
            buffer = update.copy()
            play = partial(
                player.encode_in_place,
                None,
                buffer,
                100_000,
                rng,
                state=state,
                layout=layout,
            )
            begin = time.process_time()
            payload = play()
            times.append(1e3 * (time.process_time() - begin))
            state = payload.state
        decode = min(processor_ms(payload.dense) for _ in range(3)) / copy
        ours = min(times) / copy
        each = f"{ours / passes:.1f}" if passes else "–"
        print(
            f"| {label} | {min(times):.1f} | {ours:.1f} | {passes}: {why} | {each} | "
            f"{decode:.1f} |"
        )


def processor_ms(task: Callable[[], Any]) -> float:
    begin = time.process_time()
    task()
    return 1e3 * (time.process_time() - begin)


def memory() -> None:
    """What a client keeps: its residual, and a state of two numbers for Periodic-K."""
    print(
        "\nMemory: clients that have played each strategy twice\n\n| clients | d | GB "
        "|\n|--:|--:|--:|"
    )
    for clients, d, k in ((1000, LENET5, 1000), (100, RESNET18, 100_000)):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        rng, gradient = np.random.default_rng(0), np.ones(d, np.float32)
        residuals = np.empty((clients, d), np.float32)
        states: dict[Any, Any] = {}
        residuals.fill(0)
        for _ in range(2):
            for strategy in (TopK(), RandomK(), PeriodicK()):
                encode = with_error_feedback(strategy).encode_in_place
                for client, residual in enumerate(residuals):
                    key = client, strategy.name
                    states[key] = encode(
                        gradient, residual, k, rng, state=states.get(key)
                    ).state
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(f"| {clients:,} | {d:,} | {(after - before) * 1024 / 1e9:.2f} |")
        del residuals


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="the two sizes of the source only"
    )
    parser.add_argument("--codecs", action="store_true", help="codecs alone")
    parser.add_argument(
        "--memory", action="store_true", help="also measure memory; needs 6 GB"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(
        f"NumPy {np.__version__}, PyTorch {torch.__version__}, one thread; best of "
        f"several, ms"
    )
    if arguments.memory:  # first: the peak of the other parts would hide it
        memory()
    if arguments.codecs:
        codecs(arguments.quick)
        return
    residual, gradients = residual_of_resnet18(k=100_000)
    top_k(residual, arguments.quick)
    blind(arguments.quick)
    feedback(residual, gradients)
    codecs(arguments.quick)


if __name__ == "__main__":
    main()
