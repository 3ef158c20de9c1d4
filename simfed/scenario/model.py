"""What a scenario file may say, with its defaults.

The defaults are those of the method (ASCEND); where this page and the method's text disagree, one
of them is a bug. A `Scenario` is frozen and complete: no other module has a default of its own.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from pydantic import Field, field_validator, model_validator

from simfed.errors import InputError, did_you_mean, listed
from simfed.scenario.device import Device
from simfed.scenario.distribution import Devices, Distribution, DrawnEntries, drawn_in
from simfed.scenario.fields import (
    Entries,
    FoundFile,
    Fraction,
    Int,
    Named,
    NonNegative,
    Number,
    Part,
    Positive,
    PositiveInt,
)
from simfed.scenario.network import Link, Network
from simfed.scenario.presence import AvailabilityOf, Failure

__all__ = [
    "Aggregation",
    "ClientGroup",
    "Compression",
    "Dataset",
    "Distillation",
    "Partition",
    "Policy",
    "Prototype",
    "Reward",
    "Rollback",
    "Scenario",
    "Training",
]


class Partition(Part):
    """How the training samples are dealt to the clients.

    `dirichlet`: the samples of each class in proportions drawn from Dir(alpha); `iid`: a random
    equal split; `shards`: sorted by label and cut into `shards_per_client` × clients pieces.
    """

    kind: Literal["dirichlet", "iid", "shards"] = Field(
        default="dirichlet",
        description="label skew by Dirichlet shares, none, or shards of one label",
    )
    alpha: Positive = Field(default=0.5, description="Dirichlet concentration; small is skewed")
    shards_per_client: PositiveInt = Field(default=2, description="shards only")


class Dataset(Part):
    """The data: what the clients own, the server's unlabelled public set, the test set."""

    name: Named("dataset") = Field(description="see `simfed list datasets`")  # type: ignore[valid-type]
    public: Int = Field(default=256, description="unlabelled images at the server")
    public_batch: PositiveInt | None = Field(
        default=None, description="random subset of the public set per round; all of it if omitted"
    )
    partition: Partition = Field(default=Partition(), description="who owns which training samples")


class Prototype(Part):
    """A model architecture and the clients that share its weights."""

    model: Named("model") = Field(description="see `simfed list models`")  # type: ignore[valid-type]


class Schedule(Part):
    """The factor on the learning rates in round t = 1, 2, …

    `constant`: 1; `inverse-sqrt`: 1/√t; `cosine`: from 1 at the first to 0 after the last round;
    `step`: `factor` to the power ⌊(t − 1)/`every`⌋.
    """

    kind: Literal["constant", "inverse-sqrt", "cosine", "step"] = Field(
        default="constant", description="of the learning rates over rounds"
    )
    every: PositiveInt = Field(default=100, description="step: rounds between two drops")
    factor: Positive = Field(default=0.5, description="step: what remains after a drop")


class Training(Part):
    """Local training."""

    batch_size: PositiveInt = Field(default=32, description="samples of a local step")
    learning_rate: Positive = Field(default=0.02, description="η")
    local_steps: PositiveInt = Field(default=1, description="SGD steps per round (fedkd)")
    local_epochs: PositiveInt = Field(default=1, description="passes over its data (fedavg)")
    schedule: Schedule = Field(default=Schedule(), description="of the learning rate")


