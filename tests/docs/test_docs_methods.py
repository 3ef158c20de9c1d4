"""The page of methods has all of them, with their options and the losses that rewards
follow.
"""

import inspect
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from simfed.ground.registry import registry

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "methods.md").read_text()
ROWS = [line.split("|")[1:-1] for line in PAGE.splitlines() if line.startswith("| `")]
OPTIONS_IN_WORDS = {"kt-pfl": "fedmd"}
"""A method whose row says `as …` for the options that it shares with another."""


def row_of(name):
    return next(row for row in ROWS if len(row) == 7 and row[0].strip() == f"`{name}`")


@pytest.mark.parametrize("name", registry("method").names())
def test_every_method_has_a_row_with_its_options_and_its_loss(name):
    cls = registry("method").get(name)
    said = row_of(name)[-1] + (
        row_of(OPTIONS_IN_WORDS[name])[-1] if name in OPTIONS_IN_WORDS else ""
    )
    missing = [
        option
        for option in inspect.signature(cls).parameters
        if f"`{option}`" not in said
    ]
    assert not missing
    if cls.shared_loss:
        losses = next(row for row in ROWS if len(row) == 3 and f"`{name}`" in row[0])
        assert f"`{cls.shared_loss}`" in losses[1]


def test_fednova_counts_directions_and_not_steps():
    """Two clients of as many samples, one step and three: (u₁/1 + u₂/3)/2 times the
    mean of two.
    """
    import torch

    from simfed.ground.method import Arrival, Size, Who

    blocks = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)
    (block,) = (block for block in blocks if "class FedNova" in block)
    page: dict[str, object] = {"__name__": "page"}
    exec(block.partition("simfed.register")[0], page)
    size = Size("any", 2, 0, 0, 2)
    kit = SimpleNamespace(setting=SimpleNamespace(steps=lambda who: 1 + 2 * who.client))
    server = {"one": {"weights": torch.zeros(2), "buffers": torch.zeros(0)}}
    updates = torch.tensor([[1.0, 0.0], [0.0, 3.0]])
    arrivals = [
        Arrival(
            Who(c, "one", size, 10),
            0,
            {"update": updates[c], "buffers": torch.zeros(0)},
        )
        for c in range(2)
    ]
    after, _ = page["FedNova"]().merge(kit, server, arrivals, 1)
    assert torch.allclose(after["one"]["weights"], torch.tensor([-1.0, -1.0]))
