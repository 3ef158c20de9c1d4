"""Merging rules: what a server makes of uploads of which some may be hostile.

A rule comes before the method's own merge. It is given the uploads of one prototype,
and what it answers stands for each of them, so that the method averages over equal
uploads, whatever weights it has: sample counts say nothing any more, and the staleness
of late uploads shortens the step by the mean of their weights. A rule is a frozen
dataclass of its options; it knows nothing of methods, of the clock or of who is
hostile. Importing this needs no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, ClassVar

from typing_extensions import override

from simfed.ground.method import Arrival, Size, Work
from simfed.learn.methods.averaging import by_prototype
from simfed.learn.methods.options import (
    ABOVE_ZERO,
    AT_LEAST_ONE,
    WHOLE_NOT_NEGATIVE,
    Ranged,
    Within,
)

if TYPE_CHECKING:
    from torch import Tensor

Fields = Mapping[str, "Tensor"]
"""Uploads by the names of fields: `update` and its like."""

_SORT_FLOPS = 4000.0
_DISTANCE_FLOPS = 80.0
"""FLOPs of large layers that take as long as one entry of an upload: 13 to 33 ns and
0.3 to 0.6 ns on the core of x86-2core-vm, with 11 to 100 uploads of a LeNet-5."""

_BLOCK_ENTRIES = 1 << 22
"""Entries of all uploads that are sorted at a time."""


class Rule(Ranged):
    """One merging rule, made from its options."""

    needs_dense: ClassVar[bool] = False
    """True if it looks at each coordinate by itself, which says nothing where most are
    0."""
    flops: ClassVar[float] = 0.0
    """FLOPs of the server's work, per entry of an upload and pass; 0: it is not
    charged."""
    privacy: ClassVar[tuple[str, ...]] = ()
    """Levels of the scenario's `privacy` that a theorem covers with it, declared by its
    own class: `client` where it is the plain sum; `sample` whatever it makes of
    uploads."""
    example: ClassVar[Mapping[str, float]] = {}
    """Options with which it is checked, where some are required."""

    @property
    def least(self) -> int:
        """The uploads of a prototype that it needs; with fewer that stays as it is."""
        return 3

    def merge(self, fields: Fields) -> dict[str, Tensor]:
        """Return the vectors that stand for the uploads.

        Per field it is one for all of them, (entries,), or one for each, (uploads,
        entries). `fields`: (uploads, entries) each, float32, in the order of client
        ids; they are not changed.
        """
        raise NotImplementedError

    def passes(self, uploads: int) -> float:
        """Return how many times it goes through all uploads, at least once."""
        return 1.0

    # ---- the server's work -----------------------------------------------------------

    def work(self, kind: str, size: Size, uploads: int) -> Work | None:
        """Return the server's work with so many uploads of a prototype.

        None: none, as of the mean.
        """
        if not self.flops or uploads < self.least:
            return None
        rows = round(uploads * self.passes(uploads))
        return Work(
            "auxiliary", f"{kind}/{size.model}", rows, kind="merging", name=kind
        )

    def auxiliary(self, kind: str, size: Size) -> dict[str, float]:
        """Return the name of that work, and its FLOPs for one pass of one upload."""
        return (
            {f"{kind}/{size.model}": self.flops * size.parameters} if self.flops else {}
        )


@dataclass(frozen=True)
class Mean(Rule):
    """The method's own mean, weighted by sample counts.

    Not charged (McMahan et al. 2017).
    """

    least = 1
    privacy = ("client", "sample")

    @override
    def merge(self, fields: Fields) -> dict[str, Tensor]:
        return dict(fields)


@dataclass(frozen=True)
class NormBound(Rule):
    """Shortens each update to a length of at most S; then the method's own mean.

    Running statistics have no length to go by and stay as they came. Source: Z. Sun et
    al., "Can You Really Backdoor Federated Learning?", 2019.
    """

    least = 1
    flops = _DISTANCE_FLOPS
    example = MappingProxyType({"bound": 1.0})

    bound: Annotated[
        float, ABOVE_ZERO, "S, the longest update, in units of the method's update"
    ]
    privacy = ("sample",)

    @override
    def merge(self, fields: Fields) -> dict[str, Tensor]:
        lengths = fields["update"].norm(dim=1, keepdim=True)
        factors = (self.bound / lengths.clamp(min=self.bound)).clamp(max=1.0)
        return {**fields, "update": fields["update"] * factors}


@dataclass(frozen=True)
class TrimmedMean(Rule):
    """Per coordinate, the mean without the largest and the smallest values.

    Of n values ⌈share·n⌉ fall away on each side, at most so many that one or two are
    left. Source: D. Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal
    Statistical Rates", 2018.
    """

    needs_dense = True
    flops = _SORT_FLOPS
    example = MappingProxyType({"share": 0.1})

    share: Annotated[
        float,
        Within("a share of at least 0, below 0.5", 0, 0.5),
        "of the uploads, on each side",
    ]
    privacy = ("sample",)

    @override
    def merge(self, fields: Fields) -> dict[str, Tensor]:
        uploads = len(fields["update"])
        cut = min(-int(-(self.share * uploads - 1e-9) // 1), (uploads - 1) // 2)
        return {
            name: _compute_trimmed_mean(table, max(cut, 0))
            for name, table in fields.items()
        }


@dataclass(frozen=True)
class Median(Rule):
    """Per coordinate, the middle value, or the mean of the two in the middle.

    Source: D. Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal
    Statistical Rates", 2018.
    """

    needs_dense = True
    flops = _SORT_FLOPS
    privacy = ("sample",)

    @override
    def merge(self, fields: Fields) -> dict[str, Tensor]:
        middle = (len(fields["update"]) - 1) // 2
        return {
            name: _compute_trimmed_mean(table, middle) for name, table in fields.items()
        }


@dataclass(frozen=True)
class GeometricMedian(Rule):
    """The point with the smallest sum of distances to the updates.

    It is found by smoothed Weiszfeld steps.

    Other fields are averaged with the weights that the last step gave the uploads.
    Source: K. Pillutla, S. M. Kakade and Z. Harchaoui, "Robust Aggregation for
    Federated Learning", 2022.
    """

    flops = _DISTANCE_FLOPS

    steps: Annotated[
        int, AT_LEAST_ONE, "of the algorithm; each goes through all uploads"
    ] = 32
    smoothing: Annotated[float, ABOVE_ZERO, "ν: distances below it count as it"] = 1e-6
    privacy = ("sample",)

    @override
    def passes(self, uploads: int) -> float:
        return float(self.steps)

    @override
    def merge(self, fields: Fields) -> dict[str, Tensor]:
        updates = fields["update"]
        weights = updates.new_full((len(updates),), 1 / len(updates))
        for _ in range(self.steps):
            distances = (updates - weights @ updates).norm(dim=1)
            weights = 1 / distances.clamp(min=self.smoothing)
            weights = weights / weights.sum()
        return {name: weights @ table for name, table in fields.items()}


@dataclass(frozen=True)
class _Scoring(Rule):
    """Rules that trust updates with close neighbours.

    An update's score is the sum of its squared distances to the n − f − 2 nearest
    others.
    """

    flops = _DISTANCE_FLOPS
    example = MappingProxyType({"f": 1})

    f: Annotated[int, WHOLE_NOT_NEGATIVE, "hostile uploads that it is to bear"]

    @property
    def least(self) -> int:
        """Krum's condition n ≥ 2f + 3."""
        return 2 * self.f + 3

    def passes(self, uploads: int) -> float:
        return (uploads - 1) / 2  # each pair once

    def _mean_of_best(self, fields: Fields, count: int) -> dict[str, Tensor]:
        best = _rank_uploads(_compute_squared_distances(fields["update"]), self.f)[
            :count
        ]
        return {name: table[sorted(best)].mean(0) for name, table in fields.items()}


