"""Rows that are kept of a study's runs: made alike for every page, each with where it
comes from.

A page's module names its parts (`STUDIES`): the study's file, what is changed in it,
and what a row says of a run. analysis/replay.py plays one row again by them.
"""

from __future__ import annotations

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from simfed.report.reach import find_first_amount
from simfed.study import StudyResult, plan_study, run_study
from simfed.study.address import own_code

if TYPE_CHECKING:
    import pandas as pd

    from simfed.record.read import Run
    from simfed.study.plan import PlannedRun

ROOT = Path(__file__).resolve().parents[1]
PROVENANCE = ("address", "fingerprint", "code", "versions", "processor")
"""Columns of a row that say where it comes from; rows kept before there were such lack
them."""
Row = dict[str, Any]


def provenance_of(run: Run, address: str) -> dict[str, str]:
    """Return where a row of a run comes from: its address, what it came to, and by
    what.
    """
    built = dict(run.manifest["versions"])
    processor = built.pop("processor")
    versions = ", ".join(f"{name} {version}" for name, version in built.items())
    by = f"{processor}, threads {run.manifest['threads']}"
    told = (address, run.fingerprint, own_code(), versions, by)
    return dict(zip(PROVENANCE, told, strict=True))


def spent_to(curve: pd.DataFrame, target: float, columns: Iterable[str]) -> Row:
    """Return what of each column was spent when a run was first at an accuracy, else by
    its end, and whether it was `reached`.
    """
    row: Row = {}
    for column in columns:
        end = float(curve[column].iloc[-1])
        row[column], row["reached"] = find_first_amount(curve, target, column, end)
    return row


@dataclass(frozen=True)
class KeptStudy:
    """A study of which rows are kept."""

    file: Path
    axes: Mapping[str, str]
    """Column of a row → the study's axis whose label stands there."""
    make: Callable[[Run, pd.DataFrame], Row | list[Row]]
    """Run and its curve → what its row says beside the axes and the seed, or its
    rows."""
    name: str = ""
    """Of the folder of its runs; that of its file if empty."""
    changes: Mapping[str, object] = field(default_factory=dict)
    """Key path → value, of the study or of every run."""
    time_only: bool = False
    told: Callable[[Any], Row] | None = None
    """Scenario → further columns of its row that tell runs apart."""

    def folder(self, out: Path) -> Path:
        """Return where the study's runs are, below `out`."""
        return out / (self.name or self.file.stem)

    def play(self, out: Path, jobs: int | None = None) -> pd.DataFrame:
        """Run what is missing of the study; return the rows of what is done."""
        here = {"overrides": self.changes, "time_only": self.time_only}
        return self.collect(run_study(self.file, self.folder(out), jobs=jobs, **here))

    def collect(self, study: StudyResult) -> pd.DataFrame:
        """Return the rows of a study's finished runs."""
        import pandas as pd

        rows = []
        for entry, run in study.finished:
            place = {column: entry["point"][axis] for column, axis in self.axes.items()}
            made = self.make(run, study.curve_of(entry["address"]))
            from_ = provenance_of(run, entry["address"])
            for row in made if isinstance(made, list) else [made]:
                rows.append({**place, "seed": entry["seed"], **row, **from_})
        return pd.DataFrame(rows)

    def planned(self, cell: Mapping[str, str], seed: int) -> list[PlannedRun]:
        """Return the study's runs whose rows have these texts in these columns."""
        found = []
        for run in plan_study(self.file, overrides=[*self.changes.items()]).runs:
            if run.seed == seed and cell.items() <= self.texts(run).items():
                found.append(run)
        return found

    def texts(self, run: PlannedRun) -> dict[str, str]:
        """Return the columns of a run's row that tell it from others, as texts."""
        row: Row = {column: run.point[axis] for column, axis in self.axes.items()}
        row |= {} if self.told is None else self.told(run.scenario)
        return {column: text_of(value) for column, value in row.items()}

    def command(self, run: PlannedRun, out: Path) -> list[str]:
        """Return the words of the command that plays one run of the study."""
        place = [f"{axis}={label}" for axis, label in run.point.items()]
        words = ["simfed", "study", "run", str(self.file.relative_to(ROOT))]
        words += ["--out", str(self.folder(out)), *["--time-only"] * self.time_only]
        words += ["--only", ",".join([*place, f"seed={run.seed}"])]
        for key, value in self.changes.items():
            text = yaml.safe_dump(value, default_flow_style=True, width=10**6)
            words += ["--set", f"{key}={text.partition(chr(10))[0]}"]
        return words


def text_of(value: object) -> str:
    """Return a value of a row as one writes it: numbers short.

    >>> text_of(1.0), text_of(0.5), text_of("8 bit"), text_of(None)
    ('1', '0.5', '8 bit', '')
    """
    if value is None or value != value:
        return ""
    return f"{value:g}" if isinstance(value, float) else str(value)


def play_all(studies: Sequence[KeptStudy], out: Path, jobs: int | None) -> pd.DataFrame:
    """Run what is missing of several studies.

    Return their rows, one after the other.
    """
    import pandas as pd

    return pd.concat([study.play(out, jobs) for study in studies], ignore_index=True)


def study_parser(about: str | None, out: str = "studies") -> ArgumentParser:
    """Return the parser of a study's own command: `run` plays what is missing and
    writes, `write` makes page and pictures of the kept rows. about: the module's
    docstring; out: where runs go.
    """
    parser = ArgumentParser(
        description=about, formatter_class=RawDescriptionHelpFormatter
    )
    parser.add_argument("do", choices=("run", "write"))
    parser.add_argument("--out", type=Path, default=Path(out))
    parser.add_argument("--jobs", type=int)
    return parser


def read(path: Path) -> pd.DataFrame:
    """Return kept rows, of Parquet or CSV."""
    import pandas as pd

    return pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)


def write(rows: pd.DataFrame, path: Path) -> None:
    """Keep rows, as Parquet or CSV by the file's name."""
    if path.suffix == ".parquet":
        rows.to_parquet(path, index=False)
    else:
        rows.to_csv(path, index=False)
