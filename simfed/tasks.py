"""What both sides must agree on: who is asked to do what, and what it weighs on the wire.

The clock plays these tasks, and learning carries them out; neither may import the other, and a fact
that stood in both would sooner or later stand there twice. No tensor and no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

import numpy as np

from simfed.compress.wire import uplink_bytes
from simfed.contract import Task
from simfed.levels import Level
from simfed.method import Field, Method, Plan, Setting, Size, Who, Work
from simfed.policy import Policy, Pull, build_policy
from simfed.scenario import Scenario
from simfed.scenario.model import ClientGroup
from simfed.seeding import Streams

__all__ = ["NO_COMPRESSION", "Tasks", "policy_of", "pull_for"]

NO_COMPRESSION = "dense"
"""The arm of a participation that compresses nothing."""


_UNUSED = np.random.default_rng(0)
"""For policies that say that they draw nothing: to key a generator takes longer than their pull."""


class Facts(Protocol):
    """What is known of a model without building it (`simfed.learn.catalogue.ModelFacts`)."""

    @property
    def parameters(self) -> int: ...
    @property
    def buffers(self) -> int: ...
    @property
    def features(self) -> int: ...
    @property
    def classes(self) -> int: ...
    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]: ...


class Tasks:
    """The tasks of a scenario's clients, and their sizes.

    facts: prototype → the facts of its model. samples_of: client → training samples it owns; asked
    only by plans that depend on it.
    """

    def __init__(
        self, scenario: Scenario, facts: Mapping[str, Facts], samples_of: Callable[[int], int]
    ) -> None:
        self.method: Method = scenario.method.made
        clients = scenario.clients_of_prototype
        sizes = {
            name: Size(p.model, of.parameters, of.buffers, of.features, clients[name], of.shapes)
            for name, p in scenario.prototypes.items()
            for of in [facts[name]]
        }
        training = scenario.training
        self.setting = Setting(
            rounds=scenario.rounds,
            clients=scenario.client_count,
            participants=scenario.participation.clients_per_round or scenario.client_count,
            classes=next(iter(facts.values())).classes,
            public=scenario.public_samples,
            batch_size=training.batch_size,
            local_steps=training.local_steps,
            local_epochs=training.local_epochs,
            prototypes=sizes,
            distillation_steps=scenario.distillation.steps,
        )
        self._samples_of = samples_of
        self._group_of_client = scenario.group_of_client()
        self._prototypes = [group.prototype for group in scenario.clients]
        self.index_code = scenario.compression.index_code
        self._charge = scenario.charge
        self._weight_bytes = 2.0 if scenario.downlink.payload == "fp16" else 4.0
        self._known: dict[tuple[str, int, int, str], float | None] = {}

    def who(self, client: int, turn: int = 0) -> Who:
        """The plain facts of one client."""
        prototype = self._prototypes[self._group_of_client[client]]
        return Who(client, prototype, self.setting.prototypes[prototype], self._samples_of, turn)

    def task(self, round: int, client: int, model_version: int, turn: int = 0) -> Task:
        """What `client` is asked to do in `round`."""
        who = self.who(client, turn)
        plan = self.method.plan(self.setting, who, round)
        return Task(round, client, who, plan, model_version, self.downlink_bytes(plan))

    def downlink_bytes(self, plan: Plan, sent: Mapping[str, int] | None = None) -> float:
        """What travels down; 0 where that is not charged.

        sent: entries of each field as it was sent; without it, bounded fields count as the most.
        """
        if not self._charge.downlink:
            return 0.0
        total = 0.0
        for name, field in plan.down.items():
            size = self._weight_bytes if field.kind == "weights" else field.value_bytes
            if field.kind != "buffers" or self._charge.buffers:
                total += size * (sent[name] if sent and field.bounded else field.entries)
        return total

    def downlink_varies(self, plan: Plan) -> bool:
        """Whether the bytes that travel down depend on what is learned."""
        return self._charge.downlink and any(field.bounded for field in plan.down.values())

    def uplink_bytes(self, task: Task, arm: str, k: Level) -> float | None:
        """What travels up; None where that depends on the data."""
        total = 0.0
        for field in task.plan.up.values():
            size = self.field_bytes(task, field, arm, k)
            if size is None:
                return None
            total += size
        return total

    def field_bytes(self, task: Task, field: Field, arm: str, k: Level) -> float | None:
        """What one field of an upload comes to; None where that depends on the data."""
        if field.bounded:
            return None
        if not field.compressed:
            charged = field.kind != "buffers" or self._charge.buffers
            return field.value_bytes * field.entries if charged else 0.0
        of_model = task.model if field.kind == "update" else ""
        if isinstance(k, str):
            return None
        key = arm, field.entries, k, of_model
        if key not in self._known:
            kept = min(k, field.entries)
            layout = task.who.size.shapes if of_model else None
            self._known[key] = uplink_bytes(arm, field.entries, kept, self.index_code, layout)
        return self._known[key]

    def server_work(self, arrived: Iterable[Who], round: int) -> Sequence[Work]:
        """What the server works at this merge, beside decompression."""
        return self.method.server_work(self.setting, list(arrived), round)


def policy_of(scenario: Scenario, group: ClientGroup) -> Policy:
    """A new policy for a client of a group."""
    spec = scenario.policy_of_group(group)
    among = spec.learns and not spec.sets_k
    return build_policy(
        spec.kind,
        scenario.compression.arms,
        reward_range=spec.reward.clip,
        options=spec.options,
        factored=among and scenario.compression.pairs == "factored",
    )


def pull_for(task: Task, policy: Policy, forced_arm: str | None, streams: Streams) -> Pull:
    """How this task's upload is compressed: as the server forces it, or as the client's policy
    says; where nothing is compressed, nobody is asked."""
    if not task.plan.longest:
        return Pull(NO_COMPRESSION, "fixed")
    if forced_arm is not None:
        return Pull(forced_arm, "forced")
    if policy.draws:
        return policy.pull(streams("policy", task.client, task.key))
    return policy.pull(_UNUSED)