class Compression(Part):
    """What travels up: K entries of the residual-corrected gradient, and how their indices are coded."""

    k: Entries = Field(
        default=1000, description="entries kept of an update; `1%`: of the model's parameters"
    )
    strategies: tuple[Named("compressor"), ...] = Field(  # type: ignore[valid-type]
        default=("top-k", "random-k", "periodic-k"),
        description="what policies choose from, in this order",
    )
    index_code: Literal["ideal", "fixed", "raw32", "bitmap", "rice", "seeded"] = Field(
        default="ideal", description="how indices are charged, see compression"
    )

    @field_validator("strategies")
    @classmethod
    def _some_and_distinct(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value or len(set(value)) != len(value):
            raise ValueError(InputError("at least one strategy, each once", got=list(value)))
        return value


class LocalLoss(Part):
    """f_n, the client's own loss inside the reward."""

    data: Literal["probe", "full", "batch"] = Field(
        default="probe",
        description="where fₙ is computed: a fixed random probe, all of the client's samples, or the batch",
    )
    samples: PositiveInt = Field(default=256, description="size of the fixed random probe")
    credit: Literal["causal", "as-printed"] = Field(
        default="causal", description="whose improvement a choice is paid for, see policies"
    )


class Reward(Part):
    """Learning gain per simulated second: clip((rho·ΔKD + beta·Δlocal)/τ)."""

    rho: NonNegative = Field(default=0.6, description="weight of the gain on the public set")
    beta: NonNegative = Field(
        default=0.4, description="weight of the gain on the client's own data"
    )
    clip: tuple[Number, Number] = Field(
        default=(-1.0, 1.0), description="bounds of gain per simulated second"
    )
    local_loss: LocalLoss = Field(
        default=LocalLoss(), description="how the gain on the client's own data is measured"
    )

    @field_validator("clip")
    @classmethod
    def _ordered(cls, value: tuple[float, float]) -> tuple[float, float]:
        if not value[0] < value[1]:
            raise ValueError(InputError("[low, high] with low < high", got=list(value)))
        return value


_POLICY_KEYS: dict[str, dict[str, Any]] = {
    "uniform": {"strategy": ...},
    "ascend": {"warmup": 5, "c": 3.0, "ema": 0.1},
    "exp3": {"mixing": 0.1},
}


class Policy(Part):
    """Who picks the strategy: `uniform` (always the same), `ascend`, `exp3`, or a registered one."""

    kind: Named("policy") = Field(default="ascend", description="see `simfed list policies`")  # type: ignore[valid-type]
    strategy: Named("compressor") | None = Field(default=None, description="uniform: the strategy")  # type: ignore[valid-type]
    warmup: PositiveInt | None = Field(
        default=None, description="ascend: warm-up plays per strategy; 5 if omitted"
    )
    c: NonNegative | None = Field(
        default=None, description="ascend: exploration, ε = min(1, c/√t); 3 if omitted"
    )
    ema: Fraction | None = Field(
        default=None, description="ascend: step of the moving average; 0.1 if omitted"
    )
    mixing: Fraction | None = Field(
        default=None, description="exp3: share of uniform exploration; 0.1 if omitted"
    )
    reward: Reward = Field(default=Reward(), description="what a choice was worth; ascend, exp3")
    parameters: dict[str, Any] = Field(default={}, description="arguments of a registered policy")
    arms_from: FoundFile | None = Field(
        default=None, description="a run directory whose recorded arms and sizes are replayed"
    )

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_kind(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        kind = value.get("kind", "ascend")
        keys = _POLICY_KEYS.get(kind, {}) if isinstance(kind, str) else {}
        own = {k: v for k, v in keys.items() if v is not ...}
        return {**own, **value}

    @model_validator(mode="after")
    def _keys_of_kind(self) -> Policy:
        keys = {key for kind in _POLICY_KEYS.values() for key in kind}
        own = set(_POLICY_KEYS.get(self.kind, ()))
        for key in sorted(keys):
            if key in own and getattr(self, key) is None:
                raise ValueError(InputError(f"the key {key!r} beside kind {self.kind}"))
            if key not in own and getattr(self, key) is not None:
                allowed = listed(sorted(own)) or "none but kind, reward and parameters"
                raise ValueError(InputError(f"a key of policy {self.kind}: {allowed}", got=key))
        if self.parameters and self.kind in _POLICY_KEYS:
            raise ValueError(InputError("parameters only for registered policies", got=self.kind))
        return self

    @property
    def options(self) -> dict[str, Any]:
        """The arguments of this kind's constructor."""
        own = {key: getattr(self, key) for key in _POLICY_KEYS.get(self.kind, {})}
        return {**own, **self.parameters}


class Distillation(Part):
    """The server's student step on the public set."""

    learning_rate: Positive | None = Field(
        default=None, description="η_KD; the training rate if omitted; follows its schedule"
    )
    steps: PositiveInt = Field(default=1, description="gradient steps per round")
    temperature: Positive = Field(default=1.0, description="T of the softened logits")


class Rollback(Part):
    """Undo a round whose KD loss exceeds `threshold` × that of the last accepted round."""

    threshold: Positive = Field(
        default=2.0, description="× the last accepted round's distillation loss"
    )
    max_consecutive: PositiveInt = Field(
        default=1, description="then a round is accepted whatever it did"
    )


class Safeguard(Part):
    """Protection against bad rounds. `rollback: null` switches it off; omitted, it is on with ASCEND only."""

    rollback: Rollback | None = Field(
        default=None, description="null: off; omitted: on with ascend alone"
    )


class Aggregation(Part):
    """When the server merges."""

    mode: Literal["synchronous"] = Field(
        default="synchronous", description="wait for all that take part"
    )


class Participation(Part):
    """Who takes part in a round: everybody, or a uniformly random cohort."""

    clients_per_round: PositiveInt | None = Field(
        default=None, description="drawn anew each round; everybody if omitted"
    )


class Server(Part):
    """The server's processor; null: its work takes no simulated time."""

    device: Device | None = Field(default=None, description="null: the server takes no time")

    @field_validator("device")
    @classmethod
    def _nothing_drawn(cls, value: Device | None) -> Device | None:
        if value is not None and isinstance(value.speed, Distribution):
            raise ValueError(InputError("a number: there is one server", where="speed"))
        return value


class Charge(Part):
    """Which transfers take simulated time."""

    downlink: bool = Field(default=True, description="models on their way to clients")
    buffers: bool = Field(default=True, description="running statistics of batch norm, both ways")


class Downlink(Part):
    """Number format of the model on its way down (charged size only; the values travel exactly)."""

    payload: Literal["fp32", "fp16"] = Field(
        default="fp32", description="two or four bytes per parameter"
    )


class Evaluation(Part):
    """Accuracy and loss on the test set, every so many rounds and after the last."""

    every: PositiveInt = Field(default=10, description="rounds")


class Precision(Part):
    """Number format of the passes over the public set (the clients' logits, distillation).

    `bf16` is faster where the processor knows it, and coarser: three significant digits.
    """

    public: Literal["fp32", "bf16"] = Field(
        default="fp32", description="bf16: faster where the processor knows it"
    )


class Checkpoint(Part):
    """Save a state to resume from every so many rounds; 0: only when interrupted."""

    every: Int = Field(default=50, description="rounds; 0: only when interrupted")


class ClientGroup(Part):
    """`count` clients that are alike."""

    count: PositiveInt = Field(default=1, description="clients of this kind")
    prototype: str = Field(description="a key of `prototypes`")
    device: Device = Field(description="processor; a name alone is its `profile`")
    link: Link = Field(
        default=Link(), description="access link; omitted: unlimited, with a warning"
    )
    k: DrawnEntries | None = Field(default=None, description="in place of compression.k")
    devices: Devices | None = Field(
        default=None, description="a table whose rows are devices: one for each client"
    )
    availability: AvailabilityOf = Field(default="always", description="when clients are there")
    failure: Failure = Field(default=Failure(), description="of participations, per phase")
    policy: Policy | None = Field(default=None, description="in place of the scenario's policy")

    @model_validator(mode="after")
    def _columns_of_devices(self) -> ClientGroup:
        drawn = {
            path: value
            for path, value in drawn_in(self)
            if value.column is not None and value.table is None
        }
        for path, value in drawn.items():
            if self.devices is None:
                allowed = "the key 'table' beside column, or a table `devices` in the group"
                raise ValueError(InputError(allowed, where=path, got=value.column))
        if self.devices is not None and not drawn:
            allowed = "some field of the group with a `column` of this table"
            raise ValueError(InputError(allowed, where="devices"))
        return self


class Scenario(Part):
    """A validated, frozen experiment; with its seed it determines a run bit for bit."""

    name: str = Field(description="of runs/NAME, and in reports")
    seed: Int = Field(default=0, description="of everything random")
    method: Literal["fedkd", "fedavg"] = Field(
        default="fedkd", description="distillation over prototypes, or federated averaging of one"
    )
    rounds: PositiveInt = Field(description="communication rounds")
    dataset: Dataset = Field(description="what is learned, and who owns what")
    prototypes: dict[str, Prototype] = Field(description="name → model architecture")
    client_order: Literal["grouped", "round-robin"] = Field(
        default="grouped", description="ids group by group, or taking turns"
    )
    clients: tuple[ClientGroup, ...] = Field(description="groups of equal clients")
    training: Training = Field(default=Training(), description="local work")
    compression: Compression = Field(default=Compression(), description="of uploads")
    policy: Policy = Field(
        default=Policy(kind="ascend"),
        description="who chooses the strategy",
    )
    distillation: Distillation = Field(default=Distillation(), description="on the server; fedkd")
    safeguard: Safeguard = Field(default=Safeguard(), description="against bad rounds")
    network: Network = Field(default=Network(), description="what links share")
    aggregation: Aggregation = Field(default=Aggregation(), description="when the server merges")
    participation: Participation = Field(default=Participation(), description="who takes part")
    server: Server = Field(default=Server(), description="the server's own time")
    charge: Charge = Field(default=Charge(), description="which transfers take time")
    downlink: Downlink = Field(default=Downlink(), description="format of models sent")
    evaluation: Evaluation = Field(default=Evaluation(), description="on the test set")
    precision: Precision = Field(default=Precision(), description="of passes over the public set")
    checkpoint: Checkpoint = Field(default=Checkpoint(), description="states to resume from")

    @model_validator(mode="before")
    @classmethod
    def _dependent_defaults(cls, value: Any) -> Any:
        """Defaults that hang on other keys: the rollback on the policy."""
        if not isinstance(value, dict):
            return value
        safeguard = value.get("safeguard", {})
        if isinstance(safeguard, dict) and "rollback" not in safeguard:
            policies = [value.get("policy")]
            groups = value.get("clients")
            for group in groups if isinstance(groups, (list, tuple)) else ():
                if isinstance(group, dict) and group.get("policy") is not None:
                    policies.append(group["policy"])
            on = value.get("method", "fedkd") == "fedkd" and any(map(_is_ascend, policies))
            value = {**value, "safeguard": {**safeguard, "rollback": {} if on else None}}
        return value

    @model_validator(mode="after")
    def _hangs_together(self) -> Scenario:
        if not self.clients:
            raise ValueError(InputError("at least one group of clients", where="clients", got=[]))
        if not self.prototypes:
            raise ValueError(InputError("at least one prototype", where="prototypes", got={}))
        for i, group in enumerate(self.clients):
            if group.prototype not in self.prototypes:
                raise ValueError(
                    InputError(
                        f"a prototype of this scenario: {listed(self.prototypes)}",
                        where=f"clients[{i}].prototype",
                        got=group.prototype,
                        hint=did_you_mean(group.prototype, self.prototypes),
                    )
                )
        unused = [p for p in self.prototypes if p not in {g.prototype for g in self.clients}]
        if unused:
            raise ValueError(
                InputError("at most as many prototypes as clients have", where="prototypes",
                           got=unused[0], hint="no client has this prototype")
            )  # fmt: skip
        if self.method == "fedavg" and len(self.prototypes) != 1:
            raise ValueError(
                InputError("one prototype with method fedavg", where="prototypes", got=list(self.prototypes))
            )  # fmt: skip
        if self.method == "fedkd" and self.dataset.public < 1:
            raise ValueError(
                InputError("at least 1 public image with method fedkd", where="dataset.public", got=self.dataset.public)
            )  # fmt: skip
        per_round = self.participation.clients_per_round
        if per_round is not None and per_round > self.client_count:
            raise ValueError(
                InputError(f"at most the {self.client_count} clients there are", where="participation.clients_per_round", got=per_round)
            )  # fmt: skip
        batch = self.dataset.public_batch
        if batch is not None and batch > self.dataset.public:
            raise ValueError(
                InputError(f"at most the {self.dataset.public} public images", where="dataset.public_batch", got=batch)
            )  # fmt: skip
        return self

    @property
    def client_count(self) -> int:
        """N."""
        return sum(group.count for group in self.clients)

    @property
    def clients_of_prototype(self) -> dict[str, int]:
        """N_p: how many clients each prototype has."""
        counts = dict.fromkeys(self.prototypes, 0)
        for group in self.clients:
            counts[group.prototype] += group.count
        return counts

    def group_of_client(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """For each client id, the index of its group in `clients`.

        `grouped`: the groups one after another; `round-robin`: one of each group in turn, groups
        that are used up left out.
        """
        counts = np.array([group.count for group in self.clients])
        grouped = np.repeat(np.arange(len(counts)), counts)
        if self.client_order == "grouped":
            return grouped
        turn = np.concatenate([np.arange(count) for count in counts])
        order: np.ndarray[Any, np.dtype[np.int64]] = grouped[np.lexsort((grouped, turn))]
        return order

    def k_of_group(self, group: ClientGroup) -> int | str | Distribution:
        """K of a group's clients as it is written: a number, a share, or a distribution."""
        return group.k if group.k is not None else self.compression.k

    def policy_of_group(self, group: ClientGroup) -> Policy:
        """The policy of a group's clients."""
        return group.policy if group.policy is not None else self.policy

    def learning_rate_factor(self, round: int) -> float:
        """The schedule's factor on both learning rates in `round` = 1, 2, …"""
        schedule = self.training.schedule
        if schedule.kind == "inverse-sqrt":
            return float(1 / np.sqrt(round))
        if schedule.kind == "cosine":
            return float(0.5 * (1 + np.cos(np.pi * (round - 1) / self.rounds)))
        if schedule.kind == "step":
            return float(schedule.factor ** ((round - 1) // schedule.every))
        return 1.0


def _is_ascend(policy: Any) -> bool:
    if policy is None:
        return True  # the default policy
    kind = policy.get("kind", "ascend") if isinstance(policy, dict) else getattr(policy, "kind", "")
    return bool(kind == "ascend")
