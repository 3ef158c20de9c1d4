"""A scenario file's keys, with their defaults.

The defaults are those of the method (ASCEND); where this page and the method's text
disagree, one of them is a bug. A `Scenario` is frozen and complete: no other module has
a default of its own.

First come the sections in the order of a file, then `Scenario` with what other rooms
ask of it, then the contradictions: `_find_contradictions` calls one function for each
thing that several keys can get wrong together, and all that they find is told at once.
What hangs on a single key stands in that key's annotation.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, cast

import numpy as np
from pydantic import (
    BeforeValidator,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    field_validator,
    model_serializer,
    model_validator,
)

from simfed.compress.choice import Choice, has_all_pairs, list_choices
from simfed.compress.codec import check_level, codec_from_spec
from simfed.compress.feedback import with_error_feedback
from simfed.fleet.world import Group, WorldSpec
from simfed.ground.errors import InputError, did_you_mean, listed, within
from simfed.ground.levels import WrittenLevel
from simfed.ground.measure import CLASS_MEASURES, RECALL
from simfed.ground.method import Method
from simfed.ground.plain import Plain
from simfed.ground.registry import Only, Part, registry
from simfed.ground.vocabulary import IndexCode
from simfed.scenario.aggregation import Aggregation, EdgeServers, RuleChoice
from simfed.scenario.dataset import DatasetSpec
from simfed.scenario.plugins import Plugins
from simfed.scenario.policy import PolicySpec
from simfed.scenario.privacy import Privacy
from simfed.scenario.prototype import PrototypeSpec
from simfed.schema.distribution import Distribution, DrawnEntries, DrawnEpochs
from simfed.schema.fields import (
    BelowOne,
    Entries,
    Int,
    Named,
    NonNegative,
    Positive,
    PositiveDuration,
    PositiveInt,
    Strategy,
)
from simfed.schema.options import OfKind
from simfed.schema.section import (
    OnlyWith,
    Section,
    drop_unused,
    find_misplaced,
    make_error_detail,
)


class Schedule(Section):
    """The factor on the learning rates in round t, from 1 on.

    `constant`: 1; `inverse-sqrt`: 1/√t; `cosine`: from 1 at the first to 0 after the
    last round; `step`: `factor` to the power ⌊(t − 1)/`every`⌋.
    """

    kind: Literal["constant", "inverse-sqrt", "cosine", "step"] = Field(
        default="constant", description="of the learning rates over rounds"
    )
    every: Annotated[PositiveInt, Only("kind", "step")] = Field(
        default=100, description="rounds between two drops"
    )
    factor: Annotated[Positive, Only("kind", "step")] = Field(
        default=0.5, description="what remains after a drop"
    )


class Training(Section):
    """Local training, in steps or in epochs.

    Where neither is given it is one step with fedkd, one epoch with other methods.
    """

    batch_size: PositiveInt = Field(default=32, description="samples of a local step")
    learning_rate: Positive = Field(default=0.02, description="η")
    local_steps: PositiveInt | None = Field(
        default=None, description="steps per round, each on a batch drawn anew"
    )
    local_epochs: PositiveInt | None = Field(
        default=None,
        description="passes over the client's data per round, in place of steps",
    )
    optimizer: Literal["sgd", "adam"] = Field(
        default="sgd",
        description="of the local steps; its state begins anew in every round",
    )
    momentum: Annotated[BelowOne, Only("optimizer", "sgd")] = Field(
        default=0.0, description="of the local steps"
    )
    weight_decay: NonNegative = Field(
        default=0.0, description="added to gradients: × the weights"
    )
    clip_norm: Positive | None = Field(
        default=None,
        description="longest gradient of a local step; longer ones are shortened to it",
    )
    schedule: Schedule = Field(default=Schedule(), description="of the learning rate")

    @property
    def plain_sgd(self) -> bool:
        """True if a step is nothing but the rate times the gradient.

        Such steps of all clients can be made as one product.
        """
        return (
            self.optimizer == "sgd"
            and not self.momentum
            and not self.weight_decay
            and self.clip_norm is None
        )


class MethodChoice(OfKind):
    """The method of clients and server: a kind, with its options beside it."""

    registry_kind: ClassVar[str] = "method"
    short = "kind"

    kind: Annotated[str, Named("method")] = Field(
        default="fedkd", description="see `simfed list methods`"
    )


class Compression(Section):
    """The compression of uploads: K entries, and the code of their indices.

    The entries are of the residual-corrected gradient.

    A strategy is a name (`top-k`, `qsgd(4)`, `top-k+qsgd`), maybe with a level
    (`top-k@1%`); or one for each layer, by patterns of which the first that matches
    counts. Worked example, of a LeNet: `strategies: [top-k@1%, {layers: {"conv*":
    top-k@5%, "fc*": qsgd}}]` are two arms. The first sends the largest hundredth of the
    update, the second the largest twentieth of each tensor of the convolutions and all
    entries of the linear layers in 16 levels. What no pattern matches travels dense.
    Tables call them by labels, such as `layers(conv*=top-k@5%,fc*=qsgd(16))`.
    """

    k: Entries = Field(
        default=1000,
        description="entries kept of an update; `1%`: of the model's parameters",
    )
    strategies: tuple[Strategy, ...] = Field(
        default=("top-k", "random-k", "periodic-k"),
        description="what policies choose from, in this order; `{layers: …}`: see "
        "above",
    )
    k_choices: tuple[Entries, ...] = Field(
        default=(),
        description="levels: each strategy that goes by K and names none is an arm "
        "with each, such as `top-k@500`",
    )
    pairs: Literal["full", "factored"] = Field(
        default="full",
        description="where a level is chosen too: one bandit for all pairs of "
        "strategy and level, or one for each of the two",
    )
    index_code: IndexCode = Field(
        default="ideal", description="how indices are charged, see compression"
    )

    @field_validator("strategies")
    @classmethod
    def _check_strategies(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        """Return the strategies.

        Raises:
            InputError: there is none, or one stands twice.
        """
        if not value or len(set(value)) != len(value):
            raise InputError("at least one strategy, each once", got=list(value))
        return value

    @field_validator("k_choices")
    @classmethod
    def _check_levels(cls, value: tuple[WrittenLevel, ...]) -> tuple[WrittenLevel, ...]:
        """Return the levels.

        Raises:
            InputError: one stands twice.
        """
        if len(set(value)) != len(value):
            raise InputError("levels of K, each once", got=list(value))
        return value

    @model_validator(mode="after")
    def _check_levels_of_codecs(self) -> Compression:
        """Refuse levels of codecs that do not go by a number of entries.

        Raises:
            InputError: there is such a choice.
        """
        for choice in self.choices:
            if choice.level is None:
                continue
            with within("k_choices"):
                check_level(choice.codec, choice.level)
        return self

    @model_validator(mode="after")
    def _check_use_of_levels(self) -> Compression:
        """Refuse levels that no strategy would take.

        Raises:
            InputError: each strategy names its own level, or goes by none.
        """
        if self.k_choices and not any(map(_goes_by_k, map(Choice.of, self.strategies))):
            allowed = "levels beside a strategy that goes by K and names none"
            raise InputError(allowed, where="k_choices", got=list(self.k_choices))
        return self

    @model_validator(mode="after")
    def _check_pairs(self) -> Compression:
        """Refuse a bandit for strategies and one for levels where they make no pairs.

        Raises:
            InputError: `pairs: factored` beside choices that are not all pairs.
        """
        if self.pairs == "factored" and not has_all_pairs(self.choices):
            allowed = (
                "full, or k_choices beside strategies that go by K and name no level"
            )
            raise InputError(allowed, where="pairs", got=self.pairs)
        return self

    @cached_property
    def choices(self) -> tuple[Choice, ...]:
        """The choices of policies: strategies, with levels where policies pick them."""
        return list_choices(self.strategies, self.k_choices)


def _goes_by_k(choice: Choice) -> bool:
    """Return whether a choice sends as many entries as a K beside it says."""
    return choice.level is None and choice.codec.takes_k


class Distillation(Section):
    """The server's student step on the public set."""

    learning_rate: Positive | None = Field(
        default=None,
        description="η_KD; the training rate if omitted; follows its schedule",
    )
    steps: PositiveInt = Field(default=1, description="gradient steps per round")
    temperature: Positive = Field(default=1.0, description="T of the softened logits")
    divergence: Literal["teacher-student", "student-teacher"] = Field(
        default="teacher-student",
        description="KL(teacher ‖ student), or KL(student ‖ teacher)",
    )


