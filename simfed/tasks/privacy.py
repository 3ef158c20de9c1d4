"""The price of a run's privacy: ε after every merge, and noise for a target.

Everything here follows from who took part in what, and how many samples clients own: no
tensor, and so time-only runs know it too. The arithmetic of (ε, δ) is dp-accounting's,
by Rényi differential privacy (Mironov 2017), imported when it is first asked.

Level `client`, *amplified*: cohorts drawn by independent coins of one rate, everybody
there and waited for: every round is a sampled Gaussian mechanism (Mironov, Talwar and
Zhang 2019) under adding or removing a client. Level `client`, else: who takes part is
no secret, so the merges of the client that was merged most often compose (Gaussian
mechanisms under replacing a client's data, which changes a sum by up to 2S: the noise
counts half). Level `sample`: every local step of a client is a sampled Gaussian
mechanism under adding or removing one of its samples; a client's own steps compose, and
those of others touch other samples.

Supposed: an honest server, and that who is there and how long it takes does not hang on
the data.
"""

from __future__ import annotations

import importlib.util
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property, lru_cache
from typing import NamedTuple

from simfed.ground.arrays import Floats
from simfed.ground.errors import InputError
from simfed.ground.method import Who
from simfed.ground.plain import Plain
from simfed.scenario import Scenario
from simfed.scenario.privacy import MOST_NOISE, AdaptiveClip, Privacy
from simfed.tasks.covered import find_coverage, find_uncovered, list_uses


class Noise(NamedTuple):
    """Standard deviations over the sensitivities that they hide."""

    total: float
    """z, of everything that a merge (or a local step) tells together."""
    of_sum: float
    """The deviation of the noise on the sum of updates, over the clip."""
    of_count: float
    """The deviation, of an adaptive clip, of how many norms it left alone; else 0."""


def require_accountant() -> None:
    """Refuse to go on where dp-accounting is not installed.

    Raises:
        InputError: with the command that installs it.
    """
    if importlib.util.find_spec("dp_accounting") is None:
        raise InputError(
            where="privacy",
            problem="ε is counted by dp-accounting, which is not installed",
            hint='pip install "simfed[privacy]"',
        )


