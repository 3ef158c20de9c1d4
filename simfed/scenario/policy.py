"""The keys of a policy: its kind, that kind's options, and what a choice is worth."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator

from simfed.compress.choice import Choice
from simfed.ground.errors import InputError
from simfed.ground.registry import Only, registry
from simfed.schema.fields import FoundFile, Named, NonNegative, Number, PositiveInt
from simfed.schema.options import OfKind
from simfed.schema.section import OnlyWith, Section


class LocalLoss(Section):
    """f_n, the client's own loss inside the reward."""

    data: Literal["probe", "full", "batch"] = Field(
        default="probe",
        description=(
            "where fₙ is computed: a fixed random probe, all of the client's samples, "
            "or the batch"
        ),
    )
    samples: Annotated[PositiveInt, Only("data", "probe")] = Field(
        default=256, description="size of the fixed random probe"
    )
    credit: Literal["causal", "as-printed"] = Field(
        default="causal",
        description="whose improvement a choice is paid for, see policies",
    )


class Reward(Section):
    """Learning gain per simulated second: clip((rho·ΔKD + beta·Δlocal)/τ)."""

    rho: NonNegative = Field(
        default=0.6, description="weight of the gain on the public set"
    )
    beta: NonNegative = Field(
        default=0.4, description="weight of the gain on the client's own data"
    )
    clip: tuple[Number, Number] | None = Field(
        default=(-1.0, 1.0),
        description="bounds of gain per simulated second; null: none, for ascend",
    )
    local_loss: LocalLoss = Field(
        default=LocalLoss(),
        description="how the gain on the client's own data is measured",
    )

    @field_validator("clip")
    @classmethod
    def _check_ordered(
        cls, value: tuple[float, float] | None
    ) -> tuple[float, float] | None:
        """Return the bounds.

        Raises:
            InputError: the lower one is not below the other.
        """
        if value is not None and not value[0] < value[1]:
            raise InputError("[low, high] with low < high", got=list(value))
        return value

    @property
    def bounds(self) -> tuple[float, float]:
        """The least and the greatest reward; infinite where rewards are not clipped.

        Bandits scale rewards by them.
        """
        return self.clip or (-math.inf, math.inf)


class PolicySpec(OfKind):
    """The policy that picks the strategy: a kind, with its options beside it."""

    registry_kind: ClassVar[str] = "policy"
    from_run: ClassVar[frozenset[str]] = frozenset({"arms", "reward_range"})

    kind: Annotated[str, Named("policy")] = Field(
        default="ascend", description="see `simfed list policies`"
    )
    reward: Annotated[Reward, OnlyWith("policy", "learns")] = Field(
        default=Reward(), description="what a choice was worth"
    )
    arms_from: FoundFile | None = Field(
        default=None,
        description="a run directory whose recorded arms and sizes are replayed",
    )

    def _says(self, trait: str, default: bool = False) -> bool:
        """Return what the kind's class says of itself; never where arms are replayed.

        Args:
            trait: an attribute of the class, see `simfed.policy.Policy`.
            default: what a class without it says.
        """
        kind = registry("policy").get(self.kind)
        return self.arms_from is None and bool(getattr(kind, trait, default))

    @property
    def learns(self) -> bool:
        """True if clients of this policy choose by their rewards."""
        return self._says("learns", default=True)

    @property
    def follows_clock(self) -> bool:
        """True if clients of this policy choose by seconds or by their context."""
        return self._says("watches_time") or self._says("reads_context")

    @property
    def compares_clients(self) -> bool:
        """True if clients of this policy choose by what others of one merge took."""
        return self._says("compares_clients")

    @property
    def sets_k(self) -> bool:
        """True if clients of this policy set K themselves, within bounds."""
        return self._says("ends")

    def arms(self, offered: tuple[Choice, ...]) -> tuple[Choice, ...]:
        """Return the arms of its clients, of those that the scenario offers.

        Args:
            offered: the scenario's choices, in the order of the file.

        Returns:
            Those offered and the one it names. A policy that does not learn and names
            its
            strategy plays that one alone; one that sets K itself, the arms at the ends
            of its
            range and whatever lies between them.
        """
        if self.sets_k:
            return tuple(
                map(Choice.of, registry("policy").get(self.kind).ends(**self.options))
            )
        named = tuple(map(Choice.of, self.names("codec")))
        return (
            named
            if named and not self.learns
            else tuple(dict.fromkeys((*offered, *named)))
        )

    def check_options(self) -> None:
        """Let the constructor judge its options.

        The arms are stand-ins, so only what the constructor says about an option counts
        here.
        """
        kind = registry("policy").get(self.kind)
        arms = list(map(Choice, registry("codec").names()))
        try:
            kind(arms, reward_range=self.reward.bounds, **self.options)
        except InputError as error:
            if error.where == "reward_range":
                problem = f"{self.kind} needs rewards between two bounds"
                raise InputError(
                    "[low, high]", where="reward.clip", problem=problem
                ) from None
            if error.where is not None and error.where in self.options:
                raise
        except (TypeError, ValueError):
            pass  # about these arms, perhaps; asked again with those of the scenario