class Rollback(Section):
    """Undo a round whose KD loss exceeds `threshold` × that of the last accepted
    round.
    """  # noqa: D205 - one paragraph of docs/scenario.md

    threshold: Positive = Field(
        default=2.0, description="× the last accepted round's distillation loss"
    )
    max_consecutive: PositiveInt = Field(
        default=1, description="then a round is accepted whatever it did"
    )


def _read_switch(value: Any) -> Any:
    """Return a rollback as a section or null, from what YAML reads as a switch.

    `off`, which YAML reads as false, is null; `on` is a rollback with its defaults.
    """
    words: dict[Any, Any] = {False: None, "off": None, True: {}, "on": {}}
    return words[value] if isinstance(value, (bool, str)) and value in words else value


_DISTILS = OnlyWith("method", "safeguarded")


class ResidualsSpec(Section):
    """The fate of residuals when a round is undone."""

    short = "kind"
    short_option = "damped", "factor"

    kind: Literal["restored", "as-sent", "damped"] = Field(
        default="restored",
        description="what was sent returns to them, is lost, or returns times a factor",
    )
    factor: Annotated[BelowOne, Only("kind", "damped")] = Field(
        default=0.5,
        description="from 0 (as `as-sent`, but codecs step back) to below 1",
    )


class Reference(Section):
    """The reference that a round's KD loss is compared with."""

    short = "kind"
    short_option = "running-median", "window"

    kind: Literal["last-accepted", "running-median"] = Field(
        default="last-accepted", description="of the last accepted round, or of several"
    )
    window: Annotated[PositiveInt, Only("kind", "running-median")] = Field(
        default=5, description="accepted rounds whose median it is"
    )


class SafeguardSpec(Section):
    """Protection against bad rounds.

    `rollback: off` switches it off; omitted, it is on with ASCEND only.
    """

    rollback: Annotated[
        Rollback | None,
        BeforeValidator(_read_switch, json_schema_input_type=Rollback | bool | None),
        _DISTILS,
    ] = Field(
        default=None, description="null or off: none; omitted: on with ascend alone"
    )
    residuals: Annotated[ResidualsSpec, Only("rollback")] = Field(
        default=ResidualsSpec(),
        description="`restored`, `as-sent` (models alone), `{damped: 0.5}`",
    )
    reference: Annotated[Reference, Only("rollback")] = Field(
        default=Reference(), description="`last-accepted` or `{running-median: 5}`"
    )
    forces: Annotated[Literal["top-k", "dense", "none"], Only("rollback")] = Field(
        default="top-k", description="what everybody plays in the round after"
    )

    @property
    def forced(self) -> str | None:
        """The codec that everybody plays in the round after one that was undone.

        None where policies go on choosing, or nothing is ever undone.
        """
        return None if self.rollback is None or self.forces == "none" else self.forces


