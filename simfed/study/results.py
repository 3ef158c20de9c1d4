"""The results of a study as tidy data frames: one row per fact, with its point and seed beside
it."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simfed.errors import listed
from simfed.record.read import open_run
from simfed.record.summary import chance_of
from simfed.study.plan import in_words, label_of
from simfed.study.reach import common_thresholds, first_time, mean_curve
from simfed.study.store import StudyFolder

if TYPE_CHECKING:
    import pandas as pd

    from simfed.record.read import Run

__all__ = ["StudyResult", "load_study"]

_SCALARS = (str, int, float, bool)


def load_study(path: str | Path) -> StudyResult:
    """The results so far of the study in a folder.

    Raises: `InputError` in one sentence for a folder that is no study's.
    """
    return StudyResult(path)


class StudyResult:
    """A study's results; frames are read when they are first asked for.

    `rounds`, `participations`, `prototypes`, `policies`, `links` and `spans` are those of a run
    (docs/run-directory.md), of all finished runs together. Every frame begins with one column per
    axis and `seed`. A grid axis' column has its values as written, or their labels where values are
    mappings or lists; `zip` and `list` have their labels, and a column for each of their keys.
    """

    def __init__(self, path: str | Path) -> None:
        self.folder = StudyFolder(path)
        self.path = self.folder.path
        self.plan: dict[str, Any] = self.folder.plan()
        self.name: str = self.plan["name"]
        self.compare: dict[str, Any] = self.plan["compare"]

    def __repr__(self) -> str:
        done = sum(self.folder.is_finished(entry["address"]) for entry in self.plan["runs"])
        return f"<study {self.name!r}, {done} of {len(self.plan['runs'])} runs finished>"

    def _repr_html_(self) -> str:
        """In a notebook: its arms in a table, and the verdicts."""
        said = "".join(f"<li>{escape(text)}</li>" for text in self.verdicts)
        arms = self.arms.to_html(index=False, float_format="{:.4g}".format, na_rep="")
        return f"<p>{escape(repr(self))}</p>{arms}<ul>{said}</ul>"

    @cached_property
    def axes(self) -> list[str]:
        """The names of the axes, in the order of the study file."""
        return [axis["name"] for axis in self.plan["axes"]]

    @cached_property
    def columns(self) -> list[str]:
        """The columns that say which run a row is of: axes, keys of `zip` and `list`, `seed`."""
        found = [
            name
            for axis in self.plan["axes"]
            for name in dict.fromkeys([axis["name"], *axis["keys"]])
        ]
        return [*found, "seed"]

    def point_of(self, entry: dict[str, Any]) -> dict[str, Any]:
        """What `columns` hold for one run of the plan."""
        found: dict[str, Any] = {}
        for axis in self.plan["axes"]:
            label = entry["point"][axis["name"]]
            found[axis["name"]] = label
            for key in axis["keys"]:
                value = entry["values"].get(key)
                plain = isinstance(value, _SCALARS)
                if key != axis["name"]:
                    found[key] = value if plain or value is None else label_of(value)
                elif plain and label == label_of(value):
                    found[key] = value
        return {**found, "seed": entry["seed"]}

    def run(self, address: str) -> Run:
        """One finished run."""
        return open_run(self.folder.runs / address)

    @cached_property
    def finished(self) -> list[tuple[dict[str, Any], Run]]:
        """The plan's entries whose runs are finished, with these."""
        return [
            (entry, self.run(entry["address"]))
            for entry in self.plan["runs"]
            if self.folder.is_finished(entry["address"])
        ]

    # --- frames --------------------------------------------------------------------------------

    @cached_property
    def summary(self) -> pd.DataFrame:
        """One row per planned run: its state, and of finished ones what they came to.

        `address, status` (`finished`, `failed`, `waiting`), `reason, final_accuracy, best_accuracy`
        (mean of clients), `simulated_s, uplink_bytes, downlink_bytes, rollbacks, wall_s,
        fingerprint`.
        """
        import pandas as pd

        failures = self.folder.failures()
        of_address = {entry["address"]: run for entry, run in self.finished}
        rows = []
        for entry in self.plan["runs"]:
            address = entry["address"]
            run = of_address.get(address)
            status = "finished" if run else "failed" if address in failures else "waiting"
            row = {**self.point_of(entry), "address": address, "status": status}
            row["reason"] = failures.get(address) if status == "failed" else None
            rows.append({**row, **(_facts(run) if run else {})})
        columns = [*self.columns, "address", "status", "reason", *_FACTS]
        frame: pd.DataFrame = pd.DataFrame(rows, columns=columns)
        return frame

    def frame(self, table: str) -> pd.DataFrame:
        """A table of all finished runs, by its name."""
        return self._gathered(lambda run: getattr(run, table))

    @cached_property
    def rounds(self) -> pd.DataFrame:
        """`rounds.parquet` of all finished runs."""
        return self.frame("rounds")

    @cached_property
    def participations(self) -> pd.DataFrame:
        """`participations.parquet` of all finished runs."""
        return self.frame("participations")

    @cached_property
    def prototypes(self) -> pd.DataFrame:
        """`prototypes.parquet` of all finished runs."""
        return self.frame("prototypes")

    @cached_property
    def policies(self) -> pd.DataFrame:
        """`policies.parquet` of all finished runs."""
        return self.frame("policies")

    @cached_property
    def links(self) -> pd.DataFrame:
        """`links.parquet` of all finished runs."""
        return self.frame("links")

    @cached_property
    def spans(self) -> pd.DataFrame:
        """`spans.parquet` of all finished runs."""
        return self.frame("spans")

    @cached_property
    def curves(self) -> pd.DataFrame:
        """Accuracy (mean of clients) wherever it was evaluated: `round, at_s, accuracy, loss,
        uplink_bytes, total_bytes`."""
        return self._gathered(mean_curve)

    @cached_property
    def time_only(self) -> bool:
        """Whether the finished runs learned nothing (`--time-only`): no accuracy can be reached."""
        modes = {run.manifest.get("mode") for _, run in self.finished}
        return modes == {"time-only"}

    @cached_property
    def thresholds(self) -> list[float]:
        """Accuracies whose first time is compared: the study's, else the highest round number that
        at least half of the runs reach and guessing does not; what guessing reaches is left out.
        None where nothing was learned: whole runs are compared."""
        if self.time_only:
            return []
        asked = [one for one in self.compare["thresholds"] if one > self._chance]
        if asked:
            return asked
        if self.curves.empty:
            return []
        best = self.curves.groupby("address")["accuracy"].max()
        return common_thresholds(best, self._chance)

    @cached_property
    def _chance(self) -> float:
        """What guessing reaches; accuracies up to it tell no arms apart."""
        return chance_of(run for _, run in self.finished)

    @cached_property
    def times(self) -> pd.DataFrame:
        """When each finished run first reached each threshold: `threshold, at_s, reached`.

        Where `reached` is false, `at_s` is the run's end: the time is censored there.
        """
        import pandas as pd

        rows = [
            {**self.point_of(entry), **row}
            for entry, _ in self.finished
            for row in self.times_of(entry["address"])
        ]
        columns = [*self.columns, "threshold", "at_s", "reached"]
        frame: pd.DataFrame = pd.DataFrame(rows, columns=columns)
        return frame

    def times_of(self, address: str) -> list[dict[str, Any]]:
        """The rows of `times` for one finished run, without its point."""
        return self._times[address]

    @cached_property
    def _times(self) -> dict[str, list[dict[str, Any]]]:
        curves = dict(iter(self.curves.groupby("address")))
        never = self.curves.iloc[:0]  # a run that diverged before its first evaluation
        found: dict[str, list[dict[str, Any]]] = {}
        for entry, run in self.finished:
            rows = found[entry["address"]] = []
            for threshold in self.thresholds:
                curve = curves.get(entry["address"], never)
                at_s, reached = first_time(curve, threshold, run)
                rows.append({"threshold": threshold, "at_s": at_s, "reached": reached})
        return found

    def _gathered(self, frame_of: Callable[[Run], pd.DataFrame]) -> pd.DataFrame:
        import pandas as pd

        frames = []
        for entry, run in self.finished:
            frame = frame_of(run).copy()
            for i, (name, value) in enumerate(self.point_of(entry).items()):
                frame.insert(i, name, value)
            frame.insert(len(self.columns), "address", entry["address"])
            frames.append(frame)
        if not frames:
            frames.append(pd.DataFrame(columns=[*self.columns, "address"]))
        gathered: pd.DataFrame = pd.concat(frames, ignore_index=True)
        return gathered

    # --- comparison ----------------------------------------------------------------------------

    @property
    def arms_axis(self) -> str | None:
        """The axis whose values are compared."""
        name = self.compare["arms"]
        return str(name) if name is not None else None

    def settings(self) -> Iterator[tuple[dict[str, str], dict[str, list[dict[str, Any]]]]]:
        """For every combination of the other axes: its labels, and arm → its plan entries."""
        others = [axis for axis in self.plan["axes"] if axis["name"] != self.arms_axis]
        arms = next((a["labels"] for a in self.plan["axes"] if a["name"] == self.arms_axis), [None])
        for labels in itertools.product(*(axis["labels"] for axis in others)):
            setting = {axis["name"]: label for axis, label in zip(others, labels, strict=True)}
            of_arm = {
                arm or self.name: [
                    entry
                    for entry in self.plan["runs"]
                    if entry["point"].items() >= setting.items()
                    and (arm is None or entry["point"][self.arms_axis] == arm)
                ]
                for arm in arms
            }
            yield setting, of_arm

    def named(self, entry: dict[str, Any]) -> str:
        """A run of the plan in words: `up 5 Mbps, policy top-k, seed 0`."""
        return in_words(entry["point"], self.axes, entry["seed"])

    def setting_text(self, setting: dict[str, str]) -> str:
        """A setting in words: `up 5 Mbps, k 1000`; empty for the only one there is."""
        return in_words(setting, self.axes)

    @cached_property
    def arms(self) -> pd.DataFrame:
        """One row per setting, arm and threshold: how it did over its seeds."""
        from simfed.study.comparison import arm_rows

        return arm_rows(self)

    def targets(self, quantity: str = "time", targets: Sequence[float] = ()) -> pd.DataFrame:
        """What each arm spent until it reached each target: a row per setting, arm and target.

        quantity: `time` (s), `sent` (bytes up), `moved` (bytes both ways) or `energy` (J). targets:
        accuracies; the study's thresholds if omitted, and whole runs (`target` is NaN) where there
        are none. One column per axis but the arms', `setting, arm, target, seeds, reached` (of the
        seeds), `median` (NaN where censoring leaves it open), `at_least`, and its interval `low,
        high` with `coverage`.

        Raises: `InputError` for another quantity, for energy that the devices' profiles do not
        know, and for accuracies of a study that learned nothing.
        """
        from simfed.study.targets import target_rows

        return target_rows(self, quantity, targets)

    @cached_property
    def comparisons(self) -> pd.DataFrame:
        """One row per setting, threshold and pair of arms, compared seed by seed."""
        from simfed.study.comparison import comparison_rows

        return comparison_rows(self)

    @property
    def caveat(self) -> str:
        """What the study file asks to compare and these runs cannot tell; empty if they can."""
        guessed = [one for one in self.compare["thresholds"] if one <= self._chance]
        if guessed and not self.time_only:
            which = " and ".join(f"{100 * one:g} %" for one in guessed)
            return f"Not compared: {which}; guessing reaches {100 * self._chance:.3g} %."
        if not self.time_only or not self.compare["thresholds"]:
            return ""
        asked = listed(f"{100 * threshold:g} %" for threshold in self.compare["thresholds"])
        return (
            "These runs learned nothing (--time-only), so the simulated times of whole runs are "
            f"compared; the time to {asked} needs learning."
        )

    @cached_property
    def verdicts(self) -> list[str]:
        """The comparisons in plain words, one sentence per pair of arms and threshold."""
        from simfed.study.comparison import sentences

        return sentences(self)

    @cached_property
    def bands(self) -> pd.DataFrame:
        """Accuracy over simulated time by setting and arm: `setting, arm, at_s, accuracy` (mean
        over seeds), `low, high` (its interval), `seeds`."""
        from simfed.study.bands import band_rows

        return band_rows(self)

    @cached_property
    def fingerprint(self) -> str:
        """A hash over the fingerprints of the finished runs, in the plan's order."""
        facts = [[entry["address"], run.fingerprint] for entry, run in self.finished]
        return hashlib.blake2b(json.dumps(facts).encode(), digest_size=16).hexdigest()


_FACTS = (
    "final_accuracy",
    "best_accuracy",
    "simulated_s",
    "uplink_bytes",
    "downlink_bytes",
    "rollbacks",
    "wall_s",
    "fingerprint",
)


def _facts(run: Run) -> dict[str, Any]:
    summary = run.summary
    accuracy = summary["accuracy"].get("mean", {})
    return {
        "final_accuracy": accuracy.get("final"),
        "best_accuracy": accuracy.get("best"),
        "simulated_s": summary["simulated_s"],
        "uplink_bytes": summary["uplink_bytes"],
        "downlink_bytes": summary["downlink_bytes"],
        "rollbacks": summary["rollbacks"],
        "wall_s": run.manifest["wall_s"]["total"],
        "fingerprint": run.fingerprint,
    }
