"""One client's processor: from a profile's nominal seconds to simulated seconds.

A `Processor` is what a group of clients has in common (profile, speed regimes, noise);
a `Device` is one client of it and costs next to nothing until it computes. Every draw
comes from a generator keyed by client, round and phase, so none depends on another
client or on the order of calls.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from simfed.device.noise import LognormalNoise, Measured
from simfed.device.profile import QUANTITIES, Profile, is_free
from simfed.device.spec import CoresSpec, DeviceSpec
from simfed.device.speed import ProcessorState, Regimes
from simfed.ground.errors import InputError
from simfed.ground.memo import Memo
from simfed.ground.method import Work
from simfed.ground.seeding import Streams
from simfed.schema.distribution import Distribution

_STEPS = ("training", "private")
"""Work that is steps of one after another."""


@dataclass(frozen=True, slots=True)
class Processor:
    """The processor that the clients of one group share in kind.

    It knows what a unit of work takes on an idle one: by its profile, by an assumed
    time in its place (`assume`, seconds) or by a multiple of it (`scale`). What changes
    during a run (background load, clock steps, heat, a quota) are its `regimes`;
    `noise` scatters single calls. `build_processor` makes one of a scenario's section.
    Ignored: caches that another client warms, and memory that runs out.
    """

    profile: Profile
    regimes: Regimes = field(default_factory=Regimes)
    noise: LognormalNoise | Literal["measured"] | None = None
    assume: Mapping[str, float] = field(default_factory=dict)
    scale: Mapping[str, float] = field(default_factory=dict)
    per: Mapping[str, str] = field(default_factory=dict)
    """Kind of work → `sample` or `epoch`, where assumed seconds are not of a call."""
    samples: int = 1
    """Training samples of an epoch."""
    _memo_s: Memo[tuple[object, ...], float] = field(
        default_factory=Memo, repr=False, compare=False
    )

    def work_s(self, work: Work) -> float:
        """Return the seconds of one of a unit's `times` on an idle processor.

        Computed once, as all clients of a group ask.
        """
        key = (
            work.quantity,
            work.model,
            work.size,
            work.strategy,
            work.parts,
            work.entries,
        )
        seconds = self._memo_s.get(key)
        if seconds is None:
            seconds = self._memo_s[key] = sum(
                share * self.nominal_s(work.quantity, **call)
                for call, share in _split_work(work)
            )
        return seconds

    def tell_source(self, work: Work) -> str:
        """Return what the time of one of a unit's `times` is taken from, in words.

        For reports and warnings: a row, a law, or the scenario.
        """
        if work.quantity in self.assume and not is_free(work.quantity, work.strategy):
            return "said in the scenario"
        found = (
            self.profile.tell_source(work.quantity, **call)
            for call, _ in _split_work(work)
        )
        return " and ".join(dict.fromkeys(found))

    def nominal_s(
        self,
        quantity: str,
        *,
        model: str,
        strategy: str = "",
        entries: float = 0,
        **size: float,
    ) -> float:
        """Return the seconds of one call, before speed and noise.

        What the scenario assumes for a quantity stands in place of the profile's; there
        is nothing to assume of strategy `dense`, which takes 0 s. What the profile says
        is scaled.

        Args:
            quantity: the kind of work, a key of `QUANTITIES`.
            model: registry name, or that of auxiliary work.
            strategy: of compression and decompression.
            entries: d of what is compressed; 0: the model's.
            **size: one number by the name that the quantity has, see `Profile.seconds`.

        Raises:
            InputError: neither profile nor scenario says it.
        """
        if quantity in self.assume and not is_free(quantity, strategy):
            per, amount = self.per.get(quantity), next(iter(size.values()), 1.0)
            if per == "sample":
                return self.assume[quantity] * amount
            steps = math.ceil(self.samples / amount) if per == "epoch" else 1
            return self.assume[quantity] / steps
        seconds = self.profile.seconds(
            quantity, model=model, strategy=strategy, entries=entries, **size
        )
        return seconds * self.scale[quantity] if quantity in self.scale else seconds

    def stretch_s(self, work: Work) -> float:
        """Return `nominal_s` of all of a unit's times in a row.

        Of training that begins with what that takes beside the steps, where it is
        known.
        """
        return work.times * self.work_s(work) + self._compute_starting_s(work)

    def count_steps(self, work: Work, speed: float, within_s: float) -> int:
        """Return the whole steps of training that take at most so long, at least one.

        Noise, load, quota and heat are not foreseen.

        Args:
            work: the training, of which `times` counts where a step takes 0 s.
            speed: the client's factor on its group's speed.
            within_s: seconds for all steps and their beginning.
        """
        one_s = self.work_s(work)
        if not one_s:
            return max(1, int(work.times))
        free_s = within_s * speed * self.regimes.speed - self._compute_starting_s(work)
        return max(1, math.floor(free_s / one_s + 1e-9))

    def _compute_starting_s(self, work: Work) -> float:
        if work.quantity not in _STEPS:
            return 0.0
        key = "starting", work.model
        seconds = self._memo_s.get(key)
        if seconds is None:
            timed = self.charges("starting", work.model)
            seconds = (
                self.nominal_s("starting", model=work.model, samples=1)
                if timed
                else 0.0
            )
            self._memo_s[key] = seconds
        return seconds

    def charges(self, quantity: str, model: str) -> bool:
        """Return whether this work takes time.

        All does but what a host does beside the method (`WorkQuantity.beside`), where
        neither the profile nor the scenario knows of it.

        Args:
            quantity: the kind of work.
            model: of which model.
        """
        if not QUANTITIES[quantity].beside or quantity in self.assume:
            return True
        return self.profile.has(quantity, model=model)

    def find_noise(self, phase: str) -> LognormalNoise | Measured | None:
        """Return the distribution that a phase's durations are scattered by.

        None: they are exact.

        Args:
            phase: the kind of work.

        Raises:
            InputError: the noise is to be as measured, and this kind's was not.
        """
        if self.noise != "measured":
            return self.noise
        if phase not in self.profile.noise:
            raise InputError(
                "a kind of work whose noise was measured",
                where=f"{self.profile.name}: noise",
                got=phase,
                hint="20 rows of it, of sizes repeated 5 times in a session: calibrate "
                "measure --repeat 20, then fit; or noise: {kind: lognormal, cv: 0.1}",
            )
        return self.profile.noise[phase]

    def assume_for_client(self, times: Mapping[str, float], samples: int) -> Processor:
        """Return the processor of one client with times and samples of its own.

        Args:
            times: kind of work → seconds, drawn for it.
            samples: its training samples, of which an epoch is made.
        """
        assume = {**self.assume, **times}
        return replace(self, assume=assume, samples=samples, _memo_s=Memo())

    def client(self, streams: Streams, client: int, speed: float = 1.0) -> Device:
        """Return the processor of one client.

        Args:
            streams: keyed generators of its noise and offsets.
            client: its id, key of these.
            speed: its own factor on the group's speed.
        """
        return Device(self, streams, client, speed)


class Device:
    """One client's processor, which remembers heat, clock steps and quota between work.

    >>> from simfed.device import DeviceSpec, build_processor, load_profile
    >>> profile = load_profile("rtx3090-ryzen4800h")
    >>> spec = DeviceSpec(profile=profile.name, speed=0.5)
    >>> processor = build_processor(spec, profile)
    >>> step_s = processor.nominal_s("training", model="lenet5", batch=32)
    >>> device = processor.client(Streams(0), client=3)
    >>> device.duration_s(step_s, start_at_s=10.0, round=1, phase="training")
    0.009
    """

    __slots__ = ("_memory", "_offset_s", "_streams", "client", "processor", "speed")

    def __init__(
        self, processor: Processor, streams: Streams, client: int, speed: float = 1.0
    ) -> None:
        self.processor = processor
        self.client = client
        self.speed = speed
        self._streams = streams
        self._memory = _FRESH
        self._offset_s = 0.0
        load, quota = processor.regimes.load, processor.regimes.quota
        if load is not None and load.random_offset:
            self._offset_s = load.period_s * streams("load-offset", client).random()
        if quota is not None:
            self._offset_s = quota.period_s * streams("quota-offset", client).random()

    def work_s(self, work: Work) -> float:
        """Return the seconds of one of a unit's `times` on the measured device."""
        return self.processor.work_s(work)

    def stretch_s(self, work: Work) -> float:
        """Return the seconds of all its times; see `Processor.stretch_s`."""
        return self.processor.stretch_s(work)

    def charges(self, quantity: str, model: str) -> bool:
        """Return whether this work takes time; see `Processor.charges`."""
        return self.processor.charges(quantity, model)

    def duration_s(
        self,
        nominal_s: float,
        start_at_s: float,
        *,
        round: int | str,
        phase: str,
        nth: int = 0,
        steps: float = 1.0,
    ) -> float:
        """Return the simulated seconds of nominal work that begins at an instant.

        Calls of one client come in the order of their starts.

        Args:
            nominal_s: seconds on the measured device.
            start_at_s: the beginning, on the run's clock.
            round: key of the noise, with client and phase.
            phase: the kind of work (training, compression, …), whose noise is drawn.
            nth: pieces of this phase before it in the round, key of the noise too.
            steps: of how many it is made, which scatter for themselves.
        """
        work_s = nominal_s / self.speed
        noise = self.processor.find_noise(phase)
        if noise is not None and nominal_s > 0:
            key = (self.client, round, phase, *([nth] if nth else []))
            work_s *= noise.factor(self._streams("device-noise", *key), steps)
        regimes = self.processor.regimes
        if regimes.steady:
            return work_s / regimes.speed
        duration_s, self._memory = regimes.run(
            work_s, start_at_s, self._memory, self._offset_s
        )
        return duration_s

    @property
    def counts_energy(self) -> bool:
        """True if its profile says what power it takes, so that `energy_j` is known."""
        return bool(self.processor.profile.power_w)

    def energy_j(self, phases_s: Mapping[str, float]) -> float | None:
        """Return the joules of a participation; None where the profile knows no power.

        Where the profile has no watts of their own, inference, distillation and
        auxiliary steps take those of training, and decompression those of compression.

        Args:
            phases_s: seconds per phase. Those of `idle` below zero are seconds in which
                it does one more thing: the watts of each hold what standing idle takes,
                which counts once.

        Raises:
            InputError: a phase that took time and has no watts.
        """
        profile = self.processor.profile
        stated_w = profile.power_w
        if not stated_w:
            return None
        power_w: dict[str, float] = {}
        if "training" in stated_w:  # the same processor at full load
            passes = (name for name, q in QUANTITIES.items() if not q.per_strategy)
            power_w = dict.fromkeys(passes, stated_w["training"])
        if "compression" in stated_w:
            power_w["decompression"] = stated_w["compression"]
        power_w |= stated_w
        for phase, seconds in phases_s.items():
            if seconds > 0 and phase not in power_w:
                where = f"{profile.name}: power"
                raise InputError("watts for this phase", where=where, got=phase)
        return math.fsum(
            power_w[phase] * s for phase, s in phases_s.items() if phase in power_w
        )


