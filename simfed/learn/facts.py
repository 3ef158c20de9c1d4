"""Facts of models and data sets that are known without building or reading them.

They are sizes, shapes and work: all that a time-only run, a plan and a charge need.
Here are data sets' and the checks of shapes; `catalogue` counts models.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from simfed.ground.errors import InputError


@dataclass(frozen=True, slots=True)
class DatasetFacts:
    """The facts of a data set that are known without reading it.

    A registered data set may carry them as `facts`; else it is loaded once for them.
    """

    input_shape: tuple[int, ...]
    """Shape of one sample, (channels, height, width) for images."""
    classes: int
    """The number of classes; 1 in a regression."""
    train_samples: int
    test_samples: int
    task: str = field(default="classification", repr=False)
    tokens: bool = field(default=False, repr=False)
    """Samples are characters, whole numbers below `classes`."""
    owners: int = field(default=0, repr=False)
    """The number of owners that the data name; 0: none."""
    layout: str = field(default="", repr=False, compare=False)
    """The place of images' channels in the files: `channels-first`, `channels-last`, or
    `either` where nothing tells and they were read as channels-first; empty: no images,
    or files that say it."""

    @property
    def answers(self) -> int:
        """Predictions on the test set: one per sample, in texts one per character."""
        return self.test_samples * (
            self.input_shape[0] if self.task == "next-token" else 1
        )


def check_image_shape(
    model: str, input_shape: tuple[int, ...], smallest: int
) -> tuple[int, ...]:
    """Return `input_shape` as (channels, height, width).

    Args:
        model: The model, for errors.
        input_shape: Of one sample.
        smallest: The least height and width, in pixels.

    Raises:
        InputError: It is no image, or too small a one.
    """
    if len(input_shape) != 3 or min(input_shape[1:]) < smallest or input_shape[0] < 1:
        raise InputError(
            (
                f"images (channels, height, width) of at least {smallest}×{smallest} "
                f"pixels for model {model}"
            ),
            got=tuple(input_shape),
        )
    return tuple(input_shape)


def check_token_shape(model: str, input_shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return `input_shape` as (characters,).

    Raises:
        InputError: Samples are no texts.
    """
    if len(input_shape) != 1 or input_shape[0] < 1:
        raise InputError(
            f"texts (characters,) for model {model}", got=tuple(input_shape)
        )
    return tuple(input_shape)


PUBLISHED_DATASETS: dict[str, DatasetFacts] = {
    "mnist-mini": DatasetFacts((1, 28, 28), 10, 10_000, 2_000),
    "mnist": DatasetFacts((1, 28, 28), 10, 60_000, 10_000),
    "fashion-mnist": DatasetFacts((1, 28, 28), 10, 60_000, 10_000),
    "cifar10": DatasetFacts((3, 32, 32), 10, 50_000, 10_000),
    "text-mini": DatasetFacts((80,), 96, 9_675, 1_032, "next-token", True, 43),
    "sotu": DatasetFacts((80,), 96, 121_047, 13_428, "next-token", True, 43),
}