@dataclass(frozen=True)
class Krum(_Scoring):
    """The one upload whose n − f − 2 nearest others are closest to it.

    Needs n ≥ 2f + 3. Source: P. Blanchard et al., "Machine Learning with Adversaries:
    Byzantine Tolerant Gradient Descent", 2017.
    """

    privacy = ("sample",)

    @override
    def merge(self, fields: Fields) -> dict[str, Tensor]:
        return self._mean_of_best(fields, 1)


@dataclass(frozen=True)
class MultiKrum(_Scoring):
    """The mean of the n − f uploads of the lowest scores of Krum.

    Needs n ≥ 2f + 3. Source: P. Blanchard et al., "Machine Learning with Adversaries:
    Byzantine Tolerant Gradient Descent", 2017.
    """

    privacy = ("sample",)

    @override
    def merge(self, fields: Fields) -> dict[str, Tensor]:
        return self._mean_of_best(fields, len(fields["update"]) - self.f)


@dataclass(frozen=True)
class Bulyan(_Scoring):
    """Per coordinate the mean near the median, of uploads that Krum picks.

    It picks n − 2f, and takes the n − 4f values next to their median. Needs n ≥ 4f + 3.
    Source: E. M. El Mhamdi, R. Guerraoui and S. Rouault, "The Hidden Vulnerability of
    Distributed Learning in Byzantium", 2018.
    """

    needs_dense = True
    privacy = ("sample",)

    @property
    def least(self) -> int:
        """The least number of uploads, by its condition n ≥ 4f + 3."""
        return 4 * self.f + 3

    @override
    def passes(self, uploads: int) -> float:
        return (uploads - 1) / 2 + 2 * _SORT_FLOPS / _DISTANCE_FLOPS  # it sorts twice

    @override
    def merge(self, fields: Fields) -> dict[str, Tensor]:
        distances = _compute_squared_distances(fields["update"])
        left = list(range(len(distances)))
        picked: list[int] = []
        while len(picked) < len(distances) - 2 * self.f:
            picked.append(left.pop(_rank_uploads(distances[left][:, left], self.f)[0]))
        count = len(picked) - 2 * self.f
        return {
            name: _mean_near_median(one[sorted(picked)], count)
            for name, one in fields.items()
        }