@contextmanager
def _silence_orders() -> Iterator[None]:
    """Keep the library from warning of orders that it passes over."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


@lru_cache(maxsize=4096)
def compute_divergences(rate: float, noise: float) -> tuple[Floats, Floats]:
    """Return the library's orders, and the Rényi divergence of one mechanism.

    Divergences of several add up.
    """
    require_accountant()
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    event: dp_accounting.DpEvent = dp_accounting.GaussianDpEvent(noise)
    if rate < 1:
        event = dp_accounting.PoissonSampledDpEvent(rate, event)
    accountant = RdpAccountant()
    with _silence_orders():
        accountant.compose(event)
    return accountant.orders, accountant.rdp


@lru_cache(maxsize=65536)
def compute_epsilon(rate: float, noise: float, times: int, delta: float) -> float:
    """Return ε at `delta` after so many sampled Gaussian mechanisms.

    Args:
        rate: with which everybody is in a mechanism's sample, up to 1.
        noise: the multiplier: deviation over sensitivity.
        times: how many mechanisms; 0 costs nothing.
        delta: δ, above 0.

    Raises:
        InputError: where dp-accounting is not installed.
    """
    if not times:
        return 0.0
    orders, divergences = compute_divergences(rate, noise)
    from dp_accounting import rdp

    with _silence_orders():
        return float(rdp.compute_epsilon(orders, times * divergences, delta)[0])


def compute_expected_cohort(scenario: Scenario) -> float:
    """Return the divisor of the sum of a merge, over all prototypes."""
    server = scenario.aggregation
    if server.concurrency is not None:
        return float(server.buffer or 1)
    return float(scenario.participation.clients_per_round or scenario.client_count)


def find_unprovable(scenario: Scenario) -> Iterator[InputError]:
    """Yield an error for each key under which no theorem covers `privacy`."""
    privacy = scenario.privacy
    if privacy is None:
        return
    yield from find_uncovered(scenario, privacy.level)
    if (
        privacy.level == "sample"
        and privacy.target
        and scenario.aggregation.concurrency
    ):
        yield InputError(
            where="privacy.target",
            problem=f"under aggregation.mode {scenario.aggregation.mode} a fast "
            "client may start any number of times between two merges, and "
            "each of its steps counts: no noise is known to keep to a target",
            hint="privacy.noise, and column epsilon tells what is spent; or mode "
            "synchronous, "
            "deadline or first, which start each client once a round at most",
        )
    clip = privacy.clip
    if isinstance(clip, AdaptiveClip) and privacy.noise is not None:
        with_noise = 2 * (clip.count_noise or compute_expected_cohort(scenario) / 20)
        if privacy.noise >= with_noise:
            yield InputError(
                f"less than {with_noise:g}, twice the noise on the count of an "
                f"adaptive clip",
                where="privacy.noise",
                got=privacy.noise,
                hint="more clients per round, a larger clip.count_noise, or a fixed "
                "clip",
            )


def is_amplified(scenario: Scenario) -> bool:
    """Return whether sampling hides who takes part.

    Clients toss independent coins of one rate, are always there, and are waited for, so
    that nobody's coming decides who else is merged.
    """
    selection = scenario.participation.selection.kind
    return "coins" in find_coverage("selection", selection) and not is_decided_by_time(
        scenario
    )


def is_decided_by_time(scenario: Scenario) -> bool:
    """Return whether the clock decides who is merged.

    It does by the server's mode or its restarts, by when clients are there, or by a
    selection that looks at how long they took.
    """
    return any(
        use.kind in ("", "selection", "availability") and "untimed" not in use.coverage
        for use in list_uses(scenario)
    )


def count_epoch_steps(samples: int, batch_size: int) -> int:
    """Return the steps of an epoch: one over the rate of Poisson batches.

    At that rate they draw each of a client's samples.

    >>> count_epoch_steps(600, 32), count_epoch_steps(20, 32)
    (19, 1)
    """
    return max(1, -(-samples // batch_size))


def make_account(
    scenario: Scenario, samples_of: Callable[[int], int]
) -> Account | None:
    """Return the account of a run; None: it has no privacy.

    Args:
        scenario: with or without `privacy`.
        samples_of: client → samples that it owns, asked only where these count.
    """
    if scenario.privacy is None:
        return None
    kind = _SampleAccount if scenario.privacy.level == "sample" else _ClientAccount
    return kind(scenario, scenario.privacy, samples_of)


class Account:
    """The account of what has been spent so far.

    `settle` is told of each merge; `noise` is that of the scenario, or what meets its
    target.
    """

    def __init__(
        self, scenario: Scenario, privacy: Privacy, samples_of: Callable[[int], int]
    ) -> None:
        """Begin with nothing spent.

        Args:
            scenario: names who may take part, and how often.
            privacy: its section.
            samples_of: client → samples that it owns.
        """
        self._scenario = scenario
        self._privacy = privacy
        self._samples_of = samples_of
        self._times: dict[int, int] = {}
        """Client → how often what it did counts; with amplification of nobody in
        particular, -1."""

    adjacency: str
    """The difference of two neighbouring worlds, in words."""
    amplified: bool

    def settle(self, taken: Iterable[Who], merged: Iterable[Who]) -> float:
        """Return ε after a merge at whose end these participations were settled.

        Args:
            taken: all that were settled, whether their uploads came or not.
            merged: those whose uploads were merged.
        """
        raise NotImplementedError

    def by_client(self) -> Mapping[int, float] | None:
        """Return ε of each client's samples so far; None where clients are private."""
        return None

    def of_client(self, client: int, times: int) -> float:
        """Return ε of a client's samples, or of a client, after so many times.

        Args:
            client: its id; where clients are private, any.
            times: participations, or merges where clients are private.
        """
        raise NotImplementedError

    @cached_property
    def noise(self) -> Noise:
        """The noise of the scenario, or the least that meets its target.

        Raises:
            InputError: for a target that no noise reaches.
        """
        privacy, clip = self._privacy, self._privacy.clip
        most, count = MOST_NOISE, 0.0
        if isinstance(clip, AdaptiveClip):
            count = clip.count_noise or compute_expected_cohort(self._scenario) / 20
            most = min(most, 2 * count * (1 - 1e-6))
        total = privacy.noise if privacy.target is None else self._solve(most)
        assert total is not None
        if not count:
            return Noise(total, total, 0.0)
        # the count's sensitivity is a half: see Andrew 2021, theorem 1
        return Noise(total, float((total**-2 - (2 * count) ** -2) ** -0.5), count)

    def plain(self) -> dict[str, Plain]:
        """Return the account as a manifest has it."""
        return {
            "level": self._privacy.level,
            "noise": self.noise.total,
            "delta": self._privacy.spent_delta,
            "adjacency": self.adjacency,
            "amplified": self.amplified,
        }

    def _compute_epsilon(self, rate: float, noise: float, times: int) -> float:
        return compute_epsilon(rate, noise, times, self._privacy.spent_delta)

    def _list_worst(self) -> Iterable[tuple[float, float, int]]:
        """Yield (rate, divisor of the noise, times) of what may be spent in all rounds.

        The largest ε of them is held to the target.
        """
        raise NotImplementedError

    def _solve(self, most: float) -> float:
        """Return the least noise, to four digits, that keeps to the target."""
        target = self._privacy.target
        assert target is not None
        least = min(1e-2, most)
        for rate, halved, times in self._list_worst():

            def spent(
                noise: float, r: float = rate, h: float = halved, n: int = times
            ) -> float:
                return self._compute_epsilon(r, noise / h, n)

            if spent(least) <= target.epsilon:
                continue
            low, high = least, most
            if spent(high) > target.epsilon:
                cures = "fewer rounds, selection poisson with fewer clients_per_round"
                if isinstance(self._privacy.clip, AdaptiveClip):
                    cures += ", a larger clip.count_noise, a fixed clip"
                raise InputError(
                    f"an epsilon of at least {_round_up(spent(high))}",
                    where="privacy.target.epsilon",
                    got=target.epsilon,
                    problem=f"no noise up to {high:,.4g} reaches it in "
                    f"{self._scenario.rounds:,} rounds",
                    hint=f"{cures}, or a larger delta",
                )
            while high / low > 1 + 1e-4:
                middle = math.sqrt(low * high)
                low, high = (
                    (low, middle) if spent(middle) <= target.epsilon else (middle, high)
                )
            least = high
        return least


