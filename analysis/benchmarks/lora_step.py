"""A local step on low-rank adapters, beside the same in plain PyTorch, in turn.

    OMP_NUM_THREADS=1 python analysis/benchmarks/lora_step.py [--rank 8] [--turns 15]

Both train the adapters of one causal transformer on the same batches by plain SGD: the
engine as a client does, the other side by frozen layers with A and B beside them, as
the method's paper writes them, `F.cross_entropy` and `torch.optim.SGD`. What they have
learned is compared at the end. Reported are milliseconds of a step, the median and the
least over the turns, and the ratio of each.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from simfed.ground.registry import registry
from simfed.learn.data import load_dataset
from simfed.learn.federation import Federation
from simfed.learn.flat import FlatModel
from simfed.learn.models import build_model
from simfed.learn.passes import choose_passes
from simfed.learn.training import Trainer
from simfed.scenario.model import Training
from simfed.scenario.prototype import PrototypeSpec

RATE, BATCH, STEPS = 0.1, 16, 8


class PlainAdapter(nn.Module):
    """x → W·x + b + B·(A·x)."""

    def __init__(self, layer: nn.Linear, rank: int) -> None:
        super().__init__()
        self.layer = layer
        self.A = nn.Parameter(torch.empty(rank, layer.in_features))
        nn.init.kaiming_uniform_(self.A, a=math.sqrt(5))
        self.B = nn.Parameter(torch.zeros(layer.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        whole: Tensor = self.layer(x)
        return whole + x @ self.A.T @ self.B.T


def build_plain(rank: int, seed: int) -> Any:
    """Return the model with adapters of the same first values as the engine's."""
    with torch.random.fork_rng(devices=[]):  # A is drawn after the base
        torch.manual_seed(seed)
        module = registry("model").get("causal-transformer")((80,), 96)
        module.requires_grad_(False)
        for block in module.blocks:
            for name in ("attend", "project"):
                setattr(block, name, PlainAdapter(getattr(block, name), rank))
    return module


def measure(rank: int, turns: int) -> None:
    """Print what a step takes on both sides."""
    data = Federation(load_dataset("text-mini"), [], np.arange(4))
    spec = PrototypeSpec.model_validate(
        {"model": "causal-transformer", "adapters": {"rank": rank}}
    )
    flat = FlatModel(build_model(spec, (80,), 96, seed=7))
    training = Training.model_validate({"local_steps": STEPS, "batch_size": BATCH})
    trainer = Trainer(flat, choose_passes(flat, (80,)), data, training)
    plain = build_plain(rank, 7)
    thin = [p for p in plain.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(thin, RATE)
    engine_s: list[float] = []
    plain_s: list[float] = []
    rng = np.random.default_rng(0)
    for _ in range(turns + 1):
        batches = [rng.choice(9_000, BATCH, replace=False) for _ in range(STEPS)]
        begun_s = time.perf_counter()
        trainer.descend(batches, RATE)
        engine_s.append((time.perf_counter() - begun_s) / STEPS)
        begun_s = time.perf_counter()
        for batch in batches:
            samples, labels = data.at(batch)
            optimizer.zero_grad()
            logits = plain(samples)
            F.cross_entropy(logits.flatten(0, 1), labels.flatten()).backward()
            optimizer.step()
        plain_s.append((time.perf_counter() - begun_s) / STEPS)
    ours = flat.weights
    theirs = torch.cat([p.detach().flatten() for p in thin])
    print(f"rank {rank}, d = {len(ours):,}, batch {BATCH}: largest difference of what "
          f"was learned {(ours - theirs).abs().max():.1e}")  # fmt: skip
    for name, of in (("median", statistics.median), ("least", min)):
        one_ms, other_ms = 1e3 * of(engine_s[1:]), 1e3 * of(plain_s[1:])
        print(f"{name}: engine {one_ms:.2f} ms, plain {other_ms:.2f} ms, "
              f"ratio {one_ms / other_ms:.3f}")  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--turns", type=int, default=15)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    measure(asked.rank, asked.turns)
