"""The part of a scenario that says which models there are, and what of them trains."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from simfed.ground.errors import InputError
from simfed.scenario.dataset import DataPath
from simfed.schema.fields import Named, Positive, PositiveInt
from simfed.schema.quantity import Quantity
from simfed.schema.section import Section

ATTENTION = "attention"
"""The word for the projections of attention, in `adapters.targets`."""

Count = Annotated[int, Quantity(ge=0, le=10**15, whole=True)]
Counted = Annotated[int, Quantity(ge=1, le=10**15, whole=True)]


class AdaptersSpec(Section):
    """Low-rank adapters (LoRA) beside linear layers that do not train.

    A layer's W becomes W + (alpha/rank)·B·A, of which A and B train: A begins random, B
    at 0 (E. J. Hu et al., "LoRA: Low-rank adaptation of large language models", 2021,
    section 4.1). A and B are averaged apart, so the mean is not that of the products.
    """

    rank: PositiveInt = Field(description="r: rows of A, columns of B")
    alpha: Positive | None = Field(
        default=None, description="W + (alpha/rank)·B·A; omitted: the rank"
    )
    targets: Annotated[
        tuple[str, ...],
        BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
    ] = Field(
        default=(ATTENTION,),
        description="names of linear layers, whole or their last part, with `*` for "
        "any text; `attention`: the projections of attention",
    )

    @property
    def scale(self) -> float:
        """The factor of B·A: alpha/rank."""
        return 1.0 if self.alpha is None else self.alpha / self.rank


class FactsSpec(Section):
    """A model of which a clock needs only sizes and work."""

    parameters: Counted = Field(description="all, those that do not train as well")
    trainable: Counted | None = Field(
        default=None, description="of these, that train and travel; omitted: all"
    )
    flops_per_sample: Positive = Field(
        description="of one sample forward; a training step adds as many for the "
        "gradients of activations, and their share for those of trainable weights"
    )
    buffers: Count = Field(
        default=0, description="running statistics that travel beside the weights"
    )

    @model_validator(mode="after")
    def _check_trainable(self) -> FactsSpec:
        """Refuse more trainable parameters than there are.

        Raises:
            InputError: `trainable` is above `parameters`.
        """
        if self.trainable is not None and self.trainable > self.parameters:
            raise InputError(
                f"at most the {self.parameters:,} parameters",
                where="trainable",
                got=self.trainable,
            )
        return self


class PrototypeSpec(Section):
    """A model architecture and the clients that share its weights.

    The parameters that do not train are the base. It lies on every device: it is
    neither sent, compressed, averaged nor saved (`charge.base` has it sent).
    """

    brief = None

    model: Annotated[str, Named("model")] | None = Field(
        default=None,
        description="see `simfed list models`; omitted beside `facts`, and beside a "
        "`pretrained` folder, whose `config.json` says it",
    )
    pretrained: DataPath | None = Field(
        default=None,
        description="safetensors with the model's first weights, or a folder of "
        "GPT-2's layout; omitted: drawn from the seed",
    )
    adapters: AdaptersSpec | None = Field(
        default=None, description="low-rank adapters, of which alone all trains"
    )
    train: Literal["head", "adapters", "all"] | None = Field(
        default=None,
        description="the last linear layer, the adapters, or all; omitted: adapters "
        "where there are some, else all",
    )
    facts: FactsSpec | None = Field(
        default=None, description="in place of a model, in time-only runs"
    )

    @model_validator(mode="after")
    def _check_together(self) -> PrototypeSpec:
        """Refuse a prototype that is no model, two, or trains what it does not have.

        Raises:
            InputError: facts beside a model, neither of them, or adapters that would
            not train.
        """
        beside = [
            key
            for key in ("model", "pretrained", "adapters", "train")
            if getattr(self, key) is not None
        ]
        if self.facts is not None and beside:
            allowed = "facts alone, or a model"
            raise InputError(allowed, where=beside[0], problem="it stands beside facts")
        if self.facts is None and not {"model", "pretrained"} & {*beside}:
            hint = "simfed list models"
            raise InputError(problem="the key 'model' is missing", hint=hint)
        if self.adapters is not None and self.train in ("head", "all"):
            allowed = "adapters beside adapters, or none of these"
            raise InputError(allowed, where="train", got=self.train)
        if self.adapters is None and self.train == "adapters":
            problem = "there are no adapters"
            hint = "adapters: {rank: 8}"
            raise InputError("head or all", where="train", problem=problem, hint=hint)
        return self

    @property
    def bare(self) -> bool:
        """True if it is a registered model as it is, of which all trains."""
        return self == PrototypeSpec.model_construct(model=self.model)

    @property
    def trains(self) -> str:
        """What trains: `head`, `adapters` or `all`."""
        return self.train or ("all" if self.adapters is None else "adapters")

    @property
    def whole(self) -> bool:
        """True if every parameter trains."""
        return self.trains == "all"

    def name(self, prototype: str) -> str:
        """Return the name of its model in profiles and records.

        Models of which other parts train are other models there: a step of theirs takes
        another time.

        Args:
            prototype: its own name, by which goes what is no registered model.

        >>> PrototypeSpec(model="resnet18", train="head").name("large")
        'resnet18/head'
        """
        name = self.model or prototype
        if self.train == "head":
            return f"{name}/head"
        if self.adapters is None:
            return name
        targets = self.adapters.targets
        at = "" if targets == (ATTENTION,) else f"-{'-'.join(targets)}"
        return f"{name}/adapters-{self.adapters.rank}{at}"
