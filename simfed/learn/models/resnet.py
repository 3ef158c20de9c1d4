"""Residual networks for small images."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from simfed.learn.facts import check_image_shape


def _make_convolution(
    inputs: int, outputs: int, kernel: int, stride: int = 1
) -> nn.Conv2d:
    """Return a convolution without bias that keeps height and width at stride 1."""
    return nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)


def _make_group_norm(channels: int) -> nn.Module:
    return nn.GroupNorm(32, channels)


class _BasicBlock(nn.Module):
    """Two normalised 3×3 convolutions beside an identity or projected shortcut.

    `stride` halves height and width at 2; `norm` makes a norm of so many channels.
    """

    def __init__(
        self, inputs: int, outputs: int, stride: int, norm: Callable[[int], nn.Module]
    ) -> None:
        super().__init__()
        self.conv1 = _make_convolution(inputs, outputs, 3, stride)
        self.norm1 = norm(outputs)
        self.conv2 = _make_convolution(outputs, outputs, 3)
        self.norm2 = norm(outputs)
        same = inputs == outputs and stride == 1
        self.shortcut = (
            nn.Identity()
            if same
            else nn.Sequential(
                _make_convolution(inputs, outputs, 1, stride), norm(outputs)
            )
        )
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        y += self.shortcut(x)
        return self.relu(y)


class ResNet18(nn.Module):
    """ResNet-18 with the stem for small images.

    It is one 3×3 convolution, without pooling before the blocks.

    11,173,962 parameters and 9,600 running statistics on 3×32×32 images with 10
    classes. K. He et al., "Deep residual learning for image recognition", CVPR 2016.
    """

    name = "resnet18"
    norm_of: Callable[[int], nn.Module] = nn.BatchNorm2d
    """Channels → what normalises them."""

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        channels, _, _ = check_image_shape(self.name, input_shape, 1)
        norm = type(self).norm_of
        self.stem = _make_convolution(channels, 64, 3)
        self.norm = norm(64)
        self.relu = nn.ReLU(inplace=True)
        blocks: list[nn.Module] = []
        inputs = 64
        for outputs, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
            blocks += [
                _BasicBlock(inputs, outputs, stride, norm),
                _BasicBlock(outputs, outputs, 1, norm),
            ]
            inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Images (n, channels, height, width) → logits (n, classes)."""
        x = self.blocks(self.relu(self.norm(self.stem(x))))
        return self.head(x.mean((2, 3)))


class ResNet18GN(ResNet18):
    """ResNet18 with group norm, 32 groups, in place of batch norm.

    There are no running statistics, which clients of different data spoil for one
    another. 11,173,962 parameters.

    Y. Wu, K. He, "Group normalization", ECCV 2018; in federated learning as in K. Hsieh
    et al., "The non-IID data quagmire of decentralized machine learning", ICML 2020.
    """

    name = "resnet18-gn"
    norm_of = staticmethod(_make_group_norm)


class _PreActivationBlock(nn.Module):
    """Batch norm and ReLU before each of two 3×3 convolutions.

    A projection sees the activation.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inputs)
        self.conv1 = _make_convolution(inputs, outputs, 3, stride)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.conv2 = _make_convolution(outputs, outputs, 3)
        self.projection = (
            None if inputs == outputs else _make_convolution(inputs, outputs, 1, stride)
        )
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        activated = self.relu(self.norm1(x))
        y = self.conv2(self.relu(self.norm2(self.conv1(activated))))
        y += x if self.projection is None else self.projection(activated)
        return y


class WResNet40x2(nn.Module):
    """Wide residual network, depth 40, width factor 2, no dropout.

    2,243,546 parameters and 5,408 running statistics on 3×32×32 images with 10 classes.
    S. Zagoruyko, N. Komodakis, "Wide residual networks", BMVC 2016.
    """

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        channels, _, _ = check_image_shape("wresnet40-2", input_shape, 1)
        self.stem = _make_convolution(channels, 16, 3)
        blocks: list[nn.Module] = []
        inputs = 16
        for outputs, stride in ((32, 1), (64, 2), (128, 2)):
            for i in range(6):
                blocks.append(
                    _PreActivationBlock(inputs, outputs, stride if i == 0 else 1)
                )
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.BatchNorm2d(inputs)
        self.relu = nn.ReLU(inplace=True)
        self.head = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Images (n, channels, height, width) → logits (n, classes)."""
        x = self.relu(self.norm(self.blocks(self.stem(x))))
        return self.head(x.mean((2, 3)))
