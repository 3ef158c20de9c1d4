"""All clients, most of them idle: columns for everybody, objects for those that have taken part.

A million idle clients cost a few bytes each; a client's policy and device are made when it first
takes part and then kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from simfed.device import Device
from simfed.fleet import Fleet
from simfed.policy import Policy
from simfed.scenario import Scenario
from simfed.scenario.model import Reward
from simfed.seeding import Streams

__all__ = ["Population"]


class Population:
    """The clients of a run."""

    def __init__(
        self,
        scenario: Scenario,
        make_policy: Callable[[int], Policy],
        make_device: Callable[[int], Device],
        streams: Streams,
    ) -> None:
        """`make_policy(client)` and `make_device(client)` are called once per client that takes part."""
        groups = scenario.clients
        self._fleet = Fleet(scenario, streams)
        self._reward = tuple(scenario.policy_of_group(group).reward for group in groups)
        self._make_policy = make_policy
        self._make_device = make_device
        self._policies: dict[int, Policy] = {}
        self._devices: dict[int, Device] = {}

    def __len__(self) -> int:
        return len(self._fleet)

    def k(self, client: int, parameters: int) -> int:
        """Entries this client keeps, at most the d = `parameters` there are."""
        return self._fleet.k(client, parameters)

    def reward_rule(self, client: int) -> Reward:
        """How this client's policy is paid."""
        return self._reward[int(self._fleet.group[client])]

    def policy(self, client: int) -> Policy:
        """This client's policy."""
        if client not in self._policies:
            self._policies[client] = self._make_policy(client)
        return self._policies[client]

    def device(self, client: int) -> Device:
        """This client's processor."""
        if client not in self._devices:
            self._devices[client] = self._make_device(client)
        return self._devices[client]

    def state(self) -> dict[str, Any]:
        """What has changed since the run began, JSON-able: the states that are not empty."""
        return {
            "policies": {str(c): s for c, p in self._policies.items() if (s := p.state())},
            "devices": {str(c): s for c, d in self._devices.items() if (s := d.state())},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Inverse of `state`, on a new population of the same scenario."""
        for client, of_policy in state["policies"].items():
            self.policy(int(client)).restore(of_policy)
        for client, of_device in state["devices"].items():
            self.device(int(client)).restore(of_device)
