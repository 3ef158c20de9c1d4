"""LeNet-5 and its half-width sibling."""

from __future__ import annotations

from torch import Tensor, nn

from simfed.learn.facts import check_image_shape
from simfed.learn.models.layers import ReluPool


class LeNet5(nn.Module):
    """LeNet-5: two 5×5 convolutions, then three linear layers.

    The first convolution has padding 2, each ReLU and 2×2 max-pool.

    61,706 parameters on 1×28×28 images with 10 classes. Y. LeCun et al.,
    "Gradient-based learning applied to document recognition", Proc. IEEE 1998; with
    ReLU and max-pooling in place of the original's activations and subsampling.
    """

    name = "lenet5"
    passes = "simfed.learn.models.lenet_passes:LeNetPasses"
    """Passes by compiled loops, where there are any; a subclass that computes something
    else does not suit them."""
    widths = (6, 16, 120, 84)

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        channels, height, width = check_image_shape(self.name, input_shape, 12)
        first, second, third, fourth = self.widths
        features = second * ((height // 2 - 4) // 2) * ((width // 2 - 4) // 2)
        self.conv1 = nn.Conv2d(channels, first, 5, padding=2)
        self.pool1 = ReluPool()
        self.conv2 = nn.Conv2d(first, second, 5)
        self.pool2 = ReluPool()
        self.fc1 = nn.Linear(features, third)
        self.fc2 = nn.Linear(third, fourth)
        self.fc3 = nn.Linear(fourth, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Images (n, channels, height, width) → logits (n, classes)."""
        x = self.pool1(self.conv1(x))
        x = self.pool2(self.conv2(x)).flatten(1)
        x = self.fc1(x).relu()
        x = self.fc2(x).relu()
        return self.fc3(x)


class LeNet5Half(LeNet5):
    """LeNet-5 with every hidden width halved: 15,738 parameters.

    That is on 1×28×28 images with 10 classes.
    """

    name = "lenet5-half"
    widths = (3, 8, 60, 42)
