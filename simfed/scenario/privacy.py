"""The privacy section: the promise to clients, or samples, and its price."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from simfed.ground.errors import InputError
from simfed.schema.fields import Fraction, Positive, WithinOne
from simfed.schema.quantity import Quantity
from simfed.schema.section import Section

MOST_NOISE = 1e4
"""Beyond so much noise on the clip nothing is learned, and no target is looked for."""

_LEAST_NOISE = 1e-3
"""Below it ε is in the millions, and soon no number."""

NoiseMultiplier = Annotated[float, Quantity(ge=_LEAST_NOISE, le=MOST_NOISE)]
CountNoise = Annotated[float, Quantity(ge=_LEAST_NOISE)]

_DELTA = 1e-5


def _tell_clip(value: object) -> str:
    """Return the tag of a clip as it is written: a number, or an adaptive one."""
    return "adaptive[]" if isinstance(value, (Mapping, Section)) else "fixed[]"


class AdaptiveClip(Section):
    """A clip that follows a quantile of the norms.

    Source: Andrew et al., "Differentially Private Learning with Adaptive Clipping",
    2021.
    """

    quantile: Fraction = Field(
        description="share of norms that the clip should leave alone"
    )
    start: Positive = Field(default=0.1, description="the clip of the first merge")
    rate: Positive = Field(
        default=0.2, description="by how much it follows: η of the source"
    )
    count_noise: CountNoise | None = Field(
        default=None,
        description="standard deviation of the noise on how many were left alone; a "
        "twentieth of the expected cohort if omitted",
    )


AnyClip = Annotated[
    Annotated[Positive, Tag("fixed[]")] | Annotated[AdaptiveClip, Tag("adaptive[]")],
    Discriminator(_tell_clip),
]


class PrivacyTarget(Section):
    """The privacy to be spent in all rounds, in place of a noise."""

    epsilon: Positive = Field(description="of (ε, δ), after the last round")
    delta: WithinOne = Field(default=_DELTA, description="of (ε, δ)")


class Privacy(Section):
    """Differential privacy of what the server releases, see privacy.

    `client`: the change that each client brings to a merge is shortened to the norm
    `clip`, and the server adds noise to the sum. `sample`: the gradient of each sample
    is, in every local step, and clients add the noise.
    """

    one_of = "noise", "target"

    level: Literal["client", "sample"] = Field(
        description="what one neighbour more or less is"
    )
    clip: AnyClip = Field(
        description="S, the longest norm; `{quantile: 0.5}`: one that follows the "
        "norms (level "
        "client)"
    )
    noise: NoiseMultiplier | None = Field(
        default=None,
        description="z, from 0.001 to 10000: the standard deviation is z·S; or "
        "`target`",
    )
    target: PrivacyTarget | None = Field(
        default=None, description="the noise that spends so much in all rounds"
    )
    delta: WithinOne | None = Field(
        default=None, description="of (ε, δ), beside noise; 1e-5"
    )

    @model_validator(mode="after")
    def _check_together(self) -> Privacy:
        """Refuse a clip or a δ that its level or its target leaves no room for.

        Raises:
            InputError: an adaptive clip of samples, or a delta beside a target.
        """
        if self.level == "sample" and isinstance(self.clip, AdaptiveClip):
            raise InputError(
                "a number with level sample", where="clip", got="a quantile"
            )
        if self.target is not None and self.delta is not None:
            raise InputError("delta inside target", where="delta", got=self.delta)
        return self

    @property
    def spent_delta(self) -> float:
        """δ at which ε is told: the target's, else `delta`, else 1e-5."""
        return (self.delta or _DELTA) if self.target is None else self.target.delta
