"""A plain PyTorch loop: one module, one client after another.

python rival_loop.py TASK.npz
"""

from __future__ import annotations

import sys

import numpy as np
import torch
import torch.nn.functional as F
from rival_task import Rounds, read_task
from rival_torch import accuracy, build, samples


def main() -> None:
    task = read_task(sys.argv[1])
    model, (images, labels) = build(task), samples(task)
    owned = [torch.from_numpy(own) for own in task.owned]
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=task.rate)
    rng, rounds = np.random.default_rng(0), Rounds(task.rounds)
    for round in range(1, task.rounds + 1):
        cohort = rng.choice(task.clients, task.per_round, replace=False)
        total = sum(len(owned[client]) for client in cohort)
        start = [layer.detach().clone() for layer in parameters]
        mean = [torch.zeros_like(layer) for layer in start]
        for client in cohort:
            own = owned[client]
            with torch.no_grad():
                for parameter, first in zip(parameters, start, strict=True):
                    parameter.copy_(first)
            for batch in own[torch.randperm(len(own))].split(task.batch):
                optimizer.zero_grad()
                F.cross_entropy(model(images[batch]), labels[batch]).backward()
                optimizer.step()
            with torch.no_grad():
                for into, parameter in zip(mean, parameters, strict=True):
                    into.add_(parameter, alpha=len(own) / total)
        with torch.no_grad():
            for parameter, new in zip(parameters, mean, strict=True):
                parameter.copy_(new)
        rounds.after(round)
    rounds.report(accuracy(model, task), "torch")


if __name__ == "__main__":
    main()
