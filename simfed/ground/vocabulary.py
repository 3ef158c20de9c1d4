"""Words and facts that several rooms share: each stands here once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple, get_args

RELEVANT_RATIO = 1.05
"""A ratio of two times below this counts as no difference in a verdict."""

OUTCOMES = ("aggregated", "late", "dropped", "failed")
"""The outcomes of a participation."""

Reason = Literal["warm-up", "explore", "exploit", "fixed", "forced"]
CHOICES: tuple[Reason, ...] = get_args(Reason)
"""The reasons why an arm was chosen."""

IndexCode = Literal["ideal", "fixed", "rice", "seeded"]
INDEX_CODES: tuple[IndexCode, ...] = get_args(IndexCode)
"""The formats of the indices of a payload's entries."""


class LinkUse(NamedTuple):
    """The constant use of one link over one interval.

    Its flows and its capacity stay the same in it. A row of `links.parquet`: the
    annotations are its schema and the meanings of its columns.
    """

    link: Annotated[str, "its name in the topology"]
    from_s: Annotated[float, "instant"]
    to_s: Annotated[float, "instant"]
    bytes: Annotated[float, "moved in the interval"]
    capacity_bytes_per_s: Annotated[float, "of the link in the interval"]
    flows: Annotated[int, "transfers on the link in the interval"]
    airtime_s: Annotated[
        float | None,
        (
            "of a cell: time on the air; the capacity is then that of this mix of "
            "clients"
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Size and work of one model on samples of one shape.

    FLOPs count the convolutions and matrix products alone (a multiply-add is 2);
    normalisation, activations, pooling and biases are left out.
    """

    input_shape: tuple[int, ...]
    classes: int
    parameters: int
    """d: trainable parameters, the length of the flat gradient."""
    buffers: int
    """Running statistics (floating-point buffers); step counters are not counted."""
    forward_flops: int
    """FLOPs of one sample's forward pass."""
    train_flops: int
    """FLOPs of one sample's forward and backward pass (no gradient for the input
    itself)."""
    features: int = 0
    """Inputs of the last linear layer, the length of an embedding; 0: not known."""
    shapes: tuple[tuple[int, ...], ...] = ()
    """Shapes of the trainable parameters, in the order of the flat vector; empty: not
    known."""
    names: tuple[str, ...] = ()
    """Theirs, as `module.named_parameters()` has them; empty: not known."""
    head: str | None = None
    """Name of the last linear layer; None: not known, there is none, or nothing of it
    trains."""
    norms: tuple[str, ...] = ()
    """Names of the layers that are batch norm and not of the base."""
    base: int = 0
    """Parameters and running statistics that stand still: they lie on the device and
    do not travel."""

    @property
    def parameter_bytes(self) -> int:
        """The dense weights on the wire, 32 bits each."""
        return 4 * self.parameters
