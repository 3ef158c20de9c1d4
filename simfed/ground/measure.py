"""Measures of models, per kind of task, and which direction is better.

Thresholds, comparisons, pages and progress ask here. A task has its measure; of a
classification a scenario may name others (`evaluation.measures`), and the first counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from simfed.ground.errors import InputError
from simfed.ground.plain import Plain

_ROUND_NUMBERS = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)
"""Round numbers of every power of ten, asked for where a quantity has no scale of its
own."""


@dataclass(frozen=True)
class Measure:
    """A number that a model gets on test samples."""

    name: str
    """The name for people."""
    key: str
    """The name in frames and summaries: `accuracy`, `auc`, …; `measure` of a task."""
    higher_is_better: bool
    is_share: bool
    """True if it goes from 0 to 1 and is written in percent."""
    sides: int | None = None
    """Guessing chooses from so many; None: from all classes."""

    @property
    def column(self) -> str:
        """The column of `prototypes.parquet` that holds it."""
        return f"test_{self.key}"

    @property
    def best(self) -> str:
        """`max` or `min`, as frames call it."""
        return "max" if self.higher_is_better else "min"

    @property
    def ahead(self) -> str:
        """The place of the better of two values: `above` or `below`."""
        return "above" if self.higher_is_better else "below"

    def is_reached(self, value: Plain, threshold: float) -> Plain:
        """Return whether a value, or each of an array's, is as good as `threshold`.

        Never of NaN.

        >>> ACCURACY.is_reached(0.9, 0.9), MEASURES["regression"].is_reached(3.0, 2.0)
        (True, False)
        """
        return value >= threshold if self.higher_is_better else value <= threshold

    def compute_advantage(self, difference: float) -> float:
        """Return how much better, of a difference of two values: below 0 for worse."""
        return difference if self.higher_is_better else -difference

    def text(self, value: float, digits: int = 1) -> str:
        """Return a value for people: percent, or four digits.

        Percent have `digits` behind the point.

        >>> ACCURACY.text(0.8125), MEASURES["next-token"].text(12.345)
        ('81.2 %', '12.35')
        """
        return f"{100 * value:.{digits}f} %" if self.is_share else f"{value:.4g}"

    def number(self, threshold: float) -> str:
        """Return a threshold as people read it where the measure is named already."""
        return f"{100 * threshold:g} %" if self.is_share else f"{threshold:g}"

    def goal(self, threshold: float) -> str:
        """Return a threshold as people read it: its measure is named, but for accuracy.

        >>> ACCURACY.goal(0.85), MEASURES["regression"].goal(2.5)
        ('85 %', 'RMSE 2.5')
        """
        number = self.number(threshold)
        return number if self == ACCURACY else f"{self.name} {number}"

    def gap(self, difference: float, sign: str = "") -> str:
        """Return how far two values are apart, for people.

        Sign: `+` to say it of positive ones, too.
        """
        if self.is_share:
            return f"{100 * difference:{sign}.1f} points"
        return f"{difference:{sign}.3g}"

    def steps(self, values: Iterable[float], shares: Iterable[float]) -> list[float]:
        """Return round numbers, from the easiest to the hardest.

        Of shares these are the given ones, else those between the worst and the best of
        `values`.

        >>> MEASURES["regression"].steps([9.0, 3.5, 2.4], ())
        [7.0, 5.0, 3.0]
        """
        if self.is_share:
            return list(shares)
        positive = [value for value in values if 0 < value < math.inf]
        if not positive:
            return []
        low, high = min(positive), max(positive)
        powers = range(math.floor(math.log10(low)), math.floor(math.log10(high)) + 1)
        steps = [
            float(f"{step:g}e{power}") for power in powers for step in _ROUND_NUMBERS
        ]
        between = [step for step in steps if low <= step <= high]
        return between if self.higher_is_better else between[::-1]

    def beats_guessing(self, threshold: float, classes: int) -> bool:
        """Return whether guessing among so many classes does not reach a threshold.

        0: nobody knows.

        >>> [ACCURACY.beats_guessing(share, 10) for share in (0.1, 0.2)]
        [False, True]
        >>> perplexity = MEASURES["next-token"]
        >>> [perplexity.beats_guessing(value, 96) for value in (100, 50)]
        [False, True]
        >>> CLASS_MEASURES["auc"].beats_guessing(0.4, 10)
        False
        """
        if classes < 2:
            return True
        sides = self.sides or classes
        return threshold > 1 / sides if self.higher_is_better else threshold < sides

    def guess(self, classes: int) -> str:
        """Return, for people, the measure of guessing among so many classes."""
        sides = self.sides or classes
        return f"{100 / sides:.3g} %" if self.is_share else f"{sides}"

    def check(self, threshold: float, *, where: str) -> float:
        """Return the threshold.

        Raises: `InputError` for one that no model can reach or all do.
        """
        if self.is_share and not 0 < threshold <= 1:
            article = "a" if self.name[0] == "b" else "an"
            allowed = f"{article} {self.name} above 0, at most 1"
            raise InputError(allowed, where=where, got=threshold)
        if not 0 < threshold < math.inf:
            raise InputError(f"{self.name} above 0", where=where, got=threshold)
        return threshold

    def plain(self) -> dict[str, Plain]:
        """Return its name and direction, as manifests have them."""
        return {
            "name": self.name,
            "better": "higher" if self.higher_is_better else "lower",
        }


ACCURACY = Measure("accuracy", "accuracy", higher_is_better=True, is_share=True)

MEASURES = {
    "classification": ACCURACY,
    "regression": Measure("RMSE", "measure", higher_is_better=False, is_share=False),
    "next-token": Measure(
        "perplexity", "measure", higher_is_better=False, is_share=False
    ),
}
"""The measure of each task: the share of right answers; the root of the mean squared
error, in the target's unit; the perplexity per character."""