class SelectionChoice(OfKind):
    """The server's choice of clients: a kind, with its options beside it."""

    registry_kind: ClassVar[str] = "selection"
    short = "kind"

    kind: Annotated[str, Named("selection")] = Field(
        default="uniform", description="see `simfed list selections`"
    )

    @property
    def needs_losses(self) -> bool:
        """True if it looks at clients' own losses."""
        kind = registry("selection").get(self.kind)
        return bool(getattr(kind, "needs_losses", False))


class ParticipationSpec(Section):
    """The participants of a round: everybody, or some of those who are there."""

    clients_per_round: Annotated[
        PositiveInt | None,
        Only(
            "aggregation.mode",
            *("synchronous", "deadline", "first"),
            beside="aggregation.edge_servers",
        ),
    ] = Field(default=None, description="chosen anew each round; everybody if omitted")
    selection: Annotated[SelectionChoice, Only("clients_per_round")] = Field(
        default=SelectionChoice.model_validate({"kind": "uniform"}),
        description="how they are chosen, see fleets",
    )


class ChargeSpec(Section):
    """The transfers that take simulated time."""

    brief = ("base",)

    downlink: bool = Field(default=True, description="models on their way to clients")
    buffers: bool = Field(
        default=True, description="running statistics of batch norm, both ways"
    )
    base: Annotated[bool, Only("downlink", True)] = Field(
        default=False,
        description="what does not train of a model, once down to each client; else it "
        "lies on the devices",
    )


class DownlinkCompression(Section):
    """Changes of the model on their way down: K entries of what clients lack.

    Error is included.
    """

    k: Entries = Field(
        default=1000, description="entries sent of a change; `1%`: of the model's"
    )
    strategy: Strategy = Field(
        default="top-k", description="a codec that allows error feedback"
    )
    index_code: IndexCode | None = Field(
        default=None,
        description="how indices are charged; as `compression` says if omitted",
    )

    @field_validator("strategy")
    @classmethod
    def _check_feedback(cls, value: str) -> str:
        """Return the strategy.

        Raises:
            InputError: a codec that keeps its own error or goes without: what a client
                lacks would be lost.
        """
        with_error_feedback(codec_from_spec(value))
        return value


class Downlink(Section):
    """Models on their way down: their number format, or changes in their place.

    The format is of whole models (charged size only; the values travel exactly).
    """

    payload: Annotated[Literal["fp32", "fp16"], Only("charge.downlink", True)] = Field(
        default="fp32", description="two or four bytes per parameter"
    )
    compression: DownlinkCompression | None = Field(
        default=None, description="changes in place of whole models; null: whole models"
    )


class EvaluationSpec(Section):
    """Accuracy and loss on the test set, every so many rounds and after the last."""

    brief = ("measures", "owners")

    every: PositiveInt = Field(default=10, description="rounds")
    clients: bool = Field(
        default=False,
        description="also in each client's own label mix; methods with personal models "
        "always do",
    )
    measures: tuple[Literal["accuracy", "balanced-accuracy", "auc", "recall"], ...] = (
        Field(
            default=("accuracy",),
            description="of a classification; the first is the one that thresholds, "
            "comparisons and pages follow",
        )
    )

    owners: Literal["all", "held-out"] = Field(
        default="all",
        description="held-out: the test set is all that some owners of the data have, "
        "who are no clients, and whose samples nobody trains on",
    )
    share: Annotated[BelowOne, Only("owners", "held-out")] = Field(
        default=0.1, description="of the owners, at least one"
    )

    @field_validator("measures")
    @classmethod
    def _check_measures(cls, measures: tuple[str, ...]) -> tuple[str, ...]:
        """Return the measures.

        Raises:
            InputError: the first is no single number, or one stands twice.
        """
        if not measures or measures[0] == RECALL:
            allowed = f"first {listed(CLASS_MEASURES)}, as recall is a number per class"
            raise InputError(allowed, got=[*measures])
        if len(set(measures)) < len(measures):
            raise InputError("each measure once", got=[*measures])
        return measures

    @property
    def held_share(self) -> float | None:
        """The share of owners that are tested on alone; None: there are none."""
        return self.share if self.owners == "held-out" else None

    def due(self, round: int, rounds: int) -> bool:
        """Return whether models are evaluated after this of so many rounds.

        `round` counts from 1; the last one, `rounds`, always is.
        """
        return round % self.every == 0 or round == rounds


class CheckpointSpec(Section):
    """Save a state to resume from every so many rounds; 0: only when interrupted."""

    every: Int = Field(default=50, description="rounds; 0: only when interrupted")


class Overlap(Section):
    """A compressed upload in slices, each sent while the next is compressed.

    Slices are of its coordinates, each with its share of K. It is for codecs that
    select entries and send them as they are.
    """

    chunks: PositiveInt = Field(description="slices")


class AttackChoice(OfKind):
    """The attack of hostile clients: a kind, with its options beside it.

    `{sign-flip: 3, from: 10}` is `{kind: sign-flip, scale: 3, from: 10}`.
    """

    registry_kind: ClassVar[str] = "attack"
    short = "kind"
    names_first_option = True

    kind: Annotated[str, Named("attack")] = Field(
        description="see `simfed list attacks`"
    )
    # no name that Python would let stand here
    __annotations__["from"] = Annotated[
        PositiveInt, Field(default=1, description="first round in which they are")
    ]


