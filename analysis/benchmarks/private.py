"""How much longer a local step of DP-SGD takes than an ordinary one.

    python analysis/benchmarks/private.py [--models lenet5 lenet5-half]
        [--batch 8 32 64] [--loop]

One thread. Each line plays an ordinary step (gradient, plain SGD) and a private one
(gradient of each sample shortened, noise, the same SGD) in turn in this process and
gives the least processor time of both and their ratio, which survives a busy machine
better than milliseconds do. `passes` names what computes them: a model's own fast
passes, or those of any module, by autograd and `torch.func.vmap`. `--loop` adds what a
loop over the samples takes, by autograd, one backward pass for each: what a private
step never does. `--keep` keeps the lines in private_rows.csv, with the machine, and
makes of them the table of docs/privacy.md.
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pandas as pd
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pages import markdown, write_page

from simfed.learn.flat import FlatModel
from simfed.learn.models import build_model
from simfed.learn.objective import Classification
from simfed.learn.passes import Passes, choose_passes
from simfed.learn.precision import exact_float32, same_algorithms

ROWS = Path(__file__).with_name("private_rows.csv")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "privacy.md"
SHAPE, CLASSES = (1, 28, 28), 10
MODELS = ("logistic-regression", "lenet5", "lenet5-half", "mcmahan-cnn", "perceptron")
CLIP, DEVIATION, RATE = 1.0, 0.1, 0.01


def least_ms(*tasks: Callable[[], object], repeat: int) -> list[float]:
    """The least processor time of each task, all of them taken in turn."""
    times: list[list[float]] = [[] for _ in tasks]
    for _ in range(repeat):
        for task, taken in zip(tasks, times, strict=True):
            began = time.process_time()
            task()
            taken.append(1e3 * (time.process_time() - began))
    return [min(taken) for taken in times]


class Steps:
    """Local steps on a batch of made-up images."""

    def __init__(self, flat: FlatModel, passes: Passes, batch: int) -> None:
        draws = torch.Generator().manual_seed(0)
        self.samples = torch.randn(batch, *SHAPE, generator=draws)
        self.labels = torch.randint(CLASSES, (batch,), generator=draws)
        self._weights, self._passes, self._draws = flat.weights, passes, draws
        self._gradient = torch.zeros_like(flat.weights)
        self._objective = Classification()

    def ordinary(self) -> None:
        loss = partial(self._objective.loss, targets=self.labels)
        self._passes.gradient(self.samples, loss, self._gradient.zero_(), training=True)
        self._weights.sub_(self._gradient, alpha=RATE)

    def private(self) -> None:
        into = self._gradient.zero_()
        self._passes.clipped_gradient(
            self.samples, self.labels, self._objective, CLIP, into
        )
        noise = torch.randn(len(into), generator=self._draws)
        into.add_(noise, alpha=DEVIATION).div_(len(self.samples))
        self._weights.sub_(into, alpha=RATE)

    def one_by_one(self) -> None:
        into, each = torch.zeros_like(self._gradient), torch.zeros_like(self._gradient)
        for sample, label in zip(self.samples, self.labels, strict=True):
            loss = partial(self._objective.loss, targets=label[None])
            self._passes.gradient(sample[None], loss, each.zero_(), training=True)
            into.add_(each, alpha=min(1.0, CLIP / each.norm().item()))


def processor() -> str:
    """What the machine calls itself."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    names = [
        line.partition(":")[2].strip()
        for line in lines
        if line.startswith("model name")
    ]
    return names[0] if names else platform.machine()


def table(rows: pd.DataFrame) -> str:
    """How many times an ordinary step a private one takes, by what a run uses and by
    vmap.
    """
    batches = sorted(rows["batch"].unique())
    lines = [["model", "passes", *(f"batch of {batch}" for batch in batches)]]
    for (model, passes), mine in rows.groupby(["model", "passes"], sort=False):
        ratio = (
            (mine["private_ms"] / mine["ordinary_ms"]).groupby(mine["batch"]).first()
        )
        way = "`torch.func.vmap`" if passes == Passes.__name__ else "its own"
        lines.append([f"`{model}`", way, *(f"{ratio[batch]:.1f}" for batch in batches)])
    return markdown(lines)


def page_parts() -> dict[str, str]:
    """What stands between the page's comments, by their names."""
    return {"private steps": table(pd.read_csv(ROWS))}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--batch", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--repeat", type=int, default=200)
    parser.add_argument("--loop", action="store_true")
    parser.add_argument("--keep", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    print(
        f"{'model':20} {'passes':16} {'batch':>5} {'ordinary':>9} {'private':>9} "
        f"{'ratio':>6}"
    )
    for model in arguments.models:
        flat = FlatModel(build_model(model, SHAPE, CLASSES, seed=0))
        fast = choose_passes(flat, SHAPE)
        for passes in (fast,) if type(fast) is Passes else (fast, Passes(flat)):
            for batch in arguments.batch:
                steps = Steps(flat, passes, batch)
                tasks = [steps.ordinary, steps.private]
                tasks += [steps.one_by_one] if arguments.loop else []
                with exact_float32(), same_algorithms():
                    ordinary, private, *loop = least_ms(*tasks, repeat=arguments.repeat)
                line = (
                    f"{model:20} {type(passes).__name__:16} {batch:5} "
                    f"{ordinary:6.2f} ms "
                )
                line += f"{private:6.2f} ms {private / ordinary:6.2f}"
                print(
                    line + "".join(f"; one by one {ms / ordinary:.1f}" for ms in loop)
                )
                rows.append(
                    {
                        "model": model,
                        "passes": type(passes).__name__,
                        "batch": batch,
                        "ordinary_ms": round(ordinary, 4),
                        "private_ms": round(private, 4),
                        "machine": processor(),
                        "torch": torch.__version__,
                    }
                )
    if arguments.keep:
        pd.DataFrame(rows).to_csv(ROWS, index=False)
        write_page("private")


if __name__ == "__main__":
    main()
