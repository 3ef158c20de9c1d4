"""Policies: each client's way of choosing a compression strategy per round.

`Uniform` always plays one arm, `Replay` those of a recorded run; the others learn from
their own client's rewards: `Ascend`, exponential weights (`Exp3`), upper confidence
bounds (`Ucb`, and `LinUcb` with the client's context) and `Thompson`. A policy of your
own is one class with the methods of `Policy`, checked by `simfed.testing.check_policy`.
"""

from simfed.compress.choice import Choice
from simfed.policy.adaptive import AdaptiveK
from simfed.policy.ascend import Ascend
from simfed.policy.balance import Balance
from simfed.policy.base import (
    CHOICES,
    Bandit,
    Context,
    Policy,
    Pull,
    Reason,
    Spent,
    check_option,
    paces_of,
    reads_context,
    serves_all,
    watches,
)
from simfed.policy.bcrs import Bcrs
from simfed.policy.build import build_policy, prepare_policies
from simfed.policy.exp3 import Exp3
from simfed.policy.factored import Factored
from simfed.policy.fixed import Replay, Uniform
from simfed.policy.linucb import LinUcb
from simfed.policy.rewards import gain, reward
from simfed.policy.thompson import Thompson
from simfed.policy.ucb import Ucb

__all__ = [
    "CHOICES",
    "AdaptiveK",
    "Ascend",
    "Balance",
    "Bandit",
    "Bcrs",
    "Choice",
    "Context",
    "Exp3",
    "Factored",
    "LinUcb",
    "Policy",
    "Pull",
    "Reason",
    "Replay",
    "Spent",
    "Thompson",
    "Ucb",
    "Uniform",
    "build_policy",
    "check_option",
    "gain",
    "paces_of",
    "prepare_policies",
    "reads_context",
    "reward",
    "serves_all",
    "watches",
]
