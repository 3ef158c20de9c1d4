"""What the sides that use PyTorch share: the model with the task's first weights, and the test."""

from __future__ import annotations

import torch
from rival_task import Task
from torch import Tensor, nn


class Logistic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(784, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Images (n, 1, 28, 28) → logits (n, 10)."""
        return self.linear(x.flatten(1))  # type: ignore[no-any-return]


class LeNet5(nn.Module):
    """Two convolutions, ReLU and pooling by maximum, three linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5, padding=2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(400, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Images (n, 1, 28, 28) → logits (n, 10)."""
        x = nn.functional.max_pool2d(self.conv1(x).relu(), 2)
        x = nn.functional.max_pool2d(self.conv2(x).relu(), 2)
        x = self.fc1(x.flatten(1)).relu()
        return self.fc3(self.fc2(x).relu())  # type: ignore[no-any-return]


def build(task: Task) -> nn.Module:
    """The task's model with its first weights; one thread from here on."""
    torch.set_num_threads(1)
    model = {"logistic-regression": Logistic, "lenet5": LeNet5}[task.model]()
    model.load_state_dict({name: torch.from_numpy(w) for name, w in task.weights.items()})
    return model


def samples(task: Task) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(task.images), torch.from_numpy(task.labels)


@torch.no_grad()
def accuracy(model: nn.Module, task: Task) -> float:
    """On the test set, 500 images at a time."""
    right = 0
    images, labels = torch.from_numpy(task.test_images), torch.from_numpy(task.test_labels)
    for some, truth in zip(images.split(500), labels.split(500), strict=True):
        right += int((model(some).argmax(1) == truth).sum())
    return right / len(labels)
