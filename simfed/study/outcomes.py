"""The runs of a study as tidy data frames.

There is one row per fact, with its point and seed beside it. `StudyRuns` reads; how
arms compare is `StudyResult`, in `results`.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simfed.ground.errors import listed
from simfed.ground.measure import Measure, find_common_measure
from simfed.ground.units import counted
from simfed.record.directory import RunStatus
from simfed.record.read import open_run
from simfed.record.summary import count_classes
from simfed.report.reach import (
    RunOutcome,
    build_mean_curve,
    choose_common_thresholds,
    find_outcome,
)
from simfed.study.plan import describe_point, label_of, shorten_names
from simfed.study.store import PlanEntry, StudyFolder

if TYPE_CHECKING:
    import pandas as pd

    from simfed.record.read import Run

_SCALARS = (str, int, float, bool)
_UNFINISHED = ("running", "interrupted", "failed", "waiting")


def _make_table_property(name: str) -> cached_property[pd.DataFrame]:
    """Return a property of `StudyRuns`: one table of all finished runs together."""
    return cached_property(lambda study: study.frame(name))


class StudyRuns:
    """The results of a study's runs; frames are read when they are first asked for.

    `rounds`, `participations`, `prototypes`, `policies`, `links` and `spans` are those
    of a run (docs/run-directory.md), of all finished runs together. Every frame begins
    with one column per axis and `seed`. A grid axis' column has its values as written,
    or their labels where values are mappings or lists; `zip` and `list` have their
    labels, and a column for each of their keys.

    Runs that are still under way do not count, and nothing is read again: make another
    one to see more.
    """

    def __init__(self, path: str | Path) -> None:
        self.folder = StudyFolder(path)
        self.path = self.folder.path
        self.plan = self.folder.plan()
        self.name = self.plan["name"]
        self.compare = self.plan["compare"]

    def __repr__(self) -> str:
        return f"<study {self.name!r}, {self.describe_progress()}>"

    @cached_property
    def statuses(self) -> dict[str, RunStatus]:
        """The status of each run, by its address."""
        return {
            e["address"]: self.folder.status(e["address"]) for e in self.plan["runs"]
        }

    def describe_progress(self) -> str:
        """Return how many runs are finished, and how far the others are, in words."""
        counts = Counter(
            self.statuses[entry["address"]].status for entry in self.plan["runs"]
        )
        words = [
            f"{counts.pop('finished', 0)} of {len(self.plan['runs'])} runs finished"
        ]
        words += [
            f"{counts[status]} {status}" for status in _UNFINISHED if counts[status]
        ]
        return ", ".join(words)

    @cached_property
    def axes(self) -> list[str]:
        """The names of the axes, in the order of the study file."""
        return [axis["name"] for axis in self.plan["axes"]]

    @cached_property
    def columns(self) -> list[str]:
        """The columns that say which run a row is of.

        They are axes, keys of `zip` and `list`, `seed`.
        """
        names = [
            name
            for axis in self.plan["axes"]
            for name in dict.fromkeys([axis["name"], *axis["keys"]])
        ]
        return [*names, "seed"]

    def point_of(self, entry: PlanEntry) -> dict[str, object]:
        """Return the head of an entry's rows: column → value, for all `columns`."""
        point: dict[str, object] = {}
        for axis in self.plan["axes"]:
            label = entry["point"][axis["name"]]
            point[axis["name"]] = label
            for key in axis["keys"]:
                value = entry["values"].get(key)
                plain = isinstance(value, _SCALARS)
                if key != axis["name"]:
                    point[key] = value if plain or value is None else label_of(value)
                elif plain and label == label_of(value):
                    point[key] = value
        return {**point, "seed": entry["seed"]}

    def run(self, address: str) -> Run:
        """Return the finished run of this address, opened from its folder.

        Raises:
            InputError: it is not finished, or not whole.
        """
        return open_run(self.folder.find(address))

    @cached_property
    def finished(self) -> list[tuple[PlanEntry, Run]]:
        """The plan's entries whose runs are finished, each with its run."""
        return [
            (entry, self.run(entry["address"]))
            for entry in self.plan["runs"]
            if self.statuses[entry["address"]].status == "finished"
        ]

    # --- frames -----------------------------------------------------------------------

    @cached_property
    def summary(self) -> pd.DataFrame:
        """One row per planned run: its state, and of finished ones what they came to.

        `address, status` (`waiting`, `running`, `interrupted`, `failed`, `finished`),
        `reason` (why it stopped, else empty), `final_accuracy, best_accuracy` (mean of
        clients; `final_measure, best_measure` of another one), `simulated_s,
        uplink_bytes, downlink_bytes, rollbacks, wall_s, fingerprint`.
        """
        import pandas as pd

        runs = {entry["address"]: run for entry, run in self.finished}
        rows = []
        for entry in self.plan["runs"]:
            address = entry["address"]
            run, (status, reason) = runs.get(address), self.statuses[address]
            row = {**self.point_of(entry), "address": address, "status": status}
            row["reason"] = reason
            rows.append({**row, **(_collect_facts(run) if run else {})})
        results = [f"final_{self.measure.key}", f"best_{self.measure.key}", *_FACTS]
        columns = [*self.columns, "address", "status", "reason", *results]
        return pd.DataFrame(rows, columns=columns)

    def frame(self, table: str) -> pd.DataFrame:
        """Return a table of all finished runs, by its name in `TABLES`."""
        return self._concatenate(lambda run: getattr(run, table))

    rounds = _make_table_property("rounds")
    participations = _make_table_property("participations")
    prototypes = _make_table_property("prototypes")
    policies = _make_table_property("policies")
    links = _make_table_property("links")
    spans = _make_table_property("spans")

    @cached_property
    def curves(self) -> pd.DataFrame:
        """The measure (mean of clients) wherever it was evaluated.

        See `build_mean_curve`.
        """
        return self._concatenate(build_mean_curve)

    @cached_property
    def measure(self) -> Measure:
        """The measure by which models are judged.

        Raises: `InputError` where runs differ in it.
        """
        return find_common_measure(
            (run.measure for _, run in self.finished), where=str(self.path)
        )

    @cached_property
    def time_only(self) -> bool:
        """True if the finished runs learned nothing: no threshold is reached.

        They were played with `--time-only`.
        """
        modes = {run.manifest.get("mode") for _, run in self.finished}
        return modes == {"time-only"}

    @cached_property
    def thresholds(self) -> list[float]:
        """The values of the measure whose first times are compared.

        They are the study's, else the hardest round number that at least half of the
        runs reach and guessing does not; what guessing reaches is left out. None where
        nothing was learned: whole runs are compared.
        """
        if self.time_only:
            return []
        thresholds = [wanted for wanted in self._wanted if wanted not in self._guessed]
        if thresholds:
            return thresholds
        if self.curves.empty:
            return []
        values = [
            curve for _, curve in self.curves.groupby("address")[self.measure.key]
        ]
        return choose_common_thresholds(values, self._classes, self.measure)

    @cached_property
    def _wanted(self) -> list[float]:
        """The study file's.

        Raises: `InputError` for one that the measure cannot have.
        """
        where = "compare.thresholds"
        return [
            self.measure.check(wanted, where=where)
            for wanted in self.compare["thresholds"]
        ]

    @cached_property
    def _guessed(self) -> list[float]:
        """Those that guessing reaches, which tell no arms apart."""
        return [
            one
            for one in self._wanted
            if not self.measure.beats_guessing(one, self._classes)
        ]

    @cached_property
    def _classes(self) -> int:
        return count_classes(run for _, run in self.finished)

    @cached_property
    def times(self) -> pd.DataFrame:
        """The first time of each finished run at each threshold.

        Columns: `threshold, at_s, reached`.

        Where `reached` is false, `at_s` is the run's end: the time is censored there.
        """
        import pandas as pd

        rows = []
        for entry, _ in self.finished:
            times = self.outcomes[entry["address"]].times
            for threshold in self.thresholds:
                at_s, reached = times[threshold]
                row = {"threshold": threshold, "at_s": at_s, "reached": reached}
                rows.append({**self.point_of(entry), **row})
        columns = [*self.columns, "threshold", "at_s", "reached"]
        return pd.DataFrame(rows, columns=columns)

    @cached_property
    def outcomes(self) -> Mapping[str, RunOutcome]:
        """The times to thresholds and the final measure of each finished run.

        Keys are addresses.
        """
        return {
            entry["address"]: find_outcome(
                run, self.curve_of(entry["address"]), self.thresholds
            )
            for entry, run in self.finished
        }

    def curve_of(self, address: str) -> pd.DataFrame:
        """Return the rows of `curves` of one run.

        None of them where it diverged before its first evaluation.
        """
        return self._curves.get(address, self.curves.iloc[:0])

    @cached_property
    def _curves(self) -> dict[str, pd.DataFrame]:
        """The rows of `curves` by address."""
        return dict(iter(self.curves.groupby("address")))

    def _concatenate(self, frame_of: Callable[[Run], pd.DataFrame]) -> pd.DataFrame:
        """Return frames of all finished runs as one, with points and addresses."""
        import pandas as pd

        frames = []
        for entry, run in self.finished:
            part = frame_of(run).copy()
            for i, (name, value) in enumerate(self.point_of(entry).items()):
                part.insert(i, name, value)
            part.insert(len(self.columns), "address", entry["address"])
            frames.append(part)
        if not frames:
            frames.append(pd.DataFrame(columns=[*self.columns, "address"]))
        return pd.concat(frames, ignore_index=True)

    @property
    def arms_axis(self) -> str | None:
        """The axis whose values are compared."""
        return self.compare["arms"]

    @property
    def arms_name(self) -> str:
        """The shortest name of that axis; empty where nothing is compared."""
        return shorten_names(self.axes)[self.arms_axis] if self.arms_axis else ""

    @property
    def confidence(self) -> float:
        """The confidence of every interval, such as 0.95."""
        return self.compare["confidence"]

    @property
    def relevant_ratio(self) -> float:
        """The ratio of times that a verdict asks for."""
        return self.compare["relevant_ratio"]

    def settings(self) -> Iterator[tuple[dict[str, str], dict[str, list[PlanEntry]]]]:
        """Yield (setting, arms) for every combination of the other axes.

        The setting is axis → label; arms are label → the plan's entries of all seeds,
        finished or not. Where nothing is compared the one arm has the study's name.
        """
        entries: dict[tuple[str, ...], list[PlanEntry]] = {}
        for entry in self.plan["runs"]:
            point = tuple(entry["point"][name] for name in self.axes)
            entries.setdefault(point, []).append(entry)
        others = [axis for axis in self.plan["axes"] if axis["name"] != self.arms_axis]
        arms = [
            axis["labels"]
            for axis in self.plan["axes"]
            if axis["name"] == self.arms_axis
        ]
        for labels in itertools.product(*(axis["labels"] for axis in others)):
            setting = {
                axis["name"]: label for axis, label in zip(others, labels, strict=True)
            }
            by_arm = {}
            for arm in arms[0] if arms else [self.name]:
                point = tuple(setting.get(name, arm) for name in self.axes)
                by_arm[arm] = entries.get(point, [])
            yield setting, by_arm

    def groups(self) -> Iterator[tuple[dict[str, str], str, list[PlanEntry]]]:
        """Yield (setting, arm, entries) of runs that differ in nothing but their seed.

        Entries are those whose runs are finished; there may be none.
        """
        for setting, by_arm in self.settings():
            for arm, entries in by_arm.items():
                yield setting, arm, self.select_finished(entries)

    def select_finished(self, entries: Iterable[PlanEntry]) -> list[PlanEntry]:
        """Return the entries whose runs are finished, in their order."""
        return [entry for entry in entries if entry["address"] in self.outcomes]

    def describe_run(self, entry: PlanEntry) -> str:
        """Return the run of an entry in words: `up 5 Mbps, policy top-k, seed 0`."""
        return describe_point(entry["point"], self.axes, entry["seed"])

    def describe_setting(self, setting: dict[str, str]) -> str:
        """Return a setting in words: `up 5 Mbps, k 1000`.

        It is empty for the only one there is.
        """
        return describe_point(setting, self.axes)

    @property
    def caveat(self) -> str:
        """A sentence about thresholds of the study file that these runs cannot compare.

        Empty where they can.
        """
        if self._guessed and not self.time_only:
            which = " and ".join(map(self.measure.goal, self._guessed))
            return (
                f"Not compared: {which}; guessing reaches "
                f"{self.measure.guess(self._classes)}."
            )
        if not self.time_only or not self.compare["thresholds"]:
            return ""
        wanted = listed(map(self.measure.goal, self.compare["thresholds"]))
        return (
            "These runs learned nothing (--time-only), so the simulated times of whole "
            f"runs are compared; the time to {wanted} needs learning."
        )

    @cached_property
    def unlike(self) -> str:
        """A sentence about finished runs of unlike processors, threads or versions.

        It is empty where all come from the same.
        """
        seen: dict[str, Counter[str]] = {}
        for _, run in self.finished:
            facts = {
                **run.manifest.get("versions", {}),
                "threads": run.manifest.get("threads"),
            }
            for name, value in facts.items():
                seen.setdefault(name, Counter())[str(value)] += 1
        unlike = [
            name
            + " "
            + ", ".join(f"{value} ({counted(n, 'run')})" for value, n in counts.items())
            for name, counts in seen.items()
            if len(counts) > 1
        ]
        if not unlike:
            return ""
        return (
            f"Runs come from unlike places, so last bits may differ: "
            f"{'; '.join(unlike)}"
        )

    @cached_property
    def fingerprint(self) -> str:
        """A hash over the fingerprints of the finished runs, in the plan's order."""
        facts = [[entry["address"], run.fingerprint] for entry, run in self.finished]
        return hashlib.blake2b(json.dumps(facts).encode(), digest_size=16).hexdigest()


_FACTS = (
    "simulated_s",
    "uplink_bytes",
    "downlink_bytes",
    "rollbacks",
    "wall_s",
    "fingerprint",
)


def _collect_facts(run: Run) -> dict[str, Any]:
    """Return what a finished run came to, as columns of `StudyRuns.summary`."""
    summary = run.summary
    key = run.measure.key
    mean = summary[key].get("mean", {})
    return {
        f"final_{key}": mean.get("final"),
        f"best_{key}": mean.get("best"),
        "simulated_s": summary["simulated_s"],
        "uplink_bytes": summary["uplink_bytes"],
        "downlink_bytes": summary["downlink_bytes"],
        "rollbacks": summary["rollbacks"],
        "wall_s": run.manifest["wall_s"]["total"],
        "fingerprint": run.fingerprint,
    }
