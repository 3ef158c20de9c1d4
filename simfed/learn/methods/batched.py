"""What the batched engine needs to know of a method whose clients it trains together."""

from __future__ import annotations

import functools
from typing import ClassVar

from simfed.learn.methods.fields import model_down, update_up
from simfed.method import Method, Plan, Setting, Size, Who, Work

__all__ = ["Batched"]


class Batched(Method):
    """A method of `simfed.learn.workload`: local training from the server's weights, whose change
    travels up and is averaged per prototype; with a public set, distillation follows."""

    workload: ClassVar[str] = "simfed.learn.workload:LearningWorkload"
    moves_point: ClassVar[bool] = True
    sends_gradients: ClassVar[bool] = False
    """Updates are sums of gradients, not differences of weights."""
    weighs_by_samples: ClassVar[bool] = False
    """Clients count by how many samples they own, not alike."""

    def plan(self, setting: Setting, who: Who, round: int) -> Plan:
        return _plan(who.size, setting.training(who))


@functools.lru_cache(maxsize=4096)
def _plan(size: Size, training: Work) -> Plan:
    """Made once for clients that are alike: a time-only run asks for a million of them."""
    return Plan(model_down(size), (training,), update_up(size))
