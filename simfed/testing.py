"""The public door to the checks of parts of your own; they stand in `simfed.verify.parts`."""

from simfed.verify.parts import (
    check_attack,
    check_availability,
    check_compressor,
    check_dataset,
    check_device,
    check_method,
    check_model,
    check_policy,
    check_rule,
    check_selection,
)

__all__ = [
    "check_attack",
    "check_availability",
    "check_compressor",
    "check_dataset",
    "check_device",
    "check_method",
    "check_model",
    "check_policy",
    "check_rule",
    "check_selection",
]