class _ClientAccount(Account):
    """The account of clients: amplified, or by the most merges of any."""

    def __init__(
        self, scenario: Scenario, privacy: Privacy, samples_of: Callable[[int], int]
    ) -> None:
        super().__init__(scenario, privacy, samples_of)
        self.amplified = is_amplified(scenario)
        self.adjacency = (
            "add or remove a client" if self.amplified else "replace a client"
        )
        self._rate, self._halved = 1.0, 2.0
        if self.amplified:
            cohort = compute_expected_cohort(scenario)
            self._rate, self._halved = cohort / scenario.client_count, 1.0

    def settle(self, taken: Iterable[Who], merged: Iterable[Who]) -> float:
        counted = {-1} if self.amplified else {who.client for who in merged}
        for client in counted:
            self._times[client] = self._times.get(client, 0) + 1
        return self.of_client(-1, max(self._times.values(), default=0))

    def of_client(self, client: int, times: int) -> float:
        return self._compute_epsilon(self._rate, self.noise.total / self._halved, times)

    def _list_worst(self) -> Iterable[tuple[float, float, int]]:
        yield self._rate, self._halved, self._scenario.rounds


class _SampleAccount(Account):
    """The account of samples, by client.

    What a client did counts whether or not its upload arrived, as what was lost goes
    with its next one.
    """

    adjacency = "add or remove a sample of a client"
    amplified = True

    def settle(self, taken: Iterable[Who], merged: Iterable[Who]) -> float:
        for who in taken:
            self._times[who.client] = self._times.get(who.client, 0) + 1
        return max(self.by_client().values(), default=0.0)

    def by_client(self) -> dict[int, float]:
        return {
            client: self.of_client(client, n)
            for client, n in sorted(self._times.items())
        }

    def of_client(self, client: int, times: int) -> float:
        parts = self._parts(client)
        return self._compute_epsilon(
            1 / parts, self.noise.total, times * self._count_steps(parts)
        )

    def _parts(self, client: int) -> int:
        return count_epoch_steps(
            self._samples_of(client), self._scenario.training.batch_size
        )

    def _count_steps(self, parts: int) -> int:
        training = self._scenario.training
        return training.local_steps or (training.local_epochs or 1) * parts

    def _list_worst(self) -> Iterable[tuple[float, float, int]]:
        distinct = {
            self._parts(client) for client in range(self._scenario.client_count)
        }
        for parts in sorted(distinct):
            yield 1 / parts, 1.0, self._scenario.rounds * self._count_steps(parts)


def _round_up(value: float) -> float:
    """Return a number of three digits, not less.

    >>> _round_up(0.012301)
    0.0124
    """
    digits = 2 - math.floor(math.log10(value))
    scale = 10.0**digits
    return math.ceil(value * scale) / scale
