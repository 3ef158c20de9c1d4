"""Fields that several methods send: a model going down, its update going up."""

from __future__ import annotations

from simfed.ground.method import Field, Size, State, Values


def pick_model(state: State) -> Values:
    """Return the weights and running statistics of a state that has more, perhaps."""
    return {"weights": state["weights"], "buffers": state["buffers"]}


def model_down(size: Size) -> dict[str, Field]:
    """Return a model's fields: weights, in the scenario's format, and statistics."""
    return {
        "weights": Field("weights", size.parameters),
        "buffers": Field("buffers", size.buffers),
    }


def update_up(size: Size) -> dict[str, Field]:
    """Return the fields of local training: its change, and running statistics.

    The change is compressible with residuals.
    """
    return {
        "update": Field("update", size.parameters, compressed=True),
        "buffers": Field("buffers", size.buffers),
    }
