"""Client-level differential privacy (McMahan et al. 2018): a clipped, noisy mean.

It stands in place of the arrivals of a merge.

A method that averages is shown a single arrival per prototype, so what it makes of that
is post-processing, whatever its server steps with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from simfed.ground.method import Arrival, Method
from simfed.ground.plain import Plain
from simfed.learn.kit import Kit
from simfed.learn.vectors import Change, Sparse
from simfed.scenario import Scenario
from simfed.scenario.privacy import AdaptiveClip, Privacy
from simfed.tasks.privacy import Noise, compute_expected_cohort
from simfed.tasks.tasks import Tasks


class NoisyMeans:
    """The noisy mean of a merge per prototype, which is all that the server may know.

    It is (Σ of clients' changes, each shortened to the norm S, + N(0, (z·S)²)) / the
    expected cohort.

    Every client counts 1, or less where it is late; several uploads of one client are
    one change. A change whose norm is no finite number counts 0: no factor shortens it.
    The divisor does not hang on who came, and a prototype of which nobody came is
    noise. With an adaptive clip, S of the next merge follows how many norms this one's
    left alone, with noise of its own (Andrew 2021). Entries that no client sends,
    whatever its data, get no noise.
    """

    def __init__(
        self,
        scenario: Scenario,
        privacy: Privacy,
        method: Method,
        tasks: Tasks,
        noise: Noise,
        shared_entries: Callable[[str, int], Tensor | None],
    ) -> None:
        """Begin with the scenario's clip.

        Args:
            scenario: says how many clients a merge expects.
            privacy: its section, of level `client`.
            method: may discount what is late.
            tasks: knows the clients of a prototype.
            noise: deviations over sensitivities, of the run's account.
            shared_entries: prototype, round → the only entries that any client sends,
                where they hang on nobody's data; None: all.
        """
        self._shared_entries = shared_entries
        self._method = method
        self._tasks = tasks
        self._noise = noise
        clip = privacy.clip
        self._adaptive = clip if isinstance(clip, AdaptiveClip) else None
        self.clip = clip.start if isinstance(clip, AdaptiveClip) else clip
        """S of the next merge."""
        self._expected = compute_expected_cohort(scenario)
        clients = scenario.clients_of_prototype
        self._share = {
            name: count / scenario.client_count for name, count in clients.items()
        }

    def arrivals(
        self, kit: Kit, arrivals: Sequence[Arrival], round: int
    ) -> list[Arrival]:
        """Return one arrival per prototype, whose `update` is the noisy mean."""
        changes: dict[str, list[tuple[Change, float]]] = {
            name: [] for name in self._share
        }
        by_client: dict[int, list[Arrival]] = {}
        for arrival in arrivals:
            by_client.setdefault(arrival.who.client, []).append(arrival)
        below = 0
        for mine in by_client.values():
            change, factor = self._sum_changes(kit, mine)
            values = change.values if isinstance(change, Sparse) else change
            norm = factor * torch.linalg.vector_norm(values.double()).item()
            if not math.isfinite(norm):
                continue
            below += norm <= self.clip
            shrunk = factor * min(1.0, self.clip / norm) if norm else 0.0
            changes[mine[0].who.prototype].append((change, shrunk))
        means = [
            self._make_mean(kit, name, of_name, round)
            for name, of_name in changes.items()
        ]
        if self._adaptive is not None:
            self._adapt_clip(self._adaptive, kit, below, len(by_client), round)
        return means

    def plain(self) -> Mapping[str, Plain]:
        """Return what a checkpoint keeps of it."""
        return {"clip": self.clip}

    def restore(self, state: Mapping[str, Plain]) -> None:
        """Take up what `plain` returned."""
        self.clip = state["clip"]

    def _sum_changes(self, kit: Kit, mine: Sequence[Arrival]) -> tuple[Change, float]:
        """Return all that one client brings, and a factor on it."""
        weighed = [
            (
                arrival.change("update"),
                arrival.weight * self._method.discount(arrival.staleness),
            )
            for arrival in mine
        ]
        if len(weighed) == 1:
            return weighed[0]
        return kit.add(self._make_zeros(kit, mine[0].who.prototype), weighed), 1.0

    def _make_mean(
        self, kit: Kit, name: str, changes: Sequence[tuple[Change, float]], round: int
    ) -> Arrival:
        """Return the noisy mean of one prototype's changes as an arrival.

        Raises:
            RuntimeError: for an upload with entries that no noise covers.
        """
        total = kit.add(self._make_zeros(kit, name), changes)
        draws = kit.generator("privacy", name, round)
        entries = self._shared_entries(name, round)
        if entries is None:
            entries = torch.arange(len(total))
        entries = entries.to(total.device)
        noise = torch.randn(len(entries), generator=draws).to(total.device)
        noisy = total[entries].add_(noise, alpha=self._noise.of_sum * self.clip)
        if bool(total.index_fill_(0, entries, 0.0).any()):
            raise RuntimeError(
                f"round {round}: an upload has entries that no noise covers"
            )
        total.index_copy_(0, entries, noisy)
        values = {
            "update": total.div_(self._expected * self._share[name]),
            "buffers": total.new_zeros(0),
        }
        return Arrival(self._tasks.first_of(name), 0, values)

    def _adapt_clip(
        self, adaptive: AdaptiveClip, kit: Kit, below: int, came: int, round: int
    ) -> None:
        """Set the clip of the next merge.

        It is counted from a half, so that a client moves the count by a half at most.
        """
        noise = self._noise.of_count * kit.rng("privacy count", round).normal()
        share = 0.5 + (below - 0.5 * came + noise) / self._expected
        self.clip *= math.exp(-adaptive.rate * (share - adaptive.quantile))

    def _make_zeros(self, kit: Kit, name: str) -> Tensor:
        who = self._tasks.first_of(name)
        return torch.zeros(who.parameters, device=kit.device)
