"""The device section: a calibration profile, and what stands before a client."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    Field,
    model_validator,
)

from simfed.device.quota import Quota
from simfed.device.speed import ClockSteps, Load, Thermal
from simfed.ground.errors import InputError, within
from simfed.ground.plain import Plain
from simfed.ground.registry import Only
from simfed.ground.units import parse_duration
from simfed.schema.distribution import Distribution, DrawnNumber, DrawnWork
from simfed.schema.fields import (
    BelowOne,
    Duration,
    Fraction,
    Positive,
    PositiveDuration,
    PositiveInt,
    WithinOne,
)
from simfed.schema.quantity import Quantity
from simfed.schema.section import Section

# A coefficient of variation above 100 is a percentage without its sign, or worse.
_Variation = Annotated[float, Quantity(ge=0, le=100)]


class NoiseSpec(Section):
    """Scatter of every compute duration, drawn per client, round and phase.

    `lognormal`: factors of mean 1 with coefficient of variation `cv`. `measured`: what
    the profile's calibration found, around the median, stragglers included.
    """

    kind: Literal["lognormal", "measured"] = Field(
        default="lognormal", description="measured: as in the profile"
    )
    cv: Annotated[_Variation | None, Only("kind", "lognormal", needed=True)] = Field(
        default=None, description="coefficient of variation, at most 100"
    )


class CoresSpec(Section):
    """Cores in use: n cores do 1 + efficiency·(n − 1) times the work of one.

    A number alone is the count.
    """

    @classmethod
    def expand(cls, value: Plain) -> Plain:
        """Return a number alone as a count."""
        return {"count": value} if isinstance(value, int) else value

    def compute_factor(self, measured: int) -> float:
        """Return how much faster they are than so many measured cores.

        >>> CoresSpec(count=4, efficiency=0.8).compute_factor(1)
        3.4000000000000004
        """
        in_use, before = (1 + self.efficiency * (n - 1) for n in (self.count, measured))
        return in_use / before

    count: PositiveInt = Field(description="in use")
    measured: PositiveInt | None = Field(
        default=None,
        description="cores the profile was measured with; the profile's threads if "
        "omitted",
    )
    efficiency: Fraction = Field(
        default=1.0, description="of one core that each further core adds"
    )


class Background(Section):
    """The share of the processor that other programs take.

    It is a number, or a step function of simulated time.
    """

    trace: tuple[tuple[Duration, Fraction], ...] = Field(
        description="[instant, share from then on], the first at 0 s"
    )
    period: Duration | None = Field(
        default=None, description="repeats; omitted: the last share stays"
    )
    offset: Literal["none", "random"] = Field(
        default="none",
        description="random: each client starts at its own place of the period",
    )

    @classmethod
    def expand(cls, value: Plain) -> Plain:
        """Return a number alone as a share."""
        return {"trace": [["0 s", value]]} if isinstance(value, (int, float)) else value

    def build(self) -> Load:
        """Return the load, refused where it leaves nothing of the processor."""
        at_s, share = zip(*self.trace, strict=True) if self.trace else ((), ())
        period_s = math.inf if self.period is None else self.period
        return Load(at_s, share, period_s, self.offset == "random")


class ClockStepSpec(Section):
    """A clock factor and how long it lasts; the last step has no end."""

    factor: Positive = Field(description="on the speed")
    lasts: Duration | None = Field(
        default=None, description="busy time; omitted in the last step"
    )


class Dvfs(Section):
    """Clock steps by how long the processor has been busy.

    It models a slow governor, or a turbo that ends.
    """

    steps: tuple[ClockStepSpec, ...] = Field(description="in order")
    reset_after: Duration = Field(
        default=1.0, description="rest after which the steps start over"
    )

    def build(self) -> ClockSteps:
        """Return the steps, of which the last has no end."""
        factors = tuple(step.factor for step in self.steps)
        lasts_s = tuple(
            math.inf if step.lasts is None else step.lasts for step in self.steps
        )
        if [i for i, s in enumerate(lasts_s) if s == math.inf] != [len(lasts_s) - 1]:
            allowed = "`lasts` in every step but the last, which goes on without"
            got = [step.lasts for step in self.steps]
            raise InputError(allowed, where="dvfs.steps", got=got)
        return ClockSteps(factors, lasts_s, self.reset_after)


class ThermalSpec(Section):
    """First-order heating and cooling.

    Heat 0 is cold, 1 is where it settles when busy for ever.
    """

    heating: PositiveDuration = Field(description="time constant when busy")
    cooling: PositiveDuration = Field(description="time constant when idle")
    throttle_at: BelowOne = Field(description="heat at which the speed falls")
    factor: Positive = Field(description="on the speed while throttled")
    resume_at: Fraction | None = Field(
        default=None,
        description="heat below which full speed returns; throttle_at if omitted",
    )

    def build(self) -> Thermal:
        """Return the heating and cooling, with its instant of return filled in."""
        at = self.throttle_at
        resume_at = at if self.resume_at is None else self.resume_at
        return Thermal(self.heating, self.cooling, at, self.factor, resume_at)


class QuotaSpec(Section):
    """A limit on processor time, as containers have: so much of every period.

    Then comes a halt. A number alone is the share.
    """

    share: WithinOne = Field(
        description="of the processor: 0.15 is 15 ms of every 100 ms"
    )
    period: PositiveDuration = Field(
        default=0.1, description="between fillings of the allowance"
    )

    @classmethod
    def expand(cls, value: Plain) -> Plain:
        """Return a number alone as a share."""
        return {"share": value} if isinstance(value, (int, float)) else value

    def build(self) -> Quota:
        """Return the quota."""
        return Quota(self.share, self.period)


_WORK = {
    "training": "of a local step",
    "private": "of a local step with privacy of samples",
    "compression": "of an update",
    "decompression": "of an upload",
    "inference": "of the public set",
    "distillation": "of a step on the public set",
    "auxiliary": "of a step of a method's own networks, whichever",
    "starting": "of a participation's training, beside its steps",
    "handling": "of a participation's messages; of a merge, where it is a server",
    "evaluation": "of a model on the test set",
    "losses": "of a server, until clients whose policy learns have measured their "
    "losses",
}
"""Kind of work → its one call, in words."""


def _declare_work(kind: Any, short_for: str = "") -> dict[str, Any]:
    """Return the annotation of a key for each kind of work; null where omitted."""
    short = bool(short_for)
    return {
        work: Annotated[
            kind | None,
            Field(default=None, description=short_for or of_call, exclude=short),
        ]
        for work, of_call in _WORK.items()
    }


class AssumedTimes(Section):
    """Seconds per call to assume for a kind of work.

    They stand in place of what the profile knows or lacks. Each may be drawn per
    client; a column's unit may be of a sample or, of training, of an epoch:
    `{column: ms, unit: ms/sample}`.
    """

    __annotations__ = _declare_work(DrawnWork)

    @model_validator(mode="after")
    def _check_per(self) -> AssumedTimes:
        for work, value in self:
            per = value.per if isinstance(value, Distribution) else "step"
            steps = work in ("training", "private")
            if per == "epoch" and not steps:
                allowed = "a unit per step or sample: epochs are of training"
            elif per != "step" and work in ("compression", "decompression"):
                allowed = "a unit of time: an update is one call"
            else:
                continue
            raise InputError(allowed, where=f"{work}.unit", got=value.unit)
        return self


class TimeFactors(Section):
    """Factors on the times that a profile gives, kind by kind.

    1000 for a column that was written in another unit, say. Times that the scenario
    says itself stay as they are said.
    """

    __annotations__ = _declare_work(Positive)


class DeviceSpec(Section):
    """A client's processor: a calibration profile, or stated times, and what scales it.

    `profile` alone may be written as its name. Times may stand without a profile: then
    they are all that is known, and work whose time is not said is an error.
    """

    short = "profile"

    profile: str | None = Field(
        default=None,
        description="name or file of a calibration profile; none where times are said",
    )
    speed: DrawnNumber = Field(
        default=1.0, description="factor on the profile's speed; 0.5 is half as fast"
    )
    cores: CoresSpec | None = Field(
        default=None, description="in use, when the profile was measured with others"
    )
    background: Background | None = Field(
        default=None, description="share of the processor that others take"
    )
    dvfs: Dvfs | None = Field(
        default=None, description="clock by how long it has been busy"
    )
    thermal: ThermalSpec | None = Field(default=None, description="throttling by heat")
    quota: QuotaSpec | None = Field(
        default=None,
        description="limit on processor time, without background, dvfs, thermal",
    )
    noise: NoiseSpec | None = Field(
        default=None, description="scatter of every duration"
    )
    assume: AssumedTimes | None = Field(
        default=None,
        description="times of what the profile lacks, such as inference: 0 s",
    )
    scale: TimeFactors | None = Field(
        default=None,
        description="factors on the profile's times, such as `{compression: 1000}`",
    )
    uncertainty: bool = Field(
        default=False,
        description="draw the profile's constants, per run, from what its fit does not "
        "know",
    )
    __annotations__ |= _declare_work(DrawnWork, "short for the same key of `assume`")

    @model_validator(mode="before")
    @classmethod
    def _move_times_to_assume(cls, value: Any) -> Any:
        """Times that stand beside `profile` become keys of `assume`.

        Raises: `ValueError` for a time that stands in both places, or is no duration.
        """
        if not isinstance(value, Mapping):
            return value
        times = {key: value[key] for key in _WORK if value.get(key) is not None}
        assumed = value.get("assume")
        if not times or not (assumed is None or isinstance(assumed, Mapping)):
            return value
        for key, got in times.items():
            if (assumed or {}).get(key) is not None:
                problem = f"{got} stands twice"
                raise InputError("each time once", where=key, got=got, problem=problem)
        for key, text in times.items():
            if not isinstance(text, (Mapping, Distribution)):
                with within(key):
                    parse_duration(text)
        rest = {key: value[key] for key in value if key not in _WORK}
        return {**rest, "assume": {**(assumed or {}), **times}}

    @model_validator(mode="after")
    def _check_source_of_times(self) -> DeviceSpec:
        if self.profile is None:
            if self.assume is None:
                raise InputError(
                    "a profile, or times such as {training: 12 ms, compression: 0.3 ms}"
                )
            if self.scale is not None:
                allowed = "null without a profile: stated times are not scaled"
                raise InputError(allowed, where="scale")
            if self.uncertainty:
                allowed = "false without a profile: stated times have none"
                raise InputError(allowed, where="uncertainty")
        stated = dict(self.assume or ())
        for key, factor in self.scale or ():
            if factor is not None and stated.get(key) is not None:
                problem = f"{key} is stated, and stated times are not scaled"
                raise InputError("null", where=f"scale.{key}", problem=problem)
        return self


def _refuse_drawn_speed(device: DeviceSpec) -> DeviceSpec:
    if isinstance(device.speed, Distribution):
        allowed = "a number: speeds are drawn for clients alone"
        raise InputError(allowed, where="speed", problem="a distribution")
    for work, value in device.assume or ():
        if isinstance(value, Distribution):
            allowed = "a time: times are drawn for clients alone"
            raise InputError(allowed, where=f"assume.{work}", problem="a distribution")
    return device


FixedDevice = Annotated[DeviceSpec, AfterValidator(_refuse_drawn_speed)]
"""The device of a server."""
