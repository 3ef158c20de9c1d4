"""Fields that several methods send: a model on its way down, its update on its way up."""

from __future__ import annotations

from simfed.method import Field, Who

__all__ = ["model_down", "update_up"]


def model_down(who: Who) -> dict[str, Field]:
    """A model: its weights, in the scenario's number format, and its running statistics."""
    return {
        "weights": Field("weights", who.parameters),
        "buffers": Field("buffers", who.size.buffers),
    }


def update_up(who: Who) -> dict[str, Field]:
    """What local training changed: compressible with residuals, and the new running statistics."""
    return {
        "update": Field("update", who.parameters, compressed=True),
        "buffers": Field("buffers", who.size.buffers),
    }
