"""Contract checks for parts of your own, to be called from your tests.

    def test_my_codec_keeps_the_contract(): simfed.testing.check_codec(MyCodec)

Each check plays the part through small worlds and raises `AssertionError` with one
sentence for the first clause of the contract that does not hold. simfed's own tests run
the same checks over every name of the registries.

What a check cannot see: whether the part does what its paper says. It holds a part to
what its host relies on: no hidden randomness, no memory but what comes in, arguments
left alone, sizes as charged, states that checkpoints carry.
"""

from simfed.testing.codecs import check_codec
from simfed.testing.fleets import check_availability, check_selection
from simfed.testing.methods import check_method
from simfed.testing.models import check_dataset, check_device, check_model
from simfed.testing.policies import check_policy
from simfed.testing.robustness import check_attack, check_rule

__all__ = [
    "check_attack",
    "check_availability",
    "check_codec",
    "check_dataset",
    "check_device",
    "check_method",
    "check_model",
    "check_policy",
    "check_rule",
    "check_selection",
]
