"""Fields that several methods send: a model on its way down, its update on its way up."""

from __future__ import annotations

from simfed.ground.method import Field, Size


def model_down(size: Size) -> dict[str, Field]:
    """A model: its weights, in the scenario's number format, and its running statistics."""
    return {
        "weights": Field("weights", size.parameters),
        "buffers": Field("buffers", size.buffers),
    }


def update_up(size: Size) -> dict[str, Field]:
    """What local training changed: compressible with residuals, and the new running statistics."""
    return {
        "update": Field("update", size.parameters, compressed=True),
        "buffers": Field("buffers", size.buffers),
    }
