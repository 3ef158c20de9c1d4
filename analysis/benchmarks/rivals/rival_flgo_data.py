"""The task as FLGo's benchmarks describe data and model; FLGo copies this file and imports it."""

from __future__ import annotations

import os

import torch
from rival_task import read_task
from rival_torch import build, samples
from torch import nn
from torch.utils.data import TensorDataset

task = read_task(os.environ["RIVAL_TASK"])
train_data = TensorDataset(*samples(task))
test_data = TensorDataset(torch.from_numpy(task.test_images), torch.from_numpy(task.test_labels))


def get_model() -> nn.Module:
    """The model with the task's first weights."""
    return build(task)