class ClientGroup(Group):
    """`count` clients that are alike."""

    written_in = (
        "count",
        "prototype",
        "device",
        "link",
        "k",
        "devices",
        "availability",
        "failure",
        "policy",
        "attack",
        "overlap",
        "local_epochs",
        "local_time",
    )
    brief = ("local_epochs", "local_time")

    k: DrawnEntries | None = Field(
        default=None, description="in place of compression.k"
    )
    policy: PolicySpec | None = Field(
        default=None, description="in place of the scenario's policy"
    )
    attack: Annotated[AttackChoice | None, OnlyWith("method", "averages")] = Field(
        default=None,
        description="how its clients are hostile, see robustness; null: they are not",
    )
    overlap: Overlap | None = Field(
        default=None,
        description="of compression and upload, in chunks; null: the one after the "
        "other",
    )
    local_epochs: DrawnEpochs | None = Field(
        default=None,
        description="in place of the training's, one number or a law that is drawn "
        "anew for each participation",
    )

    local_time: PositiveDuration | None = Field(
        default=None,
        description="local training is cut off after the whole steps that its device "
        "makes in so long, at least one; null: it is not",
    )

    @model_validator(mode="after")
    def _check_epochs(self) -> ClientGroup:
        """Refuse epochs from a column, which would be the same in every round.

        Raises:
            InputError: `local_epochs` is drawn from a column.
        """
        drawn = self.local_epochs
        if isinstance(drawn, Distribution) and drawn.column is not None:
            allowed = "lognormal, uniform, normal or choice, drawn in each round"
            raise InputError(allowed, where="local_epochs.column", got=drawn.column)
        return self


ATTACK_SUCCESS = "attack_success"
"""The column of prototypes.parquet for a backdoor: of the test images of other classes,
the share that is taken for its target once it has the mark."""


