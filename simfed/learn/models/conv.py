"""The two convolutional networks of federated learning's own benchmarks."""

from __future__ import annotations

from torch import Tensor, nn

from simfed.learn.facts import check_image_shape
from simfed.learn.models.layers import ReluPool


class McMahanCNN(nn.Module):
    """Two 5×5 convolutions of 32 and 64 channels, a linear layer of 512, classes.

    Convolutions have padding 2, each ReLU and 2×2 max-pool.

    1,663,370 parameters on 1×28×28 images with 10 classes. H. B. McMahan et al.,
    "Communication-efficient learning of deep networks from decentralized data", AISTATS
    2017.
    """

    name = "mcmahan-cnn"
    hidden = 512

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        channels, height, width = check_image_shape(self.name, input_shape, 4)
        self.conv1 = nn.Conv2d(channels, 32, 5, padding=2)
        self.pool1 = ReluPool()
        self.conv2 = nn.Conv2d(32, 64, 5, padding=2)
        self.pool2 = ReluPool()
        self.fc1 = nn.Linear(64 * (height // 2 // 2) * (width // 2 // 2), self.hidden)
        self.fc2 = nn.Linear(self.hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Images (n, channels, height, width) → logits (n, classes)."""
        x = self.pool1(self.conv1(x))
        x = self.pool2(self.conv2(x)).flatten(1)
        return self.fc2(self.fc1(x).relu())


class FemnistCNN(McMahanCNN):
    """McMahan's CNN with a linear layer of 2,048, for FEMNIST.

    6,603,710 parameters on 1×28×28 images with 62 classes. S. Caldas et al., "LEAF: a
    benchmark for federated settings", 2018.
    """

    name = "femnist-cnn"
    hidden = 2048