def apply_rule(rule: Rule, arrivals: Sequence[Arrival]) -> list[Arrival]:
    """Return the arrivals with what stands for their values.

    None of a prototype with fewer than the rule needs, which then stays as it is.
    """
    if isinstance(rule, Mean):
        return list(arrivals)
    import torch

    from simfed.learn.vectors import ArrivedValues

    merged: dict[int, Arrival] = {}
    for mine in by_prototype(arrivals).values():
        if len(mine) < rule.least:
            continue
        fields = {
            name: torch.stack([a.values[name].reshape(-1) for a in mine])
            for name in mine[0].values
        }
        for name, table in rule.merge(fields).items():
            fields[name] = table if table.dim() > 1 else table.expand(len(mine), -1)
        for row, arrival in enumerate(mine):
            values = ArrivedValues({name: table[row] for name, table in fields.items()})
            merged[id(arrival)] = arrival._replace(values=values)
    return [merged[id(arrival)] for arrival in arrivals if id(arrival) in merged]


def _compute_squared_distances(updates: Tensor) -> Tensor:
    """Return (n, n) float64.

    A difference at a time, as a product of all would cancel where updates are alike.
    """
    distances = updates.new_zeros(len(updates), len(updates)).double()
    for i in range(1, len(updates)):
        row = (updates[:i] - updates[i]).square_().sum(1).double()
        distances[i, :i] = distances[:i, i] = row
    return distances


def _rank_uploads(distances: Tensor, f: int) -> list[int]:
    """Places by Krum's score, the lowest first; ties go to the lowest place."""
    near = max(1, len(distances) - f - 2)
    # the nearest of all is the upload itself, at distance 0
    scores = distances.sort(1).values[:, 1 : 1 + near].sum(1).tolist()
    return sorted(range(len(scores)), key=scores.__getitem__)


def _reduce_columns(values: Tensor, combine: Callable[[Tensor], Tensor]) -> Tensor:
    """Return `combine` of each column's sorted values, (columns, rows).

    Some columns are sorted at a time.
    """
    rows, columns = values.shape
    result, block = values.new_empty(columns), max(1, _BLOCK_ENTRIES // rows)
    for start in range(0, columns, block):
        some = values[:, start : start + block].t().contiguous()
        result[start : start + block] = combine(some.sort(1).values)
    return result


def _compute_trimmed_mean(values: Tensor, cut: int) -> Tensor:
    return _reduce_columns(
        values, lambda columns: columns[:, cut : columns.shape[1] - cut].mean(1)
    )


def _mean_near_median(values: Tensor, count: int) -> Tensor:
    """Return per column the mean of the `count` values next to the median.

    Ties go to the smaller one.
    """
    middle = len(values) // 2

    def combine(columns: Tensor) -> Tensor:
        median = columns[:, [(len(values) - 1) // 2, middle]].mean(1, keepdim=True)
        nearest = (columns - median).abs().sort(dim=1, stable=True).indices[:, :count]
        return columns.gather(1, nearest).mean(1)

    return _reduce_columns(values, combine)
