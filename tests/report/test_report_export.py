"""Runs for other tools.

Those marked `exports` read back what TensorBoard and MLflow wrote.
"""

import copy
import math
import sys

import numpy as np
import pandas as pd
import pytest

from simfed import InputError
from simfed.cli import main
from simfed.report import export, frames

pytest_plugins = ["report_runs"]


def test_a_row_has_the_learning_and_the_round_at_its_simulated_end(report_run):
    run = report_run()
    rows = export.rows(run)
    tidy = frames.curves(run)
    assert len(rows) == len(tidy)
    assert rows["at_s"].is_monotonic_increasing
    for prototype in ("small", frames.MEAN):
        ours = rows[rows["prototype"] == prototype].set_index("round")
        theirs = tidy[tidy["prototype"] == prototype].set_index("round")
        for column in ("accuracy", "loss", "kd_loss", "at_s", "uplink_bytes"):
            assert np.array_equal(ours[column], theirs[column], equal_nan=True), column
    last = rows.iloc[-1]
    assert last["downlink_bytes"] == run.rounds["downlink_bytes"].sum()


def test_energy_is_summed_up_where_every_device_knows_its_power(report_run):
    run = copy.copy(report_run(4, 3))
    parts = run.participations = run.participations.assign(energy_j=2.0)
    rows = export.rows(run).drop_duplicates("round")
    counts = parts.groupby("round").size().cumsum()
    assert list(rows["energy_j"]) == [2.0 * count for count in counts]
    run.participations = parts.assign(energy_j=[math.nan, *parts["energy_j"][1:]])
    assert export.rows(run)["energy_j"].isna().all()


def test_scalars_of_a_name_go_forward_in_time_and_leave_out_what_was_not_measured(
    report_run,
):
    run = report_run()
    scalars = pd.DataFrame(
        export.scalars(run), columns=["name", "round", "at_s", "value"]
    )
    assert scalars["value"].notna().all()
    for _, group in scalars.groupby("name"):
        assert group["at_s"].is_monotonic_increasing
    accuracy = scalars[scalars["name"] == "accuracy/small"]
    measured = run.prototypes.query("prototype == 'small'")["test_accuracy"].dropna()
    assert list(accuracy["value"]) == list(measured)
    clock = {name for name, *_ in export.scalars(report_run(6, 4, learns=False))}
    assert not any(name.startswith("accuracy/") for name in clock)
    assert "round/length (s)" in clock


def test_csv_as_typed_of_one_run_and_of_two(report_folder, tmp_path, capsys):
    a, b = report_folder(4, 3), report_folder(4, 3, 1)
    out = tmp_path / "both.csv"
    assert main(["export", str(a), str(b), "--to", "csv", "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"{out}\n"
    read = pd.read_csv(out)
    assert set(read["run"]) == {"synthetic (seed 0)", "synthetic (seed 1)"}
    assert len(read) == 2 * 3 * 3


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (
            ["--to", "tensorbord"],
            "--to: got 'tensorbord', expected csv, tensorboard or mlflow (did you",
        ),
        (
            ["--to", "csv", "--out", "no/where.csv"],
            ("no/where.csv: cannot be written: No such file or directory\n"),
        ),
    ],
)
def test_what_cannot_be_written_is_said(report_folder, capsys, arguments, complaint):
    assert main(["export", str(report_folder(4, 3)), *arguments]) == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize("package", ["tensorboard", "mlflow"])
def test_a_missing_extra_is_one_sentence(
    report_folder, tmp_path, capsys, monkeypatch, package
):
    for name in [n for n in sys.modules if n.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    out = str(tmp_path / "o")
    ask = ["export", str(report_folder(4, 3)), "--to", package, "--out", out]
    assert main(ask) == 2
    said = capsys.readouterr().err
    assert said == (
        f"simfed: --to {package}: the package {package}, which writes its files, is "
        f"missing "
        f"(pip install 'simfed[{package}]')\n"
    )
    assert not (tmp_path / "o").exists()


def expected(run, name):
    return [
        (n, at_s, value)
        for other, n, at_s, value in export.scalars(run)
        if other == name
    ]


@pytest.mark.exports
def test_tensorboard_reads_what_was_written_against_simulated_time(
    report_run, tmp_path
):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = report_run()
    export.write_tensorboard({"a run": run}, tmp_path / "one")
    events = EventAccumulator(
        str(tmp_path / "one" / "a run"), size_guidance={"scalars": 0}
    )
    events.Reload()
    names = {name for name, *_ in export.scalars(run)}
    assert set(events.Tags()["scalars"]) == names
    for name in names:
        read = events.Scalars(name)
        wanted = expected(run, name)
        assert [e.wall_time for e in read] == [at_s for _, at_s, _ in wanted]
        assert [e.value for e in read] == pytest.approx(
            [v for *_, v in wanted], rel=1e-6
        )
        assert [e.step for e in read] == [n for n, _, _ in wanted]
    again = tmp_path / "again"
    export.write_tensorboard({"a run": run}, again)
    one, other = (
        next((f / "a run").iterdir()).read_bytes() for f in (tmp_path / "one", again)
    )
    assert one == other


@pytest.mark.exports
def test_mlflow_reads_what_was_written_against_simulated_time(
    report_run, tmp_path, monkeypatch
):
    from mlflow.tracking import MlflowClient

    run = report_run()
    address = export.write_mlflow({"a run": run}, str(tmp_path / "store"))
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    client = MlflowClient(tracking_uri=address)
    place = client.get_experiment_by_name("synthetic")
    (logged,) = client.search_runs([place.experiment_id])
    assert logged.info.run_name == "a run"
    assert logged.info.status == "FINISHED"
    assert logged.data.tags["simfed.fingerprint"] == run.fingerprint
    assert (
        logged.data.params["clients/0.prototype"]
        == run.scenario["clients"][0]["prototype"]
    )
    read = client.get_metric_history(logged.info.run_id, "accuracy/small")
    wanted = expected(run, "accuracy/small")
    assert sorted((m.step, m.timestamp, m.value) for m in read) == [
        (n, round(1e3 * at_s), value) for n, at_s, value in wanted
    ]
    end_s = run.rounds["finished_at_s"].max()
    assert logged.info.end_time - logged.info.start_time == round(1e3 * end_s)


@pytest.mark.exports
def test_what_mlflow_does_not_take_is_one_sentence(report_run):
    with pytest.raises(InputError, match="MLflow cannot write there"):
        export.write_mlflow({"a": report_run(4, 3)}, "nothing://here")
