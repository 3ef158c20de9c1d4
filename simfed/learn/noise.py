"""PyTorch's own generator, keyed, for modules that draw from it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from simfed.ground.seeding import Streams


@contextmanager
def keyed_noise(
    streams: Streams,
    device: torch.device,
    may_draw: bool,
    client: int,
    round: int | str,
) -> Iterator[None]:
    """Key PyTorch's generator by client and round in the block.

    A user's own model draws random numbers there (dropout), and its draws do not hang
    on which process runs what.
    """
    if not may_draw:
        yield
        return
    cuda = device.type == "cuda"
    index = device.index or 0
    generator = (
        torch.cuda.default_generators[index] if cuda else torch.default_generator
    )
    state = generator.get_state()
    generator.manual_seed(streams.integer("noise", client, round))
    try:
        yield
    finally:
        generator.set_state(state)