_FRESH = ProcessorState()


def _split_work(work: Work) -> Iterator[tuple[dict[str, Any], float]]:
    """Yield what `Profile.seconds` is asked for each part of a call, and its share."""
    size = QUANTITIES[work.quantity].size
    for strategy, amount, share in work.parts or ((work.strategy, work.size, 1.0),):
        call = {"model": work.model, "strategy": strategy, "entries": work.entries}
        yield {**call, size: amount}, share


def build_processor(
    spec: DeviceSpec, profile: Profile, streams: Streams | None = None
) -> Processor:
    """Return the processor of a group of clients.

    A speed and times that are drawn per client are left out: they are no properties of
    the group.

    Args:
        spec: the group's section `device`.
        profile: the calibration profile that it names.
        streams: of the run, from which the profile's uncertainty is drawn; None: its
            laws are taken as they are.

    Raises:
        InputError: values that contradict each other.
    """
    speed = 1.0 if isinstance(spec.speed, Distribution) else spec.speed
    parts = {
        "load": spec.background,
        "clock": spec.dvfs,
        "thermal": spec.thermal,
        "quota": spec.quota,
    }
    built: dict[str, Any] = {
        name: part.build() for name, part in parts.items() if part is not None
    }
    regimes = Regimes(speed=speed * _compute_core_factor(spec.cores, profile), **built)
    if spec.uncertainty:
        if streams is None:
            raise TypeError("uncertainty is drawn from streams")
        profile = profile.drawn(streams)
    noise: LognormalNoise | Literal["measured"] | None = None
    if spec.noise is not None:
        cv = spec.noise.cv
        noise = "measured" if cv is None else LognormalNoise(cv)
    assume, scale = (
        {work: number for work, number in stated or () if isinstance(number, float)}
        for stated in (spec.assume, spec.scale)
    )
    drawn = {
        work: value.per
        for work, value in spec.assume or ()
        if isinstance(value, Distribution)
    }
    return Processor(profile, regimes, noise, assume, scale, drawn)


def _compute_core_factor(spec: CoresSpec | None, profile: Profile) -> float:
    """Return the factor of the cores in use on the measured device's speed."""
    if spec is None:
        return 1.0
    measured = spec.measured or profile.provenance.get("threads")
    if not isinstance(measured, int) or measured < 1:
        allowed = (
            f"the number of cores measured, which profile {profile.name} does not say"
        )
        raise InputError(allowed, where="cores.measured", got=measured)
    return spec.compute_factor(measured)
