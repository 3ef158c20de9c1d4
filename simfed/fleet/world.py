"""The world of a run, whatever learns in it: clients, shared links, faults."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from pydantic import Field, model_validator

from simfed.device.spec import DeviceSpec, FixedDevice
from simfed.fleet.availability import Failure
from simfed.fleet.faults import FaultsSpec
from simfed.fleet.presence import AvailabilityOf
from simfed.ground.arrays import Ints
from simfed.ground.errors import InputError
from simfed.net.spec import LinkSpec, NetworkSpec
from simfed.schema.distribution import DeviceTable, Distribution, list_distributions
from simfed.schema.fields import PositiveInt, Seed
from simfed.schema.section import Section

MOST_CLIENTS = 10_000_000
"""The most clients of a scenario; idle ones take some 80 bytes each."""


class Group(Section):
    """`count` clients that are alike."""

    count: PositiveInt = Field(default=1, description="clients of this kind")
    prototype: str = Field(description="a key of `prototypes`")
    device: DeviceSpec = Field(description="processor; a name alone is its `profile`")
    link: LinkSpec = Field(
        default=LinkSpec(),
        description="access link; omitted: unlimited, with a warning",
    )
    devices: DeviceTable | None = Field(
        default=None, description="a table whose rows are devices: one for each client"
    )
    availability: AvailabilityOf = Field(
        default="always", description="when clients are there"
    )
    failure: Failure = Field(
        default=Failure(), description="of participations, per phase"
    )

    @property
    def columns(self) -> dict[str, Distribution]:
        """The quantities that come from the table `devices`, by their key."""
        return {
            path: value
            for path, value in list_distributions(self)
            if value.column is not None and value.table is None
        }

    @model_validator(mode="after")
    def _check_columns(self) -> Group:
        for path, value in self.columns.items() if self.devices is None else ():
            allowed = "the key 'table' beside column, or a table `devices` in the group"
            raise InputError(allowed, where=path, got=value.column)
        return self


class ServerSpec(Section):
    """The server's processor; null: its work takes no simulated time."""

    device: FixedDevice | None = Field(
        default=None, description="null: the server takes no time"
    )


class WorldSpec(Section):
    """The sections that a scenario shares with the world of an app."""

    name: str = Field(description="of runs/NAME, and in reports")
    seed: Seed = Field(default=0, description="of everything random")
    client_order: Literal["grouped", "round-robin"] = Field(
        default="grouped", description="ids group by group, or taking turns"
    )
    clients: tuple[Group, ...] = Field(description="groups of equal clients")
    network: NetworkSpec = Field(default=NetworkSpec(), description="what links share")
    server: ServerSpec = Field(
        default=ServerSpec(), description="the server's own time"
    )
    faults: FaultsSpec | None = Field(
        default=None, description="what goes wrong; null: nothing"
    )

    @model_validator(mode="after")
    def _check_count(self) -> WorldSpec:
        if not self.clients:
            raise InputError("at least one group of clients", where="clients", got=[])
        if self.client_count > MOST_CLIENTS:
            allowed = f"at most {MOST_CLIENTS:,} clients"
            raise InputError(allowed, where="clients", got=self.client_count)
        for i, group in enumerate(self.clients):
            if self.sizes_column is not None and group.devices is None:
                allowed = "the key 'table' beside column, or `devices` in each group"
                got = self.sizes_column
                raise InputError(allowed, where="dataset.partition.sizes", got=got)
            if group.devices is not None and not (group.columns or self.sizes_column):
                allowed = "some field of the group with a `column` of this table"
                raise InputError(allowed, where=f"clients[{i}].devices")
        return self

    @property
    def client_count(self) -> int:
        """The number of clients, all groups together."""
        return sum(group.count for group in self.clients)

    @property
    def sizes_column(self) -> str | None:
        """The column of the tables `devices` that says how many samples clients own."""
        return None

    def group_of_client(self) -> Ints:
        """Return for each client id the index of its group in `clients`.

        `grouped`: the groups one after another; `round-robin`: one of each group in
        turn, groups that are used up left out.
        """
        counts = np.array([group.count for group in self.clients])
        grouped = np.repeat(np.arange(len(counts)), counts)
        if self.client_order == "grouped":
            return grouped
        turn = np.concatenate([np.arange(count) for count in counts])
        return grouped[np.lexsort((grouped, turn))]

    def k_of_group(self, group: Any) -> int | str | Distribution | None:
        """Return K of a group's clients as it is written.

        None: nothing is compressed.
        """
        return None