class Scenario(WorldSpec):
    """A validated, frozen experiment; with its seed it determines a run bit for bit.

    It says who takes part (`clients`, `network`, `faults`), what is learned (`dataset`,
    `prototypes`, `method`, `training`), what travels (`compression`, `downlink`), who
    decides (`policy`, `participation`, `aggregation`) and what is charged (`charge`,
    `server`). `load_scenario` makes one of a YAML file, with every default in place;
    quantities are in seconds, bytes and bytes per second. It holds no data, weights or
    profiles: those are read when a run begins, and on one kind of processor.
    """

    written_in = (
        "name",
        "seed",
        "method",
        "rounds",
        "dataset",
        "prototypes",
        "client_order",
        "clients",
        "training",
        "compression",
        "policy",
        "distillation",
        "safeguard",
        "network",
        "aggregation",
        "participation",
        "server",
        "charge",
        "downlink",
        "evaluation",
        "faults",
        "privacy",
        "checkpoint",
        "plugins",
    )

    method: MethodChoice = Field(
        default=MethodChoice.model_validate({"kind": "fedkd"}),
        description="what clients and server do, see methods",
    )
    rounds: PositiveInt = Field(description="communication rounds")
    dataset: DatasetSpec = Field(description="what is learned, and who owns what")
    prototypes: dict[str, PrototypeSpec] = Field(
        description="name → model architecture"
    )
    clients: tuple[ClientGroup, ...] = Field(description="groups of equal clients")
    training: Training = Field(default=Training(), description="local work")
    compression: Compression = Field(default=Compression(), description="of uploads")
    policy: PolicySpec = Field(
        default=PolicySpec.model_validate({}), description="who chooses the strategy"
    )
    distillation: Annotated[Distillation, _DISTILS] = Field(
        default=Distillation(), description="on the server"
    )
    safeguard: SafeguardSpec = Field(
        default=SafeguardSpec(), description="against bad rounds"
    )
    aggregation: Aggregation = Field(
        default=Aggregation(), description="when the server merges"
    )
    participation: ParticipationSpec = Field(
        default=ParticipationSpec(), description="who takes part"
    )
    charge: ChargeSpec = Field(
        default=ChargeSpec(), description="which transfers take time"
    )
    downlink: Downlink = Field(default=Downlink(), description="how models are sent")
    evaluation: EvaluationSpec = Field(
        default=EvaluationSpec(), description="on the test set"
    )
    privacy: Privacy | None = Field(
        default=None, description="differential privacy of what is learned; null: none"
    )
    checkpoint: CheckpointSpec = Field(
        default=CheckpointSpec(), description="states to resume from"
    )
    plugins: Plugins = Field(
        default=(),
        description="files or packages that register your parts; run only on consent",
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_in_defaults(cls, value: Any) -> Any:
        """Return the scenario as written, with the defaults that hang on other keys.

        Local work hangs on the method, the staleness of late uploads on method and
        server mode, and the rollback on the method and on whether any policy is ascend.
        Wherever the file says something itself, that stays.
        """
        if not isinstance(value, dict):
            return value
        method = _find_method(value.get("method", "fedkd"))
        value = {**value, **_choose_local_work(value.get("training", {}), method)}
        if isinstance(server := value.get("aggregation"), dict):
            weighs = _weighs_single(value)
            server = _choose_constant_staleness(server, method, weighs=weighs)
            if isinstance(edges := server.get("edge_servers"), dict):
                weighs = _weighs_single_at_edges(edges)
                edges = _choose_constant_staleness(edges, method, weighs=weighs)
                server = {**server, "edge_servers": edges}
            value["aggregation"] = server
        safeguard = value.get("safeguard", {})
        if isinstance(safeguard, dict) and "rollback" not in safeguard:
            policies = [value.get("policy")]
            groups = value.get("clients")
            for group in groups if isinstance(groups, (list, tuple)) else ():
                if isinstance(group, dict) and group.get("policy") is not None:
                    policies.append(group["policy"])
            on = method.safeguarded and any(map(_is_ascend, policies))
            value = {
                **value,
                "safeguard": {**safeguard, "rollback": {} if on else None},
            }
        return value

    @model_validator(mode="after")
    def _check_together(self) -> Scenario:
        """Refuse keys without effect, and keys that contradict one another.

        Raises:
            ValidationError: with one detail for each of them, which `validate_as` puts
                into words.
        """
        problems = find_misplaced(self)
        problems += [
            make_error_detail(error, (), None) for error in _find_contradictions(self)
        ]
        if problems:
            raise ValidationError.from_exception_data("Scenario", problems)
        return self

    @model_serializer(mode="wrap")
    def dump_used(self, dump: SerializerFunctionWrapHandler) -> dict[str, Plain]:
        """Return the scenario with the keys that count, in the order of files.

        Keys that have no effect with this method or network are left out, and `plugins`
        and `privacy` where there are none.
        """
        plain = drop_unused(self, dump(self))
        for name in ("plugins", "privacy"):  # most have none
            if not getattr(self, name):
                plain.pop(name, None)
        return self.order(plain)

    @property
    def own_columns(self) -> dict[str, tuple[str, ...]]:
        """The columns that such a run has beside everybody's: table → their names.

        They are losses of its method, how far its backdoor gets, and what its privacy
        has cost. `simfed.record` adds them to its schema.
        """
        success = () if self.backdoor is None else (ATTACK_SUCCESS,)
        columns = {"prototypes": (*self.method.made.losses, *success)}
        if self.privacy is not None:
            columns["rounds"] = ("epsilon",)
            if self.privacy.level == "sample":
                columns["clients"] = ("epsilon",)
        return columns

    @property
    def sizes_column(self) -> str | None:
        """The column of the tables `devices` that says how many samples clients own.

        None where the partition does not go by such a column.
        """
        sizes = self.dataset.partition.sizes
        if isinstance(sizes, Distribution) and sizes.table is None:
            return sizes.column
        return None

    @property
    def evaluates_clients(self) -> bool:
        """True if evaluations are told per client too.

        What its samples' privacy has cost stands beside them.
        """
        private = self.privacy is not None and self.privacy.level == "sample"
        return self.evaluation.clients or private

    @property
    def public_dealt(self) -> int:
        """Training samples that are kept back for the public set.

        0 where the method needs none, and where the set has a file of its own.
        """
        dealt = self.method.made.needs_public and self.dataset.public_file is None
        return self.dataset.public if dealt else 0

    @property
    def public_samples(self) -> int:
        """Samples of the public set that one round uses; 0: there is none."""
        whole = self.dataset.public if self.method.made.needs_public else 0
        return min(whole, self.dataset.public_batch or whole)

    @property
    def clients_of_prototype(self) -> dict[str, int]:
        """Prototype → how many clients have it."""
        counts = dict.fromkeys(self.prototypes, 0)
        for group in self.clients:
            counts[group.prototype] += group.count
        return counts

    @property
    def model_names(self) -> dict[str, str]:
        """Prototype → the name of its model in profiles and records."""
        return {name: spec.name(name) for name, spec in self.prototypes.items()}

    def k_of_group(self, group: ClientGroup) -> int | str | Distribution:
        """Return K of a group's clients as it is written.

        It is a number, a share or a distribution; a group's own K stands before
        `compression.k`.
        """
        return group.k if group.k is not None else self.compression.k

    def policy_of_group(self, group: ClientGroup) -> PolicySpec:
        """Return the policy of a group's clients."""
        return group.policy if group.policy is not None else self.policy

    def policy_key(self, index: int) -> str:
        """Return the key path at which a file has the policy of a group's clients.

        Args:
            index: of the group in `clients`, from 0.
        """
        own = self.clients[index].policy is not None
        return f"clients[{index}].policy" if own else "policy"

    @property
    def forced_arms(self) -> tuple[Choice, ...]:
        """The arms that everybody plays in the round after a rollback.

        Empty where policies go on choosing, or nothing is rolled back.
        """
        forced = self.safeguard.forced
        return () if forced is None else (Choice(forced),)

    def arms_of_group(self, group: ClientGroup) -> tuple[Choice, ...]:
        """Return the arms from which a group's clients choose, in the file's order.

        `arms_from` of a policy adds none, as the recorded run is not opened here.
        """
        return self.policy_of_group(group).arms(self.compression.choices)

    @property
    def backdoor(self) -> Part:
        """The attack whose success evaluations measure; None: there is none."""
        attacks = (group.attack.made for group in self.clients if group.attack)
        return next((attack for attack in attacks if attack.marks), None)

    def measures_losses(self, group: ClientGroup) -> bool:
        """Return whether clients of this group are asked for their own losses.

        They are before and after a round: their policy learns from it, or the selection
        looks at it.
        """
        selects = self.participation.selection.needs_losses
        return selects or self.policy_of_group(group).learns

    def learning_rate_factor(self, round: int) -> float:
        """Return the schedule's factor on both learning rates in a round.

        Args:
            round: from 1 on.

        Returns:
            1 in the first round, whatever the schedule; see `Schedule`.
        """
        schedule = self.training.schedule
        if schedule.kind == "inverse-sqrt":
            return float(1 / np.sqrt(round))
        if schedule.kind == "cosine":
            return float(0.5 * (1 + np.cos(np.pi * (round - 1) / self.rounds)))
        if schedule.kind == "step":
            return float(schedule.factor ** ((round - 1) // schedule.every))
        return 1.0


def _find_contradictions(scenario: Scenario) -> Iterator[InputError]:
    """Yield an error for each set of keys that exclude one another.

    Each alone is allowed.
    """
    for find in (
        _find_unfit_prototypes,
        _find_twofold_work,
        _find_twofold_staleness,
        _find_unfit_arms,
        _find_unused,
        _find_too_few_public,
        _find_unfit_rule,
        _find_unfit_attacks,
        _find_unfit_policies,
        _find_too_few_clients,
    ):
        yield from find(scenario)


def _find_twofold_work(scenario: Scenario) -> Iterator[InputError]:
    """Yield an error where local training is said twice, or not as the method needs it.

    The method may suppose plain steps of SGD (`plain_steps`), or steps that add up
    gradients (`sums_gradients`).
    """
    training, method = scenario.training, scenario.method
    steps, epochs = training.local_steps, training.local_epochs
    if steps is not None and epochs is not None:
        got = f"local_steps {steps}, local_epochs {epochs}"
        yield InputError(
            "either local_steps or local_epochs", where="training", got=got
        )
    drawn = any(group.local_epochs is not None for group in scenario.clients)
    if method.made.plain_steps and (training.optimizer != "sgd" or training.momentum):
        key = "momentum" if training.momentum else "optimizer"
        yield InputError(
            f"plain sgd without momentum with method {method.kind}",
            where=f"training.{key}",
            got=getattr(training, key),
        )
    elif method.made.sums_gradients and training.optimizer != "sgd":
        yield InputError(
            f"sgd with method {method.kind}, which weighs the steps of clients",
            where="training.optimizer",
            got=training.optimizer,
        )
    elif steps == 1 and training.momentum and not drawn:
        yield InputError(
            "0 with local_steps 1, as momentum begins anew in every round",
            where="training.momentum",
            got=training.momentum,
            hint="more local_steps, or local_epochs",
        )


def _find_twofold_staleness(scenario: Scenario) -> Iterator[InputError]:
    """Yield an error where late uploads are weighed down twice.

    They are once, by the method or by the server's mode, and where it has an effect:
    not where shares of one upload add up to 1.
    """
    method, server = scenario.method, scenario.aggregation
    option, edges = method.made.weighs_staleness, server.edge_servers
    for where, node, weighs in (
        ("aggregation", server, _weighs_single(scenario)),
        ("aggregation.edge_servers", edges, _weighs_single_at_edges(edges)),
    ):
        staleness = None if node is None else node.staleness
        if node is None or staleness is None or staleness.kind == "constant":
            continue
        where = f"{where}.staleness.kind"
        if option:
            yield InputError(
                f"constant beside method {method.kind}, which weighs late uploads "
                f"itself",
                where=where,
                got=staleness.kind,
                hint=f"method.{option} says how; a bound may stay here",
            )
        elif method.made.shares_add_up and node.merges_alone and not weighs:
            yield InputError(
                f"constant with method {method.kind} and a merge for each upload",
                where=where,
                got=staleness.kind,
                problem="shares add up to 1, so each upload counts in full however "
                "late",
                hint="mode buffered with a buffer of 2 or more, or method fedavg, "
                "weigh it",
            )


def _find_unfit_arms(scenario: Scenario) -> Iterator[InputError]:
    """Yield an error for codecs that want weights moved, where the method does not."""
    if scenario.method.made.moves_point:
        return
    for i, group in enumerate(scenario.clients):
        for arm in scenario.arms_of_group(group):
            if arm.codec.moves_point:
                yield InputError(
                    "a codec whose gradient is taken at the weights themselves with "
                    f"method {scenario.method.kind}, whose clients train there",
                    where="compression.strategies"
                    if arm in scenario.compression.choices
                    else scenario.policy_key(i),
                    got=arm.label,
                    hint="fedkd and fedavg move them; with weight 0 it is plain error "
                    "feedback",
                )


def _find_unused(scenario: Scenario) -> Iterator[InputError]:
    """Yield an error for what a group says and nothing of the scenario looks at.

    `compression.k` and its like may stand beside arms without K, as studies vary
    policies and strategies over one base.
    """
    for i, group in enumerate(scenario.clients):
        arms = (
            *scenario.compression.choices,
            *scenario.arms_of_group(group),
            *scenario.forced_arms,
        )
        # what a recorded run played is not known here
        replayed = scenario.policy_of_group(group).arms_from is not None
        if group.k is not None and not (replayed or any(map(_goes_by_k, arms))):
            allowed = "null, or a strategy that goes by K and names no level"
            yield InputError(
                allowed, where=f"clients[{i}].k", problem="no strategy goes by K"
            )
        if group.failure.download and not scenario.charge.downlink:
            allowed = (
                "0 with charge.downlink false: there is no download that could fail"
            )
            got = group.failure.download
            yield InputError(allowed, where=f"clients[{i}].failure.download", got=got)


def _find_unfit_policies(scenario: Scenario) -> Iterator[InputError]:
    """Yield an error for policies that compare clients, where merges have only one."""
    server, edges = scenario.aggregation, scenario.aggregation.edge_servers
    if not server.merges_alone or (
        edges and not (edges.merges_alone and edges.merges == 1)
    ):
        return
    for i, group in enumerate(scenario.clients):
        policy = scenario.policy_of_group(group)
        if policy.compares_clients:
            yield InputError(
                "a server that merges several uploads at a time with policy "
                f"{policy.kind}, which compares them",
                where=scenario.policy_key(i),
                got=f"mode {server.mode}, a merge for each upload",
                hint="mode buffered; or policy balance, which compares nobody",
            )


def _find_unfit_prototypes(scenario: Scenario) -> Iterator[InputError]:
    """Yield an error for prototypes that are missing, unknown or without clients."""
    method = scenario.method
    if not scenario.prototypes:
        yield InputError("at least one prototype", where="prototypes", got={})
        return
    if not method.made.mixes_prototypes and len(scenario.prototypes) != 1:
        allowed = f"one prototype with method {method.kind}"
        yield InputError(allowed, where="prototypes", got=list(scenario.prototypes))
    for i, group in enumerate(scenario.clients):
        if group.prototype not in scenario.prototypes:
            yield InputError(
                f"a prototype of this scenario: {listed(scenario.prototypes)}",
                where=f"clients[{i}].prototype",
                got=group.prototype,
                hint=did_you_mean(group.prototype, scenario.prototypes),
            )
    used = {group.prototype for group in scenario.clients}
    unused = [name for name in scenario.prototypes if name not in used]
    if unused and used and used <= scenario.prototypes.keys():
        yield InputError(
            "each prototype with clients",
            where=f"prototypes.{unused[0]}",
            problem="no client has this prototype",
            hint=f"clients: - {{prototype: {unused[0]}, …}}, or leave it out",
        )


def _find_too_few_public(scenario: Scenario) -> Iterator[InputError]:
    """Yield an error where a round uses more of the public set than there is."""
    data, method = scenario.dataset, scenario.method
    if method.made.needs_public and data.public < 1:
        allowed = f"at least 1 public image with method {method.kind}"
        yield InputError(allowed, where="dataset.public", got=data.public)
    elif data.public_batch is not None and data.public_batch > data.public:
        allowed = f"at most the {data.public} public images"
        yield InputError(allowed, where="dataset.public_batch", got=data.public_batch)


def _find_too_few_clients(scenario: Scenario) -> Iterator[InputError]:
    """Yield an error where more clients are asked for at a time than there are."""
    clients = scenario.client_count
    per_round, server = scenario.participation.clients_per_round, scenario.aggregation
    for where, asked in (
        ("participation.clients_per_round", per_round),
        ("aggregation.concurrency", server.concurrency),
    ):
        if asked is not None and asked > clients:
            yield InputError(
                f"at most the {clients} clients there are", where=where, got=asked
            )
    if server.edge_servers is not None:
        yield from _find_unfit_edges(scenario, server.edge_servers)
    elif server.over_selection and (per_round or clients) == clients:
        allowed = (
            f"fewer than the {clients} clients with mode first, which asks more "
            "clients than it waits for"
        )
        yield InputError(
            allowed, where="participation.clients_per_round", got=per_round
        )


def _find_unfit_edges(scenario: Scenario, edges: EdgeServers) -> Iterator[InputError]:
    """Yield an error for edge servers that could not stand or work where they are.

    They stand at the nodes of a tier, forward means, and send their clients whole
    models.
    """
    where, network = "aggregation.edge_servers", scenario.network
    tiers = {tier.name: tier.count for tier in network.tiers}
    if not tiers:
        yield InputError(
            "a network of topology tree, at whose nodes edge servers are",
            where="network.topology",
            got=network.topology,
        )
    elif edges.at not in tiers:
        allowed, hint = (
            f"a tier of the network: {listed(tiers)}",
            did_you_mean(edges.at, tiers),
        )
        yield InputError(allowed, where=f"{where}.at", got=edges.at, hint=hint)
    else:
        most, asked = tiers[edges.at], scenario.aggregation.concurrency
        if asked is not None and asked > most:
            allowed = f"at most the {most} edge servers there are"
            yield InputError(allowed, where="aggregation.concurrency", got=asked)
    per_round = scenario.participation.clients_per_round
    if edges.concurrency is not None and edges.concurrency > scenario.client_count:
        allowed = f"at most the {scenario.client_count} clients there are"
        yield InputError(allowed, where=f"{where}.concurrency", got=edges.concurrency)
    if edges.concurrency is not None and per_round is not None:
        yield InputError(
            "null where edge servers keep clients in flight",
            where="participation.clients_per_round",
            got=per_round,
        )
    if edges.over_selection is not None and per_round is None:
        allowed = "how many clients each edge server of mode first waits for"
        yield InputError(allowed, where="participation.clients_per_round", got=None)
    if scenario.aggregation.rule.kind != "mean":
        yield InputError(
            "the rule mean with edge servers, which forward means",
            where="aggregation.rule",
            got=scenario.aggregation.rule.kind,
        )
    if scenario.downlink.compression is not None:
        yield InputError(
            "null with edge servers, which send their clients whole models",
            where="downlink.compression",
            got=scenario.downlink.compression.strategy,
        )


def _find_unfit_rule(scenario: Scenario) -> Iterator[InputError]:
    """Yield an error for a merging rule that could never do its work here.

    It gets too few uploads of a prototype in any merge, or looks at each coordinate by
    itself where uploads leave most of them out.
    """
    server, rule = scenario.aggregation, scenario.aggregation.rule
    least: int = rule.made.least
    for i, group in enumerate(scenario.clients):
        where = scenario.policy_key(i)
        for arm in scenario.arms_of_group(group) if rule.made.needs_dense else ():
            if not arm.codec.is_dense:
                yield InputError(
                    f"codecs that leave no entry out beside rule {rule.kind}, which "
                    "looks at each coordinate by itself and would find mostly zeros",
                    where="compression.strategies"
                    if arm in scenario.compression.choices
                    else where,
                    got=arm.label,
                    hint="dense or qsgd; or krum, multi-krum, geometric-median or "
                    "norm-bound",
                )
                return
    per_round = scenario.participation.clients_per_round
    counts = [(group.prototype, group.count) for group in scenario.clients]
    for name in scenario.prototypes:
        clients = sum(count for prototype, count in counts if prototype == name)
        most = clients if server.late == "merge" else min(clients, per_round or clients)
        if server.concurrency is not None:
            most = server.buffer or 1
        if clients and most < least:
            whose = "" if len(scenario.prototypes) == 1 else f" of {name}"
            yield InputError(
                where="aggregation.rule",
                problem=f"{_format_rule(rule)} needs at least {least} uploads{whose} "
                f"in a merge, which has {most} at most",
                hint="more clients per round, a larger buffer, or a smaller f",
            )


def _find_unfit_attacks(scenario: Scenario) -> Iterator[InputError]:
    """Yield an error for attackers that cannot agree here, or are of two minds.

    Colluding ones need to be started together; backdoors must be the same in every
    group, as one column tells their success.
    """
    attacks = [
        (i, group.attack) for i, group in enumerate(scenario.clients) if group.attack
    ]
    server = scenario.aggregation
    apart = "edge servers" if server.edge_servers else f"mode {server.mode}"
    for i, attack in attacks:
        if attack.made.colludes and (
            server.edge_servers or server.concurrency is not None
        ):
            yield InputError(
                "one server that starts its clients together (synchronous, deadline or "
                f"first), as attackers of kind {attack.kind} agree on what they send",
                where=f"clients[{i}].attack",
                got=apart,
            )
    marked = [attack for _, attack in attacks if attack.made.marks]
    if len({(attack.made.target, attack.made.size) for attack in marked}) > 1:
        yield InputError(
            "the same target and size in every group with a backdoor: attack_success "
            "is of one",
            where="clients",
            got=listed(
                [f"target {one.made.target}, size {one.made.size}" for one in marked]
            ),
        )


def _format_rule(rule: RuleChoice) -> str:
    """Return a merging rule as a scenario writes it: `{trimmed-mean: 0.1}`."""
    options = ", ".join(
        f"{value:g}" for value in rule.options.values() if value is not None
    )
    return f"{rule.kind}: {options}" if options else rule.kind


def _find_method(choice: Any) -> type[Method]:
    """Return the class behind a `method` key as it was written.

    Fedkd's where no method has that name, which validation of the key refuses.
    """
    kind = choice.get("kind", "fedkd") if isinstance(choice, dict) else choice
    kind = getattr(kind, "kind", kind)
    if not isinstance(kind, str) or kind not in registry("method"):
        kind = "fedkd"
    return cast("type[Method]", registry("method").get(kind))


def _choose_local_work(training: Any, method: type[Method]) -> dict[str, Any]:
    """Return `{"training": …}` with one of steps and epochs.

    It is the method's where neither is written; empty where nothing has to be added.
    """
    keys = ("local_steps", "local_epochs")
    if not isinstance(training, dict) or any(training.get(k) is not None for k in keys):
        return {}
    return {"training": {**training, keys[not method.counts_steps]: 1}}


def _weighs_single(scenario: Any) -> bool:
    """Return whether an upload's weight has an effect even where it comes alone.

    It has where others arrive while the server works or restarts, or its privacy
    divides by how many it expects. The scenario may be one as it was written.
    """
    keys = {"server": "device", "faults": "restarts", "privacy": "clip"}
    sections = ((_find(scenario, name), key) for name, key in keys.items())
    return any(_find(section, key) is not None for section, key in sections)


def _weighs_single_at_edges(edges: Any) -> bool:
    """Return the same of edge servers, whose own section says it."""
    return any(_find(edges, key) is not None for key in ("device", "restarts"))


def _find(section: Any, key: str) -> Any:
    """Return a key's value in a section as written or read; None: it has none."""
    if isinstance(section, dict):
        return section.get(key)
    return getattr(section, key, None)


def _choose_constant_staleness(
    server: dict[str, Any], method: type[Method], *, weighs: bool
) -> dict[str, Any]:
    """Return an aggregation as written, with constant staleness where it must be.

    It must where no kind is written and another would weigh late uploads twice, or not
    at all. `weighs`: even where shares add up to 1.
    """
    alone = server.get("mode") == "asynchronous" or server.get("buffer") == 1
    if not (method.weighs_staleness or (method.shares_add_up and alone and not weighs)):
        return server
    staleness = server.get("staleness")
    filled = server.get("mode") in ("buffered", "asynchronous")
    if staleness is None and (filled or server.get("late") == "merge"):
        staleness = {}
    if isinstance(staleness, dict):
        default = {"kind": "constant", "bound": method.latest}
        return {**server, "staleness": {**default, **staleness}}
    return server


def _is_ascend(policy: Any) -> bool:
    """Return whether a policy as written, or left out, is ascend, the default."""
    if policy is None:
        return True  # the default policy
    if isinstance(policy, dict) and "kind" not in policy:
        return True
    return bool(_find(policy, "kind") == "ascend")
