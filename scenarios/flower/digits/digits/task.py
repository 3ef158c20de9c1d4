"""The model, the data, and what is done with them."""

from functools import cache

import torch
import torch.nn.functional as F
from torch import nn

from simfed.learn.data import load_dataset


class Net(nn.Module):
    """A small convolutional network for images of 28 by 28 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 8, 5), nn.Conv2d(8, 16, 5)
        self.fc1, self.fc2 = nn.Linear(256, 64), nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


@cache
def digits() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Images and labels to train on, and to test on."""
    data = load_dataset("mnist-mini")
    known = (*data.train(range(data.facts.train_samples)), *data.test())
    return tuple(torch.tensor(array) for array in known)


def share(partition: int, of: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A node's own digits: every `of`-th."""
    images, labels, _, _ = digits()
    return images[partition::of], labels[partition::of]


def train(net: Net, images, labels, epochs: int, learning_rate: float) -> float:
    """Local epochs of stochastic gradient descent; the last loss."""
    optimizer = torch.optim.SGD(net.parameters(), lr=learning_rate, momentum=0.9)
    for _ in range(epochs):
        for batch in torch.randperm(len(images)).split(20):
            optimizer.zero_grad()
            loss = F.cross_entropy(net(images[batch]), labels[batch])
            loss.backward()
            optimizer.step()
    return loss.item()


def test(net: Net) -> tuple[float, float]:
    """Accuracy and loss on the test set."""
    _, _, images, labels = digits()
    with torch.no_grad():
        logits = net(images)
    accuracy = (logits.argmax(1) == labels).float().mean().item()
    return accuracy, F.cross_entropy(logits, labels).item()
