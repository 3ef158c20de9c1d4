"""Runs for other tools.

Those marked `exports` read back what TensorBoard and MLflow wrote.
"""

import copy
import math
import sys

import pandas as pd
import pytest

from simfed import InputError
from simfed.cli import main
from simfed.report import export, frames


def test_a_row_has_the_learning_and_the_round_at_its_simulated_end(report_run):
    run = report_run()
    rows = export.rows(run)
    assert rows["at_s"].is_monotonic_increasing
    columns = [
        "round",
        "prototype",
        "accuracy",
        "loss",
        "kd_loss",
        "at_s",
        "uplink_bytes",
    ]
    ours, theirs = (
        frame[columns].sort_values(["prototype", "round"], ignore_index=True)
        for frame in (rows, frames.curves(run))
    )
    pd.testing.assert_frame_equal(ours, theirs, check_exact=True)
    downlink_bytes = run.rounds["downlink_bytes"].sum()
    assert rows.iloc[-1]["downlink_bytes"] == downlink_bytes


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
    run = report_run(10, 100)  # evaluated in every fifth round
    names = ["name", "round", "at_s", "value"]
    scalars = pd.DataFrame(export.scalars(run), columns=names)
    assert scalars["value"].notna().all()
    by_name = scalars.groupby("name")
    assert by_name["at_s"].is_monotonic_increasing.all()
    accuracy = by_name.get_group("accuracy/small")["value"]
    measured = run.prototypes.query("prototype == 'small'")["test_accuracy"].dropna()
    assert accuracy.tolist() == measured.tolist()
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


@pytest.mark.parametrize("package", ["tensorboard", "mlflow"])
def test_a_missing_extra_is_one_sentence(
    report_folder, tmp_path, capsys, monkeypatch, package
):
    for name in [n for n in sys.modules if n.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    out = tmp_path / "o"
    ask = ["export", str(report_folder(4, 3)), "--to", package, "--out", str(out)]
    assert main(ask) == 2
    assert capsys.readouterr().err == (
        f"simfed: --to {package}: the package {package}, which writes its files, is "
        f"missing (pip install 'simfed[{package}]')\n"
    )
    assert not out.exists()


def expected(run, name):
    return [row[1:] for row in export.scalars(run) if row[0] == name]


@pytest.mark.exports
def test_tensorboard_reads_what_was_written_against_simulated_time(
    report_run, tmp_path
):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run, folders = (
        report_run(),
        [tmp_path / "one" / "a run", tmp_path / "again" / "a run"],
    )
    for folder in folders:
        export.write_tensorboard({"a run": run}, folder.parent)
    events = EventAccumulator(str(folders[0]), size_guidance={"scalars": 0})
    events.Reload()
    names = {name for name, *_ in export.scalars(run)}
    assert set(events.Tags()["scalars"]) == names
    for name in names:
        read, wanted = events.Scalars(name), expected(run, name)
        places = [(e.step, e.wall_time) for e in read]
        assert places == [(n, at_s) for n, at_s, _ in wanted]
        values = [value for *_, value in wanted]
        assert [e.value for e in read] == pytest.approx(values, rel=1e-6)
    one, other = (next(folder.iterdir()).read_bytes() for folder in folders)
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
    info, data = logged.info, logged.data
    assert (info.run_name, info.status) == ("a run", "FINISHED")
    assert data.tags["simfed.fingerprint"] == run.fingerprint
    prototype = run.scenario["clients"][0]["prototype"]
    assert data.params["clients/0.prototype"] == prototype
    read = client.get_metric_history(info.run_id, "accuracy/small")
    wanted = expected(run, "accuracy/small")
    assert sorted((m.step, m.timestamp, m.value) for m in read) == [
        (n, round(1e3 * at_s), value) for n, at_s, value in wanted
    ]
    end_s = run.rounds["finished_at_s"].max()
    assert info.end_time - info.start_time == round(1e3 * end_s)


@pytest.mark.exports
def test_what_mlflow_does_not_take_is_one_sentence(report_run):
    with pytest.raises(InputError, match="MLflow cannot write there"):
        export.write_mlflow({"a": report_run(4, 3)}, "nothing://here")
