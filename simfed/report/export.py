"""A run for the tools that people already look at: TensorBoard, MLflow, a spreadsheet.

`rows` is a run as one table; `scalars` are its columns as curves. CSV files have the
rows, TensorBoard and MLflow the curves.

TensorBoard's steps and MLflow's are rounds; simulated seconds are a curve of their own,
and the time stamp of every value is its simulated instant, counted from the run's start
as if that were the beginning of 1970. The packages `tensorboard` and `mlflow` are
extras and are imported when they are asked for.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from simfed.ground.errors import InputError
from simfed.ground.names import quote_formula
from simfed.ground.writing import replacing, writing
from simfed.report import compare, frames

if TYPE_CHECKING:
    from simfed.record.read import Run

_MOST_VALUES = 1000
"""The most values that MLflow takes at once."""
_MOST_PARAMS = 100
_LONGEST_PARAM = 500
_ROUND_COLUMNS = {
    "round": "round",
    "finished_at_s": "at_s",
    "duration_s": "duration_s",
    "participants": "participants",
    "dropped": "lost",
    "rolled_back": "rolled_back",
    "critical_client": "critical_client",
    "critical_phase": "critical_phase",
    "uplink_bytes": "uplink_bytes",
    "downlink_bytes": "downlink_bytes",
}
"""Columns of `rounds.parquet` as `rows` names them."""
_ROUND_CURVES = {
    "round/simulated time (s)": "end_s",
    "round/length (s)": "duration_s",
    "round/participants": "participants",
    "round/lost": "lost",
    "spent/sent by clients (bytes)": "uplink_bytes",
    "spent/sent to clients (bytes)": "downlink_bytes",
    "spent/energy (J)": "energy_j",
}
"""Curves of a whole round: name → column of `rows`, `end_s` for its end."""
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_\-. /]")


def rows(run: Run, label: str | None = None) -> pd.DataFrame:
    """Return one row per round and prototype (and their mean), in order of time.

    Columns: `run, round, at_s` (simulated, at the round's end), `prototype, accuracy,
    loss, kd_loss` (empty where not measured; other measures as in `frames.curves`), of
    the round `duration_s, participants, lost, rolled_back, critical_client,
    critical_phase`, and summed up since the start `uplink_bytes, downlink_bytes,
    energy_j` (empty where a device's profile does not know its power).

    Args:
        run: the finished run.
        label: what stands in the column `run`; None: the run's name.
    """
    facts = run.rounds.rename(columns=_ROUND_COLUMNS)[[*_ROUND_COLUMNS.values()]]
    for column in ("uplink_bytes", "downlink_bytes"):
        facts[column] = facts[column].cumsum()
    joules = run.participations.groupby("round")["energy_j"]
    facts["energy_j"] = float("nan")
    if run.participations["energy_j"].notna().all():
        facts["energy_j"] = (
            facts["round"].map(joules.sum(min_count=1)).fillna(0.0).cumsum()
        )
    learned = frames.curves(run)[["round", "prototype", *_name_columns(run)]]
    table = facts.merge(learned, on="round", how="left").sort_values(
        "at_s", kind="stable"
    )
    table.insert(0, "run", frames.find_run_name(run) if label is None else label)
    order = ["run", "round", "at_s", "prototype", *_name_columns(run)]
    others = [name for name in table.columns if name not in order]
    return table[[*order, *others]].reset_index(drop=True)


def scalars(run: Run) -> Iterator[tuple[str, int, float, float]]:
    """Yield (name, round, simulated instant in s, value) of every curve.

    They are in order of time for each name: `accuracy/small`, `round/length (s)`, `sent
    by clients (bytes)`, …
    """
    table = rows(run)
    once = table.drop_duplicates("round").assign(end_s=lambda rows: rows["at_s"])
    curves = [
        (f"{name}/{prototype}", group, column)
        for prototype, group in table.groupby("prototype", sort=False)
        for column, name in _name_columns(run).items()
    ]
    curves += [(name, once, column) for name, column in _ROUND_CURVES.items()]
    for name, group, column in curves:
        values = group[["round", "at_s", column]].dropna()
        for number, at_s, value in values.itertuples(index=False):
            yield name, int(number), float(at_s), float(value)


def _name_columns(run: Run) -> dict[str, str]:
    """Return the columns of `frames.curves` that hold values, with names of curves."""
    return {
        **{one.key: one.name for one in run.measures},
        "loss": "loss",
        "kd_loss": "distillation loss",
    }


def write_table(table: pd.DataFrame, path: Path) -> None:
    """Write a table as CSV for spreadsheets.

    They would take a text such as `=1+1` for a formula: such texts are quoted.

    Args:
        table: any; its index is left out.
        path: of the file, which is replaced once the new one is whole.

    Raises:
        InputError: where the disk refuses.
    """
    table = table.rename(columns=quote_formula)
    texts = table.select_dtypes(exclude="number").columns
    table = table.assign(**{name: table[name].map(quote_formula) for name in texts})
    with (
        writing(path),
        replacing(path) as whole,
        whole.open("w", encoding="utf-8", newline="") as file,
    ):
        table.to_csv(file, index=False)


def write_csv(runs: Mapping[str, Run], path: Path) -> Path:
    """Write `rows` of all runs to one file, and return its path.

    Args:
        runs: label → run.
        path: of the file.

    Raises:
        InputError: where the disk refuses.
    """
    table = pd.concat(
        [rows(run, label) for label, run in runs.items()], ignore_index=True
    )
    write_table(table, path)
    return path


def write_tensorboard(runs: Mapping[str, Run], folder: Path) -> Path:
    """Write event files for TensorBoard, one run each, and return their folder.

    Open them with `tensorboard --logdir FOLDER`. The same run gives the same bytes.

    Args:
        runs: label → run.
        folder: below which each run has a folder of its label's name.

    Raises:
        InputError: without the package tensorboard, or where the disk refuses.
    """
    with _extra("tensorboard"):
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter
    for label, run in runs.items():
        place = folder / _clean_name(label)
        with writing(place):
            place.mkdir(parents=True, exist_ok=True)
            with open(place / "events.out.tfevents.0.simfed", "wb") as file:
                writer = RecordWriter(file)
                writer.write(
                    Event(wall_time=0, file_version="brain.Event:2").SerializeToString()
                )
                for name, number, at_s, value in scalars(run):
                    summary = Summary(
                        value=[Summary.Value(tag=name, simple_value=value)]
                    )
                    event = Event(wall_time=at_s, step=number, summary=summary)
                    writer.write(event.SerializeToString())
    return folder


def write_mlflow(runs: Mapping[str, Run], store: str) -> str:
    """Write runs to MLflow, and return the store's address.

    An experiment is a scenario's name; a run has its scenario's keys as parameters and
    its seed and fingerprint as tags. Written twice, a run is there twice.

    Args:
        runs: label → run.
        store: a folder (MLflow's file store), or the address of a tracking server or
            database.

    Raises:
        InputError: without the package mlflow, and with what it says where it does not
            take the runs.
    """
    with _extra("mlflow"):
        from mlflow.entities import Metric, Param, RunTag
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient
    address = store if "://" in store else Path(os.path.realpath(store)).as_uri()
    with _file_store_allowed():
        try:
            client = MlflowClient(tracking_uri=address)
            for label, run in runs.items():
                name = frames.find_run_name(run)
                old = client.get_experiment_by_name(name)
                experiment = (
                    old.experiment_id if old else client.create_experiment(name)
                )
                tags = {
                    "simfed.seed": str(run.manifest.get("seed")),
                    "simfed.fingerprint": run.fingerprint,
                }
                target = client.create_run(
                    experiment, start_time=1, run_name=label
                ).info.run_id
                client.log_batch(target, tags=[RunTag(k, v) for k, v in tags.items()])
                params = [
                    Param(
                        _clean_name(key.replace("[", "/").replace("]", "")),
                        value[:_LONGEST_PARAM],
                    )
                    for key, value in compare.flatten_settings(run.scenario)
                ]
                metrics = [
                    Metric(_clean_name(n), value, round(1e3 * at_s), number)
                    for n, number, at_s, value in scalars(run)
                ]
                for i in range(0, len(params), _MOST_PARAMS):
                    client.log_batch(target, params=params[i : i + _MOST_PARAMS])
                for i in range(0, len(metrics), _MOST_VALUES):
                    client.log_batch(target, metrics=metrics[i : i + _MOST_VALUES])
                end_s = (
                    float(run.rounds["finished_at_s"].max()) if len(run.rounds) else 0.0
                )
                client.set_terminated(target, end_time=1 + round(1e3 * end_s))
        except (MlflowException, OSError) as error:
            reason = " ".join(str(error).split())[:300]
            raise InputError(
                where=address, problem=f"MLflow cannot write there: {reason}"
            ) from error
    return address


@contextmanager
def _extra(package: str) -> Iterator[None]:
    """Turn a missing package into an `InputError` that says how to install it."""
    try:
        yield
    except ImportError as error:
        raise InputError(
            where=f"--to {package}",
            problem=f"the package {package}, which writes its files, is missing",
            hint=f"pip install 'simfed[{package}]'",
        ) from error


@contextmanager
def _file_store_allowed() -> Iterator[None]:
    """Tell newer versions of MLflow that a folder is meant as a store."""
    name = "MLFLOW_ALLOW_FILE_STORE"
    before = os.environ.get(name)
    os.environ.setdefault(name, "true")
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(name, None)


def _clean_name(name: str) -> str:
    """Return a name with nothing but what MLflow and file systems take.

    >>> _clean_name("run (seed 0)"), _clean_name("../a?")
    ('run seed 0', '__/a_')
    """
    bare = re.sub(r"[()]", "", name)
    return _NOT_IN_NAMES.sub("_", bare).replace("..", "__").lstrip("/") or "_"
