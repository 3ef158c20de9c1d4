"""Who chooses the compression strategy of a client's round, and what it is paid.

`Uniform` always plays one arm, `Replay` those of a recorded run; `Ascend` and `Exp3` learn from
their own client's rewards. A policy of your own is one class with the methods of `Policy`, checked
by `simfed.testing.check_policy`.
"""

from simfed.policy.ascend import Ascend
from simfed.policy.base import CHOICES, Choice, Policy, Pull
from simfed.policy.exp3 import Exp3
from simfed.policy.fixed import Replay, Uniform
from simfed.policy.rewards import gain, reward

__all__ = [
    "CHOICES",
    "Ascend",
    "Choice",
    "Exp3",
    "Policy",
    "Pull",
    "Replay",
    "Uniform",
    "gain",
    "reward",
]
