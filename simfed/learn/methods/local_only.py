"""Everybody for themselves: the lower bound of every comparison."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from typing_extensions import override

from simfed.ground.method import LocalSteps, Plan, Setting, State, Values, Who
from simfed.learn.methods.personal import Personal

if TYPE_CHECKING:
    from simfed.learn.kit import Kit


@dataclass(frozen=True)
class LocalOnly(Personal):
    """Clients train models of their own on their own data; nothing travels.

    Each begins with its prototype's first weights, and is evaluated for itself.
    """

    @override
    def plan(self, setting: Setting, who: Who, round: int) -> Plan:
        return Plan({}, (setting.training(who),), {})

    @override
    def begin(self, kit: Kit) -> State:
        return {}

    @override
    def local_steps(
        self, kit: Kit, who: Who, round: int, down: Values, own: State
    ) -> LocalSteps:
        return LocalSteps(own)

    @override
    def trained(
        self, kit: Kit, who: Who, round: int, down: Values, own: State, after: Values
    ) -> tuple[Values, State]:
        return {}, after