RECALL = "recall"
"""The measure that is a number per class, so that it cannot come first."""

CLASS_MEASURES = {
    "accuracy": ACCURACY,
    "balanced-accuracy": Measure(
        "balanced accuracy", "balanced_accuracy", higher_is_better=True, is_share=True
    ),
    "auc": Measure("AUC", "auc", higher_is_better=True, is_share=True, sides=2),
}
"""The measures of a classification that are one number: the share of right answers;
the mean of the classes' recalls; the mean over classes of the area under the curve of
one class against the rest."""

SHARES = frozenset(one.key for one in CLASS_MEASURES.values())
"""The keys of measures that go from 0 to 1."""

_BY_NAME = {one.name: one for one in (*MEASURES.values(), *CLASS_MEASURES.values())}


def choose_measure(task: str, names: Sequence[str]) -> Measure:
    """Return the measure that counts: the first of those named, or the task's.

    names: `evaluation.measures`, of a classification.

    >>> choose_measure("classification", ["auc", "recall"]).column
    'test_auc'
    """
    return CLASS_MEASURES[names[0]] if task == "classification" else MEASURES[task]


def list_measure_keys(task: str, names: Sequence[str], classes: int) -> list[str]:
    """Return the keys of all measures beside the share of right answers.

    >>> list_measure_keys("classification", ["accuracy", "auc", "recall"], 2)
    ['auc', 'recall_0', 'recall_1']
    """
    if task != "classification":
        return [MEASURES[task].key]
    keys: list[str] = []
    for name in names:
        if name == RECALL:
            keys += (f"{RECALL}_{label}" for label in range(classes))
        elif name != "accuracy":
            keys.append(CLASS_MEASURES[name].key)
    return keys


def read_measure(manifest: dict[str, Plain]) -> Measure:
    """Return the measure of a run's models from its manifest.

    >>> read_measure({}).name
    'accuracy'
    >>> read_measure({"measure": MEASURES["regression"].plain()}).column
    'test_measure'
    """
    measure = manifest.get("measure")
    return ACCURACY if measure is None else _BY_NAME[measure["name"]]


def find_common_measure(measures: Iterable[Measure], *, where: str) -> Measure:
    """Return the measure of several runs.

    Raises: `InputError` where they have not the same.
    """
    different = list(dict.fromkeys(measures))
    if len(different) > 1:
        got = " and ".join(measure.name for measure in different)
        raise InputError("runs whose models are measured alike", where=where, got=got)
    return different[0] if different else ACCURACY
